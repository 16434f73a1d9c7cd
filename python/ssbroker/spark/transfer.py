"""What of a conversation crosses from the JVM into Python, and how it is read there.

Each column that crosses costs more than a comparison in the JVM does. So the database, who began and, where nothing is picked by it, the
id become one small number, the situation; what no number stands for crosses as text, for the error that it deserves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.router import TieBreak
from ssbroker.spark import columns
from ssbroker.spark.columns import TOLD, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_Column: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

_ID_BYTES: Final = 16
_PLACES: Final = 16
_OTHER_PLACE: Final = _PLACES - 1
_INITIATOR: Final = _PLACES
_WRONG_ID: Final = 64
_SITUATIONS: Final = 128
_DATABASE: Final = "database"
_IS_INITIATOR: Final = "is_initiator"


@dataclass(frozen=True, kw_only=True)
class TransferredColumns:
    """Which columns cross as they are, and which are told by the situation.

    Attributes:
        plain: The names of those that cross as they are.
        told: The names of those that the situation tells; where there are any, it crosses after the plain ones, and the text after it.
        databases: The databases for which the situation has numbers.
    """

    plain: tuple[str, ...]
    told: tuple[str, ...]
    databases: tuple[str, ...]

    @classmethod
    def of(
        cls, types: Mapping[str, pa.DataType], given: DataFrame, catalog: Catalog, tie_break: TieBreak
    ) -> TransferredColumns:
        """The way of the columns of a DataFrame.

        Args:
            types: The columns that routing reads, and their types in Arrow.
            given: Has them.
            catalog: Knows the databases.
            tie_break: Whether something is picked by the id.

        Returns:
            The way.
        """
        from pyspark.sql.types import StringType  # noqa: PLC0415 - pyspark is an extra

        databases = tuple(str(name) for name in catalog.databases["name"].to_pylist())
        told = []
        # A text that compares by a collation would be equal to names that are others to Service Broker's rules.
        by_bytes = types.get(_DATABASE) == pa.string() and given.schema[_DATABASE].dataType == StringType()
        if by_bytes and len(databases) < _OTHER_PLACE:
            told.append(_DATABASE)
        told += [name for name in columns.IDS if tie_break == "first" and types.get(name) == pa.binary()]
        if told and types.get(_IS_INITIATOR) == pa.bool_():
            told.append(_IS_INITIATOR)
        return cls(plain=tuple(name for name in types if name not in told), told=tuple(told), databases=databases)

    def rows(self, given: DataFrame) -> DataFrame:
        """The rows with what is told of each, by generated code that has their values at hand.

        Where an expression is not deterministic, Spark leaves it where it stands; it would move others up to the function, where each value
        is read anew. Nor does it hand over batches of columns then: over a columnar scan, Spark 4.3 would take an Arrow UDF's rows through a
        queue and back into columns, which is a third slower.

        Args:
            given: The conversations.

        Returns:
            The same rows, with the columns `TOLD` where something is told.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        always = sf.spark_partition_id() >= 0
        if not self.told:
            return given.where(always)
        added = zip(TOLD, self._situation_and_text(), strict=True)
        return given.select("*", *(sf.when(always, column).alias(name) for name, column in added))

    def sent(self) -> list[str]:
        """The names of what crosses, among the columns of `rows`."""
        return [*self.plain, *(quoted(name) for name in TOLD if self.told)]

    def _situation_and_text(self) -> tuple[Column, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        situation, text = sf.lit(0), sf.lit(None).cast("string")
        if _DATABASE in self.told:
            database = sf.col(_DATABASE)
            place = sf.when(database.isNull(), 0)
            for number, name in enumerate(self.databases, start=1):
                place = place.when(database == name, number)
            place = place.otherwise(_OTHER_PLACE)
            situation, text = place, sf.when(place == _OTHER_PLACE, database)
        if _IS_INITIATOR in self.told:
            situation += sf.coalesce(sf.col(_IS_INITIATOR).cast("int") + 1, sf.lit(0)) * _INITIATOR
        for name in self._ids():
            is_wrong = sf.length(name) != _ID_BYTES
            situation += sf.when(is_wrong, _WRONG_ID).otherwise(0)
            text = sf.when(is_wrong, sf.hex(name)).otherwise(text)
        return situation.cast("tinyint"), text

    def arrived(self, arrays: Sequence[_Column]) -> pa.RecordBatch:
        """The conversations of a batch, in Python.

        Args:
            arrays: What crossed, in the order of `sent`.

        Returns:
            The columns of the conversations. An id that is not needed is null.
        """
        found: dict[str, _Column] = dict(zip(self.plain, arrays, strict=False))
        if self.told:
            situation, text = arrays[len(self.plain) :]
            number: _Column = situation.cast(pa.int32())
            if _DATABASE in self.told:
                places = _by_situation((None, *range(len(self.databases))), pa.int32(), unit=1, numbers=_PLACES)
                names = pa.array(self.databases, pa.string())
                found[_DATABASE] = pa.DictionaryArray.from_arrays(places.take(number), names)
            if _IS_INITIATOR in self.told:
                began = _by_situation((None, False, True), pa.bool_(), unit=_INITIATOR, numbers=4)
                found[_IS_INITIATOR] = began.take(number)
            found |= dict.fromkeys(self._ids(), pa.nulls(len(text), pa.binary()))
            if text.null_count < len(text):
                found |= self._wrong(found, number, text)
        return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))

    def _wrong(self, found: Mapping[str, _Column], number: _Column, text: _Column) -> dict[str, _Column]:
        """The columns that the text belongs to, with it."""
        # Text of Spark may hold bytes that are none; what is told of them is that they name nothing.
        raw = text.cast(pa.large_binary()).to_pylist()
        texts = [None if told is None else told.decode(errors="replace") for told in raw]
        of_id = [whole >= _WRONG_ID for whole in number.to_pylist()]
        ids = [bytes.fromhex(told or "") if is_id else None for told, is_id in zip(texts, of_id, strict=True)]
        mended: dict[str, _Column] = dict.fromkeys(self._ids(), pa.array(ids, pa.binary()))
        if _DATABASE in self.told:
            known = found[_DATABASE].to_pylist()
            names = [
                name if told is None or is_id else told for name, told, is_id in zip(known, texts, of_id, strict=True)
            ]
            mended[_DATABASE] = pa.array(names, pa.string())
        return mended

    def _ids(self) -> list[str]:
        return [name for name in self.told if name in columns.IDS]


@functools.cache
def _by_situation(values: tuple[Any, ...], kind: pa.DataType, *, unit: int, numbers: int) -> _Column:
    """For each situation, the value that stands in one part of its number."""
    by_part = [*values, *[None] * (numbers - len(values))]
    return pa.array([by_part[whole // unit % numbers] for whole in range(_SITUATIONS)], kind)
