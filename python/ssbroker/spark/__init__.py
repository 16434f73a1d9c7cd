"""Routing Spark DataFrames: the router's answers, row for row, while payloads stay in the JVM.

Needs PySpark 4.1 or newer (`pip install 'ssbroker[spark]'`); the workers need ssbroker too.
"""

from __future__ import annotations

from importlib.util import find_spec

from ssbroker.exceptions import SsbrokerError
from ssbroker.spark.routing import route, route_udf

__all__ = ["MissingSparkError", "route", "route_udf"]


class MissingSparkError(SsbrokerError, ImportError):
    """`ssbroker.spark` needs PySpark, which is not installed."""


if find_spec("pyspark") is None:
    raise MissingSparkError("ssbroker.spark needs PySpark 4: pip install 'ssbroker[spark]'", name="pyspark")
