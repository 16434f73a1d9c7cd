"""A stream into an instance whose driver is killed between staging and sending rows, and after sending them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import ssbroker
from ssbroker.broker.database import database_context
from tests.guards.repository import ROOT
from tests.spark import process_tree
from tests.spark.source.instances import bodies, create_instance, dialogs

DEADLINE_SECONDS = 240.0


@contextmanager
def driver(folder: Path) -> Iterator[Callable[[str, Callable[[], bool]], None]]:
    """Runs a driver, which is killed with all its processes at the end of the block; yields a function that waits for a condition."""
    command = [sys.executable, "-m", "tests.spark.source.driver", str(folder)]
    with (folder / "errors").open("ab") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors, start_new_session=True)

    def wait(what: str, is_met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_met():
            assert process.poll() is None, (folder / "errors").read_text()[-3000:]
            assert time.monotonic() < deadline, f"{what}: {(folder / 'errors').read_text()[-3000:]}"
            time.sleep(0.2)

    try:
        yield wait
    finally:
        process_tree.kill_with_descendants(process.pid)
        process.wait()


def all_batches_are_committed(checkpoint: Path) -> bool:
    """Returns whether Spark has committed each planned batch.

    Their number varies: a driver that was killed after it listed a file and before it planned the batch
    leaves that file to the next batch, which then reads two.
    """
    planned, committed = (
        {int(path.name) for path in (checkpoint / log).glob("[0-9]*")} for log in ("offsets", "commits")
    )
    return planned == committed


def test_each_row_is_sent_once_wherever_the_driver_is_killed(tmp_path: Path) -> None:
    shop = create_instance(tmp_path / "shop")
    (tmp_path / "rows").mkdir()
    sent = [b"%d" % number for number in range(30)]
    for part in range(3):
        some = pa.array(sent[10 * part : 10 * part + 10], pa.binary())
        table = pa.table({"message_body": some, "position": pa.array(range(10), pa.int64())})
        pq.write_table(table, tmp_path / "rows" / f"{part}.parquet")
    # The database is locked: rows are staged, and the driver waits to send them.
    with (
        ssbroker.Instance.open(shop, background=False) as instance,
        database_context(instance.database("Sales")).file.write(),
    ):
        with driver(tmp_path) as wait:
            wait("rows of the first batch", lambda: any((shop / ".spark-staging").glob("query-*/0/*.arrow")))
        assert bodies(shop) == []
    with driver(tmp_path) as wait:
        wait("the first batch", lambda: len(bodies(shop)) >= 10)
    with driver(tmp_path) as wait:
        wait("all batches", lambda: len(bodies(shop)) >= 30 and all_batches_are_committed(tmp_path / "checkpoint"))
    assert len(dialogs(shop)) == 1
    assert sorted(dialogs(shop)[0]) == sorted(sent)
    assert not list((shop / ".spark-staging").rglob("*.arrow"))
