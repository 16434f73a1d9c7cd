"""Conversations whose Arrow data are corrupt, as families of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import pack
from typing import Any

import pyarrow as pa

from ssbroker import Catalog, Router
from tests.boundary.attempts import CLEAN, Case, Families, try_families
from tests.boundary.layouts import BINARIES, KEYS, Array, DataType, as_dictionary, relaid, replace_with, shifted
from tests.boundary.layouts import TEXTS as TEXT_KINDS
from tests.boundary.writable import Writable, writable
from tests.routing.conversations import NOW, ForeignArray, ForeignStream

ROWS = 3
DATABASE = "Sales, as a name that does not fit into a view"
GUID = "22222222-2222-2222-2222-222222222222"
TEXTS = {
    "to_service_name": "//Orders, as a name that does not fit into a view",
    "database": DATABASE,
    "to_broker_instance": GUID,
    "conversation_id": GUID,
}
GUIDS = ("to_broker_instance", "conversation_id")
COLUMNS: dict[str, Array] = {name: pa.array([text] * ROWS) for name, text in TEXTS.items()}
VALID = pa.record_batch(COLUMNS)
ROUTER = Router(Catalog(pa.table({"database": [DATABASE], "name": ["R"], "address": ["TCP://orders"]})))
INVALID = "MalformedDataError"

Form = Callable[[pa.RecordBatch], Any]
OUR_FORMS: dict[str, Form] = {
    "a batch": lambda batch: batch,
    "a struct": lambda batch: batch.to_struct_array(),
    "a table": lambda batch: pa.Table.from_batches([batch]),
    "a stream": lambda batch: pa.RecordBatchReader.from_batches(batch.schema, iter([batch])),
}
FOREIGN_FORMS: dict[str, Form] = {
    "a foreign array": ForeignArray,
    "a foreign struct": lambda batch: ForeignArray(batch.to_struct_array()),
    "a foreign stream": lambda batch: ForeignStream(pa.Table.from_batches([batch])),
}
"""Forms of another library, which pyarrow does not check."""
ALL_FORMS = OUR_FORMS | FOREIGN_FORMS


@dataclass(frozen=True)
class CorruptArray:
    """A valid array that is corrupted after pyarrow has validated the batch built from it."""

    array: Array
    break_it: Callable[[], object]


def overwritten(array: Array, write: Callable[[Writable], object]) -> CorruptArray:
    """Returns a writable copy of the array."""
    copy = writable(array)
    return CorruptArray(copy.array, lambda: write(copy))


def cases(
    name: str, column: str, make: Callable[[], CorruptArray], expected: str, forms: dict[str, Form] = ALL_FORMS
) -> Iterator[Case]:
    """Routes conversations with a corrupt column, passed in several forms."""
    for form_name, form in forms.items():

        def run(form: Form = form) -> object:
            broken = make()
            whole = VALID.append_column(column, broken.array) if column not in COLUMNS else None
            given = form(relaid(VALID, {column: replace_with(broken.array)}) if whole is None else whole)
            broken.break_it()
            return ROUTER.route(given, now=NOW)

        yield Case(f"{column}: {name}, {form_name}", run, expected)


def wrong_offsets(first: int, end: int, width: int) -> dict[str, tuple[int | None, ...]]:
    """Returns invalid offsets of three values by description; the first value has `first` bytes."""
    return {
        "the first is negative": (-1,),
        "one is negative": (None, -5),
        "the last is negative": (None, None, None, -24),
        "all are negative": (-first, -first, -first, -first),
        "the smallest number": (-(2 ** (8 * width - 1)),),
        "the last is the smallest number": (None, None, None, -(2 ** (8 * width - 1))),
        "they decrease": (0, first, first - 1, end),
        "one is beyond the data": (None, 2 ** (8 * width - 2)),
    }


def text_offsets(forms: dict[str, Form]) -> Iterator[Case]:
    for kind, width in ((pa.string(), 4), (pa.large_string(), 8)):
        for column, text in TEXTS.items():
            array = COLUMNS[column].cast(kind)
            for wrong, numbers in wrong_offsets(len(text), len(text) * ROWS, width).items():

                def make(array: Array = array, numbers: Any = numbers, width: int = width) -> CorruptArray:
                    return overwritten(array, lambda copy: copy.write_numbers(1, *numbers, width=width))

                yield from cases(f"{kind}, {wrong}", column, make, INVALID, forms)


def offsets() -> Iterator[Case]:
    """String offsets that are negative, decrease, or exceed the data."""
    yield from text_offsets(OUR_FORMS)


def foreign_offsets() -> Iterator[Case]:
    """The same, from another library."""
    yield from text_offsets(FOREIGN_FORMS)


def last_offsets() -> Iterator[Case]:
    """A last offset beyond the data. The C interface does not transfer buffer sizes, so that only pyarrow objects can be checked."""
    for kind, width in ((pa.string(), 4), (pa.large_string(), 8)):
        for column in TEXTS:
            array = COLUMNS[column].cast(kind)

            def make(array: Array = array, width: int = width) -> CorruptArray:
                last_too_large = (None, None, None, 2 ** (8 * width - 2))
                return overwritten(array, lambda copy: copy.write_numbers(1, *last_too_large, width=width))

            yield from cases(str(kind), column, make, INVALID, OUR_FORMS)


def views() -> Iterator[Case]:
    """Views with an invalid length, buffer or offset."""
    writes = {
        "too long": (0, 1 << 20),
        "a negative length": (0, -1),
        "the smallest length": (0, -(2**31)),
        "no such buffer": (8, 7),
        "a negative buffer": (8, -1),
        "an offset beyond the data": (12, 1 << 30),
        "a negative offset": (12, -1),
    }
    sixteen = pa.array([bytes(range(16))] * ROWS, pa.binary_view())
    for column in TEXTS:
        for array in (COLUMNS[column].cast(pa.string_view()), *([sixteen] if column in GUIDS else [])):
            for wrong, (at, number) in writes.items():

                def make(array: Array = array, at: int = at, number: int = number) -> CorruptArray:
                    return overwritten(array, lambda copy: copy.write(1, 16 + at, pack("<i", number)))

                yield from cases(f"{array.type}, {wrong}", column, make, INVALID)


def keys() -> Iterator[Case]:
    """Dictionary keys that are negative or too large, for values and for nulls."""
    for key in KEYS:
        width = key.bit_width // 8
        largest = 2 ** (key.bit_width - 1) - 1
        for number in (1, largest, *((-1, -largest - 1) if pa.types.is_signed_integer(key) else (2 * largest + 1,))):
            for column, array in COLUMNS.items():

                def make(
                    array: Array = array, key: DataType = key, number: int = number, width: int = width
                ) -> CorruptArray:
                    encoded = as_dictionary(key)(array)
                    return overwritten(encoded, lambda copy: copy.write_numbers(1, None, number, width=width))

                yield from cases(f"{key} {number}", column, make, INVALID)
                if column in ("database", "to_broker_instance"):
                    with_null = pa.array([TEXTS[column], None, TEXTS[column]])

                    def make_null(make: Any = make, array: Array = with_null) -> CorruptArray:
                        broken: CorruptArray = make(array)
                        return broken

                    yield from cases(f"{key} {number} under a null", column, make_null, "ok")


def bitmaps() -> Iterator[Case]:
    """Bitmaps that are modified after their nulls have been counted."""
    for column, array in (*COLUMNS.items(), ("is_initiator", pa.array([True] * ROWS))):
        for later, nulls in ((b"\x00", 0), (b"\x05", 0), (b"\x07", 3), (b"\x07", 1), (b"\xff", 2)):

            def make(array: Array = array, later: bytes = later, nulls: int = nulls) -> CorruptArray:
                bitmap = bytearray([(1 << ROWS) - (1 << nulls)])
                counted = pa.Array.from_buffers(array.type, ROWS, [pa.py_buffer(bitmap), *array.buffers()[1:]])
                assert counted.null_count == nulls
                return CorruptArray(counted, lambda: bitmap.__setitem__(slice(None), later))

            yield from cases(f"{later!r} counted as {nulls}", column, make, CLEAN)
    for column, array in COLUMNS.items():
        claimed = pa.Array.from_buffers(array.type, ROWS, array.buffers(), null_count=0)
        yield from cases("no bitmap", column, lambda array=claimed: CorruptArray(array, lambda: None), "ok")  # type: ignore[misc]


def lists() -> Iterator[Case]:
    """Offsets of lists in a column that routing does not read."""
    children = pa.array([1, 2, 3])
    for kind, width in ((pa.list_(pa.int64()), 4), (pa.large_list(pa.int64()), 8)):
        beyond_data = {"the last is beyond the data": (None, None, None, 1 << 20)}
        for wrong, numbers in {**wrong_offsets(1, 3, width), **beyond_data}.items():

            def make(kind: DataType = kind, width: int = width, numbers: Any = numbers) -> CorruptArray:
                offsets = writable(pa.array(range(ROWS + 1), pa.int32() if width == 4 else pa.int64()))
                buffers = [None, offsets.array.buffers()[1]]
                array = pa.Array.from_buffers(kind, ROWS, buffers, children=[children])
                return CorruptArray(array, lambda: offsets.write_numbers(1, *numbers, width=width))

            yield from cases(f"{kind}, {wrong}", "message_body", make, CLEAN)


def text() -> Iterator[Case]:
    """Bytes that are not UTF-8: names compare as bytes, so they match nothing and do no harm."""
    expectations = {"to_service_name": "ok", "database": "UnknownDatabaseError"} | dict.fromkeys(
        GUIDS, "InvalidGuidError"
    )
    for data in (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xff" * 60, b"//Orders\xff"):
        for binary, kind in zip(BINARIES.values(), TEXT_KINDS.values(), strict=True):
            array = pa.Array.from_buffers(kind, ROWS, pa.array([data] * ROWS, binary).buffers())
            for column, expected in expectations.items():
                for layout in (replace_with(array), shifted(3), as_dictionary(pa.int8())):
                    corrupt = CorruptArray(layout(array), lambda: None)
                    yield from cases(f"{data!r}", column, lambda corrupt=corrupt: corrupt, expected)  # type: ignore[misc]


FAMILIES: Families = {
    family.__name__: family for family in (offsets, foreign_offsets, last_offsets, views, keys, bitmaps, lists, text)
}

if __name__ == "__main__":
    try_families(FAMILIES)
