"""Without the session key no forgery is accepted; and forgeries that neither key nor MD5 prevent."""

from __future__ import annotations

from dataclasses import replace
from hashlib import md5
from random import Random
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

import ssbroker
from ssbroker.reassembly import SessionKeys
from tests.property.forgery import ATTACKS, PART_BYTES, columns_of
from tests.rules.fragments import KEY, OTHER_KEY, A, B, messages, parts, reasons, reassemble_all, single
from tests.worlds.fragment_tables import rows_of

FORGED = 1_000_000
CONVERSATIONS = 25
MESSAGES = 200
FRAGMENTS_MAX = 4

KEYS: SessionKeys = {UUID(int=number): KEY for number in range(CONVERSATIONS)}
"""All conversations have the same key, so that only the header distinguishes them."""

REJECTED = {"corrupt_fragment", "corrupt_message", "conflict"}
"""Not `duplicate`, which is acknowledged: no forged message was complete before."""

COLLIDING = [
    bytes.fromhex(
        "d131dd02c5e6eec4693d9a0698aff95c2fcab5"
        + one
        + "12467eab4004583eb8fb7f8955ad340609f4b30283e4888325"
        + two
        + "1415a"
        "085125e8f7cdc99fd91dbd"
        + three
        + "280373c5bd8823e3156348f5bae6dacd436c919c6dd53e2"
        + four
        + "87da03fd02396306d248cda0"
        "e99f33420f577ee8ce54b67080" + five + "80d1ec69821bcb6a8839396f965" + six + "b6ff72a70"
    )
    for one, two, three, four, five, six in (("87", "7", "f", "b4", "a", "2"), ("07", "f", "7", "34", "2", "a"))
]
"""Two bodies with one MD5, published by Wang and Yu in 2004."""


def honest_messages() -> pa.Table:
    """Returns messages of one to four fragments for both directions of every conversation."""
    random = Random(22)
    rows = [
        (
            UUID(int=conversation).bytes,
            is_initiator,
            sequence,
            random.randbytes(PART_BYTES * (1 + sequence % FRAGMENTS_MAX)),
        )
        for conversation in range(CONVERSATIONS)
        for is_initiator in (True, False)
        for sequence in range(MESSAGES)
    ]
    names = ("conversation_id", "is_initiator", "message_sequence_number", "message_body")
    return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.mark.rule("P21", "P22")
def test_none_of_a_million_forged_fragments_is_accepted() -> None:
    """Forgeries arrive while messages are incomplete; afterwards every honest message is completed."""
    random = np.random.default_rng(22)
    table = honest_messages()
    fragments = ssbroker.fragment(table, max_fragment_bytes=PART_BYTES, session_keys=KEYS)
    honest = columns_of(fragments)
    batch = honest.batch()
    waiting = pa.array((honest.number == 0) & (honest.count > 1))
    reassembler = ssbroker.Reassembler(session_keys=KEYS)
    beginnings = reassembler.push(batch.filter(waiting))
    before = (reassembler.pending_bytes, reassembler.pending_messages)
    tried = rejected = 0
    while tried < FORGED:
        for attack in ATTACKS:
            result = reassembler.push(attack(random, honest).batch())
            assert set(result.rejected.column("reason").to_pylist()) <= REJECTED, attack
            assert result.messages.num_rows == result.acknowledgements.num_rows == 0, attack
            tried += len(honest)
            rejected += result.rejected.num_rows
    assert rejected == tried
    assert (reassembler.pending_bytes, reassembler.pending_messages) == before
    ends = reassembler.push(batch.filter(pa.compute.invert(waiting)))
    assert beginnings.rejected.num_rows == ends.rejected.num_rows == reassembler.pending_messages == 0
    got = [*rows_of(beginnings.messages), *rows_of(ends.messages)]
    names = table.column_names
    assert sorted(tuple(row[name] for name in names) for row in got) == sorted(
        tuple(row[name] for name in names) for row in table.to_pylist()
    )


@pytest.mark.rule("P22")
def test_without_a_key_forgeries_with_an_md5_are_accepted() -> None:
    """Unencrypted MD5 detects accidents, not attackers: another body, and the same body in another place."""
    good = parts(b"pay 10", size=3)
    forged = parts(b"pay 99", size=3)
    assert messages(reassemble_all(*forged)) == [(0, b"pay 99")]
    # The first fragment of the honest message is known and equal; the attacker needs nothing else.
    assert good[0].body == forged[0].body
    for moved in (
        [replace(each, conversation_id=B) for each in good],
        [replace(each, is_initiator=False) for each in good],
    ):
        assert messages(reassemble_all(*moved)) == [(0, b"pay 10")]
    assert messages(reassemble_all(single(0), *(replace(each, sequence=1) for each in good))) == [
        (0, b""),
        (1, b"pay 10"),
    ]


@pytest.mark.rule("P22")
def test_with_a_key_bodies_with_colliding_md5_are_interchangeable() -> None:
    """An attacker who chooses a body that an honest sender signs can replace it by a colliding one, so bodies should be encrypted too."""
    one, other = COLLIDING
    assert one != other
    assert md5(one).digest() == md5(other).digest()
    (sent,) = parts(one, size=999, key=KEY)
    assert messages(reassemble_all(replace(sent, body=other), session_keys={A: KEY})) == [(0, other)]
    assert reasons(reassemble_all(replace(sent, body=other[:-1]), session_keys={A: KEY})) == ["corrupt_fragment"]


@pytest.mark.rule("P12", "P22")
def test_with_a_key_a_replay_is_a_duplicate() -> None:
    """A recorded fragment is not delivered again; with another key it is never accepted."""
    sent = parts(b"pay 10", size=3, key=KEY)
    assert messages(reassemble_all(*sent, *sent, session_keys={A: KEY})) == [(0, b"pay 10")]
    assert messages(reassemble_all(*sent, session_keys={A: OTHER_KEY})) == []
