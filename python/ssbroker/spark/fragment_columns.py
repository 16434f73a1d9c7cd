"""Which columns of a DataFrame of fragments are read, which are carried, and by what rows are brought together."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.exceptions import SchemaError
from ssbroker.further import check_meant
from ssbroker.reassembler import reassemble
from ssbroker.schemas import CONVERSATIONS
from ssbroker.spark.columns import arrow_type, check_carried
from ssbroker.spark.names import check_once
from ssbroker.spark.tagged import further_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

_ID: Final = "conversation_id"
_HANDLE: Final = "conversation_handle"
_TYPES: Final = {
    _ID: "string or binary",
    "is_initiator": "boolean",
    "message_sequence_number": "bigint",
    "fragment_number": "int",
    "fragment_count": "int",
    "message_body": "binary",
    "message_signature": "binary",
    "fragment_signature": "binary",
}
_UNORDERED: Final = {"map", "variant", "geometry", "geography", "interval"}

PLACE: Final = "place"
"""The column that is added, by which rows are sorted: a hash of the direction, and below it the message's number; or a hash of both."""

NUMBER_BITS: Final = 32
_NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
# Who does not know it cannot choose ids that stand together.
_SEED: Final = secrets.randbits(63)


@dataclass(frozen=True, kw_only=True)
class FragmentColumns:
    """The columns of fragments.

    Attributes:
        names: What each is for a worker, by its place: one that is read, the one with session keys, or a further one by number.
        further: The further ones.
        has_text_ids: Whether conversation ids are text.
    """

    names: tuple[str, ...]
    further: tuple[StructField, ...]
    has_text_ids: bool

    def brought_together(self, fragments: DataFrame, *, by_message: bool, is_sorted: bool) -> DataFrame:
        """The rows of each conversation and direction one after the other in one partition, message by message.

        Args:
            fragments: As they came.
            by_message: Whether it is enough that the rows of each message are.
            is_sorted: Whether the rows of a message are to be sorted, too, by all there is.

        Returns:
            A column for each of `names`, under names without surprises, then `PLACE`.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_on_the_way(place) for place in range(len(self.names))))
        column = {name: sf.col(_on_the_way(place)) for place, name in enumerate(self.names)}
        number = column["message_sequence_number"].cast("bigint")
        keys = [_id_bytes(column[_ID]) if self.has_text_ids else column[_ID], column["is_initiator"]]
        together = sf.xxhash64(sf.lit(_SEED), *keys, *([number] if by_message else []))
        # To sort by one number costs little. What stands together is put together while it is in the caches, and needs no memory but
        # for a message; a number beyond these bits, or two directions with the same ones, cost memory and nothing else.
        low = sf.coalesce(sf.least(sf.greatest(number, sf.lit(0)), sf.lit(_NUMBER_MAX)), sf.lit(0))
        place = together if by_message else sf.shiftleft(together, NUMBER_BITS).bitwiseOR(low)
        placed = named.repartition(together).withColumn(PLACE, place)
        return placed.sortWithinPartitions(PLACE, *(self._order(column) if is_sorted else []))

    def by_bucket(self, fragments: DataFrame, *, count: int, key: bytes) -> DataFrame:
        """The rows with the number of their bucket, which is that of their conversation.

        Args:
            fragments: As they came.
            count: How many buckets there are.
            key: By what conversations are spread, as well as by their ids.

        Returns:
            The number, then a column for each of `names`, under names without surprises.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_on_the_way(place) for place in range(len(self.names))))
        column = sf.col(_on_the_way(self.names.index(_ID)))
        id_bytes = _id_bytes(column) if self.has_text_ids else column
        return named.select(bucket_of(id_bytes, count=count, key=key), *named.columns)

    def of_conversations(self) -> dict[str, tuple[str, DataType]]:
        """The columns that routing reads and a message carries: the name that each has on the way, and its type.

        Raises:
            SchemaError: One of them occurs twice.
        """
        names = [field.name for field in self.further]
        check_once(CONVERSATIONS.names, names)
        places = {name: names.index(name) for name in CONVERSATIONS.names if name in names}
        return {name: (further_name(place), self.further[place].dataType) for name, place in places.items()}

    def _order(self, column: Mapping[str, Column]) -> list[Column]:
        """By place; then by all there is, so that what has the same place has an order too: the signed first."""
        place = ("message_sequence_number", "fragment_number", "fragment_count")
        signatures = ("message_signature", "fragment_signature")
        further = {further_name(number): field.dataType for number, field in enumerate(self.further)}
        rest = [name for name in column if name not in {*place, *signatures, *further, _ID, "is_initiator"}]
        rest += [name for name, spark_type in further.items() if _is_ordered(spark_type)]
        return [
            *(column[name] for name in place),
            *(column[name].desc_nulls_last() for name in signatures if name in column),
            *(column[name] for name in (*rest, _ID, "is_initiator")),
        ]


def read(fragments: DataFrame, session_keys: Any) -> FragmentColumns:
    """Looks at the columns, so that what is wrong with them is told before a job starts.

    Args:
        fragments: The fragments.
        session_keys: As for `ssbroker.reassemble`.

    Returns:
        What each is for.

    Raises:
        SchemaError: One that is read is missing, occurs twice or has a type that cannot be read.
        OptionError: The session keys are not what they can be.
    """
    columns = fragments.columns
    own = {_ID if name == _HANDLE and _ID not in columns else name: name for name in columns}
    read_here = {name: own[name] for name in _TYPES if name in own}
    keys = {session_keys: session_keys} if isinstance(session_keys, str) and session_keys in own else {}
    if keys.keys() & read_here.keys():
        raise SchemaError(f"{session_keys}: this column holds no session keys", column=session_keys)
    check_once([*read_here.values(), *keys], columns)
    check_meant([*columns, *own], read=_TYPES)
    by_own = {name: read_name for read_name, name in {**read_here, **keys}.items()}
    names: list[str] = []
    further: list[StructField] = []
    kinds: dict[str, pa.DataType] = {}
    for field in fragments.schema:
        name = by_own.get(field.name)
        if name is None:
            names.append(further_name(len(further)))
            further.append(field)
            continue
        names.append(name)
        kinds[name] = arrow_type(field.name, field.dataType, expected=_TYPES.get(name, "binary"))
    reassemble(pa.schema(kinds).empty_table(), session_keys=session_keys)
    check_carried(further)
    has_text_ids = pa.types.is_string(kinds[_ID])
    return FragmentColumns(names=tuple(names), further=tuple(further), has_text_ids=has_text_ids)


def bucket_of(column: Column, *, count: int, key: bytes) -> Column:
    """The number of the bucket of a value.

    Args:
        column: The value.
        count: How many buckets there are.
        key: By what values are spread, as well as by themselves.

    Returns:
        A column `bucket` from 0 to the count.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.pmod(sf.xxhash64(sf.lit(key), column), sf.lit(count)).cast("int").alias("bucket")


def _on_the_way(place: int) -> str:
    """A name that no dot or quote in it, and no other of the same name, can make Spark stumble over."""
    return f"c{place}"


def _id_bytes(text: Column) -> Column:
    """The bytes of an id; of text that is none, whatever comes out or null: it is told when it is read."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.unhex(sf.translate(text, "{}-", ""))


def _is_ordered(spark_type: DataType) -> bool:
    """Whether Spark can sort by a column of this type."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - pyspark is an extra

    if isinstance(spark_type, ArrayType):
        return _is_ordered(spark_type.elementType)
    if isinstance(spark_type, StructType):
        return all(_is_ordered(field.dataType) for field in spark_type)
    return spark_type.typeName() not in _UNORDERED
