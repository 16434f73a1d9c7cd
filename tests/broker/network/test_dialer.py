"""When an address is dialled again, and which events report that it is unreachable."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest

from ssbroker.broker.network import dialer
from ssbroker.broker.network.addresses import DialFilter
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.frames import FrameKind, GoodbyeReason, encode_frame
from ssbroker.protocol.wire.link import LinkLimits
from tests.broker.network.recording_endpoints import HOST, QUICK, RecordingEndpoint
from tests.broker.network.test_socket_endpoint import NO_RETRY, free_port, send_when_free
from tests.protocol.wire.links import BANK, numbered, own


def is_last_row(endpoint: RecordingEndpoint, number: int) -> bool:
    """Returns whether the row with this number was received last."""
    return endpoint.numbers()[-1:] == [number]


def has_failed(endpoint: RecordingEndpoint, times: int) -> bool:
    """Returns whether connections have failed this many times."""
    return len(endpoint.failed_connections) == times


def test_an_unreachable_address_is_reported_and_accepts_nothing_while_waiting() -> None:
    with RecordingEndpoint("shop", limits=NO_RETRY) as shop:
        address = f"TCP://{HOST}:{free_port()}"
        assert not shop.endpoint.send(address, numbered(2)).is_full
        shop.wait_for(lambda: [each for each, _ in shop.failed_connections] == [address])
        assert shop.failed_connections[0][1] == "the dial failed: connection refused"
        (event,) = shop.steps(ConnectionStep.CONNECT_FAILED)
        assert (event.address, event.error) == (address, 9754)
        assert not shop.endpoint.send(address, numbered(1)).is_accepted
        assert shop.endpoint.progress(address) == (2, 2)


def test_an_address_is_dialled_again_after_the_wait() -> None:
    with RecordingEndpoint("shop") as shop:
        port = free_port()
        address = f"TCP://{HOST}:{port}"
        shop.endpoint.send(address, numbered(1))
        shop.wait_for(lambda: shop.drained == [address])
        with RecordingEndpoint("bank", port=port) as bank:
            shop.endpoint.send(address, numbered(1, first=7))
            bank.wait_for(lambda: bank.numbers() == [7])


def test_an_incoming_connection_ends_the_wait() -> None:
    """The next dial is due in an hour, but the peer dials first."""
    with RecordingEndpoint("shop", limits=NO_RETRY) as shop:
        with RecordingEndpoint("bank") as bank:
            port, address = bank.port, bank.address
            shop.endpoint.send(address, numbered(1))
            bank.wait_for(bank.numbers)
        shop.wait_for(lambda: shop.failed_connections == [(address, "the instance is stopping")])
        assert not shop.endpoint.send(address, numbered(1)).is_accepted
        with RecordingEndpoint("bank", port=port, number=77) as again:
            again.endpoint.send(shop.address, numbered(1))
            shop.wait_for(lambda: shop.drained == [address])
            shop.wait_for(lambda: len(shop.connected_to) == 2)
            assert not shop.endpoint.send(address, numbered(1, first=5)).is_full
            again.wait_for(lambda: again.numbers() == [5])
            assert len(again.connections()) == 1


def test_an_unknown_host_name_is_reported() -> None:
    with RecordingEndpoint("shop", limits=NO_RETRY) as shop:
        shop.endpoint.send("TCP://nowhere.invalid:4022", numbered(1))
        shop.wait_for(lambda: shop.failed_connections)
        assert "the host name nowhere.invalid cannot be resolved" in shop.failed_connections[0][1]
        assert shop.steps(ConnectionStep.CONNECT_FAILED)[0].error == 9783


def test_a_broken_connection_is_reported_on_both_sides() -> None:
    with RecordingEndpoint("shop", limits=NO_RETRY) as shop, RecordingEndpoint("bank", limits=NO_RETRY) as bank:
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        bank.endpoint._call(bank.endpoint._manager.cut)
        shop.wait_for(lambda: shop.failed_connections)
        shop.wait_for(lambda: shop.steps(ConnectionStep.CLOSED))
        assert [event.error for event in shop.steps(ConnectionStep.RECEIVE_IO_ERROR)] == [9755]


@pytest.mark.parametrize("answers", [True, False])
def test_a_connection_that_breaks_after_rows_arrived_is_dialled_soon(*, answers: bool) -> None:
    """Without received rows, the waits grow, here up to an hour."""
    limits = replace(QUICK, max_dial_wait=3600_000_000, stable_after=3600_000_000)
    times = 24 if answers else 4
    with RecordingEndpoint("shop", limits=limits) as shop, RecordingEndpoint("bank") as bank:
        for time in range(times):
            send_when_free(shop, bank, numbered(1, first=time))
            bank.wait_for(partial(is_last_row, bank, time))
            if answers:
                send_when_free(bank, shop, numbered(1, first=time))
                shop.wait_for(partial(is_last_row, shop, time))
            bank.endpoint._call(bank.endpoint._manager.cut)
            shop.wait_for(partial(has_failed, shop, time + 1))
        destination = shop.endpoint._manager.dialer.destinations.destination(bank.address)
        assert destination.failures == (1 if answers else times)


@contextmanager
def peer_that_leaves(reason: GoodbyeReason) -> Iterator[tuple[str, list[str]]]:
    """A peer that sends HELLO and GOODBYE to every dialer; yields its address and the list of dialers."""
    frames_sent = encode_frame(FrameKind.HELLO, frames.pack_hello(own(BANK, name="bank"))) + encode_frame(
        FrameKind.GOODBYE, frames.pack_goodbye(reason, "")
    )
    dials: list[str] = []
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    opened, peer_address = server.accept()
                    dials.append(str(peer_address))
                    with opened:
                        opened.sendall(frames_sent)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"TCP://{HOST}:{server.getsockname()[1]}", dials
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_an_immediate_goodbye_does_not_cause_endless_dials() -> None:
    with peer_that_leaves(GoodbyeReason.IDLE) as (address, dials), RecordingEndpoint("shop", limits=NO_RETRY) as shop:
        shop.endpoint.send(address, numbered(1))
        shop.wait_for(lambda: shop.failed_connections or len(dials) > 10)
        assert len(dials) == 1
        assert not shop.endpoint.send(address, numbered(1)).is_accepted


def test_repeated_immediate_goodbyes_lengthen_the_wait() -> None:
    with peer_that_leaves(GoodbyeReason.SUPERSEDED) as (address, dials), RecordingEndpoint("shop") as shop:
        shop.endpoint.send(address, numbered(1))
        shop.wait_for(lambda: len(dials) > 3)
        assert shop.endpoint._manager.dialer.destinations.destination(address).failures >= 3


def test_a_lasting_connection_resets_the_wait() -> None:
    """Also if the connection was closed because it was idle."""
    limits = replace(QUICK, link=LinkLimits(idle_timeout=1000), stable_after=0)
    address = f"TCP://{HOST}:{free_port()}"
    port = int(address.rpartition(":")[2])
    with RecordingEndpoint("shop", limits=limits) as shop:
        for number in range(5):
            shop.endpoint.send(address, numbered(1))
            shop.wait_for(partial(has_failed, shop, number + 1))
            shop.wait_for(lambda: len(shop.drained) > number)  # noqa: B023 - called immediately
        destination = shop.endpoint._manager.dialer.destinations.destination(address)
        assert destination.failures == 5
        with RecordingEndpoint("bank", port=port) as bank:
            shop.endpoint.send(address, numbered(1))
            bank.wait_for(bank.numbers)
            shop.wait_for(lambda: not shop.connections())
            assert destination.failures == 0


def test_a_look_up_without_a_thread_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dial() -> None:
        await dialer.connect_socket("localhost", free_port(), DialFilter(()))

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: raise_error(RuntimeError("can't start new thread")))
        for _ in range(dialer._LOOKUPS_MAX + 1):
            with pytest.raises(OSError, match="cannot be looked up: can't start new thread"):
                asyncio.run(dial())
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(dial())


def raise_error(error: Exception) -> None:
    raise error


def test_an_unusable_address_family_is_skipped() -> None:
    with socket.create_server((HOST, 0)) as server:
        unusable = (123, socket.SOCK_STREAM, 0, "", ("::1", 1, 0, 0))
        usable = (socket.AF_INET, socket.SOCK_STREAM, 0, "", server.getsockname())
        asyncio.run(dialer._connect_first([unusable, usable])).close()
