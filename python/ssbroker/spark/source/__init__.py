"""Instances as tables of Spark: what the format `ssbroker` reads and writes, without a word of Spark."""

from __future__ import annotations

from ssbroker.spark import demand
from ssbroker.versions import PYSPARK_OF_THE_FORMAT

demand(PYSPARK_OF_THE_FORMAT, what="the format ssbroker")
