"""MD5 digests of columns."""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.compat.pyarrow_versions import COLUMN_STREAMS
from tests.routing.conversations import ForeignArray, ForeignStream

# RFC 1321, appendix A.5.
RFC_1321 = {
    "": "d41d8cd98f00b204e9800998ecf8427e",
    "a": "0cc175b9c0f1b6a831c399e269772661",
    "abc": "900150983cd24fb0d6963f7d28e17f72",
    "message digest": "f96b697d7cb7938d525a2f31aaf161d0",
    "abcdefghijklmnopqrstuvwxyz": "c3fcd3d76192e4007dfb496cca67e13b",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789": "d174ab98d277d9f5a5611c2c9f419d9f",
    "1234567890" * 8: "57edf4a22be3c955ac49da2e2107b67a",
}
DIGEST = pa.binary(16)
VALUES = [b"a", None, b"", b"longer than twelve bytes", b"a", b"\xff" * 200]
DIGESTS = [None if value is None else hashlib.md5(value).digest() for value in VALUES]


@pytest.mark.rule("P21")
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()], ids=str
)
def test_digests_of_rfc_1321(kind: Any) -> None:
    digests: Any = ssbroker.md5(pa.array(list(RFC_1321)).cast(kind))
    assert (type(digests), digests.type) == (pa.FixedSizeBinaryArray, DIGEST)
    assert [digest.hex() for digest in digests.to_pylist()] == list(RFC_1321.values())


def test_lengths_and_nulls_across_blocks() -> None:
    """Blocks have 8,192 rows; long, short, empty and null values are mixed."""
    random = Random(3)
    lengths = [random.choice((0, 1, 55, 56, 63, 64, 65, 119, 128, 1_000)) for _ in range(20_000)]
    values = [random.randbytes(length) if random.random() < 0.9 else None for length in lengths]
    digests = ssbroker.md5(pa.array(values, pa.binary()))
    assert digests.to_pylist() == [None if value is None else hashlib.md5(value).digest() for value in values]
    digests.validate(full=True)


def test_bytes_under_nulls_do_not_affect_the_result() -> None:
    """Two columns with the same values give the same bytes."""
    bitmap = pa.array([True, False], pa.bool_()).buffers()[1]
    array = pa.Array.from_buffers(pa.binary(), 2, [bitmap, *pa.array([b"a", b"rubbish"]).buffers()[1:]])
    digests: Any = ssbroker.md5(array)
    assert digests.to_pylist() == [DIGESTS[0], None]
    assert digests.buffers()[1].to_pybytes()[16:] == bytes(16)


@pytest.mark.parametrize("wrap", [lambda array: array, ForeignArray])
def test_an_array_returns_an_array(wrap: Any) -> None:
    digests = ssbroker.md5(wrap(pa.array(VALUES)))
    assert type(digests) is pa.FixedSizeBinaryArray
    assert digests.to_pylist() == DIGESTS
    assert ssbroker.md5(pa.array(VALUES).slice(2, 3)).to_pylist() == DIGESTS[2:5]


@pytest.mark.parametrize("wrap", [lambda chunks: chunks, pytest.param(ForeignStream, marks=COLUMN_STREAMS)])
def test_a_chunked_array_returns_a_chunked_array(wrap: Any) -> None:
    chunks = pa.chunked_array([pa.array(VALUES[:2]), pa.array([], pa.binary()), pa.array(VALUES[2:])])
    digests = ssbroker.md5(wrap(chunks))
    assert type(digests) is pa.ChunkedArray
    assert [len(chunk) for chunk in digests.chunks] == [2, 0, 4]
    assert digests.to_pylist() == DIGESTS


@pytest.mark.parametrize(
    "wrap", [lambda table: table, ForeignStream, lambda table: table.to_batches()[0], ForeignArray]
)
def test_a_table_of_one_column_is_accepted(wrap: Any) -> None:
    table = pa.table({"message_body": VALUES})
    values = wrap(table.to_batches()[0] if wrap is ForeignArray else table)
    assert ssbroker.md5(values).to_pylist() == DIGESTS


@pytest.mark.parametrize("kind", [pa.binary(), pa.string_view(), pa.null()], ids=str)
def test_no_values(kind: Any) -> None:
    assert ssbroker.md5(pa.nulls(0, kind)).type == DIGEST
    digests = ssbroker.md5(pa.chunked_array([], kind))
    assert (digests.type, len(digests)) == (DIGEST, 0)
    assert ssbroker.md5(pa.nulls(3, kind)).to_pylist() == [None] * 3


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.binary()), pa.dictionary(pa.int8(), pa.int8())], ids=str)
@pytest.mark.parametrize(
    "make", [pa.nulls, lambda rows, kind: pa.chunked_array([pa.nulls(rows, kind)] if rows else [], kind)]
)
def test_columns_of_other_types_are_rejected(make: Any, kind: Any) -> None:
    for rows in (0, 2):
        with pytest.raises(ssbroker.SchemaError, match=r"^values: expected binary or text, got ") as caught:
            ssbroker.md5(make(rows, kind))
        assert (caught.value.column, caught.value.expected) == ("values", "binary or text")


def test_several_columns_are_rejected() -> None:
    table = pa.table({"a": VALUES, "b": VALUES})
    for values in (table, table.to_batches()[0], ForeignStream(table)):
        with pytest.raises(ssbroker.SchemaError, match=r"^values: expected a single column, got 2"):
            ssbroker.md5(values)


@pytest.mark.parametrize("value", [None, b"abc", [b"abc"], 5])
def test_values_must_be_an_arrow_object(value: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"^values: expected one column: a pyarrow Array"):
        ssbroker.md5(value)


def test_the_error_names_the_unreadable_value() -> None:
    keys = bytearray(12)
    kinds: Any = pa.DictionaryArray
    array = kinds.from_buffers(
        pa.dictionary(pa.int32(), pa.binary()), 3, [None, pa.py_buffer(keys)], pa.array([b"a", b"b"])
    )
    keys[4] = 2
    for values in (array, pa.chunked_array([pa.array([b"a"]).dictionary_encode(), array])):
        with pytest.raises(ssbroker.MalformedDataError) as caught:
            ssbroker.md5(values)
        assert caught.value.column == "values"
        assert caught.value.row == (1 if values is array else 2)
