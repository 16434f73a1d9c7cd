from __future__ import annotations

import random
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._core import decode_fragments
from ssbroker.exceptions import MalformedDataError, PeerError, ProtocolError
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.wire.frames import BYTES_MAX, HOPS_MAX, ROWS_MAX, WIRE, check_rows, split_rows, unpack_batch
from ssbroker.protocol.wire.link import FrameQueue
from tests.protocol.wire.links import bytes_of, numbered, row, table

FULL = row(
    fragment_signature=bytes(16),
    to_broker_instance=bytes(16),
    lifetime=datetime(2040, 1, 1, tzinfo=UTC),
    acked_sequence_number=3,
    acked_ahead=b"",
    key_exchange=b"under certificates",
)
EMPTY = row(
    message_body=b"", message_signature=None, message_type_name=None, message_id=None, time_to_live=0, hops_remaining=0
)
SMALL = table(FULL, EMPTY, row())
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=256)
ROWS = st.fixed_dictionaries(
    {
        "conversation_id": st.binary(min_size=16, max_size=16),
        "is_initiator": st.booleans(),
        "message_sequence_number": st.integers(-(2**63), 2**63 - 1),
        "fragment_number": st.integers(-(2**31), 2**31 - 1),
        "message_body": st.binary(max_size=64),
        "message_signature": st.none() | st.binary(min_size=16, max_size=16),
        "to_service_name": NAMES,
        "message_type_name": st.none() | NAMES,
        "acked_ahead": st.none() | st.binary(max_size=48),
        "hops_remaining": st.integers(0, HOPS_MAX),
        "time_consumed": st.integers(0, 2**31 - 1),
        "key_exchange": st.none() | st.binary(min_size=1, max_size=64),
    }
)


def message(batch: pa.RecordBatch, **options: Any) -> bytes:
    """Returns a record batch message of Arrow IPC, of any schema."""
    return batch.serialize(**options).to_pybytes() if options else batch.serialize().to_pybytes()


def other(name: str, values: list[Any], kind: pa.DataType | None = None) -> bytes:
    """Returns wire rows with one column replaced."""
    at = SMALL.schema.get_field_index(name)
    column = pa.array(values, kind or SMALL.schema.field(at).type)
    changed = SMALL.slice(0, len(values)).set_column(at, pa.field(name, column.type), column)
    return message(changed.combine_chunks().to_batches()[0])


def test_the_wire_schema_is_the_envelope_with_the_columns_of_a_hop() -> None:
    assert WIRE.names[: len(ENVELOPE)] == ENVELOPE.names
    assert [(field.name, str(field.type), field.nullable) for field in list(WIRE)[len(ENVELOPE) :]] == [
        ("hops_remaining", "int8", False),
        ("time_to_live", "int32", False),
        ("time_consumed", "int32", False),
        ("key_exchange", "binary", True),
    ]


def test_the_schema_is_not_transmitted() -> None:
    assert unpack_batch(bytes_of(SMALL)).schema.equals(WIRE)


@given(st.lists(ROWS, min_size=1, max_size=20))
def test_rows_arrive_as_they_were_sent(values: list[dict[str, Any]]) -> None:
    rows = table(*(row(**value) for value in values))
    assert unpack_batch(bytes_of(rows)).equals(rows)


@given(st.integers(0, 59), st.integers(1, 60), st.lists(st.integers(1, 20), max_size=4))
def test_slices_and_chunks_arrive_as_they_were_sent(start: int, length: int, cuts: list[int]) -> None:
    whole = table(*(FULL if number % 3 else EMPTY for number in range(60)))
    chunks = pa.concat_tables([whole.slice(0, cut) for cut in cuts] + [whole])
    rows = chunks.slice(start, length)
    body = bytes_of(rows)
    assert unpack_batch(body).equals(rows)
    assert len(body) < 4096 + rows.num_rows * 1024  # without the rows outside the slice


def test_a_batch_uses_no_more_memory_than_its_frame() -> None:
    body = bytes_of(numbered(1000, size=1000))
    assert unpack_batch(body).get_total_buffer_size() <= len(body)


def test_a_truncated_body_is_rejected() -> None:
    body = bytes_of(SMALL)
    for end in range(len(body)):
        with pytest.raises(PeerError):
            unpack_batch(body[:end])
    with pytest.raises(PeerError):
        unpack_batch(body + bytes(8))


@pytest.mark.threat("T19")
@pytest.mark.parametrize("row_count", [2, 3])
def test_an_altered_byte_gives_rows_or_an_error(row_count: int) -> None:
    """With two rows the offsets end before padding, so a buffer may be a byte longer than its values."""
    body = bytes_of(SMALL.slice(0, row_count))
    rng = random.Random(5)
    accepted = 0
    for at in range(len(body)):
        flipped = {body[at] ^ 1 << bit for bit in range(8)}
        for value in {0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256), *flipped} - {body[at]}:
            altered = bytearray(body)
            altered[at] = value
            try:
                rows = decode_fragments(bytes(altered))
            except MalformedDataError:
                continue
            accepted += 1
            rows.validate(full=True)
            assert rows.schema.equals(WIRE)
            assert rows.num_rows == row_count
    assert accepted  # a body, a number or padding may have any value; checksums and signatures detect such changes


@pytest.mark.threat("T19")
@given(st.binary(max_size=200))
def test_random_bytes_are_rejected(data: bytes) -> None:
    for body in (data, b"\xff\xff\xff\xff" + struct.pack("<i", len(data)) + data):
        with pytest.raises(MalformedDataError):
            decode_fragments(body)


@pytest.mark.rule("P26")
@pytest.mark.parametrize("length", [-(2**31), -8, 0, 8, 1 << 13, (1 << 13) + 8, 2**31 - 8])
def test_metadata_that_exceed_the_data_are_rejected(length: int) -> None:
    with pytest.raises(PeerError):
        unpack_batch(b"\xff\xff\xff\xff" + struct.pack("<i", length) + bytes_of(SMALL)[8:])


@pytest.mark.rule("P26")
def test_a_body_with_unused_bytes_is_rejected() -> None:
    """A row keeps the body of its frame alive: nothing would account for bytes behind the values."""
    body = bytes_of(SMALL)
    (length,) = struct.unpack_from("<i", body, 4)
    metadata, buffers = body[: 8 + length], body[8 + length :]
    declared = struct.pack("<q", len(buffers))
    assert metadata.count(declared) == 1
    more = 1 << 20
    grown = metadata.replace(declared, struct.pack("<q", len(buffers) + more)) + buffers + bytes(more)
    with pytest.raises(PeerError, match="the values need"):
        unpack_batch(grown)
    assert unpack_batch(body).num_rows == SMALL.num_rows


@pytest.mark.threat("T7")
def test_compressed_batches_are_rejected() -> None:
    [batch] = numbered(1000, size=1000).combine_chunks().to_batches()
    for codec in ("lz4", "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, WIRE, options=options) as writer:
            writer.write_batch(batch)
        reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
        assert reader.read_next_message().type == "schema"
        body = reader.read_next_message().serialize().to_pybytes()
        assert len(body) < 500_000
        with pytest.raises(PeerError, match="compression"):
            unpack_batch(body)


def test_a_message_other_than_a_batch_is_rejected() -> None:
    with pytest.raises(PeerError, match="not a valid batch of fragments"):
        unpack_batch(WIRE.serialize().to_pybytes())
    with pytest.raises(PeerError, match="the metadata is not a record batch"):
        unpack_batch(pa.schema([]).serialize().to_pybytes())


@pytest.mark.threat("T3")
def test_metadata_that_expand_exponentially_are_rejected() -> None:
    """A schema of ten identical fields with ten identical children each, and so on: each layer costs ten times the previous one."""
    vtable_of_message, vtable_of_schema, vtable_of_field = (
        struct.pack("<6H", 12, 16, 4, 6, 8, 0),
        struct.pack("<4H", 8, 8, 0, 4),
        struct.pack("<8H", 16, 8, 0, 0, 0, 0, 0, 4),
    )
    data = bytearray(struct.pack("<I", 4 + 12 + 8 + 16) + vtable_of_message + vtable_of_schema + vtable_of_field)
    data += struct.pack("<iHBxIxxxx", len(data) - 4, 4, 1, 8)  # version 5, a schema
    data += struct.pack("<iI", len(data) - 16, 4)
    for _ in range(4):
        data += struct.pack("<11I", 10, *(4 * (10 - place) for place in range(10)))
        data += struct.pack("<iI", len(data) - 24, 4)
    data += struct.pack("<I", 0)
    data += bytes(-len(data) % 8)
    with pytest.raises(PeerError, match=r"(?i)too many tables"):
        unpack_batch(b"\xff\xff\xff\xff" + struct.pack("<I", len(data)) + bytes(data))


@pytest.mark.threat("T19")
def test_custom_metadata_are_rejected() -> None:
    [batch] = SMALL.combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIRE) as writer:
        writer.write_batch(batch, custom_metadata={b"ARROW:extension:name": b"py_extension_type"})
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    with pytest.raises(PeerError, match="unexpected metadata"):
        unpack_batch(reader.read_next_message().serialize().to_pybytes())


@pytest.mark.parametrize(
    "body",
    [
        message(pa.record_batch({"message_body": [b"x"]})),
        message(SMALL.drop_columns("key_exchange").combine_chunks().to_batches()[0]),
        message(SMALL.append_column("more", pa.array([1, 2, 3])).combine_chunks().to_batches()[0]),
        message(pa.record_batch({name: pa.nulls(3) for name in WIRE.names})),
        other("message_body", [b"1", b"2", b"3"], pa.large_binary()),
        message(pa.RecordBatch.from_pylist([], schema=WIRE)),
        message(numbered(ROWS_MAX + 1).combine_chunks().to_batches()[0]),
    ],
    ids=["one column", "one less", "one more", "nulls", "large binary", "no rows", "too many rows"],
)
def test_other_columns_and_invalid_row_counts_are_rejected(body: bytes) -> None:
    with pytest.raises(PeerError, match="FRAGMENTS: not a valid batch of fragments"):
        unpack_batch(body)


@pytest.mark.parametrize("name", [field.name for field in WIRE if not field.nullable])
def test_a_null_in_a_required_column_is_rejected(name: str) -> None:
    values = [SMALL.column(name)[0].as_py(), None, None]
    with pytest.raises(PeerError, match=f"{name}: wrong number of rows or nulls"):
        unpack_batch(other(name, values))


def test_invalid_utf_8_is_rejected() -> None:
    body = bytes_of(table(row(to_service_name="AAAAAAAA")))
    with pytest.raises(PeerError, match=r"(?i)utf-8"):
        unpack_batch(body.replace(b"AAAAAAAA", b"AAAA\xff\xfeAA"))


def test_invalid_offsets_are_rejected() -> None:
    body = bytes_of(table(row(message_body=b"12345678"), row(message_body=b"abcdefgh")))
    offsets = struct.pack("<3i", 0, 8, 16)
    assert body.count(offsets) == 1
    for wrong in ((0, 17, 16), (8, 0, 16), (-1, 8, 16), (0, 8, 2**31 - 1), (0, 8, 1 << 20)):
        with pytest.raises(PeerError):
            unpack_batch(body.replace(offsets, struct.pack("<3i", *wrong)))


@pytest.mark.rule("P26")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("from_service_name", [""]),
        ("to_service_name", ["x" * 1025]),
        ("service_contract_name", ["x" * (1 << 20)]),
        ("message_type_name", [""]),
        ("acked_ahead", [bytes(512 * 24 + 1)]),
        ("key_exchange", [b""]),
        ("key_exchange", [bytes(8193)]),
        ("hops_remaining", [HOPS_MAX + 1]),
        ("hops_remaining", [-1]),
        ("time_to_live", [-1]),
        ("time_consumed", [-(2**31)]),
        ("lifetime", [-1]),
        ("lifetime", [253_402_300_800_000_000]),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_rejected(name: str, values: list[Any]) -> None:
    with pytest.raises(PeerError, match=f"{name}: value or length .* is out of range; expected"):
        unpack_batch(other(name, values))


def test_a_fragment_too_large_to_be_forwarded_is_rejected() -> None:
    """A forwarder dropped it with a traceback in its log, together with the rows of the same batch."""
    with pytest.raises(PeerError, match="message_body: value or length 1048609 is out of range; expected 0 to 1048608"):
        unpack_batch(other("message_body", [bytes(BYTES_MAX + 33)]))


@pytest.mark.rule("P26")
def test_the_largest_valid_values_are_accepted() -> None:
    largest = row(
        to_service_name="\N{MUSICAL SYMBOL G CLEF}" * 256,
        acked_ahead=bytes(512 * 24),
        key_exchange=bytes(8192),
        message_body=bytes(BYTES_MAX + 32),
        lifetime=datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    )
    assert unpack_batch(bytes_of(table(largest))).to_pylist() == [largest]


@given(st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 3000)), min_size=1, max_size=4))
def test_rows_keep_their_order_and_frames_are_within_limits(puts: list[tuple[int, int]]) -> None:
    queue, sent = FrameQueue(), 0
    for count, size in puts:
        queue.put(numbered(count, first=sent, size=size))
        sent += count
    received: list[Any] = []
    while (body := queue.take()) is not None:
        rows = unpack_batch(body)
        assert rows.num_rows <= ROWS_MAX
        assert len(body) <= BYTES_MAX + (64 << 10)
        received += rows["message_sequence_number"].to_pylist()
    assert received == list(range(sent))
    assert queue.bytes == 0


def test_small_batches_are_combined_into_full_frames() -> None:
    queue = FrameQueue()
    for number in range(2000):
        queue.put(numbered(1, first=number))
    assert [unpack_batch(body).num_rows for body in iter(queue.take, None)] == [1024, 976]


def test_a_batch_with_a_row_too_large_for_a_frame_is_rejected() -> None:
    queue = FrameQueue()
    with pytest.raises(ProtocolError, match="row 1 has"):
        queue.put(table(row(), row(message_body=bytes(BYTES_MAX + (64 << 10)))))
    assert queue.bytes == 0
    assert queue.take() is None


def test_rows_of_another_schema_are_rejected_before_they_are_sent() -> None:
    with pytest.raises(ProtocolError, match="got the columns conversation_id"):
        check_rows(SMALL.select(ENVELOPE.names))
    with pytest.raises(ProtocolError, match="priority: expected a value in every row; there are 1 nulls"):
        check_rows(table(row(), row(priority=None)))
    check_rows(SMALL)


def test_no_rows_give_no_frame() -> None:
    queue = FrameQueue()
    queue.put(WIRE.empty_table())
    assert queue.take() is None
    assert list(split_rows(WIRE.empty_table())) == []


def test_the_frames_of_a_new_connection_double_in_size() -> None:
    """On a network that damages data, a connection lives for a few bytes: some rows still arrive."""
    queue = FrameQueue(first_bytes=16 << 10)
    queue.put(numbered(600, size=1024))
    queue.put(numbered(200, first=600, size=1024))
    sizes = [unpack_batch(body).num_rows for body in iter(queue.take, None)]
    assert sizes[:4] == sorted(sizes[:4])
    assert sizes[0] < 20
    assert sum(sizes) == 800
    assert queue.bytes == 0


def test_a_row_larger_than_the_first_frame_is_sent_whole() -> None:
    queue = FrameQueue(first_bytes=1)
    queue.put(numbered(2, size=4096))
    assert [unpack_batch(body).num_rows for body in iter(queue.take, None)] == [1, 1]


@given(st.lists(st.sampled_from([0, 8, 5_000, 900_000]), min_size=1, max_size=60))
def test_rows_of_very_different_sizes_fit_their_frames(sizes: list[int]) -> None:
    queue = FrameQueue(first_bytes=64 << 10)
    queue.put(
        table(*(row(message_sequence_number=place, message_body=bytes(size)) for place, size in enumerate(sizes)))
    )
    most = 64 << 10
    received: list[Any] = []
    while (body := queue.take()) is not None:
        rows = unpack_batch(body)
        assert len(body) <= most + (64 << 10) or rows.num_rows == 1
        most = min(2 * most, BYTES_MAX)
        received += rows["message_sequence_number"].to_pylist()
    assert received == list(range(len(sizes)))
    assert queue.bytes == 0
