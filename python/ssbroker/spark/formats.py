"""Files read and written by Spark, for the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.exceptions import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_NULLABLE: Final = ("database", "to_broker_instance")
_ELSEWHERE: Final = (
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
)


@contextmanager
def told_as_ours() -> Iterator[None]:
    """Turns what Spark raises into one of our errors, with the line that says what is wrong.

    Raises:
        InputError: Spark failed, or a value in the input is wrong.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - pyspark is an extra

    try:
        yield
    except Exception as error:
        if not isinstance(error, PySparkException) and not type(error).__module__.startswith("py4j."):
            raise
        raise InputError(_last_word(str(error))) from error


@contextmanager
def session(*, threads: int | None, quiet: bool) -> Iterator[SparkSession]:
    """The session that the surroundings ask for (`SPARK_REMOTE`, `MASTER`, spark-submit), else one on this machine's cores.

    Args:
        threads: How many cores a session on this machine takes, None for all.
        quiet: Whether a JVM that is started here keeps what it would tell on standard error.

    Yields:
        The session; if it was begun here, it is ended.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - pyspark is an extra

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ssbroker")
    if SparkSession.getActiveSession() is not None or any(name in os.environ for name in _ELSEWHERE):
        yield builder.getOrCreate()
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = builder.master(os.environ.get("MASTER") or f"local[{threads or '*'}]")
    with _without_standard_error() if quiet else nullcontext():
        begun = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()
    try:
        yield begun
    finally:
        begun.stop()


def read(spark: SparkSession, files: Sequence[Path], *, kind: str) -> DataFrame:
    """Reads files of conversations or, of Parquet, of anything.

    Args:
        spark: The session.
        files: The files, all with the same columns.
        kind: `parquet`, `csv` or `jsonl`.

    Returns:
        The rows. Of CSV, all but `is_initiator` is text; an empty cell or NULL is no value where there may be none.
    """
    paths = [str(file.resolve()) for file in files]
    if kind == "parquet":
        return spark.read.parquet(*paths)
    if kind == "jsonl":
        return spark.read.json(paths, mode="FAILFAST")
    table = spark.read.csv(
        paths, header=True, multiLine=True, quote='"', escape='"', mode="FAILFAST", enforceSchema=False
    )
    return table.withColumns({name: _typed(name) for name in table.columns if name in (*_NULLABLE, "is_initiator")})


def count(table: DataFrame, columns: Sequence[str], *, top: Mapping[str, int]) -> dict[str, pa.Table]:
    """How often each value occurs in some columns.

    Args:
        table: The table.
        columns: The columns.
        top: How many of the most frequent values are wanted, for columns that may have many.

    Returns:
        For each column the values and their counts; of a column in `top`, null does not count.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    counted = {}
    for name in columns:
        groups = table.where(sf.col(name).isNotNull()) if name in top else table
        groups = groups.groupBy(sf.col(name).alias("value")).count()
        if name in top:
            groups = groups.orderBy(sf.desc("count"), "value").limit(top[name])
        counted[name] = groups.toArrow()
    return counted


def _typed(name: str) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    text = sf.col(name)
    if name != "is_initiator":
        return sf.when(~text.isin("", "NULL"), text)
    word = sf.lower(sf.trim(text))
    wrong = sf.concat(sf.lit("is_initiator: "), text, sf.lit(" is not true, false, 1 or 0"))
    return (
        sf.when(word.isin("true", "1"), sf.lit(True))
        .when(word.isin("false", "0"), sf.lit(False))
        .when(text.isNotNull(), sf.raise_error(wrong).cast("boolean"))
    )


@contextmanager
def _without_standard_error() -> Iterator[None]:
    """Processes that are started within write their errors nowhere."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _last_word(text: str) -> str:
    r"""The line of a failure that says why: that of an error of ours, else the last of a Python traceback, else the first.

    Examples:
        >>> _last_word("[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\nssbroker.exceptions.NullError: row 7\n")
        'row 7'
    """
    if "JAVA_GATEWAY_EXITED" in text:
        return "Spark could not start Java; it needs Java 17 or newer"
    lines = [line.strip() for line in text.partition("JVM stacktrace:")[0].splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("ssbroker.exceptions.")]
    if own:
        return own[-1].partition(": ")[2]
    last = lines[-1] if any("Traceback" in line for line in lines) else next(iter(lines), "no reason was told")
    return f"Spark failed: {last}"
