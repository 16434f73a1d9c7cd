"""The seam to other instances: what carries messages whose route leads out of this one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ssbroker.broker.delivery.ways import Decision
from ssbroker.broker.dialogs.status import Status
from ssbroker.store.endpoints import Endpoint

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A conversation with messages in the transmission queue that are for another instance.

    Attributes:
        database: Its sender's database.
        sender: Its sender, as committed.
        decision: Where its messages go: the next hop, and of a mirrored route the mirror's address (R51).
    """

    database: Database
    sender: Endpoint
    decision: Decision

    @property
    def endpoint_id(self) -> int:
        """The sender's number."""
        return self.sender.endpoint_id


class Transport(Protocol):
    """Carries messages to other instances and brings back what is acknowledged."""

    def carry(self, conversations: Sequence[Outgoing]) -> Mapping[int, Status]:
        """Sends what waits of these conversations, now or soon, and takes it off the transmission queue once it is acknowledged.

        It is told of a conversation after each commit that sends in it, after every change that may concern its route, and again
        after the waits of P17 as long as messages wait. It may be called from any thread, and does not wait.

        Args:
            conversations: The conversations, those to go first in front.

        Returns:
            What is in the way of conversations, by their sender's number, as far as something is.
        """

    def more(self, database: Database, endpoint_ids: Collection[int]) -> Collection[int]:
        """Tells that conversations have sent more: it spares those that are carried already what `carry` has to be told.

        Args:
            database: The senders' database.
            endpoint_ids: The senders.

        Returns:
            Those that are not carried, or of which there may be something to say.
        """
