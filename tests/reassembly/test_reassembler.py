"""Reassembly over several pushes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Reassembler, schemas
from tests.reassembly.signed_messages import IDS, messages
from tests.routing.conversations import ForeignStream

BODIES: list[bytes | None] = [b"Hello, world", b"", b"1234567890"]
MESSAGES = messages(BODIES, word=pa.array(["a", None, "c"]))
FRAGMENTS = ssbroker.fragment(MESSAGES, max_fragment_bytes=5)
DEFAULTS: dict[str, Any] = {
    "max_pending_bytes": 256 << 20,
    "max_pending_messages": 1 << 20,
    "max_message_bytes": 1 << 30,
    "max_fragments_per_message": 1 << 20,
    "max_sequence_distance": 1 << 20,
    "in_order": True,
}


def rows(*numbers: int) -> Any:
    return FRAGMENTS.take(list(numbers))


def with_incomplete_messages(**options: Any) -> Reassembler:
    """Returns a reassembler with two messages that each lack a fragment."""
    reassembler = Reassembler(**options)
    assert reassembler.push(rows(0, 2, 5)).messages.num_rows == 0
    return reassembler


@pytest.mark.rule("P13", "P14")
def test_missing_fragments_arrive_later() -> None:
    """Over several pushes, with the extra columns of the first fragment."""
    reassembler = with_incomplete_messages()
    assert reassembler.pending_messages == 2
    result = reassembler.push(rows(4, 1))
    assert [row["message_body"] for row in result.messages.to_pylist()] == [b"1234567890", b"Hello, world"]
    assert result.messages["word"].to_pylist() == ["c", "a"]
    assert (reassembler.pending_messages, result.pending.num_rows) == (0, 0)


def test_the_first_fragment_may_arrive_first_or_last() -> None:
    """The result combines stored extra columns with those of the batch."""
    reassembler = Reassembler()
    reassembler.push(rows(0, 1, 5))
    result = reassembler.push(rows(3, 4, 2)).messages
    assert result["message_body"].to_pylist() == [b"", b"1234567890", b"Hello, world"]
    assert result["word"].to_pylist() == [None, "c", "a"]


def test_pending_of_a_result_is_read_on_first_access() -> None:
    reassembler = Reassembler()
    early = reassembler.push(rows(0))
    read = reassembler.push(rows(1))
    assert repr(read) == "Reassembly(messages=0, rejected=0, acknowledgements=1, pending=1)"
    assert repr(early).endswith("pending=1)")
    assert read.pending["received_fragments"].to_pylist() == [2]
    reassembler.push(rows(2))
    assert read.pending.num_rows == 1
    assert early.pending.num_rows == 0
    assert early.pending.schema == schemas.PENDING


def test_default_limits() -> None:
    """A checkpoint includes the limits, so equal checkpoints mean equal limits."""
    assert Reassembler().checkpoint() == Reassembler(**DEFAULTS).checkpoint()
    for name, value in DEFAULTS.items():
        other = {name: not value} if name == "in_order" else {name: value - 1}
        assert Reassembler(**DEFAULTS | other).checkpoint() != Reassembler().checkpoint()
    bare = ("max_pending_bytes", "max_pending_messages", "max_fragments_per_message", "max_sequence_distance")
    unlimited: dict[str, Any] = {**dict.fromkeys(bare), "max_message_bytes": 2**31 - 1}
    nothing = Reassembler(**unlimited)
    assert nothing.push(FRAGMENTS).messages.num_rows == 3


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "in_order"])
@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1", True, [1]])
def test_invalid_limits_are_rejected(name: str, value: Any) -> None:
    with pytest.raises(ssbroker.OptionError, match=f"^{name}: expected an integer from "):
        Reassembler(**{name: value})


@pytest.mark.parametrize(("name", "least"), [("max_pending_bytes", 0), ("max_sequence_distance", 1)])
def test_minimum_limits_are_accepted(name: str, least: int) -> None:
    limits: list[dict[str, Any]] = [{name: least}, {name: least - 1}]
    assert Reassembler(**limits[0]).pending_bytes == 0
    with pytest.raises(ssbroker.OptionError):
        Reassembler(**limits[1])


def batches_with_invalid_row(table: Any) -> Any:
    """Returns a good batch, and one with a null in its last row."""
    good = table["message_body"].combine_chunks()[: table.num_rows - 1]
    return table.set_column(5, "message_body", pa.chunked_array([good, pa.nulls(1, pa.binary())]))


@pytest.mark.parametrize("wrap", [lambda table: table, lambda table: table.to_reader(), ForeignStream])
def test_a_push_that_raises_changes_nothing(wrap: Any) -> None:
    """Even if earlier batches are valid."""
    reassembler = with_incomplete_messages()
    before = reassembler.checkpoint()
    with pytest.raises(ssbroker.NullError) as caught:
        reassembler.push(wrap(batches_with_invalid_row(FRAGMENTS)))
    assert (caught.value.column, caught.value.row) == ("message_body", 5)
    assert reassembler.checkpoint() == before
    assert reassembler.push(rows(1)).messages["message_body"].to_pylist() == [b"Hello, world"]


def test_a_stream_that_fails_changes_nothing() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from FRAGMENTS.to_batches()
        raise KeyError("the producer's own")

    reassembler = Reassembler()
    with pytest.raises(KeyError, match="the producer's own"):
        reassembler.push(pa.RecordBatchReader.from_batches(FRAGMENTS.schema, batches()))
    assert (reassembler.pending_bytes, reassembler.push(FRAGMENTS).messages.num_rows) == (0, 3)


def test_extra_columns_must_equal_those_of_the_first_push() -> None:
    reassembler = with_incomplete_messages()
    before = reassembler.checkpoint()
    rest = rows(1, 4)
    words = rest["word"]
    others = {
        "is missing": rest.drop_columns(["word"]),
        "got an additional column": rest.append_column("more", words),
        "got int8": rest.set_column(8, "word", pa.nulls(2, pa.int8())),
        "got large_string": rest.set_column(8, "word", words.cast(pa.large_string())),
    }
    for message, other in others.items():
        with pytest.raises(ssbroker.SchemaError, match=r"^(word|more): .*(?i:" + message + ")") as caught:
            reassembler.push(other)
        assert caught.value.column in ("word", "more")
        assert reassembler.checkpoint() == before
    assert reassembler.push(rest).messages["word"].to_pylist() == ["a", "c"]


def test_an_invalid_first_push_does_not_set_the_extra_columns() -> None:
    reassembler = Reassembler()
    with pytest.raises(ssbroker.NullError):
        reassembler.push(batches_with_invalid_row(FRAGMENTS.append_column("more", pa.nulls(6))))
    assert reassembler.push(FRAGMENTS).messages.num_rows == 3


def test_extra_columns_in_another_order_or_as_dictionaries() -> None:
    reassembler = Reassembler()
    table = FRAGMENTS.append_column("more", pa.array(range(6)))
    reassembler.push(table.slice(0, 1))
    turned: Any = table.select([*table.column_names[:8], "more", "word"])
    encoded = turned.set_column(9, "word", turned["word"].dictionary_encode())
    result = reassembler.push(encoded.slice(1)).messages
    assert result.schema.names == [*schemas.MESSAGES.names, "word", "more"]
    assert result.select(["word", "more"]).to_pylist() == [
        {"word": "a", "more": 0},
        {"word": None, "more": 3},
        {"word": "c", "more": 4},
    ]


def test_forget_accepts_ids_in_any_form() -> None:
    for conversation in (IDS[0], "{00000000-0000-0000-0000-000000000001}"):
        reassembler = with_incomplete_messages()
        arguments: dict[str, Any] = {"is_initiator": False, "message_sequence_number": 0}
        assert reassembler.forget(conversation, **arguments) is True
        assert reassembler.forget(conversation, **arguments) is False
        assert reassembler.pending_messages == 1


def test_forget_rejects_invalid_arguments() -> None:
    reassembler = Reassembler()
    with pytest.raises(ssbroker.InvalidGuidError, match=r"^conversation_id: 'no guid' is not a valid GUID"):
        reassembler.forget("no guid", is_initiator=True, message_sequence_number=0)
    for number in (-1, 2**63, 1.5, None):
        with pytest.raises(ssbroker.OptionError, match=r"^message_sequence_number: "):
            reassembler.forget(IDS[0], is_initiator=True, message_sequence_number=number)  # type: ignore[arg-type]
    with pytest.raises(ssbroker.OptionError, match=r"^is_initiator: "):
        reassembler.forget(IDS[0], is_initiator=1, message_sequence_number=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("keys", [None, "key", {IDS[0]: b"k" * 16}])
def test_pickling_keeps_session_keys(dumps: Any, keys: Any) -> None:
    signed = messages(BODIES, word=MESSAGES["word"], key=pa.array([b"k" * 16, None, None]))
    table = ssbroker.fragment(signed, max_fragment_bytes=5, session_keys=None if keys is None else "key")
    if keys == "key":
        table = table.append_column("key", pa.array([b"k" * 16] * 3 + [None] * 3))
    reassembler = Reassembler(session_keys=keys)
    reassembler.push(table.slice(0, 1))
    copied = pickle.loads(dumps(reassembler))
    assert copied.checkpoint() == reassembler.checkpoint()
    for one in (copied, reassembler):
        result = one.push(table.slice(1))
        assert result.messages["message_body"].to_pylist() == BODIES
        assert result.rejected.num_rows == 0


def test_a_pickle_of_another_version_is_rejected() -> None:
    restore, (version, *state) = with_incomplete_messages().__reduce__()
    assert restore(version, *state).pending_messages == 2
    with pytest.raises(ssbroker.MalformedDataError, match="an incompatible version of ssbroker"):
        restore(version + 1, *state)


def test_properties() -> None:
    reassembler = with_incomplete_messages()
    # Two directions, two messages with a word, three fragments of 5, 2 and 5 bytes.
    assert reassembler.pending_bytes == 2 * 128 + 2 * 256 + (16 + 1) + 3 * 96 + 12
    assert repr(reassembler) == f"Reassembler(pending_messages=2, pending_bytes={reassembler.pending_bytes})"
    for name in ("pending_bytes", "limits"):
        with pytest.raises(AttributeError):
            setattr(reassembler, name, 0)


@pytest.mark.parametrize(
    ("column", "bytes_"),
    [
        (pa.array([5]), 0),
        (pa.array([True]), 0),
        (pa.nulls(1), 0),
        (pa.array(["word"]), 4),
        (pa.array(["a word that does not fit"], pa.string_view()), 24),
        (pa.array(["word"]).dictionary_encode(), 4),
        (pa.array([bytes(40)], pa.binary(40)), 40),
        (pa.nulls(1, pa.string()), 0),
    ],
    ids=str,
)
def test_memory_charged_for_extra_columns(column: Any, bytes_: int) -> None:
    """16 bytes for each value, plus its size."""
    charges = []
    for extra in ({}, {"extra": column}):
        reassembler = Reassembler()
        reassembler.push(ssbroker.fragment(messages([b"body"], **extra), max_fragment_bytes=2).slice(0, 1))
        charges.append(reassembler.pending_bytes)
    assert charges[1] - charges[0] == 16 + bytes_


def test_nested_columns_are_charged_by_row() -> None:
    """Independently of other rows and of the split into batches."""
    lists = pa.array([[1], list(range(10_000)), None, [1]])
    table = ssbroker.fragment(messages([b"body"] * 4, lists=lists), max_fragment_bytes=2)
    with_incomplete_messages: list[Any] = [table.slice(2 * row, 1) for row in range(4)]

    def charge(*parts: Any) -> int:
        reassembler = Reassembler()
        reassembler.push(pa.concat_tables(parts))
        return reassembler.pending_bytes

    each = [charge(part) for part in with_incomplete_messages]
    assert each[0] == each[3] > each[2]
    assert 80_000 < each[1] - each[0] < 250_000
    assert charge(*with_incomplete_messages) == sum(each)
    encoded = table.set_column(8, "lists", pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 1, 2, 2, 3, 3]), lists))
    assert charge(encoded.slice(2, 1)) == each[1]
