"""Random fleets of connected instances, and a simple search over the observed decisions of their routers."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from random import Random
from uuid import UUID

import ssbroker
from ssbroker.diagnose import Fleet, RoutingEnd
from tests.oracle.world import MSDB, Conversation, Decision, World
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.seeded import SeededChooser
from tests.worlds.universe import NOW
from tests.worlds.world_maker import WorldMaker

ADDRESSES = {
    "A": ("TCP://own.example:4022",),
    "B": ("TCP://other.example:4022", "TCP://[::1]:4022"),
    "C": ("TCP://third.example:4022", "TCP://other.example:4023"),
}
SAMPLES = 80

ConversationKey = tuple[str, str | None, str, UUID | None, bool]
"""Instance, database (None from outside), service, broker id, and whether the initiator sends."""


class SampledFleet:
    """A random fleet, and the decisions of its routers for many conversation ids."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.worlds = {name: self._world(own_addresses) for name, own_addresses in ADDRESSES.items()}
        self.fleet = Fleet({name: catalog_of(world) for name, world in self.worlds.items()})
        self._routers = {name: ssbroker.Router(catalog) for name, catalog in self.fleet.items()}
        self._instance_by_address = {
            address: name for name, own_addresses in ADDRESSES.items() for address in own_addresses
        }
        self._observed: dict[ConversationKey, set[Decision]] = {}

    def _world(self, own_addresses: tuple[str, ...]) -> World:
        maker = WorldMaker(SeededChooser(self.random))
        world = maker.world()
        # Most arriving messages must be forwarded, otherwise there are no paths to follow.
        forwarding_routes = tuple(
            replace(route, database=MSDB, route_id=None, name=f"to {i}") for i, route in enumerate(world.routes[:3])
        )
        routes = tuple(replace(route, route_id=None) for route in world.routes)
        forwarding = self.random.random() < 0.8
        return replace(
            world, routes=(*routes, *forwarding_routes), addresses=own_addresses, message_forwarding=forwarding
        )

    @cached_property
    def services(self) -> list[str]:
        """The known service names, and an unknown one."""
        found = {service.name for world in self.worlds.values() for service in world.services}
        found |= {
            name
            for world in self.worlds.values()
            for route in world.routes
            if (name := route.remote_service_name) is not None
        }
        return [*sorted(found), "unknown service"]

    @cached_property
    def databases(self) -> list[tuple[str, str]]:
        """Every database in which conversations start."""
        return [
            (instance, name)
            for instance, catalog in self.fleet.items()
            for name in map(str, catalog.databases["name"].to_pylist())
            if name != MSDB or any(service.database == MSDB for service in self.worlds[instance].services)
        ]

    def decisions(self, key: ConversationKey) -> set[Decision]:
        """Returns all observed decisions."""
        if key not in self._observed:
            instance, database, service, broker, is_initiator = key
            batch = batch_of(
                [
                    Conversation(
                        to_service_name=service,
                        database=database,
                        to_broker_instance=broker,
                        is_initiator=is_initiator,
                        conversation_id=UUID(int=self.random.getrandbits(128)),
                    )
                    for _ in range(SAMPLES)
                ]
            )
            self._observed[key] = set(decisions_of(self._routers[instance].route(batch, now=NOW)))
        return self._observed[key]

    def next_place(self, key: ConversationKey, decision: Decision) -> RoutingEnd | ConversationKey:
        """Returns where a decision leads."""
        instance, _, service, broker, is_initiator = key
        if decision.outcome == "LOCAL":
            return RoutingEnd("DELIVERED", instance, decision.target_database)
        if decision.next_hop_address is None:
            return RoutingEnd(
                "DELAYED" if decision.outcome == "DELAYED" else "DROPPED", instance, reason=decision.reason
            )
        next_instance = self._instance_by_address.get(decision.next_hop_address)
        if next_instance is None:
            return RoutingEnd("ELSEWHERE", instance, address=decision.next_hop_address)
        next_id = decision.broker_instance if decision.outcome == "REMOTE" else broker
        return next_instance, None, service, next_id, is_initiator

    def ends(self, key: ConversationKey, visited: tuple[ConversationKey, ...] = ()) -> set[RoutingEnd]:
        """Returns every end, by trying every path; a path that returns to a visited place is a loop."""
        found: set[RoutingEnd] = set()
        for decision in self.decisions(key):
            next_place = self.next_place(key, decision)
            if isinstance(next_place, RoutingEnd):
                found.add(next_place)
            elif next_place in visited or next_place == key:
                found.add(RoutingEnd("LOOP", reason="routing_loop"))
            else:
                found |= self.ends(next_place, (*visited, key))
        return found

    def can_circulate(self, service: str, broker: UUID | None) -> bool:
        """Returns whether a message that arrives anywhere can circulate."""
        ends = (self.ends((instance, None, service, broker, True)) for instance in self.fleet)
        return any(fate.outcome == "LOOP" for found in ends for fate in found)
