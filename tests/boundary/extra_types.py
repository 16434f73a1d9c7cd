"""Columns of every Arrow type."""

from __future__ import annotations

import pyarrow as pa

from tests.boundary.layouts import Array, DataType

ROWS = 120
QUARTER = ROWS // 4
CATEGORY: DataType = pa.dictionary(pa.int8(), pa.string())
STRUCT_OF_CATEGORY: DataType = pa.struct([("a", CATEGORY), ("b", pa.int8())])
LISTS: DataType = pa.list_(pa.int8())


def newer(name: str, *arguments: object) -> list[DataType]:
    """Returns a type, unless this version of pyarrow lacks it."""
    return [getattr(pa, name)(*arguments)] if hasattr(pa, name) else []


NULLS: list[DataType] = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("ns", "Europe/Berlin"),
    pa.timestamp("us", "Nowhere/Nowhere"),
    pa.date32(),
    pa.date64(),
    pa.duration("ms"),
    pa.month_day_nano_interval(),
    pa.binary(),
    pa.binary(5),
    pa.large_string(),
    pa.binary_view(),
    *newer("decimal32", 5, 2),
    *newer("decimal64", 10, 2),
    pa.decimal128(20, -2),
    pa.decimal256(50, 2),
    pa.list_(pa.int8()),
    pa.list_(pa.int8(), 2),
    pa.list_(pa.int8(), 0),
    pa.large_list(pa.string()),
    *newer("list_view", pa.int8()),
    *newer("large_list_view", pa.string()),
    pa.map_(pa.string(), pa.int8()),
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string_view()))]),
    pa.struct([]),
    pa.dictionary(pa.uint64(), LISTS),
    pa.uuid(),
    *newer("json_"),
    *newer("bool8"),
    pa.fixed_shape_tensor(pa.int8(), [2]),
    *newer("opaque", pa.int8(), "kind", "vendor"),
]
NUMBERS = pa.array(range(ROWS), pa.int8())
WORDS = pa.array([f"word {row}" for row in range(ROWS)])
COLUMNS: dict[str, Array] = {
    **{f"nulls of {kind}": pa.nulls(ROWS, kind) for kind in NULLS},
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([7, ROWS], pa.int32()), pa.array(["a", None])),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0] * ROWS, pa.int8()), pa.array(range(ROWS), pa.int32()), [NUMBERS, WORDS]
    ),
    "sparse union": pa.UnionArray.from_sparse(pa.array([0, 1] * (ROWS // 2), pa.int8()), [NUMBERS, WORDS]),
    "lists": pa.array([[row] * (row % 3) for row in range(ROWS)]),
    "a dictionary with null keys": pa.array(["a", None, "b", "a"] * (ROWS // 4)).dictionary_encode(),
    "structs that are null": pa.array([{"a": 1}, None] * (ROWS // 2)),
    "maps": pa.array([[("a", 1)], None, [], [("b", None)]] * QUARTER, pa.map_(pa.string(), pa.int8())),
    "views": pa.array(["a", None, "a text that does not fit into a view", ""] * QUARTER, pa.string_view()),
    "lists of two": pa.array([[1, 2], None, [None, 3], [4, 5]] * QUARTER, pa.list_(pa.int8(), 2)),
    **{
        f"values of {kind}": pa.array([[1, 2], None, [], [4, 5]] * QUARTER, kind)
        for kind in newer("list_view", pa.int8())
    },
    "numbers": pa.array([None if row % 3 else row / 7 for row in range(ROWS)]),
    "decimals": pa.array([None if row % 3 else row for row in range(ROWS)], pa.decimal128(20, 2)),
    "guids": pa.array([None if row % 3 else bytes([row] * 16) for row in range(ROWS)], pa.uuid()),
    "a dictionary of lists": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 1] * QUARTER, pa.int8()), pa.array([[1], [2, 3]])
    ),
    "lists of a dictionary": pa.array([["a", "b"], ["a"], None, []] * QUARTER, pa.list_(CATEGORY)),
    "structs of a dictionary": pa.array([{"a": "x", "b": 1}, None] * (ROWS // 2), STRUCT_OF_CATEGORY),
}
"""A column of every type, with nulls."""

NESTED_DICTIONARY: Array = pa.DictionaryArray.from_arrays(
    pa.array([0, 1, None, 1] * QUARTER, pa.int8()), pa.array(["a", None]).dictionary_encode()
)
"""A dictionary of a dictionary, which pyarrow can write but not read."""
