"""Random fleets of connected instances, and a simple search over the observed decisions of their routers."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from random import Random
from uuid import UUID

from ssbroker.diagnose import Fleet
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds
from tests.diagnose.observed_fleets import ObservedFleet, databases_with_conversations
from tests.oracle.world import MSDB, World
from tests.worlds.arrow import catalog_of
from tests.worlds.seeded import SeededChooser
from tests.worlds.world_maker import WorldMaker

ADDRESSES = {
    "A": ("TCP://own.example:4022",),
    "B": ("TCP://other.example:4022", "TCP://[::1]:4022"),
    "C": ("TCP://third.example:4022", "TCP://other.example:4023"),
}


class SampledFleet(ObservedFleet):
    """A random fleet, and the decisions of its routers for many conversation ids."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.worlds = {name: self._world(random, own_addresses) for name, own_addresses in ADDRESSES.items()}
        # Unknown broker ids are assumed in the same way for the routers and for the diagnosis.
        fleet = AssumedBrokerIds(Fleet({name: catalog_of(world) for name, world in self.worlds.items()})).fleet
        super().__init__(fleet, random=random)

    @staticmethod
    def _world(random: Random, own_addresses: tuple[str, ...]) -> World:
        maker = WorldMaker(SeededChooser(random))
        world = maker.world()
        # Most arriving messages must be forwarded, otherwise there are no paths to follow.
        forwarding_routes = tuple(
            replace(route, database=MSDB, route_id=None, name=f"to {i}") for i, route in enumerate(world.routes[:3])
        )
        routes = tuple(replace(route, route_id=None) for route in world.routes)
        forwarding = random.random() < 0.8
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
        return databases_with_conversations(self.fleet)

    def can_circulate(self, service: str, broker: UUID | None) -> bool:
        """Returns whether a message that arrives anywhere can circulate."""
        ends = (self.ends((instance, None, service, broker, True)) for instance in self.fleet)
        return any(fate.outcome == "LOOP" for found in ends for fate in found)
