"""Orders articles from the application in `shop.py`, kills its server, and shows that no order is lost or shipped twice."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

ORDERS = 40


def start(port: int, folder: str) -> subprocess.Popen[bytes]:
    """Starts the server, and returns when it answers."""
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, cwd=Path(__file__).parent, env={**os.environ, "SHOP": folder})
    while True:
        try:
            count(port)
        except ConnectionRefusedError:
            if server.poll() is not None:
                sys.exit("the server has ended: pip install uvicorn 'ssbroker[broker,asyncio]'")
            time.sleep(0.05)
        else:
            return server


def order(port: int, article: str) -> int:
    """Orders an article; returns the number of the order."""
    return answer(port, "POST", json.dumps({"article": article}))["order"]


def count(port: int) -> dict[str, int]:
    """Returns the numbers of orders: all, shipped, and shipped by a second attempt."""
    return answer(port, "GET")


def answer(port: int, method: str, body: str | None = None) -> dict[str, int]:
    """Sends a request; returns the decoded answer."""
    connection = HTTPConnection("127.0.0.1", port)
    with closing(connection):
        connection.request(method, "/", body)
        return dict(json.load(connection.getresponse()))


def free_port() -> int:
    """Returns a TCP port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = start(port, folder)
        orders = [order(port, f"chair {number}") for number in range(ORDERS)]
        server.kill()
        server.wait()
        print(f"{len(set(orders))} orders accepted, and the server killed")
        server = start(port, folder)
        counts = count(port)
        while counts["shipped"] < ORDERS:
            time.sleep(0.1)
            counts = count(port)
        server.terminate()
        server.wait()
        print(
            f"{counts['shipped']} of {counts['orders']} orders shipped, {counts['repeated']} of them by a second attempt"
        )


if __name__ == "__main__":
    main()
