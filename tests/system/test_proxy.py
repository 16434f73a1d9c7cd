"""The proxy changes nothing by default, and injects exactly the requested faults; otherwise tests behind it prove nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.system.faults import FaultRates, Segment, stream
from tests.system.proxy import HOST, Proxy

DEADLINE = 60.0
DATA = bytes(range(256)) * 400


class Echo:
    """A server that returns the data that it receives, until the client stops sending."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(DEADLINE)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as serve_arguments:
        yield serve_arguments


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=DEADLINE)


def read(connection: socket.socket, count: int) -> bytes:
    """Reads that many bytes, or fewer if the connection ends."""
    found = b""
    while len(found) < count and (data := connection.recv(count - len(found))):
        found += data
    return found


def exchange(proxy: Proxy, data: bytes) -> bytes:
    """Returns the echo over a new connection, up to a disconnect."""
    with connect(proxy) as connection:
        sender = threading.Thread(target=_send_all, args=(connection, data))
        sender.start()
        try:
            return read(connection, len(data) + 1)
        except ConnectionResetError:
            return b""
        finally:
            sender.join(DEADLINE)


def _send_all(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def test_bytes_pass_unaltered(echo: Echo) -> None:
    with Proxy() as proxy:
        proxy.set_target(echo.port)
        assert exchange(proxy, DATA) == DATA
        assert dict(proxy.counted) == {"connections": 1, "bytes": 2 * len(DATA), "flips": 0}


def test_the_address_stays_the_same_while_the_target_changes(echo: Echo) -> None:
    with Proxy() as proxy, closing(Echo()) as other:
        port = proxy.port
        proxy.set_target(other.port)
        assert exchange(proxy, b"a") == b"a"
        proxy.set_target(None)
        assert exchange(proxy, b"b") == b""
        proxy.set_target(echo.port)
        assert exchange(proxy, b"c") == b"c"
        assert proxy.address == f"TCP://127.0.0.1:{port}"


def test_existing_connections_are_cut(echo: Echo) -> None:
    with Proxy() as proxy, ExitStack() as stack:
        proxy.set_target(echo.port)
        there = [stack.enter_context(connect(proxy)) for _ in range(3)]
        for connection in there:
            connection.sendall(b"a")
            assert read(connection, 1) == b"a"
        assert proxy.cut() == 3
        for connection in there:
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        assert exchange(proxy, b"b") == b"b", "new connections are accepted"


def test_a_held_direction_delays_everything_and_loses_nothing(echo: Echo) -> None:
    with Proxy() as proxy, connect_after_aim(proxy, echo) as connection:
        proxy.hold("back")
        connection.sendall(b"a")
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(DEADLINE)
        proxy.release()
        assert read(connection, 1) == b"a"


def connect_after_aim(proxy: Proxy, echo: Echo) -> socket.socket:
    proxy.set_target(echo.port)
    return connect(proxy)


def test_one_connection_overtakes_another_that_is_held(echo: Echo) -> None:
    """Across connections, a later message may arrive first."""
    with (
        Proxy() as slow,
        Proxy() as fast,
        connect_after_aim(slow, echo) as first,
        connect_after_aim(fast, echo) as second,
    ):
        slow.hold()
        first.sendall(b"1")
        second.sendall(b"2")
        assert read(second, 1) == b"2"
        slow.release()
        assert read(first, 1) == b"1"


def test_single_bits_are_flipped(echo: Echo) -> None:
    with Proxy(rates=FaultRates(flip_bytes=10_000), seed=3) as proxy:
        proxy.set_target(echo.port)
        back = exchange(proxy, DATA)
        changed = [(before ^ after).bit_count() for before, after in zip(DATA, back, strict=True) if before != after]
        assert len(changed) > 3
        assert sum(changed) == proxy.counted["flips"]


def test_connections_break_in_the_middle(echo: Echo) -> None:
    with Proxy(rates=FaultRates(cut_bytes=5_000), seed=5) as proxy:
        proxy.set_target(echo.port)
        whole = [exchange(proxy, DATA) == DATA for _ in range(8)]
        assert not any(whole)
        assert proxy.counted["cut"] >= 8


def test_delays_keep_the_order(echo: Echo) -> None:
    with Proxy(rates=FaultRates(delay_bytes=5_000, delay_seconds=0.001)) as proxy:
        proxy.set_target(echo.port)
        assert exchange(proxy, DATA) == DATA
        assert proxy.counted["delays"] > 10


@pytest.mark.parametrize("piece", [1, 7, 1000, len(DATA)])
def test_faults_are_at_the_same_bytes_however_the_stream_is_read(piece: int) -> None:
    rates = FaultRates(flip_bytes=900, cut_bytes=60_000, delay_bytes=2_000, delay_seconds=1)

    def disturbed(length: int) -> tuple[bytes, list[float], bool]:
        faults = stream(rates, seed=11, connection=2, direction="there")
        segments: list[Segment] = []
        for start in range(0, len(DATA), length):
            segments += faults.segments(DATA[start : start + length])
            if segments[-1].is_cut:
                break
        delays = [segment.delay for segment in segments if segment.delay]
        return b"".join(segment.data for segment in segments), delays, segments[-1].is_cut

    assert disturbed(piece) == disturbed(333)


def test_each_connection_and_direction_has_its_own_faults() -> None:
    rates = FaultRates(flip_bytes=1_000)
    found = {
        b"".join(
            segment.data for segment in stream(rates, seed=seed, connection=number, direction=direction).segments(DATA)
        )
        for seed in (1, 2)
        for number in (1, 2)
        for direction in ("there", "back")
    }
    assert len(found) == 8
