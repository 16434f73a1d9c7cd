"""Instances as tables of Spark: what the format `ssbroker` reads and writes, without a word of Spark."""

from __future__ import annotations

from ssbroker._dependencies import PYSPARK_FOR_DATA_SOURCE
from ssbroker.spark import demand

demand(PYSPARK_FOR_DATA_SOURCE, what="the format ssbroker")
