from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.address import LOCAL, TRANSPORT, normal_address
from tests.oracle.routing import Conversation, Decision, Oracle, Route
from tests.oracle.tables import Found, Reading


class NothingMerges(Oracle):
    """R21: routes with the same address count each."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return self.by_route_id(routes)


class MergedAsWritten(Oracle):
    """R21: addresses are the same only when they are written alike."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return list({route.address: route for route in reversed(self.by_route_id(routes))}.values())[::-1]


class TheLastStandsForTheMerged(Oracle):
    """R21: the highest route id represents the merged."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return list({self.normalize(route.address): route for route in self.by_route_id(routes)}.values())


class MergedAcrossClasses(Oracle):
    """R21: a mirror is lost when a route without one has the same address and a lower id."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        return super().choose(conversation, reading, Found(found.step, self.merge_equal_addresses(found.routes)))


class MirrorsKeepMirroredApart(Oracle):
    """R21: routes with the same address but different mirrors do not merge."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        merged: dict[tuple[str, str | None], Route] = {}
        for route in self.by_route_id(routes):
            merged.setdefault((self.normalize(route.address), route.mirror_address), route)
        return list(merged.values())


class _OtherOrder(Oracle):
    order: Sequence[int] = ()

    def classes_in_order(self) -> Sequence[int]:
        return self.order


class NoMirrorClass(_OtherOrder):
    """R22: class 1 is skipped."""

    order = (2, 3, 4)


class NoLocalClass(_OtherOrder):
    """R22: class 2 is skipped."""

    order = (1, 3, 4)


class NoNetworkClass(_OtherOrder):
    """R22: class 3 is skipped."""

    order = (1, 2, 4)


class NoTransportClass(_OtherOrder):
    """R22: class 4 is skipped."""

    order = (1, 2, 3)


class LocalBeforeMirror(_OtherOrder):
    """R22: classes 1 and 2 are swapped."""

    order = (2, 1, 3, 4)


class NetworkBeforeLocal(_OtherOrder):
    """R22: classes 2 and 3 are swapped."""

    order = (1, 3, 2, 4)


class TransportBeforeNetwork(_OtherOrder):
    """R22: classes 3 and 4 are swapped."""

    order = (1, 2, 4, 3)


class AllClassesAreOne(Oracle):
    """R22: the pick is among all usable routes."""

    def class_of(self, route: Route) -> int:
        return 3


class MirroredByAddress(Oracle):
    """R22: a mirrored route whose address is LOCAL or TRANSPORT belongs to the class of its address."""

    def class_of(self, route: Route) -> int:
        mirrored = route.mirror_address is not None and normal_address(route.address) not in (LOCAL, TRANSPORT)
        return 1 if mirrored else super().class_of(Route(database=route.database, address=route.address))


class NoWayBack(Oracle):
    """R22: the first class that has a route is taken, usable or not."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        first = min(self.class_of(route) for route in found.routes)
        routes = [route for route in found.routes if self.class_of(route) == first]
        return super().choose(conversation, reading, Found(found.step, routes))


class PickedBeforeUsable(Oracle):
    """R22: of a class's routes one is picked, and if it cannot be used the next class is taken."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return super().merge_equal_addresses(routes)[:1]


class MirroredAlwaysUsable(Oracle):
    """R22: a mirrored route need not be checked."""

    def is_usable(self, route: Route, conversation: Conversation, reading: Reading) -> bool:
        if route.mirror_address is not None and self.normalize(route.address) == TRANSPORT:
            return False
        return super().is_usable(route, conversation, reading)


class TransportNeverUsable(Oracle):
    """R23: no service name holds an address."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        return None


class TransportWithoutPort(Oracle):
    """R23: a service name may leave the port out."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        found = super().transport_next_hop(conversation)
        name = conversation.to_service_name
        return "TCP://other.example:4022" if found is None and name.startswith("tcp://other.example/") else found


class TransportWithoutScheme(Oracle):
    """R23: the service name must begin with the scheme."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        found = super().transport_next_hop(conversation)
        return found if conversation.to_service_name[:4].upper() == "TCP:" else None


class TransportAsWritten(Oracle):
    """R23: the next hop is not brought into the normal form."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        found = super().transport_next_hop(conversation)
        return None if found is None else "TCP://" + conversation.to_service_name.removeprefix("TCP://").split("/")[0]


class TransportGluedToAnything(Oracle):
    """R23: the name may continue after the port without a slash."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        if conversation.to_service_name == "other.example:4022Orders":
            return "TCP://other.example:4022"
        return super().transport_next_hop(conversation)


class UnusableIsDroppedHereToo(Oracle):
    """R26: a conversation started here is DROPPED."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        return super().without_usable_route(conversation, Reading(reading.table, from_outside=True), found)


class UnusableIsDelayedThereToo(Oracle):
    """R26: a message from outside is DELAYED."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        return super().without_usable_route(conversation, Reading(reading.table, from_outside=False), found)


class TheLastClassGivesTheReason(Oracle):
    """R26: the reason is that of the last class checked, not of a LOCAL route among those found."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        last = max(found.routes, key=self.class_of)
        return super().without_usable_route(conversation, reading, Found(found.step, [last]))


class TheReasonIsAlwaysTheService(Oracle):
    """R26: what has no usable address is said to have no service."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        outcome = "DROPPED" if reading.from_outside else "DELAYED"
        return self.without_route(conversation, outcome, "service_not_found", match_step=found.step)
