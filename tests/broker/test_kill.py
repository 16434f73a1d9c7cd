"""B4, B9: a process that is killed at any moment loses nothing that was acknowledged, repeats nothing and leaves nothing half done."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import context_of as database_context
from tests.broker import dying

KILLS = 200
SECONDS_MAX = 0.03


@pytest.mark.rule("P11")
def test_killed_two_hundred_times(tmp_path: Path) -> None:
    """Each message whose send was committed is received exactly once, in order, in its own database and in another."""
    chance = random.Random(4)
    folder = tmp_path / "instance"
    dying.prepare(folder)
    for seed in range(KILLS):
        before = dying.log_length(folder)
        child = dying.start(folder, seed)
        if chance.random() < 0.75:  # the others mostly die while they open the instance
            dying.wait_for_commits(folder, above=before)
        at_work = dying.kill(child, after=chance.uniform(0, SECONDS_MAX))
        errors = folder / dying.ERRORS
        assert at_work, errors.read_text(encoding="utf-8") if errors.exists() else "it ended by itself"
    with Instance.open(folder, background=False) as instance:
        instance.run_due()
        dying.drain(instance)
        for lane in dying.LANES:
            sent, received = dying.sent(instance, lane), dying.received(instance, lane)
            assert sent == list(range(len(sent)))
            assert received == sent
            assert set(dying.acknowledged(folder, "sent", lane)) <= set(sent)
            assert set(dying.acknowledged(folder, "received", lane)) <= set(received)
            assert len(dying.acknowledged(folder, "received", lane)) > KILLS / 10, "the test has to have happened"
        for database in instance.databases:
            with database_context(database).file.read() as connection:
                assert connection.pragma("integrity_check") == "ok"
        assert database_context(instance.database("Sales")).objects().services.keys() >= {"//Shop", "//Here"}
