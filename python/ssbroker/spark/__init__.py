"""Spark DataFrames, streams among them: conversations routed, fragments put together to messages, and both in one go.

Needs PySpark 4.1 or newer (`pip install 'ssbroker[spark]'`); the workers need ssbroker too.
"""

from __future__ import annotations

from importlib.util import find_spec

from ssbroker.exceptions import MissingDependencyError
from ssbroker.spark.compare import SparkComparison, compare
from ssbroker.spark.files.reassembly import ReassembledFiles, reassemble_files
from ssbroker.spark.files.routing import RoutedFiles, route_files
from ssbroker.spark.pipeline import Pipeline, pipeline
from ssbroker.spark.reassembly import Reassembly, reassemble
from ssbroker.spark.routing import route, route_udf
from ssbroker.spark.streams.inspection import stream_state
from ssbroker.spark.streams.kinds import StreamKinds
from ssbroker.spark.streams.routing import route_stream
from ssbroker.spark.streams.stream import Stream, reassemble_stream, stream

__all__ = [
    "MissingSparkError",
    "Pipeline",
    "ReassembledFiles",
    "Reassembly",
    "RoutedFiles",
    "SparkComparison",
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
    """`ssbroker.spark` needs PySpark, which is not installed."""


if find_spec("pyspark") is None:
    raise MissingSparkError("ssbroker.spark needs PySpark 4: pip install 'ssbroker[spark]'", name="pyspark")
