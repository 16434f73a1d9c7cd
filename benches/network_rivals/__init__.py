"""Durable messages from one process to another: ssbroker over TLS, and common servers.

The sender and each receiver are processes. A message counts as sent once it is on disk, and as received once the receiving transaction is on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benches.queue_rivals import Message


class Sender(Protocol):
    """The sender of a contender."""

    def send(self, messages: Sequence[Message]) -> None:
        """Sends messages in one transaction."""
        ...

    def close(self) -> None: ...


class Receiver(Protocol):
    """A receiver of a contender."""

    def receive(self, max_messages: int) -> list[bytes]:
        """Receives at most `max_messages` messages in one transaction; waits briefly for the first."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setup of the sender and the receivers.

    Attributes:
        folder: An empty folder.
        conversations: The number of conversations.
        receivers: The number of receivers; conversations are distributed among them round robin.
        batch: The maximum number of messages in a transaction.
    """

    folder: Path
    conversations: int
    receivers: int
    batch: int


class Rival(Protocol):
    """A contender. It is pickled for the processes, so it cannot hold open resources."""

    @property
    def name(self) -> str: ...

    def prepare(self, setting: Setting) -> None:
        """Prepares the sender and the receivers.

        Raises:
            Missing: A server or library is not available.
        """
        ...

    def receiver(self, setting: Setting, number: int) -> tuple[Receiver, str]:
        """Returns a receiver, and its address for senders; called in its process."""
        ...

    def sender(self, setting: Setting, addresses: Sequence[str]) -> Sender:
        """Returns the sender; called in its process."""
        ...
