"""A few messages of known dialogs are written in the thread that receives them; everything else waits for a turn of the exchange."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.network.message_exchange import RECEIVE_NOW_BYTES_MAX, RECEIVE_NOW_ROWS_MAX
from ssbroker.protocol.settings import SECOND
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received_types, waiting


class Connected:
    """A shop and a bank with a dialog whose first message has been answered; `wakes` has the time of each wake of the bank's exchange, None for immediately."""

    def __init__(self, both: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> None:
        self.both = both
        self.dialog = both.send(b"first")
        both.network.settle()
        assert both.answer(b"yes") == [b"first"]
        both.network.settle()
        self.exchange = both.network.servers["bank"].exchange
        self.exchange.turn()
        self.wakes: list[int | None] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(self.exchange, "_wake", lambda at=None: self.wakes.append(at))

    def arrived(self, *bodies: bytes, dialog: uuid.UUID | None) -> list[bytes]:
        """Sends messages to the bank; returns those that can be received there without a turn of its exchange."""
        self.both.send(*bodies, dialog=dialog)
        self.both.network.servers["shop"].exchange.turn()
        self.deliver()
        return self.both.receive_orders()

    def deliver(self) -> None:
        """Delivers rows as to an instance with threads."""
        with self._monkeypatch.context() as patch:
            patch.setattr(self.exchange._instance, "background", True)
            self.both.network.pipe("shop").deliver()


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connected]:
    for both in shop_and_bank_pair(tmp_path):
        yield Connected(both, monkeypatch)


def test_messages_can_be_received_before_the_next_turn(connected: Connected) -> None:
    assert connected.arrived(b"two chairs", dialog=connected.dialog) == [b"two chairs"]
    assert connected.arrived(b"a table", b"a lamp", dialog=connected.dialog) == [b"a table", b"a lamp"]
    now = epoch_microseconds(connected.both.network.clock())
    assert all(at is not None and at > now for at in connected.wakes), (
        "an acknowledgement waits for a message that carries it"
    )


@pytest.mark.rule("P16")
def test_messages_are_acknowledged_later_and_received_once(connected: Connected) -> None:
    connected.arrived(b"two chairs", dialog=connected.dialog)
    assert len(waiting(connected.both.sales)) == 1
    connected.both.network.settle(seconds=2)
    assert waiting(connected.both.sales) == []
    assert connected.both.receive_orders() == []


@pytest.mark.parametrize(
    "bodies", [[b"%d" % number for number in range(RECEIVE_NOW_ROWS_MAX + 1)], [bytes(RECEIVE_NOW_BYTES_MAX)]]
)
def test_many_rows_or_bytes_wait_for_a_turn(connected: Connected, bodies: list[bytes]) -> None:
    assert connected.arrived(*bodies, dialog=connected.dialog) == []
    assert None in connected.wakes
    connected.exchange.turn()
    assert connected.both.receive_orders() == bodies


def test_a_new_dialog_waits_for_a_turn(connected: Connected) -> None:
    assert connected.arrived(b"two chairs", dialog=None) == []
    connected.exchange.turn()
    assert connected.both.receive_orders() == [b"two chairs"]


def test_messages_wait_for_earlier_ones(connected: Connected) -> None:
    bodies = [b"%d" % number for number in range(RECEIVE_NOW_ROWS_MAX + 1)]
    connected.arrived(*bodies, dialog=connected.dialog)
    assert connected.arrived(b"last", dialog=connected.dialog) == []
    connected.exchange.turn()
    assert connected.both.receive_orders() == [*bodies, b"last"]


def test_messages_for_a_locked_database_wait_for_a_turn(connected: Connected) -> None:
    """The thread that receives does not wait for the transaction of an application, in this process or another."""
    connected.both.send(b"held up", dialog=connected.dialog)
    connected.both.network.servers["shop"].exchange.turn()
    with connected.both.stock.transaction() as t:
        t.connection.execute("CREATE TABLE slow (id INTEGER PRIMARY KEY)")
        connected.deliver()
    assert connected.both.receive_orders() == []
    connected.both.network.settle()
    assert connected.both.receive_orders() == [b"held up"]


def test_messages_for_a_file_that_another_process_has_locked_wait_for_a_turn(connected: Connected) -> None:
    import apsw  # noqa: PLC0415  # as the package does

    connected.both.send(b"held up", dialog=connected.dialog)
    connected.both.network.servers["shop"].exchange.turn()
    (dialogs,) = [each for each in connected.exchange._dialogs.all() if each.database.name == connected.both.stock.name]
    other = apsw.Connection(str(dialogs.database.file.path))
    try:
        other.execute("BEGIN IMMEDIATE")
        connected.deliver()
        assert None in connected.wakes, "a turn tries again"
    finally:
        other.close(force=True)
    connected.both.network.settle()
    assert connected.both.receive_orders() == [b"held up"]


def test_messages_wait_while_another_thread_uses_the_dialogs(connected: Connected) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        connected.exchange._guard.acquire(timeout=60.0)
        entered.set()
        leave.wait(60)
        connected.exchange._guard.release()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(60)
    try:
        assert connected.arrived(b"two chairs", dialog=connected.dialog) == []
    finally:
        leave.set()
        holder.join()
    connected.exchange.turn()
    assert connected.both.receive_orders() == [b"two chairs"]


def test_messages_wait_until_changed_routes_are_followed(connected: Connected) -> None:
    connected.both.stock.create_route("New", address="TCP://elsewhere:4022", service_name="//Elsewhere")
    assert connected.arrived(b"two chairs", dialog=connected.dialog) == []
    connected.exchange.turn()
    assert connected.both.receive_orders() == [b"two chairs"]


@pytest.mark.rule("R3")
def test_an_expiring_route_is_followed_by_a_turn(connected: Connected) -> None:
    """Nothing else informs the exchange that messages take a different route from then on."""
    connected.both.stock.create_route("Soon", address="TCP://elsewhere:4022", service_name="//Elsewhere", lifetime=3)
    expires_at = epoch_microseconds(connected.both.network.clock()) + 3 * SECOND
    assert connected.exchange.turn() <= expires_at


def test_a_changed_validation_applies_to_the_next_message(connected: Connected) -> None:
    """The plan may use the objects that were read last; what is written follows the objects as they are."""
    both = connected.both
    definition = "CREATE MESSAGE TYPE [Line] VALIDATION = NONE; CREATE CONTRACT [Lines] ([Line] SENT BY ANY);"
    both.shop.execute(f"USE [{both.sales.name}]; {definition}")
    both.bank.execute(f"USE [{both.stock.name}]; {definition} ALTER SERVICE [{STOCK}] (ADD CONTRACT [Lines])")
    with both.sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, encryption=False, contract="Lines")
        t.send(dialog, b"first", message_type="Line")
    both.network.settle(seconds=2)
    assert both.receive_orders() == [b"first"]
    both.bank.execute(f"USE [{both.stock.name}]; ALTER MESSAGE TYPE [Line] VALIDATION = WELL_FORMED_XML")
    with both.sales.transaction() as t:
        t.send(dialog, b"no XML", message_type="Line")
    both.network.settle(seconds=2)
    assert received_types(both.stock) == ["Error"]
    assert received_types(both.sales, REPLIES)[-1] == "Error"
