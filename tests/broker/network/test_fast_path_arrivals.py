"""Batches of many conversations without subscribers: the fast path processes them together, and other rows individually."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import context_of as database_context
from tests.broker.dialog_calls import contents_of, drain, end, send, state, switch
from tests.broker.network.engine_pair import DEFAULT, ORDER, ORDERS, Pair, pair
from tests.protocol.pair import disable_fast_path

MANY = 20


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path, is_heard=False, max_fragment_bytes=100)
    yield made
    made.close()


def begun(engines: Pair) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Dialogs that go on, as both ends know them."""
    return [engines.bound() for _ in range(MANY)]


def received_by_dialog(engines: Pair) -> dict[uuid.UUID, list[bytes | str]]:
    """What the stock receives, by conversation."""
    found: dict[uuid.UUID, list[bytes | str]] = defaultdict(list)
    for row in drain(engines.stock.database):
        found[uuid.UUID(bytes=row["conversation_handle"])] += contents_of([row])
    return found


@pytest.mark.rule("P11")
def test_all_conversations_of_a_batch_receive_in_order(engines: Pair) -> None:
    dialogs = begun(engines)
    for number in range(3):
        for place, (shop, _) in enumerate(dialogs):
            send(engines.shop.database, shop, b"%d of %d" % (number, place))
    assert engines.stock.take(engines.shop.rows()) is None
    assert received_by_dialog(engines) == {
        stock: [b"%d of %d" % (number, place) for number in range(3)] for place, (_, stock) in enumerate(dialogs)
    }
    rows = [engines.stock.at((engines.shop.key(shop)[0], False)) for shop, _ in dialogs]
    assert [row.receive_sequence for row in rows if row is not None] == [4] * MANY


@pytest.mark.rule("P16")
def test_acknowledgements_of_many_conversations_remove_messages_and_close(engines: Pair) -> None:
    dialogs = begun(engines)
    for shop, _ in dialogs:
        send(engines.shop.database, shop, b"1", b"2")
    ended, emitted = dialogs[0]
    end(engines.shop.database, ended)
    engines.exchange()
    assert engines.shop.count("transmission_queue") == 0
    assert received_by_dialog(engines)[emitted] == [b"1", b"2", "EndDialog"]
    assert {state(engines.shop.database, shop): shop == ended for shop, _ in dialogs} == {"CD": True, "CO": False}


def test_an_invalid_message_ends_only_its_conversation(engines: Pair) -> None:
    engines.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    dialogs = begun(engines)
    for place, (shop, _) in enumerate(dialogs):
        send(engines.shop.database, shop, b"<a" if place == 3 else b"<a/>", message_type=ORDER)
    assert engines.stock.take(engines.shop.rows()) is None
    found = received_by_dialog(engines)
    assert found[dialogs[3][1]] == ["Error"]
    assert [found[stock] for _, stock in dialogs if stock != dialogs[3][1]] == [[b"<a/>"]] * (MANY - 1)


@pytest.mark.rule("P14", "P34")
def test_waiting_messages_are_received_before_later_ones(engines: Pair) -> None:
    dialogs = begun(engines)
    (early, one), (parked, other) = dialogs[:2]
    send(engines.shop.database, early, b"1", b"2", message_type=DEFAULT)
    first, second = sorted(engines.shop.rows(), key=lambda row: row["message_sequence_number"])
    engines.stock.take([second])
    switch(engines.stock.database, ORDERS, on=False)
    send(engines.shop.database, parked, b"1")
    engines.stock.take(engines.shop.rows())
    switch(engines.stock.database, ORDERS, on=True)
    for shop, _ in dialogs:
        send(engines.shop.database, shop, b"last")
    engines.stock.take([first, *engines.shop.rows()])
    found = received_by_dialog(engines)
    assert (found[one], found[other]) == ([b"1", b"2", b"last"], [b"1", b"last"])
    assert {tuple(found[stock]) for _, stock in dialogs[2:]} == {(b"last",)}


def test_an_error_is_sent_despite_a_full_window(tmp_path: Path) -> None:
    """What an error of the application drops frees no room before its sender hears of it."""
    engines = pair(tmp_path, is_heard=False, window_bytes=100)
    shop, _ = engines.bound()
    end(engines.shop.database, shop, error=(12, "x" * 300))
    assert len(engines.shop.rows()) == 1
    engines.shop.dialogs.notify_queued([engines.shop.key(shop)])
    assert engines.shop.rows() == []
    assert (engines.shop.dialogs.next_timeout() or 0) > engines.shop.now
    engines.close()


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
    rng = random.Random(seed)
    engines = pair(folder, is_heard=False, max_fragment_bytes=100)
    dialogs = begun(engines)
    found: list[object] = []
    rows: list[dict[str, object]] = []
    runs = 0
    for _ in range(TURNS):
        if not in_runs:
            disable_fast_path(engines.stock.dialogs)
        for shop, _ in rng.sample(dialogs, rng.randint(1, 5)):
            bodies = [rng.randbytes(rng.choice([0, 1, 90, 250])) for _ in range(rng.randint(1, 4))]
            send(engines.shop.database, shop, *bodies, message_type=rng.choice([ORDER, DEFAULT]))
        rows += engines.shop.rows()
        match rng.randint(0, 9):
            case 0:
                switch(engines.stock.database, ORDERS, on=bool(rng.randint(0, 1)))
            case 1:
                engines.stock.database.alter_queue(ORDERS, retention=bool(rng.randint(0, 1)))
            case 2:
                engines.stock.database.alter_message_type(ORDER, validation=rng.choice(["NONE", "EMPTY"]))
            case 3:
                switch(engines.stock.database, ORDERS, on=True)
                drain(engines.stock.database)
            case 4:
                rng.shuffle(rows)
            case 5:
                engines.stock.restart()
            case _:
                pass
        effects = engines.stock.arrived(rows)
        runs += len(effects.runs)
        assert engines.stock.settle(effects) is None
        rows = [row for row in rows if rng.random() < 0.1]
        with database_context(engines.stock.database).file.read() as connection:
            found.append([connection.execute(query).fetchall() for query in QUERIES])
    engines.close()
    assert (runs > 5) == in_runs
    return found
