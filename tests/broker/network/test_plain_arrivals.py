"""Batches of many conversations, where nobody hears of events: what is plain is taken together, and the rest beside it as ever (N3)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.network.sides import DEFAULT, ORDER, ORDERS, Pair, pair
from tests.broker.talk import drain, end, said, send, state, switch

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


def test_p11_all_conversations_of_a_batch_get_theirs_in_order(both: Pair) -> None:
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


def test_p16_acknowledgements_of_many_empty_the_transmission_queue_and_close_who_has_ended(both: Pair) -> None:
    dialogs = begun(both)
    for shop, _ in dialogs:
        send(both.shop.database, shop, b"1", b"2")
    ended, told = dialogs[0]
    end(both.shop.database, ended)
    both.exchange()
    assert both.shop.count("transmission_queue") == 0
    assert taken(both)[told] == [b"1", b"2", "EndDialog"]
    assert {state(both.shop.database, shop): shop == ended for shop, _ in dialogs} == {"CD": True, "CO": False}


def test_b11_what_does_not_fit_ends_its_own_conversation_alone(both: Pair) -> None:
    both.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    dialogs = begun(both)
    for place, (shop, _) in enumerate(dialogs):
        send(both.shop.database, shop, b"<a" if place == 3 else b"<a/>", message_type=ORDER)
    assert both.stock.take(both.shop.rows()) is None
    found = taken(both)
    assert found[dialogs[3][1]] == ["Error"]
    assert [found[stock] for _, stock in dialogs if stock != dialogs[3][1]] == [[b"<a/>"]] * (MANY - 1)


def test_p14_p34_what_waits_comes_before_what_comes_after_it(both: Pair) -> None:
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
