"""Large messages are split into fragments and reassembled."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.exceptions import OptionError
from tests.oracle.traffic import Fragment
from tests.rules.fragments import KEY, A, B, first_of_two, messages, parts, push, reassemble_all, rejected, single
from tests.worlds.fragment_tables import fragment_batch, rows_of


def message_table(*bodies: bytes) -> pa.Table:
    return pa.table(
        {
            "conversation_id": pa.array([str(A)] * len(bodies)),
            "is_initiator": pa.array([True] * len(bodies)),
            "message_sequence_number": pa.array(range(len(bodies)), pa.int64()),
            "message_body": pa.array(bodies, pa.binary()),
        }
    )


@pytest.mark.rule("P13")
def test_fragments_arrive_in_any_order() -> None:
    """The message is complete when the last missing fragment arrives."""
    for order in permutations(parts(b"abcdefgh")):
        reassembler = ssbroker.Reassembler()
        assert messages(push(reassembler, *order[:-1])) == []
        assert messages(push(reassembler, order[-1])) == [(0, b"abcdefgh")]


@pytest.mark.rule("P13")
def test_only_a_lost_fragment_is_sent_again() -> None:
    """Received fragments are kept."""
    reassembler = ssbroker.Reassembler()
    first, second, third = parts(b"abcdef")
    push(reassembler, first, third)
    assert messages(push(reassembler, second)) == [(0, b"abcdef")]


@pytest.mark.rule("P13")
def test_small_messages_overtake_fragments_of_a_large_one() -> None:
    """In another direction or conversation they do not wait."""
    first, second = parts(b"abcd")
    result = reassemble_all(first, single(0, conversation=B), single(0, initiator=False), second, single(1))
    assert [row["conversation_id"][0] for row in rows_of(result.messages)] == [0xBB, 0xAA, 0xAA, 0xAA]


@pytest.mark.rule("P13")
def test_a_message_of_very_many_fragments() -> None:
    """100,000 of one byte, in reverse order."""
    body = bytes(number % 251 for number in range(100_000))
    assert messages(reassemble_all(*reversed(parts(body, size=1)))) == [(0, body)]


@pytest.mark.rule("P13")
def test_empty_bodies_and_empty_fragments() -> None:
    """An empty body is one empty fragment; other senders may send empty ones too."""
    one, two = first_of_two(0), first_of_two(1, body=b"x")
    result = reassemble_all(single(2), one, replace(one, number=1), replace(two, number=1, body=b""), two)
    assert messages(result) == [(0, b""), (1, b"x"), (2, b"")]


@pytest.mark.rule("P13")
def test_the_last_fragment_may_be_shorter() -> None:
    """Fragments have `max_fragment_bytes`; an empty body is one empty fragment."""
    fragments = ssbroker.fragment(message_table(b"abcde", b"", b"abcd"), max_fragment_bytes=2)
    names = ["message_sequence_number", "fragment_number", "fragment_count", "message_body"]
    assert [tuple(row.values()) for row in rows_of(fragments.select(names))] == [
        (0, 0, 3, b"ab"),
        (0, 1, 3, b"cd"),
        (0, 2, 3, b"e"),
        (1, 0, 1, b""),
        (2, 0, 2, b"ab"),
        (2, 1, 2, b"cd"),
    ]


@pytest.mark.rule("P21", "P23")
def test_fragments_have_both_signatures() -> None:
    """Computed again, whatever the messages contain."""
    table = message_table(b"abcde", b"").append_column("message_signature", pa.array([bytes(16), None], pa.binary(16)))
    expected = fragment_batch([*parts(b"abcde", 0), *parts(b"", 1)])
    assert rows_of(ssbroker.fragment(table, max_fragment_bytes=2)) == expected.to_pylist()


@pytest.mark.rule("P21", "P22")
def test_signatures_are_encrypted_with_a_session_key() -> None:
    """The key of the conversation."""
    got = ssbroker.fragment(message_table(b"abcde"), max_fragment_bytes=2, session_keys={A: KEY})
    assert rows_of(got) == fragment_batch(parts(b"abcde", key=KEY)).to_pylist()


def test_extra_columns_are_repeated() -> None:
    """In every fragment of their message, after the columns of fragments."""
    table = message_table(b"abc", b"d").append_column("priority", pa.array([7, 8], pa.int8()))
    got = ssbroker.fragment(table, max_fragment_bytes=2)
    assert got.column_names == [*ssbroker.schemas.FRAGMENTS.names, "priority"]
    assert got.column("priority").type == pa.int8()
    assert got.column("priority").to_pylist() == [7, 7, 8]


@pytest.mark.parametrize("size", [0, -1])
def test_max_fragment_bytes_is_at_least_one(size: int) -> None:
    with pytest.raises(OptionError):
        ssbroker.fragment(message_table(b"a"), max_fragment_bytes=size)


def test_a_message_has_the_extra_columns_of_its_first_fragment() -> None:
    """Of fragment 0, whichever arrived first; rejected rows have none."""
    first, second = parts(b"abcd")
    batch = fragment_batch([second, first, second])
    notes = pa.array(["of the second", "of the first", "again"]).dictionary_encode()
    batch = batch.append_column("note", notes)
    result = ssbroker.reassemble(batch)
    assert result.messages.schema.field("note").type == pa.string()
    assert result.messages.column("note").to_pylist() == ["of the first"]
    assert result.rejected.schema == ssbroker.schemas.REJECTED
    assert rejected(result) == [(0, 1, "duplicate")]


def test_extra_columns_wait_with_their_message() -> None:
    """From push to push and through a checkpoint."""
    first, second = parts(b"abcd", 1)
    reassembler = ssbroker.Reassembler()

    def push_noted(fragment: Fragment, note: str | None) -> ssbroker.Reassembly:
        return reassembler.push(fragment_batch([fragment]).append_column("note", pa.array([note], pa.string())))

    push_noted(first, "of the first")
    reassembler = ssbroker.Reassembler.restore(reassembler.checkpoint())
    push_noted(second, "of the second")
    assert push_noted(single(0), None).messages.column("note").to_pylist() == [None, "of the first"]
