"""Work queues: `Instance.queue`, `Database.queue`, `WorkQueue`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ssbroker
from ssbroker import (
    BrokerError,
    Database,
    InputError,
    Instance,
    InvalidGuidError,
    LeaseLostError,
    LockTimeoutError,
    OptionError,
    SchemaError,
    StorageError,
    WorkQueue,
)
from ssbroker.broker import work_queue
from ssbroker.broker.dialogs import work_queue_conversations
from tests.broker.conftest import START, Clock


@pytest.fixture
def queue(instance: Instance) -> WorkQueue:
    return instance.queue("Jobs")


def values(queue: WorkQueue) -> list[Any]:
    """Processes all messages."""
    found: list[Any] = []
    while True:
        with queue.take(timeout=0) as job:
            if not job:
                return found
            found.append(job.value)


def rows(instance: Instance) -> int:
    """Counts everything that messages leave in the database."""
    views = ("sys.conversation_endpoints", "sys.conversation_groups", "sys.transmission_queue", "sys.dm_broker_leases")
    return sum(instance.view(view).num_rows for view in (*views, "dbo.Jobs"))


def test_messages_are_taken_in_the_order_in_which_they_were_put(queue: WorkQueue) -> None:
    for number in range(5):
        queue.put(b"%d" % number)
    assert values(queue) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("body", [b"", b"bytes", bytearray(b"array"), memoryview(b"view")])
def test_bytes_arrive_as_bytes(queue: WorkQueue, body: bytes) -> None:
    queue.put(body)
    assert values(queue) == [bytes(body)]


@pytest.mark.parametrize("value", [None, "", "Grüße", 1, 1.5, [], {"a": [True, None]}])
def test_json_arrives_decoded(queue: WorkQueue, value: object) -> None:
    queue.put(value, codec="json")
    assert values(queue) == [value]


def test_nothing_is_left_after_a_job(instance: Instance, queue: WorkQueue) -> None:
    for _ in range(3):
        queue.put(b"one")
    assert rows(instance) > 0
    values(queue)
    assert rows(instance) == 0


def test_messages_are_visible_in_the_views(instance: Instance, queue: WorkQueue) -> None:
    queue.put({"a": 1}, codec="json")
    (row,) = instance.view("dbo.Jobs", "Queues").to_pylist()
    assert (row["message_body"], row["message_type_name"], row["service_name"]) == (
        b'{"a": 1}',
        "application/json",
        "Jobs",
    )


def test_jobs_of_one_queue_run_at_the_same_time(queue: WorkQueue) -> None:
    queue.put(b"one")
    queue.put(b"two")
    with queue.take() as first, queue.take() as second:
        assert (first.value, second.value) == (b"one", b"two")


def test_a_failed_job_is_repeated(instance: Instance, queue: WorkQueue, clock: Clock) -> None:
    queue.put(b"one")
    with pytest.raises(ZeroDivisionError), queue.take():
        raise ZeroDivisionError
    clock.advance(seconds=1)
    with queue.take() as job:
        assert (job.value, job.attempt) == (b"one", 2)
    assert rows(instance) == 0


def fail(queue: WorkQueue) -> Any:
    """Fails in the next job, at once; returns its message, or None if there is none."""
    with suppress(ZeroDivisionError), queue.take(timeout=0) as job:
        if not job:
            return None
        raise ZeroDivisionError
    return job.value


def test_a_short_failure_of_another_system_does_not_stop_the_queue(
    instance: Instance, queue: WorkQueue, clock: Clock
) -> None:
    """Failed jobs wait 1, 4, 16 and 64 seconds; other jobs are taken during this time."""
    for body in (b"one", b"two"):
        queue.put(body)
    for wait in (1, 4, 16, 64):
        assert [fail(queue) for _ in range(3)] == [b"one", b"two", None]
        clock.advance(seconds=wait - 0.001)
        queue.put(b"next")
        assert values(queue) == [b"next"]
        clock.advance(seconds=0.001)
    with queue.take(timeout=0) as job:
        assert (job.value, job.attempt) == (b"one", 5)
    assert fail(queue) == b"two"
    with pytest.raises(BrokerError, match=r"9617.*: ZeroDivisionError$"), queue.take(timeout=0):
        pass
    instance.database("Queues").alter_queue("Jobs", status=True)
    assert values(queue) == [b"two"]


def test_a_failed_job_waits_as_the_queue_of_its_worker_says(instance: Instance, clock: Clock) -> None:
    failures = []

    def delay(failed: int) -> float:
        failures.append(failed)
        return 60 * failed

    queue = instance.queue("Jobs", retry_after=delay)
    queue.put(b"one")
    for failed in range(1, 5):
        assert [fail(queue), fail(queue)] == [b"one", None]
        (lease,) = instance.view("sys.dm_broker_leases").to_pylist()
        assert (lease["state"], lease["failures"]) == ("WAITING", failed)
        clock.advance(seconds=60 * failed)
    assert failures == [1, 2, 3, 4]
    with instance.queue("Jobs").take(timeout=0) as job:
        assert job.attempt == 5
    at_once = instance.queue("Jobs", retry_after=0)
    at_once.put(b"two")
    assert [fail(at_once) for _ in range(5)] == [b"two"] * 5


def test_a_failed_job_keeps_the_order_of_its_conversation(instance: Instance, sales: Database, clock: Clock) -> None:
    queue = sales.queue("Jobs")
    with sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", "Jobs", contract="//ssbroker/queue")
        t.send(dialog, b"one")
    assert fail(queue) == b"one"
    with sales.transaction() as t:
        t.send(dialog, b"two")
    assert values(queue) == []
    clock.advance(seconds=1)
    with queue.take(timeout=0) as job:
        assert [message.message_body for message in job.messages] == [b"one", b"two"]


def test_a_failed_job_that_waits_can_be_cancelled(queue: WorkQueue) -> None:
    put = queue.put(b"one")
    assert fail(queue) == b"one"
    assert queue.count() == 1
    assert queue.cancel(put)


def test_a_queue_without_poison_message_handling_waits_longer_and_longer(
    instance: Instance, queue: WorkQueue, clock: Clock
) -> None:
    instance.database("Queues").alter_queue("Jobs", poison_message_handling=False)
    queue.put(b"one")
    for wait in (1, 4, 16, 64, 256, 1024, 3600, 3600):
        assert [fail(queue), fail(queue)] == [b"one", None]
        clock.advance(seconds=wait)
    with queue.take(timeout=0) as job:
        job.fail()
    assert values(queue) == []


@pytest.mark.parametrize("result", [None, -1, "5", float("nan"), 10**9, ZeroDivisionError()])
def test_a_wrong_delay_is_logged_and_the_default_is_used(
    instance: Instance, clock: Clock, caplog: pytest.LogCaptureFixture, result: Any
) -> None:
    def delay(_: int) -> float:
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]  # that is what is wrong

    queue = instance.queue("Jobs", retry_after=delay)
    queue.put(b"one")
    assert [fail(queue), fail(queue)] == [b"one", None]
    clock.advance(seconds=1)
    assert values(queue) == [b"one"]
    assert "retry_after failed; the messages of a failed job wait for the default time" in caplog.text


@pytest.mark.parametrize("given", [-1, "5", True, float("nan"), float("inf"), 366 * 24 * 3600 + 1])
def test_a_wrong_number_of_seconds_is_refused(instance: Instance, sales: Database, given: Any) -> None:
    for queue in (instance.queue, sales.queue):
        with pytest.raises(
            OptionError, match=r"^retry_after: expected a number of seconds from 0 to 31,622,400 .*; got"
        ):
            queue("Jobs", retry_after=given)
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]


async def coroutine(failures: int) -> float:
    return float(failures)


def generator(failures: int) -> Iterator[float]:
    yield float(failures)


@pytest.mark.parametrize("given", [coroutine, generator, partial(coroutine)])
def test_a_coroutine_function_cannot_say_how_long_a_message_waits(instance: Instance, given: Any) -> None:
    with pytest.raises(OptionError, match=r"^retry_after: expected a regular function, got .* is a coroutine or"):
        instance.queue("Jobs", retry_after=given)


@pytest.mark.parametrize("create", ["no", 0, 1, None])
def test_whether_a_queue_is_created_is_a_boolean(instance: Instance, sales: Database, create: Any) -> None:
    for queue in (instance.queue, sales.queue):
        with pytest.raises(OptionError, match=r"^create: expected True or False, got "):
            queue("Jobs", create=create)
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]


def test_a_name_that_differs_only_in_case_is_refused(instance: Instance, sales: Database) -> None:
    """Otherwise producers and workers would use different queues."""
    instance.queue("Jobs")
    for name in ("jobs", "DBO.Jobs", "[dbo].[JOBS]"):
        with pytest.raises(
            BrokerError, match=r"^2714: the queue 'dbo.Jobs' already exists, and .* differs .* only in case"
        ):
            instance.queue(name)
    with pytest.raises(BrokerError, match=r"2714: the queue 'dbo\.Jobs' already exists, and 'jobs'"):
        instance.queue("Mails", on_poison="move", poison_queue="jobs")
    sales.create_queue("jobs")
    sales.create_queue("Jobs")
    assert {sales.queue("jobs").name, sales.queue("Jobs").name} == {"jobs", "Jobs"}, "both exist already"


def test_a_change_of_the_poison_handling_is_logged(instance: Instance, caplog: pytest.LogCaptureFixture) -> None:
    """Of a queue that exists, by programs that disagree; without the option, nothing changes."""
    instance.queue("Jobs", on_poison="move")
    instance.queue("Jobs")
    instance.queue("Jobs", on_poison="move")
    assert caplog.messages == []
    text = "Queues: on_poison of the work queue 'Jobs' changes from {} to {}, for all programs"
    moving, other = "'move' to dbo.Jobs_failed", "'move' to dbo.Other"
    instance.queue("Jobs", on_poison="disable")
    instance.queue("Jobs")
    instance.queue("Jobs", on_poison="move")
    instance.queue("Jobs", on_poison="move", poison_queue="Other")
    instance.queue("Jobs")
    assert caplog.messages == [
        text.format(moving, "'disable'"),
        text.format("'disable'", moving),
        text.format(moving, other),
    ]


def test_a_queue_that_does_not_exist_is_not_created(instance: Instance, sales: Database) -> None:
    with pytest.raises(BrokerError, match=r"^15151: the queue 'Jobs' does not exist in the database 'Queues'$"):
        instance.queue("Jobs", create=False)
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]
    put = instance.queue("Jobs").put(b"one")
    for name in ("jobs", "Job"):
        with pytest.raises(BrokerError, match=r"^15151: the queue .* 'Queues'; did you mean 'dbo.Jobs'\?$"):
            instance.queue(name, create=False)
    assert instance.queue("Jobs", create=False).cancel(put)
    sales.create_queue("Plain")
    with pytest.raises(BrokerError, match="queue 'Plain' is not a work queue, because it has no service 'Plain'"):
        sales.queue("Plain", create=False)
    assert "Plain" not in instance.view("sys.services", "Sales")["name"].to_pylist()


def test_a_message_is_put_for_later(instance: Instance, queue: WorkQueue, clock: Clock) -> None:
    queue.put(b"later", at=START + timedelta(days=400))
    queue.put(b"past", at=START - timedelta(days=1))
    assert values(queue) == [b"past"]
    (row,) = instance.view("sys.dm_broker_leases").to_pylist()
    assert (row["state"], row["end_time"]) == ("WAITING", START + timedelta(days=400))
    assert instance.run_due() == START + timedelta(days=400)
    clock.advance(seconds=400 * 24 * 3600 - 1)
    assert values(queue) == []
    clock.advance(seconds=1)
    with queue.take() as job:
        assert (job.value, job.attempt) == (b"later", 1)
    assert rows(instance) == 0


@pytest.mark.parametrize("is_in_a_transaction", [False, True])
def test_a_message_is_put_with_a_delay(sales: Database, clock: Clock, *, is_in_a_transaction: bool) -> None:
    queue = sales.queue("Jobs")
    clock.advance(seconds=100)
    with sales.transaction() if is_in_a_transaction else nullcontext() as t:
        queue.put(b"later", at=timedelta(seconds=60), transaction=t)
        queue.put(b"now", at=timedelta(0), transaction=t)
        queue.put(b"before", at=-timedelta(days=1), transaction=t)
    assert values(queue) == [b"now", b"before"]
    clock.advance(seconds=59)
    assert values(queue) == []
    clock.advance(seconds=1)
    assert values(queue) == [b"later"]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (timedelta.max, "at: expected a delay that ends before the year 10000, got datetime.timedelta"),
        (60, r"at: expected a datetime, a timedelta or None, got 60 \(int\)"),
        ("tomorrow", "at: expected a datetime, a timedelta or None, got 'tomorrow'"),
        (
            START.replace(tzinfo=None),
            r"at: expected a datetime with a time zone, got 2026-11-21T00:00:00; if it is local time, pass at\.astimezone\(\)",
        ),
    ],
)
def test_a_time_that_is_not_valid_is_refused(queue: WorkQueue, at: Any, expected: str) -> None:
    with pytest.raises(OptionError, match=f"^{expected}"):
        queue.put(b"lost", at=at)
    assert queue.count() == 0


def test_a_transaction_that_has_received_does_not_receive_what_it_puts_for_later(sales: Database) -> None:
    queue = sales.queue("Jobs")
    queue.put(b"now")
    with sales.transaction() as t:
        assert t.receive("Jobs").num_rows == 1
        queue.put(b"later", at=START + timedelta(days=1), transaction=t)
        assert t.receive_one("Jobs") is None
        assert t.receive("Jobs").num_rows == 0
    assert values(queue) == []


def test_a_message_that_cannot_be_scheduled_is_not_put(instance: Instance, sales: Database) -> None:
    """The transaction continues without it, and the error names what to enable."""
    queue = sales.queue("Jobs")
    sales.alter_queue("Jobs", status=False)
    with sales.transaction() as t:
        queue.put(b"now", transaction=t)
        with pytest.raises(
            BrokerError, match=r"cannot be scheduled: 9617: the queue 'dbo.Jobs' is disabled; enable it"
        ):
            queue.put(b"later", at=timedelta(days=1), transaction=t)
    sales.alter_queue("Jobs", status=True)
    sales.set_broker("DISABLE_BROKER")
    with sales.transaction() as t, pytest.raises(BrokerError, match="cannot be scheduled, because message delivery is"):
        queue.put(b"later", at=timedelta(days=1), transaction=t)
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert values(queue) == [b"now"]


def test_a_message_is_put_together_with_rows(sales: Database) -> None:
    queue = sales.queue("Jobs")
    with pytest.raises(ZeroDivisionError), sales.transaction() as t:
        t.connection.execute("CREATE TABLE done (body)")
        queue.put(b"rolled back", transaction=t)
        raise ZeroDivisionError
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE done (body)")
        queue.put(b"one", transaction=t)
    with queue.take() as job, job.transaction() as t:
        t.connection.execute("INSERT INTO done VALUES (?)", (job.value,))
        queue.put(b"next step", transaction=t)
    assert values(queue) == [b"next step"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_message_is_not_put_beside_the_open_transaction(sales: Database, *, has_begun: bool) -> None:
    """It would remain if the transaction, which the caller forgot to pass, rolled back."""
    queue = sales.queue("Jobs")
    with sales.transaction() as t:
        if has_begun:
            t.connection.execute("CREATE TABLE orders (id)")
        with pytest.raises(LockTimeoutError, match=r"put\(\.\.\., transaction=t\)"):
            queue.put(b"ship order 1")
        for call in (queue.clear, queue.drop, partial(queue.cancel, uuid.uuid4())):
            with pytest.raises(LockTimeoutError, match="before or after the block"):
                call()
        queue.put(b"ship order 2", transaction=t)
    queue.put(b"ship order 3")
    assert queue.count() == 2


def test_threads_put_beside_the_transactions_of_others(sales: Database) -> None:
    queue = sales.queue("Jobs")
    with sales.transaction(), ThreadPoolExecutor(1) as pool:  # it has not begun, and holds no lock
        pool.submit(queue.put, b"ship order 1").result()
    assert queue.count() == 1


def test_a_transaction_of_another_database_is_refused(sales: Database, queue: WorkQueue) -> None:
    with sales.transaction() as t, pytest.raises(OptionError, match="expected a transaction of the database 'Queues'"):
        queue.put(b"one", transaction=t)


def test_a_transaction_of_another_instance_object_is_refused(instance: Instance, queue: WorkQueue) -> None:
    with (
        Instance.open(instance.folder, background=False) as other,
        other.database("Queues").transaction() as t,
        pytest.raises(
            OptionError,
            match=r"got a transaction of the same database, opened by another Instance object; use the queue",
        ),
    ):
        queue.put(b"one", transaction=t)


@pytest.mark.rule("I5", "I6")
@pytest.mark.parametrize("option", ["NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"])
def test_jobs_survive_a_change_of_the_identity(instance: Instance, clock: Clock, option: Any) -> None:
    """Those that wait, are leased, are put for later, or have failed."""
    queue = instance.queue("Jobs", on_poison="move", retry_after=0)
    queue.put(b"failed")
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), queue.take(timeout=0):
            raise ZeroDivisionError
    queue.put(b"leased")
    with queue.take(timeout=0) as job:
        queue.put({"a": 1}, codec="json")
        queue.put(b"later", at=START + timedelta(hours=1))
        instance.database("Queues").set_broker(option)
        assert job.value == b"leased"
    assert values(queue) == [{"a": 1}]
    clock.advance(seconds=3600)
    assert values(queue) == [b"later"]
    assert values(instance.queue("Jobs_failed")) == [b"failed"]
    assert rows(instance) == 0


@pytest.mark.rule("I5")
def test_a_job_that_was_not_delivered_ends_with_the_identity(
    instance: Instance, queue: WorkQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """It is addressed to the old broker id."""
    database = instance.database("Queues")
    database.set_broker("DISABLE_BROKER")
    queue.put(b"one")
    database.set_broker("NEW_BROKER")
    assert values(queue) == []
    assert rows(instance) == 0
    (line,) = caplog.messages
    assert (
        "a conversation of the work queue service 'Jobs' ended with an error; no job receives the Error message: "
        in line
    )
    assert " (-9719); conversation_id " in line


@pytest.mark.parametrize("at_once", [1, 2, 10_000])
def test_messages_are_counted_and_removed(instance: Instance, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Those that wait, are leased, are put for later, or have failed."""
    monkeypatch.setattr(work_queue, "CLEARED_MAX", at_once)
    queue = instance.queue("Jobs", on_poison="move", retry_after=0)
    assert (queue.count(), queue.clear()) == (0, 0)
    queue.put(b"failed")
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), queue.take(timeout=0):
            raise ZeroDivisionError
    failed = instance.queue("Jobs_failed")
    assert (queue.count(), failed.count()) == (0, 1)
    for number in range(3):
        queue.put(b"x", at=START + timedelta(hours=number))
    with (
        pytest.raises(LeaseLostError, match=r"the messages were removed, for example by WorkQueue.clear"),
        queue.take() as job,
    ):
        assert (bool(job), queue.count()) == (True, 3)
        assert queue.clear() == 3
        assert queue.count() == 0
    queue.put(b"next")
    assert values(queue) == [b"next"]
    assert failed.clear() == 1
    assert rows(instance) == 0


def test_a_message_can_be_cancelled(instance: Instance, queue: WorkQueue) -> None:
    """Also if it is scheduled for later or is part of an open transaction."""
    kept = queue.put(b"kept")
    waiting = queue.put(b"waiting")
    later = queue.put(b"later", at=START + timedelta(days=1))
    with instance.database("Queues").transaction() as t:
        together = queue.put(b"together", transaction=t)
    assert [queue.cancel(each) for each in (waiting, str(later), together.bytes)] == [True] * 3
    assert [queue.cancel(each) for each in (waiting, later, together, uuid.uuid4())] == [False] * 4
    with queue.take(timeout=0) as job:
        assert (job.value, job.message.conversation_id) == (b"kept", kept)
    assert rows(instance) == 0
    with pytest.raises(InvalidGuidError, match=r"^conversation_id: "):
        queue.cancel("kept")


def test_a_message_that_is_taken_is_not_cancelled(instance: Instance, queue: WorkQueue, clock: Clock) -> None:
    put = queue.put(b"one")
    with queue.take(timeout=0):
        assert not queue.cancel(put)
    assert not queue.cancel(put)
    put = queue.put(b"two")
    with queue.take(timeout=0) as job:
        job.retry(after=60)
    assert queue.cancel(put)
    put = queue.put(b"three")
    with pytest.raises(LeaseLostError), queue.take(timeout=0, lease=60):
        clock.advance(seconds=60)
        assert queue.cancel(put)
    put = queue.put(b"four")
    with instance.database("Queues").transaction() as t:
        assert t.receive_one("Jobs") is not None
    assert not queue.cancel(put)


def test_a_message_that_has_failed_is_cancelled(instance: Instance) -> None:
    queue = instance.queue("Jobs", on_poison="move")
    put = queue.put(b"one")
    with queue.take(timeout=0) as job:
        job.fail()
    assert not instance.queue("Other").cancel(put)
    assert queue.cancel(put)
    assert instance.queue("Jobs_failed").count() == rows(instance) == 0
    assert instance.view("sys.dm_broker_failures").num_rows == 0


@pytest.mark.parametrize("change", ["ALTER QUEUE Jobs WITH STATUS = {}", "ALTER DATABASE Queues SET {}_BROKER"])
def test_a_message_that_was_not_delivered_is_cancelled(instance: Instance, queue: WorkQueue, change: str) -> None:
    off, on = ("OFF", "ON") if "STATUS" in change else ("DISABLE", "ENABLE")
    instance.execute(f"USE Queues; {change.format(off)}")
    put = queue.put(b"one")
    kept = queue.put(b"two")
    assert queue.cancel(put)
    assert not queue.cancel(put)
    instance.execute(f"USE Queues; {change.format(on)}")
    instance.run_due()
    with queue.take(timeout=0) as job:
        assert (job.value, job.message.conversation_id) == (b"two", kept)
    assert rows(instance) == 0


def test_messages_of_others_are_not_cancelled(instance: Instance, sales: Database) -> None:
    queue = sales.queue("Jobs")
    sent_from_shop(sales, b"one")
    ids = {uuid.UUID(bytes=each) for each in instance.view("sys.conversation_endpoints")["conversation_id"].to_pylist()}
    assert [queue.cancel(each) for each in ids] == [False]


def test_messages_of_others_are_not_removed(instance: Instance, sales: Database) -> None:
    queue = sales.queue("Jobs")
    with sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", "Jobs", contract="//ssbroker/queue")
        t.send(dialog, b"of another service")
    queue.put(b"own")
    assert queue.count() == 2
    assert queue.clear() == 1
    with pytest.raises(BrokerError, match="the service 'Jobs' is used by"):
        queue.drop()
    assert queue.count() == 1
    with queue.take(timeout=0) as job:
        assert job.value == b"of another service"


def test_a_queue_is_dropped_with_its_messages(instance: Instance) -> None:
    """Those that wait, have failed, or were not delivered; it can be created again."""
    queue = instance.queue("Jobs", on_poison="move", retry_after=0)
    queue.put(b"failed")
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), queue.take(timeout=0):
            raise ZeroDivisionError
    queue.put(b"waiting")
    instance.database("Queues").set_broker("DISABLE_BROKER")
    queue.put(b"not delivered")
    instance.database("Queues").set_broker("ENABLE_BROKER")
    with pytest.raises(
        BrokerError,
        match=r"'Jobs_failed' cannot be dropped, because it receives the failed messages of the queue 'dbo\.Jobs'",
    ):
        instance.queue("Jobs_failed").drop()
    assert instance.queue("Jobs_failed").count() == 1
    queue.drop()
    instance.queue("Jobs_failed").drop()
    assert instance.view("sys.service_queues").num_rows == instance.view("sys.services").num_rows == 0
    assert instance.view("sys.conversation_endpoints").num_rows == 0
    for use in (queue.count, queue.clear, queue.drop):
        with pytest.raises(BrokerError, match=r"15151: the (queue 'dbo.Jobs'|service 'Jobs') does not exist"):
            use()
    again = instance.queue("Jobs")
    again.put(b"new")
    assert values(again) == [b"new"]


def test_the_queue_of_failed_messages_is_dropped_with_its_queue(instance: Instance) -> None:
    """Unless something else uses it."""
    queue = instance.queue("Jobs", on_poison="move")
    queue.put(b"failed")
    with queue.take() as job:
        job.fail()
    queue.drop()
    assert instance.view("sys.service_queues").num_rows == 0
    queue = instance.queue("Jobs", on_poison="move")
    instance.queue("Others", on_poison="move", poison_queue="Jobs_failed")
    queue.drop()
    assert set(instance.view("sys.service_queues")["name"].to_pylist()) == {"Others", "Jobs_failed"}


def test_the_errors_of_statements_say_how_to_drop_a_work_queue(instance: Instance, sales: Database) -> None:
    sales.queue("Jobs").put(b"one")
    for drop in (sales.drop_queue, sales.drop_service):
        with pytest.raises(
            BrokerError, match=r"Database\.queue\('dbo\.Jobs'\)\.drop\(\) drops a work queue with its service"
        ):
            drop("Jobs")
    with sales.transaction() as t:
        t.begin_dialog("//Shop", "//Orders")
    with pytest.raises(
        BrokerError, match=r"with service_id (\d+); first end them with Transaction\.end_conversation"
    ) as error:
        sales.drop_service("//Shop")
    assert "Database.queue" not in str(error.value)
    endpoints = instance.view("sys.conversation_endpoints").to_pylist()
    ids = {row["name"]: row["service_id"] for row in instance.view("sys.services").to_pylist()}
    assert f"with service_id {ids['//Shop']};" in str(error.value)
    assert sum(row["service_id"] == ids["//Shop"] for row in endpoints) == 1


def test_a_lost_job_leaves_the_conversation_to_the_other(instance: Instance, queue: WorkQueue, clock: Clock) -> None:
    queue.put(b"one")
    with pytest.raises(LeaseLostError), queue.take(lease=60):
        clock.advance(seconds=60)
        with queue.take() as job:
            assert job.value == b"one"
    assert rows(instance) == 0


def test_dialogs_of_other_services_stay_open(instance: Instance, sales: Database) -> None:
    queue = sales.queue("Jobs")
    with sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", "Jobs", contract="//ssbroker/queue")
        t.send(dialog, b"one")
    with queue.take() as job, job.transaction() as t:
        t.end_conversation(job.message.conversation_handle)
    with sales.transaction() as t:
        assert t.receive("Replies").num_rows == 1


@pytest.mark.parametrize("is_ended", [False, True])
def test_nothing_is_left_after_a_job_that_another_method_takes(
    sales: Database, instance: Instance, *, is_ended: bool
) -> None:
    """The job may end the conversation itself, as it does for other senders."""
    queue = sales.queue("Jobs")
    for take in (queue.take, partial(sales.take, "Jobs"), partial(sales.take, "Jobs", top=1)):
        queue.put(b"one")
        with take() as job, job.transaction() as t:
            if is_ended:
                t.end_conversation(job.message.conversation_handle)
        assert rows(instance) == 0


def test_a_conversation_stays_while_it_has_messages(sales: Database, instance: Instance) -> None:
    sales.queue("Jobs")
    with sales.transaction() as t:
        dialog = t.begin_dialog("Jobs", "Jobs", contract="//ssbroker/queue")
        for body in (b"one", b"two"):
            t.send(dialog, body)
    for body in (b"one", b"two"):
        with sales.take("Jobs", top=1, timeout=0) as job:
            assert job.value == body
    assert rows(instance) == 0


def test_a_failure_at_the_end_of_a_job_loses_no_message(
    instance: Instance, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(b"one")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(work_queue_conversations, "end_with_job", fail)
        with pytest.raises(ZeroDivisionError), queue.take():
            pass
    assert queue.count() == 1
    with instance.database("Queues").transaction() as t:
        assert t.receive_one("Jobs") is None  # leased until its lease ends


def sent_from_shop(sales: Database, *bodies: bytes) -> uuid.UUID:
    """Sends messages to a work queue from another service."""
    with sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", "Jobs", contract="//ssbroker/queue")
        for body in bodies:
            t.send(dialog, body)
    return dialog


def open_endpoints(instance: Instance) -> int:
    return sum(row["state"] != "CD" for row in instance.view("sys.conversation_endpoints").to_pylist())


def test_the_end_of_a_conversation_is_no_job(instance: Instance, sales: Database) -> None:
    queue = sales.queue("Jobs")
    queue.put({"n": 1}, codec="json")
    with sales.transaction() as t:
        message = t.receive_one("Jobs")
        assert message is not None
        t.end_conversation(message.conversation_handle)
    assert values(queue) == []
    assert open_endpoints(instance) == queue.count() == 0
    assert instance.view("sys.dm_broker_leases").num_rows == 0


@pytest.mark.parametrize("error", [None, (12, "out of stock")])
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_the_end_of_a_sender_ends_the_conversation(
    instance: Instance, sales: Database, when: str, error: tuple[int, str] | None
) -> None:
    """Its messages are processed nevertheless, also if an earlier attempt failed."""
    queue = sales.queue("Jobs", retry_after=0)
    dialog = sent_from_shop(sales, b"one", b"two")

    def end(now: str) -> None:
        if when == now:
            with sales.transaction() as t:
                t.end_conversation(dialog, error=error)

    end("before")
    with pytest.raises(ZeroDivisionError), queue.take(timeout=0) as job:
        raise ZeroDivisionError
    with queue.take(timeout=0) as job:
        end("during")
        assert [message.message_body for message in job.messages] == [b"one", b"two"]
    end("after")
    queue.put(b"next")
    assert values(queue) == [b"next"]
    assert open_endpoints(instance) == queue.count() == 0
    assert instance.view("sys.dm_broker_leases").num_rows == 0


@pytest.mark.parametrize("is_first", [False, True])
def test_a_job_may_end_the_conversation_that_its_sender_ends(
    instance: Instance, sales: Database, *, is_first: bool
) -> None:
    queue = sales.queue("Jobs")
    dialog = sent_from_shop(sales, b"one")
    if is_first:
        with sales.transaction() as t:
            t.end_conversation(dialog)
    with queue.take(timeout=0) as job, job.transaction() as t:
        t.end_conversation(job.message.conversation_handle)
    if not is_first:
        with sales.transaction() as t:
            t.end_conversation(dialog)
    assert values(queue) == []
    assert open_endpoints(instance) == 0


def test_a_timer_is_no_job_and_ends_nothing(instance: Instance, sales: Database, clock: Clock) -> None:
    queue = sales.queue("Jobs")
    dialog = sent_from_shop(sales, b"one")
    with queue.take(timeout=0) as job, job.transaction() as t:
        t.begin_conversation_timer(job.message.conversation_handle, 60)
    clock.advance(seconds=60)
    instance.run_due()
    assert queue.count() == 1
    assert values(queue) == []
    assert queue.count() == 0
    with sales.transaction() as t:
        t.send(dialog, b"two")
    assert values(queue) == [b"two"]


def test_a_lease_of_the_database_gets_all_messages(sales: Database) -> None:
    sales.queue("Jobs")
    dialog = sent_from_shop(sales, b"one")
    with sales.transaction() as t:
        t.end_conversation(dialog)
    with sales.take("Jobs", timeout=0) as job:
        assert [message.message_body for message in job.messages] == [b"one", None]


def test_a_waiting_worker_is_not_woken_by_the_end_of_a_conversation(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "broker", create=True) as instance:
        database = instance.create_database("Shop")
        queue = database.queue("Jobs")
        database.create_queue("Replies")
        database.create_service("//Shop", queue="Replies")
        dialog = sent_from_shop(database, b"one")
        assert values(queue) == [b"one"]
        got: list[Any] = []

        def work() -> None:
            with queue.take() as job:
                got.append(job.value)

        thread = threading.Thread(target=work)
        thread.start()
        with database.transaction() as t:
            t.end_conversation(dialog)
        while open_endpoints(instance):
            threading.Event().wait(0.01)
        queue.put(b"two")
        thread.join(30.0)
        assert got == [b"two"]


def test_a_queue_is_created_once(instance: Instance, queue: WorkQueue) -> None:
    queue.put(b"one")
    assert values(instance.queue("Jobs")) == [b"one"]
    assert [database.name for database in instance.databases] == ["msdb", "Queues"]
    assert repr(queue) == "WorkQueue('Jobs', database='Queues')"
    assert queue.name == "Jobs"


def test_an_existing_queue_and_its_service_are_used(instance: Instance, sales: Database) -> None:
    sales.create_queue("Jobs")
    sales.queue("Jobs").put(b"one")
    assert instance.view("dbo.Jobs")["message_body"].to_pylist() == [b"one"]
    sales.create_queue("Other")
    sales.create_service("Replies", queue="Other")
    with pytest.raises(
        BrokerError, match=r"^the service 'Replies' exists on the queue \[dbo\]\.\[Other\]; choose another"
    ):
        sales.queue("Replies")
    sales.queue("emails.high")
    with pytest.raises(BrokerError, match=r"^the service 'emails.high' exists on the queue \[emails\]\.\[high\]; "):
        sales.queue("[emails.high]")


def test_the_queue_of_another_service_does_not_become_a_work_queue(instance: Instance, sales: Database) -> None:
    """Its workers would take the messages of dialogs as jobs."""
    for create in (True, False):
        with pytest.raises(BrokerError, match="the queue 'Orders' is not a work queue: it has the service '//Orders'"):
            sales.queue("Orders", create=create)
    assert "Orders" not in instance.view("sys.services")["name"].to_pylist()
    sales.queue("Jobs")
    sales.create_service("//Urgent", queue="Jobs", contracts=["//ssbroker/queue"])
    sales.queue("Jobs").put(b"one")


def test_failed_messages_are_not_moved_to_a_work_queue_by_chance(instance: Instance) -> None:
    """Its workers would process them as messages of their own; a queue that is named is meant."""
    other = instance.queue("Jobs_failed")
    with pytest.raises(
        BrokerError,
        match=r"Jobs_failed\], which has the service 'Jobs_failed': programs that receive from this queue would",
    ):
        instance.queue("Jobs", on_poison="move")
    with pytest.raises(BrokerError, match="15151"):
        instance.queue("Jobs", create=False)
    queue = instance.queue("Jobs", on_poison="move", poison_queue="Jobs_failed")
    queue.put(b"one")
    with queue.take() as job:
        job.fail()
    assert values(other) == [b"one"]
    instance.queue("Jobs", on_poison="move")


def test_queues_of_different_schemas_are_different(sales: Database) -> None:
    sales.queue("shop.Jobs").put(b"shop")
    sales.queue("Jobs").put(b"dbo")
    assert values(sales.queue("shop.Jobs")) == [b"shop"]
    assert values(sales.queue("dbo.Jobs")) == [b"dbo"]


@pytest.mark.parametrize("body", ["text", None, 1, {"a": 1}])
def test_other_objects_need_a_codec(queue: WorkQueue, body: object) -> None:
    with pytest.raises(SchemaError, match=r'expected bytes, got .*codec="json"'):
        queue.put(body)


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def test_a_transaction_of_another_type_is_refused(instance: Instance, queue: WorkQueue) -> None:
    wrong: Any = 5
    with pytest.raises(SchemaError, match=r"^transaction: expected Transaction, got int$"):
        queue.put(b"lost", transaction=wrong)
    with instance.database("Queues").transaction() as t:
        wrong = t.connection
        with pytest.raises(SchemaError, match=r"got a connection; pass the transaction itself$"):
            queue.put(b"lost", transaction=wrong)
    assert values(queue) == []


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 100_000], ids=lambda body: ascii(body[:4]))
def test_a_body_that_is_not_json_is_an_error_of_the_library(instance: Instance, queue: WorkQueue, body: bytes) -> None:
    with instance.database("Queues").transaction() as t:
        dialog = t.begin_dialog("Jobs", "Jobs", contract="//ssbroker/queue")
        t.send(dialog, body, message_type="application/json")
    with queue.take() as job:
        with pytest.raises(
            InputError, match=r"^message_body: expected JSON, because the message type is application/json: "
        ):
            assert job.value
        assert job.message.message_body == body


@pytest.mark.parametrize("body", [object(), float("nan"), "\ud800", {1, 2}, DEEP], ids=type)
def test_what_json_cannot_express_is_refused(queue: WorkQueue, body: object) -> None:
    with pytest.raises(OptionError, match="cannot be encoded as JSON"):
        queue.put(body, codec="json")
    with pytest.raises(OptionError, match="codec: expected 'json'"):
        queue.put(body, codec="pickle")  # type: ignore[arg-type]  # that is what is refused
    assert values(queue) == []


def test_a_json_body_that_is_too_large_is_refused(queue: WorkQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssbroker.broker.dialogs.send.BODY_MAX", 10)
    for body, codec in ((b"x" * 11, None), ("x" * 9, "json")):
        with pytest.raises(BrokerError) as refused:
            queue.put(body, codec=codec)  # type: ignore[arg-type]  # a literal
        assert refused.value.number == 8459
    queue.put("x" * 8, codec="json")
    assert values(queue) == ["x" * 8]


@pytest.mark.parametrize("poison_queue", ["a.b.c", "Other"])
def test_a_queue_whose_options_are_refused_is_not_created(instance: Instance, poison_queue: str) -> None:
    with pytest.raises((BrokerError, OptionError)):
        instance.queue("Other", on_poison="move", poison_queue=poison_queue)
    assert instance.view("sys.service_queues").num_rows == 0


PUT = """
from ssbroker import Instance
queue = Instance.open("broker", create=True).queue("Jobs")
queue.put({"resize": "cat.png"}, codec="json")
"""
TAKE = """
from ssbroker import Instance
with Instance.open("broker", create=True).queue("Jobs").take() as job:
    print(job.value["resize"])
"""


def test_another_process_gets_the_message_in_a_few_lines(tmp_path: Path) -> None:
    """Also if it starts first."""
    worker = subprocess.Popen([sys.executable, "-c", TAKE], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    subprocess.run([sys.executable, "-c", PUT], cwd=tmp_path, check=True)
    assert worker.communicate(timeout=120)[0] == "cat.png\n"
    assert worker.returncode == 0


def test_the_name_is_public() -> None:
    assert ssbroker.WorkQueue is WorkQueue


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_error_in_a_process_that_was_forked_in_a_transaction(instance: Instance) -> None:
    """The child inherits that its thread is in the block of a transaction."""
    queue = instance.queue("Jobs")
    with instance.database("Queues").transaction():
        child = os.fork()
        if child == 0:
            try:
                queue.put(b"two chairs")
            except StorageError as error:
                os._exit(0 if "was opened before this process was forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.put(b"a table")
