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
from tests.system.faults import NO_FAULTS, FaultRates
from tests.system.namespaces import LOOPBACK, Location
from tests.system.node import ROWS_KIB
from tests.system.node_process import Node
from tests.system.proxy import Proxy
from tests.system.traffic import Plan

SHOP, GATE, STOCK = "shop", "gate", "stock"
ROLES: Final = {SHOP: "initiator", GATE: "forwarder", STOCK: "target"}
SERVICES: Final = {SHOP: INITIATOR, STOCK: TARGET}
LINKS: Final = ((SHOP, GATE), (GATE, STOCK), (STOCK, GATE), (GATE, SHOP))
"""The client and the server of each connection; each pair has its own proxy."""
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
        folder: Folder of all files.
        plan: The messages to send.
        options: Arguments of `Instance.serve` for each instance, except host and port.
        rates: Fault rates of the network.
        seed: Seed of the faults.
        locations: Where each process runs; by default on this machine's loopback interface.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        options: Mapping[str, Mapping[str, Any]],
        rates: FaultRates = NO_FAULTS,
        seed: int = 0,
        locations: Mapping[str, Location] | None = None,
    ) -> None:
        self._locations: Final = locations or dict.fromkeys(ROLES, LOOPBACK)
        self.plan: Final = plan
        self.proxies: Final = {
            link: Proxy(rates=rates, seed=seed * len(LINKS) + number, host=self._locations[link[0]].gateway)
            for number, link in enumerate(LINKS)
        }
        self.nodes: Final[dict[str, Node]] = {}
        self.reports: Final[dict[str, dict[str, int]]] = {name: defaultdict(int) for name in ROLES}
        self._folder: Final = folder
        self._changed: Final = threading.Condition()
        self._stack: Final = ExitStack()
        for name, role in ROLES.items():
            options_file, plan_file = folder / f"{name}.json", folder / "plan.json"
            options_file.write_text(json.dumps(dict(options[name])), encoding="utf-8")
            plan.write(plan_file)
            self.nodes[name] = Node(
                name,
                [
                    *self._locations[name].command,
                    sys.executable,
                    "-m",
                    "tests.system.node",
                    role,
                    str(folder / name),
                    self._locations[name].host,
                    str(plan_file),
                    str(options_file),
                ],
                errors=folder / f"{name}.errors",
                on_report=self._report_handler(name),
                on_ready=self._ready_handler(name),
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
        """Kills a process and starts it again.

        Raises:
            AssertionError: The process had already ended.
        """
        node = self.nodes[name]
        assert node.kill(), f"{name} ended on its own: {node.error_output()}"
        node.start()

    def count(self, name: str, what: str) -> int:
        """Returns the last count that an instance reported."""
        with self._changed:
            return self.reports[name][what]

    def wait(self, condition: Callable[[], bool], *, timeout: float) -> bool:
        """Waits until a condition holds, checked at every report of an instance; returns whether it holds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0 or any(not node.is_alive for node in self.nodes.values() if node.starts):
                    return condition()
                self._changed.wait(min(left, 1.0))
        return True

    @property
    def is_done(self) -> bool:
        """Whether all messages were sent, received, answered and acknowledged, and all dialogs ended, as reported."""
        shop, stock = self.reports[SHOP], self.reports[STOCK]
        return (
            (stock["received"], stock["ended"]) >= (self.plan.total, self.plan.lanes)
            and (shop["received"], shop["ended"]) >= (self.plan.replies, self.plan.lanes)
            and shop["waiting"] == stock["waiting"] == 0
        )

    def verdict(self) -> Verdict:
        """Compares the contents of their files, after all processes have ended."""
        verdict = Verdict()
        stored = {}
        for name, service in SERVICES.items():
            with Instance.open(self._folder / name, background=False) as instance:
                database = instance.database(DATABASES[service])
                stored[name] = applications.sent(database), applications.received(database)
        for source, target in ((SHOP, STOCK), (STOCK, SHOP)):
            sent, received = stored[source][0], stored[target][1]
            verdict.add(checker.compare(sent, received))
            reported = {
                "sent": (len(sent), self.count(source, "sent")),
                "received": (len(received), self.count(target, "received")),
            }
            verdict.lost_commits += sum(max(0, count - found) for found, count in reported.values())
        return verdict

    def error_output(self) -> str:
        """Returns the standard error of all processes."""
        return "".join(f"{name}: {text}\n" for name, node in self.nodes.items() if (text := node.error_output()))

    def _prepare(self) -> None:
        for name in ROLES:
            with Instance.create(self._folder / name, name=name, background=False) as instance:
                if name in SERVICES:
                    lanes = self.plan.lanes if name == SHOP else 0
                    applications.prepare(instance, SERVICES[name], lanes=lanes)
                locations = {server: self.proxies[client, server].address for client, server in LINKS if client == name}
                instance.execute(_ROUTES[name].format(megabytes=FORWARD_MEGABYTES, **locations))

    def _report_handler(self, name: str) -> Callable[[list[str]], None]:
        def record(words: list[str]) -> None:
            what, number = words[0], int(words[1])
            with self._changed:
                self.reports[name][what] = max(self.reports[name][what], number) if what == ROWS_KIB else number
                self._changed.notify_all()

        return record

    def _ready_handler(self, name: str) -> Callable[[int], None]:
        def set_target(port: int) -> None:
            for (_, server), proxy in self.proxies.items():
                if server == name:
                    proxy.set_target(port, host=self._locations[name].host)

        return set_target
