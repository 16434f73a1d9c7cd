from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.address import LOCAL, TRANSPORT, normal_address
from tests.oracle.routing import Conversation, Decision, Oracle, Route
from tests.oracle.tables import Found, Reading


class RoutesAreNotMerged(Oracle):
    """R21: routes with the same address are separate candidates."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return self.by_route_id(routes)


class MergedBySpelling(Oracle):
    """R21: addresses are equal only if they are spelled alike."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return list({route.address: route for route in reversed(self.by_route_id(routes))}.values())[::-1]


class MergedRoutesHaveTheHighestId(Oracle):
    """R21: the highest route id represents merged routes."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return list({self.normalize(route.address): route for route in self.by_route_id(routes)}.values())


class MirroredRoutesAreMerged(Oracle):
    """R21: a route with a mirror is merged into one without that has the same address and a lower id."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        return super().choose(conversation, reading, Found(found.step, self.merge_equal_addresses(found.routes)))


class DifferentMirrorsAreNotMerged(Oracle):
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
    """R22: the pick is among all usable routes, whatever their class."""

    def class_of(self, route: Route) -> int:
        return 3


class MirroredByAddress(Oracle):
    """R22: a mirrored route with address LOCAL or TRANSPORT has the class of its address."""

    def class_of(self, route: Route) -> int:
        mirrored = route.mirror_address is not None and normal_address(route.address) not in (LOCAL, TRANSPORT)
        return 1 if mirrored else super().class_of(Route(database=route.database, address=route.address))


class FirstClassEvenIfUnusable(Oracle):
    """R22: the first class that has a route is taken, even if none is usable."""

    def choose(self, conversation: Conversation, reading: Reading, found: Found) -> Route | None:
        first = min(self.class_of(route) for route in found.routes)
        routes = [route for route in found.routes if self.class_of(route) == first]
        return super().choose(conversation, reading, Found(found.step, routes))


class PickedBeforeUsable(Oracle):
    """R22: one route of a class is picked first, and if it is unusable the next class is taken."""

    def merge_equal_addresses(self, routes: Sequence[Route]) -> list[Route]:
        return super().merge_equal_addresses(routes)[:1]


class MirroredAlwaysUsable(Oracle):
    """R22: a mirrored route is always usable."""

    def is_usable(self, route: Route, conversation: Conversation, reading: Reading) -> bool:
        if route.mirror_address is not None and self.normalize(route.address) == TRANSPORT:
            return False
        return super().is_usable(route, conversation, reading)


class TransportNeverUsable(Oracle):
    """R23: no service name contains an address."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        return None


class TransportWithoutPort(Oracle):
    """R23: a service name may omit the port."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        found = super().transport_next_hop(conversation)
        name = conversation.to_service_name
        return "TCP://other.example:4022" if found is None and name.startswith("tcp://other.example/") else found


class TransportWithoutScheme(Oracle):
    """R23: the service name must begin with the scheme."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        found = super().transport_next_hop(conversation)
        return found if conversation.to_service_name[:4].upper() == "TCP:" else None


class TransportIsNotNormalized(Oracle):
    """R23: the next hop is not normalized."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        found = super().transport_next_hop(conversation)
        return None if found is None else "TCP://" + conversation.to_service_name.removeprefix("TCP://").split("/")[0]


class TransportWithoutSlash(Oracle):
    """R23: the name may continue after the port without a slash."""

    def transport_next_hop(self, conversation: Conversation) -> str | None:
        if conversation.to_service_name == "other.example:4022Orders":
            return "TCP://other.example:4022"
        return super().transport_next_hop(conversation)


class UnusableIsDroppedHere(Oracle):
    """R26: a conversation started here is DROPPED."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        return super().without_usable_route(conversation, Reading(reading.table, from_outside=True), found)


class UnusableFromOutsideIsDelayed(Oracle):
    """R26: a message from outside is DELAYED."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        return super().without_usable_route(conversation, Reading(reading.table, from_outside=False), found)


class ReasonOfTheLastClass(Oracle):
    """R26: the reason is that of the last class checked, even if a LOCAL route was found."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        last = max(found.routes, key=self.class_of)
        return super().without_usable_route(conversation, reading, Found(found.step, [last]))


class ReasonIsAlwaysTheService(Oracle):
    """R26: without a usable address the reason is always the service."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        outcome = "DROPPED" if reading.from_outside else "DELAYED"
        return self.without_route(conversation, outcome, "service_not_found", match_step=found.step)
