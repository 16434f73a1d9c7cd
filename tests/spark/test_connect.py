"""The same through Spark Connect, in a process of its own: one process has either sessions of the one kind or of the other."""

from __future__ import annotations

import subprocess
import sys

from tests.guards.repository import ROOT

SOURCE = """
import os, sys
from pyspark.sql import SparkSession
import pyarrow as pa
import ssbroker.spark
from pyspark.errors import PythonException
from ssbroker.spark import shipping, worker
from tests.worlds.fragments import KEYS
from tests.spark.frames import QUIET, decided, expected, frame, world
from tests.spark.test_pipeline import told
from tests.spark.traffic import came, keys_of, table_of, worlds, would_come
from tests.worlds.universe import NOW

builder = SparkSession.builder.remote("local[2]")
for name, value in QUIET.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
assert "connect" in type(spark).__module__

sent = []
add = type(spark).addArtifact
type(spark).addArtifact = lambda self, *paths, **kind: (sent.append(paths), add(self, *paths, **kind))[1]

def compilations(_):
    yield pa.record_batch({"pid": [os.getpid()], "count": [worker.router_of.cache_info().misses]})

for seed in (3, 4):
    catalog, table = world(seed, conversations=60)
    given = frame(spark, table, partitions=3)
    for _ in range(2):
        assert decided(ssbroker.spark.route(given, catalog, now=NOW)) == expected(catalog, table)
    where_to = ssbroker.spark.route_udf(spark, catalog, now=NOW)
    spark.udf.register("where_to", where_to)
    given.createOrReplaceTempView("queue")
    columns = "conversation_id, database, to_service_name, to_broker_instance, is_initiator"
    by_sql = spark.sql(f"select row, d.* from (select row, where_to({columns}) d from queue)")
    assert decided(by_sql) == expected(catalog, table)
assert len(sent) == 2, sent

rows = spark.range(0, 8, 1, 8).mapInArrow(compilations, "pid long, count long").collect()
assert {row["count"] for row in rows} <= {0, 1, 2}, rows

wrong = given.selectExpr("'no-guid' conversation_id", "database", "to_service_name")
try:
    ssbroker.spark.route(wrong, catalog, now=NOW).collect()
except PythonException as error:
    assert "InvalidGuidError: conversation_id, row 0: 'no-guid'" in str(error), error
else:
    raise AssertionError("no error")
try:
    ssbroker.spark.route(given.drop("to_service_name"), catalog)
except ssbroker.SchemaError as error:
    assert error.column == "to_service_name"
else:
    raise AssertionError("no error")

before = len(sent)
fragments = worlds(3, count=30, theme="honest", keys="mapping", has_further=True)
table = table_of(fragments, has_further=True, text_ids=True)
for options in ({}, {"strategy": "sort"}, {"shard_by": "message"}):
    given = frame(spark, table, partitions=3)
    keys = keys_of(fragments, "mapping")
    done = ssbroker.spark.reassemble(given, session_keys=keys, **options)
    assert came(done) == would_come(table, session_keys=keys)
assert len(sent) == before + 1, sent
assert not [path for paths in sent for path in paths for key in KEYS if key.hex() in path]

catalog, messages, fragments = told(5, messages=60)
done = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW)
assert decided(done.messages) == expected(catalog, messages)
print("all is well")
spark.stop()
"""


def test_spark_connect() -> None:
    done = subprocess.run([sys.executable, "-c", SOURCE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is well"]), done.stderr[-3000:]
