"""When an address is dialed again, and which events report that it is unreachable."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest

from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.connection import LinkLimits
from ssbroker.protocol.wire.frames import FrameKind, GoodbyeReason, encode_frame
from tests.broker.network.recording_endpoints import HOST, QUICK, RecordingEndpoint
from tests.broker.network.test_endpoint import PATIENT, free_port, sends
from tests.protocol.wire.links import BANK, numbered, own


def has_last(party: RecordingEndpoint, number: int) -> bool:
    """Whether a row was the last that came."""
    return party.numbers()[-1:] == [number]


def was_cut_off(party: RecordingEndpoint, times: int) -> bool:
    """Whether an address became unreachable so many times."""
    return len(party.unreachable_at) == times


def test_an_unreachable_address_is_reported_and_accepts_nothing_while_waiting() -> None:
    with RecordingEndpoint("shop", limits=PATIENT) as shop:
        address = f"TCP://{HOST}:{free_port()}"
        assert shop.endpoint.send(address, numbered(2)) > 0
        shop.wait_for(lambda: [each for each, _ in shop.unreachable_at] == [address])
        assert "the dial failed: " in shop.unreachable_at[0][1]
        (event,) = shop.steps(ConnectionStep.CONNECT_FAILED)
        assert (event.address, event.error) == (address, 9754)
        assert shop.endpoint.send(address, numbered(1)) == 0
        assert shop.endpoint.progress(address) == (2, 2)


def test_an_address_is_dialed_again_after_the_wait() -> None:
    with RecordingEndpoint("shop") as shop:
        port = free_port()
        address = f"TCP://{HOST}:{port}"
        shop.endpoint.send(address, numbered(1))
        shop.wait_for(lambda: shop.room_at == [address])
        with RecordingEndpoint("bank", port=port) as bank:
            shop.endpoint.send(address, numbered(1, first=7))
            bank.wait_for(lambda: bank.numbers() == [7])


def test_an_incoming_connection_ends_the_wait() -> None:
    """Nobody dials within an hour, but who could not be reached dials itself."""
    with RecordingEndpoint("shop", limits=PATIENT) as shop:
        with RecordingEndpoint("bank") as bank:
            port, address = bank.port, bank.address
            shop.endpoint.send(address, numbered(1))
            bank.wait_for(bank.numbers)
        shop.wait_for(lambda: shop.unreachable_at == [(address, "the instance is stopping")])
        assert shop.endpoint.send(address, numbered(1)) == 0
        with RecordingEndpoint("bank", port=port, number=77) as again:
            again.endpoint.send(shop.address, numbered(1))
            shop.wait_for(lambda: shop.room_at == [address])
            shop.wait_for(lambda: len(shop.reached_at) == 2)
            assert shop.endpoint.send(address, numbered(1, first=5)) > 0
            again.wait_for(lambda: again.numbers() == [5])
            assert len(again.connections()) == 1


def test_an_unknown_host_name_is_reported() -> None:
    with RecordingEndpoint("shop", limits=PATIENT) as shop:
        shop.endpoint.send("TCP://nowhere.invalid:4022", numbered(1))
        shop.wait_for(lambda: shop.unreachable_at)
        assert "the host name nowhere.invalid cannot be resolved" in shop.unreachable_at[0][1]
        assert shop.steps(ConnectionStep.CONNECT_FAILED)[0].error == 9783


def test_a_broken_connection_is_reported_on_both_sides() -> None:
    with RecordingEndpoint("shop", limits=PATIENT) as shop, RecordingEndpoint("bank", limits=PATIENT) as bank:
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        bank.endpoint._call(bank.endpoint.manager.cut)
        shop.wait_for(lambda: shop.unreachable_at)
        shop.wait_for(lambda: shop.steps(ConnectionStep.CLOSED))
        assert [event.error for event in shop.steps(ConnectionStep.RECEIVE_IO_ERROR)] == [9755]


@pytest.mark.parametrize("answers", [True, False])
def test_a_connection_that_breaks_after_rows_arrived_is_dialed_soon(*, answers: bool) -> None:
    """Else the waits grow: to an hour, were this one to break as often."""
    limits = replace(QUICK, max_dial_wait=3600_000_000, stable_after=3600_000_000)
    times = 24 if answers else 4
    with RecordingEndpoint("shop", limits=limits) as shop, RecordingEndpoint("bank") as bank:
        for time in range(times):
            sends(shop, bank, numbered(1, first=time))
            bank.wait_for(partial(has_last, bank, time))
            if answers:
                sends(bank, shop, numbered(1, first=time))
                shop.wait_for(partial(has_last, shop, time))
            bank.endpoint._call(bank.endpoint.manager.cut)
            shop.wait_for(partial(was_cut_off, shop, time + 1))
        destination = shop.endpoint.manager.dialer.addresses.destination(bank.address)
        assert destination.failures == (1 if answers else times)


@contextmanager
def taking_leave(reason: GoodbyeReason) -> Iterator[tuple[str, list[str]]]:
    """A peer that greets every dialer and leaves immediately: its address, and the number of its dialers."""
    said = encode_frame(FrameKind.HELLO, frames.pack_hello(own(BANK, name="bank"))) + encode_frame(
        FrameKind.GOODBYE, frames.pack_goodbye(reason, "")
    )
    dials: list[str] = []
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    opened, who = server.accept()
                    dials.append(str(who))
                    with opened:
                        opened.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"TCP://{HOST}:{server.getsockname()[1]}", dials
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_an_immediate_goodbye_does_not_cause_endless_dials() -> None:
    """It was dialed 700 times in a second."""
    with taking_leave(GoodbyeReason.IDLE) as (address, dials), RecordingEndpoint("shop", limits=PATIENT) as shop:
        shop.endpoint.send(address, numbered(1))
        shop.wait_for(lambda: shop.unreachable_at or len(dials) > 10)
        assert len(dials) == 1
        assert shop.endpoint.send(address, numbered(1)) == 0


def test_repeated_immediate_goodbyes_lengthen_the_wait() -> None:
    with taking_leave(GoodbyeReason.SUPERSEDED) as (address, dials), RecordingEndpoint("shop") as shop:
        shop.endpoint.send(address, numbered(1))
        shop.wait_for(lambda: len(dials) > 3)
        assert shop.endpoint.manager.dialer.addresses.destination(address).failures >= 3


def test_a_lasting_connection_resets_the_wait() -> None:
    """Also where it ends since there was nothing more to carry: else one failed dial a day later is followed by a minute."""
    limits = replace(QUICK, link=LinkLimits(idle_timeout=1000), stable_after=0)
    address = f"TCP://{HOST}:{free_port()}"
    port = int(address.rpartition(":")[2])
    with RecordingEndpoint("shop", limits=limits) as shop:
        for number in range(5):
            shop.endpoint.send(address, numbered(1))
            shop.wait_for(partial(was_cut_off, shop, number + 1))
            shop.wait_for(lambda: len(shop.room_at) > number)  # noqa: B023 - called at once
        destination = shop.endpoint.manager.dialer.addresses.destination(address)
        assert destination.failures == 5
        with RecordingEndpoint("bank", port=port) as bank:
            shop.endpoint.send(address, numbered(1))
            bank.wait_for(bank.numbers)
            shop.wait_for(lambda: not shop.connections())
            assert destination.failures == 0
