"""Checkpoints of reassemblers."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Reassembler
from tests.boundary.extra_types import COLUMNS, NESTED_DICTIONARY, ROWS
from tests.reassembly.signed_messages import IDS, messages

DIGEST_BYTES = 16
SAYS = r"^state: not a valid reassembler checkpoint \("
KINDS = {"word": pa.array(["a", None, "longer than twelve"]), "items": pa.array([[1, 2], None, []])}
FRAGMENTS = ssbroker.fragment(messages([b"Hello, world", b"", b"1234567890"], **KINDS), max_fragment_bytes=5)
LATE = FRAGMENTS.set_column(2, FRAGMENTS.schema.field(2), pa.array([1] * FRAGMENTS.num_rows))


def reassembler_with_all_states(*, in_order: bool = True) -> Reassembler:
    """Returns a reassembler with incomplete and waiting messages, remembered sequence numbers, and known directions."""
    reassembler = Reassembler(in_order=in_order)
    reassembler.push(pa.concat_tables([FRAGMENTS.take([0, 2, 3, 5]), LATE.slice(0, 5)]))
    return reassembler


STATES = [
    reassembler_with_all_states().checkpoint(),
    reassembler_with_all_states(in_order=False).checkpoint(),
    Reassembler().checkpoint(),
]


def with_valid_digest(state: bytes) -> bytes:
    """Replaces the digest at the end by that of the rest, as accidental damage does not."""
    rest = state[:-DIGEST_BYTES]
    return rest + hashlib.md5(rest).digest()


@pytest.mark.parametrize("in_order", [True, False])
def test_a_restored_reassembler_behaves_like_the_original(in_order: bool) -> None:  # noqa: FBT001
    """Messages, extra columns and memory charges are the same, and so is its next checkpoint."""
    reassembler = reassembler_with_all_states(in_order=in_order)
    again = Reassembler.restore(reassembler.checkpoint())
    assert again.checkpoint() == reassembler.checkpoint()
    assert again.pending().equals(reassembler.pending())
    assert (again.pending_bytes, again.pending_messages) == (reassembler.pending_bytes, reassembler.pending_messages)
    rest = pa.concat_tables([FRAGMENTS, LATE])
    result, expected = again.push(rest), reassembler.push(rest)
    assert result == expected
    assert result.messages.num_rows >= 3
    assert again.checkpoint() == reassembler.checkpoint()


def test_a_truncated_checkpoint_is_rejected() -> None:
    """At every byte."""
    for state in STATES:
        for length in range(len(state)):
            with pytest.raises(ssbroker.MalformedDataError, match=SAYS):
                Reassembler.restore(state[:length])
        with pytest.raises(ssbroker.MalformedDataError, match=SAYS):
            Reassembler.restore(state + b"\0")


def test_a_checkpoint_with_an_altered_byte_is_rejected() -> None:
    """Every byte: its lowest bit, its highest bit, and all bits."""
    for state in STATES:
        for place, byte in enumerate(state):
            for flipped in (1, 0x80, 0xFF):
                with pytest.raises(ssbroker.MalformedDataError, match=SAYS):
                    Reassembler.restore(state[:place] + bytes([byte ^ flipped]) + state[place + 1 :])


def test_a_forged_checkpoint_is_rejected_or_is_a_valid_other_state() -> None:
    """The digest does not stop an attacker, so the content is validated as well."""
    refused = 0
    for state in STATES:
        for place in range(len(state) - DIGEST_BYTES):
            for flipped in (1, 0x80):
                altered = with_valid_digest(state[:place] + bytes([state[place] ^ flipped]) + state[place + 1 :])
                try:
                    reassembler = Reassembler.restore(altered)
                    assert reassembler.pending().num_rows == reassembler.pending_messages
                    assert Reassembler.restore(reassembler.checkpoint()).checkpoint() == reassembler.checkpoint()
                except ssbroker.MalformedDataError as error:
                    assert str(error).startswith("state: ")  # noqa: PT017
                    refused += 1
    assert refused > 1000


def test_a_checkpoint_of_another_version_is_reported_as_such() -> None:
    version = len(b"ssb:asm\0")
    later = with_valid_digest(STATES[0][:version] + b"\x02" + STATES[0][version + 1 :])
    with pytest.raises(ssbroker.MalformedDataError, match=SAYS + "unsupported version") as caught:
        Reassembler.restore(later)
    assert caught.value.expected == "a checkpoint"


def test_the_size_of_a_checkpoint_is_about_that_of_the_pending_data() -> None:
    reassembler = Reassembler()
    empty = len(reassembler.checkpoint())
    assert empty < 200
    body = bytes(1 << 20)
    begun = FRAGMENTS.slice(0, 1).drop_columns(["word", "items", "message_signature", "fragment_signature"])
    reassembler.push(begun.set_column(5, begun.schema.field(5), pa.array([body])))
    assert len(body) < len(reassembler.checkpoint()) < len(body) + 2_000
    assert reassembler.forget(IDS[0], is_initiator=False, message_sequence_number=0)
    assert len(reassembler.checkpoint()) < empty + 1_000


@pytest.mark.parametrize("value", [None, "state", 5, bytearray(STATES[0]), memoryview(STATES[0])])
def test_a_checkpoint_must_be_bytes(value: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"^state: expected bytes, got "):
        Reassembler.restore(value)


@pytest.mark.parametrize(
    "column", [*COLUMNS.values(), NESTED_DICTIONARY], ids=[*COLUMNS, "a dictionary of a dictionary"]
)
def test_extra_columns_of_any_type_are_kept_with_pending_messages(column: Any) -> None:
    """From one push to the next, through a checkpoint, and together with those of the same push."""
    pairs = pair_of_fragments(column)
    begun = [pairs.slice(row, 1) for row in range(0, ROWS, 2)]
    ended = [pairs.slice(row, 1) for row in range(1, ROWS, 2)]
    expected = column.to_pylist()[::2]
    whole = ssbroker.reassemble(pairs).messages
    assert whole["extra"].to_pylist() == expected
    reassembler = Reassembler()
    assert reassembler.push(pa.Table.from_batches(begun)).messages.num_rows == 0
    for one in (Reassembler.restore(reassembler.checkpoint()), reassembler):
        assert one.checkpoint() == reassembler.checkpoint()
        half = len(begun) // 2
        first = one.push(pa.Table.from_batches(ended[:half])).messages
        again = one.push(pa.Table.from_batches([*ended[half:], *single_fragments(column)])).messages
        for table in (first, again):
            table.validate(full=True)
            assert table.schema == whole.schema
        assert first["extra"].to_pylist() + again["extra"].to_pylist() == expected + column.to_pylist()


def pair_of_fragments(column: Any) -> pa.RecordBatch:
    """Returns messages of two fragments each, one after the other."""
    return pa.record_batch(
        {
            "conversation_id": pa.array([IDS[row // 2] for row in range(ROWS)], pa.binary(16)),
            "is_initiator": [True] * ROWS,
            "message_sequence_number": [0] * ROWS,
            "fragment_number": [row % 2 for row in range(ROWS)],
            "fragment_count": [2] * ROWS,
            "message_body": [b"part"] * ROWS,
            "extra": column,
        }
    )


def single_fragments(column: Any) -> list[pa.RecordBatch]:
    """Returns messages of one fragment each, in other directions."""
    batch = pair_of_fragments(column)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["is_initiator"] = pa.array([False] * ROWS)
    columns["message_sequence_number"] = pa.array([row % 2 for row in range(ROWS)])
    columns["fragment_number"], columns["fragment_count"] = pa.array([0] * ROWS), pa.array([1] * ROWS)
    whole = pa.record_batch(columns)
    return [whole.slice(row, 1) for row in range(ROWS)]
