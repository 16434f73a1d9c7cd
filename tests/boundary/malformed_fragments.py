"""Fragments, messages and values whose Arrow data are corrupt, as families of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import pyarrow as pa

import ssbroker
from tests.boundary.attempts import CLEAN, Case, Families, try_families
from tests.boundary.layouts import BINARIES, KEYS, TEXTS, Array, DataType, as_dictionary, relaid, replace_with
from tests.boundary.malformed import ALL_FORMS, INVALID, OUR_FORMS, CorruptArray, Form, overwritten, wrong_offsets

ROWS = 3
VALUE = b"sixteen bytes or more: what does not fit into a view"
TEXT_ID = "22222222-2222-2222-2222-222222222222"
VALID: Any = pa.record_batch(
    {
        "conversation_id": pa.array([TEXT_ID] * ROWS),
        "is_initiator": [True] * ROWS,
        "message_sequence_number": [0] * ROWS,
        "fragment_number": [0, 1, 2],
        "fragment_count": [4] * ROWS,
        "message_body": [VALUE] * ROWS,
        "message_signature": pa.nulls(ROWS, pa.binary()),
        "fragment_signature": pa.nulls(ROWS, pa.binary()),
        "extra": pa.array([VALUE] * ROWS),
        "key": pa.nulls(ROWS, pa.binary()),
    }
)
"""Each message lacks a fragment, so that extra columns are kept."""
BYTES = ("message_body", "message_signature", "fragment_signature", "extra", "key")
CUT: tuple[str, ...] = ("conversation_id", "message_body", "extra", "key")
"""The columns of messages to split."""
# The bytes at the wrong place may be rejected first, as an invalid key or GUID.
REFUSED = {"key": f"{INVALID} | InputError", "conversation_id": f"{INVALID} | InvalidGuidError"}


def push_and_checkpoint(given: Any) -> object:
    """Reassembles with extra columns, and takes a checkpoint."""
    reassembler = ssbroker.Reassembler(session_keys="key")
    reassembler.push(given)
    return reassembler.checkpoint()


def push_without_invalid_rows(given: Any) -> object:
    """Reassembles the valid rows, with extra columns, and takes a checkpoint."""
    reassembler = ssbroker.Reassembler(session_keys="key")
    reassembler.push(given, errors="reject")
    return reassembler.checkpoint()


def cut(given: Any) -> object:
    """Splits each body into many fragments."""
    return ssbroker.fragment(given, max_fragment_bytes=3, session_keys="key")


def cases(
    name: str, column: str, make: Callable[[], CorruptArray], expected: str, forms: dict[str, Form] = ALL_FORMS
) -> Iterator[Case]:
    """Passes fragments and messages with a corrupt column in several forms."""
    uses: dict[str, Callable[[Any], object]] = {
        "reassembled": push_and_checkpoint,
        "without invalid rows": push_without_invalid_rows,
    }
    if column in CUT:
        uses["cut"] = cut
    for use_name, use in uses.items():
        for form_name, form in forms.items():

            def run(form: Form = form, use: Callable[[Any], object] = use) -> object:
                broken = make()
                given = form(relaid(VALID, {column: replace_with(broken.array)}))
                broken.break_it()
                return use(given)

            # An invalid key or GUID is listed, and is no error.
            is_listed = use is push_without_invalid_rows and expected == REFUSED.get(column)
            result = f"{expected} | ok" if is_listed else expected
            yield Case(f"{use_name}: {column}: {name}, {form_name}", run, result)


def digests(name: str, make: Callable[[], CorruptArray], expected: str) -> Iterator[Case]:
    """Computes digests of a corrupt column."""

    def run() -> object:
        broken = make()
        broken.break_it()
        return ssbroker.md5(broken.array)

    yield Case(f"digested: {name}", run, expected)


def values_of(kind: DataType, column: str) -> Array:
    """Converts values of the column to a type."""
    array: Array = pa.array([TEXT_ID.encode() if column == "conversation_id" else VALUE] * ROWS)
    return array.cast(kind)


def kinds_of(column: str) -> tuple[DataType, ...]:
    """Types with offsets of 4 and 8 bytes, then views."""
    return tuple((TEXTS if column == "conversation_id" else BINARIES).values())


def offsets() -> Iterator[Case]:
    """Offsets that are negative, decrease, or exceed the data."""
    for column in ("conversation_id", *BYTES):
        for kind, width in zip(kinds_of(column)[:2], (4, 8), strict=True):
            array = values_of(kind, column)
            for wrong, numbers in wrong_offsets(len(VALUE), len(VALUE) * ROWS, width).items():

                def make(array: Array = array, numbers: Any = numbers, width: int = width) -> CorruptArray:
                    return overwritten(array, lambda copy: copy.write_numbers(1, *numbers, width=width))

                yield from cases(f"{kind}, {wrong}", column, make, REFUSED.get(column, INVALID))
                if column == "message_body":
                    yield from digests(f"{kind}, {wrong}", make, INVALID)


def last_offsets() -> Iterator[Case]:
    """A last offset beyond the data, which can be checked only in pyarrow objects."""
    for column in ("conversation_id", *BYTES):
        for kind, width in zip(kinds_of(column)[:2], (4, 8), strict=True):
            array = values_of(kind, column)

            def make(array: Array = array, width: int = width) -> CorruptArray:
                last_too_large = (None, None, None, 2 ** (8 * width - 2))
                return overwritten(array, lambda copy: copy.write_numbers(1, *last_too_large, width=width))

            yield from cases(str(kind), column, make, INVALID, OUR_FORMS)
            if column == "message_body":
                yield from digests(str(kind), make, INVALID)


def views() -> Iterator[Case]:
    """Views with an invalid length, buffer or offset."""
    writes = {
        "too long": (0, 1 << 20),
        "a negative length": (0, -1),
        "no such buffer": (8, 7),
        "a negative buffer": (8, -1),
        "an offset beyond the data": (12, 1 << 30),
        "a negative offset": (12, -1),
    }
    for column in ("conversation_id", *BYTES):
        array = values_of(kinds_of(column)[2], column)
        for wrong, (at, number) in writes.items():

            def make(array: Array = array, at: int = at, number: int = number) -> CorruptArray:
                return overwritten(array, lambda copy: copy.write(1, 16 + at, pack("<i", number)))

            yield from cases(f"{array.type}, {wrong}", column, make, REFUSED.get(column, INVALID))
            if column == "message_body":
                yield from digests(wrong, make, INVALID)


def keys() -> Iterator[Case]:
    """Dictionary keys that are negative or too large, for values and for nulls."""
    for key in KEYS:
        width = key.bit_width // 8
        largest = 2 ** (key.bit_width - 1) - 1
        for number in (1, largest, *((-1, -largest - 1) if pa.types.is_signed_integer(key) else (2 * largest + 1,))):
            for column in ("message_body", "message_signature", "extra", "is_initiator", "fragment_number"):
                array: Array = (
                    pa.array([VALUE] * ROWS) if column in BYTES else VALID[column].slice(0, 1).take([0] * ROWS)
                )

                def make(
                    array: Array = array, key: DataType = key, number: int = number, width: int = width
                ) -> CorruptArray:
                    encoded = as_dictionary(key)(array)
                    return overwritten(encoded, lambda copy: copy.write_numbers(1, None, number, width=width))

                yield from cases(f"{key} {number}", column, make, INVALID)
                if column in ("message_signature", "extra"):
                    with_null = pa.array([VALUE, None, VALUE])

                    def make_null(make: Any = make, array: Array = with_null) -> CorruptArray:
                        broken: CorruptArray = make(array)
                        return broken

                    yield from cases(f"{key} {number} under a null", column, make_null, "ok")


def bitmaps() -> Iterator[Case]:
    """Bitmaps that are modified after their nulls have been counted."""
    for column in VALID.schema.names:
        array: Array = pa.array([VALUE] * ROWS) if column in BYTES else VALID[column]
        for later, nulls in ((b"\x00", 0), (b"\x05", 0), (b"\x07", 3), (b"\x07", 1), (b"\xff", 2)):

            def make(array: Array = array, later: bytes = later, nulls: int = nulls) -> CorruptArray:
                bitmap = bytearray([(1 << ROWS) - (1 << nulls)])
                counted = pa.Array.from_buffers(array.type, ROWS, [pa.py_buffer(bitmap), *array.buffers()[1:]])
                assert counted.null_count == nulls
                return CorruptArray(counted, lambda: bitmap.__setitem__(slice(None), later))

            yield from cases(f"{later!r} counted as {nulls}", column, make, CLEAN)


def nested() -> Iterator[Case]:
    """Extra columns that are nested, and corrupt inside."""
    texts = pa.array(["one", "two", "three"])
    for kind, width in ((pa.list_(pa.string()), 4), (pa.large_list(pa.string()), 8)):
        beyond_data = {"the last is beyond the data": (None, None, None, 1 << 20)}
        for wrong, numbers in {**wrong_offsets(1, 3, width), **beyond_data}.items():

            def make(kind: DataType = kind, width: int = width, numbers: Any = numbers) -> CorruptArray:
                ends = pa.array(range(ROWS + 1), pa.int32() if width == 4 else pa.int64())
                broken = overwritten(ends, lambda copy: copy.write_numbers(1, *numbers, width=width))
                buffers = [None, broken.array.buffers()[1]]
                array = pa.Array.from_buffers(kind, ROWS, buffers, children=[texts])
                return CorruptArray(array, broken.break_it)

            yield from cases(f"{kind}, {wrong}", "extra", make, INVALID)
    for wrong, numbers in wrong_offsets(3, 11, 4).items():

        def make_inner(numbers: Any = numbers) -> CorruptArray:
            broken = overwritten(texts, lambda copy: copy.write_numbers(1, *numbers, width=4))
            return CorruptArray(pa.StructArray.from_arrays([broken.array], ["text"]), broken.break_it)

        yield from cases(f"inside of a struct, {wrong}", "extra", make_inner, INVALID)


def text() -> Iterator[Case]:
    """Extra text that is not UTF-8."""
    for data in (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xff" * 60):
        for binary, kind in zip(BINARIES.values(), TEXTS.values(), strict=True):
            array = pa.Array.from_buffers(kind, ROWS, pa.array([data] * ROWS, binary).buffers())
            for given in (array, array.dictionary_encode()):
                yield from cases(f"{data!r}", "extra", lambda given=given: CorruptArray(given, lambda: None), INVALID)  # type: ignore[misc]
            yield Case(f"digested: {data!r}", lambda array=array: ssbroker.md5(array), "ok")  # type: ignore[misc]


FAMILIES: Families = {family.__name__: family for family in (offsets, last_offsets, views, keys, bitmaps, nested, text)}

if __name__ == "__main__":
    try_families(FAMILIES)
