"""The seam to other instances: what carries messages whose route leads out of this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A conversation with messages in the transmission queue that are for another instance.

    Attributes:
        database: Its sender's database.
        endpoint_id: Its sender.
        next_hop_address: Where they go next.
        mirror_address: Where they may go instead (R51).
    """

    database: Database
    endpoint_id: int
    next_hop_address: str
    mirror_address: str | None


class Transport(Protocol):
    """Carries messages to other instances and brings back what is acknowledged."""

    def carry(self, conversations: Sequence[Outgoing]) -> None:
        """Sends what waits of these conversations, now or soon, and takes it off the transmission queue once it is acknowledged.

        It is told of a conversation after each commit that sends in it, after every change that may concern its route, and again
        after the waits of P17 as long as messages wait.

        Args:
            conversations: The conversations, those to go first in front.
        """
