"""Plans a delivery: determines for each conversation the database or the other instance that it goes to, or why it waits."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import transmission_status
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.dynamic_routing import RouteRequest, missing_route
from ssbroker.broker.live_routes import Decision, LiveRoutes, explain
from ssbroker.explain import Explanation
from ssbroker.protocol.events import Classification, MessageClassify
from ssbroker.store.conversation_endpoints import ConversationEndpoint


@dataclass(frozen=True, slots=True)
class OutgoingConversation:
    """A conversation with messages in the transmission queue for another instance.

    Attributes:
        database: The database of the sender.
        sender: The sending endpoint, as committed.
        decision: The routing decision, with the next hop and, for a mirrored route, the address of the mirror (R51).
    """

    database: DatabaseContext
    sender: ConversationEndpoint
    decision: Decision

    @property
    def endpoint_id(self) -> int:
        """The id of the sender."""
        return self.sender.endpoint_id


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What to do with conversations of a database."""

    local: dict[tuple[str, bytes | None], list[ConversationEndpoint]] = field(default_factory=dict)
    """Conversations for each database of this instance, by its name and broker id."""
    outgoing: list[OutgoingConversation] = field(default_factory=list)
    """Conversations for other instances."""
    problems: dict[int, TransmissionStatus] = field(default_factory=dict)
    """Why the other conversations wait, by sender id."""
    route_requests: dict[RouteRequest, list[int]] = field(default_factory=dict)
    """The routes to request (R14), with the ids of the senders that need them."""


def plan(
    routes: LiveRoutes, database: DatabaseContext, senders: Sequence[ConversationEndpoint], *, has_transport: bool
) -> DeliveryPlan:
    """Routes conversations, and emits an event about each decision."""
    now = database.now()
    found = DeliveryPlan()
    explained: dict[tuple[str, bytes | None, int], Explanation] = {}
    router = routes.router()
    for sender, decision in zip(senders, routes.decisions(database.name, senders), strict=True):
        _emit_classify_event(database, sender, decision)
        if decision.is_local and decision.target_database is not None:
            found.local.setdefault((decision.target_database, decision.broker_instance), []).append(sender)
        elif decision.next_hop_address is not None and has_transport:
            found.outgoing.append(OutgoingConversation(database, sender, decision))
        else:
            destination = (sender.far_service, sender.far_broker_instance, sender.is_initiator)
            if destination not in explained:  # the same for all of them, as there was no route to choose
                explained[destination] = explain(router, database.name, sender, now=now)
            is_mirror = decision.reason == "sender_disabled" and database.objects().broker.mirroring_role == "mirror"
            why = (
                transmission_status.database_is_mirror(database.name)
                if is_mirror
                else transmission_status.routing_problem(explained[destination])
            )
            found.problems[sender.endpoint_id] = why or transmission_status.other_failure("the route has just changed")
            request = missing_route(explained[destination], sender.far_service, sender.far_broker_instance)
            if request is not None:
                found.route_requests.setdefault(request, []).append(sender.endpoint_id)
    return found


def _emit_classify_event(database: DatabaseContext, sender: ConversationEndpoint, decision: Decision) -> None:
    log = database.instance.events
    if not log.wants(MessageClassify):
        return
    if decision.is_local:
        classification = Classification.LOCAL
    elif decision.next_hop_address is not None:
        classification = Classification.REMOTE
    else:
        classification = Classification.DELAYED
    log.emit(
        MessageClassify(
            at=database.instance.microseconds(),
            database=database.name,
            conversation_id=uuid.UUID(bytes=sender.conversation_id),
            classification=classification,
            to_service_name=sender.far_service,
            to_broker_instance=None if decision.broker_instance is None else uuid.UUID(bytes=decision.broker_instance),
            next_hop_address=decision.next_hop_address,
            reason=decision.reason,
        )
    )
