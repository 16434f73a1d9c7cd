"""The code for each length of vectors gives the same results, also on a machine that has longer ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import _core
from tests.worlds.numbered import hosts

USED: Final = {
    None: {"avx512", "avx2", "sse2", "neon"},
    256: {"avx2", "sse2", "neon"},
    128: {"sse2", "neon"},
    0: {"portable"},
}


@pytest.fixture(params=USED, ids=str)
def bits_max(request: pytest.FixtureRequest) -> Iterator[int | None]:
    yield request.param
    _core.limit_vectors(None)


def test_the_length_of_vectors_can_be_limited(bits_max: int | None) -> None:
    assert _core.limit_vectors(bits_max) in USED[bits_max]


def test_digests_are_those_of_hashlib(bits_max: int | None) -> None:
    """Values around the length of a block, and of several pages, in more than all lanes."""
    _core.limit_vectors(bits_max)
    values = [bytes([number % 251]) * number for number in range(200)]
    values += [bytes([number]) * (4_096 + number) for number in range(70)] + [b"x" * 100_000] * 3
    found = ssbroker.md5(pa.array(values, pa.binary()))
    assert found.to_pylist() == [hashlib.md5(value).digest() for value in values]


def test_messages_are_assembled_and_verified(bits_max: int | None) -> None:
    """Of one fragment and of several, short and long, and one that is corrupt."""
    _core.limit_vectors(bits_max)
    bodies = [bytes([number]) * length for number in range(20) for length in (0, 512, 4_096, 20_000)]
    sent = pa.table(
        {
            "conversation_id": pa.array([number.to_bytes(16, "big") for number in range(len(bodies))], pa.binary(16)),
            "is_initiator": [True] * len(bodies),
            "message_sequence_number": pa.array([0] * len(bodies), pa.int64()),
            "message_body": pa.array(bodies, pa.binary()),
        }
    )
    fragments = ssbroker.fragment(sent, max_fragment_bytes=4_096)
    corrupt: list[Any] = fragments["message_body"].to_pylist()
    corrupt[6] = corrupt[6][:-1] + b"!"
    where = fragments.column_names.index("message_body")
    fragments = fragments.set_column(where, "message_body", pa.array(corrupt, pa.binary()))
    found = ssbroker.reassemble(fragments.take(list(range(fragments.num_rows))[::-1]))
    expected = {row["conversation_id"]: row["message_body"] for row in sent.to_pylist()}
    corrupted = fragments["conversation_id"][6].as_py()
    assert {row["conversation_id"]: row["message_body"] for row in found.messages.to_pylist()} == {
        id_: body for id_, body in expected.items() if id_ != corrupted
    }
    assert found.rejected.select(["conversation_id", "reason"]).to_pylist() == [
        {"conversation_id": corrupted, "reason": "corrupt_fragment"}
    ]


def test_ids_as_text_are_parsed(bits_max: int | None) -> None:
    _core.limit_vectors(bits_max)
    ids = [f"{number:08x}-0000-4ABC-8def-{number:012X}" for number in range(100)]
    given = pa.table({"conversation_id": ids, "to_service_name": ["//s"] * 100, "to_broker_instance": ids})
    decided = ssbroker.Router(hosts(1)).route(given)
    found: list[Any] = decided["broker_instance"].to_pylist()
    assert [value.hex() for value in found] == [each.replace("-", "").lower() for each in ids]
    broken = given.set_column(0, "conversation_id", pa.array([*ids[:70], ids[70][:-1] + "g", *ids[71:]]))
    with pytest.raises(ssbroker.InvalidGuidError, match="conversation_id, row 70"):
        ssbroker.Router(hosts(1)).route(broken)
