"""Who sends rows of the envelope."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from ssbroker import _core

Sender: TypeAlias = tuple[bytes, bool, bytes | None]
"""A conversation, the sender's side, and the broker id that it sends to."""


def senders_of(rows: pa.Table) -> tuple[list[tuple[Sender, int]], bool]:
    """The senders of rows, as they follow each other.

    Args:
        rows: The rows (`envelope.ENVELOPE`).

    Returns:
        Each with how many rows it sends there; and whether no row is secured.

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> senders_of(ENVELOPE.empty_table())
        ([], True)
    """
    found, are_plain = _core.sender_runs(rows)
    return [((conversation_id, side, broker), number) for conversation_id, side, broker, number in found], are_plain
