"""The data source `ssbroker`: reads views and queues of an instance, and sends rows as messages."""

from __future__ import annotations

from ssbroker.spark.compat import check_spark_version

check_spark_version("data source", name="the data source ssbroker")
