"""Three instances in separate processes connected through proxies: shop starts dialogs, gate forwards, and stock answers."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ssbroker import Instance
from tests.system import applications, checker
from tests.system.applications import DATABASES, INITIATOR, TARGET
from tests.system.checker import Verdict
from tests.system.faults import HONEST, Menu
from tests.system.namespaces import HERE, Place
from tests.system.node import ROWS_KIB
from tests.system.node_process import Node
from tests.system.proxy import Proxy
from tests.system.traffic import Plan

SHOP, GATE, STOCK = "shop", "gate", "stock"
ROLES: Final = {SHOP: "initiator", GATE: "forwarder", STOCK: "target"}
SERVICES: Final = {SHOP: INITIATOR, STOCK: TARGET}
LINES: Final = ((SHOP, GATE), (GATE, STOCK), (STOCK, GATE), (GATE, SHOP))
"""Who dials whom, each by a proxy of its own."""
FORWARD_MEGABYTES: Final = 10

_ROUTES: Final = {
    SHOP: "USE Sales; CREATE ROUTE ToStock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'{gate}';",
    STOCK: "USE Stock; CREATE ROUTE ToShop WITH SERVICE_NAME = N'//Shop', ADDRESS = N'{gate}';",
    GATE: """
        CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022)
            FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED, MESSAGE_FORWARD_SIZE = {megabytes});
        USE msdb;
        CREATE ROUTE ToStock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'{stock}';
        CREATE ROUTE ToShop WITH SERVICE_NAME = N'//Shop', ADDRESS = N'{shop}';
    """,
}


class Fleet:
    """The three processes, from creation to verdict.

    Args:
        folder: Where all of it stands.
        plan: What is sent.
        options: What `Instance.serve` of each instance is given beside host and port.
        menu: What the network does to them.
        seed: Where its chance comes from.
        places: Where each runs; on this machine's loopback unless given.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        options: Mapping[str, Mapping[str, Any]],
        menu: Menu = HONEST,
        seed: int = 0,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        self._places: Final = places or dict.fromkeys(ROLES, HERE)
        self.plan: Final = plan
        self.proxies: Final = {
            line: Proxy(menu=menu, seed=seed * len(LINES) + number, host=self._places[line[0]].gateway)
            for number, line in enumerate(LINES)
        }
        self.nodes: Final[dict[str, Node]] = {}
        self.said: Final[dict[str, dict[str, int]]] = {name: defaultdict(int) for name in ROLES}
        self._folder: Final = folder
        self._changed: Final = threading.Condition()
        self._stack: Final = ExitStack()
        for name, role in ROLES.items():
            given, planned = folder / f"{name}.json", folder / "plan.json"
            given.write_text(json.dumps(dict(options[name])), encoding="utf-8")
            plan.write(planned)
            self.nodes[name] = Node(
                name,
                [
                    *self._places[name].command,
                    sys.executable,
                    "-m",
                    "tests.system.node",
                    role,
                    str(folder / name),
                    self._places[name].host,
                    str(planned),
                    str(given),
                ],
                errors=folder / f"{name}.errors",
                heard=self._hearing(name),
                ready=self._aiming(name),
            )

    def __enter__(self) -> Self:
        for proxy in self.proxies.values():
            self._stack.enter_context(proxy)
        self._prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            if node.is_alive:
                node.kill()
        self._stack.close()

    def start(self) -> None:
        """Starts all three, the initiator last."""
        for node in reversed(self.nodes.values()):
            node.start()

    def stop(self) -> dict[str, int]:
        """Terminates each; returns their exit statuses."""
        return {name: node.stop() for name, node in self.nodes.items()}

    def restart(self, name: str) -> None:
        """Kills one and starts it again.

        Raises:
            AssertionError: It had ended by itself.
        """
        node = self.nodes[name]
        assert node.kill(), f"{name} ended by itself: {node.complaints()}"
        node.start()

    def count(self, name: str, what: str) -> int:
        """The last that an instance said of something."""
        with self._changed:
            return self.said[name][what]

    def wait(self, is_so: Callable[[], bool], *, timeout: float) -> bool:
        """Waits until a condition holds, checked whenever an instance reports something; returns whether it does."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not is_so():
                left = deadline - time.monotonic()
                if left <= 0 or any(not node.is_alive for node in self.nodes.values() if node.lives):
                    return is_so()
                self._changed.wait(min(left, 1.0))
        return True

    @property
    def is_done(self) -> bool:
        """Whether everything is sent, received, answered, ended and acknowledged, according to the reports."""
        shop, stock = self.said[SHOP], self.said[STOCK]
        return (
            (stock["received"], stock["ended"]) >= (self.plan.total, self.plan.lanes)
            and (shop["received"], shop["ended"]) >= (self.plan.replies, self.plan.lanes)
            and shop["waiting"] == stock["waiting"] == 0
        )

    def verdict(self) -> Verdict:
        """The result according to their files, after all have ended."""
        verdict = Verdict()
        kept = {}
        for name, service in SERVICES.items():
            with Instance.open(self._folder / name, background=False) as instance:
                database = instance.database(DATABASES[service])
                kept[name] = applications.sent(database), applications.received(database)
        for source, target in ((SHOP, STOCK), (STOCK, SHOP)):
            sent, received = kept[source][0], kept[target][1]
            verdict.add(checker.judge(sent, received))
            promised = {
                "sent": (len(sent), self.count(source, "sent")),
                "received": (len(received), self.count(target, "received")),
            }
            verdict.taken_back += sum(max(0, said - found) for found, said in promised.values())
        return verdict

    def complaints(self) -> str:
        """The standard error of all processes."""
        return "".join(f"{name}: {said}\n" for name, node in self.nodes.items() if (said := node.complaints()))

    def _prepare(self) -> None:
        for name in ROLES:
            with Instance.create(self._folder / name, name=name, background=False) as instance:
                if name in SERVICES:
                    lanes = self.plan.lanes if name == SHOP else 0
                    applications.prepare(instance, SERVICES[name], lanes=lanes)
                places = {far: self.proxies[near, far].address for near, far in LINES if near == name}
                instance.execute(_ROUTES[name].format(megabytes=FORWARD_MEGABYTES, **places))

    def _hearing(self, name: str) -> Callable[[list[str]], None]:
        def hear(words: list[str]) -> None:
            what, number = words[0], int(words[1])
            with self._changed:
                self.said[name][what] = max(self.said[name][what], number) if what == ROWS_KIB else number
                self._changed.notify_all()

        return hear

    def _aiming(self, name: str) -> Callable[[int], None]:
        def aim(port: int) -> None:
            for (_, far), proxy in self.proxies.items():
                if far == name:
                    proxy.aim(port, host=self._places[name].host)

        return aim
