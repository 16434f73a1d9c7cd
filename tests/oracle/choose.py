"""R21 to R24: which of the routes found is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.address import LOCAL, TRANSPORT, address_in_service_name
from tests.oracle.find import Find
from tests.oracle.picking import SALT_ROUTE
from tests.oracle.tables import Found, Reading
from tests.oracle.world import Conversation, Route


class Choose(Find):
    """Chooses one of the routes found."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        """R22, K13: the pick is among the usable routes of the first class that has one."""
        for number in self.r22_order():
            routes = self.r21_merged([route for route in found.routes if self.r22_class(route) == number])
            usable = [route for route in routes if self.k13_usable(route, conversation, reading)]
            if usable:
                # K21: the implied route of step 6 has no turn.
                turn = None if found.step == 6 else ("route", reading.table, number, *self.k12_names(usable[0]))
                return self.r24_pick(usable, conversation, self.salt(SALT_ROUTE, reading), turn)
        return None

    def r21_merged(self, routes: Sequence[Route]) -> list[Route]:
        """R21, K12: routes with the same address count as one, for which the lowest route id stands."""
        merged: dict[str, Route] = {}
        for route in self.k19_by_route_id(routes):
            merged.setdefault(self.r6_normal(route.address), route)
        return list(merged.values())

    def r22_order(self) -> Sequence[int]:
        """R22: in this order, taking the first class that has a usable route."""
        return (1, 2, 3, 4)

    def r22_class(self, route: Route) -> int:
        """R22, K13: (1) with a mirror, whatever its address; (2) LOCAL; (3) a network address; (4) TRANSPORT."""
        if route.mirror_address is not None:
            return 1
        address = self.r6_normal(route.address)
        if address == LOCAL:
            return 2
        return 4 if address == TRANSPORT else 3

    def k13_usable(self, route: Route, conversation: Conversation, reading: Reading) -> bool:
        """R22, R23, K13: LOCAL needs *Locate* to find a database, TRANSPORT an address in the service name."""
        address = self.r6_normal(route.address)
        if address == LOCAL:
            return bool(self.locate(conversation, reading, route))
        if address == TRANSPORT:
            return self.r23_next_hop_of_transport(conversation) is not None
        return True

    def r23_next_hop_of_transport(self, conversation: Conversation) -> str | None:
        """R23, K2: TRANSPORT takes the next hop from the service name, which must begin with an address."""
        return address_in_service_name(conversation.to_service_name)

    def k12_names(self, route: Route) -> tuple[object, object]:
        """K12: every step yields routes of one service name and at most one broker id."""
        return (route.remote_service_name, route.broker_instance)
