"""Peers that break the protocol: sockets to which a test writes any bytes.

python -m tests.broker.network.raw_sockets --connections 10000

has that many connect that say one byte a second, and prints what became of them, of an instance that comes meanwhile, and of the
memory of the process.
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

_HELLO_BEGINS: Final = b"\x16\x03\x01\x02\x00"
"""How TLS begins: a record of 512 bytes."""


@contextlib.contextmanager
def raw_connection(address: str) -> Iterator[socket.socket]:
    """A socket connected to an address."""
    host, _, port = address.removeprefix("TCP://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as opened:
        yield opened


def rest(opened: socket.socket) -> bytes:
    """All that comes until the far side closes the socket; it raises where it does not within the deadline."""
    received = []
    try:
        while data := opened.recv(1 << 16):
            received.append(data)
    except ConnectionError:  # it was closed while it still sent
        pass
    return b"".join(received)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _slow(count: int) -> None:
    """The command; both ends of every connection are in this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        limits = EndpointLimits(dial_burst=count + 1)
        bank = RecordingEndpoint("bank", trust=authority.trust("bank", "shop"), limits=limits)
        with bank, contextlib.ExitStack() as stack:
            before = _resident()
            began = time.monotonic()
            waiting = selectors.DefaultSelector()
            for _ in range(count):
                opened = stack.enter_context(raw_connection(bank.address))
                opened.sendall(_HELLO_BEGINS[:1])
                waiting.register(opened, selectors.EVENT_READ)
            most = len(bank.connections())
            print(f"{count} have dialed in {time.monotonic() - began:.1f} s; {most} are kept")
            began = time.monotonic()
            with RecordingEndpoint("shop", trust=authority.trust("shop", "bank"), limits=EndpointLimits()) as shop:
                shop.endpoint.send(bank.address, numbered(1))
                bank.wait_for(bank.numbers)
                print(f"an honest instance was served in {time.monotonic() - began:.2f} s")
            closed, most = 0, 0
            while closed < count:
                for key, _ in waiting.select(timeout=1.0):
                    with contextlib.suppress(ConnectionError):
                        assert isinstance(key.fileobj, socket.socket)
                        if key.fileobj.recv(1 << 16):
                            continue
                    waiting.unregister(key.fileobj)
                    closed += 1
                most = max(most, _resident() - before)
                for kept in list(waiting.get_map().values()):
                    with contextlib.suppress(ConnectionError):
                        assert isinstance(kept.fileobj, socket.socket)
                        kept.fileobj.send(b"\x02")
            refused = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)
            print(f"all are closed {time.monotonic() - began:.1f} s after the last had dialed; {len(refused)} events")
            print(f"memory grew by {most / 2**20:.1f} MiB at most, {most / count / 1024:.1f} KiB for each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Slow strangers.")
    parser.add_argument("--connections", type=int, default=10_000)
    _slow(parser.parse_args().connections)
