"""What an instance on the virtual network has to keep: a ledger, and what its applications do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ssbroker.protocol import names
from ssbroker.protocol.ledger import Effects, Endpoint, Key, Ledger


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a transmission queue or a queue.

    Attributes:
        sequence: Its number.
        body: Its body.
        message_type: Its type.
        message_id: Its id.
        is_end: Whether it ends the dialog.
        is_error: Whether it is an error of the application.
    """

    sequence: int
    body: bytes
    message_type: str = names.DEFAULT
    message_id: bytes | None = None
    is_end: bool = False
    is_error: bool = False


class Book(Ledger, Protocol):
    """A ledger with applications; what it says is committed."""

    @property
    def broker_instance(self) -> bytes:
        """The broker id of its database."""

    def begin(self, endpoint: Endpoint) -> Key:
        """Begins a dialog."""

    def send(self, key: Key, body: bytes, *, message_type: str = names.DEFAULT) -> int:
        """Sends a message; its number."""

    def waiting(self) -> list[Key]:
        """The endpoints whose transmission queues hold messages."""

    def is_waiting(self, key: Key) -> bool:
        """Whether the transmission queue holds messages of an endpoint."""

    def can_send(self, key: Key) -> bool:
        """Whether an endpoint is there, and its application may send."""

    def received(self, key: Key) -> Sequence[Message]:
        """What the application of an endpoint has received, in order."""

    def failed(self, key: Key) -> str | None:
        """The error of the broker that has ended an endpoint; None for none."""

    def commit(self, effects: Effects) -> object:
        """Writes what a batch has come to, as one transaction; what it says of that is None where all is written."""

    def restart(self) -> None:
        """Loses what a crash loses."""
