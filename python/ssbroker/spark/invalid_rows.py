"""Finds the rows that `route` rejects and their invalid values; Spark computes this without Python in the executors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import SchemaError
from ssbroker.router import TieBreak
from ssbroker.schemas import REJECTED_CONVERSATIONS
from ssbroker.spark.input_columns import BROKER_COLUMN, ID_COLUMNS, quoted, shortened
from ssbroker.spark.text_expressions import parsed_guid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ADDED: Final = tuple(name for name in REJECTED_CONVERSATIONS.names if name != "row")
_PROBLEM: Final = "ssbroker problem"
_ID_BYTES: Final = 16


def split_invalid(
    conversations: DataFrame, types: Mapping[str, pa.DataType], catalog: Catalog, tie_break: TieBreak
) -> tuple[DataFrame, DataFrame]:
    """Returns the valid rows, and the invalid rows with the first invalid column, its value and the reason."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    for name in conversations.columns:
        if name.lower() in _ADDED:
            message = f'{name}: errors="reject" adds a column with this name to the rejected rows; rename or drop the existing column'
            raise SchemaError(message, column=name)
    problem = _first_problem(types, catalog, tie_break)
    invalid = conversations.select("*", problem.alias(_PROBLEM)).where(sf.col(quoted(_PROBLEM)).isNotNull())
    fields = [sf.col(quoted(_PROBLEM))[name].alias(name) for name in _ADDED]
    return conversations.where(problem.isNull()), invalid.select("*", *fields).drop(_PROBLEM)


def _first_problem(types: Mapping[str, pa.DataType], catalog: Catalog, tie_break: TieBreak) -> Column:
    """Returns the column, value and reason of the first problem of each row, in the order in which `Router` checks; null for a valid row."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    checks = [_null_check("to_service_name")]
    if BROKER_COLUMN in types:
        checks.append(_guid_check(BROKER_COLUMN, types))
    for name in ID_COLUMNS:
        if name in types:
            checks += [_guid_check(name, types), *([_null_check(name)] if tie_break == "hash" else [])]
    if "database" in types:
        text = sf.col("database").cast("string")
        known = [str(name) for name in catalog.databases["name"].to_pylist()]
        checks.append((text.isNotNull() & ~text.isin(*known), _problem("database", text, "unknown_database")))
    if "is_initiator" in types:
        checks.append(_null_check("is_initiator"))
    (condition, found), *others = checks
    problem = sf.when(condition, found)
    for condition, found in others:
        problem = problem.when(condition, found)
    return problem


def _null_check(name: str) -> tuple[Column, Column]:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.col(name).isNull(), _problem(name, sf.lit(None).cast("string"), "null")


def _guid_check(name: str, types: Mapping[str, pa.DataType]) -> tuple[Column, Column]:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if types[name] == pa.string():
        value = sf.col(name).cast("string")  # without collation
        is_wrong = parsed_guid(value).isNull()
    else:
        given = sf.col(name).cast("binary")
        value, is_wrong = sf.concat(sf.lit("0x"), sf.lower(sf.hex(given))), sf.octet_length(given) != _ID_BYTES
    return sf.col(name).isNotNull() & is_wrong, _problem(name, value, "invalid_guid")


def _problem(name: str, value: Column, reason: str) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.struct(sf.lit(name).alias("column"), shortened(value).alias("value"), sf.lit(reason).alias("reason"))
