"""Arrow layouts of logical types: each converts a simple array to another one with the same values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from uuid import UUID

import pyarrow as pa

from ssbroker._compat import cast

# The stubs of pyarrow have a class for the array of every type; any of them is valid here.
Array: TypeAlias = Any
DataType: TypeAlias = Any
Layout = Callable[[Array], Array]

KEYS: tuple[DataType, ...] = (
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
)
TEXTS: dict[str, DataType] = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
}
BINARIES: dict[str, DataType] = {
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
}


def as_type(kind: DataType) -> Layout:
    """Casts to another type."""
    return lambda array: cast(array, kind)


def encoded(array: Array, key: DataType, values: DataType | None = None) -> Array:
    """Encodes as a dictionary with values of any type."""
    plain: Any = array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(plain.indices.cast(key), plain.dictionary.cast(values or array.type))


def as_dictionary(key: DataType, values: DataType | None = None) -> Layout:
    """Encodes as a dictionary with given key and value types."""
    return lambda array: encoded(array, key, values)


def replace_with(other: Array) -> Layout:
    """Replaces the array, whatever its values."""
    return lambda _array: other


def nulls(array: Array) -> Array:
    """Replaces the array by nulls of the null type."""
    return pa.nulls(len(array))


def nulls_of(kind: DataType) -> Layout:
    """Replaces the array by nulls of a type."""
    return lambda array: pa.nulls(len(array), kind)


def run_end_encoded(array: Array) -> Array:
    """Encodes as runs of one row each."""
    ends = pa.array(range(1, len(array) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, array)


def null_in_the_dictionary(array: Array) -> Array:
    """Encodes as a dictionary in which a value is null, without a bitmap of the keys."""
    return array.dictionary_encode(null_encoding="encode")


def wasteful_dictionary(array: Array) -> Array:
    """Encodes as a dictionary with duplicate and unused values."""
    plain = encoded(array, pa.int32())
    count = len(plain.dictionary)
    keys = [None if key is None else key + count * (row % 2) for row, key in enumerate(plain.indices.to_pylist())]
    values = pa.concat_arrays([plain.dictionary, plain.dictionary, plain.dictionary])
    return pa.DictionaryArray.from_arrays(pa.array(keys, pa.int16()), values)


def guid_texts(spelling: Callable[[UUID], str]) -> Layout:
    """Converts 16 bytes to text in one spelling."""
    return lambda array: pa.array(
        [None if value is None else spelling(UUID(bytes=value)) for value in array.to_pylist()], pa.string()
    )


def then(first: Layout, second: Layout) -> Layout:
    """Applies one layout after another."""
    return lambda array: second(first(array))


def shifted(places: int) -> Layout:
    """Slices a larger array, so that bitmaps are not aligned to bytes."""

    def layout(array: Array) -> Array:
        if isinstance(array, pa.DictionaryArray):
            return pa.DictionaryArray.from_arrays(layout(array.indices), array.dictionary)
        around = pa.concat_arrays([array, pa.nulls(places, array.type)])
        cut = pa.concat_arrays([around.slice(len(array)), array, around[:places]])
        return cut.slice(places, len(array))

    return layout


def rebuilt(array: Array, move: Callable[[pa.Buffer | None, int, int], pa.Buffer | None]) -> Array:
    """Rebuilds the array over other buffers; `move` gets each buffer with its number and the length of the array, slices included."""
    if isinstance(array, pa.ExtensionArray):
        storage: Any = rebuilt(array.storage, move)
        return pa.ExtensionArray.from_storage(array.type, storage)
    length = len(array) + array.offset
    buffers = [move(buffer, number, length) for number, buffer in enumerate(array.buffers())]
    if isinstance(array, pa.DictionaryArray):
        dictionary = rebuilt(array.dictionary, move)
        return pa.DictionaryArray.from_buffers(array.type, len(array), buffers, dictionary, offset=array.offset)
    return pa.Array.from_buffers(array.type, len(array), buffers, offset=array.offset)


def unaligned(array: Array) -> Array:
    """Moves every buffer to an unaligned address."""

    def move(buffer: pa.Buffer | None, _number: int, _length: int) -> pa.Buffer | None:
        if buffer is None:
            return None
        memory = memoryview(bytearray(buffer.size + 16))
        odd = 1 - pa.py_buffer(memory).address % 2
        moved = memory[odd : odd + buffer.size]
        moved[:] = buffer.to_pybytes()
        assert pa.py_buffer(moved).address % 2 == 1
        return pa.py_buffer(moved)

    return rebuilt(array, move)


def with_a_bitmap(array: Array) -> Array:
    """Adds a bitmap even if nothing is null."""

    def move(buffer: pa.Buffer | None, number: int, length: int) -> pa.Buffer | None:
        return pa.py_buffer(b"\xff" * (length // 8 + 1)) if number == 0 and buffer is None else buffer

    return rebuilt(array, move)


def rubbish_under_nulls(rubbish: bytes) -> Layout:
    """Writes arbitrary values under nulls, which are undefined: here values that are neither GUIDs nor databases."""

    def layout(array: Array) -> Array:
        kind: Any = array.type
        value = rubbish[: kind.byte_width] if pa.types.is_fixed_size_binary(kind) else rubbish
        filled: Array = array.fill_null(pa.scalar(value, kind))
        bitmap = pa.array(array.is_valid().to_pylist(), pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(kind, len(array), [bitmap, *filled.buffers()[1:]])

    return layout


def rubbish_keys_under_nulls(array: Array) -> Array:
    """Writes invalid dictionary keys under nulls."""
    plain = encoded(array, pa.int32())
    keys: Any = plain.indices
    large_keys = keys.fill_null(2**31 - 1)
    bitmap = pa.array(keys.is_valid().to_pylist(), pa.bool_()).buffers()[1]
    return pa.DictionaryArray.from_buffers(
        pa.dictionary(pa.int32(), array.type), len(array), [bitmap, *large_keys.buffers()[1:]], plain.dictionary
    )


SHAPES: dict[str, Layout] = {
    **{f"shifted by {places}": shifted(places) for places in (1, 3, 7, 8, 13, 64, 67)},
    "unaligned": unaligned,
    "unaligned and shifted": then(shifted(5), unaligned),
    "with a bitmap": with_a_bitmap,
    "with a bitmap and shifted": then(shifted(3), with_a_bitmap),
}
"""Ways in which an array of any layout may be stored in memory."""

BASIC_TEXT: dict[str, Layout] = {
    **{name: as_type(kind) for name, kind in TEXTS.items()},
    **{f"dictionary {key} to {name}": as_dictionary(key, kind) for key in KEYS for name, kind in TEXTS.items()},
    "null in the dictionary": null_in_the_dictionary,
    "wasteful dictionary": wasteful_dictionary,
    "rubbish under nulls": rubbish_under_nulls(b"no such database"),
    "rubbish keys under nulls": rubbish_keys_under_nulls,
}

SPELLINGS: dict[str, Callable[[UUID], str]] = {
    "lower case": str,
    "upper case": lambda guid: str(guid).upper(),
    "braces": lambda guid: f"{{{guid}}}",
    "upper case in braces": lambda guid: f"{{{guid}}}".upper(),
}

BASIC_GUID: dict[str, Layout] = {
    "16 bytes": lambda array: array,
    "arrow.uuid": as_type(pa.uuid()),
    **{name: as_type(kind) for name, kind in BINARIES.items()},
    **{name: guid_texts(spelling) for name, spelling in SPELLINGS.items()},
    **{f"text {name}": then(guid_texts(str), as_type(kind)) for name, kind in TEXTS.items() if name != "string"},
    **{f"dictionary {key} to 16 bytes": as_dictionary(key) for key in KEYS},
    **{f"dictionary {name}": as_dictionary(pa.int16(), kind) for name, kind in BINARIES.items()},
    **{
        f"dictionary text {name}": then(guid_texts(str), as_dictionary(pa.uint8(), kind))
        for name, kind in TEXTS.items()
    },
    "dictionary null": null_in_the_dictionary,
    "wasteful dictionary": wasteful_dictionary,
    "rubbish under nulls": rubbish_under_nulls(b"sixteen bytes!!!"),
    "rubbish text under nulls": then(guid_texts(str), rubbish_under_nulls(b"no GUID")),
    "rubbish keys under nulls": rubbish_keys_under_nulls,
}

BASIC_BINARY: dict[str, Layout] = {
    **{name: as_type(kind) for name, kind in BINARIES.items()},
    **{f"dictionary {key} to binary": as_dictionary(key, pa.binary()) for key in KEYS},
    **{f"dictionary {name}": as_dictionary(pa.uint8(), kind) for name, kind in BINARIES.items() if name != "binary"},
    "wasteful dictionary": wasteful_dictionary,
}
BASIC_SIGNATURE: dict[str, Layout] = {
    "16 bytes": lambda array: array,
    **BASIC_BINARY,
    **{f"dictionary {key} to 16 bytes": as_dictionary(key) for key in KEYS},
    "null in the dictionary": null_in_the_dictionary,
    "rubbish under nulls": rubbish_under_nulls(b"no signature at all"),
    "rubbish keys under nulls": rubbish_keys_under_nulls,
}
NOT_NULL_GUID = {name: layout for name, layout in BASIC_GUID.items() if "null" not in name}


def in_every_shape(layout: Layout) -> dict[str, Layout]:
    """Returns a layout in every shape."""
    return {"as it is": layout, **{name: then(layout, shape) for name, shape in SHAPES.items()}}


def relaid(batch: pa.RecordBatch, layouts: Mapping[str, Layout]) -> pa.RecordBatch:
    """Returns the batch with some columns in other layouts."""
    columns: dict[str, Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name] = layouts[name](column) if name in layouts else column
    return pa.record_batch(columns)
