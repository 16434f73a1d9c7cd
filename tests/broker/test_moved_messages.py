"""Messages that fail again and again are moved to another queue: `on_poison="move"` and `requeue`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ssbroker import BrokerError, Database, Instance, LeaseLostError, OptionError, WorkQueue
from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs import poison_message_handling
from ssbroker.broker.metrics import Metrics
from ssbroker.broker.overview import overview_of
from ssbroker.protocol.events import ConversationMoved, Event, QueueDisabled
from tests.broker.conftest import QUEUE, START, TARGET, Clock

FAILED = "Failed"


@pytest.fixture(autouse=True)
def moving(sales: Database) -> None:
    sales.create_queue(FAILED)
    sales.alter_queue(QUEUE, on_poison="move", poison_queue=FAILED)


def send(database: Database, *bodies: bytes, dialog: uuid.UUID | None = None) -> uuid.UUID:
    """Sends on a new dialog, unless one is given."""
    with database.transaction() as t:
        handle = dialog or t.begin_dialog("//Shop", TARGET)
        for body in bodies:
            t.send(handle, body)
    return handle


def fail_job(database: Database, queue: str = QUEUE) -> None:
    with pytest.raises(ZeroDivisionError), database.take(queue, timeout=0) as job:
        assert job
        raise ZeroDivisionError


def fail_transaction(database: Database, queue: str = QUEUE) -> None:
    with pytest.raises(ZeroDivisionError), database.transaction() as t:
        assert t.receive(queue).num_rows
        raise ZeroDivisionError


def received(database: Database, queue: str = QUEUE) -> list[bytes | None]:
    with database.transaction() as t:
        return t.receive(queue, groups=None)["message_body"].to_pylist()


def queued(instance: Instance, queue: str = QUEUE) -> list[bytes | None]:
    return instance.view(f"dbo.{queue}", database="Sales")["message_body"].to_pylist()


def failed(instance: Instance) -> list[dict[str, Any]]:
    return instance.view("sys.dm_broker_failures", database="Sales").to_pylist()


def move(sales: Database, *bodies: bytes) -> uuid.UUID:
    """Sends messages on a new dialog, and fails with them five times; returns the receiver's handle."""
    send(sales, *bodies)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), sales.take(QUEUE, timeout=0) as job:
            raise ZeroDivisionError
    assert [message.message_body for message in job.messages] == [*bodies]
    return job.messages[0].conversation_handle


@pytest.mark.parametrize("fail", [fail_job, fail_transaction])
def test_five_failures_move_the_messages_and_the_queue_goes_on(
    instance: Instance, sales: Database, fail: Callable[[Database], None]
) -> None:
    send(sales, b"poison", b"and more of its group")
    send(sales, b"good")
    for _ in range(4):
        fail(sales)
    assert queued(instance, FAILED) == []
    fail(sales)
    assert queued(instance, FAILED) == [b"poison", b"and more of its group"]
    assert received(sales) == [b"good"]
    assert received(sales, FAILED) == [b"poison", b"and more of its group"]


@pytest.mark.parametrize("fail", [fail_job, fail_transaction])
def test_the_next_message_has_its_own_five_failures(
    instance: Instance, sales: Database, fail: Callable[[Database], None]
) -> None:
    send(sales, b"one")
    send(sales, b"two")
    for _ in range(9):
        fail(sales)
    assert (queued(instance), queued(instance, FAILED)) == ([b"two"], [b"one"])
    fail(sales)
    assert (queued(instance), queued(instance, FAILED)) == ([], [b"one", b"two"])


def test_a_named_conversation_is_moved_and_not_the_first(instance: Instance, sales: Database) -> None:
    send(sales, b"first")
    send(sales, b"named")
    handle = instance.view(f"dbo.{QUEUE}")["conversation_handle"][1].as_py()
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), sales.transaction() as t:
            assert t.receive(QUEUE, conversation_handle=handle).num_rows
            raise ZeroDivisionError
    assert (queued(instance), queued(instance, FAILED)) == ([b"first"], [b"named"])


def test_lost_leases_count(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"it kills its worker")
    for attempt in range(1, 6):
        job = sales.take(QUEUE, lease=60, timeout=0).__enter__()
        assert job.attempt == attempt
        clock.advance(seconds=61)
    instance.run_due()
    assert queued(instance, FAILED) == [b"it kills its worker"]
    (row,) = failed(instance)
    assert "was killed or the job took longer" in row["error"]
    with pytest.raises(LeaseLostError), job.transaction():
        pass


def test_a_job_that_was_moved_while_it_ran_does_not_commit(instance: Instance, sales: Database, clock: Clock) -> None:
    send(sales, b"slow")
    for _ in range(4):
        fail_job(sales)
    with pytest.raises(LeaseLostError), sales.take(QUEUE, lease=60) as job:
        clock.advance(seconds=61)
        instance.run_due()
        with sales.take(FAILED) as other:
            assert (other.message == job.message, other.attempt) == (True, 1)
    assert queued(instance, FAILED) == []


def test_a_group_that_a_job_has_taken_meanwhile_is_not_moved(instance: Instance, sales: Database) -> None:
    """Between the fifth rollback and its count. The next rollback counts, too."""
    send(sales, b"poison")
    (message,) = instance.view("dbo.Orders").to_pylist()
    (queue_id,) = (row["object_id"] for row in instance.view("sys.service_queues").to_pylist() if row["name"] == QUEUE)
    for _ in range(4):
        fail_transaction(sales)
    with sales.take(QUEUE, timeout=0) as job:
        poison_message_handling.handle_rollbacks(
            database_context(sales), {queue_id: message["conversation_handle"]}, "an error"
        )
        job.retry()
    assert (queued(instance), queued(instance, FAILED)) == ([b"poison"], [])
    fail_transaction(sales)
    assert (queued(instance), queued(instance, FAILED)) == ([], [b"poison"])


def test_later_messages_of_the_group_follow_in_order(instance: Instance, sales: Database) -> None:
    """They must not be processed before those that failed. Messages of other conversations are not affected."""
    dialog = send(sales, b"poison")
    other = send(sales, b"good")
    for _ in range(5):
        fail_job(sales)
    send(sales, b"next", dialog=dialog)
    with sales.transaction() as t:
        t.send_batch(pa.table({"conversation_handle": [dialog.bytes] * 2, "message_body": [b"many", b"of them"]}))
    stop = instance.subscribe(lambda _: None)
    send(sales, b"with subscribers", dialog=dialog)
    stop()
    send(sales, b"too", dialog=other)
    with sales.transaction() as t:
        t.end_conversation(dialog)
    assert received(sales) == [b"good", b"too"]
    with sales.take(FAILED) as job:
        names = [message.message_type_name.rpartition("/")[2] for message in job.messages]
        bodies = [message.message_body for message in job.messages]
    assert bodies == [b"poison", b"next", b"many", b"of them", b"with subscribers", None]
    assert names[-1] == "EndDialog"


def test_messages_of_other_databases_follow(instance: Instance, sales: Database) -> None:
    shop = instance.create_database("Shop")
    shop.create_queue("Replies")
    shop.create_service("//Far", queue="Replies")
    with shop.transaction() as t:
        dialog = t.begin_dialog("//Far", TARGET)
        t.send(dialog, b"poison")
    for _ in range(5):
        fail_job(sales)
    with shop.transaction() as t:
        t.send(dialog, b"next")
    assert (queued(instance), queued(instance, FAILED)) == ([], [b"poison", b"next"])


def test_a_timer_follows(instance: Instance, sales: Database, clock: Clock) -> None:
    handle = move(sales, b"poison")
    with sales.transaction() as t:
        t.begin_conversation_timer(handle, 5)
    clock.advance(seconds=6)
    instance.run_due()
    types = instance.view(f"dbo.{FAILED}")["message_type_name"].to_pylist()
    assert [str(name).rpartition("/")[2] for name in types] == ["DEFAULT", "DialogTimer"]


def test_replies_and_ends_work_from_the_other_queue(instance: Instance, sales: Database) -> None:
    move(sales, b"poison")
    with sales.take(FAILED) as job, job.transaction() as t:
        assert job.message.service_name == TARGET
        t.send(job.message.conversation_handle, b"sorry")
        t.end_conversation(job.message.conversation_handle, error=(1, "cannot be processed"))
    assert failed(instance) == []
    assert len(received(sales, "Replies")) == 2


def test_named_receives_know_where_the_group_is(instance: Instance, sales: Database) -> None:
    handle = move(sales, b"poison")
    (row,) = instance.view(f"dbo.{FAILED}").to_pylist()
    names: list[dict[str, Any]] = [
        {"conversation_handle": handle},
        {"conversation_group_id": row["conversation_group_id"]},
    ]
    for name in names:
        with pytest.raises(BrokerError, match="8426"), sales.transaction() as t:
            t.receive(QUEUE, **name)
        with pytest.raises(ZeroDivisionError), sales.transaction() as t:
            assert t.receive(FAILED, **name)["message_body"].to_pylist() == [b"poison"]
            raise ZeroDivisionError


def test_requeue_puts_everything_back_in_its_place(instance: Instance, sales: Database) -> None:
    move(sales, b"one", b"two")
    move(sales, b"three")
    send(sales, b"four")
    assert sales.requeue(QUEUE) == 3
    assert failed(instance) == []
    assert queued(instance, FAILED) == []
    assert received(sales) == [b"one", b"two", b"three", b"four"]
    assert sales.requeue(QUEUE) == 0


def test_requeue_forgets_the_failures(instance: Instance, sales: Database) -> None:
    move(sales, b"poison")
    sales.requeue(QUEUE)
    with sales.take(QUEUE, timeout=0) as job:
        assert job.attempt == 1
        job.retry()
    for _ in range(4):
        fail_job(sales)
    assert queued(instance, FAILED) == []
    fail_job(sales)
    assert queued(instance, FAILED) == [b"poison"]


def test_requeue_of_one_conversation(instance: Instance, sales: Database) -> None:
    move(sales, b"one")
    handle = move(sales, b"two")
    assert sales.requeue(QUEUE, conversation_handle=handle) == 1
    assert (queued(instance), queued(instance, FAILED)) == ([b"two"], [b"one"])
    with pytest.raises(BrokerError, match="was not moved away"):
        sales.requeue(QUEUE, conversation_handle=handle)
    with pytest.raises(BrokerError, match="was not moved away"):
        sales.requeue(FAILED, conversation_handle=handle)
    with pytest.raises(BrokerError, match="15151"):
        sales.requeue("Nothing")


def test_requeue_leaves_alone_what_a_job_has(instance: Instance, sales: Database, clock: Clock) -> None:
    handle = move(sales, b"one")
    move(sales, b"two")
    with sales.take(FAILED) as job:
        assert job.messages[0].conversation_handle == handle
        with pytest.raises(BrokerError, match="is leased by process"):
            sales.requeue(QUEUE, conversation_handle=handle)
        assert sales.requeue(QUEUE) == 1
        job.retry(after=600)
    assert (queued(instance), queued(instance, FAILED)) == ([b"two"], [b"one"])
    assert sales.requeue(QUEUE) == 1
    assert received(sales) == [b"one", b"two"]


def test_a_lease_from_before_the_clock_was_set_back_does_not_keep_a_group(
    instance: Instance, sales: Database, clock: Clock
) -> None:
    """RECEIVE takes the group then, so its messages can be put back, too."""
    handle = move(sales, b"one")
    with suppress(LeaseLostError), sales.take(FAILED, lease=60):
        clock.now -= timedelta(days=400)
        assert sales.requeue(QUEUE, conversation_handle=handle) == 1
    assert (queued(instance), queued(instance, FAILED)) == ([b"one"], [])


def test_early_and_retained_messages_move_too(instance: Instance, sales: Database) -> None:
    sales.alter_queue(QUEUE, retention=True)
    send(sales, b"done", b"poison")
    with sales.transaction() as t:
        t.receive(QUEUE, top=1)
    for _ in range(5):
        fail_job(sales)
    rows = instance.view(f"dbo.{FAILED}").to_pylist()
    assert [(row["status"], row["message_body"]) for row in rows] == [(0, b"done"), (1, b"poison")]


def test_what_arrives_while_the_other_queue_is_off_waits_for_it(instance: Instance, sales: Database) -> None:
    sales.alter_queue(FAILED, status=False)
    dialog = send(sales, b"poison")
    for _ in range(5):
        fail_job(sales)
    send(sales, b"waits", dialog=dialog)
    assert queued(instance, FAILED) == [b"poison"]
    (waiting,) = instance.view("sys.transmission_queue").to_pylist()
    assert waiting["message_body"] == b"waits"
    sales.alter_queue(FAILED, status=True)
    instance.run_due()
    assert queued(instance, FAILED) == [b"poison", b"waits"]


@pytest.mark.parametrize("is_back", [True, False])
def test_what_waits_for_a_queue_that_is_off_changes_with_the_group(
    instance: Instance, sales: Database, *, is_back: bool
) -> None:
    """Put back from a queue that is off into one that is on, and moved from one that is off into one that is on."""
    dialog = send(sales, b"poison")
    if is_back:
        for _ in range(5):
            fail_job(sales)
        sales.alter_queue(FAILED, status=False)
        send(sales, b"waits", dialog=dialog)
        assert sales.requeue(QUEUE) == 1
        instance.run_due()
        assert queued(instance) == [b"poison", b"waits"]
        return
    for _ in range(4):
        fail_job(sales)
    with pytest.raises(ZeroDivisionError), sales.take(QUEUE):
        sales.alter_queue(QUEUE, status=False)
        send(sales, b"waits", dialog=dialog)
        raise ZeroDivisionError
    instance.run_due()
    assert queued(instance, FAILED) == [b"poison", b"waits"]


def test_the_end_of_the_conversation_forgets_the_failure(instance: Instance, sales: Database) -> None:
    handle = move(sales, b"poison")
    with sales.transaction() as t:
        t.end_conversation(handle, cleanup=True)
    assert (failed(instance), queued(instance, FAILED)) == ([], [])


def test_the_failure_stays_while_the_group_has_another_conversation(instance: Instance, sales: Database) -> None:
    handle = move(sales, b"poison")
    with sales.transaction() as t:
        second = t.begin_dialog(TARGET, "//Shop", related_conversation=handle)
        t.send(second, b"a question")
        t.end_conversation(handle, cleanup=True)
    (reply,) = instance.view("dbo.Replies").to_pylist()
    with sales.transaction() as t:
        t.send(reply["conversation_handle"], b"an answer")
    assert len(failed(instance)) == 1
    assert queued(instance, FAILED) == [b"an answer"]


def test_a_group_that_another_one_absorbs_is_forgotten(instance: Instance, sales: Database) -> None:
    """Otherwise the queue of failed messages could never be dropped."""
    first, second = move(sales, b"poison"), move(sales, b"more poison")
    group = failed(instance)[1]["conversation_group_id"]
    with sales.transaction() as t:
        t.move_conversation(first, group)
    (row,) = failed(instance)
    assert (row["conversation_handle"], row["conversation_group_id"]) == (second.bytes, group)
    assert sales.requeue(QUEUE) == 2
    sales.alter_queue(QUEUE, on_poison="disable")
    sales.drop_queue(FAILED)


def test_conversations_do_not_join_a_group_in_another_queue(instance: Instance, sales: Database) -> None:
    """Nor one that is in the same queue only until `requeue`."""
    moved = move(sales, b"poison")
    (group,) = (row["conversation_group_id"] for row in failed(instance))
    send(sales, b"good")
    (good,) = instance.view("dbo.Orders").to_pylist()
    sales.create_service("//Failures", queue=FAILED, contracts=["DEFAULT"])
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Failures"), b"a failure")
    other = instance.view(f"dbo.{FAILED}").to_pylist()[-1]
    with sales.transaction() as t:
        for handle, wanted in ((moved, good["conversation_group_id"]), (good["conversation_handle"], group)):
            with pytest.raises(BrokerError, match="failed and were moved; put these messages back with requeue first"):
                t.move_conversation(handle, wanted)
        for handle, wanted in ((moved, other["conversation_group_id"]), (other["conversation_handle"], group)):
            with pytest.raises(BrokerError, match="9610"):
                t.move_conversation(handle, wanted)


def test_a_queue_of_failed_messages_may_move_further(instance: Instance, sales: Database) -> None:
    sales.create_queue("Hopeless")
    sales.alter_queue(FAILED, on_poison="move", poison_queue="Hopeless")
    move(sales, b"poison")
    for _ in range(5):
        fail_job(sales, FAILED)
    assert queued(instance, "Hopeless") == [b"poison"]
    (row,) = failed(instance)
    names = {row["object_id"]: row["name"] for row in instance.view("sys.service_queues").to_pylist()}
    assert (names[row["queue_id"]], names[row["moved_to_queue_id"]]) == (FAILED, "Hopeless")
    assert sales.requeue(QUEUE) == 1
    assert queued(instance) == [b"poison"]


def test_a_service_that_gets_another_queue_leaves_failed_messages_where_they_are(
    instance: Instance, sales: Database
) -> None:
    move(sales, b"poison")
    send(sales, b"good")
    sales.create_queue("New")
    sales.alter_service(TARGET, queue="New")
    assert (queued(instance, "New"), queued(instance, FAILED)) == ([b"good"], [b"poison"])
    assert sales.requeue("New") == 1
    assert received(sales, "New") == [b"poison", b"good"]


def test_poison_message_handling_can_be_off(instance: Instance, sales: Database) -> None:
    sales.alter_queue(QUEUE, poison_message_handling=False)
    send(sales, b"poison")
    for _ in range(9):
        fail_job(sales)
    assert queued(instance) == [b"poison"]


def test_disable_is_as_before(instance: Instance, sales: Database) -> None:
    sales.alter_queue(QUEUE, on_poison="disable")
    send(sales, b"poison")
    for _ in range(5):
        fail_job(sales)
    with pytest.raises(BrokerError, match="9617"):
        received(sales)
    assert queued(instance, FAILED) == []


def test_readers_of_both_queues_are_activated(instance: Instance, sales: Database) -> None:
    seen: list[str] = []

    def work(database: Database) -> None:
        with database.take(QUEUE, timeout=0) as job:
            if job:
                seen.append("failed")
                raise ZeroDivisionError

    def bury(database: Database) -> None:
        with database.take(FAILED, timeout=0) as job:
            if job:
                seen.append("buried")

    sales.activate(QUEUE, work)
    sales.activate(FAILED, bury)
    send(sales, b"poison")
    for _ in range(20):
        instance.run_due()
    assert seen == ["failed"] * 5 + ["buried"]


def test_who_waits_for_failed_messages_is_woken(tmp_path: Any) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as instance:
        jobs = instance.queue("Jobs", on_poison="move", retry_after=0)

        def look(database: Database) -> None:
            with database.take("Jobs_failed", timeout=60) as job:
                seen.append(job.messages[0].message_body)

        seen: list[bytes | None] = []
        instance.database("Queues").activate("Jobs_failed", look)
        jobs.put(b"poison")
        for _ in range(5):
            with pytest.raises(ZeroDivisionError), jobs.take():
                raise ZeroDivisionError
    assert seen == [b"poison"]


def test_event_view_metrics_and_status_show_what_was_moved(instance: Instance, sales: Database) -> None:
    events: list[Event] = []
    instance.subscribe(events.append, ConversationMoved, QueueDisabled)
    metrics = Metrics(instance)
    handle = move(sales, b"poison")
    (event,) = events
    assert isinstance(event, ConversationMoved)
    assert (event.database, event.queue, event.moved_to) == ("Sales", "dbo.Orders", "dbo.Failed")
    assert (event.conversation_handle, event.error) == (handle, "ZeroDivisionError")
    (row,) = failed(instance)
    assert (row["conversation_handle"], row["failed_at"], row["error"]) == (handle.bytes, START, "ZeroDivisionError")
    assert row["conversation_group_id"] == event.conversation_group_id.bytes
    queues = {row["name"]: row for row in instance.view("sys.service_queues").to_pylist()}
    assert (row["queue_id"], row["moved_to_queue_id"]) == (queues[QUEUE]["object_id"], queues[FAILED]["object_id"])
    assert queues[QUEUE]["poison_queue_id"] == queues[FAILED]["object_id"]
    assert queues[FAILED]["poison_queue_id"] is None
    (moved,) = overview_of(instance)["moved"]
    assert moved == {
        "database": "Sales",
        "queue": "dbo.Orders",
        "moved_to": "dbo.Failed",
        "groups": 1,
        "last_failed_at": "2026-11-21 00:00:00+00:00",
        "error": "ZeroDivisionError",
    }
    samples = {
        (sample.name, sample.labels.get("queue")): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    assert samples["ssbroker_queue_moved_groups", "dbo.Orders"] == 1
    assert samples["ssbroker_queue_moved_groups", "dbo.Failed"] == 0
    assert samples["ssbroker_queue_poisoned", "dbo.Orders"] == 0
    metrics.close()


def test_a_queue_with_failed_messages_of_others_cannot_be_dropped(instance: Instance, sales: Database) -> None:
    move(sales, b"poison")
    with pytest.raises(
        BrokerError,
        match=r"receives the failed messages of the queue 'dbo\.Orders'; first call Database\.alter_queue for each of these queues, with another on_poison",
    ):
        sales.drop_queue(FAILED)
    sales.alter_queue(QUEUE, on_poison="disable")
    with pytest.raises(BrokerError, match="contains failed messages that were moved from other queues"):
        sales.drop_queue(FAILED)
    sales.requeue(QUEUE)
    sales.drop_queue(FAILED)
    assert [row["name"] for row in instance.view("sys.service_queues").to_pylist()] == ["Orders", "Replies"]


def test_options_are_checked(sales: Database) -> None:
    given: Any
    for given in ({"on_poison": "drop"}, {"on_poison": "move"}, {"poison_queue": FAILED}, {"on_poison": 5}):
        with pytest.raises(OptionError, match="poison"):
            sales.alter_queue(QUEUE, **given)
    with pytest.raises(OptionError, match="a queue other than 'Orders'"):
        sales.alter_queue(QUEUE, on_poison="move", poison_queue="[dbo].[Orders]")
    with pytest.raises(BrokerError, match="15151"):
        sales.create_queue("New", on_poison="move", poison_queue="Missing")


@pytest.fixture
def jobs(instance: Instance) -> WorkQueue:
    return instance.queue("Jobs", on_poison="move", retry_after=0)


def test_a_work_queue_creates_the_queue_for_failed_messages(instance: Instance, jobs: WorkQueue) -> None:
    """Once; and its messages are taken like others, so that nothing is left."""
    assert instance.queue("Jobs", on_poison="move").name == instance.queue("Jobs").name
    jobs.put({"resize": "cat.png"}, codec="json")
    jobs.put(b"good")
    for _ in range(5):
        with pytest.raises(OSError, match="full"), jobs.take():
            raise OSError("the disk is full")
    with jobs.take() as job:
        assert job.value == b"good"
    with instance.queue("Jobs_failed").take() as job:
        assert job.value == {"resize": "cat.png"}
    for view in ("conversation_endpoints", "dm_broker_failures", "dm_broker_leases"):
        assert instance.view(f"sys.{view}", database="Queues").num_rows == 0


def test_a_work_queue_with_wrong_options_is_not_created(instance: Instance) -> None:
    given: Any
    for given in ({"on_poison": "mvoe"}, {"on_poison": "disable", "poison_queue": "X"}):
        with pytest.raises(OptionError, match="poison"):
            instance.queue("New", **given)
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]


def test_a_work_queue_that_exists_can_be_opened_in_a_transaction(instance: Instance, jobs: WorkQueue) -> None:
    """Opening it again writes nothing, and so does not wait for the transaction."""
    with instance.database("Queues").transaction() as t:
        jobs.put(b"first", transaction=t)
        instance.queue("Jobs", on_poison="move").put(b"second", transaction=t)
    assert instance.view("dbo.Jobs", database="Queues")["message_body"].to_pylist() == [b"first", b"second"]


def test_a_work_queue_puts_messages_back(instance: Instance, jobs: WorkQueue) -> None:
    jobs.put(b"poison")
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), jobs.take():
            raise ZeroDivisionError
    assert jobs.requeue() == 1
    with jobs.take(timeout=0) as job:
        assert (job.value, job.attempt) == (b"poison", 1)
    assert instance.queue("Jobs", on_poison="disable").requeue() == 0


def test_a_scheduled_message_can_fail_too(instance: Instance, jobs: WorkQueue, clock: Clock) -> None:
    jobs.put(b"later", at=clock.now + timedelta(seconds=60))
    clock.advance(seconds=61)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), jobs.take(timeout=0) as job:
            assert job
            raise ZeroDivisionError
    assert instance.view("dbo.Jobs_failed", database="Queues")["message_body"].to_pylist() == [b"later"]


def test_failed_messages_stay_moved_across_restarts(instance: Instance, sales: Database, clock: Clock) -> None:
    dialog = send(sales, b"poison")
    for _ in range(5):
        fail_job(sales)
    instance.close()
    with Instance.open(instance.folder, clock=clock, background=False) as opened:
        send(opened.database("Sales"), b"next", dialog=dialog)
        assert queued(opened, FAILED) == [b"poison", b"next"]
        assert opened.database("Sales").requeue(QUEUE) == 2


def _reply_handles(sales: Database) -> tuple[uuid.UUID, uuid.UUID]:
    """Returns the receivers' handles of two conversations; the group of the first has been moved to FAILED."""
    moved = move(sales, b"poison")
    send(sales, b"good")
    with sales.transaction() as t:
        good = t.receive_one(QUEUE)
    assert good is not None
    return moved, good.conversation_handle


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_batch_is_checked_against_the_queue_of_each_group(sales: Database, order: tuple[int, int]) -> None:
    handles = _reply_handles(sales)
    sales.alter_queue(FAILED, retention=True, status=False)
    with pytest.raises(BrokerError, match=f"dbo.{FAILED}") as caught, sales.transaction() as t:
        t.send_batch(
            pa.table(
                {
                    "conversation_handle": pa.array([handles[place].bytes for place in order], pa.binary(16)),
                    "message_body": pa.array([b"one", b"two"], pa.binary()),
                }
            )
        )
    assert caught.value.number == 9618


def test_a_message_sent_from_a_moved_group_is_retained_in_its_queue(instance: Instance, sales: Database) -> None:
    moved, _ = _reply_handles(sales)
    sales.alter_queue(FAILED, retention=True)
    for body in (b"in Python", b"native, with the objects that Python has read"):
        with sales.transaction() as t:
            t.send(moved, body)
        rows = instance.view(f"dbo.{FAILED}", database="Sales").select(["status", "message_body"]).to_pylist()
        assert {"status": 3, "message_body": body} in rows
