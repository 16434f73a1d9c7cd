"""Batches of many conversations without subscribers: the fast path processes them together, and other rows individually."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import database_context
from tests.broker.dialog_calls import contents_of, drain, end, send, state, switch
from tests.broker.network.engine_pair import DEFAULT, ORDER, ORDERS, Pair, pair
from tests.protocol.pair import disable_fast_path

MANY = 20


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path, has_subscriber=False, max_fragment_bytes=100)
    yield made
    made.close()


def establish_dialogs(engines: Pair) -> list[tuple[uuid.UUID, uuid.UUID]]:
    """Establishes dialogs; returns the handles of both ends."""
    return [engines.establish() for _ in range(MANY)]


def received_by_dialog(engines: Pair) -> dict[uuid.UUID, list[bytes | str]]:
    """Receives the messages at the stock, by conversation."""
    found: dict[uuid.UUID, list[bytes | str]] = defaultdict(list)
    for row in drain(engines.stock.database):
        found[uuid.UUID(bytes=row["conversation_handle"])] += contents_of([row])
    return found


@pytest.mark.rule("P11")
def test_all_conversations_of_a_batch_receive_in_order(engines: Pair) -> None:
    dialogs = establish_dialogs(engines)
    for number in range(3):
        for place, (shop, _) in enumerate(dialogs):
            send(engines.shop.database, shop, b"%d of %d" % (number, place))
    assert engines.stock.receive_rows(engines.shop.rows()) is None
    assert received_by_dialog(engines) == {
        stock: [b"%d of %d" % (number, place) for number in range(3)] for place, (_, stock) in enumerate(dialogs)
    }
    rows = [engines.stock.endpoint_row((engines.shop.key(shop)[0], False)) for shop, _ in dialogs]
    assert [row.receive_sequence for row in rows if row is not None] == [4] * MANY


@pytest.mark.rule("P16")
def test_acknowledgements_of_many_conversations_remove_messages_and_close(engines: Pair) -> None:
    dialogs = establish_dialogs(engines)
    for shop, _ in dialogs:
        send(engines.shop.database, shop, b"1", b"2")
    ended, target = dialogs[0]
    end(engines.shop.database, ended)
    engines.exchange()
    assert engines.shop.count("transmission_queue") == 0
    assert received_by_dialog(engines)[target] == [b"1", b"2", "EndDialog"]
    assert {state(engines.shop.database, shop): shop == ended for shop, _ in dialogs} == {"CD": True, "CO": False}


def test_an_invalid_message_ends_only_its_conversation(engines: Pair) -> None:
    engines.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    dialogs = establish_dialogs(engines)
    for place, (shop, _) in enumerate(dialogs):
        send(engines.shop.database, shop, b"<a" if place == 3 else b"<a/>", message_type=ORDER)
    assert engines.stock.receive_rows(engines.shop.rows()) is None
    found = received_by_dialog(engines)
    assert found[dialogs[3][1]] == ["Error"]
    assert [found[stock] for _, stock in dialogs if stock != dialogs[3][1]] == [[b"<a/>"]] * (MANY - 1)


@pytest.mark.rule("P14", "P34")
def test_waiting_messages_are_received_before_later_ones(engines: Pair) -> None:
    dialogs = establish_dialogs(engines)
    (early, one), (parked, other) = dialogs[:2]
    send(engines.shop.database, early, b"1", b"2", message_type=DEFAULT)
    first, second = sorted(engines.shop.rows(), key=lambda row: row["message_sequence_number"])
    engines.stock.receive_rows([second])
    switch(engines.stock.database, ORDERS, on=False)
    send(engines.shop.database, parked, b"1")
    engines.stock.receive_rows(engines.shop.rows())
    switch(engines.stock.database, ORDERS, on=True)
    for shop, _ in dialogs:
        send(engines.shop.database, shop, b"last")
    engines.stock.receive_rows([first, *engines.shop.rows()])
    found = received_by_dialog(engines)
    assert (found[one], found[other]) == ([b"1", b"2", b"last"], [b"1", b"last"])
    assert {tuple(found[stock]) for _, stock in dialogs[2:]} == {(b"last",)}


def test_an_error_is_sent_despite_a_full_window(tmp_path: Path) -> None:
    """Messages dropped by an error leave the window only once the peer acknowledges it."""
    engines = pair(tmp_path, has_subscriber=False, window_bytes=100)
    shop, _ = engines.establish()
    end(engines.shop.database, shop, error=(12, "x" * 300))
    assert len(engines.shop.rows()) == 1
    engines.shop.dialogs.notify_queued([engines.shop.key(shop)])
    assert engines.shop.rows() == []
    assert (engines.shop.dialogs.next_timeout() or 0) > engines.shop.now
    engines.close()


QUERIES = (
    *(f"SELECT * FROM ssb_{name} ORDER BY 1, 2, 3" for name in ("conversation_endpoints", "fragments", "queues")),
    # Without the positions in queues: the conversations of one batch may have any order.
    """SELECT endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error, is_end_of_dialog, enqueue_time,
        message_body FROM ssb_transmission_queue ORDER BY endpoint_id, transmission_id""",
    """SELECT queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id, message_body
    FROM ssb_queued_messages WHERE queue_id <> 0 ORDER BY endpoint_id, queuing_order""",
)
TURNS = 40


@pytest.mark.parametrize("seed", range(6))
def test_the_fast_path_leaves_the_same_file(tmp_path: Path, seed: int) -> None:
    """Even if messages are parked, retained or validated at the same time."""
    files = [_run(tmp_path / name, seed, use_fast_path=name == "runs") for name in ("runs", "rows")]
    assert files[0] == files[1]


def _run(folder: Path, seed: int, *, use_fast_path: bool) -> list[object]:
    """Runs the operations of a seed; returns the tables of the stock after each turn."""
    folder.mkdir()
    rng = random.Random(seed)
    engines = pair(folder, has_subscriber=False, max_fragment_bytes=100)
    dialogs = establish_dialogs(engines)
    found: list[object] = []
    rows: list[dict[str, object]] = []
    runs = 0
    for _ in range(TURNS):
        if not use_fast_path:
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
        effects = engines.stock.process(rows)
        runs += len(effects.runs)
        assert engines.stock.commit_or_undo(effects) is None
        rows = [row for row in rows if rng.random() < 0.1]
        with database_context(engines.stock.database).file.read() as connection:
            found.append([connection.execute(query).fetchall() for query in QUERIES])
    engines.close()
    assert (runs > 5) == use_fast_path
    return found
