"""Routes conversations and reassembles messages on Spark DataFrames, in batch jobs and streaming queries.

Requires PySpark 3.5 or newer, which clusters bring and `pip install 'ssbroker[local-spark]'` installs. The workers need ssbroker too.
"""

from __future__ import annotations

from ssbroker.spark.compare import SparkComparison, compare
from ssbroker.spark.compat import MissingSparkError, check_spark_version
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

check_spark_version()
