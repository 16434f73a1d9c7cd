"""Connected instances: rows arrive in order over one connection for each pair, dialled on demand."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker.broker.network import connection_manager
from ssbroker.broker.network.interfaces import SEND_NOW_BYTES_MAX
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.tls import Trust
from ssbroker.exceptions import EndpointError, ProtocolError
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.wire.frames import DropReason, OwnIdentity
from ssbroker.protocol.wire.link import Link, LinkLimits
from tests.broker.network.recording_endpoints import DEADLINE, HOST, QUICK, Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered, table

NO_RETRY = EndpointLimits(dial_wait=3600_000_000, max_dial_wait=3600_000_000)
"""Limits under which a failed dial is not retried during a test."""


def free_port() -> int:
    """Returns a port without a listener."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def is_accepted(sender: RecordingEndpoint, receiver: RecordingEndpoint, rows: pa.Table) -> bool:
    """Sends rows; returns whether they were accepted. If not, the outbox is full."""
    before, _ = sender.endpoint.progress(receiver.address)
    result = sender.endpoint.send(receiver.address, rows)
    assert result.accepted_rows - before == (rows.num_rows if result.is_accepted else 0)
    assert result.is_accepted or result.is_full
    return result.is_accepted


def send_when_free(sender: RecordingEndpoint, receiver: RecordingEndpoint, rows: pa.Table) -> None:
    """Sends rows as soon as the outbox has space."""
    sender.wait_for(lambda: is_accepted(sender, receiver, rows))


@pytest.mark.rule("P2")
def test_rows_arrive_in_order_over_one_connection() -> None:
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        for number in range(100):
            assert not shop.endpoint.send(bank.address, numbered(3, first=3 * number)).is_full
        bank.wait_for(lambda: len(bank.numbers()) == 300)
        assert bank.numbers() == list(range(300))
        peer, _ = bank.batches[0]
        assert (peer.instance_id, peer.name, peer.principal, peer.is_accept) == (shop.instance_id, "shop", None, True)
        assert not bank.endpoint.send(shop.address, numbered(5)).is_full
        shop.wait_for(lambda: len(shop.numbers()) == 5)
        shop.wait_for(lambda: len(shop.connections()) == len(bank.connections()) == 1)
        assert shop.endpoint.progress(bank.address) == (300, 300)


def test_with_an_authority_the_principal_is_the_first_name_of_the_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with (
        RecordingEndpoint("shop", trust=authority.trust("shop.example.com", "bank.example.com")) as shop,
        RecordingEndpoint("bank", trust=authority.trust("bank.example.com", "shop.example.com", "other")) as bank,
    ):
        shop.endpoint.send(bank.address, numbered(1000, size=2000))
        bank.wait_for(lambda: len(bank.numbers()) == 1000)
        assert bank.batches[0][0].principal == "shop.example.com"
        assert shop.connected_to[0][1].principal == "bank.example.com"


def test_pinned_certificates_connect_under_their_configured_names(tmp_path: Path) -> None:
    """A principal may have several certificates, such as those of a mirrored pair."""
    authority = Authority(tmp_path)
    shop_files, bank_files, mirror_files = (
        authority.certify(name, signs_itself=True) for name in ("s.example.com", "b.example.com", "m.example.com")
    )
    pinned = {"the bank": [bank_files[0], mirror_files[0]]}
    shop_trust = Trust(certificate=shop_files[0], key=shop_files[1], pinned=pinned)
    bank_trust = Trust(certificate=bank_files[0], key=bank_files[1], pinned={"the shop": [shop_files[0]]})
    mirror_trust = replace(bank_trust, certificate=mirror_files[0], key=mirror_files[1])
    with (
        RecordingEndpoint("shop", trust=shop_trust) as shop,
        RecordingEndpoint("bank", trust=bank_trust) as bank,
        RecordingEndpoint("mirror", trust=mirror_trust) as mirror,
    ):
        for endpoint in (bank, mirror):
            shop.endpoint.send(endpoint.address, numbered(1))
            endpoint.wait_for(endpoint.numbers)
            assert endpoint.batches[0][0].principal == "the shop"
        shop.wait_for(lambda: len(shop.connected_to) == 2)
        assert {peer.principal for _, peer in shop.connected_to} == {"the bank"}


@pytest.mark.rule("P2")
def test_an_idle_connection_is_closed_and_dialled_again_on_demand() -> None:
    limits = replace(QUICK, link=LinkLimits(idle_timeout=1000), stable_after=0)
    with RecordingEndpoint("shop", limits=limits) as shop, RecordingEndpoint("bank", limits=limits) as bank:
        for number in range(3):
            shop.endpoint.send(bank.address, numbered(1, first=number))
            bank.wait_for(lambda: bank.numbers() == list(range(number + 1)))  # noqa: B023 - called immediately
            shop.wait_for(lambda: len(shop.steps(ConnectionStep.CLOSED)) > number)  # noqa: B023 - the same
        assert shop.failed_connections == []
        assert {event.error for event in shop.events} == {0}


def test_one_of_two_crossing_connections_remains_without_loss() -> None:
    """Twenty pairs of instances that dial each other at the same time."""
    for number in range(20):
        with RecordingEndpoint("shop", number=number % 3) as shop, RecordingEndpoint("bank", number=1) as bank:
            both = threading.Barrier(2)

            def dials(one: RecordingEndpoint, other: RecordingEndpoint, both: threading.Barrier = both) -> None:
                both.wait(60)
                for first in range(0, 50, 10):
                    one.endpoint.send(other.address, numbered(10, first=first))

            threads = [threading.Thread(target=dials, args=pair) for pair in ((shop, bank), (bank, shop))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            for endpoint in (shop, bank):
                endpoint.wait_for(lambda: sorted(endpoint.numbers()) == list(range(50)))  # noqa: B023 - called immediately
                endpoint.wait_for(lambda: len(endpoint.endpoint._manager.connections) == 1)  # noqa: B023 - the same
            assert shop.failed_connections == bank.failed_connections == []


def test_answers_use_the_remaining_connection() -> None:
    """The bank has the greater run number, so the connection that it dials remains."""
    with RecordingEndpoint("shop", number=1) as shop, RecordingEndpoint("bank", number=2) as bank:
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        peer, _ = bank.batches[0]
        # The shop's address is not that of its outgoing socket, so the bank dials.
        bank.endpoint.send(shop.address, numbered(1))
        shop.wait_for(shop.numbers)
        bank.wait_for(lambda: bank.connected_to and peer.connection_id not in bank.connections())
        bank.endpoint.send(shop.address, numbered(1, first=1))
        shop.wait_for(lambda: shop.numbers() == [0, 1])
        shop.endpoint.send(bank.address, numbered(1, first=1))
        bank.wait_for(lambda: bank.numbers() == [0, 1])
        shop.wait_for(lambda: len(shop.connections()) == 1)
        assert len(bank.connections()) == 1


def test_two_addresses_of_one_instance_share_a_connection() -> None:
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        other = bank.address.replace(HOST, "localhost")
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        shop.endpoint.send(other, numbered(1, first=1))
        bank.wait_for(lambda: bank.numbers() == [0, 1])
        for endpoint in (shop, bank):
            endpoint.wait_for(lambda: len(endpoint.endpoint._manager.connections) == 1)  # noqa: B023 - called immediately
        for first, address in ((2, bank.address), (3, other)):
            shop.endpoint.send(address, numbered(1, first=first))
        bank.wait_for(lambda: sorted(bank.numbers()) == [0, 1, 2, 3])
        assert len(shop.connections()) == 1


def test_an_instance_that_dials_itself_learns_its_own_address() -> None:
    with RecordingEndpoint("shop") as shop:
        shop.endpoint.send(shop.address, numbered(1))
        shop.wait_for(lambda: shop.own_addresses == [shop.address])
        shop.wait_for(lambda: not shop.endpoint._manager.connections)
        assert shop.numbers() == []
        assert (shop.failed_connections, shop.connected_to) == ([], [])


@pytest.mark.rule("R42")
def test_a_dial_without_rows_is_answered_each_time() -> None:
    """So that forwarded rows never wait for an answer that does not come."""
    nobody = f"TCP://{HOST}:{free_port()}"
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        for times in (1, 2):  # while it is not connected, and then
            shop.endpoint.dial(bank.address)
            shop.wait_for(lambda: len(shop.connected_to) == times)  # noqa: B023 - called immediately
        assert {(address, peer.instance_id) for address, peer in shop.connected_to} == {
            (bank.address, bank.instance_id)
        }
        assert (len(shop.connections()), bank.numbers()) == (1, [])
        for times in (1, 2):  # the second one waits for the next attempt
            shop.endpoint.dial(nobody)
            shop.wait_for(lambda: len(shop.failed_connections) == times)  # noqa: B023
        shop.endpoint.dial(shop.address)
        shop.wait_for(lambda: shop.own_addresses == [shop.address])
        assert {address for address, _ in shop.failed_connections} == {nobody}


def test_a_restarted_instance_replaces_its_old_connection() -> None:
    """The bank has not noticed the end of its old connection."""
    with RecordingEndpoint("bank") as bank, RecordingEndpoint("shop", number=1) as before:
        before.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        with RecordingEndpoint("shop", number=2) as after:
            after.endpoint.send(bank.address, numbered(1, first=1))
            bank.wait_for(lambda: bank.numbers() == [0, 1])
            new, _ = bank.batches[1]
            bank.wait_for(lambda: bank.connections() == [new.connection_id])
            send_when_free(bank, after, numbered(1))
            after.wait_for(lambda: after.numbers() == [0])
            assert before.numbers() == []


def test_a_full_outbox_rejects_rows_and_reports_free_space() -> None:
    """The bank does not read. Accepted rows are sent; rejected rows are not."""
    limits = replace(QUICK, outbox_bytes=100_000)
    with RecordingEndpoint("shop", limits=limits) as shop, RecordingEndpoint("bank") as bank:
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        bank.endpoint.pause()
        first = 1
        while is_accepted(shop, bank, numbered(100, first=first, size=2000)):
            first += 100
        bank.endpoint.resume()
        send_when_free(shop, bank, numbered(1, first=first))
        bank.wait_for(lambda: len(bank.numbers()) == first + 1)
        assert bank.numbers() == list(range(first + 1))
        assert shop.endpoint.progress(bank.address) == (first + 1, first + 1)


def test_a_paused_receiver_gets_the_rest_after_resuming() -> None:
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        bank.on_arrival = bank.endpoint.pause
        for number in range(5):  # fits into an empty outbox
            send_when_free(shop, bank, numbered(1000, first=1000 * number, size=1000))
        while len(bank.numbers()) < 5_000:
            count = len(bank.batches)
            bank.endpoint.resume()
            bank.wait_for(lambda: len(bank.batches) > count)  # noqa: B023 - called immediately
        assert bank.numbers() == list(range(5_000))


@contextmanager
def held_thread(of: RecordingEndpoint) -> Iterator[None]:
    """Holds the thread of an endpoint during the block."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        is_over.wait(DEADLINE)

    of.endpoint._call(hold)
    assert is_held.wait(DEADLINE)
    try:
        yield
    finally:
        is_over.set()


@pytest.fixture(params=[False, True], ids=["unencrypted", "TLS"])
def connected_pair(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[RecordingEndpoint, RecordingEndpoint]]:
    """A shop that is connected to a bank, which has received row 0."""
    authority = Authority(tmp_path)
    trusts = {name: authority.trust(name, "shop", "bank") if request.param else None for name in ("shop", "bank")}
    limits = replace(QUICK, outbox_bytes=1_000_000)
    with (
        RecordingEndpoint("shop", trust=trusts["shop"], limits=limits) as shop,
        RecordingEndpoint("bank", trust=trusts["bank"]) as bank,
    ):
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        yield shop, bank


def test_few_rows_are_sent_without_the_thread_of_the_endpoint(
    connected_pair: tuple[RecordingEndpoint, RecordingEndpoint],
) -> None:
    shop, bank = connected_pair
    shop.endpoint.send(
        bank.address, numbered(1, first=1)
    )  # the first row after a pause needs a timer, which the thread sets
    bank.wait_for(lambda: len(bank.numbers()) == 2)
    with held_thread(shop):
        for number in range(2, 5):
            shop.endpoint.send(bank.address, numbered(1, first=number))
        bank.wait_for(lambda: len(bank.numbers()) == 5)
        shop.endpoint.send(bank.address, numbered(1, first=5, size=SEND_NOW_BYTES_MAX))
        shop.endpoint.send(bank.address, numbered(1, first=6))
        assert shop.endpoint.progress(bank.address) == (7, 5), "large rows, and those after them, wait for the thread"
    bank.wait_for(lambda: len(bank.numbers()) == 7)
    assert bank.numbers() == list(range(7))
    assert shop.endpoint.traffic["total_bytes_sent"] >= bank.endpoint.traffic["total_bytes_received"]


def test_rows_that_a_socket_accepts_in_part_are_completed_in_order(
    connected_pair: tuple[RecordingEndpoint, RecordingEndpoint],
) -> None:
    """The bank does not read, so that the buffers of its socket become full within a frame."""
    shop, bank = connected_pair
    bank.endpoint.pause()
    with held_thread(bank), held_thread(shop):
        first = 1
        while is_accepted(shop, bank, numbered(1, first=first, size=50_000)):
            first += 1
    bank.endpoint.resume()
    bank.wait_for(lambda: len(bank.numbers()) == first)
    assert bank.numbers() == list(range(first))
    assert shop.endpoint.progress(bank.address) == (first, first)


def test_rows_of_several_threads_arrive_in_the_order_of_each(
    connected_pair: tuple[RecordingEndpoint, RecordingEndpoint],
) -> None:
    """Small rows, which their threads send, between large ones, which the thread of the endpoint sends, while answers arrive."""
    shop, bank = connected_pair

    def answer() -> None:
        bank.endpoint.send(shop.address, numbered(1))

    bank.on_arrival = answer

    def send(offset: int) -> None:
        for number in range(150):
            rows = numbered(1, first=offset + number, size=70_000 if number % 10 == 9 else 100)
            send_when_free(shop, bank, rows)

    threads = [threading.Thread(target=send, args=(1000 * number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bank.wait_for(lambda: len(bank.numbers()) == 451)
    for offset in (1000, 2000, 3000):
        assert [each for each in bank.numbers() if offset <= each < offset + 1000] == list(range(offset, offset + 150))
    assert shop.endpoint.sent_by_priority == {5: 451}


def test_a_role_query_to_an_address_is_answered() -> None:
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        bank.role = ("principal", 3)
        shop.endpoint.query_role(bank.address, b"broker instance.")
        shop.wait_for(lambda: shop.roles == [(bank.address, b"broker instance.", "principal", 3)])
        bank.role = ("mirror", 4)
        shop.endpoint.query_role(bank.address, b"broker instance.")
        shop.wait_for(lambda: len(shop.roles) == 2)
        assert shop.roles[1][2:] == ("mirror", 4)


def test_reasons_for_dropped_rows_reach_the_addresses_of_their_instance() -> None:
    reasons = {(b"one conversation", True): DropReason.NO_RETURN_ROUTE}
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank, RecordingEndpoint("depot") as depot:
        for each in (bank, depot):
            shop.endpoint.send(each.address, numbered(1))
            each.wait_for(each.numbers)
        bank.endpoint.report_drops((shop.instance_id, None), reasons)
        shop.wait_for(lambda: shop.drops == [(bank.address, reasons)])
        bank.endpoint.report_drops((depot.instance_id, None), reasons)  # not connected
        depot.endpoint.report_drops((shop.instance_id, None), reasons)
        shop.wait_for(lambda: shop.drops == [(bank.address, reasons), (depot.address, reasons)])


def test_many_role_queries_share_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read opens all files, so frequent queries must not cause one each."""
    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        bank.role = ("principal", 3)
        shop.endpoint.query_role(bank.address, bytes(16))
        shop.wait_for(lambda: len(shop.roles) == 1)
        monkeypatch.setattr(connection_manager, "ANSWER_INTERVAL", 3600.0)
        bank.role = ("mirror", 4)
        for number in range(connection_manager.QUERIES_MAX):
            shop.endpoint.query_role(bank.address, number.to_bytes(16))
        shop.wait_for(lambda: len(shop.roles) == 1 + connection_manager.QUERIES_MAX)
        assert {each[2:] for each in shop.roles[1:]} == {("mirror", 4)}
        assert bank.role_reads == 2


def test_an_address_that_cannot_be_queried_is_unreachable() -> None:
    with RecordingEndpoint("shop", limits=NO_RETRY) as shop:
        address = f"TCP://{HOST}:{free_port()}"
        shop.endpoint.query_role(address, b"broker instance.")
        shop.wait_for(lambda: [each for each, _ in shop.failed_connections] == [address])


def test_closing_writes_queued_rows() -> None:
    with RecordingEndpoint("bank") as bank:
        with RecordingEndpoint("shop") as shop:
            for number in range(7):
                send_when_free(shop, bank, numbered(1000, first=1000 * number, size=1000))
            bank.wait_for(bank.numbers)
        bank.wait_for(lambda: bank.numbers() == list(range(7000)))
        assert not shop.endpoint.send(bank.address, numbered(1)).is_full, "a closed endpoint does not block senders"


def test_closing_does_not_wait_forever_for_a_peer_that_does_not_read() -> None:
    with RecordingEndpoint("bank") as bank:
        shop = RecordingEndpoint("shop")
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        bank.endpoint.pause()
        while not shop.endpoint.send(bank.address, numbered(1000, size=2000)).is_full:
            pass
        shop.endpoint.close(0.0)
        assert not shop.endpoint._thread.is_alive()
        shop.endpoint.close(0.0)


def test_an_endpoint_that_was_not_started_can_be_closed() -> None:
    with RecordingEndpoint("shop") as shop:
        shop.endpoint.close(60.0)
        shop.endpoint.send("TCP://127.0.0.1:1", numbered(1))
        shop.endpoint.pause()


@pytest.mark.rule("P3")
def test_a_port_in_use_is_an_error() -> None:
    with (
        RecordingEndpoint("shop") as shop,
        pytest.raises(EndpointError, match=rf"^cannot listen on {HOST}:{shop.port}: [^(]*in use$"),
    ):
        RecordingEndpoint("bank", port=shop.port)


def test_rows_of_another_schema_are_rejected_by_the_sender() -> None:
    with RecordingEndpoint("shop") as shop:
        with pytest.raises(ProtocolError, match="rows of the wire schema"):
            shop.endpoint.send("TCP://127.0.0.1:1", table().drop_columns(["priority"]))
        assert shop.connections() == []


def test_an_exception_of_a_receiver_does_not_end_connections() -> None:
    def fails() -> None:
        raise ValueError

    with RecordingEndpoint("shop") as shop, RecordingEndpoint("bank") as bank:
        bank.on_arrival = fails
        for number in range(3):
            shop.endpoint.send(bank.address, numbered(1, first=number))
            bank.wait_for(lambda: bank.numbers() == list(range(number + 1)))  # noqa: B023 - called immediately
        assert len(bank.connections()) == 1


def test_repeated_dial_failures_are_marked_as_such() -> None:
    port = free_port()
    address = f"TCP://{HOST}:{port}"
    with RecordingEndpoint("shop") as shop:

        def is_sent() -> bool:
            return shop.endpoint.send(address, numbered(1)).is_accepted

        def failed(number: int) -> list[bool]:
            shop.wait_for(is_sent)
            shop.wait_for(lambda: len(shop.steps(ConnectionStep.CONNECT_FAILED)) == number)
            return [event.is_repeated for event in shop.steps(ConnectionStep.CONNECT_FAILED)]

        assert [failed(number)[-1] for number in (1, 2, 3)] == [False, True, True]
        with RecordingEndpoint("bank", port=port) as bank:
            shop.wait_for(is_sent)
            bank.wait_for(bank.numbers)
        shop.wait_for(lambda: shop.steps(ConnectionStep.CLOSED))
        assert [failed(number)[-1] for number in (4, 5)] == [False, True]


@pytest.mark.rule("P3")
def test_an_endpoint_that_cannot_start_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example if the process has no file descriptor left; the constructor does not wait for the ended thread."""

    def runner() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "Runner", runner)
    with pytest.raises(EndpointError, match=r"cannot listen on .*: Too many open files"):
        RecordingEndpoint("shop")


def test_a_connection_without_a_socket_does_not_prevent_closing() -> None:
    with RecordingEndpoint("bank", trust=None) as bank:
        endpoint = bank.endpoint

        def accept() -> None:
            """Does what asyncio does with a connection accepted just before the listener is closed."""
            endpoint._manager.accept()

        endpoint._call(accept)
        closing = threading.Thread(target=endpoint.close, args=(0.1,), daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive()


def test_a_peer_that_stops_within_a_frame_is_disconnected() -> None:
    """The process of the peer hangs and stops reading, so the socket accepts no data."""
    second = 1_000_000
    link = LinkLimits(ping_after=second // 2, silence_timeout=second, goodbye_timeout=second // 2)
    limits = replace(QUICK, link=link, outbox_bytes=64 << 20)
    with socket.create_server((HOST, 0)) as server, RecordingEndpoint("shop", limits=limits) as shop:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        address = f"TCP://{HOST}:{server.getsockname()[1]}"
        shop.endpoint.send(address, numbered(1))
        remote, _ = server.accept()
        with remote:
            bank = Link(
                OwnIdentity(instance_id=b"b" * 16, name="bank", run_number=2),
                limits=LinkLimits(),
                now=0,
            )
            remote.sendall(b"".join(bank.data_to_send(now=0)))
            for number in range(20):
                shop.endpoint.send(address, numbered(300, first=300 * number, size=10_000))
            read = 0
            while read < 8 << 20 and (data := remote.recv(1 << 16)):  # a slow computer may reach the timeout first
                read += len(data)
            [closed] = shop.wait_for(lambda: shop.steps(ConnectionStep.CLOSED))
            assert closed.text == "no answer within 1 s"
