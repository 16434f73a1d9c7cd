"""Checks arguments that several Spark functions share: DataFrames, sessions, catalogs, tie breaks, paths and memory limits."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, OptionError, SchemaError
from ssbroker.router import TieBreak

SparkTieBreak: TypeAlias = Literal["hash", "first"]
"""How to choose among equal candidates; `round_robin` is not available, because workers do not share a counter."""

MESSAGE_BYTES_MAX: Final = 1 << 30
"""The largest permitted maximum message size; larger messages would exhaust Spark's memory or exceed its limit of 2 GiB per value."""

_PENDING_BYTES_MIN: Final = 1 << 30
_PENDING_MESSAGES: Final = 4


def default_pending_bytes(max_message_bytes: int) -> int:
    """Returns the default limit for pending bytes: 1 GiB, or four times `max_message_bytes` if that is more.

    Examples:
        >>> default_pending_bytes(1 << 20) >> 30, default_pending_bytes(1 << 30) >> 30
        (1, 4)
    """
    return max(_PENDING_BYTES_MIN, _PENDING_MESSAGES * max_message_bytes)


_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: object, *, name: str) -> Path:
    """Returns a path as an absolute path; raises `InputError` for a URI, or for a value that is not a path.

    A relative path would lead elsewhere in the workers, because their working directory differs from that of the
    driver. Symbolic links are not resolved, so that the data can be replaced by changing a link.

    Examples:
        >>> local_path("/data/./day.parquet", name="source").as_posix()
        '/data/day.parquet'
        >>> local_path("s3://bucket/day.parquet", name="source")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: source: 's3://bucket/day.parquet' is a URI; expected a path on a file system that driver and workers share
    """
    if not isinstance(path, str | os.PathLike):
        hint = "; for DataFrames, use ssbroker.spark.route or reassemble" if type(path).__name__ == "DataFrame" else ""
        raise InputError(f"{name}: expected a path, got {type(path).__qualname__}{hint}", expected="a path")
    text = os.fspath(path)
    if _URI.match(text):
        raise InputError(
            f"{name}: {text!r:.200} is a URI; expected a path on a file system that driver and workers share",
            value=text,
            expected="a path",
        )
    return Path(os.path.abspath(text))  # noqa: PTH100 - resolve() would follow links


def check_frame(given: object, *, name: str) -> None:
    """Raises `SchemaError` unless the argument is a Spark DataFrame; `name` is the name of the argument, for the error message."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    if not isinstance(given, DataFrame):
        expected, actual = "a Spark DataFrame", f"{type(given).__module__}.{type(given).__qualname__}"
        raise SchemaError(
            f"{name}: expected {expected}, as spark.createDataFrame returns, got {actual.removeprefix('builtins.')}",
            expected=expected,
            actual=actual,
        )


def check_session(given: object) -> None:
    """Raises `SchemaError` unless the argument is a classic or Spark Connect session.

    Examples:
        >>> check_session(None)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: spark: expected a SparkSession, got NoneType
    """
    # The two kinds of session share no class, and Spark Connect is not always installed.
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__]
    if ("pyspark", "SparkSession") not in kinds:
        expected, actual = "a SparkSession", type(given).__qualname__
        raise SchemaError(f"spark: expected {expected}, got {actual}", expected=expected, actual=actual)


def loaded_catalog(given: object, *, now: datetime, name: str = "catalog") -> Catalog:
    """Returns a catalog as it is, or loads it from a path; raises `SchemaError` for any other value.

    Args:
        given: A catalog, or a path that `Catalog.load` reads.
        now: The time from which LIFETIME in scripts counts.
        name: The name of the argument, for the error message.

    Examples:
        >>> loaded_catalog(7, now=datetime(2026, 11, 20).astimezone())
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog or a path, got int
    """
    if isinstance(given, Catalog):
        return given
    if isinstance(given, str | os.PathLike):
        return Catalog.load(given, now=now)
    expected, actual = "an ssbroker.Catalog or a path", type(given).__qualname__
    raise SchemaError(f"{name}: expected {expected}, got {actual}", expected=expected, actual=actual)


def check_tie_break(tie_break: TieBreak) -> None:
    """Raises `OptionError` for `round_robin`, which needs a counter that Spark's workers cannot share."""
    if tie_break == "round_robin":
        raise OptionError("tie_break: round_robin needs a counter that Spark's workers cannot share; use hash or first")
