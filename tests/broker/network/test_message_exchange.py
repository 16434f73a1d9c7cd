"""Conversations between instances, from SEND to RECEIVE and back (P16, P17)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.commit_signals import CommitSignals
from ssbroker.broker.context import InstanceContext
from ssbroker.broker.instance import Instance
from ssbroker.broker.live_routes import LiveRoutes
from ssbroker.broker.network import database_dialogs
from ssbroker.exceptions import StorageError
from ssbroker.protocol.events import MessageUndeliverable
from ssbroker.protocol.settings import SECOND, ProtocolSettings
from ssbroker.protocol.wire.frames import DropReason
from ssbroker.store import transmission_queue
from tests.broker import sample_databases
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received, received_types, states, statuses, waiting
from tests.internals import background_of, instance_of


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


@pytest.mark.rule("P16")
def test_a_message_is_kept_until_the_other_instance_has_stored_it(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.send(b"two chairs")
    assert len(waiting(shop_and_bank.sales)) == 1
    shop_and_bank.network.settle()
    assert waiting(shop_and_bank.sales) == []
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.rule("R7")
def test_the_answer_is_delivered_and_both_ends_close(shop_and_bank: ShopAndBank) -> None:
    dialog = shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    assert shop_and_bank.answer(b"on their way") == [b"two chairs"]
    shop_and_bank.network.settle()
    assert received(shop_and_bank.sales, REPLIES) == [b"on their way"]
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog)
    shop_and_bank.network.settle()
    assert received_types(shop_and_bank.stock) == ["EndDialog"]
    with shop_and_bank.stock.transaction() as t:
        (handle,) = (
            instance_of(shop_and_bank.stock).view("sys.conversation_endpoints")["conversation_handle"].to_pylist()
        )
        t.end_conversation(handle or b"")
    shop_and_bank.network.settle(seconds=2)
    assert (states(shop_and_bank.sales), states(shop_and_bank.stock)) == (["CD"], ["CD"])


@pytest.mark.rule("P11", "P18")
def test_a_closed_conversation_without_a_return_route_is_received_once(shop_and_bank: ShopAndBank) -> None:
    """The shop sends its messages again for as long as nothing acknowledges them."""
    shop_and_bank.stock.drop_route("Back")
    dialog = shop_and_bank.send(b"two chairs", broker_instance=shop_and_bank.stock.service_broker_guid)
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog)
    shop_and_bank.network.settle()
    (handle,) = instance_of(shop_and_bank.stock).view("sys.conversation_endpoints")["conversation_handle"].to_pylist()
    assert shop_and_bank.receive_orders() == [b"two chairs", b""]
    with shop_and_bank.stock.transaction() as t:
        t.end_conversation(handle or b"")
    for _ in range(80):
        shop_and_bank.network.settle(seconds=60)
        shop_and_bank.bank.run_due()
        assert (shop_and_bank.receive_orders(), states(shop_and_bank.stock)) == ([], ["CD"])
    shop_and_bank.stock.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.network.settle(seconds=80)
    shop_and_bank.network.settle(seconds=2)
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("P13")
def test_large_and_small_messages_arrive_in_order(shop_and_bank: ShopAndBank) -> None:
    bodies = [b"a" * 300_000, b"small", b"b" * 100_000, *(b"%d" % number for number in range(500))]
    shop_and_bank.send(*bodies)
    shop_and_bank.network.settle()
    assert shop_and_bank.receive_orders() == bodies


@pytest.mark.rule("P17")
def test_lost_messages_are_sent_again_after_four_seconds(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.lossy.add("TCP://bank:4022")
    shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    shop_and_bank.network.lossy.clear()
    shop_and_bank.network.settle(seconds=3)
    assert shop_and_bank.receive_orders() == []
    shop_and_bank.network.settle(seconds=2)
    assert shop_and_bank.receive_orders() == [b"two chairs"]
    shop_and_bank.network.settle(seconds=60)
    assert shop_and_bank.receive_orders() == []
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("P17")
def test_messages_to_an_unreachable_instance_are_sent_once_it_is_reachable(shop_and_bank: ShopAndBank) -> None:
    """They are sent as soon as the connection is reported, not after the waits of P17."""
    shop_and_bank.network.down.add("TCP://bank:4022")
    dialog = shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    assert statuses(shop_and_bank.sales) == {"9754"}
    with shop_and_bank.sales.transaction() as t:
        assert "TCP://bank:4022" in t.transmission_status(dialog)
    shop_and_bank.network.down.clear()
    shop_and_bank.network.pipe("shop").receiver.outbox_drained("TCP://bank:4022")
    shop_and_bank.network.settle()
    assert shop_and_bank.receive_orders() == [b"two chairs"]
    with shop_and_bank.sales.transaction() as t:
        assert t.transmission_status(dialog) == ""


def test_unacknowledged_messages_have_a_status(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.stock.drop_route("Back")
    shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    shop_and_bank.shop.run_due()
    assert statuses(shop_and_bank.sales) == {"9753"}
    shop_and_bank.network.settle(seconds=20)
    assert statuses(shop_and_bank.sales) == {"9753"}, "received messages without an acknowledgement keep the status"
    assert shop_and_bank.receive_orders() == [b"two chairs"], "only the route back is missing"
    shop_and_bank.stock.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.network.settle(seconds=80)
    assert waiting(shop_and_bank.sales) == []


def transmission_status(shop_and_bank: ShopAndBank, dialog: uuid.UUID) -> str:
    with shop_and_bank.sales.transaction() as t:
        return t.transmission_status(dialog)


@pytest.mark.rule("R26")
def test_a_missing_return_route_is_in_the_status(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.stock.drop_route("Back")
    dialog = shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    status = transmission_status(shop_and_bank, dialog)
    assert status.startswith(
        "9753: sent to TCP://bank:4022, but that instance cannot acknowledge it, because none of its routes"
    )
    assert "CREATE ROUTE" in status
    shop_and_bank.stock.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.network.settle(seconds=80)
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("R26")
def test_a_drop_at_the_target_is_in_the_status(shop_and_bank: ShopAndBank) -> None:
    """Without which services or routes it has."""
    shop_and_bank.sales.create_route("Typo", address="TCP://bank:4022", service_name="//Sotck")
    dialog = shop_and_bank.send(b"two chairs", to="//Sotck")
    shop_and_bank.network.settle()
    status = transmission_status(shop_and_bank, dialog)
    assert status.startswith(
        "9753: sent to TCP://bank:4022, but that instance has no route or service for it and dropped it."
    )
    assert "Message Undeliverable" in status
    assert "//" not in status.replace("TCP://", "")


@pytest.mark.rule("P26")
@pytest.mark.parametrize("size", [2_000, 200_000])
def test_a_message_that_is_too_large_for_the_target_is_in_the_status(shop_and_bank: ShopAndBank, size: int) -> None:
    """Of one fragment or several; it arrives once the limit is increased."""
    network = shop_and_bank.network
    network.crash("bank")
    network.instance("bank", settings=ProtocolSettings(max_message_bytes=1_000))
    dialog = shop_and_bank.send(b"small", b"x" * size, b"after it")
    network.settle(seconds=20)
    status = transmission_status(shop_and_bank, dialog)
    assert status.startswith("9753: sent to TCP://bank:4022, but the message is larger than that instance accepts")
    assert "limits.max_message_bytes" in status
    assert len(waiting(shop_and_bank.sales)) == 2
    network.crash("bank")
    bank = network.instance("bank")
    network.settle(seconds=80)
    network.settle(seconds=80)
    assert waiting(shop_and_bank.sales) == []
    assert received(bank.database(shop_and_bank.stock.name)) == [b"small", b"x" * size, b"after it"]


@pytest.mark.rule("R25")
def test_disabled_forwarding_is_in_the_status(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.sales.create_route("Elsewhere", address="TCP://bank:4022", service_name="//Depot")
    shop_and_bank.network.instances["bank"].msdb.create_route(
        "Depot", address="TCP://depot:4022", service_name="//Depot"
    )
    dialog = shop_and_bank.send(b"two chairs", to="//Depot")
    shop_and_bank.network.settle()
    status = transmission_status(shop_and_bank, dialog)
    assert status.startswith("9792: sent to TCP://bank:4022, but that instance would have to forward it")
    assert "MESSAGE_FORWARDING = ENABLED" in status


@pytest.mark.rule("R25")
def test_a_reason_that_is_not_renewed_is_forgotten(shop_and_bank: ShopAndBank) -> None:
    """Otherwise the status would still ask to enable forwarding when it is enabled, and the message is lost further on."""
    shop_and_bank.sales.create_route("Typo", address="TCP://bank:4022", service_name="//Sotck")
    dialog = shop_and_bank.send(b"two chairs", to="//Sotck")
    shop_and_bank.network.settle(seconds=80)
    shop_and_bank.shop.run_due()
    assert "dropped it" in transmission_status(shop_and_bank, dialog), "each retransmission renews the reason"
    shop_and_bank.network.lossy.add("TCP://bank:4022")
    for _ in range(3):
        shop_and_bank.network.settle(seconds=80)
        shop_and_bank.shop.run_due()
    status = transmission_status(shop_and_bank, dialog)
    assert status.startswith("9753: sent to TCP://bank:4022, but not acknowledged yet.")


@pytest.mark.threat("T6")
def test_an_instance_explains_only_what_is_sent_to_it(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.lossy.add("TCP://bank:4022")
    dialog = shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    conversation = instance_of(shop_and_bank.sales).view("sys.conversation_endpoints")["conversation_id"][0].as_py()
    reasons = {(conversation, True): DropReason.NOT_ACCEPTED}
    receiver = shop_and_bank.network.pipe("shop").receiver
    receiver.rows_dropped("TCP://stranger:4022", reasons)
    shop_and_bank.network.settle()
    assert transmission_status(shop_and_bank, dialog) == ""
    receiver.rows_dropped("TCP://bank:4022", reasons)
    shop_and_bank.network.settle()
    assert "dropped it" in transmission_status(shop_and_bank, dialog)


def test_a_full_outbox_holds_only_its_dialogs(shop_and_bank: ShopAndBank) -> None:
    other = shop_and_bank.network.instance("depot")
    depot = sample_databases.stock(other, "Depot")
    depot.create_service("//Depot", queue=sample_databases.ORDERS)
    depot.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.sales.create_route("Elsewhere", address="TCP://depot:4022", service_name="//Depot")
    pipe = shop_and_bank.network.pipe("shop")
    pipe.outbox_bytes = 1 << 20
    shop_and_bank.network.pipe("bank").pause()  # it reads nothing
    bodies = [bytes([number]) * 200_000 for number in range(40)]
    dialogs = [shop_and_bank.send(body) for body in bodies]
    shop_and_bank.send(b"elsewhere", to="//Depot")
    shop_and_bank.network.settle(seconds=1)
    assert received(depot) == [b"elsewhere"]
    assert sum(rows.nbytes for rows in pipe.outboxes["TCP://bank:4022"]) < 4 << 20
    shop_and_bank.network.pipe("bank").resume()
    shop_and_bank.network.settle(seconds=1)
    assert sorted(shop_and_bank.receive_orders()) == bodies
    assert len(dialogs) == len({*dialogs})


@pytest.mark.rule("R26")
def test_rows_without_a_route_are_dropped_and_reported(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.sales.create_route("Wrong", address="TCP://bank:4022", service_name="//Nobody")
    shop_and_bank.send(b"lost", to="//Nobody")
    shop_and_bank.network.settle(seconds=1)
    (event,) = shop_and_bank.network.emitted("bank", MessageUndeliverable)
    assert event.error == 11210
    assert event.text.startswith(
        'service_not_found: the service "//Nobody": no enabled database has it; received from '
    )
    assert len(waiting(shop_and_bank.sales)) == 1


def test_rows_of_local_endpoints_are_delivered_whatever_the_routes(shop_and_bank: ShopAndBank) -> None:
    dialog = shop_and_bank.send(b"first")
    shop_and_bank.network.settle()
    sample_databases.stock(shop_and_bank.bank, "Stock 2")
    shop_and_bank.bank.msdb.drop_route("AutoCreatedLocal")
    shop_and_bank.send(b"second", dialog=dialog)
    shop_and_bank.network.settle()
    assert shop_and_bank.receive_orders() == [b"first", b"second"]


@pytest.mark.rule("R8")
def test_a_conversation_stays_with_the_first_responding_copy(shop_and_bank: ShopAndBank) -> None:
    """Copies are used in turn; each conversation uses one of them."""
    second = shop_and_bank.network.instance("bank2")
    copy = sample_databases.stock(second, "Copy")
    copy.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.sales.create_route("There 2", address="TCP://bank2:4022", service_name=STOCK)
    dialogs = [shop_and_bank.send(b"%d" % number * 100_000) for number in range(4)]
    shop_and_bank.network.settle()
    for dialog in dialogs:
        shop_and_bank.send(b"more", dialog=dialog)
    shop_and_bank.network.settle()
    taken = [[body[:1] for body in received(each)] for each in (shop_and_bank.stock, copy)]
    assert sorted(taken[0] + taken[1]) == sorted([b"0", b"1", b"2", b"3", *[b"m"] * 4])
    assert all(len(each) == 4 for each in taken), "two conversations each"
    assert all(
        [first, second] == [first, b"m"] for each in taken for first, second in zip(each[::2], each[1::2], strict=True)
    )


@pytest.mark.rule("R41")
def test_an_own_address_is_not_dialled(shop_and_bank: ShopAndBank) -> None:
    stock = sample_databases.stock(shop_and_bank.shop, "Here")
    shop_and_bank.sales.alter_route("There", address="TCP://shop:4022")
    shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    assert received(stock) == [b"two chairs"]
    assert shop_and_bank.network.pipe("shop").sent == []


@pytest.mark.rule("R42", "R43")
def test_a_forwarder_stores_nothing(shop_and_bank: ShopAndBank) -> None:
    between = shop_and_bank.network.instance("between")
    between.execute(
        "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"
    )
    between.msdb.create_route("There", address="TCP://bank:4022", service_name=STOCK)
    between.msdb.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.sales.alter_route("There", address="TCP://between:4022")
    shop_and_bank.stock.alter_route("Back", address="TCP://between:4022")
    shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    assert shop_and_bank.answer(b"on their way") == [b"two chairs"]
    shop_and_bank.network.settle(seconds=2)
    assert received(shop_and_bank.sales, REPLIES) == [b"on their way"]
    assert (waiting(shop_and_bank.sales), waiting(shop_and_bank.stock)) == ([], [])
    assert between.view("sys.transmission_queue").num_rows == 0


def test_the_serving_process_sends_messages_of_other_processes(shop_and_bank: ShopAndBank) -> None:
    with (
        Instance.open(shop_and_bank.shop.folder, clock=shop_and_bank.network.clock, background=False) as other,
        other.database("Sales").transaction() as t,
    ):
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"from elsewhere")
    assert statuses(shop_and_bank.sales) == {""}, "the process that serves the instance sends it"
    shop_and_bank.network.settle(seconds=1)
    assert shop_and_bank.receive_orders() == [b"from elsewhere"]


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_clock_that_is_set_forward_during_a_poll_delays_no_later_polls(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch, *, is_announced: bool
) -> None:
    """The poll appears to take an hour; the next one finds the messages of other processes, announced or not."""
    newly_waiting = database_dialogs.DialogRegistry.newly_waiting

    def sets_the_clock(*given: Any) -> Any:
        shop_and_bank.network.clock.advance(seconds=3600)
        return newly_waiting(*given)

    shop_and_bank.network.settle()
    shop_and_bank.network.clock.advance(seconds=10)
    with monkeypatch.context() as patched:
        patched.setattr(database_dialogs.DialogRegistry, "newly_waiting", sets_the_clock)
        shop_and_bank.network.servers["shop"].exchange.turn()
    with (
        Instance.open(shop_and_bank.shop.folder, clock=shop_and_bank.network.clock, background=False) as other,
        other.database("Sales").transaction() as t,
        monkeypatch.context() as patched,
    ):
        if not is_announced:
            patched.setattr(CommitSignals, "notify", lambda *_: None)
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"from elsewhere")
    for _ in range(7):
        shop_and_bank.network.settle(seconds=10)
    assert shop_and_bank.receive_orders() == [b"from elsewhere"]


def test_a_second_server_is_rejected_with_the_id_of_the_first(shop_and_bank: ShopAndBank) -> None:
    with (
        Instance.open(shop_and_bank.shop.folder, background=False) as other,
        pytest.raises(StorageError, match="already serves the instance"),
    ):
        other.serve(port=0, allow_unencrypted=True).start()


@pytest.mark.rule("P16")
@pytest.mark.parametrize("who", ["shop", "bank"])
def test_a_crash_of_either_side_loses_and_duplicates_nothing(shop_and_bank: ShopAndBank, who: str) -> None:
    dialog = shop_and_bank.send(b"before")
    shop_and_bank.network.settle()
    shop_and_bank.send(b"x" * 200_000, b"between", dialog=dialog)
    shop_and_bank.network.servers["shop"].exchange.turn()
    shop_and_bank.network.crash(who)
    again = shop_and_bank.network.instance(who)
    sales = again.database("Sales") if who == "shop" else shop_and_bank.sales
    stock = again.database("Stock") if who == "bank" else shop_and_bank.stock
    with sales.transaction() as t:
        t.send(dialog, b"after")
    shop_and_bank.network.settle(seconds=80)
    shop_and_bank.network.settle(seconds=80)
    assert received(stock) == [b"before", b"x" * 200_000, b"between", b"after"]
    assert waiting(sales) == []


def test_an_end_by_the_application_overrides_a_plan(shop_and_bank: ShopAndBank) -> None:
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    shop_and_bank.answer(b"answer")
    shop_and_bank.network.servers["bank"].exchange.turn()
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    shop_and_bank.network.settle(seconds=80)
    assert received(shop_and_bank.sales, REPLIES) == []
    assert states(shop_and_bank.sales) == []
    assert received_types(shop_and_bank.stock) == ["Error"], "-8462: the remote endpoint does not exist"


@pytest.mark.rule("R33")
def test_a_disabled_database_receives_nothing_until_it_is_enabled(shop_and_bank: ShopAndBank) -> None:
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    shop_and_bank.stock.set_broker("DISABLE_BROKER")
    shop_and_bank.send(b"two", dialog=dialog)
    shop_and_bank.network.settle(seconds=1)
    assert len(waiting(shop_and_bank.sales)) == 1
    shop_and_bank.stock.set_broker("ENABLE_BROKER")
    shop_and_bank.network.settle(seconds=80)
    assert shop_and_bank.receive_orders() == [b"one", b"two"]


def test_a_sender_to_an_unknown_conversation_gets_an_error(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    shop_and_bank.sales.set_broker("NEW_BROKER")
    assert isinstance(shop_and_bank.sales.service_broker_guid, uuid.UUID)
    shop_and_bank.answer(b"to whom?")
    shop_and_bank.network.settle(seconds=1)
    assert len(waiting(shop_and_bank.stock)) == 1, "the broker id does not exist, so no error is sent"


def test_the_exchange_does_not_wait_for_long_writers(shop_and_bank: ShopAndBank) -> None:
    """Messages for a locked database are stored once its transaction has ended; none is lost or repeated."""
    shop_and_bank.send(b"held up")
    for server in shop_and_bank.network.servers.values():
        server.exchange.turn()
    shop_and_bank.network.pipe("shop").deliver()
    with shop_and_bank.stock.transaction() as t:
        t.connection.execute("CREATE TABLE slow (id INTEGER PRIMARY KEY)")
        next_turn = shop_and_bank.network.servers["bank"].exchange.turn()
    assert shop_and_bank.receive_orders() == []
    assert next_turn > 0, "the exchange must be called again"
    shop_and_bank.network.settle(seconds=1)
    assert shop_and_bank.receive_orders() == [b"held up"]


def test_run_due_runs_the_exchange_without_threads(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.send(b"two chairs")
    shop_and_bank.shop.run_due()
    shop_and_bank.network.pipe("shop").deliver()
    shop_and_bank.bank.run_due()
    assert shop_and_bank.receive_orders() == [b"two chairs"]


def test_a_changed_route_redirects_waiting_messages(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.down.add("TCP://bank:4022")
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    shop_and_bank.sales.drop_route("There")
    shop_and_bank.send(b"two", dialog=dialog)
    shop_and_bank.network.settle()
    shop_and_bank.shop.run_due()
    assert statuses(shop_and_bank.sales) == {"9796"}, "no other route and no local service exists"
    second = shop_and_bank.network.instance("bank2")
    copy = sample_databases.stock(second, "Copy")
    copy.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    shop_and_bank.sales.create_route("There", address="TCP://bank2:4022", service_name=STOCK)
    shop_and_bank.shop.run_due()
    shop_and_bank.network.settle(seconds=2)
    assert received(copy) == [b"one", b"two"]
    assert waiting(shop_and_bank.sales) == []


def test_waiting_messages_are_delivered_to_a_new_local_service(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.network.down.add("TCP://bank:4022")
    dialog = shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    here = sample_databases.stock(shop_and_bank.shop, "Here")
    shop_and_bank.sales.drop_route("There")
    shop_and_bank.shop.run_due()
    shop_and_bank.send(b"two", dialog=dialog)
    shop_and_bank.network.settle(seconds=80)
    shop_and_bank.shop.run_due()
    assert received(here) == [b"one", b"two"]
    assert waiting(shop_and_bank.sales) == []


def test_a_database_is_served_again_after_a_temporary_failure(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Stock.sqlite")

    with monkeypatch.context() as patched:
        patched.setattr(database_dialogs, "DatabaseDialogs", fails)
        shop_and_bank.stock.set_broker("DISABLE_BROKER")
        shop_and_bank.network.settle()
        shop_and_bank.stock.set_broker("ENABLE_BROKER")
        shop_and_bank.network.settle()
    shop_and_bank.send(b"two chairs")
    for _ in range(3):  # a failed database is checked every 10 s; then the next wait of P17 follows
        shop_and_bank.network.settle(seconds=70)
    assert shop_and_bank.receive_orders() == [b"two chairs"]
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("P16")
@pytest.mark.parametrize("what", ["messages", "routes"])
def test_messages_of_other_processes_are_found_after_a_failed_read(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A second later, without waiting for the scan of delivery."""

    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Sales.sqlite")

    shop_and_bank.network.settle(seconds=1)
    with (
        Instance.open(shop_and_bank.shop.folder, clock=shop_and_bank.network.clock, background=False) as other,
        other.database("Sales").transaction() as t,
    ):
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"from elsewhere")
    with monkeypatch.context() as patched:
        owner, method = (transmission_queue, "waiting_endpoints") if what == "messages" else (LiveRoutes, "decisions")
        patched.setattr(owner, method, fails)
        shop_and_bank.network.settle()
    next_turn = shop_and_bank.network.servers["shop"].exchange.turn()
    assert next_turn <= epoch_microseconds(shop_and_bank.network.clock()) + SECOND
    shop_and_bank.network.settle(seconds=1)
    assert shop_and_bank.receive_orders() == [b"from elsewhere"]


@pytest.mark.rule("P16")
@pytest.mark.parametrize("method", ["endpoints", "load_transmissions"])
def test_a_temporarily_unreadable_file_does_not_delay_others(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It delays neither other databases nor, once it is readable again, its own messages."""

    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Sales.sqlite")

    other = sample_databases.shop(shop_and_bank.shop, "Other")
    other.create_route("There", address="TCP://bank:4022", service_name=STOCK)
    exchange = shop_and_bank.network.servers["shop"].exchange
    exchange.turn()
    dialogs = exchange._dialogs.by_name("Sales")
    assert dialogs is not None
    with monkeypatch.context() as patched:
        patched.setattr(dialogs.storage, method, fails)
        shop_and_bank.send(b"waits")
        with other.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"goes")
        shop_and_bank.network.settle()
        shop_and_bank.network.pipe("shop").receiver.outbox_drained("TCP://bank:4022")
        shop_and_bank.network.settle()
        assert shop_and_bank.receive_orders() == [b"goes"]
    shop_and_bank.network.settle(seconds=1)
    assert shop_and_bank.receive_orders() == [b"waits"]


def test_a_temporarily_unreadable_catalog_is_used_in_the_next_turn(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise StorageError("the disk is out of reach", file="msdb.sqlite")

    shop_and_bank.network.settle()
    shop_and_bank.network.lossy.add("TCP://nobody:4022")
    shop_and_bank.sales.alter_route("There", address="TCP://nobody:4022")
    shop_and_bank.send(b"one")
    shop_and_bank.network.settle()
    shop_and_bank.sales.alter_route("There", address="TCP://bank:4022")
    with monkeypatch.context() as patched:
        patched.setattr(background_of(shop_and_bank.shop).catalog, "catalog", fails)
        with pytest.raises(StorageError):
            shop_and_bank.network.servers["shop"].exchange.turn()
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"one"]


@pytest.mark.rule("R54")
def test_another_databases_principal_does_not_release_held_dialogs(shop_and_bank: ShopAndBank) -> None:
    """Two routes have the same pair of addresses; the database of the first does not exist."""
    address, mirror_address = "TCP://bank:4022", "TCP://two:4022"
    shop_and_bank.sales.drop_route("There")
    shop_and_bank.network.down.add(mirror_address)
    for service, guid in (("//Other", uuid.uuid4()), (STOCK, shop_and_bank.stock.service_broker_guid)):
        shop_and_bank.sales.create_route(
            service, address=address, mirror_address=mirror_address, service_name=service, broker_instance=guid
        )
    shop_and_bank.send(b"waits", to="//Other")
    shop_and_bank.network.settle()
    shop_and_bank.send(b"goes")
    shop_and_bank.network.settle()
    assert shop_and_bank.receive_orders() == [b"goes"]
    all_dialogs = shop_and_bank.network.servers["shop"].exchange._dialogs.all()
    assert all(dialogs.engine.next_timeout() != 0 for dialogs in all_dialogs)


def test_a_failed_refresh_of_the_dialogs_is_repeated(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry cannot be read once, just when a database is to get new dialogs."""
    shop_and_bank.send(b"one")
    shop_and_bank.network.settle(seconds=1)
    exchange = shop_and_bank.network.servers["shop"].exchange
    read: Any = vars(InstanceContext)["databases"].fget
    failures = [StorageError("msdb: too many open files")]

    def fail_once(self: InstanceContext) -> Any:
        if failures:
            raise failures.pop()
        return read(self)

    all_dialogs = exchange._dialogs
    all_dialogs.needs_refresh = True
    with monkeypatch.context() as patch:
        patch.setattr(InstanceContext, "databases", property(fail_once))
        with pytest.raises(StorageError):
            all_dialogs.refresh()
    assert all_dialogs.needs_refresh
    shop_and_bank.send(b"two")
    shop_and_bank.network.settle(seconds=1)
    assert shop_and_bank.receive_orders() == [b"one", b"two"]
