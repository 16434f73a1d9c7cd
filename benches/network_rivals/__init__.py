"""Durable messages from one process to another: by ssbroker over TLS, and by servers that others would use.

Each side is a process of its own. A message counts as sent once it is on a disk, and as received once the transaction that took it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benches.queue_rivals import Message


class Sender(Protocol):
    """The side that sends."""

    def send(self, messages: Sequence[Message]) -> None:
        """Sends these in one transaction."""
        ...

    def close(self) -> None: ...


class Receiver(Protocol):
    """The side that receives."""

    def receive(self, most: int) -> list[bytes]:
        """Takes what is there, so many at most, in one transaction; waits a moment for the first."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What both sides know.

    Attributes:
        folder: Theirs alone.
        conversations: How many.
        receivers: How many receive; the conversations are shared among them in turns.
        batch: The most messages in a transaction.
    """

    folder: Path
    conversations: int
    receivers: int
    batch: int


class Rival(Protocol):
    """What takes part. It is pickled on its way to the processes, so it holds nothing open."""

    @property
    def name(self) -> str: ...

    def prepare(self, setting: Setting) -> None:
        """Makes what both sides need.

        Raises:
            Missing: It needs what is not here.
        """
        ...

    def receiver(self, setting: Setting, number: int) -> tuple[Receiver, str]:
        """One receiver, and its address for those who send; called in its process."""
        ...

    def sender(self, setting: Setting, addresses: Sequence[str]) -> Sender:
        """The sender; called in its process."""
        ...
