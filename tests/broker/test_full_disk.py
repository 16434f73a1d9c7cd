"""A full or failing disk during an exchange of messages: a clear error, no loss, and recovery afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from ssbroker import Instance
from ssbroker.exceptions import StorageError
from tests.broker.conftest import Clock
from tests.store.failing_calls import Kind, failing_calls
from tests.system import killed_process

STEPS: Final = 8


def step(instance: Instance, number: int, rng: random.Random) -> list[int]:
    """A transaction that sends or receives, in one database or between two."""
    lane = list(killed_process.LANES)[number % 2]
    return killed_process.send(instance, lane, rng) if number % 4 < 2 else killed_process.receive(instance, lane)


def storage_error_of(what: Callable[[], object]) -> StorageError | None:
    """Returns the only error that a failing disk may cause."""
    try:
        what()
    except StorageError as error:
        return error
    return None


@pytest.mark.rule("P11")
@pytest.mark.parametrize("lasts", [True, False], ids=["lasting", "once"])
@pytest.mark.parametrize("kind", ["full", "write", "read"])
def test_nothing_is_lost_at_any_call(tmp_path: Path, kind: Kind, lasts: bool) -> None:  # noqa: FBT001  # pytest gives it by name
    """The disk fails at the nth call, for every n; the application's tables always agree with the conversations."""
    folder, rng, clock = tmp_path / "instance", random.Random(1), Clock()
    killed_process.prepare(folder)
    with failing_calls(kind) as disk:
        for attempt in count(1):
            with Instance.open(folder, background=False, clock=clock) as instance:
                instance.database("Sales")
                disk.lasts, disk.asked, disk.fails_at = lasts, 0, attempt
                errors = [storage_error_of(partial(step, instance, number, rng)) for number in range(STEPS)]
                was_reached, disk.fails_at = disk.asked >= attempt, 0
                assert all(".sqlite: " in str(error) for error in errors if error is not None)
                clock.advance(seconds=5)  # undelivered messages are retried after about four seconds
                instance.run_due()
                killed_process.drain(instance)
                for lane in killed_process.LANES:
                    sent = killed_process.sent(instance, lane)
                    assert sent == list(range(len(sent)))
                    assert killed_process.received(instance, lane) == sent
            if not was_reached:
                assert errors == [None] * STEPS
                assert attempt > 1
                return


def test_a_full_disk_in_the_application_s_own_sql(tmp_path: Path) -> None:
    """The application gets the same error, and neither its rows nor its messages are saved."""
    folder, rng = tmp_path / "instance", random.Random(1)
    killed_process.prepare(folder)
    with failing_calls("full") as disk, Instance.open(folder, background=False) as instance:
        sales = instance.database("Sales")
        killed_process.send(instance, "here", rng)
        before = killed_process.sent(instance, "here")
        with pytest.raises(StorageError, match="full"), sales.transaction() as t:
            t.connection.pragma("cache_size", 1)
            disk.asked, disk.fails_at = 0, 1
            t.connection.executemany(
                "INSERT INTO sent VALUES ('here', ?, randomblob(9000))",
                ((number,) for number in range(10**6, 10**6 + 99)),
            )
        disk.fails_at = 0
        assert killed_process.sent(instance, "here") == before
        killed_process.drain(instance)
        assert killed_process.received(instance, "here") == before
