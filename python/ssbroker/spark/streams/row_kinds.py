"""The single DataFrame of a stream: rows of several kinds, each with the columns of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker.exceptions import OptionError
from ssbroker.schemas import ACKNOWLEDGEMENTS, MESSAGES, PENDING, REJECTED
from ssbroker.spark import reassembly_rows
from ssbroker.spark.columns import Labels

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType


KIND: Final = reassembly_rows.KIND
MESSAGE: Final = "message"
REJECTION: Final = "rejected"
ACKNOWLEDGEMENT: Final = "acknowledgement"
EXPIRY: Final = "expired"
FIGURES: Final = "figures"
"""Beside the kinds that users see, how large a bucket is; only `observe` reads it."""

_SINCE: Final = pa.field("waiting_since", pa.timestamp("us", tz="UTC"))
EXPIRED: Final = pa.schema([*PENDING, _SINCE])
"""What was dropped because it did not grow: what was missing, and since when it was waited for."""

FIGURE_COLUMNS: Final[dict[str, pa.DataType]] = {
    "state_bytes": pa.int64(),
    "incomplete_messages": pa.int64(),
    "delayed_messages": pa.int64(),
}

COLUMNS: Final[dict[str, pa.DataType]] = {
    **{
        field.name: reassembly_rows.to_spark_type(field.type)
        for schema in (MESSAGES, REJECTED, ACKNOWLEDGEMENTS, EXPIRED)
        for field in schema
    },
    **FIGURE_COLUMNS,
}
"""The columns and types of the rows of all kinds, `kind` before them; columns of one name are one."""

_NUMBER: Final = "message_sequence_number"
_SPARK_NAMES: Final[dict[pa.DataType, str]] = {
    **reassembly_rows.SPARK_TYPE_NAMES,
    pa.timestamp("us", tz="UTC"): "timestamp",
}


@dataclass(frozen=True)
class StreamKinds:
    """Selects the rows of one kind, of a stream or of what `foreachBatch` hands over; it knows no session, so it pickles."""

    _further: tuple[StructField, ...]
    _labels: Labels | None
    _acknowledgements: bool

    def messages(self, rows: DataFrame) -> DataFrame:
        """The messages that are whole and whose turn it is, and with a catalog those that have a route or cannot wait for one.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.MESSAGES`, the further columns of the fragments, and with a catalog those of the decision.
        """
        own = reassembly_rows.select_columns(MESSAGES, _keys(MESSAGES))
        extra = reassembly_rows.select_extra_columns(self._further)
        return _of_kind(rows, MESSAGE).select(*own, *extra, *decisions(self._labels))

    def rejected(self, rows: DataFrame) -> DataFrame:
        """The fragments that were refused, and why.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.REJECTED`.
        """
        return _of_kind(rows, REJECTION).select(*reassembly_rows.select_columns(REJECTED, _keys(REJECTED)))

    def acknowledgements(self, rows: DataFrame) -> DataFrame:
        """What the senders are told: for each direction of which a micro-batch accepted a fragment or saw a duplicate, once.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.ACKNOWLEDGEMENTS`.

        Raises:
            OptionError: The stream was made without `acknowledgements=True`.
        """
        if not self._acknowledgements:
            raise OptionError("acknowledgements: this stream does not tell them; make it with acknowledgements=True")
        return _of_kind(rows, ACKNOWLEDGEMENT).select(
            *reassembly_rows.select_columns(ACKNOWLEDGEMENTS, _keys(ACKNOWLEDGEMENTS))
        )

    def expired(self, rows: DataFrame) -> DataFrame:
        """The messages that were dropped because they had not grown for `max_pending_age`.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.PENDING`, then `waiting_since`: when the first fragment came.
        """
        return _of_kind(rows, EXPIRY).select(*reassembly_rows.select_columns(EXPIRED, _keys(EXPIRED)))


def schema(extra: Mapping[str, StructField], *, assembled: bool, routed: bool) -> StructType:
    """The schema of the rows of all kinds.

    Args:
        further: The columns that are carried, under the names that they have on the way.
        assembled: Whether fragments are put together.
        routed: Whether each message has a decision.

    Returns:
        The schema: `kind`, what stands in `own_columns`, then what is carried.
    """
    from pyspark.sql.types import ArrayType, IntegerType, StructType  # noqa: PLC0415 - pyspark is an extra

    made = StructType().add(KIND, "string", nullable=False)
    for name, arrow_type in own_columns(assembled=assembled, routed=routed).items():
        made.add(name, ArrayType(IntegerType()) if pa.types.is_list(arrow_type) else _SPARK_NAMES[arrow_type])
    for name, field in extra.items():
        made.add(name, field.dataType, nullable=True, metadata=field.metadata)
    return made


def own_columns(*, assembled: bool, routed: bool) -> dict[str, pa.DataType]:
    """The columns that are not carried, and their types.

    Args:
        assembled: Whether fragments are put together.
        routed: Whether each message has a decision.

    Returns:
        The types by name, in the order of the schema.
    """
    return {**(COLUMNS if assembled else FIGURE_COLUMNS), **(reassembly_rows.DECISION_COLUMNS if routed else {})}


def decisions(labels: Labels | None) -> list[Column]:
    """The columns of the decision, taken apart; none where there is none."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if labels is None:
        return []
    packed = {name: sf.col(name) for name in reassembly_rows.DECISION_COLUMNS}
    return [column.alias(name) for name, column in labels.unpack(packed).items()]


def _of_kind(rows: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return rows.where(sf.col(KIND) == kind)


def _keys(kind: pa.Schema) -> dict[str, Column]:
    """The columns that tell what a row is about: not every kind has them all, and those that do say so."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    fillers = {"conversation_id": sf.lit(b""), "is_initiator": sf.lit(False), _NUMBER: sf.lit(0).cast("bigint")}
    return {name: sf.coalesce(sf.col(name), filler) for name, filler in fillers.items() if name in kind.names}


ArrowColumn: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

pc: Final[Any] = pyarrow.compute
"""Its functions, without what the stubs know of them."""


def column(rows: pa.Table | pa.RecordBatch, name: str) -> ArrowColumn:
    """A column in one piece.

    Examples:
        >>> column(pa.table({"a": pa.chunked_array([[1], [2]])}), "a").to_pylist()
        [1, 2]
    """
    found: ArrowColumn = rows.column(name)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def with_column(rows: pa.Table, name: str, values: ArrowColumn) -> pa.Table:
    """The rows with other values in a column, which is added where there is none.

    Examples:
        >>> with_column(pa.table({"a": [1, 2]}), "a", pa.array([3, 4]))["a"].to_pylist()
        [3, 4]
    """
    place = rows.schema.get_field_index(name)
    return rows.append_column(name, values) if place < 0 else rows.set_column(place, name, values)


def same(value: object, arrow_type: pa.DataType, count: int) -> ArrowColumn:
    """A column of one value.

    Examples:
        >>> same(7, pa.int64(), 2).to_pylist()
        [7, 7]
    """
    repeated: Any = pa.repeat
    return repeated(pa.scalar(value, arrow_type), count)


def nulls(arrow_type: pa.DataType, count: int) -> ArrowColumn:
    """A column of nothing.

    Examples:
        >>> nulls(pa.int64(), 2).to_pylist()
        [None, None]
    """
    made: Any = pa.nulls
    return made(count, arrow_type)


def key(rows: pa.Table | pa.RecordBatch, names: tuple[str, ...]) -> ArrowColumn:
    """Some columns as one of bytes, which tells rows apart as they do.

    Examples:
        >>> key(pa.table({"a": [b"x", b"x"], "b": [True, False]}), ("a", "b")).to_pylist()
        [b'x/true', b'x/false']
    """
    parts = [_bytes(column(rows, name)) for name in names]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"/", pa.binary()))


def _bytes(values: ArrowColumn) -> ArrowColumn:
    kind = values.type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return values.cast(pa.binary()) if is_bytes else values.cast(pa.string()).cast(pa.binary())
