"""Routes conversations and reassembles messages on Spark DataFrames, in batch jobs and streaming queries.

Requires PySpark 4.1 or newer (`pip install 'ssbroker[spark]'`). The workers need ssbroker too.
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
from ssbroker.spark.streams.layout import StreamKinds
from ssbroker.spark.streams.routing import route_stream
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
    """PySpark is not installed, or is too old for `ssbroker.spark` or for the data source `ssbroker`."""


def check_spark_version(minimum: str = PYSPARK_MINIMUM, *, feature: str = "ssbroker.spark") -> None:
    """Raises `MissingSparkError` unless PySpark `minimum` or newer is installed; `feature` is what needs it."""
    try:
        from pyspark import __version__ as installed  # noqa: PLC0415 - pyspark is an extra
    except ImportError:
        raise MissingSparkError(
            f"{feature} needs PySpark {minimum} or newer: pip install 'ssbroker[spark]'", name="pyspark"
        ) from None
    if is_older(installed, minimum):
        raise MissingSparkError(
            f"{feature} needs PySpark {minimum} or newer, and {installed} is installed: pip install 'pyspark>={minimum},<5'",
            name="pyspark",
        )


check_spark_version()
