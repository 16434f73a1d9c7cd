"""The slices of a queue together are the queue, with any bounds."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ssbroker import BrokerError
from ssbroker.broker import views
from ssbroker.broker.database import Database, database_context
from tests.broker import sqlite_steps
from tests.broker.conftest import INITIATOR, QUEUE, TARGET
from tests.internals import instance_of


@pytest.fixture
def filled(sales: Database) -> Database:
    """Alternating messages of two queues, some of them received, and messages for another instance."""
    rng = random.Random(3)
    sales.create_queue("Others")
    sales.create_service("//Others", queue="Others")
    for _ in range(30):
        with sales.transaction() as t:
            for service in (TARGET, "//Others", "//Far"):
                dialog = t.begin_dialog(INITIATOR, service)
                for _ in range(rng.randint(1, 3)):
                    t.send(dialog, rng.randbytes(rng.randint(0, 50)))
            t.receive(QUEUE, top=1)
    return sales


@pytest.mark.parametrize("name", [QUEUE, "dbo.Others", views.TRANSMISSION_QUEUE])
@pytest.mark.parametrize(("rows_max", "bytes_max"), [(7, 1 << 30), (1 << 30, 100), (1, 1), (1 << 30, 1 << 30)])
def test_slices_together_are_the_queue(filled: Database, name: str, rows_max: int, bytes_max: int) -> None:
    whole = instance_of(filled).view(name, filled.name)
    cuts = views.queue_slices(database_context(filled), name, rows_max=rows_max, bytes_max=bytes_max)
    spans = [*((cut.after, cut.until) for cut in cuts), None]
    assert (
        pa.concat_tables(views.read_slice(database_context(filled), name, span, whole.column_names) for span in spans)
        == whole
    )
    assert sum(cut.rows for cut in cuts) == whole.num_rows
    assert sum(cut.size for cut in cuts) == sum(len(body or b"") for body in whole["message_body"].to_pylist())
    assert all(cut.rows <= rows_max for cut in cuts)


@pytest.mark.parametrize("wanted", [["message_body"], ["priority", "database"], ["database"]])
def test_only_requested_columns_are_read(filled: Database, wanted: list[str]) -> None:
    whole = instance_of(filled).view(QUEUE, filled.name)
    assert views.read_slice(database_context(filled), QUEUE, (0, 1 << 40), wanted) == whole.select(wanted)


def test_later_messages_have_greater_queuing_orders(sales: Database) -> None:
    seen = []
    for _ in range(3):
        with sales.transaction() as t:
            t.send(t.begin_dialog(INITIATOR, TARGET), b"one")
        seen.append(views.last_queuing_order(database_context(sales)))
        with sales.transaction() as t:
            t.receive(QUEUE)
        assert views.last_queuing_order(database_context(sales)) == seen[-1]
    assert seen == sorted({*seen})


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_retained", [False, True])
def test_queuing_orders_are_never_reused(
    sales: Database,
    seed: int,
    is_retained: bool,  # noqa: FBT001
) -> None:
    """After RECEIVE, END CONVERSATION at either end, and cleanup, of one message or all."""
    rng = random.Random(seed)
    sales.alter_queue(QUEUE, retention=is_retained)
    used: set[int] = set()
    last = 0
    for _ in range(120):
        with sales.transaction() as t:
            open_ones = instance_of(sales).view("sys.conversation_endpoints", "Sales").filter(pc.field("state") == "CO")
            handles: list[Any] = open_ones["conversation_handle"].to_pylist()
            match rng.choice(["begin", "send", "send", "receive", "receive", "end", "clean up"]):
                case "begin":
                    t.send(t.begin_dialog(INITIATOR, TARGET), b"first")
                case "send" if handles:
                    t.send(rng.choice(handles), b"more")
                case "receive":
                    t.receive(rng.choice([QUEUE, "Replies"]), top=rng.choice([1, None]), groups=rng.choice([1, None]))
                case "end" if handles:
                    t.end_conversation(rng.choice(handles))
                case "clean up" if handles:
                    t.end_conversation(rng.choice(handles), cleanup=True)
                case _:
                    pass
        there: set[Any] = set()
        for queue in (QUEUE, "Replies"):
            there.update(instance_of(sales).view(queue, "Sales")["queuing_order"].to_pylist())
        assert all(number > last for number in there - used)
        used |= there
        assert views.last_queuing_order(database_context(sales)) >= max(last, *there, 0)
        last = views.last_queuing_order(database_context(sales))
    assert last > 20


def test_the_last_queuing_order_is_read_from_one_row(sales: Database) -> None:
    for _ in range(3):
        with sales.transaction() as t:
            dialog = t.begin_dialog(INITIATOR, TARGET)
            t.send(dialog, b"one")
            t.receive(QUEUE)
            t.send(dialog, b"two")
            t.end_conversation(dialog, cleanup=True)
            t.receive(QUEUE)
    with database_context(sales).file.read() as connection:
        assert connection.execute(
            "SELECT queuing_order, queue_id, message_body FROM ssb_queued_messages"
        ).fetchall() == [(6, 0, None)]


def test_an_unknown_queue_is_reported(sales: Database) -> None:
    with pytest.raises(BrokerError, match=r"'dbo\.No' does not exist") as error:
        views.queue_slices(database_context(sales), "No", rows_max=1, bytes_max=1)
    assert error.value.number == 15151


def test_the_cost_of_a_slice_depends_on_its_rows_only(sales: Database) -> None:
    """Otherwise a stream or task that reads a slice would read the whole queue each time."""
    cut, read = [], []
    for messages in (100, 900):
        with sales.transaction() as t:
            dialog = t.begin_dialog(INITIATOR, TARGET)
            for _ in range(messages):
                t.send(dialog, b"one")
        last = views.last_queuing_order(database_context(sales))
        cut.append(
            sqlite_steps.steps(
                sales,
                lambda: views.queue_slices(
                    database_context(sales), QUEUE, rows_max=50, bytes_max=1 << 30, slices_max=1
                ),
            )
        )
        for first in (0, last - 50):
            span = (first, first + 50)
            read.append(
                sqlite_steps.steps(
                    sales, partial(views.read_slice, database_context(sales), QUEUE, span, ["message_body"])
                )
            )
    assert max(cut) < min(cut) * 1.5, cut
    assert max(read) < min(read) * 1.5, read
