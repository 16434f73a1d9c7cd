"""Receiving with a lease: `Database.take` and `Job`."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import ssbroker
from ssbroker import BrokerError, Database, Instance, Job, LeaseLostError, OptionError
from ssbroker.broker.database import database_context
from ssbroker.protocol.events import Event, JobFailed, QueueDisabled
from tests.broker.conftest import QUEUE, START, TARGET, Clock

LEASE = 60.0


def send(database: Database, *bodies: bytes) -> uuid.UUID:
    """Sends messages on a new dialog, whose target gets a conversation group of its own."""
    with database.transaction() as t:
        dialog = t.begin_dialog("//Shop", TARGET)
        for body in bodies:
            t.send(dialog, body)
    return dialog


def bodies(job: Job) -> list[bytes | None]:
    return [message.message_body for message in job.messages]


def take(database: Database, *, lease: float = LEASE, top: int | None = None) -> Job:
    return database.take(QUEUE, lease=lease, timeout=0, top=top)


def queued(instance: Instance) -> list[bytes | None]:
    return instance.view(f"dbo.{QUEUE}")["message_body"].to_pylist()


def leases(instance: Instance) -> list[tuple[str, int, int]]:
    rows = instance.view("sys.dm_broker_leases").to_pylist()
    return [(row["state"], row["attempts"], row["failures"]) for row in rows]


def received(database: Database) -> list[bytes | None]:
    with database.transaction() as t:
        return t.receive(QUEUE, groups=None)["message_body"].to_pylist()


def fail(database: Database) -> list[bytes | None]:
    """Fails in a job; returns its messages."""
    with pytest.raises(ZeroDivisionError), take(database) as job:
        assert job
        raise ZeroDivisionError
    return bodies(job)


def is_on(instance: Instance) -> bool:
    rows = instance.view("sys.service_queues").to_pylist()
    return bool(next(row["is_receive_enabled"] for row in rows if row["name"] == QUEUE))


def test_the_end_of_the_block_acknowledges_the_messages(instance: Instance, sales: Database) -> None:
    send(sales, b"one", b"two")
    with take(sales) as job:
        assert job
        assert bodies(job) == [b"one", b"two"]
        assert queued(instance) == [b"one", b"two"]
        assert leases(instance) == [("LEASED", 1, 0)]
    assert queued(instance) == []
    assert leases(instance) == []


def test_a_job_without_messages_is_false(sales: Database) -> None:
    with take(sales) as job:
        assert not job
        assert job.messages == ()
        for use in (lambda: job.message, lambda: job.value, lambda: job.attempt, job.retry):
            with pytest.raises(BrokerError, match="the job has no messages; check `if job:` first"):
                use()
        with pytest.raises(BrokerError, match="the job has no messages"), job.transaction():
            pass
        with pytest.raises(BrokerError, match="if job:"):
            assert job.attempt


def test_effects_and_acknowledgement_are_one_commit(instance: Instance, sales: Database) -> None:
    send(sales, b"one")
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE done (body)")
    with take(sales) as job:
        with pytest.raises(ZeroDivisionError), job.transaction() as t:
            t.connection.execute("INSERT INTO done VALUES ('rolled back')")
            raise ZeroDivisionError
        assert queued(instance) == [b"one"]
        with job.transaction() as t:
            t.connection.execute("INSERT INTO done VALUES (?)", (job.message.message_body,))
            t.send(job.message.conversation_handle, b"answer")
            t.end_conversation(job.message.conversation_handle)
        with pytest.raises(BrokerError, match="the job has ended"), job.transaction():
            pass
    with sales.transaction() as t:
        assert t.connection.execute("SELECT body FROM done").fetchall() == [(b"one",)]
        assert t.receive("Replies")["message_body"].to_pylist() == [b"answer", None]
    assert queued(instance) == []


def test_no_other_receiver_gets_messages_of_the_group(instance: Instance, sales: Database) -> None:
    first = send(sales, b"one")
    with take(sales) as job:
        with sales.transaction() as t:
            t.send(first, b"more of the group")
        assert received(sales) == []
        with sales.transaction() as t:
            assert t.receive_one(QUEUE) is None
            assert t.get_conversation_group(QUEUE) is None
            assert t.receive_one(QUEUE, conversation_handle=job.message.conversation_handle) is None
            assert t.receive_one(QUEUE, conversation_group_id=job.conversation_group_id) is None
        with take(sales) as other:
            assert not other
        send(sales, b"other group")
        with take(sales) as other:
            assert bodies(other) == [b"other group"]
        send(sales, b"another")
        assert received(sales) == [b"another"]
        assert queued(instance) == [b"one", b"more of the group"]
    assert received(sales) == [b"more of the group"]


def test_others_write_while_a_job_runs(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", lock_timeout=0.0) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue(QUEUE)
        sales.create_service(TARGET, queue=QUEUE)
        sales.create_service("//Shop", queue=QUEUE)
        send(sales, b"slow")
        with sales.take(QUEUE), Instance.open(tmp_path / "shop", lock_timeout=0.0) as other:
            send(other.database("Sales"), b"meanwhile")


def test_an_exception_gives_the_messages_back_at_once(instance: Instance, sales: Database) -> None:
    send(sales, b"one", b"two")
    send(sales, b"next group")
    assert fail(sales) == [b"one", b"two"]
    assert leases(instance) == [("READY", 1, 1)]
    with take(sales) as job:
        assert bodies(job) == [b"one", b"two"]
        assert job.attempt == 2
    assert leases(instance) == []
    assert received(sales) == [b"next group"]


def test_given_back_messages_are_received_without_a_lease_too(instance: Instance, sales: Database) -> None:
    dialog = send(sales, b"one")
    fail(sales)
    assert received(sales) == [b"one"]
    with sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)


def test_the_end_of_the_lease_gives_the_messages_to_another(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE done (by)")
    with take(sales) as slow:
        clock.advance(seconds=LEASE)
        with take(sales) as fast:
            assert bodies(fast) == [b"one"]
            assert fast.attempt == 2
            assert leases(instance) == [("LEASED", 2, 1)]
            with (
                pytest.raises(
                    LeaseLostError, match=r"is lost: it ended, and another receiver took the messages.* longer lease"
                ),
                slow.transaction() as t,
            ):
                t.connection.execute("INSERT INTO done VALUES ('slow')")
            with fast.transaction() as t:
                t.connection.execute("INSERT INTO done VALUES ('fast')")
    with sales.transaction() as t:
        assert t.connection.execute("SELECT by FROM done").fetchall() == [("fast",)]
    assert queued(instance) == []
    assert leases(instance) == []


def test_a_job_commits_after_the_end_of_its_lease_if_nobody_has_taken_the_messages(
    sales: Database, clock: Clock
) -> None:
    send(sales, b"one")
    with take(sales) as job:
        clock.advance(seconds=10 * LEASE)
        with job.transaction():
            pass
    assert received(sales) == []


def test_a_job_commits_after_the_background_has_freed_its_ended_lease(
    instance: Instance, sales: Database, clock: Clock
) -> None:
    send(sales, b"one", b"two")
    with take(sales, top=1) as job:
        clock.advance(seconds=LEASE)
        instance.run_due()
        assert leases(instance) == [("READY", 1, 1)]
        with job.transaction():
            pass
    assert leases(instance) == []
    with take(sales) as job:
        clock.advance(seconds=LEASE)
        instance.run_due()
        job.extend(LEASE)
        assert leases(instance) == [("LEASED", 1, 1)]
        assert fail_to_take(sales)
    assert queued(instance) == []


def test_a_job_whose_lease_the_background_thread_has_freed_commits(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as instance:
        sales = instance.create_database("Sales")
        sales.create_queue(QUEUE)
        sales.create_service(TARGET, queue=QUEUE)
        sales.create_service("//Shop", queue=QUEUE)
        send(sales, b"one")
        with sales.take(QUEUE, lease=0.001) as job:
            while leases(instance) != [("READY", 1, 1)]:
                threading.Event().wait(0.01)
            with job.transaction():
                pass
        assert queued(instance) == []


@pytest.mark.parametrize("is_freed", [False, True])
def test_a_failure_after_the_end_of_the_lease_counts_once(
    instance: Instance, sales: Database, clock: Clock, *, is_freed: bool
) -> None:
    send(sales, b"one")
    with pytest.raises(ZeroDivisionError), take(sales):
        clock.advance(seconds=LEASE)
        if is_freed:
            instance.run_due()
        raise ZeroDivisionError
    assert leases(instance) == [("READY", 1, 1)]


@pytest.mark.parametrize("back", [LEASE, 2 * LEASE - 1])
def test_a_lease_lasts_longer_by_what_the_clock_is_set_back(sales: Database, clock: Clock, back: float) -> None:
    send(sales, b"one")
    with pytest.raises(LeaseLostError), take(sales):
        clock.advance(seconds=LEASE - 1)
        clock.advance(seconds=-back)
        clock.advance(seconds=back)
        assert received(sales) == []
        clock.advance(seconds=1)
        assert received(sales) == [b"one"]


def test_a_receive_after_the_end_of_the_lease_takes_the_messages(sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    with pytest.raises(LeaseLostError, match="another receiver"), take(sales):
        clock.advance(seconds=LEASE)
        assert received(sales) == [b"one"]


def test_the_end_of_the_conversation_ends_the_lease(instance: Instance, sales: Database) -> None:
    send(sales, b"one")
    with (
        pytest.raises(
            LeaseLostError, match=r"is lost: the messages were removed.* ended or moved. Nothing was committed$"
        ),
        take(sales) as job,
        sales.transaction() as t,
    ):
        t.end_conversation(job.message.conversation_handle)
    assert leases(instance) == [("READY", 1, 0)]
    send(sales, b"two")
    with take(sales) as job:
        assert bodies(job) == [b"two"]


def test_a_moved_conversation_is_processed_once(sales: Database) -> None:
    """Another receiver gets its messages by its new group; only one of the two commits."""
    send(sales, b"one")
    send(sales, b"two")
    with pytest.raises(LeaseLostError), take(sales) as job:
        with sales.transaction() as t:
            group = t.get_conversation_group(QUEUE)
            assert group is not None
            t.move_conversation(job.message.conversation_handle, group)
        assert {*received(sales)} == {b"one", b"two"}


def test_a_lease_can_be_extended(sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    with take(sales) as job:
        assert job.lease_ends_at == START + timedelta(seconds=LEASE)
        clock.advance(seconds=LEASE - 1)
        job.extend(LEASE)
        assert job.lease_ends_at == START + timedelta(seconds=2 * LEASE - 1)
        clock.advance(seconds=LEASE - 1)
        assert received(sales) == []
        clock.advance(seconds=1)
        with take(sales), pytest.raises(LeaseLostError):
            job.extend(LEASE)
        with suppress(LeaseLostError), job.transaction():
            pytest.fail("two jobs have committed")


@pytest.mark.parametrize("end", [Job.fail, Job._give_back])
def test_a_job_that_ends_while_another_thread_extends_it_stays_over(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch, end: Callable[[Job], None]
) -> None:
    """Otherwise its messages would be hidden again."""
    send(sales, b"one")

    def end_first(seconds: float, **_options: object) -> float:
        end(job)
        return seconds

    with take(sales) as job, monkeypatch.context() as patched:
        patched.setattr("ssbroker.broker.job.duration_seconds", end_first)
        with pytest.raises(BrokerError, match="the job has ended"):
            job.extend(600)
    assert [state for state, *_ in leases(instance)] == ["READY"]


@pytest.mark.parametrize("jump", [-timedelta(days=400), timedelta(days=400)])
def test_a_clock_that_jumps_neither_blocks_a_group_nor_repeats_effects(
    sales: Database, clock: Clock, jump: timedelta
) -> None:
    send(sales, b"one")
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE done (attempt)")
    with suppress(LeaseLostError), take(sales) as first:
        clock.now += jump
        with take(sales) as second:
            assert bodies(second) == [b"one"]
            with second.transaction() as t:
                t.connection.execute("INSERT INTO done VALUES (2)")
        with first.transaction() as t:
            t.connection.execute("INSERT INTO done VALUES (1)")
    with sales.transaction() as t:
        assert t.connection.execute("SELECT attempt FROM done").fetchall() == [(2,)]


def test_a_clock_that_is_adjusted_keeps_the_lease(sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    with take(sales):
        for seconds in (-LEASE + 1, 2 * LEASE - 2):
            clock.advance(seconds=seconds)
            assert received(sales) == []


def test_a_retry_hides_the_group_and_keeps_its_place(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"one", b"two")
    send(sales, b"next group")
    with take(sales) as job:
        job.retry(after=30)
        with pytest.raises(BrokerError, match="the job has ended"):
            job.retry()
    assert leases(instance) == [("WAITING", 1, 0)]
    assert instance.run_due() == START + timedelta(seconds=30)
    with take(sales) as other:
        assert bodies(other) == [b"next group"]
    assert fail_to_take(sales)
    send(sales, b"later group")
    clock.advance(seconds=30)
    with take(sales) as job:
        assert bodies(job) == [b"one", b"two"]
        assert job.attempt == 2
        job.retry()
    with take(sales) as job:
        assert bodies(job) == [b"one", b"two"]
        assert job.attempt == 3
    assert received(sales) == [b"later group"]


@pytest.mark.parametrize("after", [float("inf"), float("nan"), 366 * 24 * 3600 + 1, 10**400, -1, "30"])
def test_an_invalid_wait_is_refused_and_the_job_goes_on(sales: Database, after: Any) -> None:
    send(sales, b"one")
    with take(sales) as job:
        with pytest.raises(OptionError, match=r"^after: expected .*seconds"):
            job.retry(after=after)
        job.extend(60)


def fail_to_take(database: Database) -> bool:
    with take(database) as job:
        return not job


def test_a_job_takes_up_to_the_requested_messages(instance: Instance, sales: Database) -> None:
    send(sales, b"one", b"two", b"three")
    with take(sales, top=2) as job:
        assert bodies(job) == [b"one", b"two"]
    assert queued(instance) == [b"three"]


def test_five_failures_disable_the_queue(instance: Instance, sales: Database) -> None:
    told: list[Event] = []
    instance.subscribe(told.append, QueueDisabled)
    send(sales, b"poison")
    for _ in range(4):
        fail(sales)
    assert (is_on(instance), told) == (True, [])
    fail(sales)
    assert (is_on(instance), len(told)) == (False, 1)
    with (
        pytest.raises(BrokerError, match=r"9617.*Poison message handling disabled the queue.*: ZeroDivisionError"),
        take(sales),
    ):
        pass
    (row,) = instance.view("sys.dm_broker_failures").to_pylist()
    assert row["conversation_handle"] == instance.view(f"dbo.{QUEUE}")["conversation_handle"][0].as_py()


@pytest.mark.parametrize(("failures", "is_freed"), [(0, False), (4, False), (0, True), (3, True)])
def test_a_job_that_fails_for_good_disables_the_queue(
    instance: Instance, sales: Database, clock: Clock, failures: int, *, is_freed: bool
) -> None:
    told: list[Event] = []
    instance.subscribe(told.append, QueueDisabled)
    send(sales, b"poison")
    for _ in range(failures):
        fail(sales)
    with take(sales) as job:
        if is_freed:
            clock.advance(seconds=LEASE)
            instance.run_due()
        job.fail("no such planet")
        for use in (job.fail, job.retry):
            with pytest.raises(BrokerError, match="the job has ended"):
                use()
    assert (is_on(instance), len(told)) == (False, 1)
    assert queued(instance) == [b"poison"]
    with (
        pytest.raises(BrokerError, match=r"9617.*, with a message of the conversation .*: no such planet$"),
        take(sales),
    ):
        pass
    sales.alter_queue(QUEUE, status=True)
    with take(sales) as job:
        assert (bodies(job), job.attempt) == ([b"poison"], failures + 2)


def test_a_job_that_fails_for_good_moves_its_messages(instance: Instance, sales: Database) -> None:
    sales.create_queue("Failed")
    sales.alter_queue(QUEUE, on_poison="move", poison_queue="Failed")
    send(sales, b"one", b"two")
    send(sales, b"other")
    with take(sales) as job:
        job.fail()
    assert (queued(instance), is_on(instance)) == ([b"other"], True)
    assert instance.view("sys.dm_broker_failures")["error"].to_pylist() == ["the job failed"]
    assert sales.requeue(QUEUE) == 2
    with take(sales) as job:
        assert (bodies(job), job.attempt) == ([b"one", b"two"], 1)


def test_without_poison_message_handling_a_job_that_fails_for_good_is_given_back(
    instance: Instance, sales: Database
) -> None:
    sales.alter_queue(QUEUE, poison_message_handling=False)
    send(sales, b"one")
    with take(sales) as job:
        job.fail()
    assert leases(instance) == [("READY", 1, 1)]
    assert received(sales) == [b"one"]


def test_a_lost_job_does_not_fail_for_good(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    with pytest.raises(LeaseLostError), take(sales) as job:
        clock.advance(seconds=LEASE)
        with take(sales) as other:
            with pytest.raises(LeaseLostError):
                job.fail()
            assert bodies(other) == [b"one"]
    assert is_on(instance)


def test_each_failed_attempt_is_logged_once(
    instance: Instance, sales: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[JobFailed] = []
    instance.subscribe(told.append, JobFailed)
    queue = sales.queue("Jobs")
    put = queue.put(b"one")
    for attempt, wait in enumerate((1, 4, 16, 64), start=1):
        caplog.clear()
        with pytest.raises(OSError, match="boom"), queue.take() as job:
            raise OSError("boom")
        (record,), event = caplog.records, told[-1]
        retry_at = clock.now + timedelta(seconds=wait)
        assert (event.queue, event.conversation_id, event.attempt) == ("dbo.Jobs", put, attempt)
        assert (event.conversation_handle, event.retry_at) == (job.message.conversation_handle, retry_at)
        assert record.levelname == "WARNING"
        assert record.getMessage() == (
            f"Broker:Job Failed: database=Sales, queue=dbo.Jobs, conversation_id={put}, "
            f"conversation_handle={event.conversation_handle}, attempt={attempt}, error=OSError: boom, retry_at={retry_at}"
        )
        assert record.exc_info is not None
        assert record.exc_info[1] is event.exception
        clock.advance(seconds=wait)
    caplog.clear()
    with pytest.raises(OSError, match="boom"), queue.take():
        raise OSError("boom")
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "Broker:Queue Disabled: database=Sales"
    ]
    assert len(told) == 4


def test_a_lost_lease_is_logged(sales: Database, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    send(sales, b"one")
    with suppress(LeaseLostError), take(sales):
        clock.advance(seconds=LEASE)
        with take(sales) as job:
            assert job.attempt == 2
    (record,) = caplog.records
    assert "attempt=1, error=the lease ended, because process" in record.getMessage()
    assert record.exc_info is None


def test_failed_attempts_of_a_queue_are_logged_20_times_a_minute(
    sales: Database, caplog: pytest.LogCaptureFixture
) -> None:
    sales.alter_queue(QUEUE, poison_message_handling=False)
    send(sales, b"one")
    for _ in range(25):
        fail(sales)
    assert len(caplog.records) == 20


def test_a_retry_and_an_interrupt_are_not_logged(sales: Database, caplog: pytest.LogCaptureFixture) -> None:
    send(sales, b"one")
    with take(sales) as job:
        job.retry()
    with suppress(KeyboardInterrupt), take(sales):
        raise KeyboardInterrupt
    assert caplog.records == []


@pytest.mark.parametrize("fails", [lambda job: job.fail("x" * 200_000), lambda _: OSError("x" * 200_000)])
@pytest.mark.parametrize("is_handled", [True, False])
def test_a_long_error_is_shortened(
    instance: Instance,
    sales: Database,
    caplog: pytest.LogCaptureFixture,
    fails: Callable[[Job], Exception | None],
    *,
    is_handled: bool,
) -> None:
    told: list[JobFailed | QueueDisabled] = []
    instance.subscribe(told.append, JobFailed, QueueDisabled)
    sales.alter_queue(QUEUE, poison_message_handling=is_handled)
    send(sales, b"one")
    for _ in range(5):
        with suppress(OSError, BrokerError), take(sales) as job:
            error = fails(job)
            if error is not None:
                raise error
    assert told[-1].error is not None
    assert (len(told[-1].error), told[-1].error[-6:]) == (2_000, "xx ...")
    assert max(len(record.getMessage()) for record in caplog.records) < 2_400
    if is_handled:
        assert instance.view("sys.dm_broker_failures")["error"].to_pylist() == [told[-1].error]


@pytest.mark.parametrize("reason", ["", " \n"])
def test_an_empty_reason_is_replaced(instance: Instance, sales: Database, reason: str) -> None:
    """Such as the text of TimeoutError()."""
    send(sales, b"one")
    with take(sales) as job:
        job.fail(reason)
    assert instance.view("sys.dm_broker_failures")["error"].to_pylist() == ["the job failed"]


@pytest.mark.parametrize("reason", [None, 5, "\ud800"])
def test_the_reason_of_a_failure_is_text(sales: Database, reason: Any) -> None:
    send(sales, b"one")
    with take(sales) as job, pytest.raises(OptionError, match=r"^reason: expected a string"):
        job.fail(reason)
    assert received(sales) == []


def test_lost_leases_count_as_failures(instance: Instance, sales: Database, clock: Clock) -> None:
    """Like those of killed processes, whose jobs never end."""
    send(sales, b"poison")
    abandoned = [take(sales) for _ in range(5)]
    for job in abandoned:
        job.__enter__()
        assert job
        clock.advance(seconds=LEASE)
    with (
        pytest.raises(BrokerError, match=f"9617.*the lease ended, because process {os.getpid()} was killed"),
        take(sales),
    ):
        pass
    assert not is_on(instance)
    sales.alter_queue(QUEUE, status=True)
    with take(sales) as job:
        assert job.attempt == 6


def test_the_background_counts_lost_leases(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    job = take(sales)
    job.__enter__()
    assert instance.run_due() == START + timedelta(seconds=LEASE)
    clock.advance(seconds=LEASE)
    assert instance.run_due() != START + timedelta(seconds=LEASE)
    assert leases(instance) == [("READY", 1, 1)]


def test_failures_of_different_messages_do_not_add_up(instance: Instance, sales: Database, clock: Clock) -> None:
    """A killed process loses all its leases at once, which does not mean that a message is at fault."""
    for number in range(12):
        send(sales, b"%d" % number)
    for _ in range(12):
        take(sales).__enter__()
    clock.advance(seconds=LEASE)
    with take(sales) as job:
        assert bodies(job) == [b"0"]
    assert is_on(instance)


def test_an_acknowledgement_resets_the_count(instance: Instance, sales: Database) -> None:
    dialog = send(sales, b"one")
    for _ in range(4):
        fail(sales)
    with take(sales):
        pass
    with sales.transaction() as t:
        t.send(dialog, b"two")
    for _ in range(4):
        fail(sales)
    assert is_on(instance)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_is_no_failure(instance: Instance, sales: Database, interrupt: type[BaseException]) -> None:
    send(sales, b"one")
    for _ in range(6):
        with pytest.raises(interrupt), take(sales) as job:
            assert job
            raise interrupt
    assert is_on(instance)
    assert leases(instance) == [("READY", 6, 0)]


def test_without_poison_message_handling_failures_only_count(instance: Instance, sales: Database) -> None:
    sales.alter_queue(QUEUE, poison_message_handling=False)
    send(sales, b"one")
    for _ in range(7):
        fail(sales)
    with take(sales) as job:
        assert job.attempt == 8


def test_a_queue_that_retains_messages_marks_them(instance: Instance, sales: Database) -> None:
    sales.alter_queue(QUEUE, retention=True)
    send(sales, b"one")
    with take(sales) as job:
        assert bodies(job) == [b"one"]
    assert instance.view(f"dbo.{QUEUE}")["status"].to_pylist() == [0]
    assert fail_to_take(sales)


def test_numbers_of_acknowledged_messages_are_not_reused(instance: Instance, sales: Database) -> None:
    send(sales, b"one")
    (number,) = (int(row["queuing_order"]) for row in instance.view(f"dbo.{QUEUE}").to_pylist())
    with take(sales):
        pass
    send(sales, b"two")
    assert instance.view(f"dbo.{QUEUE}")["queuing_order"].to_pylist() == [number + 1]


def test_leases_of_ended_conversations_are_forgotten(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"one")
    fail(sales)
    assert received(sales) == [b"one"]
    with sales.transaction() as t:
        for row in instance.view("sys.conversation_endpoints").to_pylist():
            t.end_conversation(uuid.UUID(bytes=row["conversation_handle"]), cleanup=True)
    assert len(leases(instance)) == 1
    send(sales, b"two")
    with take(sales) as job:
        job.retry(after=1)
    clock.advance(seconds=1)
    instance.run_due()
    assert leases(instance) == [("READY", 1, 0)]


def test_a_waiting_job_gets_a_message_at_once(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as instance:
        sales = instance.create_database("Sales")
        sales.create_queue(QUEUE)
        sales.create_service(TARGET, queue=QUEUE)
        sales.create_service("//Shop", queue=QUEUE)
        got: list[list[bytes | None]] = []

        def work() -> None:
            with sales.take(QUEUE) as job:
                got.append(bodies(job))

        thread = threading.Thread(target=work)
        thread.start()
        send(sales, b"one")
        thread.join(30.0)
        assert got == [[b"one"]]


def test_a_waiting_job_gets_messages_when_a_lease_ends(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue(QUEUE)
        sales.create_service(TARGET, queue=QUEUE)
        sales.create_service("//Shop", queue=QUEUE)
        send(sales, b"one")
        sales.take(QUEUE, lease=0.2).__enter__()
        before = datetime.now(UTC)
        with sales.take(QUEUE, timeout=60.0) as job:
            assert bodies(job) == [b"one"]
        assert timedelta(0) < datetime.now(UTC) - before < timedelta(seconds=4)  # less than the interval of checks


def test_activated_procedures_work_in_parallel(tmp_path: Path) -> None:
    """As many jobs run at the same time as there may be readers."""
    readers = 3
    together = threading.Barrier(readers)
    done = threading.Semaphore(0)

    def procedure(database: Database) -> None:
        with database.take(QUEUE, timeout=0) as job:
            if job:
                together.wait(30.0)
                done.release()

    with Instance.create(tmp_path / "shop", name="shop") as instance:
        sales = instance.create_database("Sales")
        sales.create_queue(QUEUE)
        sales.create_service(TARGET, queue=QUEUE)
        sales.create_service("//Shop", queue=QUEUE)
        for number in range(readers):
            send(sales, b"%d" % number)
        sales.activate(QUEUE, procedure, max_queue_readers=readers)
        assert all(done.acquire(timeout=30.0) for _ in range(readers))


def test_a_job_is_entered_once_and_used_while_it_runs(sales: Database) -> None:
    send(sales, b"one")
    job = take(sales)
    uses: list[Callable[[], object]] = [
        lambda: bool(job),
        lambda: job.messages,
        lambda: job.message,
        lambda: job.value,
        lambda: job.attempt,
        lambda: job.lease_ends_at,
        lambda: job.conversation_group_id,
        lambda: job.extend(1),
        job.retry,
        lambda: job.transaction().__enter__(),
    ]
    for use in uses:
        with pytest.raises(BrokerError, match=r"^the job is not open: use it inside its `with` block$"):
            use()
    assert repr(job) == f"<Job of queue {QUEUE!r}, not open>"
    with job:
        assert "leased until 2026-11-21 00:01:00 UTC" in repr(job)
    with pytest.raises(BrokerError, match="only once"), job:
        pass
    assert "1 message, over" in repr(job)
    with pytest.raises(BrokerError, match="the job has ended"):
        job.extend(1)


@pytest.mark.parametrize(
    "options", [{"lease": 0}, {"lease": -1}, {"lease": float("nan")}, {"lease": "1"}, {"timeout": -1}, {"top": 0}]
)
def test_options_are_checked(sales: Database, options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        sales.take(QUEUE, **options)  # type: ignore[arg-type]  # that is what is refused


@pytest.mark.parametrize("lease", [0, -1, 0.0, 1e-9, float("nan"), float("inf"), True, "1", None])
def test_a_lease_is_at_least_a_millisecond(sales: Database, lease: Any) -> None:
    with pytest.raises(OptionError) as refused:
        sales.take(QUEUE, lease=lease)
    assert str(refused.value) == (
        f"lease: expected a number of seconds from 0.001 to 31,622,400 (366 days); got {lease!r}"
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda sales, minute: sales.take(QUEUE, lease=minute),
        lambda sales, minute: sales.take(QUEUE, timeout=minute),
        lambda sales, minute: sales.queue("Jobs", retry_after=minute),
    ],
)
def test_a_timedelta_is_not_a_number_of_seconds(sales: Database, call: Callable[[Database, Any], object]) -> None:
    with pytest.raises(OptionError, match=r"number of seconds.*; pass the total_seconds\(\) of the timedelta$"):
        call(sales, timedelta(minutes=1))


def test_a_queue_is_taken_by_its_name(sales: Database) -> None:
    given: Any
    for given in (sales.queue("Jobs"), 5, ""):
        with pytest.raises(BrokerError, match=r"^208: .* is not a valid queue name; expected a name such as Orders"):
            sales.take(given)
    hint = r"\. A dot separates the schema from the name; write \[emails\.high\.now\] for a name that contains dots$"
    with pytest.raises(BrokerError, match=hint):
        sales.take("emails.high.now")


def test_a_waiting_job_is_false_when_the_instance_is_closed(tmp_path: Path) -> None:
    instance = Instance.create(tmp_path / "shop", name="shop")
    sales = instance.create_database("Sales")
    sales.create_queue(QUEUE)
    got: list[bool] = []

    def work() -> None:
        with sales.take(QUEUE) as job:
            got.append(bool(job))

    context = database_context(sales)
    queue_id = context.objects().queues["dbo", QUEUE].queue_id
    thread = threading.Thread(target=work)
    thread.start()
    while not context.commit_signals.waiting(queue_id):
        threading.Event().wait(0.01)
    instance.close()
    thread.join(30.0)
    assert got == [False]


def test_an_unknown_or_disabled_queue_is_an_error(sales: Database) -> None:
    with pytest.raises(BrokerError, match="15151"), sales.take("Nowhere"):
        pass
    sales.alter_queue(QUEUE, status=False)
    with pytest.raises(BrokerError, match="9617"), sales.take(QUEUE):
        pass


class Workers:
    """Workers whose jobs fail, overrun their leases, are abandoned or retried, with a clock that jumps."""

    def __init__(self, instance: Instance, database: Database, clock: Clock, source: random.Random) -> None:
        self.instance = instance
        self.database = database
        self.clock = clock
        self.source = source
        self.dialogs = [send(database, b"%d:0" % dialog) for dialog in range(4)]
        self.sent = [1] * 4
        self.running: list[Job] = []

    def step(self) -> None:
        steps: list[Callable[[], object]] = [self.send, self.take, self.take, self.wait, self.instance.run_due]
        if self.running:
            steps += [self.finish, self.end_otherwise, self.extend]
        self.source.choice(steps)()

    def send(self) -> None:
        dialog = self.source.randrange(len(self.dialogs))
        with self.database.transaction() as t:
            t.send(self.dialogs[dialog], b"%d:%d" % (dialog, self.sent[dialog]))
        self.sent[dialog] += 1

    def take(self) -> None:
        job = take(self.database, top=self.source.choice([None, 1, 2]))
        job.__enter__()
        if job:
            self.running.append(job)

    def wait(self) -> None:
        self.clock.advance(seconds=self.source.choice([1, 30, 61, 3600, -30, -3600]))

    def finish(self) -> None:
        with suppress(LeaseLostError):
            finish(self.database, self.any_job())

    def extend(self) -> None:
        with suppress(LeaseLostError):
            self.source.choice(self.running).extend(LEASE)

    def end_otherwise(self) -> None:
        """Fails, retries, or is killed."""
        job = self.any_job()
        match self.source.randrange(3):
            case 0:
                job.__exit__(ValueError, ValueError(), None)
            case 1:
                with suppress(LeaseLostError):
                    job.retry(after=self.source.choice([0, 5, 90]))

    def any_job(self) -> Job:
        return self.running.pop(self.source.randrange(len(self.running)))


@pytest.mark.parametrize("seed", range(20))
def test_random_workers_process_each_message_once_and_in_order(
    instance: Instance, sales: Database, clock: Clock, seed: int
) -> None:
    sales.alter_queue(QUEUE, poison_message_handling=False)
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE done (body)")
    workers = Workers(instance, sales, clock, random.Random(seed))
    for _ in range(150):
        workers.step()
    clock.now = START + timedelta(days=999)
    while True:
        with take(sales) as job:
            if not job:
                break
            finish(sales, job)
    with sales.transaction() as t:
        done = [body.decode() for (body,) in t.connection.execute("SELECT body FROM done ORDER BY rowid")]
    by_dialog: dict[int, list[int]] = defaultdict(list)
    for body in done:
        dialog, number = map(int, body.split(":"))
        by_dialog[dialog].append(number)
    assert dict(by_dialog) == {dialog: list(range(number)) for dialog, number in enumerate(workers.sent)}


def finish(database: Database, job: Job) -> None:
    with job.transaction() as t:
        t.connection.executemany("INSERT INTO done VALUES (?)", [(message.message_body,) for message in job.messages])


def test_names_are_public() -> None:
    assert issubclass(ssbroker.LeaseLostError, BrokerError)
    assert ssbroker.Job is Job


def test_a_lease_moves_with_its_service_to_another_queue(instance: Instance, sales: Database) -> None:
    """Otherwise its end would wake the receivers of the old queue only."""
    send(sales, b"one")
    sales.create_queue("New")
    with take(sales) as job:
        sales.alter_service(TARGET, queue="New")
        (lease,) = instance.view("sys.dm_broker_leases").to_pylist()
        queues = {row["object_id"]: row["name"] for row in instance.view("sys.service_queues").to_pylist()}
        assert queues[lease["queue_id"]] == "New"
        job.retry(after=600)
    with sales.take("New", timeout=0) as job:
        assert not job
