"""What commands do on Spark: open a session, read files, count rows and translate errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.exceptions import InputError
from ssbroker.spark.compat import collect_arrow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_NULLABLE: Final = ("database", "to_broker_instance")
_SESSION_VARIABLES: Final = (
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
)


@contextmanager
def spark_errors_translated() -> Iterator[None]:
    """Turns Spark's exceptions into `InputError` with the line that states the cause."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark is an extra

    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and not type(error).__module__.startswith("py4j."):
            raise
        raise InputError(_cause(str(error))) from error


@contextmanager
def session(*, threads: int | None, quiet: bool) -> Iterator[SparkSession]:
    """Yields the session that the environment configures (`SPARK_REMOTE`, `MASTER`, spark-submit), else a local one.

    A local session uses `threads` cores, None for all, and is stopped at the end. With `quiet`, the standard error of a JVM started
    here is discarded.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ssbroker")
    if SparkSession.getActiveSession() is not None or any(name in os.environ for name in _SESSION_VARIABLES):
        yield builder.getOrCreate()
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = builder.master(os.environ.get("MASTER") or f"local[{threads or '*'}]")
    with _stderr_discarded() if quiet else nullcontext():
        local = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
    try:
        yield local
    finally:
        local.stop()


def read(spark: SparkSession, files: Sequence[Path], *, kind: str) -> DataFrame:
    """Reads files with the same columns as a DataFrame; `kind` is `parquet`, `csv` or `jsonl`.

    All CSV columns but `is_initiator` are strings; in nullable columns, an empty cell, NULL or null is null.
    """
    paths = [str(file.resolve()) for file in files]
    if kind == "parquet":
        return spark.read.parquet(*paths)
    if kind == "jsonl":
        return spark.read.json(paths, mode="FAILFAST")
    table = spark.read.csv(
        paths, header=True, multiLine=True, quote='"', escape='"', mode="FAILFAST", enforceSchema=False
    )
    return table.withColumns(
        {name: _typed_column(name) for name in table.columns if name in (*_NULLABLE, "is_initiator")}
    )


def count(table: DataFrame, columns: Sequence[str], *, top: Mapping[str, int]) -> dict[str, pa.Table]:
    """Counts the values of some columns.

    Columns named in `top` may have many values: only that many of the most frequent ones are counted, and null is not.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    counts = {}
    for name in columns:
        groups = table.where(sf.col(name).isNotNull()) if name in top else table
        groups = groups.groupBy(sf.col(name).alias("value")).count()
        if name in top:
            groups = groups.orderBy(sf.desc("count"), "value").limit(top[name])
        counts[name] = collect_arrow(groups)
    return counts


def count_rows(table: DataFrame, columns: Sequence[str], *, name: str) -> pa.Table:
    """Returns the distinct rows of some columns, and their number in the column `name`."""
    return collect_arrow(table.groupBy(*columns).count().withColumnRenamed("count", name))


def _typed_column(name: str) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    text = sf.col(name)
    if name != "is_initiator":
        return sf.when(~text.isin("", "NULL", "null"), text)
    word = sf.lower(sf.trim(text))
    wrong = sf.concat(sf.lit("is_initiator: expected true, false, 1 or 0, got "), text)
    return (
        sf.when(word.isin("true", "1"), sf.lit(True))
        .when(word.isin("false", "0"), sf.lit(False))
        .when(text.isNotNull(), sf.raise_error(wrong).cast("boolean"))
    )


@contextmanager
def _stderr_discarded() -> Iterator[None]:
    """Discards the standard error of child processes started within the block."""
    original = os.dup(2)
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    os.close(null_device)
    try:
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)


def _cause(text: str) -> str:
    r"""Returns the line of a Spark failure that states the cause: ssbroker's own error, else the end of a Python traceback, else the first line.

    Examples:
        >>> _cause("[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\nssbroker.exceptions.NullError: row 7\n")
        'row 7'
    """
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark could not start Java; it needs Java 17 or newer"
    lines = [line.strip() for line in text.partition("JVM stacktrace:")[0].splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("ssbroker.exceptions.")]
    if own:
        return own[-1].partition(": ")[2]
    last = lines[-1] if any("Traceback" in line for line in lines) else next(iter(lines), "no reason was reported")
    return f"Spark failed: {last}"
