from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.address import LOCAL, TRANSPORT, normal_address
from tests.oracle.routing import Conversation, Decision, Oracle, Route
from tests.oracle.tables import Found, Reading


class NothingMerges(Oracle):
    """R21: routes with the same address count each."""

    def r21_merged(self, routes: Sequence[Route]) -> list[Route]:
        return self.k19_by_route_id(routes)


class MergedAsWritten(Oracle):
    """R21: addresses are the same only when they are written alike."""

    def r21_merged(self, routes: Sequence[Route]) -> list[Route]:
        return list({route.address: route for route in reversed(self.k19_by_route_id(routes))}.values())[::-1]


class TheLastStandsForTheMerged(Oracle):
    """K12: the highest route id stands for the merged."""

    def r21_merged(self, routes: Sequence[Route]) -> list[Route]:
        return list({self.r6_normal(route.address): route for route in self.k19_by_route_id(routes)}.values())


class MergedAcrossClasses(Oracle):
    """K12: a mirror is lost when a route without one has the same address and a lower id."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        return super().choose(conversation, reading, Found(found.step, self.r21_merged(found.routes)))


class MirrorsKeepMirroredApart(Oracle):
    """R21: routes with the same address but different mirrors do not merge."""

    def r21_merged(self, routes: Sequence[Route]) -> list[Route]:
        merged: dict[tuple[str, str | None], Route] = {}
        for route in self.k19_by_route_id(routes):
            merged.setdefault((self.r6_normal(route.address), route.mirror_address), route)
        return list(merged.values())


class _OtherOrder(Oracle):
    order: Sequence[int] = ()

    def r22_order(self) -> Sequence[int]:
        return self.order


class NoMirrorClass(_OtherOrder):
    """R22: class 1 is left out."""

    order = (2, 3, 4)


class NoLocalClass(_OtherOrder):
    """R22: class 2 is left out."""

    order = (1, 3, 4)


class NoNetworkClass(_OtherOrder):
    """R22: class 3 is left out."""

    order = (1, 2, 4)


class NoTransportClass(_OtherOrder):
    """R22: class 4 is left out."""

    order = (1, 2, 3)


class LocalBeforeMirror(_OtherOrder):
    """R22: classes 1 and 2 change places."""

    order = (2, 1, 3, 4)


class NetworkBeforeLocal(_OtherOrder):
    """R22: classes 2 and 3 change places."""

    order = (1, 3, 2, 4)


class TransportBeforeNetwork(_OtherOrder):
    """R22: classes 3 and 4 change places."""

    order = (1, 2, 4, 3)


class AllClassesAreOne(Oracle):
    """R22: the pick is among all usable routes."""

    def r22_class(self, route: Route) -> int:
        return 3


class MirroredByAddress(Oracle):
    """K13: a mirrored route whose address is LOCAL or TRANSPORT belongs to the class of its address."""

    def r22_class(self, route: Route) -> int:
        mirrored = route.mirror_address is not None and normal_address(route.address) not in (LOCAL, TRANSPORT)
        return 1 if mirrored else super().r22_class(Route(database=route.database, address=route.address))


class NoWayBack(Oracle):
    """R22: the first class that has a route is taken, usable or not."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        first = min(self.r22_class(route) for route in found.routes)
        routes = [route for route in found.routes if self.r22_class(route) == first]
        return super().choose(conversation, reading, Found(found.step, routes))


class PickedBeforeUsable(Oracle):
    """K13: of a class's routes one is picked, and if it cannot be used the next class is taken."""

    def r21_merged(self, routes: Sequence[Route]) -> list[Route]:
        return super().r21_merged(routes)[:1]


class MirroredAlwaysUsable(Oracle):
    """K13: a mirrored route need not be looked at."""

    def k13_usable(self, route: Route, conversation: Conversation, reading: Reading) -> bool:
        if route.mirror_address is not None and self.r6_normal(route.address) == TRANSPORT:
            return False
        return super().k13_usable(route, conversation, reading)


class TransportNeverUsable(Oracle):
    """R23: no service name holds an address."""

    def r23_next_hop_of_transport(self, conversation: Conversation) -> str | None:
        return None


class TransportWithoutPort(Oracle):
    """K2: a service name may leave the port out."""

    def r23_next_hop_of_transport(self, conversation: Conversation) -> str | None:
        found = super().r23_next_hop_of_transport(conversation)
        name = conversation.to_service_name
        return "TCP://other.example:4022" if found is None and name.startswith("tcp://other.example/") else found


class TransportWithoutScheme(Oracle):
    """K2: the service name must begin with the scheme."""

    def r23_next_hop_of_transport(self, conversation: Conversation) -> str | None:
        found = super().r23_next_hop_of_transport(conversation)
        return found if conversation.to_service_name[:4].upper() == "TCP:" else None


class TransportAsWritten(Oracle):
    """K2: the next hop is not brought into the normal form."""

    def r23_next_hop_of_transport(self, conversation: Conversation) -> str | None:
        found = super().r23_next_hop_of_transport(conversation)
        return None if found is None else "TCP://" + conversation.to_service_name.removeprefix("TCP://").split("/")[0]


class TransportGluedToAnything(Oracle):
    """K2: the name may go on after the port without a slash."""

    def r23_next_hop_of_transport(self, conversation: Conversation) -> str | None:
        if conversation.to_service_name == "other.example:4022Orders":
            return "TCP://other.example:4022"
        return super().r23_next_hop_of_transport(conversation)


class UnusableIsDroppedHereToo(Oracle):
    """R26: a conversation begun here is DROPPED."""

    def r26_none_usable(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        return super().r26_none_usable(conversation, Reading(reading.table, from_outside=True), found)


class UnusableIsDelayedThereToo(Oracle):
    """R26: a message from outside is DELAYED."""

    def r26_none_usable(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        return super().r26_none_usable(conversation, Reading(reading.table, from_outside=False), found)


class TheLastClassGivesTheReason(Oracle):
    """K16: the reason is that of the last class looked at, not of a LOCAL route among those found."""

    def r26_none_usable(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        last = max(found.routes, key=self.r22_class)
        return super().r26_none_usable(conversation, reading, Found(found.step, [last]))


class TheReasonIsAlwaysTheService(Oracle):
    """K16: what has no usable address is said to have no service."""

    def r26_none_usable(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        outcome = "DROPPED" if reading.from_outside else "DELAYED"
        return self.without_route(conversation, outcome, "service_not_found", match_step=found.step)
