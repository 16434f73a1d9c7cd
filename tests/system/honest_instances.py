"""Two honest instances served in this process, with calls of their applications; the test acts as the attacker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ssbroker import Instance
from ssbroker.broker.database import Database
from ssbroker.protocol.events import Event
from tests.system.applications import DATABASES, INITIATOR, QUEUE, TARGET
from tests.system.proxy import HOST
from tests.system.serve_options import ServeOptions, options, serve_arguments

DEADLINE_SECONDS: Final = 60.0
NAMES: Final = ("shop", "stock", "gate", "mallory")
Handle = uuid.UUID


class HonestInstance:
    """An instance with one database and one service."""

    def __init__(self, folder: Path, name: str, service: str, serve_options: ServeOptions, stack: ExitStack) -> None:
        self.instance: Final = stack.enter_context(Instance.create(folder / name, name=name))
        self.database: Final[Database] = self.instance.create_database(DATABASES[service])
        self.database.create_queue(QUEUE)
        self.database.create_service(service, queue=QUEUE)
        self.service: Final = service
        self.events: Final[list[Event]] = []
        self._changed: Final = threading.Condition()
        self.instance.subscribe(self._record_event)
        server = stack.enter_context(self.instance.serve(host=HOST, port=0, **serve_arguments(serve_options)))
        self.address: Final = f"TCP://{HOST}:{server.port}"

    @property
    def broker_instance(self) -> bytes:
        """The broker id of its database."""
        return self.database.service_broker_guid.bytes

    def create_route(self, service: str, address: str) -> None:
        """Creates the route to a service."""
        self.instance.execute(
            f"USE {self.database.name}; CREATE ROUTE R WITH SERVICE_NAME = N'{service}', ADDRESS = N'{address}';"
        )

    def begin_dialog(self, to: str, *bodies: bytes, **dialog_options: Any) -> Handle:
        """Starts a dialog and sends messages in it."""
        with self.database.transaction() as t:
            handle = t.begin_dialog(self.service, to, **{"encryption": False, **dialog_options})
            for body in bodies:
                t.send(handle, body)
        return handle

    def send(self, handle: Handle, *bodies: bytes) -> None:
        """Sends more messages in the same dialog."""
        with self.database.transaction() as t:
            for body in bodies:
                t.send(handle, body)

    def receive_one(self) -> tuple[bytes | None, Handle]:
        """Waits for the next message, and returns it with its conversation handle.

        Raises:
            TimeoutError: No message arrived.
        """
        with self.database.transaction() as t:
            table = t.receive(QUEUE, top=1, timeout=DEADLINE_SECONDS)
        if not table.num_rows:
            raise TimeoutError(f"{self.service} got nothing; events: {[event for event in self.events if event.LEVEL]}")
        row = table.to_pylist()[0]
        return row["message_body"], uuid.UUID(bytes=bytes(row["conversation_handle"]))

    def receive_all(self) -> list[bytes | None]:
        """Receives all messages in its queue."""
        found: list[Any] = []
        with self.database.transaction() as t:
            while (table := t.receive(QUEUE)).num_rows:
                found += table["message_body"].to_pylist()
        return found

    def wait_for_event(self, kind: type[Event], *, matches: Callable[[Any], bool] = lambda _: True) -> Any:
        """Waits for an event of this kind that matches, and returns the first one.

        Raises:
            TimeoutError: There was none.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: any(isinstance(e, kind) and matches(e) for e in self.events), DEADLINE_SECONDS
            )
            for event in self.events:
                if isinstance(event, kind) and matches(event):
                    return event
        raise TimeoutError(f"no {kind.__name__} of that kind: {self.events}")

    def _record_event(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


class HonestInstances:
    """The instances shop and stock.

    Args:
        folder: Folder of both.
        is_encrypted: Whether connections use TLS with a certificate for each of `NAMES`.
    """

    def __init__(self, folder: Path, *, is_encrypted: bool = True) -> None:
        self.serve_options: Final[Mapping[str, ServeOptions]] = options(folder, NAMES, is_encrypted=is_encrypted)
        self._folder: Final = folder
        self._stack: Final = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.shop = HonestInstance(self._folder, "shop", INITIATOR, self.serve_options["shop"], stack)
            self.stock = HonestInstance(self._folder, "stock", TARGET, self.serve_options["stock"], stack)
            self._stack.push(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def trust(self, name: str) -> Any:
        """Returns the certificate of another instance that may connect."""
        return serve_arguments(self.serve_options[name]).get("trust")
