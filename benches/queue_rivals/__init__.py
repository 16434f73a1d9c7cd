"""Durable queues that others would use, each with a commit that is on the disk before a message counts as sent or received.

A message is its conversation and its body. Who knows no conversations gets one queue for all, which spares it work.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Protocol

Message = tuple[int, bytes]
"""The number of a conversation, and a body that begins with it."""


class Missing(Exception):  # noqa: N818  # it is no error that a server is not installed
    """What the rival needs is not here; the text says what."""


class QueueRival(Protocol):
    """What takes part in a race."""

    @property
    def name(self) -> str: ...

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        """Send all, so many in each transaction."""
        ...

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        """Take so many bodies for good, in the order of each conversation, so many in each transaction."""
        ...

    def close(self) -> None: ...


class Entry(Protocol):
    """Makes a rival in an empty folder.

    Raises:
        Missing: It needs what is not here.
    """

    def __call__(self, folder: pathlib.Path, *, conversations: int) -> QueueRival: ...


def batches(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """The messages in their order, so many at a time."""
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
