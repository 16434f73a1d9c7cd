"""Differences between the supported versions of PySpark."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ssbroker._compat import MINIMUMS, is_older
from ssbroker.exceptions import MissingDependencyError
from ssbroker.spark.worker_version_check import on_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class MissingSparkError(MissingDependencyError):
    """PySpark is not installed, or is too old for `ssbroker.spark`, for its streams or for the data source `ssbroker`."""


def check_spark_version(feature: str = "ssbroker.spark", *, name: str = "ssbroker.spark", otherwise: str = "") -> None:
    """Raises `MissingSparkError` unless PySpark is new enough for a feature of `MINIMUMS`.

    In the error message, `name` is what needs PySpark. If PySpark is too old, the message ends with `otherwise`, which
    describes an alternative to an upgrade.
    """
    minimum = MINIMUMS[feature].version
    try:
        from pyspark import __version__ as installed  # noqa: PLC0415 - pyspark is an extra
    except ImportError:
        raise MissingSparkError(
            f"{name} needs PySpark {minimum} or newer: pip install 'ssbroker[local-spark]'", name="pyspark"
        ) from None
    if is_older(installed, minimum):
        raise MissingSparkError(
            f"{name} needs PySpark {minimum} or newer, and {installed} is installed: pip install 'pyspark>={minimum}'{otherwise}",
            name="pyspark",
        )


def check_stream_support(name: str, *, instead: str) -> None:
    """Raises `MissingSparkError` unless PySpark has `transformWithState` for Python, and the protobuf that it needs is installed.

    `name` is the function that was called, and `instead` names the functions that do the same for a batch.
    """
    otherwise = f"; use {instead} in foreachBatch, which does not keep incomplete messages for the next micro-batch"
    check_spark_version("streams", name=name, otherwise=otherwise)
    try:
        importlib.import_module("pyspark.sql.streaming.proto.StateMessage_pb2")
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("google"):
            return  # the thin client of Spark Connect lacks this module; the server has it
        raise MissingSparkError(f"{name} needs protobuf: pip install protobuf", name="protobuf") from error
    except Exception as error:
        raise MissingSparkError(
            f"{name} needs the version of protobuf that this PySpark was built with, on the driver and all workers: {error}",
            name="protobuf",
        ) from error


def has_arrow_udf() -> bool:
    """Returns whether PySpark has Arrow UDFs (since 4.1)."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return hasattr(sf, "arrow_udf")


def column_function(function: Callable[..., Any], returns: str) -> Any:
    """Returns a Spark UDF that calls `function` with the arrays of each batch, positional or by name; the result is an array of structs."""
    if has_arrow_udf():
        return _arrow_udf(function, returns)

    def with_series(*positional: Any, **by_name: Any) -> Any:
        arrays = function(*map(_to_array, positional), **{name: _to_array(each) for name, each in by_name.items()})
        return _to_pandas(arrays)

    return _pandas_udf(with_series, returns, scalar_iterator=False)


def iterator_function(function: Callable[[Iterator[Any]], Iterator[Any]], returns: str) -> Any:
    """Returns a Spark UDF that passes `function` an iterator over the arrays of the batches; `function` yields an array of structs for each batch."""
    if has_arrow_udf():
        return _arrow_udf(function, returns)

    def with_series(batches: Iterator[Any]) -> Iterator[Any]:
        of_columns = (each if isinstance(each, tuple) else (each,) for each in batches)
        yield from map(_to_pandas, function(tuple(map(_to_array, each)) for each in of_columns))

    return _pandas_udf(with_series, returns, scalar_iterator=True)


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterator[Any]], Iterator[Any]],
    read: Sequence[str],
    *,
    name: str,
    returns: str,
) -> DataFrame:
    """Adds a column of structs: `function` receives an iterator over the arrays of the columns `read`, and yields one array for each batch.

    Other columns are passed through, so Arrow must support their types.
    """
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - pyspark is an extra

    fields = rows.schema.fields
    indexes = [rows.columns.index(each) for each in read]
    schema = StructType([*fields, StructField(name, _flat_struct(returns))])

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: list[Any] = []

        def arrays() -> Iterator[Any]:
            for batch in batches:
                current[:] = batch.columns
                yield tuple(current[index] for index in indexes)

        for added in function(arrays()):
            yield pa.RecordBatch.from_arrays([*current, added], names=[*(field.name for field in fields), name])

    # PySpark 4.0 and older look up columns by name, which fails if a name contains a dot or occurs twice.
    numbered = rows.toDF(*(f"column{number}" for number in range(len(fields))))
    return numbered.mapInArrow(on_workers(run), schema)


def _flat_struct(text: str) -> StructType:
    """Parses the name of a struct type with simple fields; PySpark 3.5 parses type names only in the DDL string of a whole schema."""
    from pyspark.sql.types import BinaryType, IntegerType, LongType, ShortType, StringType, StructType  # noqa: PLC0415 - pyspark is an extra

    kinds = {"binary": BinaryType, "int": IntegerType, "bigint": LongType, "smallint": ShortType, "string": StringType}
    struct = StructType()
    for field in text.removeprefix("struct<").removesuffix(">").split(", "):
        name, _, kind = field.partition(": ")
        struct.add(name, kinds[kind]())
    return struct


def _arrow_udf(function: Callable[..., Any], returns: str) -> Any:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    untyped: Any = sf  # the stubs of PySpark lack arrow_udf
    return untyped.arrow_udf(on_workers(function), returns)


def _pandas_udf(function: Callable[..., Any], returns: str, *, scalar_iterator: bool) -> Any:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    untyped: Any = sf  # the stubs of PySpark lack pandas_udf
    kind = untyped.PandasUDFType.SCALAR_ITER if scalar_iterator else untyped.PandasUDFType.SCALAR
    return untyped.pandas_udf(on_workers(function), returns, kind)


def _to_array(series: Any) -> Any:
    return pa.array(series, from_pandas=True)


def _to_pandas(structs: Any) -> Any:
    return pa.RecordBatch.from_struct_array(structs).to_pandas(integer_object_nulls=True)


def collect_arrow(rows: DataFrame) -> pa.Table:
    """Collects a DataFrame as an Arrow table; the oldest supported PySpark has no `DataFrame.toArrow`."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - pyspark is an extra

    return pa.Table.from_pylist([row.asDict() for row in rows.collect()], schema=to_arrow_schema(rows.schema))


def has_arrow_frames() -> bool:
    """Returns whether PySpark creates DataFrames from Arrow tables (since 4.0)."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    return hasattr(DataFrame, "toArrow")


def arrow_frame(
    spark: SparkSession, table: pa.Table, kinds: Mapping[str, str], *, as_strings: str | None = None
) -> tuple[DataFrame, bool]:
    """Returns an Arrow table as a DataFrame, and whether the column `as_strings` was converted; starts no Python in the executors.

    Args:
        spark: The session.
        table: The table.
        kinds: The Spark types of the columns of the table.
        as_strings: A column of lists of bytes, which become strings with the same bytes, even if the bytes are not valid text.
    """
    if has_arrow_frames() and table.num_rows > 0:  # PySpark fails for a table without batches
        if as_strings is not None and as_strings in table.column_names:
            table = table.set_column(
                table.column_names.index(as_strings), as_strings, _as_strings(table[as_strings].combine_chunks())
            )
        untyped: Any = spark  # the stubs of PySpark lack Arrow tables
        return untyped.createDataFrame(table), as_strings is not None
    # PySpark 3.5 would start Python for a list of rows, and would need pandas for an Arrow table.
    fields = ", ".join(f"`{name}`: {kind}" for name, kind in kinds.items())
    text = json.dumps(table.to_pylist(), default=lambda value: base64.b64encode(value).decode())
    kind = f"array<struct<{fields}>>"
    query = f"SELECT inline(from_json(text, '{kind}')) FROM VALUES (:text) AS t(text)"  # noqa: S608 - all of it is ours
    return spark.sql(query, {"text": text}), False


def list_array(offsets: Any, values: Any) -> Any:
    """Returns an array of lists; unless their type is null, the values are declared non-nullable, so that Spark does not check each one."""
    kind = pa.list_(pa.field("element", values.type, nullable=pa.types.is_null(values.type)))
    return pa.ListArray.from_arrays(offsets, values, type=kind)


def _as_strings(lists: Any) -> Any:
    values = lists.values.cast(pa.binary())
    texts: Any = pa.Array.from_buffers(pa.string(), len(values), values.buffers(), values.null_count, values.offset)
    return list_array(lists.offsets, texts)
