"""The data source `ssbroker` on Spark Connect."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.source.instances import TO_ORDERS, bodies, create_instance, view


def check(spark: SparkSession, folder: Path) -> None:
    """Writes, reads, an invalid read, and a stream from queue to queue."""
    folder.mkdir()
    shop = create_instance(folder / "shop")
    rows = spark.createDataFrame([(b"%d" % number, number) for number in range(4)], "message_body binary, position int")
    rows.repartition(2).write.format("ssbroker").options(**TO_ORDERS).mode("append").save(str(shop))
    assert bodies(shop) == [b"0", b"1", b"2", b"3"]
    found = spark.read.format("ssbroker").option("queue", "Orders").load(str(shop)).collect()
    assert [bytes(row["message_body"]) for row in found] == bodies(shop)
    with pytest.raises(PySparkException, match=r"unknown view 'sys\.rotes'"):
        spark.read.format("ssbroker").option("view", "sys.rotes").load(str(shop)).collect()

    stream = spark.readStream.format("ssbroker").options(queue="Orders", database="Sales").load(str(shop))
    copies = stream.selectExpr("message_body", "queuing_order AS position").writeStream.format("ssbroker")
    copies = copies.options(database="Sales", from_service="//Orders", to_service="//Shop")
    copies = copies.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    copies.start(str(shop)).awaitTermination()
    assert [row["message_body"] for row in view(shop, "Replies")] == bodies(shop)
