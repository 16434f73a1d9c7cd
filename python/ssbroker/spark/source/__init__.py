"""Instances as tables of Spark: what the format `ssbroker` reads and writes, without a word of Spark."""

from __future__ import annotations

from ssbroker._dependencies import PYSPARK_OF_THE_FORMAT
from ssbroker.spark import demand

demand(PYSPARK_OF_THE_FORMAT, what="the format ssbroker")
