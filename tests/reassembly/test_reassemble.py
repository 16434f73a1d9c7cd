"""Reassembly in one call."""

from __future__ import annotations

import gc
import pickle
import uuid
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ssbroker
from ssbroker import schemas
from tests.reassembly.signed_messages import IDS, messages, with_column, without
from tests.routing.conversations import ForeignArray, ForeignStream

BODIES: list[bytes | None] = [b"Hello, world", b"", b"1234567890", b"short", b"x" * 23]
MESSAGES = messages(BODIES)
FRAGMENTS = ssbroker.fragment(MESSAGES, max_fragment_bytes=5)
WORDS = pa.array(["a", None, "b", "a", "c"])


def shuffled(table: Any, seed: int = 7) -> Any:
    rows = list(range(table.num_rows))
    Random(seed).shuffle(rows)
    return table.take(rows)


def by_conversation(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["conversation_id"], row["message_sequence_number"]))


@pytest.mark.rule("P13")
def test_fragments_are_reassembled() -> None:
    """Each message once, byte for byte, with its signature."""
    for seed in range(10):
        result = ssbroker.reassemble(shuffled(FRAGMENTS, seed))
        result.messages.validate(full=True)
        assert result.messages.schema == schemas.MESSAGES
        assert by_conversation(result.messages.drop_columns(["message_signature"])) == MESSAGES.to_pylist()
        assert result.messages["message_signature"].null_count == 0
        assert (result.rejected.num_rows, result.rejected.schema) == (0, schemas.REJECTED)
        assert (result.pending.num_rows, result.pending.schema) == (0, schemas.PENDING)
        assert result.acknowledgements.schema == schemas.ACKNOWLEDGEMENTS
        assert result.acknowledgements["acked_sequence_number"].to_pylist() == [0] * 5


def test_results_have_their_schemas() -> None:
    """Rejected fragments, acknowledgements and pending messages of one input, with all columns."""
    first: Any = FRAGMENTS.slice(1, 2)
    result = ssbroker.reassemble(pa.concat_tables([first, first.slice(1), FRAGMENTS.slice(6, 1)]))
    for table, schema in (
        (result.rejected, schemas.REJECTED),
        (result.acknowledgements, schemas.ACKNOWLEDGEMENTS),
        (result.pending, schemas.PENDING),
    ):
        table.validate(full=True)
        assert table.schema == schema
    key = {"conversation_id": IDS[0], "is_initiator": False}
    assert result.rejected.to_pylist() == [
        {**key, "message_sequence_number": 0, "fragment_number": 2, "fragment_count": 3, "reason": "duplicate"}
    ]
    assert result.acknowledgements.to_pylist() == [
        {**key, "acked_sequence_number": None, "partial_sequence_number": 0, "partial_fragments": [1, 2]},
        {
            "conversation_id": IDS[3],
            "is_initiator": False,
            "acked_sequence_number": 0,
            "partial_sequence_number": None,
            "partial_fragments": None,
        },
    ]
    assert result.pending.to_pylist() == [
        {
            **key,
            "message_sequence_number": 0,
            "fragment_count": 3,
            "received_fragments": 2,
            "received_bytes": 7,
            "first_missing_fragment": 0,
            "waits_for_sequence_number": None,
        }
    ]
    labels: Any = result.rejected["reason"].chunk(0)
    assert set(labels.dictionary.to_pylist()) == {
        "duplicate",
        "corrupt_fragment",
        "corrupt_message",
        "conflict",
        "out_of_range",
        "limit_exceeded",
    }


@pytest.mark.parametrize(
    "wrap",
    [
        lambda table: table,
        lambda table: table.combine_chunks().to_batches()[0],
        lambda table: table.combine_chunks().to_batches()[0].to_struct_array(),
        lambda table: pa.concat_tables([table.slice(0, 4), table.slice(4, 0), table.slice(4)]),
        lambda table: table.to_reader(max_chunksize=1),
        lambda table: ForeignArray(table.combine_chunks().to_batches()[0]),
        ForeignStream,
    ],
)
def test_a_batch_table_or_stream_is_one_push(wrap: Any) -> None:
    """One acknowledgement for each direction, however the rows are split into batches."""
    table = shuffled(ssbroker.fragment(messages(BODIES, word=WORDS), max_fragment_bytes=2))
    expected, result = ssbroker.reassemble(table), ssbroker.reassemble(wrap(table))
    for name in ("messages", "rejected", "acknowledgements", "pending"):
        assert getattr(result, name).to_pylist() == getattr(expected, name).to_pylist()
        assert getattr(result, name).schema == getattr(expected, name).schema
    assert result.acknowledgements.num_rows == 5


def test_no_fragments() -> None:
    for empty in (FRAGMENTS.slice(0, 0), pa.Table.from_batches([], schema=FRAGMENTS.schema)):
        result = ssbroker.reassemble(empty)
        assert (result.messages.num_rows, result.messages.schema) == (0, schemas.MESSAGES)
        assert (result.acknowledgements.num_rows, result.rejected.num_rows, result.pending.num_rows) == (0, 0, 0)


def test_signatures_are_optional() -> None:
    """Without them nothing is verified, and the message has no signature."""
    bare = FRAGMENTS.drop_columns(["message_signature", "fragment_signature"])
    nulls = bare.append_column("message_signature", pa.nulls(bare.num_rows)).append_column(
        "fragment_signature", pa.nulls(bare.num_rows, pa.binary())
    )
    for table in (bare, nulls):
        result = ssbroker.reassemble(table)
        assert result.messages["message_body"].to_pylist() == BODIES
        assert result.messages["message_signature"].to_pylist() == [None] * 5
        assert result.messages.schema == schemas.MESSAGES


def test_the_conversation_column_may_be_the_handle() -> None:
    handles = FRAGMENTS.rename_columns(["conversation_handle", *FRAGMENTS.column_names[1:]])
    assert ssbroker.reassemble(handles).messages.equals(ssbroker.reassemble(FRAGMENTS).messages)


def test_messages_have_the_extra_columns_of_their_first_fragments() -> None:
    """In the order of the input, dictionaries decoded, and all nullable."""
    words: Any = WORDS.dictionary_encode()
    table = ssbroker.fragment(messages(BODIES, word=words, number=pa.array(range(5))), max_fragment_bytes=5)
    numbers = pa.array([row * 10 for row in range(table.num_rows)])
    table = table.append_column(pa.field("part", numbers.type, nullable=False), numbers)
    for given in (table, shuffled(table)):
        result = ssbroker.reassemble(given).messages
        assert result.schema.names == [*schemas.MESSAGES.names, "word", "number", "part"]
        assert result.schema.field("word").type == pa.string()
        assert result.schema.field("part").nullable
        rows = by_conversation(result)
        assert [row["word"] for row in rows] == WORDS.to_pylist()
        assert [row["number"] for row in rows] == list(range(5))
        assert [row["part"] for row in rows] == [0, 30, 40, 60, 70]


def test_the_key_column_is_omitted() -> None:
    keys = pa.array([b"k" * 16, None, b"l" * 24, None, b"m" * 32])
    signed = messages(BODIES, key=keys, word=WORDS)
    table = ssbroker.fragment(signed, max_fragment_bytes=5, session_keys="key")
    counts = [3, 1, 2, 1, 5]
    own = pa.array([key for key, count in zip(keys.to_pylist(), counts, strict=True) for _ in range(count)])
    by_column = ssbroker.reassemble(table.append_column("key", own), session_keys="key")
    assert by_column.messages.schema.names == [*schemas.MESSAGES.names, "word"]
    assert by_column.messages["message_body"].to_pylist() == BODIES
    mapping: Any = {uuid.UUID(bytes=IDS[0]): b"k" * 16, IDS[2]: b"l" * 24, str(uuid.UUID(bytes=IDS[4])): b"m" * 32}
    by_mapping = ssbroker.reassemble(table, session_keys=mapping)
    assert by_mapping.messages.equals(by_column.messages)
    wrong = ssbroker.reassemble(table)
    assert wrong.rejected["reason"].to_pylist() == ["corrupt_fragment"] * 10
    assert wrong.messages["message_body"].to_pylist() == [b"", b"short"]


def test_messages_are_returned_in_batches_of_64_mib() -> None:
    """A larger message is a batch of its own; bodies are unchanged."""
    large = bytes(30 << 20)
    given = messages([large, b"small", large, large, bytes(70 << 20), b""])
    result = ssbroker.reassemble(ssbroker.fragment(given, max_fragment_bytes=16 << 20)).messages
    bodies: list[Any] = [batch["message_body"] for batch in result.to_batches()]
    assert [pc.sum(pc.binary_length(body)).as_py() for body in bodies] == [(60 << 20) + 5, 30 << 20, 70 << 20]
    assert result["message_sequence_number"].to_pylist() == [0] * 6


def test_max_message_bytes_limits_messages() -> None:
    result = ssbroker.reassemble(FRAGMENTS, max_message_bytes=12)
    assert result.messages["message_body"].to_pylist() == BODIES[:4]
    assert set(result.rejected["reason"].to_pylist()) == {"limit_exceeded"}
    for value in (0, 2**31, None, 1.0):
        with pytest.raises(ssbroker.OptionError, match=r"^max_message_bytes: expected an integer from 1 to"):
            ssbroker.reassemble(FRAGMENTS, max_message_bytes=value)  # type: ignore[arg-type]


def test_without_order_no_message_waits() -> None:
    late = messages([b"second"] * 2)
    table = ssbroker.fragment(with_column(late, "message_sequence_number", pa.array([1, 2])), max_fragment_bytes=9)
    assert ssbroker.reassemble(table).messages.num_rows == 0
    assert ssbroker.reassemble(table, in_order=False).messages.num_rows == 2
    with pytest.raises(ssbroker.OptionError, match=r"^in_order: expected True or False, got 1$"):
        ssbroker.reassemble(table, in_order=1)  # type: ignore[arg-type]


def test_a_result_does_not_keep_bodies_of_pending_messages() -> None:
    """The result cannot be continued, so only the rows about pending messages are kept."""

    def reassemblers() -> int:
        gc.collect()
        return sum(isinstance(each, ssbroker.Reassembler) for each in gc.get_objects())

    before = reassemblers()
    result = ssbroker.reassemble(FRAGMENTS.slice(1))
    assert reassemblers() == before
    assert result.pending.num_rows == 1


def test_pickling_a_result_keeps_the_pending_messages() -> None:
    result = ssbroker.reassemble(FRAGMENTS.slice(1))
    copied = pickle.loads(pickle.dumps(result))
    assert copied == result
    assert copied.pending.equals(result.pending)
    assert copied.pending.num_rows == 1


@pytest.mark.parametrize("name", without(MESSAGES, "conversation_id").schema.names)
def test_the_error_names_the_missing_column(name: str) -> None:
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: the column is missing; expected "):
        ssbroker.reassemble(FRAGMENTS.drop_columns([name]))


@pytest.mark.parametrize("value", [None, 5, b"state", {"message_body": [b""]}])
def test_fragments_must_be_an_arrow_object(value: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"^fragments: expected an Arrow object"):
        ssbroker.reassemble(value)
