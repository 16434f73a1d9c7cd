"""An instance for routing tests, and helpers that create routes and expected decisions."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from uuid import UUID

import ssbroker
from ssbroker.router import PendingRequest, TieBreak
from tests.oracle.world import Conversation, Database, Decision, Route, Service, World
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.universe import NOW

SALES = UUID("5fb8d92b-ed69-4c80-afbb-2aa6a7d3cb2d")
STORES = UUID("81b1d3d0-288e-4d2c-b1d3-456cbb944b4f")
OPS = UUID("0d6a8f0e-6f8e-4a0b-9b57-1f3f1f6a2c11")
ELSEWHERE = UUID("c2b4a1de-0c0f-4bb0-8a57-93d0be6b7a9e")
"""Broker id of a database of another instance."""
NOWHERE = UUID("77777777-7777-4777-8777-777777777777")
"""A broker id that no database has and no route names."""

CONVERSATION = UUID("11111111-2222-4333-8444-555555555555")

HERE = World(
    databases=(
        Database(name="Sales", service_broker_guid=SALES),
        Database(name="Stores", service_broker_guid=STORES),
        Database(name="Ops", service_broker_guid=OPS),
    )
)
"""Three databases without routes and services."""

MSDB = "msdb"
OUTSIDE = None
"""Database of a conversation that arrives from another instance."""

BCN = "SQL/ServiceBroker/BrokerConfiguration"


def here(
    *routes: Route,
    services: tuple[tuple[str, str], ...] = (),
    disabled: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
    forwarding: bool = False,
    pending: tuple[str, ...] = (),
) -> World:
    """Returns the instance with some routes; services are pairs of database and name."""
    return replace(
        HERE,
        routes=routes,
        databases=tuple(replace(each, is_broker_enabled=each.name not in disabled) for each in HERE.databases),
        services=tuple(Service(database=database, name=name) for database, name in services),
        addresses=own,
        message_forwarding=forwarding,
        pending_requests=pending,
    )


def route(
    number: int,
    address: str,
    *,
    service: str | None = None,
    broker: UUID | None = None,
    table: str = "Sales",
    mirror: str | None = None,
    lifetime: datetime | None = None,
) -> Route:
    """Returns a route of `Sales` or of another table."""
    return Route(
        database=table,
        route_id=number,
        name=f"route {number}",
        remote_service_name=service,
        broker_instance=broker,
        lifetime=lifetime,
        address=address,
        mirror_address=mirror,
    )


def decide_all(
    world: World,
    conversations: list[Conversation],
    *,
    now: datetime = NOW,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> list[Decision]:
    """Routes a batch through the public API."""
    router = ssbroker.Router(catalog_of(world), tie_break=tie_break, pending_request=pending_request)
    return decisions_of(router.route(batch_of(conversations), now=now))


def decide(
    world: World,
    to_service_name: str,
    *,
    broker: UUID | None = None,
    started_in: str | None = "Sales",
    is_initiator: bool = True,
    conversation_id: UUID = CONVERSATION,
    now: datetime = NOW,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> Decision:
    """Routes one conversation through the public API."""
    conversation = Conversation(
        to_service_name=to_service_name,
        database=started_in,
        to_broker_instance=broker,
        is_initiator=is_initiator,
        conversation_id=conversation_id,
    )
    answers = decide_all(world, [conversation], now=now, tie_break=tie_break, pending_request=pending_request)
    assert len(answers) == 1
    return answers[0]


def remote(
    step: int, number: int, hop: str, *, broker: UUID | None = None, mirror: str | None = None, outcome: str = "REMOTE"
) -> Decision:
    """Returns the decision to send to another instance."""
    return Decision(
        outcome=outcome,
        reason="matched",
        match_step=step,
        route_id=number,
        next_hop_address=hop,
        mirror_address=mirror,
        broker_instance=broker,
    )


def forward(step: int, number: int, hop: str, *, broker: UUID | None = None, mirror: str | None = None) -> Decision:
    """Returns the decision to forward to another instance."""
    return remote(step, number, hop, broker=broker, mirror=mirror, outcome="FORWARD")


def local(
    step: int,
    number: int | None,
    database: str,
    *,
    broker: UUID | None = None,
    mirror: str | None = None,
    reason: str = "matched",
) -> Decision:
    """Returns the decision to deliver in this instance."""
    return Decision(
        outcome="LOCAL",
        reason=reason,
        match_step=step,
        route_id=number,
        target_database=database,
        mirror_address=mirror,
        broker_instance=broker,
    )


def delayed(reason: str, step: int | None, *, broker: UUID | None = None) -> Decision:
    """Returns the decision to leave the conversation in its transmission queue."""
    return Decision(outcome="DELAYED", reason=reason, match_step=step, broker_instance=broker)


def dropped(
    reason: str,
    step: int,
    number: int | None = None,
    *,
    broker: UUID | None = None,
    mirror: str | None = None,
) -> Decision:
    """Returns the decision to drop the message without acknowledgement."""
    return Decision(
        outcome="DROPPED",
        reason=reason,
        match_step=step,
        route_id=number,
        mirror_address=mirror,
        broker_instance=broker,
    )
