"""Moments of Parquet in 96 bits, as Spark and Impala write them: Arrow reads them as if they had no zone, and to the nanosecond, for which it has too few years."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

MOMENT: Final = pa.timestamp("us", tz="UTC")
_INT96: Final = "INT96"
_map: Final[Any] = pa.map_  # its stubs know too little of it


@dataclass(frozen=True)
class Kinds:
    """The columns of a Parquet file.

    Attributes:
        schema: Their types; what is of 96 bits is a moment.
        changed: The numbers of those that Arrow reads as something else.
    """

    schema: pa.Schema
    changed: tuple[int, ...]

    @classmethod
    def of(cls, parquet: pq.ParquetFile) -> Self:
        """Those of an open file."""
        read, columns = parquet.schema_arrow, parquet.schema
        are_moments = [columns.column(number).physical_type == _INT96 for number in range(len(columns))]
        if not any(are_moments):
            return cls(read, ())
        leaves = iter(are_moments)
        fields = [field.with_type(_with_moments(field.type, leaves)) for field in read]
        changed = [number for number, field in enumerate(fields) if field.type != read.field(number).type]
        return cls(pa.schema(fields), tuple(changed))

    def given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with these types, of a file that was opened with `coerce_int96_timestamp_unit="us"`."""
        for number in self.changed:
            field = self.schema.field(number)
            column: Any = batch.column(number)
            batch = batch.set_column(number, field, column.cast(field.type))
        return batch


def _with_moments(kind: Any, leaves: Iterator[bool]) -> pa.DataType:
    """A type whose leaves that are moments are those of Spark.

    Examples:
        >>> _with_moments(pa.struct({"a": pa.int32(), "b": pa.list_(pa.timestamp("ns"))}), iter([False, True]))
        StructType(struct<a: int32, b: list<item: timestamp[us, tz=UTC]>>)
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_moments(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_with_moments(field.type, leaves)) for field in (kind.key_field, kind.item_field))
        mapped: pa.DataType = _map(key, item, keys_sorted=kind.keys_sorted)
        return mapped
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_moments(kind.value_type, leaves)))
    if isinstance(kind, pa.BaseExtensionType):
        _with_moments(kind.storage_type, leaves)
        as_it_is: pa.DataType = kind
        return as_it_is
    of_leaf: pa.DataType = MOMENT if next(leaves) else kind
    return of_leaf
