"""The format `ssbroker` through Spark Connect, in a process of its own, as `test_connect` has it (U21)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.guards.repository import ROOT

SOURCE = """
import sys
from pathlib import Path
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.frames import QUIET
from tests.spark.instances import TO_ORDERS, bodies, made, view

builder = SparkSession.builder.remote("local[2]")
for name, value in QUIET.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert "connect" in type(spark).__module__
folder = made(Path(sys.argv[1]) / "shop")

rows = spark.createDataFrame([(b"%d" % number, number) for number in range(4)], "message_body binary, position int")
rows.repartition(2).write.format("ssbroker").options(**TO_ORDERS).mode("append").save(str(folder))
assert bodies(folder) == [b"0", b"1", b"2", b"3"]
found = spark.read.format("ssbroker").option("queue", "Orders").load(str(folder)).collect()
assert [bytes(row["message_body"]) for row in found] == bodies(folder)
try:
    spark.read.format("ssbroker").option("view", "sys.rotes").load(str(folder)).collect()
except PySparkException as error:
    assert "there is no view 'sys.rotes'" in str(error), error
else:
    raise AssertionError("no error")

stream = spark.readStream.format("ssbroker").options(queue="Orders", database="Sales").load(str(folder))
copies = stream.selectExpr("message_body", "queuing_order AS position").writeStream.format("ssbroker")
copies = copies.options(database="Sales", from_service="//Orders", to_service="//Shop")
copies = copies.option("checkpointLocation", sys.argv[1] + "/checkpoint").trigger(availableNow=True)
copies.start(str(folder)).awaitTermination()
assert [row["message_body"] for row in view(folder, "Replies")] == bodies(folder)
print("all is well")
spark.stop()
"""


@pytest.mark.timeout(900)
def test_spark_connect_reads_and_writes_instances(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SOURCE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is well"]), done.stderr[-3000:]
