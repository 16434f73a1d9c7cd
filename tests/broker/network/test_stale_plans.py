"""Changes by applications between plan and commit take precedence; the batch is processed again, and nothing is lost or duplicated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssbroker.broker.network.dialog_storage import StalePlan
from ssbroker.protocol.config import ERROR
from tests.broker.dialog_calls import REPLIES, contents, drain, end, said, send
from tests.broker.network.engine_pair import MINUTE, ORDERS, TRADE, Pair, Row, Side, pair


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path, max_fragment_bytes=100)
    yield made
    made.close()


def overtaken(side: Side, rows: list[Row], by: Callable[[], object]) -> StalePlan | None:
    """Something happens between plan and commit; where it is in the way, the commit leaves everything as it is."""
    effects = side.arrived(rows)
    by()
    before = contents(side.database)
    stale = side.settle(effects)
    assert stale is None or contents(side.database) == before
    return stale


def test_a_cleanup_takes_precedence_and_the_peer_gets_an_error(both: Pair) -> None:
    shop, stock = both.bound()
    key = both.shop.key(shop)
    send(both.stock.database, stock, b"on their way")
    rows = both.stock.rows()
    assert overtaken(both.shop, rows, lambda: end(both.shop.database, shop, cleanup=True)) == StalePlan((key,))
    assert both.shop.take(rows) is None
    both.exchange()
    assert b"<Code>-8462</Code>" in drain(both.stock.database, ORDERS)[0]["message_body"]


def test_an_acknowledgement_after_a_cleanup_is_harmless(both: Pair) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"1")
    both.stock.take(both.shop.rows())
    both.clock.advance(seconds=1)
    rows = both.stock.rows()
    stale = overtaken(both.shop, rows, lambda: end(both.shop.database, shop, cleanup=True))
    assert stale is not None
    assert both.shop.take(rows) is None
    assert both.shop.count("conversation_endpoints") == 0


def test_messages_after_the_end_are_dropped(both: Pair) -> None:
    """Its state is looked at when it is written; nothing has to be taken again for that."""
    shop, stock = both.bound()
    send(both.stock.database, stock, b"on their way")
    assert overtaken(both.shop, both.stock.rows(), lambda: end(both.shop.database, shop)) is None
    assert drain(both.shop.database, REPLIES) == []
    both.exchange()
    near, far = both.shop.row(shop), both.stock.row(stock)
    assert near is not None
    assert far is not None
    assert (near.state, far.state) == ("CD", "DI")


def test_a_message_received_otherwise_is_not_received_twice(both: Pair) -> None:
    """A message that was delivered meanwhile without the machine makes its plan one of the past."""
    shop, stock = both.bound()
    send(both.shop.database, shop, b"1", b"2")
    rows = both.shop.rows()
    effects = both.stock.arrived(rows[:1])
    other = Side(both.stock.folder, both.clock, both.stock.settings, peer=both.stock.peer)
    other.instance, other.database = both.stock.instance, both.stock.database
    other.start()
    other.take(rows[:1])
    stale = both.stock.settle(effects)
    assert stale == StalePlan((both.stock.key(stock),))
    assert both.stock.take(rows) is None
    assert said(drain(both.stock.database, ORDERS)) == [b"1", b"2"]


def test_a_conversation_begun_otherwise_does_not_begin_twice(both: Pair) -> None:
    both.begin(b"1", b"2")
    rows = both.shop.rows()
    effects = both.stock.arrived(rows)
    other = Side(both.stock.folder, both.clock, both.stock.settings, peer=both.stock.peer)
    other.instance, other.database = both.stock.instance, both.stock.database
    other.start()
    other.take(rows)
    stale = both.stock.settle(effects)
    assert stale is not None
    assert both.stock.take(rows) is None
    both.exchange(seconds=MINUTE)
    assert both.stock.count("conversation_endpoints") == 1
    assert said(drain(both.stock.database, ORDERS)) == [b"1", b"2"]


@pytest.mark.parametrize("drops", ["service", "contract"])
def test_a_dropped_service_receives_nothing(both: Pair, drops: str) -> None:
    both.begin(b"1")
    rows = both.shop.rows()

    def drop() -> None:
        if drops == "service":
            both.stock.database.drop_service("//Stock")
        else:
            both.stock.database.alter_service("//Stock", drop_contracts=[TRADE])

    assert overtaken(both.stock, rows, drop) is not None
    assert both.stock.take(rows) is None
    assert both.stock.count("conversation_endpoints") == 0


def test_an_altered_message_type_is_used(both: Pair) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"no XML", message_type="Order")
    rows = both.shop.rows()
    stale = overtaken(
        both.stock, rows, lambda: both.stock.database.alter_message_type("Order", validation="WELL_FORMED_XML")
    )
    assert stale is not None
    assert both.stock.take(rows) is None
    (row,) = drain(both.stock.database, ORDERS)
    assert row["message_type_name"] == ERROR


@pytest.mark.rule("I2", "I5")
@pytest.mark.parametrize("option", ["DISABLE_BROKER", "NEW_BROKER", "mirror"])
def test_a_replaced_database_receives_nothing(both: Pair, option: str) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"1")

    def change() -> None:
        if option == "mirror":
            both.stock.database.set_mirroring_role("mirror")
        elif option == "NEW_BROKER":
            both.stock.database.set_broker("NEW_BROKER")
        else:
            both.stock.database.set_broker("DISABLE_BROKER")

    assert overtaken(both.stock, both.shop.rows(), change) == StalePlan(is_database_changed=True)


def test_nothing_to_write_needs_no_transaction(both: Pair) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"1")
    rows = both.shop.rows()
    both.stock.take(rows)
    effects = both.stock.arrived(rows)
    assert effects.is_empty
    with both.stock.database.transaction() as t:  # who has the lock keeps nobody waiting
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        assert both.stock.settle(effects) is None
