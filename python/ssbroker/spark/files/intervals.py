"""Intervals of Spark in Parquet: numbers, of which only what Spark notes in a file says what they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from ssbroker.spark.tagged import plain

_NOTE: Final = "org.apache.spark.sql.parquet.row.metadata"
_KIND: Final = b"spark"
_NESTED: Final = ("elementType", "keyType", "valueType", "sqlType")


def told(columns: pa.Schema, notes: Mapping[bytes, bytes] | None) -> pa.Schema:
    """The columns of a file; with each that is an interval, or holds one, stands what Spark calls it.

    Args:
        columns: The columns.
        notes: What is noted in the file.

    Returns:
        The same columns.

    Examples:
        >>> note = b'{"type":"struct","fields":[{"name":"took","type":"interval day to second","nullable":true,"metadata":{}}]}'
        >>> kind(told(pa.schema({"took": pa.int64()}), {_NOTE.encode(): note}).field("took"))
        'interval day to second'
    """
    fields = json.loads((notes or {}).get(_NOTE.encode(), b"{}")).get("fields", [])
    kinds = {field["name"]: json.dumps(field["type"]).encode() for field in fields if _has_interval(field["type"])}
    return pa.schema(
        [field.with_metadata({_KIND: kinds[field.name]}) if field.name in kinds else field for field in columns]
    )


def kind(field: Any) -> Any:
    """What Spark calls the type of a column of `told`, if it is an interval or holds one; else None."""
    text = (field.metadata or {}).get(_KIND)
    return None if text is None else json.loads(text)


def noted(columns: pa.Schema, read: pa.Schema) -> dict[str, str]:
    """What is noted for Spark in files with these columns, so that intervals stay what they are.

    Args:
        columns: The columns.
        read: Those of the files that were read: `told`.

    Returns:
        The notes; none where there are no intervals.
    """
    kinds = {field.name: kind(field) for field in read}
    if not any(kinds.get(name) for name in columns.names):
        return {}
    fields = [
        {"name": field.name, "type": kinds.get(field.name) or _by_arrow(field.type), "nullable": True, "metadata": {}}
        for field in columns
    ]
    return {_NOTE: json.dumps({"type": "struct", "fields": fields})}


def _by_arrow(arrow_type: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra

    return from_arrow_type(plain(arrow_type), prefer_timestamp_ntz=True).jsonValue()


def _has_interval(spark_type: Any) -> bool:
    if not isinstance(spark_type, dict):
        return isinstance(spark_type, str) and spark_type.startswith("interval")
    nested = [spark_type[name] for name in _NESTED if name in spark_type]
    return any(map(_has_interval, [*nested, *(field["type"] for field in spark_type.get("fields", []))]))
