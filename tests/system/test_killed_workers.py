"""Workers that are killed at any time: each message takes effect exactly once, and in order."""

from __future__ import annotations

import random
import time
from pathlib import Path

from ssbroker import Instance
from ssbroker.broker.database import database_context
from tests.system import killed_worker

KILLS = 200
WORKERS = 3
SECONDS_MAX = 0.1


def test_killed_two_hundred_times(tmp_path: Path) -> None:
    """Three workers run at the same time. Their leases end in the hands of killed processes and of slow ones."""
    chance = random.Random(5)
    folder = tmp_path / "instance"
    killed_worker.prepare(folder)
    workers = [killed_worker.start(folder, seed) for seed in range(WORKERS)]
    for seed in range(WORKERS, KILLS):
        time.sleep(chance.uniform(0, SECONDS_MAX))
        assert_at_work(folder, workers.pop(chance.randrange(WORKERS)))
        workers.append(killed_worker.start(folder, seed))
    for worker in workers:
        assert_at_work(folder, worker)
    with Instance.open(folder, background=False) as instance:
        database = instance.database("Work")
        lost = [row for row in instance.view("sys.dm_broker_leases").to_pylist() if row["failures"]]
        while True:
            with database.take(killed_worker.QUEUE, timeout=2 * killed_worker.LEASE) as job:
                if not job:
                    break
                killed_worker.finish(job)
        with database.transaction() as t:
            sent = dict(t.connection.execute("SELECT dialog, number FROM sent"))
            done = t.connection.execute("SELECT dialog, number, process FROM done ORDER BY position").fetchall()
            answers = t.receive("Answers", groups=None)["message_body"].to_pylist()
        assert {dialog: [number for each, number, _ in done if each == dialog] for dialog in sent} == {
            dialog: list(range(number)) for dialog, number in sent.items()
        }
        by_dialog = {dialog: [body for body in answers if body and body.startswith(b"%d:" % dialog)] for dialog in sent}
        assert by_dialog == {
            dialog: [b"%d:%d" % (dialog, number) for number in range(count)] for dialog, count in sent.items()
        }
        assert len({process for _, _, process in done}) > KILLS / 4, "the test has to have happened"
        assert instance.view("sys.dm_broker_leases").num_rows == 0, lost
        with database_context(database).file.read() as connection:
            assert connection.pragma("integrity_check") == "ok"


def assert_at_work(folder: Path, worker: int) -> None:
    at_work = killed_worker.kill(worker)
    errors = folder / killed_worker.ERRORS
    assert at_work, errors.read_text(encoding="utf-8") if errors.exists() else "it ended by itself"
