"""ssbroker: an instance for the sender and one for each receiver, with TLS; messages are durable at both ends, and arrive in order and exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benches.network_rivals import Setting
from benches.queue_rivals import Message
from ssbroker import Instance
from ssbroker.broker.network.tls import Trust
from ssbroker.security.certificates import Validity, make_authority, make_certificate

QUEUE: Final = "Messages"
_HOST: Final = "127.0.0.1"
_WAIT_SECONDS: Final = 1.0


class Ours:
    """Dialogs without encryption of their own, inside TLS."""

    name: str = "ssbroker"

    def prepare(self, setting: Setting) -> None:
        begins = datetime.now(UTC) - timedelta(days=1)
        validity = Validity(begins, begins + timedelta(days=30))
        authority = make_authority("Bench", validity)
        (setting.folder / "authority.pem").write_bytes(authority.certificate)
        for name in _names(setting):
            made = make_certificate([name], validity, authority=authority)
            (setting.folder / f"{name}.pem").write_bytes(made.certificate)
            (setting.folder / f"{name}.key").write_bytes(made.key)

    def receiver(self, setting: Setting, number: int) -> tuple[OursReceiver, str]:
        side = OursReceiver(setting, number)
        return side, side.address

    def sender(self, setting: Setting, addresses: Sequence[str]) -> OursSender:
        return OursSender(setting, addresses)


class _Side:
    """A serving instance."""

    def __init__(self, setting: Setting, name: str) -> None:
        self._stack: Final = ExitStack()
        self.instance: Final = self._stack.enter_context(Instance.create(setting.folder / name, name=name))
        self.database: Final = self.instance.create_database("Bench")
        self.database.create_queue(QUEUE)
        served = self.instance.serve(host=_HOST, port=0, trust=_trust(setting, name))
        self.port: Final[int] = self._stack.enter_context(served).port
        self.address: Final = f"TCP://{_HOST}:{self.port}"

    def close(self) -> None:
        self._stack.close()


class OursSender(_Side):
    """The sending instance."""

    def __init__(self, setting: Setting, addresses: Sequence[str]) -> None:
        super().__init__(setting, "sender")
        self.database.create_service("//Sender", queue=QUEUE)
        for number, address in enumerate(addresses):
            self.instance.execute(
                f"USE Bench; CREATE ROUTE To{number} WITH SERVICE_NAME = N'{_service(number)}', ADDRESS = N'{address}';"
            )
        (setting.folder / "port").write_text(str(self.port), encoding="utf-8")
        with self.database.transaction() as t:
            self._dialogs: Final[list[uuid.UUID]] = [
                t.begin_dialog("//Sender", _service(number % setting.receivers), encryption=False)
                for number in range(setting.conversations)
            ]

    def send(self, messages: Sequence[Message]) -> None:
        handles = pa.array([self._dialogs[conversation].bytes for conversation, _ in messages], pa.binary(16))
        bodies = pa.array([body for _, body in messages], pa.binary())
        with self.database.transaction() as t:
            t.send_batch(pa.table({"conversation_handle": handles, "message_body": bodies}))


class OursReceiver(_Side):
    """The receiving instance."""

    def __init__(self, setting: Setting, number: int) -> None:
        super().__init__(setting, f"receiver{number}")
        self.database.create_service(_service(number), queue=QUEUE)
        self._port: Final = setting.folder / "port"
        self._has_reply_route = False

    def receive(self, max_messages: int) -> list[bytes]:
        if not self._has_reply_route:
            self.create_reply_route()
        with self.database.transaction() as t:
            bodies: list[Any] = t.receive(QUEUE, top=max_messages, groups=max_messages, timeout=_WAIT_SECONDS)[
                "message_body"
            ].to_pylist()
        return bodies

    def create_reply_route(self) -> None:
        """Creates the route to the sender, which has written its port."""
        port = self._port.read_text(encoding="utf-8")
        self.instance.execute(
            f"USE Bench; CREATE ROUTE Back WITH SERVICE_NAME = N'//Sender', ADDRESS = N'TCP://{_HOST}:{port}';"
        )
        self._has_reply_route = True


def _names(setting: Setting) -> list[str]:
    return ["sender", *(f"receiver{number}" for number in range(setting.receivers))]


def _service(number: int) -> str:
    return f"//Receiver{number}"


def _trust(setting: Setting, name: str) -> Trust:
    folder: Path = setting.folder
    return Trust(
        certificate=folder / f"{name}.pem",
        key=folder / f"{name}.key",
        authority=folder / "authority.pem",
        names=_names(setting),
    )
