"""A signal handler may use and close an instance at any point at which it interrupts the main thread."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ssbroker import Instance

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such signals")

CALLS: Final = """
import faulthandler, signal, sys
from ssbroker import Instance, SsbrokerError
from ssbroker.exceptions import LockTimeoutError, StorageError

faulthandler.dump_traceback_later(100, exit=True)
instance = Instance.open(sys.argv[1], background=sys.argv[2] == "interrupted")
sales, stock = instance.database("Sales"), instance.database("Stock")
server = instance.serve(port=0, allow_unencrypted=True).start()

def send():
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Sales", "//Sales"), b"here")
        t.send(t.begin_dialog("//Sales", "//Stock"), b"there")

def receive():
    with stock.transaction() as t:
        t.receive("Orders", timeout=0.001)

calls = [
    send, receive, instance.catalog, instance.router, sales._context.objects, lambda: instance.view("sys.databases"),
    lambda: instance.view("sys.dm_broker_queue_monitors"), lambda: instance.subscribe(print)(),
    lambda: instance.execute("USE Sales; ALTER QUEUE Orders WITH RETENTION = OFF;"), lambda: sales.activate("Orders", print),
]
for call in calls:
    call()
sales.deactivate("Orders")
calls.pop()
"""

INTERRUPTED: Final = """
told, handled, is_inside, is_closed = [], 0, False, False

def handle(_number, _frame):
    global handled, is_inside, is_closed
    if is_inside or is_closed:
        return
    is_inside = True
    try:
        calls[handled % len(calls)]()
    except LockTimeoutError as error:
        assert "this thread or task would wait for its own open transaction" in str(error), error
        told.append(error)
    handled += 1
    if handled == 150:
        signal.setitimer(signal.ITIMER_REAL, 0)
        instance.close()
        is_closed = True
    is_inside = False

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.0047)
number = 0
while not is_closed:
    number += 1
    try:
        calls[number % len(calls)]()
    except StorageError as error:
        assert is_closed and "is closed" in str(error), error
assert told, "some came in the middle of a transaction"
assert server.is_alive is False
"""

INSIDE: Final = """
import gc, threading

locks = type(threading.RLock()), threading.Condition
held = []
for each in gc.get_objects():
    if str(type(each).__module__).startswith(("ssbroker.broker", "ssbroker.store")):
        names = {*getattr(each, "__dict__", ()), *(name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ()))}
        for name in sorted(names):
            lock = getattr(each, name, None)
            if isinstance(lock, type(threading.Lock())):
                sys.exit(f"{type(each).__name__}.{name} may be held once only")
            if isinstance(lock, locks):
                held.append(lock)
assert len(held) > 15
for lock in held:
    with lock:
        for call in calls:
            call()
instance.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        for name in ("Sales", "Stock"):
            database = instance.create_database(name)
            database.create_queue("Orders")
            database.create_service(f"//{name}", queue="Orders")
    return tmp_path / "shop"


@pytest.mark.parametrize("where", ["interrupted", "inside"])
def test_the_handler_of_a_signal_uses_and_closes_the_instance(folder: Path, where: str) -> None:
    """It works, or fails because the thread would wait for its own transaction; nothing deadlocks."""
    script = CALLS + (INTERRUPTED if where == "interrupted" else INSIDE)
    subprocess.run([sys.executable, "-c", script, str(folder), where], check=True, timeout=120)
