"""R53, R54: a mirrored pair of processes, one of which is killed while messages are sent to it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.network.mirrored_routes import MirroredRouteState
from ssbroker.protocol.events import MirroredRouteStateChanged
from tests.broker.network.socket_instances import TIMEOUT, EventRecorder, SocketInstance, order, shop
from tests.broker.sample_databases import ORDERS, SHOP, STOCK
from tests.system.node_process import Node
from tests.system.serve_options import UNENCRYPTED
from tests.system.traffic import Plan

MESSAGES = 300
BEFORE = 100


class MirrorHalf:
    """One of the mirrored pair: its folder, opened by this process too, and the process that serves it."""

    def __init__(self, folder: Path, name: str, stack: ExitStack) -> None:
        self.folder = folder
        self.port = 0
        self.instance = stack.enter_context(Instance.create(folder / name, name=name, background=False))
        options, plan = folder / f"{name}.json", folder / "plan.json"
        options.write_text(json.dumps(UNENCRYPTED), encoding="utf-8")
        Plan(lanes=1, messages=0).write(plan)
        command = [sys.executable, "-m", "tests.system.node", "forwarder", str(folder / name), "127.0.0.1"]
        self.node = Node(
            name, [*command, str(plan), str(options)], errors=folder / f"{name}.errors", on_ready=self._set_port
        )

    def _set_port(self, port: int) -> None:
        self.port = port

    @property
    def address(self) -> str:
        return f"TCP://127.0.0.1:{self.port}"

    @property
    def stock(self) -> Database:
        return self.instance.database("Stock")

    def receive(self, count: int) -> list[bytes]:
        """Receives that many messages, in transactions of this process."""
        found: list[bytes] = []
        while len(found) < count:
            with self.stock.transaction() as t:
                table = t.receive(ORDERS, top=min(25, count - len(found)), timeout=TIMEOUT)
                assert table.num_rows, f"only {len(found)} arrived; {self.node.error_output()}"
                found += [body or b"" for body in table["message_body"].to_pylist()]
        return found

    def copy_to(self, other: MirrorHalf) -> None:
        """Copies the file as last committed to the other instance, which becomes the mirror."""
        database_context(self.stock).file.checkpoint()
        copy = self.folder / f"Stock of {other.instance.name} {other.node.starts}.sqlite"
        shutil.copyfile(self.stock.path, copy)
        if any(database.name == "Stock" for database in other.instance.databases):
            other.instance.drop_database("Stock")
        other.instance.attach_database("Stock", copy)
        other.stock.set_mirroring_role("mirror")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.rule("R53", "R52", "R54", "P11")
def test_each_message_arrives_once_in_order_if_the_principal_is_killed(tmp_path: Path, stack: ExitStack) -> None:
    """The mirror continues with everything that the principal had committed."""
    instance = stack.enter_context(Instance.create(tmp_path / "near", name="near"))
    shop_instance = SocketInstance(instance, stack.enter_context(instance.serve(port=0, allow_unencrypted=True)))
    first, second = (MirrorHalf(tmp_path, name, stack) for name in ("first", "second"))
    database = first.instance.create_database("Stock")
    database.create_queue(ORDERS)
    database.create_service(STOCK, queue=ORDERS)
    database.create_route("home", service_name=SHOP, address=shop_instance.address)
    first.copy_to(second)
    for half in (first, second):
        half.node.start()
        stack.callback(half.node.kill)
    sales = shop(shop_instance)
    shop_instance.add_route("Sales", STOCK, first.address, mirror=second.address, broker=database.service_broker_guid)
    recorder = EventRecorder(shop_instance, kinds=(MirroredRouteStateChanged,))
    bodies = [b"order %d" % number for number in range(MESSAGES)]
    dialog = order(sales, *bodies[:BEFORE])
    found = first.receive(BEFORE // 2)
    order(sales, *bodies[BEFORE:], dialog=dialog)
    first.node.kill()
    recorder.wait_for(
        lambda events: any(getattr(event, "state", "") == MirroredRouteState.LOST_ADDRESS for event in events)
    )
    first.copy_to(second)
    second.stock.set_mirroring_role("principal")
    found += second.receive(MESSAGES - len(found))
    assert found == bodies
    assert second.instance.view("dbo.Orders").num_rows == 0
