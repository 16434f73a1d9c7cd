"""The applications of a storm work: in one instance without a network, everything arrives."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import Database
from tests.system import applications, checker
from tests.system.applications import DATABASES, INITIATOR, TARGET, Initiator, Target
from tests.system.traffic import Plan

DEADLINE = 60.0
PLAN = Plan(lanes=3, messages=40, small_bytes=200, large=2, large_bytes=50_000, reply_every=4, batch=7)


class ReportRecorder:
    """What the applications say, and who waits for it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._changed = threading.Condition()

    def by(self, name: str) -> applications.Tell:
        def tell(what: str, count: int) -> None:
            with self._changed:
                self.counts[f"{name} {what}"] = count
                self._changed.notify_all()

        return tell

    def wait(self, **counts: int) -> bool:
        def is_so() -> bool:
            return all(self.counts[what.replace("_", " ")] >= count for what, count in counts.items())

        with self._changed:
            return self._changed.wait_for(is_so, DEADLINE)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.create(tmp_path / "instance", name="both") as made:
        applications.prepare(made, TARGET)
        applications.prepare(made, INITIATOR, lanes=PLAN.lanes)
        yield made


def run(instance: Instance, emitted: ReportRecorder, **until: int) -> bool:
    """Runs both applications until they have said so much, then ends them."""
    is_over = threading.Event()
    loops = [
        *Initiator(instance, PLAN, emitted.by("shop")).loops(),
        *Target(instance, PLAN, emitted.by("stock")).loops(),
    ]
    threads = [threading.Thread(target=loop, args=(is_over,)) for loop in loops]
    for thread in threads:
        thread.start()
    is_so = emitted.wait(**until)
    is_over.set()
    for thread in threads:
        thread.join(DEADLINE)
    return is_so


def verdicts(instance: Instance) -> list[checker.Verdict]:
    sides: list[Database] = [instance.database(DATABASES[service]) for service in (INITIATOR, TARGET)]
    return [checker.judge(applications.sent(near), applications.received(far)) for near, far in (sides, sides[::-1])]


def test_all_messages_are_sent_and_answered_and_all_dialogs_end(instance: Instance) -> None:
    emitted = ReportRecorder()
    assert run(instance, emitted, stock_received=42, stock_sent=PLAN.replies, shop_received=PLAN.replies, stock_ended=3)
    there, back = verdicts(instance)
    assert (there.sent, back.sent) == (PLAN.total, PLAN.replies)
    assert there.is_correct
    assert back.is_correct


def test_an_interrupted_application_resumes(instance: Instance) -> None:
    emitted = ReportRecorder()
    assert run(instance, emitted, shop_sent=7)
    assert run(instance, emitted, stock_received=42, stock_sent=PLAN.replies, shop_received=PLAN.replies, stock_ended=3)
    assert all(verdict.is_correct for verdict in verdicts(instance))
