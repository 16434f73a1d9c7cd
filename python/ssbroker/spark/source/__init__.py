"""The data source `ssbroker`: reads views and queues of an instance, and sends rows as messages."""

from __future__ import annotations

from ssbroker._dependencies import PYSPARK_FOR_DATA_SOURCE
from ssbroker.spark import check_spark_version

check_spark_version(PYSPARK_FOR_DATA_SOURCE, feature="the data source ssbroker")
