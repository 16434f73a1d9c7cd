"""Messages of one conversation that follow each other."""

from __future__ import annotations

from typing import NamedTuple


class MessageRun(NamedTuple):
    """Messages that enter a queue one behind the other, and are no more than that (B47)."""

    key: tuple[bytes, bool]
    """The endpoint that receives them: its conversation's id, and whether it is the initiator."""
    first: int
    """The number of the first; each has the number behind that of the one before."""
    rows: int
    """How many."""
    message_type_name: str
    """Their type."""
