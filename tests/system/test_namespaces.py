"""Processes in separate network namespaces connect through a proxy in this one, and only there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.namespaces import Namespaces
from tests.system.node_process import Node
from tests.system.proxy import Proxy

LISTENING = """
import socket, sys
listening = socket.create_server((sys.argv[1], 0))
print("ready", listening.getsockname()[1], flush=True)
while True:
    listening.accept()[0].sendall(b"hello")
"""
DIALLING = (
    "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60).recv(5).decode())"
)


@pytest.fixture
def spaces() -> Iterator[Namespaces]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Namespaces(["shop", "stock"]))
        except OSError as error:
            pytest.skip(f"network namespaces are not allowed here: {error}")
        yield made


def test_processes_connect_through_the_proxy(spaces: Namespaces, tmp_path: Path) -> None:
    ports: list[int] = []
    shop, stock = spaces.locations["shop"], spaces.locations["stock"]
    node = Node(
        "stock",
        [*stock.command, sys.executable, "-c", LISTENING, stock.host],
        errors=tmp_path / "errors",
        on_ready=ports.append,
    )
    node.start()
    with Proxy(host=shop.gateway) as proxy:
        proxy.set_target(ports[0], host=stock.host)
        command = [*shop.command, sys.executable, "-c", DIALLING, proxy.host, str(proxy.port)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "hello\n"
    node.kill()
