"""R21 to R24: the choice among the routes found."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.address import LOCAL, TRANSPORT, address_in_service_name
from tests.oracle.find import Find
from tests.oracle.tables import Found, Reading
from tests.oracle.world import Conversation, Route


class Choose(Find):
    """Chooses one of the routes found."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        """R22: picks among the usable routes of the first class that has one."""
        for number in self.classes_in_order():
            routes = self.merge_equal_addresses([route for route in found.routes if self.class_of(route) == number])
            usable = [route for route in routes if self.is_usable(route, conversation, reading)]
            if usable:
                # R24: the implied route of step 6 has no turn.
                turn = (
                    None
                    if found.step == 6
                    else ("route", reading.table, number, *self.service_and_broker_id(usable[0]))
                )
                return self.pick(usable, conversation, turn)
        return None

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        """R21: routes with the same address count as one, represented by the lowest route id."""
        merged: dict[str, Route] = {}
        for route in self.by_route_id(routes):
            merged.setdefault(self.normalize(route.address), route)
        return list(merged.values())

    def classes_in_order(self) -> Sequence[int]:
        """R22: returns the classes of routes in order of preference."""
        return (1, 2, 3, 4)

    def class_of(self, route: Route) -> int:
        """R22: (1) with a mirror, regardless of its address; (2) LOCAL; (3) a network address; (4) TRANSPORT."""
        if route.mirror_address is not None:
            return 1
        address = self.normalize(route.address)
        if address == LOCAL:
            return 2
        return 4 if address == TRANSPORT else 3

    def is_usable(self, route: Route, conversation: Conversation, reading: Reading) -> bool:
        """R22, R23: LOCAL needs *Locate* to find a database, TRANSPORT an address in the service name."""
        address = self.normalize(route.address)
        if address == LOCAL:
            return bool(self.locate(conversation, reading, route))
        if address == TRANSPORT:
            return self.transport_next_hop(conversation) is not None
        return True

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        """R23: TRANSPORT takes the next hop from the service name, which must begin with an address."""
        return address_in_service_name(conversation.to_service_name)

    def service_and_broker_id(self, route: Route) -> tuple[object, object]:
        """R21: returns the service name and broker id of a step's routes; each step yields only one of each."""
        return (route.remote_service_name, route.broker_instance)
