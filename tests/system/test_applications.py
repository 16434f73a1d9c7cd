"""The applications of a storm: in one instance without a network, everything arrives."""

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
    """Records the reports of the applications, and waits for counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._changed = threading.Condition()

    def reporter(self, name: str) -> applications.Report:
        def report(what: str, count: int) -> None:
            with self._changed:
                self.counts[f"{name} {what}"] = count
                self._changed.notify_all()

        return report

    def wait(self, **counts: int) -> bool:
        def has_counts() -> bool:
            return all(self.counts[what.replace("_", " ")] >= count for what, count in counts.items())

        with self._changed:
            return self._changed.wait_for(has_counts, DEADLINE)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.create(tmp_path / "instance", name="both") as made:
        applications.prepare(made, TARGET)
        applications.prepare(made, INITIATOR, lanes=PLAN.lanes)
        yield made


def run(instance: Instance, recorder: ReportRecorder, **until: int) -> bool:
    """Runs both applications until they have reported the given counts, then stops them."""
    stopped = threading.Event()
    loops = [
        *Initiator(instance, PLAN, recorder.reporter("shop")).loops(),
        *Target(instance, PLAN, recorder.reporter("stock")).loops(),
    ]
    threads = [threading.Thread(target=loop, args=(stopped,)) for loop in loops]
    for thread in threads:
        thread.start()
    has_counts = recorder.wait(**until)
    stopped.set()
    for thread in threads:
        thread.join(DEADLINE)
    return has_counts


def verdicts(instance: Instance) -> list[checker.Verdict]:
    sides: list[Database] = [instance.database(DATABASES[service]) for service in (INITIATOR, TARGET)]
    return [checker.compare(applications.sent(near), applications.received(far)) for near, far in (sides, sides[::-1])]


def test_all_messages_are_sent_and_answered_and_all_dialogs_end(instance: Instance) -> None:
    recorder = ReportRecorder()
    assert run(
        instance, recorder, stock_received=42, stock_sent=PLAN.replies, shop_received=PLAN.replies, stock_ended=3
    )
    there, back = verdicts(instance)
    assert (there.sent, back.sent) == (PLAN.total, PLAN.replies)
    assert there.is_correct
    assert back.is_correct


def test_an_interrupted_application_resumes(instance: Instance) -> None:
    recorder = ReportRecorder()
    assert run(instance, recorder, shop_sent=7)
    assert run(
        instance, recorder, stock_received=42, stock_sent=PLAN.replies, shop_received=PLAN.replies, stock_ended=3
    )
    assert all(verdict.is_correct for verdict in verdicts(instance))
