"""Raw sockets: peers that break the protocol.

python -m tests.broker.network.raw_sockets --connections 10000

opens that many connections, which send one byte a second. It prints when they were closed, how fast another instance was served
meanwhile, and how much memory the process used.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.protocol.events import ConnectionStep
from tests.broker.network.recording_endpoints import DEADLINE, Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered

_TLS_RECORD_HEADER: Final = b"\x16\x03\x01\x02\x00"
"""The header of a TLS record of 512 bytes."""


@contextlib.contextmanager
def raw_connection(address: str) -> Iterator[socket.socket]:
    """A socket connected to an address."""
    host, _, port = address.removeprefix("TCP://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as opened:
        yield opened


def read_until_closed(opened: socket.socket) -> bytes:
    """Reads until the peer closes the socket; raises TimeoutError at the deadline."""
    received = []
    try:
        while data := opened.recv(1 << 16):
            received.append(data)
    except ConnectionError:  # the peer closed the socket during a send
        pass
    return b"".join(received)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_slow_connections(count: int) -> None:
    """Opens slow connections and prints the results; both ends of each connection are in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        limits = EndpointLimits(dial_burst=count + 1)
        bank = RecordingEndpoint("bank", trust=authority.trust("bank", "shop"), limits=limits)
        with bank, contextlib.ExitStack() as stack:
            before = _resident_bytes()
            began = time.monotonic()
            waiting = selectors.DefaultSelector()
            for _ in range(count):
                opened = stack.enter_context(raw_connection(bank.address))
                opened.sendall(_TLS_RECORD_HEADER[:1])
                waiting.register(opened, selectors.EVENT_READ)
            open_connections = len(bank.connections())
            print(f"{count} connections opened in {time.monotonic() - began:.1f} s; {open_connections} are open")
            began = time.monotonic()
            with RecordingEndpoint("shop", trust=authority.trust("shop", "bank"), limits=EndpointLimits()) as shop:
                shop.endpoint.send(bank.address, numbered(1))
                bank.wait_for(bank.numbers)
                print(f"another instance was served in {time.monotonic() - began:.2f} s")
            closed, peak_bytes = 0, 0
            while closed < count:
                for key, _ in waiting.select(timeout=1.0):
                    with contextlib.suppress(ConnectionError):
                        assert isinstance(key.fileobj, socket.socket)
                        if key.fileobj.recv(1 << 16):
                            continue
                    waiting.unregister(key.fileobj)
                    closed += 1
                peak_bytes = max(peak_bytes, _resident_bytes() - before)
                for kept in list(waiting.get_map().values()):
                    with contextlib.suppress(ConnectionError):
                        assert isinstance(kept.fileobj, socket.socket)
                        kept.fileobj.send(b"\x02")
            refused = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)
            print(f"all are closed {time.monotonic() - began:.1f} s after the last dial; {len(refused)} events")
            print(f"memory grew by {peak_bytes / 2**20:.1f} MiB at most, {peak_bytes / count / 1024:.1f} KiB for each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Opens many slow connections.")
    parser.add_argument("--connections", type=int, default=10_000)
    _open_slow_connections(parser.parse_args().connections)
