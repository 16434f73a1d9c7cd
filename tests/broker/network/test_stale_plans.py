"""Application changes between plan and commit take precedence; the batch is processed again without loss or duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssbroker._well_known import ERROR
from ssbroker.broker.network.inbound_writer import StalePlanError
from tests.broker.dialog_calls import REPLIES, contents, contents_of, drain, end, send
from tests.broker.network.engine_pair import MINUTE, ORDERS, TRADE, Pair, Row, Side, pair


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path, max_fragment_bytes=100)
    yield made
    made.close()


def commit_after(side: Side, rows: list[Row], change: Callable[[], object]) -> StalePlanError | None:
    """Runs `change` between plan and commit; asserts that a stale plan changes nothing."""
    effects = side.process(rows)
    change()
    before = contents(side.database)
    stale = side.commit_or_undo(effects)
    assert stale is None or contents(side.database) == before
    return stale


def test_a_cleanup_takes_precedence_and_the_peer_gets_an_error(engines: Pair) -> None:
    shop, stock = engines.establish()
    key = engines.shop.key(shop)
    send(engines.stock.database, stock, b"on their way")
    rows = engines.stock.rows()
    stale = commit_after(engines.shop, rows, lambda: end(engines.shop.database, shop, cleanup=True))
    assert stale is not None
    assert stale.keys == (key,)
    assert engines.shop.receive_rows(rows) is None
    engines.exchange()
    assert b"<Code>-8462</Code>" in drain(engines.stock.database, ORDERS)[0]["message_body"]


def test_an_acknowledgement_after_a_cleanup_is_harmless(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1")
    engines.stock.receive_rows(engines.shop.rows())
    engines.clock.advance(seconds=1)
    rows = engines.stock.rows()
    stale = commit_after(engines.shop, rows, lambda: end(engines.shop.database, shop, cleanup=True))
    assert stale is not None
    assert engines.shop.receive_rows(rows) is None
    assert engines.shop.count("conversation_endpoints") == 0


def test_messages_after_the_end_are_dropped(engines: Pair) -> None:
    """The state is checked at commit; the batch is not processed again."""
    shop, stock = engines.establish()
    send(engines.stock.database, stock, b"on their way")
    assert commit_after(engines.shop, engines.stock.rows(), lambda: end(engines.shop.database, shop)) is None
    assert drain(engines.shop.database, REPLIES) == []
    engines.exchange()
    near, far = engines.shop.row(shop), engines.stock.row(stock)
    assert near is not None
    assert far is not None
    assert (near.state, far.state) == ("CD", "DI")


def test_a_message_received_by_another_engine_is_not_received_twice(engines: Pair) -> None:
    """A message delivered by another engine makes the plan stale."""
    shop, stock = engines.establish()
    send(engines.shop.database, shop, b"1", b"2")
    rows = engines.shop.rows()
    effects = engines.stock.process(rows[:1])
    other = Side(engines.stock.folder, engines.clock, engines.stock.settings, peer=engines.stock.peer)
    other.instance, other.database = engines.stock.instance, engines.stock.database
    other.start()
    other.receive_rows(rows[:1])
    stale = engines.stock.commit_or_undo(effects)
    assert stale is not None
    assert stale.keys == (engines.stock.key(stock),)
    assert engines.stock.receive_rows(rows) is None
    assert contents_of(drain(engines.stock.database, ORDERS)) == [b"1", b"2"]


def test_a_conversation_started_by_another_engine_is_not_started_twice(engines: Pair) -> None:
    engines.begin(b"1", b"2")
    rows = engines.shop.rows()
    effects = engines.stock.process(rows)
    other = Side(engines.stock.folder, engines.clock, engines.stock.settings, peer=engines.stock.peer)
    other.instance, other.database = engines.stock.instance, engines.stock.database
    other.start()
    other.receive_rows(rows)
    stale = engines.stock.commit_or_undo(effects)
    assert stale is not None
    assert engines.stock.receive_rows(rows) is None
    engines.exchange(seconds=MINUTE)
    assert engines.stock.count("conversation_endpoints") == 1
    assert contents_of(drain(engines.stock.database, ORDERS)) == [b"1", b"2"]


@pytest.mark.parametrize("dropped", ["service", "contract"])
def test_a_dropped_service_receives_nothing(engines: Pair, dropped: str) -> None:
    engines.begin(b"1")
    rows = engines.shop.rows()

    def drop() -> None:
        if dropped == "service":
            engines.stock.database.drop_service("//Stock")
        else:
            engines.stock.database.alter_service("//Stock", drop_contracts=[TRADE])

    assert commit_after(engines.stock, rows, drop) is not None
    assert engines.stock.receive_rows(rows) is None
    assert engines.stock.count("conversation_endpoints") == 0


def test_an_altered_message_type_is_used(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"no XML", message_type="Order")
    rows = engines.shop.rows()
    stale = commit_after(
        engines.stock, rows, lambda: engines.stock.database.alter_message_type("Order", validation="WELL_FORMED_XML")
    )
    assert stale is not None
    assert engines.stock.receive_rows(rows) is None
    (row,) = drain(engines.stock.database, ORDERS)
    assert row["message_type_name"] == ERROR


@pytest.mark.rule("I2", "I5")
@pytest.mark.parametrize("option", ["DISABLE_BROKER", "NEW_BROKER", "mirror"])
def test_a_replaced_database_receives_nothing(engines: Pair, option: str) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1")

    def change() -> None:
        if option == "mirror":
            engines.stock.database.set_mirroring_role("mirror")
        elif option == "NEW_BROKER":
            engines.stock.database.set_broker("NEW_BROKER")
        else:
            engines.stock.database.set_broker("DISABLE_BROKER")

    stale = commit_after(engines.stock, engines.shop.rows(), change)
    assert stale is not None
    assert stale.is_database_changed


def test_empty_changes_need_no_transaction(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1")
    rows = engines.shop.rows()
    engines.stock.receive_rows(rows)
    effects = engines.stock.process(rows)
    assert effects.is_empty
    with engines.stock.database.transaction() as t:  # the commit does not wait for this lock
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        assert engines.stock.commit_or_undo(effects) is None
