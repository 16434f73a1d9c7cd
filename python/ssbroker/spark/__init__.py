"""Routes conversations and reassembles messages on Spark DataFrames, in batch jobs and streaming queries.

Requires PySpark 3.5 or newer. Clusters provide PySpark; elsewhere, `pip install 'ssbroker[local-spark]'` installs it.
ssbroker must also be installed on the workers.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from ssbroker.spark.compat import MissingSparkError, check_spark_version

if TYPE_CHECKING:
    from ssbroker.spark.comparison import SparkComparison, compare
    from ssbroker.spark.engine_choice import RouteEngine
    from ssbroker.spark.files.reassembly import ReassembledFiles, reassemble_files
    from ssbroker.spark.files.routing import RoutedFiles, route_files
    from ssbroker.spark.message_pipeline import Pipeline, pipeline
    from ssbroker.spark.reassembly import SparkReassembly, reassemble
    from ssbroker.spark.routing import route, route_engine, route_udf
    from ssbroker.spark.streams.stream import Stream, reassemble_stream, route_stream, stream
    from ssbroker.spark.streams.stream_rows import StreamKinds
    from ssbroker.spark.streams.stream_state import stream_state

__all__ = [
    "MissingSparkError",
    "Pipeline",
    "ReassembledFiles",
    "RouteEngine",
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
    "route_engine",
    "route_files",
    "route_stream",
    "route_udf",
    "stream",
    "stream_state",
]

# Imported on first use, so that a worker imports only what its function needs. No module may have the name of a
# function in `__all__`, because importing the module would replace the function.
_HOMES = {
    **dict.fromkeys(("SparkComparison", "compare"), "comparison"),
    **dict.fromkeys(("ReassembledFiles", "reassemble_files"), "files.reassembly"),
    **dict.fromkeys(("RoutedFiles", "route_files"), "files.routing"),
    **dict.fromkeys(("Pipeline", "pipeline"), "message_pipeline"),
    **dict.fromkeys(("SparkReassembly", "reassemble"), "reassembly"),
    **dict.fromkeys(("route", "route_engine", "route_udf"), "routing"),
    **dict.fromkeys(("Stream", "reassemble_stream", "route_stream", "stream"), "streams.stream"),
    "RouteEngine": "engine_choice",
    "StreamKinds": "streams.stream_rows",
    "stream_state": "streams.stream_state",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


check_spark_version()
