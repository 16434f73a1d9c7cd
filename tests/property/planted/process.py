from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tests.oracle.routing import Conversation, Decision, Oracle, Route
from tests.oracle.tables import Found, Reading


class RepliesAreRouted(Oracle):
    """R7: a reply takes the normal process."""

    def is_reply_for_this_instance(self, conversation: Conversation) -> bool:
        return False


class EverythingIsAReply(Oracle):
    """R7: messages from an initiator are delivered by their id too."""

    def is_reply_for_this_instance(self, conversation: Conversation) -> bool:
        return super().is_reply_for_this_instance(replace(conversation, is_initiator=False))


class RepliesStartedHere(Oracle):
    """R7: conversations started here count as replies too."""

    def decide(self, conversation: Conversation) -> Decision:
        if not self.is_sender_disabled(conversation) and self.is_reply_for_this_instance(conversation):
            return self.deliver_reply(conversation)
        return super().decide(conversation)


class RepliesToEnabledOnly(Oracle):
    """R7: a reply for a disabled database is routed."""

    def is_reply_for_this_instance(self, conversation: Conversation) -> bool:
        return super().is_reply_for_this_instance(conversation) and any(
            database.service_broker_guid == conversation.to_broker_instance and database.is_broker_enabled
            for database in self.world.instance_databases
        )


class UndeliverableRepliesAreRouted(Oracle):
    """R7: a reply that its database cannot take is routed."""

    def is_reply_for_this_instance(self, conversation: Conversation) -> bool:
        return super().is_reply_for_this_instance(conversation) and self.deliver_reply(conversation).outcome == "LOCAL"


class RepliesToAnyHost(Oracle):
    """R7: any database with the service gets the reply."""

    def deliver_reply(self, conversation: Conversation) -> Decision:
        decision = super().deliver_reply(conversation)
        hosts = self.hosts(conversation.to_service_name)
        return replace(decision, target_database=hosts[0].name) if decision.outcome == "LOCAL" else decision


class RepliesAreNotCheckedAgain(Oracle):
    """R41: R7 does not apply after a re-entry."""

    def from_outside(self, conversation: Conversation, *, re_entered: bool) -> Decision:
        if re_entered:
            return self.process(conversation, Reading("msdb", from_outside=True, re_entered=True))
        return super().from_outside(conversation, re_entered=re_entered)


class NoRouteFromOutsideIsDropped(Oracle):
    """R17: a message from outside without a route is DROPPED."""

    def process(self, conversation: Conversation, reading: Reading) -> Decision:
        decision = super().process(conversation, reading)
        if reading.from_outside and decision.reason == "no_route":
            return replace(decision, outcome="DROPPED")
        return decision


class AlwaysForwarding(Oracle):
    """R25: messages are forwarded although forwarding is off."""

    def drops_without_forwarding(self, reading: Reading) -> bool:
        return False


class ForwardingRequiredToSend(Oracle):
    """R25: a conversation started here is sent only if forwarding is on."""

    def drops_without_forwarding(self, reading: Reading) -> bool:
        return not self.world.message_forwarding


class ForwardingRequiredForLocal(Oracle):
    """R25: messages for local services are dropped if forwarding is off."""

    def deliver(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        if self.drops_without_forwarding(reading):
            return self.dropped(conversation, found, route, "forwarding_disabled")
        return super().deliver(conversation, reading, found, route)


class ReEntryNeedsNoForwarding(Oracle):
    """R41: after a re-entry forwarding may be off."""

    def drops_without_forwarding(self, reading: Reading) -> bool:
        return super().drops_without_forwarding(reading) and not reading.re_entered


class NoReEntry(Oracle):
    """R41: an own address is treated like any other."""

    def resolves_to_this_instance(self, next_hop: str) -> bool:
        return False


class OwnAddressIsNotNormalized(Oracle):
    """R6, R41: own addresses are not normalized."""

    def resolves_to_this_instance(self, next_hop: str) -> bool:
        return next_hop in self.world.addresses


class OnlyTheFirstOwnAddress(Oracle):
    """R41: only the first of the own addresses is checked."""

    def resolves_to_this_instance(self, next_hop: str) -> bool:
        return next_hop in [self.normalize(address) for address in self.world.addresses[:1]]


class MirrorLeadsBack(Oracle):
    """R41: the mirror address of a route is compared with the own addresses too."""

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        mirror = self.mirror_of(route)
        if mirror is not None and not reading.from_outside and self.resolves_to_this_instance(mirror):
            return self.from_outside(conversation, re_entered=True)
        return super().send(conversation, reading, found, route)


class TransportNeverLeadsBack(Oracle):
    """R41: an address in a service name is not compared with the own addresses."""

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        decision = super().send(conversation, reading, found, route)
        if self.normalize(route.address) != "TRANSPORT" or self.drops_without_forwarding(reading):
            return decision
        return Decision(
            outcome="FORWARD" if reading.from_outside else "REMOTE",
            reason="matched",
            match_step=found.step,
            route_id=route.route_id,
            next_hop_address=self.next_hop(conversation, route),
            mirror_address=self.mirror_of(route),
            broker_instance=self.bound_broker_id(conversation, route),
        )


class ReEntryKeepsTheRoutesId(Oracle):
    """R41: the second pass has the broker id of the first pass's route."""

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        kept = replace(conversation, to_broker_instance=self.bound_broker_id(conversation, route))
        return super().send(kept, reading, found, route)


class ReEnteredIsStillOwn(Oracle):
    """R41, R26: a re-entered conversation without a usable route is DELAYED."""

    def without_usable_route(self, conversation: Conversation, reading: Reading, found: Found) -> Decision:
        decision = super().without_usable_route(conversation, reading, found)
        return replace(decision, outcome="DELAYED") if reading.re_entered else decision


class ReEnteredIsRemote(Oracle):
    """R25: a re-entered conversation that is sent counts as started here."""

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        decision = super().send(conversation, reading, found, route)
        return replace(decision, outcome="REMOTE") if reading.re_entered and decision.next_hop_address else decision


class LoopsAreForwarded(Oracle):
    """R42: a message from outside for an own address is forwarded to it."""

    def resolves_to_this_instance(self, next_hop: str) -> bool:
        return self.started_here and super().resolves_to_this_instance(next_hop)

    started_here = True

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        self.started_here = not reading.from_outside
        return super().send(conversation, reading, found, route)


class LoopIsCheckedBeforeForwarding(Oracle):
    """R25: the loop is checked before forwarding."""

    def send(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        decision = super().send(conversation, reading, found, route)
        loops = self.resolves_to_this_instance(self.next_hop(conversation, route))
        return (
            replace(decision, reason="routing_loop") if decision.reason == "forwarding_disabled" and loops else decision
        )


class DroppedHasNoRoute(Oracle):
    """R25: a conversation DROPPED by R25 or R42 has no route id."""

    def dropped(self, conversation: Conversation, found: Found, route: Route, reason: str) -> Decision:
        return replace(super().dropped(conversation, found, route, reason), route_id=None)


class DroppedHasOnlyItsOwnId(Oracle):
    """R25: a conversation DROPPED by R25 or R42 has only its own broker id."""

    def dropped(self, conversation: Conversation, found: Found, route: Route, reason: str) -> Decision:
        dropped = super().dropped(conversation, found, route, reason)
        return replace(dropped, broker_instance=conversation.to_broker_instance)


class DroppedHasNoMirror(Oracle):
    """R25: a conversation DROPPED by R25 or R42 has no mirror."""

    def dropped(self, conversation: Conversation, found: Found, route: Route, reason: str) -> Decision:
        return replace(super().dropped(conversation, found, route, reason), mirror_address=None)


class DroppedHasANextHop(Oracle):
    """R25: a conversation DROPPED by R25 or R42 has a next hop."""

    def dropped(self, conversation: Conversation, found: Found, route: Route, reason: str) -> Decision:
        hop = self.next_hop(conversation, route)
        return replace(super().dropped(conversation, found, route, reason), next_hop_address=hop)


class LocatedIdDoesNotBind(Oracle):
    """R31: a conversation delivered here without an id is not bound to that of the database."""

    def deliver(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        decision = super().deliver(conversation, reading, found, route)
        return replace(decision, broker_instance=self.bound_broker_id(conversation, route))


class RoutesIdDoesNotBind(Oracle):
    """R31: a conversation is not bound to its route's id."""

    def bound_broker_id(self, conversation: Conversation, route: Route) -> UUID | None:
        return conversation.to_broker_instance


class ImpliedRouteHasAnId(Oracle):
    """R31: the implied route of step 6 has the id 0."""

    def deliver(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        decision = super().deliver(conversation, reading, found, route)
        return replace(decision, route_id=decision.route_id or 0)


class NoMirrors(Oracle):
    """R51: the mirror address is not reported."""

    def mirror_of(self, route: Route) -> str | None:
        return None


class MirrorsAreNotNormalized(Oracle):
    """R31: the mirror address is not normalized."""

    def mirror_of(self, route: Route) -> str | None:
        return route.mirror_address


class MirrorsOnlyOnTheNetwork(Oracle):
    """R31: a mirrored route with address LOCAL has no mirror."""

    def deliver(self, conversation: Conversation, reading: Reading, found: Found, route: Route) -> Decision:
        return replace(super().deliver(conversation, reading, found, route), mirror_address=None)
