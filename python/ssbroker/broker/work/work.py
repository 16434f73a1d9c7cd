"""What everything that happens in one transaction of a database needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker.broker.work.effects import Effects
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Objects
from ssbroker.store.pictures import Picture
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


class Way(NamedTuple):
    """Where a conversation's messages go now."""

    target_database: str | None
    """The database of this instance that takes them; None for another instance, or for none."""
    broker_instance: bytes | None
    """The broker id that they are sent to, where one is known."""


class Work:
    """A begun transaction of one database.

    Args:
        database: The database.
        connection: Its file, with the write lock.
        effects: Gathers what others are to be told after the commit.

    Attributes:
        database: The name of the database.
        connection: Its file, with the write lock.
        objects: What stands in the database.
        effects: What others are told when the transaction has ended.
    """

    __slots__ = ("_database", "_ways", "connection", "database", "effects", "objects")

    def __init__(self, database: Database, connection: Connection, effects: Effects) -> None:
        self._database: Final = database
        self._ways: Callable[[Sequence[Endpoint]], list[Way]] | None = None
        self.database: Final = database.name
        self.connection: Final = connection
        self.objects: Final[Objects] = database.objects(connection)
        self.effects: Final = effects

    @property
    def picture(self) -> Picture:
        """The objects, as far as they decide about plain messages."""
        return self._database.picture(self.objects)

    @property
    def broker_instance(self) -> bytes:
        """The database's own broker id."""
        return self.objects.broker.service_broker_guid

    def now(self) -> int:
        """The moment, in microseconds since 1970."""
        return self._database.instance.microseconds()

    def new_id(self) -> bytes:
        """A random id."""
        return self._database.instance.new_guid().bytes

    def begins(self, endpoint_id: int) -> None:
        """Tells that an endpoint is made: another one may have had its number.

        Args:
            endpoint_id: The endpoint.
        """
        self._database.instance.worker.begins(self._database.database_id, endpoint_id)

    def ways_of(self, endpoints: Sequence[Endpoint]) -> list[Way]:
        """Routes conversations that have their senders here.

        Args:
            endpoints: The senders.

        Returns:
            Where the messages of each go.
        """
        if self._ways is None:
            self._ways = self._database.instance.worker.ways.ways_of(self.database, self.objects)
        return self._ways(endpoints)
