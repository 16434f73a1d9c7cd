"""P16, P17: conversations between instances, from SEND to RECEIVE and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.instance import Instance, background_of
from ssbroker.broker.network import database_dialogs
from ssbroker.exceptions import StorageError
from ssbroker.protocol.events import MessageUndeliverable
from tests.broker import sample_databases
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received, received_types, states, statuses, waiting
from tests.internals import instance_of


@pytest.fixture
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


@pytest.mark.rule("P16")
def test_a_message_is_kept_until_the_other_instance_has_stored_it(both: ShopAndBank) -> None:
    both.send(b"two chairs")
    assert len(waiting(both.sales)) == 1
    both.pipes.settle()
    assert waiting(both.sales) == []
    assert both.ordered() == [b"two chairs"]


@pytest.mark.rule("R7")
def test_the_answer_is_delivered_and_both_ends_close(both: ShopAndBank) -> None:
    dialog = both.send(b"two chairs")
    both.pipes.settle()
    assert both.answer(b"on their way") == [b"two chairs"]
    both.pipes.settle()
    assert received(both.sales, REPLIES) == [b"on their way"]
    with both.sales.transaction() as t:
        t.end_conversation(dialog)
    both.pipes.settle()
    assert received_types(both.stock) == ["EndDialog"]
    with both.stock.transaction() as t:
        (handle,) = instance_of(both.stock).view("sys.conversation_endpoints")["conversation_handle"].to_pylist()
        t.end_conversation(handle or b"")
    both.pipes.settle(seconds=2)
    assert (states(both.sales), states(both.stock)) == (["CD"], ["CD"])


@pytest.mark.rule("P13")
def test_large_and_small_messages_arrive_in_order(both: ShopAndBank) -> None:
    bodies = [b"a" * 300_000, b"small", b"b" * 100_000, *(b"%d" % number for number in range(500))]
    both.send(*bodies)
    both.pipes.settle()
    assert both.ordered() == bodies


@pytest.mark.rule("P17")
def test_lost_messages_are_sent_again_after_four_seconds(both: ShopAndBank) -> None:
    both.pipes.swallows.add("TCP://bank:4022")
    both.send(b"two chairs")
    both.pipes.settle()
    both.pipes.swallows.clear()
    both.pipes.settle(seconds=3)
    assert both.ordered() == []
    both.pipes.settle(seconds=2)
    assert both.ordered() == [b"two chairs"]
    both.pipes.settle(seconds=60)
    assert both.ordered() == []
    assert waiting(both.sales) == []


@pytest.mark.rule("P17")
def test_messages_to_an_unreachable_instance_are_sent_once_it_is_reachable(both: ShopAndBank) -> None:
    """Not after the waits of P17: the connection is told of."""
    both.pipes.down.add("TCP://bank:4022")
    dialog = both.send(b"two chairs")
    both.pipes.settle()
    assert statuses(both.sales) == {"9754"}
    with both.sales.transaction() as t:
        assert "TCP://bank:4022" in t.transmission_status(dialog)
    both.pipes.down.clear()
    both.pipes.pipe("shop").receiver.outbox_drained("TCP://bank:4022")
    both.pipes.settle()
    assert both.ordered() == [b"two chairs"]
    with both.sales.transaction() as t:
        assert t.transmission_status(dialog) == ""


def test_unacknowledged_messages_have_a_status(both: ShopAndBank) -> None:
    both.stock.drop_route("Back")
    both.send(b"two chairs")
    both.pipes.settle(seconds=5)
    both.shop.run_due()
    assert statuses(both.sales) == {"9753"}
    both.pipes.settle(seconds=20)
    assert statuses(both.sales) == {"9753"}, "that the bank is there, and takes what comes again, is no answer"
    assert both.ordered() == [b"two chairs"], "it is there: what is missing is the way back"
    both.stock.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    both.pipes.settle(seconds=80)
    assert waiting(both.sales) == []


def test_a_full_outbox_holds_only_its_dialogs(both: ShopAndBank) -> None:
    other = both.pipes.instance("depot")
    depot = sample_databases.stock(other, "Depot")
    depot.create_service("//Depot", queue=sample_databases.ORDERS)
    depot.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    both.sales.create_route("Elsewhere", address="TCP://depot:4022", service_name="//Depot")
    pipe = both.pipes.pipe("shop")
    pipe.room = 1 << 20
    both.pipes.pipe("bank").pause()  # it reads nothing
    bodies = [bytes([number]) * 200_000 for number in range(40)]
    dialogs = [both.send(body) for body in bodies]
    both.send(b"elsewhere", to="//Depot")
    both.pipes.settle(seconds=1)
    assert received(depot) == [b"elsewhere"]
    assert sum(rows.nbytes for rows in pipe.outboxes["TCP://bank:4022"]) < 4 << 20
    both.pipes.pipe("bank").resume()
    both.pipes.settle(seconds=1)
    assert sorted(both.ordered()) == bodies
    assert len(dialogs) == len({*dialogs})


@pytest.mark.rule("R26")
def test_rows_without_a_route_are_dropped_and_reported(both: ShopAndBank) -> None:
    both.sales.create_route("Wrong", address="TCP://bank:4022", service_name="//Nobody")
    both.send(b"lost", to="//Nobody")
    both.pipes.settle(seconds=1)
    (told,) = both.pipes.told("bank", MessageUndeliverable)
    assert told.error == 11210
    assert told.text.startswith('service_not_found: no service or route for "//Nobody"; received from ')
    assert len(waiting(both.sales)) == 1


def test_rows_of_local_endpoints_are_delivered_whatever_the_routes(both: ShopAndBank) -> None:
    dialog = both.send(b"first")
    both.pipes.settle()
    sample_databases.stock(both.bank, "Stock 2")
    both.bank.msdb.drop_route("AutoCreatedLocal")
    both.send(b"second", dialog=dialog)
    both.pipes.settle()
    assert both.ordered() == [b"first", b"second"]


@pytest.mark.rule("R8")
def test_a_conversation_stays_with_the_first_responding_copy(both: ShopAndBank) -> None:
    """Copies take turns, one conversation goes one way."""
    second = both.pipes.instance("bank2")
    copy = sample_databases.stock(second, "Copy")
    copy.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    both.sales.create_route("There 2", address="TCP://bank2:4022", service_name=STOCK)
    dialogs = [both.send(b"%d" % number * 100_000) for number in range(4)]
    both.pipes.settle()
    for dialog in dialogs:
        both.send(b"more", dialog=dialog)
    both.pipes.settle()
    taken = [[body[:1] for body in received(each)] for each in (both.stock, copy)]
    assert sorted(taken[0] + taken[1]) == sorted([b"0", b"1", b"2", b"3", *[b"m"] * 4])
    assert all(len(each) == 4 for each in taken), "two conversations each"
    assert all(
        [first, second] == [first, b"m"] for each in taken for first, second in zip(each[::2], each[1::2], strict=True)
    )


@pytest.mark.rule("R41")
def test_an_own_address_is_not_dialed(both: ShopAndBank) -> None:
    stock = sample_databases.stock(both.shop, "Here")
    both.sales.alter_route("There", address="TCP://shop:4022")
    both.send(b"two chairs")
    both.pipes.settle()
    assert received(stock) == [b"two chairs"]
    assert both.pipes.pipe("shop").sent == []


@pytest.mark.rule("R42", "R43")
def test_a_forwarder_stores_nothing(both: ShopAndBank) -> None:
    """Initiator, forwarder, target."""
    between = both.pipes.instance("between")
    between.execute(
        "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"
    )
    between.msdb.create_route("There", address="TCP://bank:4022", service_name=STOCK)
    between.msdb.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    both.sales.alter_route("There", address="TCP://between:4022")
    both.stock.alter_route("Back", address="TCP://between:4022")
    both.send(b"two chairs")
    both.pipes.settle()
    assert both.answer(b"on their way") == [b"two chairs"]
    both.pipes.settle(seconds=2)
    assert received(both.sales, REPLIES) == [b"on their way"]
    assert (waiting(both.sales), waiting(both.stock)) == ([], [])
    assert between.view("sys.transmission_queue").num_rows == 0


def test_the_serving_process_sends_messages_of_other_processes(both: ShopAndBank) -> None:
    with (
        Instance.open(both.shop.folder, clock=both.pipes.clock, background=False) as other,
        other.database("Sales").transaction() as t,
    ):
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"from elsewhere")
    assert statuses(both.sales) == {""}, "whoever serves carries it"
    both.pipes.settle(seconds=1)
    assert both.ordered() == [b"from elsewhere"]


def test_a_second_server_is_rejected_with_the_id_of_the_first(both: ShopAndBank) -> None:
    with (
        Instance.open(both.shop.folder, background=False) as other,
        pytest.raises(StorageError, match="already serves the instance"),
    ):
        other.serve(port=0, allow_unencrypted=True).start()


@pytest.mark.rule("P16")
@pytest.mark.parametrize("who", ["shop", "bank"])
def test_a_crash_of_either_side_loses_and_duplicates_nothing(both: ShopAndBank, who: str) -> None:
    dialog = both.send(b"before")
    both.pipes.settle()
    both.send(b"x" * 200_000, b"between", dialog=dialog)
    both.pipes.servers["shop"].exchange.turn()
    both.pipes.crash(who)
    again = both.pipes.instance(who)
    sales = again.database("Sales") if who == "shop" else both.sales
    stock = again.database("Stock") if who == "bank" else both.stock
    with sales.transaction() as t:
        t.send(dialog, b"after")
    both.pipes.settle(seconds=80)
    both.pipes.settle(seconds=80)
    assert received(stock) == [b"before", b"x" * 200_000, b"between", b"after"]
    assert waiting(sales) == []


def test_an_end_by_the_application_overrides_a_plan(both: ShopAndBank) -> None:
    dialog = both.send(b"one")
    both.pipes.settle()
    both.answer(b"answer")
    both.pipes.servers["bank"].exchange.turn()
    with both.sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    both.pipes.settle(seconds=80)
    assert received(both.sales, REPLIES) == []
    assert states(both.sales) == []
    assert received_types(both.stock) == ["Error"], "-8462: the far end is gone"


@pytest.mark.rule("R33")
def test_a_disabled_database_receives_nothing_until_it_is_enabled(both: ShopAndBank) -> None:
    dialog = both.send(b"one")
    both.pipes.settle()
    both.stock.set_broker("DISABLE_BROKER")
    both.send(b"two", dialog=dialog)
    both.pipes.settle(seconds=1)
    assert len(waiting(both.sales)) == 1
    both.stock.set_broker("ENABLE_BROKER")
    both.pipes.settle(seconds=80)
    assert both.ordered() == [b"one", b"two"]


def test_a_sender_to_an_unknown_conversation_gets_an_error(both: ShopAndBank) -> None:
    both.send(b"one")
    both.pipes.settle()
    both.sales.set_broker("NEW_BROKER")
    assert isinstance(both.sales.service_broker_guid, uuid.UUID)
    both.answer(b"to whom?")
    both.pipes.settle(seconds=1)
    assert len(waiting(both.stock)) == 1, "the broker id is gone, so nothing can be reported"


def test_the_exchange_does_not_wait_for_long_writers(both: ShopAndBank) -> None:
    """What arrives for the database that is being written to is taken when that is over; nothing of it is lost or comes again."""
    both.send(b"held up")
    for server in both.pipes.servers.values():
        server.exchange.turn()
    both.pipes.pipe("shop").deliver()
    with both.stock.transaction() as t:
        t.connection.execute("CREATE TABLE slow (id INTEGER PRIMARY KEY)")
        moment = both.pipes.servers["bank"].exchange.turn()
    assert both.ordered() == []
    assert moment > 0, "it wants to be called again"
    both.pipes.settle()
    assert both.ordered() == [b"held up"]


def test_run_due_runs_the_exchange_without_threads(both: ShopAndBank) -> None:
    both.send(b"two chairs")
    both.shop.run_due()
    both.pipes.pipe("shop").deliver()
    both.bank.run_due()
    assert both.ordered() == [b"two chairs"]


def test_a_changed_route_redirects_waiting_messages(both: ShopAndBank) -> None:
    both.pipes.down.add("TCP://bank:4022")
    dialog = both.send(b"one")
    both.pipes.settle()
    both.sales.drop_route("There")
    both.send(b"two", dialog=dialog)
    both.pipes.settle()
    both.shop.run_due()
    assert statuses(both.sales) == {"9796"}, "no other route leads on, and nobody here has the service"
    second = both.pipes.instance("bank2")
    copy = sample_databases.stock(second, "Copy")
    copy.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
    both.sales.create_route("There", address="TCP://bank2:4022", service_name=STOCK)
    both.shop.run_due()
    both.pipes.settle(seconds=2)
    assert received(copy) == [b"one", b"two"]
    assert waiting(both.sales) == []


def test_waiting_messages_are_delivered_to_a_new_local_service(both: ShopAndBank) -> None:
    both.pipes.down.add("TCP://bank:4022")
    dialog = both.send(b"one")
    both.pipes.settle()
    here = sample_databases.stock(both.shop, "Here")
    both.sales.drop_route("There")
    both.shop.run_due()
    both.send(b"two", dialog=dialog)
    both.pipes.settle(seconds=80)
    both.shop.run_due()
    assert received(here) == [b"one", b"two"]
    assert waiting(both.sales) == []


def test_a_database_is_served_again_after_a_temporary_failure(
    both: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Stock.sqlite")

    with monkeypatch.context() as patched:
        patched.setattr(database_dialogs, "DatabaseDialogs", fails)
        both.stock.set_broker("DISABLE_BROKER")
        both.pipes.settle()
        both.stock.set_broker("ENABLE_BROKER")
        both.pipes.settle()
    both.send(b"two chairs")
    for _ in range(3):  # what failed is looked at every 10 s; then comes the next wait of P17
        both.pipes.settle(seconds=70)
    assert both.ordered() == [b"two chairs"]
    assert waiting(both.sales) == []


@pytest.mark.rule("P16")
@pytest.mark.parametrize("method", ["endpoints", "load_transmissions"])
def test_a_temporarily_unreadable_file_does_not_delay_others(
    both: ShopAndBank, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Neither those of another database, nor its own when it can be read again; what opens meanwhile is not forgotten."""

    def fails(*_given: object, **_options: object) -> None:
        raise StorageError("the disk is out of reach", file="Sales.sqlite")

    other = sample_databases.shop(both.shop, "Other")
    other.create_route("There", address="TCP://bank:4022", service_name=STOCK)
    exchange = both.pipes.servers["shop"].exchange
    exchange.turn()
    dialogs = exchange._dialogs.by_name("Sales")
    assert dialogs is not None
    with monkeypatch.context() as patched:
        patched.setattr(dialogs.storage, method, fails)
        both.send(b"waits")
        with other.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"goes")
        both.pipes.settle()
        both.pipes.pipe("shop").receiver.outbox_drained("TCP://bank:4022")
        both.pipes.settle()
        assert both.ordered() == [b"goes"]
    both.pipes.settle(seconds=1)
    assert both.ordered() == [b"waits"]


def test_a_temporarily_unreadable_catalog_is_used_in_the_next_turn(
    both: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise StorageError("the disk is out of reach", file="msdb.sqlite")

    both.pipes.settle()
    both.pipes.swallows.add("TCP://nobody:4022")
    both.sales.alter_route("There", address="TCP://nobody:4022")
    both.send(b"one")
    both.pipes.settle()
    both.sales.alter_route("There", address="TCP://bank:4022")
    with monkeypatch.context() as patched:
        patched.setattr(background_of(both.shop).catalog, "catalog", fails)
        with pytest.raises(StorageError):
            both.pipes.servers["shop"].exchange.turn()
    both.pipes.settle(seconds=5)
    assert both.ordered() == [b"one"]


@pytest.mark.rule("R54")
def test_another_databases_principal_does_not_release_held_dialogs(both: ShopAndBank) -> None:
    """Two routes name the same pair of addresses; the database of the one is not there yet."""
    near, far = "TCP://bank:4022", "TCP://two:4022"
    both.sales.drop_route("There")
    both.pipes.down.add(far)
    for service, guid in (("//Other", uuid.uuid4()), (STOCK, both.stock.service_broker_guid)):
        both.sales.create_route(service, address=near, mirror_address=far, service_name=service, broker_instance=guid)
    both.send(b"waits", to="//Other")
    both.pipes.settle()
    both.send(b"goes")
    both.pipes.settle()
    assert both.ordered() == [b"goes"]
    all_dialogs = both.pipes.servers["shop"].exchange._dialogs.all()
    assert all(dialogs.engine.next_timeout() != 0 for dialogs in all_dialogs)
