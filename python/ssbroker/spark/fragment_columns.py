"""The columns of a fragments DataFrame, and how its rows are partitioned and sorted."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arrow import reject_misspelled_columns
from ssbroker.exceptions import SchemaError
from ssbroker.reassembly import reassemble
from ssbroker.schemas import CONVERSATIONS
from ssbroker.spark.input_columns import (
    HANDLE_COLUMN,
    ID_COLUMN,
    arrow_type,
    check_arrow_types,
    check_unique,
    conversation_type,
)
from ssbroker.spark.reassembly_output import extra_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField


_FRAGMENT_TYPES: Final = {
    ID_COLUMN: "string or binary",
    "is_initiator": "boolean",
    "message_sequence_number": "bigint",
    "fragment_number": "int",
    "fragment_count": "int",
    "message_body": "binary",
    "message_signature": "binary",
    "fragment_signature": "binary",
}
_UNSORTABLE_TYPES: Final = {"map", "variant", "geometry", "geography", "interval"}

SORT_KEY: Final = "place"
"""The added column by which rows are sorted: a hash of the direction, with the sequence number in the low bits, or a hash of both."""

SEQUENCE_BITS: Final = 32
_SEQUENCE_MAX: Final = (1 << SEQUENCE_BITS) - 1
# The seed is secret, because otherwise a sender could choose conversation ids that collide in one partition.
_HASH_SEED: Final = secrets.randbits(63)


@dataclass(frozen=True, kw_only=True)
class FragmentColumns:
    """The columns of a fragments DataFrame.

    Attributes:
        names: The name of each column in a worker, by position: a fragment column, the session key column, or a numbered extra column.
        extra: The extra columns.
        has_text_ids: Whether conversation ids are strings.
    """

    names: tuple[str, ...]
    extra: tuple[StructField, ...]
    has_text_ids: bool

    def repartitioned(self, fragments: DataFrame, *, by_message: bool, sort_by_all_columns: bool) -> DataFrame:
        """Repartitions the rows by conversation and direction, or by message, and sorts them message by message within each partition.

        The result has the columns in `names`, in the same order but with generated names, followed by `SORT_KEY`. With
        `sort_by_all_columns`, the rows of a message are also sorted by all columns.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_worker_name(index) for index in range(len(self.names))))
        column = {name: sf.col(_worker_name(index)) for index, name in enumerate(self.names)}
        number = column["message_sequence_number"].cast("bigint")
        keys = [_id_bytes(column[ID_COLUMN]) if self.has_text_ids else column[ID_COLUMN], column["is_initiator"]]
        partition_hash = sf.xxhash64(sf.lit(_HASH_SEED), *keys, *([number] if by_message else []))
        # Sorting by one number is cheap. The rows of a message become adjacent, so only one message is held in memory at a time.
        # A sequence number beyond these bits, or two directions with the same hash, only cost memory.
        low = sf.coalesce(sf.least(sf.greatest(number, sf.lit(0)), sf.lit(_SEQUENCE_MAX)), sf.lit(0))
        sort_key = partition_hash if by_message else sf.shiftleft(partition_hash, SEQUENCE_BITS).bitwiseOR(low)
        partitioned = named.repartition(partition_hash).withColumn(SORT_KEY, sort_key)
        return partitioned.sortWithinPartitions(SORT_KEY, *(self._sort_columns(column) if sort_by_all_columns else []))

    def with_bucket(self, fragments: DataFrame, *, count: int, key: bytes) -> DataFrame:
        """Adds the bucket of each row's conversation before the other columns, which get generated names."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_worker_name(index) for index in range(len(self.names))))
        column = sf.col(_worker_name(self.names.index(ID_COLUMN)))
        id_bytes = _id_bytes(column) if self.has_text_ids else column
        return named.select(bucket_column(id_bytes, count=count, key=key), *named.columns)

    def routing_columns(self) -> tuple[dict[str, pa.DataType], dict[str, str]]:
        """Returns the types of the message columns that routing reads, and their names in a worker."""
        extra_names = [field.name for field in self.extra]
        check_unique(CONVERSATIONS.names, extra_names)
        types: dict[str, pa.DataType] = {"conversation_id": pa.binary(), "is_initiator": pa.bool_()}
        names = {name: name for name in types}
        for name in CONVERSATIONS.names:
            if name in extra_names:
                index = extra_names.index(name)
                types[name] = conversation_type(name, self.extra[index].dataType)
                names[name] = extra_name(index)
        return types, names

    def _sort_columns(self, column: Mapping[str, Column]) -> list[Column]:
        """Returns the columns to sort by: the fragment's position, then all other columns.

        The other columns give rows with the same position a fixed order, in which signed rows come first.
        """
        position = ("message_sequence_number", "fragment_number", "fragment_count")
        signatures = ("message_signature", "fragment_signature")
        extra = {extra_name(number): field.dataType for number, field in enumerate(self.extra)}
        rest = [name for name in column if name not in {*position, *signatures, *extra, ID_COLUMN, "is_initiator"}]
        rest += [name for name, spark_type in extra.items() if _is_sortable(spark_type)]
        return [
            *(column[name] for name in position),
            *(column[name].desc_nulls_last() for name in signatures if name in column),
            *(column[name] for name in (*rest, ID_COLUMN, "is_initiator")),
        ]


def read_fragment_columns(fragments: DataFrame, session_keys: Any) -> FragmentColumns:
    """Checks the fragment columns before a job starts; raises `SchemaError` or `OptionError` (session keys)."""
    columns = fragments.columns
    own = {ID_COLUMN if name == HANDLE_COLUMN and ID_COLUMN not in columns else name: name for name in columns}
    read_here = {name: own[name] for name in _FRAGMENT_TYPES if name in own}
    keys = {session_keys: session_keys} if isinstance(session_keys, str) and session_keys in own else {}
    if keys.keys() & read_here.keys():
        raise SchemaError(
            f"session_keys: {session_keys!r} is one of the columns of a fragment; specify an additional column that contains the keys",
            column=session_keys,
        )
    check_unique([*read_here.values(), *keys], columns)
    reject_misspelled_columns([*columns, *own], expected=_FRAGMENT_TYPES)
    by_own = {name: read_name for read_name, name in {**read_here, **keys}.items()}
    names: list[str] = []
    extra: list[StructField] = []
    kinds: dict[str, pa.DataType] = {}
    all_kinds: dict[str, pa.DataType] = {}  # so that an error lists the names of all columns
    for field in fragments.schema:
        name = by_own.get(field.name)
        if name is None:
            names.append(extra_name(len(extra)))
            extra.append(field)
            all_kinds.setdefault(field.name, pa.null())
            continue
        names.append(name)
        kind = arrow_type(field.name, field.dataType, expected=_FRAGMENT_TYPES.get(name, "binary"))
        kinds[name] = all_kinds[name] = kind
    reassemble(pa.schema(all_kinds).empty_table(), session_keys=session_keys)
    check_arrow_types(extra)
    has_text_ids = pa.types.is_string(kinds[ID_COLUMN])
    return FragmentColumns(names=tuple(names), extra=tuple(extra), has_text_ids=has_text_ids)


def bucket_column(column: Column, *, count: int, key: bytes) -> Column:
    """Returns a column `bucket`, from 0 to `count - 1`: a keyed hash of the values in `column`."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.pmod(sf.xxhash64(sf.lit(key), column), sf.lit(count)).cast("int").alias("bucket")


def _worker_name(index: int) -> str:
    """Returns a generated column name, which needs no quoting and is unique."""
    return f"c{index}"


def _id_bytes(text: Column) -> Column:
    """Returns the 16 bytes of a text id; malformed text becomes other bytes or null and is reported when it is parsed."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.unhex(sf.translate(text, "{}-", ""))


def _is_sortable(spark_type: DataType) -> bool:
    """Returns whether Spark can sort by a column of this type."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - pyspark is an extra

    if isinstance(spark_type, ArrayType):
        return _is_sortable(spark_type.elementType)
    if isinstance(spark_type, StructType):
        return all(_is_sortable(field.dataType) for field in spark_type)
    return spark_type.typeName() not in _UNSORTABLE_TYPES
