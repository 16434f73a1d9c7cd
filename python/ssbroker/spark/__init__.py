"""Spark DataFrames, streams among them: conversations routed, fragments put together to messages, and both in one go.

Needs PySpark 4.1 or newer (`pip install 'ssbroker[spark]'`); the workers need ssbroker too.
"""

from __future__ import annotations

from ssbroker._dependencies import PYSPARK_MINIMUM, is_older
from ssbroker.exceptions import MissingDependencyError
from ssbroker.spark.compare import SparkComparison, compare
from ssbroker.spark.files.reassembly import ReassembledFiles, reassemble_files
from ssbroker.spark.files.routing import RoutedFiles, route_files
from ssbroker.spark.pipeline import Pipeline, pipeline
from ssbroker.spark.reassembly import SparkReassembly, reassemble
from ssbroker.spark.routing import route, route_udf
from ssbroker.spark.streams.inspection import stream_state
from ssbroker.spark.streams.routing import route_stream
from ssbroker.spark.streams.row_kinds import StreamKinds
from ssbroker.spark.streams.stream import Stream, reassemble_stream, stream

__all__ = [
    "MissingSparkError",
    "Pipeline",
    "ReassembledFiles",
    "RoutedFiles",
    "SparkComparison",
    "SparkReassembly",
    "Stream",
    "StreamKinds",
    "compare",
    "pipeline",
    "reassemble",
    "reassemble_files",
    "reassemble_stream",
    "route",
    "route_files",
    "route_stream",
    "route_udf",
    "stream",
    "stream_state",
]


class MissingSparkError(MissingDependencyError):
    """PySpark is not installed, or too old for `ssbroker.spark` or for the format `ssbroker`."""


def demand(least: str = PYSPARK_MINIMUM, *, what: str = "ssbroker.spark") -> None:
    """Says so where PySpark is missing or too old.

    Args:
        least: The oldest version that will do.
        what: What needs it.

    Raises:
        MissingSparkError: It is not there, or older.
    """
    try:
        from pyspark import __version__ as found  # noqa: PLC0415 - pyspark is an extra
    except ImportError:
        raise MissingSparkError(
            f"{what} needs PySpark {least} or newer: pip install 'ssbroker[spark]'", name="pyspark"
        ) from None
    if is_older(found, least):
        raise MissingSparkError(
            f"{what} needs PySpark {least} or newer, and {found} is installed: pip install 'pyspark>={least},<5'",
            name="pyspark",
        )


demand()
