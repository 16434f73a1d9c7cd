"""The decisions for a class of conversations are exactly the decisions of the router over all tie breaks."""

from __future__ import annotations

from dataclasses import astuple, replace
from random import Random
from uuid import UUID

import pytest

import ssbroker
from ssbroker.diagnose.all_decisions import Behaviour, PossibleDecision, RouteLookup
from ssbroker.router import PendingRequest
from tests.oracle.world import Conversation, Decision
from tests.rules.setting import here, route
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

SAMPLES = 400


def observed(router: ssbroker.Router, conversation: Conversation, random: Random) -> set[PossibleDecision]:
    """Returns the decisions of the router for many ids of one conversation."""
    copies = [replace(conversation, conversation_id=UUID(int=random.getrandbits(128))) for _ in range(SAMPLES)]
    return {as_possible_decision(decision) for decision in decisions_of(router.route(batch_of(copies), now=NOW))}


def as_possible_decision(decision: Decision) -> PossibleDecision:
    outcome, reason, step, number, hop, mirror, database, broker = astuple(decision)
    return PossibleDecision(
        outcome, reason, step, number, hop, mirror, database, None if broker is None else broker.bytes
    )


def lookup_of(conversation: Conversation) -> RouteLookup:
    broker = conversation.to_broker_instance
    return RouteLookup(
        conversation.database,
        conversation.to_service_name,
        None if broker is None else broker.bytes,
        conversation.is_initiator,
    )


@pytest.mark.rule("R13", "R24", "R32", "R41")
@pytest.mark.parametrize("pending", ["continue", "delay"])
@pytest.mark.parametrize("seed", range(40))
def test_decisions_cover_all_tie_breaks(seed: int, pending: PendingRequest) -> None:
    """Ties between broker ids, routes and databases, and reentered conversations."""
    world, conversations = seeded_world(seed, conversations=6)
    catalog = catalog_of(world)
    behaviour = Behaviour(catalog, now=NOW, pending_request=pending, with_routes=True)
    router = ssbroker.Router(catalog, pending_request=pending)
    all_decisions = behaviour.decisions_for([lookup_of(conversation) for conversation in conversations])
    for conversation, decisions in zip(conversations, all_decisions, strict=True):
        assert set(decisions) == observed(router, conversation, Random(seed)), conversation
        assert len(set(decisions)) == len(decisions)


@pytest.mark.rule("R41")
def test_conversation_that_starts_in_msdb() -> None:
    """The picks of the first and the second pass are independent."""
    world = here(
        route(1, "TCP://me", service="Stock", table="msdb"),
        route(2, "TCP://other", service="Stock", table="msdb"),
        own=("TCP://me",),
        forwarding=True,
    )
    conversation = Conversation(to_service_name="Stock", database="msdb")
    decisions = Behaviour(catalog_of(world), now=NOW, with_routes=True).decisions_for([lookup_of(conversation)])[0]
    assert set(decisions) == observed(ssbroker.Router(catalog_of(world)), conversation, Random(1))
    assert {decision.outcome for decision in decisions} == {"REMOTE", "FORWARD", "DROPPED"}


def test_unknown_names_share_a_class() -> None:
    """One lookup represents all unknown names, which keeps large fleets fast."""
    behaviour = Behaviour(catalog_of(here(route(1, "TCP://hub"))), now=NOW)
    assert behaviour.class_of(RouteLookup("Sales", "one")) == behaviour.class_of(RouteLookup("Sales", "another"))
    transport = Behaviour(catalog_of(here(route(1, "TRANSPORT"))), now=NOW)
    assert transport.from_database("Sales", "a.example:1/x")[0].next_hop == "TCP://a.example:1"
    assert transport.from_database("Sales", "b.example:1/x")[0].next_hop == "TCP://b.example:1"
