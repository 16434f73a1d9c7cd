"""Creation of worlds from any source of choices: a seed, or Hypothesis, which shrinks towards the first choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from tests.oracle.find import BROKER_CONFIGURATION
from tests.oracle.world import MSDB, Conversation, Database, Route, Service, World
from tests.worlds.universe import (
    ADDRESSES,
    BROKER_IDS,
    DATABASE_NAMES,
    LIFETIMES,
    MIRRORS,
    OWN_ADDRESSES,
    SERVICE_NAMES,
)

Item = TypeVar("Item")

THEMES = ("any", "copies", "loops")
"""Emphasis of the world: none; copies of services and of routes to them; routes that lead back to the instance."""


class Chooser(Protocol):
    """Source of choices."""

    def one_of(self, items: Sequence[Item]) -> Item:
        """Returns one of the items."""

    def count(self, low: int, high: int) -> int:
        """Returns a number from `low` to `high`, both included."""

    def chance(self, percent: int) -> bool:
        """Returns True in that percentage of cases."""


class WorldMaker:
    """Makes one world, and conversations to route in it.

    Args:
        chooser: Source of choices.
    """

    routes_max = 6
    """Maximum number of routes in a table."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.theme = chooser.one_of(THEMES)
        self.names = [
            chooser.one_of(SERVICE_NAMES) for _ in range(chooser.count(1, 2 if self.theme == "copies" else 4))
        ]
        self.broker_ids = [chooser.one_of(BROKER_IDS) for _ in range(chooser.count(1, 3))]
        self.addresses = [chooser.one_of(ADDRESSES) for _ in range(chooser.count(1, 6))]
        self.database_names = list(DATABASE_NAMES[: chooser.count(1, len(DATABASE_NAMES))])

    def world(self) -> World:
        """Creates the world."""
        databases = self._databases()
        routes = [route for table in [*self.database_names, MSDB] for route in self._table(table)]
        known = [database.name for database in World(databases=databases, routes=tuple(routes)).instance_databases]
        self.database_names = known
        minimum = 1 if self.theme == "loops" else 0
        return World(
            routes=tuple(self._mixed(routes)),
            databases=databases,
            services=self._services(known),
            addresses=tuple(self.chooser.one_of(OWN_ADDRESSES) for _ in range(self.chooser.count(minimum, 2))),
            message_forwarding=self.chooser.chance(60),
            pending_requests=tuple(self.chooser.one_of(self.names) for _ in range(self.chooser.count(0, 1))),
        )

    def conversation(self, number: int) -> Conversation:
        """Creates a conversation for the world."""
        return Conversation(
            conversation_id=self._conversation_id(number),
            database=None if self.chooser.chance(40) else self.chooser.one_of(self.database_names),
            to_service_name=self.chooser.one_of(SERVICE_NAMES if self.chooser.chance(10) else self.names),
            to_broker_instance=self._broker_id(50),
            is_initiator=not self.chooser.chance(30),
        )

    def _databases(self) -> tuple[Database, ...]:
        databases = []
        taken: set[UUID | None] = set()
        for name in [*self.database_names, MSDB]:
            if self.chooser.chance(25):  # exists only if a route names it; msdb always exists
                continue
            broker_id = self._broker_id(85)
            enabled = not self.chooser.chance(15) and broker_id not in taken  # I7: never both enabled
            if enabled and broker_id is not None:
                taken.add(broker_id)
            databases.append(Database(name=name, service_broker_guid=broker_id, is_broker_enabled=enabled))
        return tuple(databases)

    def _table(self, database: str) -> list[Route]:
        count = self.chooser.count(0, self.routes_max)
        ids: list[int | None] = [None] * count
        if self.chooser.chance(70):
            first = self.chooser.one_of((1, 65530, 2**31 - 20))
            ids = list(self._mixed(range(first, first + count)))
            # R1: omitted ids are assigned above the highest given one, so they need free numbers there.
            if first != 2**31 - 20 and self.chooser.chance(20):
                ids = [None if self.chooser.chance(50) else route_id for route_id in ids]
        return [self._route(database, number, route_id) for number, route_id in enumerate(ids)]

    def _route(self, database: str, number: int, route_id: int | None) -> Route:
        chance = self.chooser.chance
        name = (
            None
            if chance(30 if self.theme == "any" else 50)
            else BROKER_CONFIGURATION
            if chance(8)
            else self.chooser.one_of(self.names)
        )
        return Route(
            database=database,
            route_id=route_id,
            name=f"route {number}",
            remote_service_name=name,
            broker_instance=self._broker_id(15 if name is None else 50),
            lifetime=self.chooser.one_of(LIFETIMES) if chance(25) else None,
            address=self._address(database),
            mirror_address=self.chooser.one_of(MIRRORS) if chance(15) else None,
        )

    def _services(self, databases: Sequence[str]) -> tuple[Service, ...]:
        # The same row may occur twice; a database still counts once.
        return tuple(
            Service(database=self.chooser.one_of(databases), name=self.chooser.one_of(self.names))
            for _ in range(self.chooser.count(0 if self.theme == "any" else 4, 8))
        )

    def _address(self, database: str) -> str:
        if self.theme == "loops" and self.chooser.chance(50):
            return "LOCAL" if database == MSDB else self.chooser.one_of(OWN_ADDRESSES)
        return self.chooser.one_of(self.addresses)

    def _broker_id(self, percent: int) -> UUID | None:
        if not self.chooser.chance(percent):
            return None
        return self.chooser.one_of(BROKER_IDS if self.chooser.chance(10) else self.broker_ids)

    def _conversation_id(self, number: int) -> UUID:
        return UUID(bytes=self.chooser.count(0, 2**64 - 1).to_bytes(8, "big") + number.to_bytes(8, "big"))

    def _mixed(self, items: Sequence[Item]) -> list[Item]:
        left = list(items)
        return [left.pop(self.chooser.count(0, len(left) - 1)) for _ in range(len(left))]
