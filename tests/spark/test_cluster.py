"""A cluster of two executors of one core, in a process of its own: what is sent to them, and a task whose worker is killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.guards.repository import ROOT

SOURCE = """
import os, signal, sys
from pathlib import Path
from pyspark import TaskContext
import ssbroker.spark
from tests.spark.frames import decided, expected, frame, session_builder, world
from tests.spark.test_pipeline import told
from tests.spark.traffic import came, rows_of, table_of, worlds, would_come
from tests.worlds.universe import NOW

os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=os.getcwd())
builder = session_builder().master("local-cluster[2,1,1024]").config("spark.executor.memory", "1g")
spark = builder.config("spark.executorEnv.PYTHONPATH", os.getcwd()).getOrCreate()

def with_killed_workers(result, folder):
    # Kills, once for each of two partitions, the other Python workers of its executor, of which one feeds it, and then itself.
    def kill_once(batches):
        mark = Path(folder, str(TaskContext.get().partitionId() % 2))
        for batch in batches:
            if not mark.exists():
                mark.touch()
                for other in others():
                    os.kill(other, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    def others():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == os.getppid() and int(stat.parent.name) != os.getpid():
                yield int(stat.parent.name)

    folder.mkdir()
    return result.mapInArrow(kill_once, result.schema)

catalog, table = world(3, conversations=60)
given = frame(spark, table, partitions=4)
routed = ssbroker.spark.route(given, catalog, now=NOW)
assert decided(routed) == expected(catalog, table)
folder = Path(sys.argv[1], "route")
assert decided(with_killed_workers(routed, folder)) == expected(catalog, table)
assert list(folder.iterdir())

for number, options in enumerate([{}, {"strategy": "sort"}, {"shard_by": "message"}]):
    table = table_of(worlds(number, count=30, theme="honest"))
    done = ssbroker.spark.reassemble(frame(spark, table, partitions=3), **options)
    folder = Path(sys.argv[1], str(number))
    assert rows_of(with_killed_workers(done.messages, folder)) == would_come(table)["messages"]
    assert list(folder.iterdir())

fragments = worlds(9, count=30, theme="hostile")
first, second = (came(ssbroker.spark.reassemble(frame(spark, table_of(fragments)), strategy="sort")) for _ in range(2))
assert first == second

catalog, messages, fragments = told(5, messages=90)
done = ssbroker.spark.pipeline(frame(spark, fragments, partitions=3), catalog, now=NOW)
assert decided(done.messages) == expected(catalog, messages)
print("all is well")
spark.stop()
"""


@pytest.mark.timeout(600)
def test_a_cluster(tmp_path: object) -> None:
    """T21: `route`, `reassemble` and `pipeline` give the rows of the Arrow functions, also from a task that was tried again."""
    command = [sys.executable, "-c", SOURCE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all is well"]), done.stderr[-3000:]
