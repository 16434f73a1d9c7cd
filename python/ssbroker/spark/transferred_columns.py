"""Chooses the columns of conversations that are transferred from the JVM to Python, and decodes them in the worker.

Transferring a column costs more than comparing it in the JVM. So the database, `is_initiator` and (unless it breaks
ties) the conversation id are encoded as one small number, the code. A value without a code is sent as text, for the
error message.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.router import TieBreak
from ssbroker.spark import input_columns
from ssbroker.spark.arrow_columns import ArrowColumn
from ssbroker.spark.input_columns import CODE_COLUMNS, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_ID_BYTES: Final = 16
_DATABASE_CODES: Final = 16
_OTHER_DATABASE: Final = _DATABASE_CODES - 1
_INITIATOR_UNIT: Final = _DATABASE_CODES
_INVALID_ID: Final = 64
_CODES: Final = 128
_DATABASE: Final = "database"
_IS_INITIATOR: Final = "is_initiator"


@dataclass(frozen=True, kw_only=True)
class TransferredColumns:
    """The columns that are transferred unchanged, and the columns that are encoded.

    Attributes:
        direct: The columns that are transferred unchanged.
        encoded: The columns that the code encodes. If there are any, the code and the text come after the direct columns.
        databases: The databases that have a code.
    """

    direct: tuple[str, ...]
    encoded: tuple[str, ...]
    databases: tuple[str, ...]

    @classmethod
    def of(
        cls, types: Mapping[str, pa.DataType], given: DataFrame, catalog: Catalog, tie_break: TieBreak
    ) -> TransferredColumns:
        """Chooses how to transfer the columns that routing reads."""
        from pyspark.sql.types import StringType  # noqa: PLC0415 - pyspark is an extra

        databases = tuple(str(name) for name in catalog.databases["name"].to_pylist())
        encoded = []
        # With a collation, different names could compare as equal, but Service Broker compares names byte by byte.
        by_bytes = types.get(_DATABASE) == pa.string() and given.schema[_DATABASE].dataType == StringType()
        if by_bytes and len(databases) < _OTHER_DATABASE:
            encoded.append(_DATABASE)
        encoded += [
            name for name in input_columns.ID_COLUMNS if tie_break == "first" and types.get(name) == pa.binary()
        ]
        if encoded and types.get(_IS_INITIATOR) == pa.bool_():
            encoded.append(_IS_INITIATOR)
        return cls(
            direct=tuple(name for name in types if name not in encoded), encoded=tuple(encoded), databases=databases
        )

    def with_codes(self, given: DataFrame) -> DataFrame:
        """Returns the rows, with the columns `CODE_COLUMNS` if any column is encoded.

        The nondeterministic condition keeps Spark from moving the expressions into the function call, where each value
        would be read again. It also makes Spark pass rows instead of column batches. On a columnar scan, Spark 4.3
        would send the rows of an Arrow UDF through a queue and convert them back into columns, which is a third slower.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        always = sf.spark_partition_id() >= 0
        if not self.encoded:
            return given.where(always)
        added = zip(CODE_COLUMNS, self._code_and_text(), strict=True)
        return given.select("*", *(sf.when(always, column).alias(name) for name, column in added))

    def transferred_names(self) -> list[str]:
        """Returns the names of the columns of `with_codes` that are transferred."""
        return [*self.direct, *(quoted(name) for name in CODE_COLUMNS if self.encoded)]

    def _code_and_text(self) -> tuple[Column, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        code, text = sf.lit(0), sf.lit(None).cast("string")
        if _DATABASE in self.encoded:
            database = sf.col(_DATABASE)
            database_code = sf.when(database.isNull(), 0)
            for number, name in enumerate(self.databases, start=1):
                database_code = database_code.when(database == name, number)
            database_code = database_code.otherwise(_OTHER_DATABASE)
            code, text = database_code, sf.when(database_code == _OTHER_DATABASE, database)
        if _IS_INITIATOR in self.encoded:
            code += sf.coalesce(sf.col(_IS_INITIATOR).cast("int") + 1, sf.lit(0)) * _INITIATOR_UNIT
        for name in self._encoded_ids():
            is_wrong = sf.length(name) != _ID_BYTES
            code += sf.when(is_wrong, _INVALID_ID).otherwise(0)
            text = sf.when(is_wrong, sf.hex(name)).otherwise(text)
        return code.cast("tinyint"), text

    def decode(self, arrays: Sequence[ArrowColumn]) -> pa.RecordBatch:
        """Returns the conversations of a batch, in Python; an id that is not needed is null."""
        decoded: dict[str, ArrowColumn] = dict(zip(self.direct, arrays, strict=False))
        if self.encoded:
            code, text = arrays[len(self.direct) :]
            number: ArrowColumn = code.cast(pa.int32())
            if _DATABASE in self.encoded:
                indexes = _values_by_code(
                    (None, *range(len(self.databases))), pa.int32(), unit=1, numbers=_DATABASE_CODES
                )
                names = pa.array(self.databases, pa.string())
                decoded[_DATABASE] = pa.DictionaryArray.from_arrays(indexes.take(number), names)
            if _IS_INITIATOR in self.encoded:
                initiators = _values_by_code((None, False, True), pa.bool_(), unit=_INITIATOR_UNIT, numbers=4)
                decoded[_IS_INITIATOR] = initiators.take(number)
            decoded |= dict.fromkeys(self._encoded_ids(), pa.nulls(len(text), pa.binary()))
            if text.null_count < len(text):
                decoded |= self._with_invalid_values(decoded, number, text)
        return pa.RecordBatch.from_arrays(list(decoded.values()), names=list(decoded))

    def _with_invalid_values(
        self, decoded: Mapping[str, ArrowColumn], number: ArrowColumn, text: ArrowColumn
    ) -> dict[str, ArrowColumn]:
        """Returns the encoded columns with the values that had no code."""
        # Spark strings may contain invalid UTF-8; the replacement characters match no database.
        raw = text.cast(pa.large_binary()).to_pylist()
        texts = [None if value is None else value.decode(errors="replace") for value in raw]
        of_id = [code >= _INVALID_ID for code in number.to_pylist()]
        ids = [bytes.fromhex(value or "") if is_id else None for value, is_id in zip(texts, of_id, strict=True)]
        replaced: dict[str, ArrowColumn] = dict.fromkeys(self._encoded_ids(), pa.array(ids, pa.binary()))
        if _DATABASE in self.encoded:
            known = decoded[_DATABASE].to_pylist()
            names = [
                name if value is None or is_id else value
                for name, value, is_id in zip(known, texts, of_id, strict=True)
            ]
            replaced[_DATABASE] = pa.array(names, pa.string())
        return replaced

    def _encoded_ids(self) -> list[str]:
        return [name for name in self.encoded if name in input_columns.ID_COLUMNS]


@functools.cache
def _values_by_code(values: tuple[Any, ...], data_type: pa.DataType, *, unit: int, numbers: int) -> ArrowColumn:
    """Returns, for each code, the value that its digit at `unit` encodes."""
    by_part = [*values, *[None] * (numbers - len(values))]
    return pa.array([by_part[code // unit % numbers] for code in range(_CODES)], data_type)
