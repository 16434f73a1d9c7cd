"""Batches of many conversations without subscribers: the fast path processes them together, and other rows individually."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import context_of as database_context
from tests.broker.dialog_calls import drain, end, said, send, state, switch
from tests.broker.network.engine_pair import DEFAULT, ORDER, ORDERS, Pair, pair
from tests.protocol.pair import take_no_runs

MANY = 20


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path, is_heard=False, max_fragment_bytes=100)
    yield made
    made.close()


def begun(both: Pair) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Dialogs that go on, as both ends know them."""
    return [both.bound() for _ in range(MANY)]


def taken(both: Pair) -> dict[uuid.UUID, list[bytes | str]]:
    """What the stock receives, by conversation."""
    found: dict[uuid.UUID, list[bytes | str]] = defaultdict(list)
    for row in drain(both.stock.database):
        found[uuid.UUID(bytes=row["conversation_handle"])] += said([row])
    return found


@pytest.mark.rule("P11")
def test_all_conversations_of_a_batch_receive_in_order(both: Pair) -> None:
    dialogs = begun(both)
    for number in range(3):
        for place, (shop, _) in enumerate(dialogs):
            send(both.shop.database, shop, b"%d of %d" % (number, place))
    assert both.stock.take(both.shop.rows()) is None
    assert taken(both) == {
        stock: [b"%d of %d" % (number, place) for number in range(3)] for place, (_, stock) in enumerate(dialogs)
    }
    rows = [both.stock.at((both.shop.key(shop)[0], False)) for shop, _ in dialogs]
    assert [row.receive_sequence for row in rows if row is not None] == [4] * MANY


@pytest.mark.rule("P16")
def test_acknowledgements_of_many_conversations_remove_messages_and_close(both: Pair) -> None:
    dialogs = begun(both)
    for shop, _ in dialogs:
        send(both.shop.database, shop, b"1", b"2")
    ended, told = dialogs[0]
    end(both.shop.database, ended)
    both.exchange()
    assert both.shop.count("transmission_queue") == 0
    assert taken(both)[told] == [b"1", b"2", "EndDialog"]
    assert {state(both.shop.database, shop): shop == ended for shop, _ in dialogs} == {"CD": True, "CO": False}


def test_an_invalid_message_ends_only_its_conversation(both: Pair) -> None:
    both.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    dialogs = begun(both)
    for place, (shop, _) in enumerate(dialogs):
        send(both.shop.database, shop, b"<a" if place == 3 else b"<a/>", message_type=ORDER)
    assert both.stock.take(both.shop.rows()) is None
    found = taken(both)
    assert found[dialogs[3][1]] == ["Error"]
    assert [found[stock] for _, stock in dialogs if stock != dialogs[3][1]] == [[b"<a/>"]] * (MANY - 1)


@pytest.mark.rule("P14", "P34")
def test_waiting_messages_are_received_before_later_ones(both: Pair) -> None:
    dialogs = begun(both)
    (early, one), (parked, other) = dialogs[:2]
    send(both.shop.database, early, b"1", b"2", message_type=DEFAULT)
    first, second = sorted(both.shop.rows(), key=lambda row: row["message_sequence_number"])
    both.stock.take([second])
    switch(both.stock.database, ORDERS, on=False)
    send(both.shop.database, parked, b"1")
    both.stock.take(both.shop.rows())
    switch(both.stock.database, ORDERS, on=True)
    for shop, _ in dialogs:
        send(both.shop.database, shop, b"last")
    both.stock.take([first, *both.shop.rows()])
    found = taken(both)
    assert (found[one], found[other]) == ([b"1", b"2", b"last"], [b"1", b"last"])
    assert {tuple(found[stock]) for _, stock in dialogs[2:]} == {(b"last",)}


def test_an_error_is_sent_despite_a_full_window(tmp_path: Path) -> None:
    """What an error of the application drops frees no room before its sender hears of it."""
    both = pair(tmp_path, is_heard=False, window_bytes=100)
    shop, _ = both.bound()
    end(both.shop.database, shop, error=(12, "x" * 300))
    assert len(both.shop.rows()) == 1
    both.shop.dialogs.notify_queued([both.shop.key(shop)])
    assert both.shop.rows() == []
    assert (both.shop.dialogs.next_timeout() or 0) > both.shop.now
    both.close()


QUERIES = (
    *(f"SELECT * FROM ssb_{name} ORDER BY 1, 2, 3" for name in ("conversation_endpoints", "fragments", "queues")),
    # But for the places in queues: conversations of one batch may stand there in any order.
    """SELECT endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error, is_end_of_dialog, enqueue_time,
        message_body FROM ssb_transmission_queue ORDER BY endpoint_id, transmission_id""",
    """SELECT queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id, message_body
    FROM ssb_queued_messages WHERE queue_id <> 0 ORDER BY endpoint_id, queuing_order""",
)
TURNS = 40


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_path_leaves_the_same_file(tmp_path: Path, seed: int) -> None:
    """Whatever is received, parked, retained, ended or validated in between."""
    files = [_played(tmp_path / name, seed, in_runs=name == "runs") for name in ("runs", "rows")]
    assert files[0] == files[1]


def _played(folder: Path, seed: int, *, in_runs: bool) -> list[object]:
    """The same story, told to another stock; what stands in its file at the end of each turn."""
    folder.mkdir()
    chance = random.Random(seed)
    both = pair(folder, is_heard=False, max_fragment_bytes=100)
    dialogs = begun(both)
    found: list[object] = []
    rows: list[dict[str, object]] = []
    runs = 0
    for _ in range(TURNS):
        if not in_runs:
            take_no_runs(both.stock.dialogs)
        for shop, _ in chance.sample(dialogs, chance.randint(1, 5)):
            bodies = [chance.randbytes(chance.choice([0, 1, 90, 250])) for _ in range(chance.randint(1, 4))]
            send(both.shop.database, shop, *bodies, message_type=chance.choice([ORDER, DEFAULT]))
        rows += both.shop.rows()
        match chance.randint(0, 9):
            case 0:
                switch(both.stock.database, ORDERS, on=bool(chance.randint(0, 1)))
            case 1:
                both.stock.database.alter_queue(ORDERS, retention=bool(chance.randint(0, 1)))
            case 2:
                both.stock.database.alter_message_type(ORDER, validation=chance.choice(["NONE", "EMPTY"]))
            case 3:
                switch(both.stock.database, ORDERS, on=True)
                drain(both.stock.database)
            case 4:
                chance.shuffle(rows)
            case 5:
                both.stock.restart()
            case _:
                pass
        effects = both.stock.arrived(rows)
        runs += len(effects.runs)
        assert both.stock.settle(effects) is None
        rows = [row for row in rows if chance.random() < 0.1]
        with database_context(both.stock.database).file.read() as connection:
            found.append([connection.execute(query).fetchall() for query in QUERIES])
    both.close()
    assert (runs > 5) == in_runs
    return found
