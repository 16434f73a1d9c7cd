"""An address to which rows of others go (R43): what waits for it, and what is under way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ssbroker.broker.network.carriage.parcels import Parcel


@dataclass(slots=True)
class Hop:
    """An address to which rows go.

    Attributes:
        waiting: What its outbox has not taken.
        under_way: What its outbox has taken and not written.
        is_full: Whether its outbox takes nothing now.
        is_failing: Whether it could not be reached.
        instance_id: Which instance has answered there.
    """

    waiting: deque[Parcel] = field(default_factory=deque)
    under_way: deque[Parcel] = field(default_factory=deque)
    is_full: bool = False
    is_failing: bool = False
    instance_id: bytes | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no rows go there."""
        return not self.waiting and not self.under_way
