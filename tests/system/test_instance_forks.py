"""A process forked from one that has an instance open, or serves it, inherits none of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from ssbroker import Instance
from ssbroker.broker.network.status_file import read_status
from ssbroker.broker.serve_lock import ServeLock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

DEADLINE: Final = 60.0

SERVES: Final = """
import os, sys, threading
from ssbroker import Instance

with Instance.open(sys.argv[1]) as instance, instance.serve(port=0, allow_unencrypted=True) as server:
    sales = instance.database("Sales")
    sales.create_route("There", address=f"TCP://127.0.0.1:{sys.argv[2]}", service_name="//There")
    print(server.port, flush=True)
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//There", encryption=False), b"so that it dials")
    sys.stdin.readline()
    child = os.fork()
    if child:
        os.write(1, b"%d\\n" % child)  # in one piece, since both processes write there
        threading.Event().wait()
    if sys.argv[3] == "ends":
        server.close()
        instance.close()
    os.write(1, b"forked\\n")
    threading.Event().wait()
"""

CALLS: Final = """
import os, signal, sys, threading
from ssbroker import Instance
from ssbroker.exceptions import StorageError

instance = Instance.open(sys.argv[1])
server = instance.serve(port=0, allow_unencrypted=True).start()
sales = instance.database("Sales")
is_held, is_over = threading.Event(), threading.Event()
worker = instance._background

def hold():
    with worker.activation._guard, instance._context.counters._guard, sales._context.commit_signals._changed, instance._databases._guard:
        is_held.set()
        is_over.wait()

thread = threading.Thread(target=hold)

def transact():
    with sales.transaction() as t:
        t.receive("Orders")

def end():
    begun.send(dialog, b"in the child")
    begun.__exit__(None, None, None)

calls = [
    lambda: instance.databases, instance.catalog, instance.run_due, lambda: sales.service_broker_guid,
    lambda: instance.register_procedure("read", print), lambda: sales.activate("Orders", print), lambda: instance.create_database("More"),
    lambda: instance.serve(port=0, allow_unencrypted=True).start(), server.start, transact, end,
]
with sales.transaction() as begun:
    dialog = begun.begin_dialog("//Shop", "//Shop", encryption=False)
    thread.start()
    is_held.wait()
    child = os.fork()
    if not child:
        signal.alarm(30)
        refused = 0
        for call in calls:
            try:
                call()
            except StorageError as error:
                refused += "was opened before this process was forked; open the instance again in this process" in str(error)
        begun.__exit__(ValueError, ValueError(), None)
        sales._context.close()
        server.close()
        instance.close()
        os._exit(refused)
    is_over.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(calls)
    begun.send(dialog, b"in the parent")
thread.join()
with sales.transaction() as t:
    assert t.receive("Orders")["message_body"].to_pylist() == [b"in the parent"]
assert server.is_alive and (instance.folder / "serving.json").exists()
server.close()
instance.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue("Orders")
        sales.create_service("//Shop", queue="Orders")
    return tmp_path / "shop"


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(DEADLINE)
        yield listening


@pytest.mark.parametrize("child_does", ["nothing", "ends"])
def test_a_forked_process_keeps_neither_lock_nor_port_nor_connections(
    folder: Path, peer: socket.socket, child_does: str
) -> None:
    """Its parent is killed: the next process serves immediately at the same port, and peers see that the connections have ended."""
    with serving(folder, peer.getsockname()[1], child_does) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        own_port = int(parent.stdout.readline())
        dialled, _ = peer.accept()
        with dialled, socket.create_connection(("127.0.0.1", own_port), timeout=DEADLINE) as dials:
            dialled.settimeout(DEADLINE)
            assert dials.recv(1), "the server has accepted the connection"
            print(file=parent.stdin, flush=True)
            output = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
            (child,) = (int(each) for each in output - {"forked"})
            try:
                assert ServeLock.is_held(folder)
                assert read_status(folder), "the child does not affect its parent"
                parent.kill()
                parent.wait()
                for connection in (dialled, dials):
                    assert is_ended(connection)
                assert not ServeLock.is_held(folder)
                with (
                    Instance.open(folder) as instance,
                    instance.serve(port=own_port, allow_unencrypted=True) as server,
                ):
                    assert server.port == own_port
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)


@contextmanager
def serving(folder: Path, port: int, child_does: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVES, str(folder), str(port), child_does]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            yield parent
        finally:
            parent.kill()


def test_every_call_on_an_inherited_instance_is_rejected(folder: Path) -> None:
    """Whatever threads of the parent held during the fork; the transaction and the server of the parent continue."""
    subprocess.run([sys.executable, "-c", CALLS, str(folder)], check=True, timeout=DEADLINE)


def is_ended(connection: socket.socket) -> bool:
    """Returns whether the peer has closed its socket; that takes a while after a kill."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True
