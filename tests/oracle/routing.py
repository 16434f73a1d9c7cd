"""Literal implementation of the rules R1 to R42 and R51, with one small method for each.

It is deliberately slow and simple. To check a decision, read the rule and then its method. The classes build on each other: `Tables` (R1 to
R6), `Ties` (R24), `Locate` (R31 to R34), `Find` (R11 to R17), `Choose` (R21 to R23), and here the complete process. Planted bugs override
single methods.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from tests.oracle.address import LOCAL, TRANSPORT
from tests.oracle.choose import Choose
from tests.oracle.tables import Found, Reading
from tests.oracle.tie_break import Turns, stable_hash
from tests.oracle.world import MSDB, Conversation, Database, Decision, Route, Service, World

__all__ = [
    "Conversation",
    "Database",
    "Decision",
    "Oracle",
    "Route",
    "Service",
    "Turns",
    "World",
    "decide",
    "stable_hash",
]


def decide(
    world: World,
    conversation: Conversation,
    *,
    now: datetime,
    tie_break: str = "hash",
    pending_request: str = "continue",
    turns: Turns | None = None,
) -> Decision:
    """Decides one conversation; pass the same `turns` again for `round_robin` to continue."""
    oracle = Oracle(world, now=now, tie_break=tie_break, pending_request=pending_request, turns=turns)
    return oracle.decide(conversation)


class Oracle(Choose):
    """Decides conversations in one world at one time; the arguments are those of `Tables`."""

    def decide(self, conversation: Conversation) -> Decision:
        """R2: a conversation started in a database reads that database's table; R34 is checked first."""
        self.start_picking(conversation)
        if conversation.database is None:
            return self.from_outside(conversation, re_entered=False)
        if self.is_sender_disabled(conversation):
            return self.without_route(conversation, "DELAYED", "sender_disabled", match_step=None)
        return self.process(conversation, Reading(table=conversation.database, from_outside=False))

    def from_outside(self, conversation: Conversation, *, re_entered: bool) -> Decision:
        """R2: what arrives from outside uses msdb's table, unless it is a reply for this instance (R7)."""
        if self.is_reply_for_this_instance(conversation):
            return self.deliver_reply(conversation)
        return self.process(conversation, Reading(table=MSDB, from_outside=True, re_entered=re_entered))

    def process(self, conversation: Conversation, reading: Reading) -> Decision:
        """R4: finds the matching routes, chooses one, and locates the target service if its address is LOCAL."""
        found = self.find(conversation, reading)
        if found.step == 4:
            return self.without_route(conversation, "DELAYED", "route_requested", match_step=4)
        if found.step == 7:
            return self.without_route(conversation, "DELAYED", "no_route", match_step=7)
        route = self.choose(conversation, reading, found)
        if route is None:
            return self.without_usable_route(conversation, reading, found)
        if self.normalize(route.address) == LOCAL:
            return self.deliver(conversation, reading, found, route)
        return self.send(conversation, reading, found, route)

    def is_reply_for_this_instance(self, conversation: Conversation) -> bool:
        """R7: from outside, from a target, and any database of the instance has the message's broker id."""
        if conversation.is_initiator or conversation.to_broker_instance is None:
            return False
        ids = [database.service_broker_guid for database in self.world.instance_databases]
        return conversation.to_broker_instance in ids

    def deliver_reply(self, conversation: Conversation) -> Decision:
        """R7: delivers to the enabled database with the id if it has the service; otherwise the message is DROPPED."""
        for database in self.hosts(conversation.to_service_name):
            if database.service_broker_guid == conversation.to_broker_instance:
                return Decision(
                    outcome="LOCAL",
                    reason="reply",
                    match_step=0,
                    target_database=database.name,
                    broker_instance=conversation.to_broker_instance,
                )
        return self.without_route(conversation, "DROPPED", "service_not_found", match_step=0)

    def deliver(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        """R25: delivers for LOCAL. R32: among several databases the tie break picks."""
        databases = self.locate(conversation, reading, route)
        database = self.pick_database(databases, conversation, reading, route)
        broker_id = self.bound_broker_id(conversation, route) or database.service_broker_guid
        return Decision(
            outcome="LOCAL",
            reason="matched",
            match_step=found.step,
            route_id=route.route_id,
            mirror_address=self.mirror_of(route),
            target_database=database.name,
            broker_instance=broker_id,
        )

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        """R26: no class has a usable route: DELAYED if started here, DROPPED if from outside."""
        outcome = "DROPPED" if reading.from_outside else "DELAYED"
        local = any(self.normalize(route.address) == LOCAL for route in found.routes)
        reason = "service_not_found" if local else "address_unusable"
        return self.without_route(conversation, outcome, reason, match_step=found.step)

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        """R25: handles addresses other than LOCAL: forwarding first, then this instance's own addresses (R41, R42)."""
        next_hop = self.next_hop(conversation, route)
        if self.drops_without_forwarding(reading):
            return self.dropped(conversation, found, route, "forwarding_disabled")
        if self.resolves_to_this_instance(next_hop):
            if reading.from_outside:
                return self.dropped(conversation, found, route, "routing_loop")
            # R41: the conversation keeps its own broker id; the choice of the first pass is discarded.
            return self.from_outside(conversation, re_entered=True)
        return Decision(
            outcome="FORWARD" if reading.from_outside else "REMOTE",
            reason="matched",
            match_step=found.step,
            route_id=route.route_id,
            next_hop_address=next_hop,
            mirror_address=self.mirror_of(route),
            broker_instance=self.bound_broker_id(conversation, route),
        )

    def next_hop(self, conversation: Conversation, route: Route) -> str:
        """R25: returns the route's own address, or for TRANSPORT the one in the service name (R23)."""
        address = self.normalize(route.address)
        if address != TRANSPORT:
            return address
        parsed = self.transport_next_hop(conversation)
        assert parsed is not None, "a TRANSPORT route is usable only with such an address"
        return parsed

    def drops_without_forwarding(self, reading: Reading) -> bool:
        """R25: forwarding is off, and the conversation came from outside (or re-entered)."""
        return reading.from_outside and not self.world.message_forwarding

    def resolves_to_this_instance(self, next_hop: str) -> bool:
        """R41: the next hop is one of the instance's own addresses."""
        return next_hop in [self.normalize(address) for address in self.world.addresses]

    def dropped(self, conversation: Conversation, found: Found, route: Route, reason: str) -> Decision:
        """R25, R42: DROPPED keeps the chosen route."""
        return Decision(
            outcome="DROPPED",
            reason=reason,
            match_step=found.step,
            route_id=route.route_id,
            mirror_address=self.mirror_of(route),
            broker_instance=self.bound_broker_id(conversation, route),
        )

    def without_route(
        self, conversation: Conversation, outcome: str, reason: str, *, match_step: int | None
    ) -> Decision:
        """R31: without a chosen route, only the conversation's own broker id is known."""
        return Decision(
            outcome=outcome, reason=reason, match_step=match_step, broker_instance=conversation.to_broker_instance
        )

    def bound_broker_id(self, conversation: Conversation, route: Route) -> UUID | None:
        """R31: returns the conversation's own id, else that of the chosen route."""
        return conversation.to_broker_instance or route.broker_instance

    def mirror_of(self, route: Route) -> str | None:
        """R51: returns the mirror address of a mirrored route, in normal form."""
        return None if route.mirror_address is None else self.normalize(route.mirror_address)
