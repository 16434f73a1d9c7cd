"""Fragmentation of messages."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ssbroker
from ssbroker import schemas
from tests.compat.pyarrow_versions import needs_pyarrow
from tests.oracle.fragmentation import split_body
from tests.reassembly.signed_messages import IDS, messages, with_column, without
from tests.routing.conversations import ForeignArray, ForeignStream

BODIES: list[bytes | None] = [b"Hello, world", b"", b"1234567890", b"short", b"x" * 23]
MESSAGES = messages(BODIES)
KEYS = {uuid.UUID(bytes=IDS[0]): b"k" * 16, str(uuid.UUID(bytes=IDS[2])): b"l" * 24, IDS[4]: b"m" * 32}


def fragments(batch: Any = MESSAGES, max_fragment_bytes: int = 5, **options: Any) -> Any:
    return ssbroker.fragment(batch, max_fragment_bytes=max_fragment_bytes, **options)


def body_buffer(array: Any) -> int:
    address: int = array.buffers()[2].address
    return address


@pytest.mark.rule("P13", "P21", "P23")
@pytest.mark.parametrize("size", [1, 2, 5, 23, 24, 2**31 - 1])
def test_fragments_have_numbers_counts_and_digests(size: int) -> None:
    table = fragments(max_fragment_bytes=size)
    table.validate(full=True)
    assert table.schema == schemas.FRAGMENTS
    expected = [
        {
            "conversation_id": message["conversation_id"],
            "is_initiator": message["is_initiator"],
            "message_sequence_number": message["message_sequence_number"],
            "fragment_number": number,
            "fragment_count": len(split_body(message["message_body"], size)),
            "message_body": part,
            "message_signature": hashlib.md5(message["message_body"]).digest(),
            "fragment_signature": hashlib.md5(part).digest(),
        }
        for message in MESSAGES.to_pylist()
        for number, part in enumerate(split_body(message["message_body"], size))
    ]
    assert table.to_pylist() == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_bodies_in_one_buffer_are_not_copied(kind: Any) -> None:
    bodies = pa.array(BODIES).cast(kind)
    table = fragments(with_column(MESSAGES, "message_body", bodies))
    assert table.num_rows == 12
    assert body_buffer(table["message_body"].chunk(0)) == body_buffer(bodies)
    part = with_column(MESSAGES, "message_body", bodies).slice(2, 2)
    sliced = fragments(part)["message_body"]
    assert sliced.to_pylist() == [b"12345", b"67890", b"short"]
    assert body_buffer(sliced.chunk(0)) == body_buffer(bodies) + 12
    sliced.validate(full=True)


@pytest.mark.parametrize(
    "layout",
    [
        lambda array: array.cast(pa.binary_view()),
        lambda array: array.dictionary_encode(),
        lambda array: array.cast(pa.large_binary()),
    ],
    ids=["views", "dictionary", "large"],
)
def test_bodies_in_any_layout(layout: Any) -> None:
    batch = with_column(MESSAGES, "message_body", layout(MESSAGES["message_body"]))
    assert fragments(batch).equals(fragments())


@needs_pyarrow("16", "has no binary views, which are copied")
def test_copied_bodies_are_returned_in_batches_of_64_mib() -> None:
    large = bytes(30 << 20)
    bodies = pa.array([large, b"small", large, large, b""]).cast(pa.binary_view())
    table = fragments(with_column(MESSAGES, "message_body", bodies), max_fragment_bytes=16 << 20)
    sizes = [pc.sum(pc.binary_length(batch["message_body"])).as_py() for batch in table.to_batches()]
    assert sizes == [(60 << 20) + 5, 30 << 20]
    assert table["fragment_number"].to_pylist() == [0, 1, 0, 0, 1, 0, 1, 0]


def test_existing_signatures_are_replaced() -> None:
    """Reassembled messages have columns that fragments have too."""
    signed = ssbroker.reassemble(fragments()).messages
    assert "message_signature" in signed.column_names
    again = fragments(signed.append_column("fragment_count", pa.nulls(signed.num_rows, pa.string())))
    assert again.schema == schemas.FRAGMENTS
    assert again.equals(fragments())


def test_extra_columns_are_repeated() -> None:
    words: Any = pa.array(["a", None, "b", "a", "c"]).dictionary_encode()
    nested: Any = pa.array([[1], None, [], [2, None], [3]])
    batch = messages(BODIES, kind=words, conversation_handle=nested)
    table = fragments(batch)
    assert table.column_names == [*schemas.FRAGMENTS.names, "kind", "conversation_handle"]
    assert table.schema.field("kind").type == words.type
    counts = [3, 1, 2, 1, 5]
    assert table["kind"].to_pylist() == [
        word for word, count in zip(words.to_pylist(), counts, strict=True) for _ in range(count)
    ]
    assert table["conversation_handle"].to_pylist() == [
        items for items, count in zip(nested.to_pylist(), counts, strict=True) for _ in range(count)
    ]


def test_the_conversation_column_may_be_the_handle() -> None:
    handles = MESSAGES.rename_columns(["conversation_handle", *MESSAGES.schema.names[1:]])
    assert fragments(handles).equals(fragments())


@pytest.mark.parametrize(
    "wrap",
    [
        lambda batch: batch,
        lambda batch: batch.to_struct_array(),
        lambda batch: pa.Table.from_batches([batch]),
        lambda batch: pa.Table.from_batches([batch.slice(0, 2), batch.slice(2, 0), batch.slice(2)]),
        lambda batch: pa.Table.from_batches([batch]).to_reader(max_chunksize=1),
        ForeignArray,
        lambda batch: ForeignStream(pa.Table.from_batches([batch])),
    ],
)
def test_a_batch_table_or_stream_returns_a_table(wrap: Any) -> None:
    table = fragments(wrap(MESSAGES))
    assert type(table) is pa.Table
    assert table.equals(fragments())


def test_no_messages() -> None:
    for empty in (MESSAGES.slice(0, 0), pa.Table.from_batches([], schema=MESSAGES.schema)):
        table = fragments(empty)
        assert (table.num_rows, table.schema) == (0, schemas.FRAGMENTS)
    assert fragments(messages([], kind=pa.array([], pa.int8()))).column_names[-1] == "kind"


def test_keys_by_mapping_or_column_are_equivalent() -> None:
    """Ids in every form; a conversation without a key has unencrypted signatures."""
    plain = fragments().to_pylist()
    column = pa.array([b"k" * 16, None, b"l" * 24, None, b"m" * 32])
    by_column = fragments(messages(BODIES, key=column), session_keys="key")
    assert by_column.schema == schemas.FRAGMENTS
    assert by_column.equals(fragments(session_keys=KEYS))
    for row, other in zip(by_column.to_pylist(), plain, strict=True):
        has_key = row["conversation_id"] in (IDS[0], IDS[2], IDS[4])
        assert (row["message_signature"] != other["message_signature"]) is has_key
        assert (row["fragment_signature"] != other["fragment_signature"]) is has_key


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=str)
def test_a_column_of_keys_in_any_layout(kind: Any) -> None:
    column: Any = pa.array([b"k" * 16, None, b"l" * 24, None, b"m" * 32])
    for layout in (column.cast(kind), column.cast(kind).dictionary_encode()):
        assert fragments(messages(BODIES, key=layout), session_keys="key").equals(fragments(session_keys=KEYS))
    alike = pa.array([b"k" * 16] * 5, pa.binary(16))
    expected = fragments(session_keys=dict.fromkeys(IDS, b"k" * 16))
    assert fragments(messages(BODIES, key=alike), session_keys="key").equals(expected)
    assert fragments(messages(BODIES, key=pa.nulls(5)), session_keys="key").equals(fragments())


@pytest.mark.parametrize("size", [0, -1, 2**31, 1.5, "5", None, True])
def test_invalid_sizes_are_rejected(size: Any) -> None:
    with pytest.raises(ssbroker.OptionError, match=r"^max_fragment_bytes: expected an integer from 1 to 2147483647"):
        fragments(max_fragment_bytes=size)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (5, "expected a column name or a mapping from conversation id to key, got int"),
        ([("a", b"k" * 16)], "expected a column name or a mapping"),
        ({"no guid": b"k" * 16}, "'no guid' is not a valid GUID"),
        (
            {IDS[0]: b"k" * 17},
            "session_keys: the key of 00000000-0000-0000-0000-000000000001 has 17 bytes; expected 16, 24 or 32",
        ),
        ({IDS[0]: b""}, "the key of 00000000-0000-0000-0000-000000000001 has 0 bytes"),
        ({IDS[0]: "k" * 16}, "the key of 00000000-0000-0000-0000-000000000001 has the type str; expected bytes"),
        (
            {IDS[0]: b"k" * 16, uuid.UUID(bytes=IDS[0]): b"l" * 16},
            "the conversation id 00000000-0000-0000-0000-000000000001 occurs twice, with different keys; specify each id once",
        ),
    ],
)
def test_invalid_keys_are_rejected(keys: Any, message: str) -> None:
    with pytest.raises(ssbroker.OptionError, match=r"^session_keys: ") as caught:
        fragments(session_keys=keys)
    assert message in str(caught.value)
    assert "kkk" not in str(caught.value)


def test_the_error_for_a_key_of_wrong_length_names_the_row_but_hides_the_key() -> None:
    column = pa.array([None, b"k" * 16, b"k" * 16, b"secret", None])
    table = pa.Table.from_batches([MESSAGES, MESSAGES]).append_column(
        "key", pa.chunked_array([pa.nulls(5, pa.binary()), column])
    )
    with pytest.raises(ssbroker.InputError) as caught:
        fragments(table, session_keys="key")
    error = caught.value
    assert (error.column, error.row, error.value) == ("key", 8, "6 bytes")
    assert error.expected == "a key of 16, 24 or 32 bytes, or null"
    assert "secret" not in str(error)


@pytest.mark.parametrize("kind", [pa.string(), pa.int64()], ids=str)
def test_the_error_names_the_missing_or_invalid_key_column(kind: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"^key: the column is missing"):
        fragments(session_keys="key")
    with pytest.raises(ssbroker.SchemaError, match=r"^key: expected binary, got "):
        fragments(messages(BODIES, key=pa.nulls(5, kind)), session_keys="key")


@pytest.mark.parametrize("sequence", [-1, -(2**63), 2**63 - 1])
def test_the_error_names_an_invalid_sequence_number(sequence: int) -> None:
    """The receiver would reject it."""
    numbers = pa.array([0, 0, sequence, -5, 0], pa.int64())
    with pytest.raises(ssbroker.InputError) as caught:
        fragments(with_column(MESSAGES, "message_sequence_number", numbers))
    error = caught.value
    assert (error.column, error.row, error.value) == ("message_sequence_number", 2, str(sequence))
    assert error.expected == "a number from 0 to 2^63 - 2"


@pytest.mark.parametrize("name", MESSAGES.schema.names)
def test_the_error_names_the_missing_column(name: str) -> None:
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: the column is missing; expected ") as caught:
        fragments(without(MESSAGES, name))
    assert (caught.value.column, caught.value.actual) == (name, None)


@pytest.mark.parametrize("name", MESSAGES.schema.names)
def test_the_error_names_the_null(name: str) -> None:
    column: Any = MESSAGES[name]
    values = [*column.to_pylist()[:3], None, None]
    with pytest.raises(ssbroker.NullError, match=f"^{name}, row 3: null is not allowed here; expected "):
        fragments(with_column(MESSAGES, name, pa.array(values, column.type)))


def test_the_error_names_the_duplicate_column() -> None:
    for names in (["message_body", "message_body"], ["kind", "kind"]):
        columns = [*MESSAGES.columns, MESSAGES["message_body"], MESSAGES["message_body"]]
        batch = pa.RecordBatch.from_arrays(columns, names=[*MESSAGES.schema.names, *names])
        with pytest.raises(ssbroker.SchemaError, match=f"^{names[0]}: expected unique column names, got two"):
            fragments(batch)
