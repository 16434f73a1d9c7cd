"""RECEIVE, GET CONVERSATION GROUP, groups and priorities: which message comes next."""

from __future__ import annotations

import functools
import random
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import schemas
from ssbroker.broker.commit_signals import CommitSignals
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.dialogs import receive as receive_module
from ssbroker.broker.instance import Instance
from ssbroker.broker.object_names import queue_key
from ssbroker.broker.receive_wait import ReceiveWait
from ssbroker.exceptions import BrokerError, OptionError
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock
from tests.broker.dialog_calls import begin, contents_of, receive, send
from tests.broker.sqlite_steps import counted, steps

WAIT = 60.0


def test_the_columns_are_those_of_the_schema(sales: Database) -> None:
    begin(sales, b"x")
    table = receive(sales)
    assert table.schema == schemas.RECEIVED
    assert receive(sales).schema == schemas.RECEIVED
    row = table.to_pylist()[0]
    assert (row["service_name"], row["service_contract_name"]) == (TARGET, "DEFAULT")
    assert (row["message_type_name"], row["validation"]) == ("DEFAULT", "N")
    assert (row["priority"], row["status"]) == (5, 1)
    assert row["message_signature"] is None


def test_one_group_is_received_at_a_time_the_oldest_first(sales: Database) -> None:
    first, second = begin(sales, b"1a"), begin(sales, b"2a")
    send(sales, first, b"1b")
    send(sales, second, b"2b")
    assert contents_of(receive(sales)) == [b"1a", b"1b"]
    assert contents_of(receive(sales)) == [b"2a", b"2b"]


def test_the_highest_priority_is_received_first(sales: Database) -> None:
    """Priority before waiting time; within a group conversation by conversation."""
    sales.create_service("//VIP", queue=dialog_calls.REPLIES)
    sales.create_broker_priority("VIP", remote_service="//VIP", level=9)
    begin(sales, b"plain")
    with sales.transaction() as t:
        t.send(t.begin_dialog("//VIP", TARGET), b"urgent")
    tables = [receive(sales), receive(sales)]
    assert [contents_of(table) for table in tables] == [[b"urgent"], [b"plain"]]
    assert [table["priority"].to_pylist() for table in tables] == [[9], [5]]


def test_top_counts_messages(sales: Database) -> None:
    begin(sales, b"a", b"b", b"c")
    assert contents_of(receive(sales, top=2)) == [b"a", b"b"]
    assert contents_of(receive(sales, top=2)) == [b"c"]
    for wrong in (0, -1, 1.5, True):
        with sales.transaction() as t, pytest.raises(OptionError, match="top"):
            t.receive(QUEUE, top=wrong)  # type: ignore[arg-type]  # the error under test


def create_group_of_three(database: Database) -> tuple[uuid.UUID, list[uuid.UUID]]:
    """Three conversations of one group on the queue of //Orders: the group, and their handles in order of creation."""
    with database.transaction() as t:
        far = [t.begin_dialog(INITIATOR, TARGET) for _ in range(3)]
        for dialog in far:
            t.send(dialog, b"hello")
    near = [dialog_calls.far_handle(database, dialog) for dialog in far]
    group = uuid.UUID(bytes=dialog_calls.group_of(database, near[0]))
    with database.transaction() as t:
        for dialog in near[1:]:
            t.move_conversation(dialog, group)
    dialog_calls.drain(database)
    for number in range(2):
        for name, dialog in zip("abc", far, strict=True):
            send(database, dialog, f"{name}{number}".encode())
    return group, near


def test_all_messages_of_a_conversation_are_received_before_the_next(sales: Database) -> None:
    create_group_of_three(sales)
    assert contents_of(receive(sales)) == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]


def test_top_over_several_conversations_of_a_group(sales: Database) -> None:
    """The next call selects again: c0 has waited longer than b1 then."""
    create_group_of_three(sales)
    assert [contents_of(receive(sales, top=3)) for _ in range(3)] == [[b"a0", b"a1", b"b0"], [b"c0", b"c1", b"b1"], []]


def test_a_conversation_or_a_group_may_be_named(sales: Database) -> None:
    group, near = create_group_of_three(sales)
    begin(sales, b"another group")
    assert contents_of(receive(sales, conversation_handle=near[1])) == [b"b0", b"b1"]
    assert contents_of(receive(sales, conversation_handle=near[1])) == []
    assert contents_of(receive(sales, conversation_group_id=group, top=3)) == [b"a0", b"a1", b"c0"]
    assert contents_of(receive(sales, conversation_group_id=str(group))) == [b"c1"]
    assert contents_of(receive(sales)) == [b"another group"]


def test_unknown_and_disabled_objects_are_rejected(sales: Database) -> None:
    initiator, target = dialog_calls.pair(sales)
    unknown, elsewhere = "does not exist in this database", "are in the queue 'dbo.Replies', not in 'dbo.Orders'"
    cases = [
        ({"conversation_handle": uuid.UUID(int=1)}, unknown),
        ({"conversation_handle": initiator}, elsewhere),
        ({"conversation_group_id": uuid.UUID(int=1)}, unknown),
        ({"conversation_group_id": dialog_calls.group_of(sales, initiator)}, elsewhere),
    ]
    with sales.transaction() as t:
        for options, reason in cases:
            with pytest.raises(BrokerError, match=f"^8426: the .*{reason}$"):
                t.receive(QUEUE, **options)  # type: ignore[arg-type]  # one option at a time
        with pytest.raises(BrokerError) as refused:
            t.receive("Nowhere")
        assert refused.value.number == 15151
        with pytest.raises(OptionError, match="cannot be used together: specify one of them"):
            t.receive(QUEUE, conversation_handle=target, conversation_group_id=uuid.UUID(int=1))
    dialog_calls.switch(sales, on=False)
    with sales.transaction() as t:
        for call in (t.receive, t.get_conversation_group):
            with pytest.raises(BrokerError) as refused:
                call(QUEUE)
            assert refused.value.number == 9617


def test_get_conversation_group_returns_the_next_group(sales: Database) -> None:
    with sales.transaction() as t:
        assert t.get_conversation_group(QUEUE) is None
    begin(sales, b"a")
    begin(sales, b"b")
    with sales.transaction() as t:
        group = t.get_conversation_group(QUEUE)
        assert group is not None
        table = t.receive(QUEUE, conversation_group_id=group)
    assert contents_of(table) == [b"a"]
    assert table["conversation_group_id"].to_pylist() == [group.bytes]


def test_related_dialogs_share_a_group(sales: Database) -> None:
    """They are related by a conversation or by a group, which is created if missing; a group belongs to one service."""
    wanted = uuid.uuid4()
    with sales.transaction() as t:
        one = t.begin_dialog(INITIATOR, TARGET, related_conversation_group=wanted)
        two = t.begin_dialog(INITIATOR, TARGET, related_conversation=one)
        three = t.begin_dialog(INITIATOR, TARGET, related_conversation_group=wanted)
        for related in ({"related_conversation": one}, {"related_conversation_group": wanted}):
            with pytest.raises(BrokerError) as refused:
                t.begin_dialog(TARGET, INITIATOR, **related)  # type: ignore[arg-type]  # one option at a time
            assert refused.value.number == 9610
    assert {dialog_calls.group_of(sales, dialog) for dialog in (one, two, three)} == {wanted.bytes}


def test_a_conversation_moves_within_its_queue_only(sales: Database) -> None:
    initiator, target = dialog_calls.pair(sales)
    _, other = dialog_calls.pair(sales)
    send(sales, initiator, b"moved along")
    with sales.transaction() as t:
        with pytest.raises(BrokerError) as refused:
            t.move_conversation(initiator, dialog_calls.group_of(sales, target))
        assert refused.value.number == 9610
        with pytest.raises(BrokerError) as refused:
            t.move_conversation(target, uuid.UUID(int=3))
        assert refused.value.number == 8426
        t.move_conversation(target, dialog_calls.group_of(sales, other))
    assert dialog_calls.group_of(sales, target) == dialog_calls.group_of(sales, other)
    table = receive(sales, conversation_group_id=dialog_calls.group_of(sales, other))
    assert contents_of(table) == [b"moved along"]


def test_a_timer_fires_once_and_is_received_first(instance: Instance, sales: Database, clock: Clock) -> None:
    """One for each side; setting it again replaces the first."""
    initiator, target = dialog_calls.pair(sales)
    with sales.transaction() as t:
        t.begin_conversation_timer(initiator, 5)
        t.begin_conversation_timer(initiator, 30)
    send(sales, target, b"news")
    clock.advance(seconds=29)
    instance.run_due()
    with sales.transaction() as t:
        assert t.get_conversation_group(dialog_calls.REPLIES) is not None
    clock.advance(seconds=1)
    instance.run_due()
    instance.run_due()
    assert contents_of(receive(sales, dialog_calls.REPLIES)) == ["DialogTimer", b"news"]
    assert receive(sales).num_rows == 0


@pytest.mark.parametrize(("timeout", "number"), [(0, 8411), (-1, 8411), (2**31, 8411), (1.5, 8411), (61, 8410)])
def test_a_timer_out_of_range_is_refused(sales: Database, timeout: int, number: int) -> None:
    dialog = begin(sales, lifetime=60)
    with sales.transaction() as t, pytest.raises(BrokerError) as refused:
        t.begin_conversation_timer(dialog, timeout)
    assert refused.value.number == number


def received_in_thread(
    database: Database, pool: ThreadPoolExecutor, **options: Any
) -> tuple[threading.Event, list[pa.Table | Exception]]:
    """Starts a waiting receiver, and reports when it waits."""
    done = threading.Event()
    found: list[pa.Table | Exception] = []

    def work() -> None:
        try:
            found.append(receive(database, timeout=WAIT, **options))
        except BrokerError as error:
            found.append(error)
        done.set()

    pool.submit(work)
    queue = database_context(database).objects().queues["dbo", QUEUE].queue_id
    deadline = time.monotonic() + WAIT
    while not database_context(database).commit_signals.waiting(queue) and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return done, found


def test_receive_waits_without_the_lock(sales: Database) -> None:
    with ThreadPoolExecutor(1) as pool:
        done, found = received_in_thread(sales, pool)
        assert not done.is_set()
        begin(sales, b"at last")
        assert done.wait(WAIT)
    assert isinstance(found[0], pa.Table)
    assert contents_of(found[0]) == [b"at last"]


def test_receive_sees_what_another_instance_on_the_folder_commits(instance: Instance, sales: Database) -> None:
    """As another process would: they share nothing in memory."""
    with ThreadPoolExecutor(1) as pool:
        done, found = received_in_thread(sales, pool)
        with Instance.open(instance.folder, background=False) as other:
            begin(other.database("Sales"), b"from elsewhere")
        assert done.wait(WAIT)
    assert isinstance(found[0], pa.Table)
    assert contents_of(found[0]) == [b"from elsewhere"]


def test_disabling_the_queue_ends_the_wait(sales: Database) -> None:
    with ThreadPoolExecutor(1) as pool:
        done, found = received_in_thread(sales, pool)
        dialog_calls.switch(sales, on=False)
        assert done.wait(WAIT)
    assert isinstance(found[0], BrokerError)
    assert found[0].number == 9617


def test_a_wait_ends_at_its_timeout(sales: Database) -> None:
    assert receive(sales, timeout=0.02).num_rows == 0
    with sales.transaction() as t:
        assert t.get_conversation_group(QUEUE, timeout=0.02) is None


def test_a_wait_ends_without_messages_if_the_files_are_closed_before_it_wakes_up(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, closed = CommitSignals.wait, threading.Event()

    def wake_up_late(self: CommitSignals, *args: Any, **options: Any) -> None:
        wait(self, *args, **options)
        assert closed.wait(WAIT)

    monkeypatch.setattr(CommitSignals, "wait", wake_up_late)
    with ThreadPoolExecutor(1) as pool:
        done, found = received_in_thread(sales, pool)
        instance.close()
        closed.set()
        assert done.wait(WAIT)
    assert isinstance(found[0], pa.Table)
    assert found[0].num_rows == 0


@pytest.mark.parametrize("by_group", [False, True])
def test_a_wait_for_a_conversation_ignores_messages_of_others(sales: Database, *, by_group: bool) -> None:
    """Otherwise it would receive nothing again and again, with the lock, even after its timeout."""
    dialog = begin(sales, b"first")
    (row,) = receive(sales).to_pylist()
    name = "conversation_group_id" if by_group else "conversation_handle"
    begin(sales, b"of another conversation")
    attempts = counters_of(sales)["sql_receives"]
    assert receive(sales, timeout=0.05, **{name: row[name]}).num_rows == 0
    assert counters_of(sales)["sql_receives"] == attempts + 1
    with ThreadPoolExecutor(1) as pool:
        done, found = received_in_thread(sales, pool, **{name: row[name]})
        begin(sales, b"of a third")
        assert not done.wait(0.05)
        send(sales, dialog, b"second")
        assert done.wait(WAIT)
    assert isinstance(found[0], pa.Table)
    assert contents_of(found[0]) == [b"second"]
    assert counters_of(sales)["sql_receives"] == attempts + 2


def counters_of(database: Database) -> Mapping[str, float]:
    return database_context(database).instance.counters.counts()


def test_a_timeout_costs_nothing_if_a_message_is_available(sales: Database) -> None:
    begin(sales, *[b"x"] * 42)
    receive(sales, top=1)
    costs = {0.0: 0, WAIT: 0}
    for number in range(20):  # steps are counted in tens, across the ends of statements
        for timeout in sorted(costs, reverse=number % 2 == 0):
            costs[timeout] += steps(sales, functools.partial(receive, sales, top=1, timeout=timeout))
    assert abs(costs[0.0] - costs[WAIT]) < 20


def test_a_message_that_arrives_before_the_wait_ends_it(sales: Database) -> None:
    """Between the check that found nothing and the wait."""
    receive_wait = ReceiveWait(database_context(sales), queue_key(QUEUE), deadline=time.monotonic() + WAIT)
    begin(sales, b"meanwhile")
    database_context(sales).commit_signals.check_interval = WAIT
    assert receive_wait.wait()


def test_a_holder_of_the_lock_does_not_wait(sales: Database) -> None:
    with sales.transaction() as t:
        t.begin_dialog(INITIATOR, TARGET)
        assert t.receive(QUEUE, timeout=3600.0).num_rows == 0


@pytest.mark.parametrize("timeout", [-1, float("nan"), True, "1"])
def test_a_timeout_is_a_number_of_seconds(sales: Database, timeout: float) -> None:
    with sales.transaction() as t, pytest.raises(OptionError, match="timeout"):
        t.receive(QUEUE, timeout=timeout)


def test_one_call_for_several_groups_equals_several_calls(sales: Database) -> None:
    for number in range(5):
        begin(sales, f"{number}a".encode(), f"{number}b".encode())
    assert contents_of(receive(sales, groups=2)) == [b"0a", b"0b", b"1a", b"1b"]
    assert contents_of(receive(sales, groups=None, top=3)) == [b"2a", b"2b", b"3a"]
    assert contents_of(receive(sales, groups=None)) == [b"3b", b"4a", b"4b"]
    assert contents_of(receive(sales, groups=None)) == []
    for wrong in (0, -1, 1.5):
        with sales.transaction() as t, pytest.raises(OptionError, match="groups"):
            t.receive(QUEUE, groups=wrong)  # type: ignore[arg-type]  # the error under test


@pytest.mark.parametrize("seed", range(4))
def test_one_call_for_groups_of_any_size_equals_several_calls(sales: Database, seed: int) -> None:
    rng = random.Random(seed)
    create_group_of_three(sales)
    for number in range(12):
        begin(sales, *(f"{number} {part}".encode() for part in range(rng.randint(1, 4))))
    sales.alter_queue(QUEUE, retention=seed % 2 == 1)
    one_by_one: list[bytes | str] = ["initial"]
    while one_by_one:
        top, groups = rng.choice([None, 1, 3, 7, 30]), rng.choice([None, 2, 3, 20])
        one_by_one = receive_one_by_one(sales, top=top, groups=groups)
        assert contents_of(receive(sales, top=top, groups=groups)) == one_by_one


def receive_one_by_one(database: Database, *, top: int | None, groups: int | None) -> list[bytes | str]:
    """Returns the messages of consecutive calls for one group each, until there are enough; everything is rolled back."""
    bodies: list[bytes | str] = []
    with suppress(ZeroDivisionError), database.transaction() as t:
        for _ in range(groups or 1000):
            taken = contents_of(t.receive(QUEUE, top=None if top is None else top - len(bodies)))
            bodies += taken
            if not taken or len(bodies) == top:
                break
        raise ZeroDivisionError
    return bodies


def test_a_table_has_a_maximum_of_bytes(sales: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is returned by the next call, in order."""
    monkeypatch.setattr(receive_module, "BYTES_MAX", 10)
    begin(sales, b"123456", b"7890", b"next", b"and a long one")
    begin(sales, b"another")
    expected = [[b"123456", b"7890"], [b"next", b"and a long one"], [b"another"], []]
    assert [contents_of(receive(sales, groups=None)) for _ in expected] == expected


def test_a_large_body_is_not_copied_into_the_table(sales: Database) -> None:
    """A copy of 16 MiB takes as long as reading the message."""
    large = random.Random(1).randbytes(16 << 20)
    begin(sales, b"small", large, b"", b"next")
    before = pa.total_allocated_bytes()
    table = receive(sales)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert table.schema == schemas.RECEIVED
    assert contents_of(table) == [b"small", large, b"", b"next"]
    assert table["message_sequence_number"].to_pylist() == [0, 1, 2, 3]


def test_the_cost_of_a_message_is_independent_of_the_waiting_messages(sales: Database) -> None:
    """GET CONVERSATION GROUP and then RECEIVE message by message, as in Service Broker's examples."""
    costs = []
    for number in (50, 1000):
        begin(sales, *[b"x"] * number)
        costs.append(cost_of_one(sales, QUEUE))
    assert costs[1] < 2 * costs[0]


def test_the_cost_of_a_message_is_independent_of_the_size_of_its_group(sales: Database) -> None:
    """The call must not check all members of the group."""
    costs = []
    for members in (20, 400):
        group = uuid.uuid4()
        with sales.transaction() as t:
            for _ in range(members):
                t.send(t.begin_dialog(INITIATOR, TARGET, related_conversation_group=group), b"asked")
        with sales.transaction() as t:
            for row in t.receive(QUEUE, groups=None).to_pylist():
                t.send(row["conversation_handle"], b"answered")
        costs.append(cost_of_one(sales, dialog_calls.REPLIES))
    assert costs[1] < 2 * costs[0]


def cost_of_one(database: Database, queue: str) -> int:
    """Returns the cost of receiving one message of the next group by its id; the queue is empty afterwards."""
    with database.transaction() as t:
        group = t.get_conversation_group(queue)
        with counted(t.connection) as taken:
            assert t.receive(queue, conversation_group_id=group, top=1).num_rows == 1
        while t.receive(queue).num_rows:
            pass
    return taken.number
