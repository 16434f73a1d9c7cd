"""A process killed at any time loses no acknowledged message, repeats none and leaves no partial change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import database_context
from tests.system import killed_process

KILLS = 200
SECONDS_MAX = 0.03


@pytest.mark.rule("P11")
def test_killed_two_hundred_times(tmp_path: Path) -> None:
    """Each message whose send was committed is received exactly once, in order, in its own database and in another."""
    rng = random.Random(4)
    folder = tmp_path / "instance"
    killed_process.prepare(folder)
    for seed in range(KILLS):
        before = killed_process.log_length(folder)
        child = killed_process.start(folder, seed)
        if rng.random() < 0.75:  # the other kills mostly hit the process while it opens the instance
            killed_process.wait_for_commits(folder, above=before)
        at_work = killed_process.kill(child, after=rng.uniform(0, SECONDS_MAX))
        errors = folder / killed_process.ERRORS
        assert at_work, errors.read_text(encoding="utf-8") if errors.exists() else "it ended on its own"
    with Instance.open(folder, background=False) as instance:
        instance.run_due()
        killed_process.drain(instance)
        for lane in killed_process.LANES:
            sent, received = killed_process.sent(instance, lane), killed_process.received(instance, lane)
            assert sent == list(range(len(sent)))
            assert received == sent
            assert set(killed_process.acknowledged(folder, "sent", lane)) <= set(sent)
            assert set(killed_process.acknowledged(folder, "received", lane)) <= set(received)
            assert len(killed_process.acknowledged(folder, "received", lane)) > KILLS / 10, (
                "enough processes were killed while they worked"
            )
        for database in instance.databases:
            with database_context(database).file.read() as connection:
                assert connection.pragma("integrity_check") == "ok"
        assert database_context(instance.database("Sales")).objects().services.keys() >= {"//Shop", "//Here"}
