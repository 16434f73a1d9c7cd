"""Common durable queues. A message counts as sent or received only once the commit is on disk.

A message is a conversation and a body. Queues without conversations use one queue for all, which saves them work.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Protocol

Message = tuple[int, bytes]
"""The number of a conversation, and a body that starts with it."""


class Missing(Exception):  # noqa: N818  # a missing server is not an error
    """A server or library is not available."""


class QueueRival(Protocol):
    """A contender."""

    @property
    def name(self) -> str: ...

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        """Sends all messages, `batch` per transaction."""
        ...

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        """Receives `count` bodies in the order of each conversation, `batch` per transaction."""
        ...

    def close(self) -> None: ...


class Entry(Protocol):
    """Creates a rival in an empty folder.

    Raises:
        Missing: A server or library is not available.
    """

    def __call__(self, folder: pathlib.Path, *, conversations: int) -> QueueRival: ...


def batches(messages: Sequence[Message], size: int) -> Iterator[Sequence[Message]]:
    """Splits messages into batches."""
    for start in range(0, len(messages), size):
        yield messages[start : start + size]
