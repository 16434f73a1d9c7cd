"""What everything that happens in one transaction of a database needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ssbroker.broker.work.effects import Effects
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection


class Way(NamedTuple):
    """Where a conversation's messages go now."""

    target_database: str | None
    """The database of this instance that takes them; None for another instance, or for none."""
    broker_instance: bytes | None
    """The broker id that they are sent to, where one is known."""


@dataclass(frozen=True, slots=True)
class Work:
    """A begun transaction of one database.

    Attributes:
        database: The name of the database.
        connection: Its file, with the write lock.
        objects: What stands in the database.
        now: Tells the moment, in microseconds since 1970.
        new_id: Makes a random id.
        begins: Is told of each endpoint (`endpoint_id`) that is made, since another one may have had its number.
        ways_of: Routes conversations that have their senders here.
        effects: What others are told when the transaction has ended.
    """

    database: str
    connection: Connection
    objects: Objects
    now: Callable[[], int]
    new_id: Callable[[], bytes]
    begins: Callable[[int], None]
    ways_of: Callable[[Sequence[Endpoint]], list[Way]]
    effects: Effects

    @property
    def broker_instance(self) -> bytes:
        """The database's own broker id."""
        return self.objects.broker.service_broker_guid
