"""The answers for a class of conversations are exactly the decisions of the router over all tie breaks."""

from __future__ import annotations

from dataclasses import astuple, replace
from random import Random
from uuid import UUID

import pytest

import ssbroker
from ssbroker.diagnose.behaviour import Answer, Behaviour, Question
from ssbroker.router import PendingRequest
from tests.oracle.world import Conversation, Decision
from tests.rules.setting import here, route
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

SAMPLES = 400


def seen(router: ssbroker.Router, asked: Conversation, random: Random) -> set[Answer]:
    """Returns the decisions of the router for many ids of one conversation."""
    many = [replace(asked, conversation_id=UUID(int=random.getrandbits(128))) for _ in range(SAMPLES)]
    return {as_answer(decision) for decision in decisions_of(router.route(batch_of(many), now=NOW))}


def as_answer(decision: Decision) -> Answer:
    outcome, reason, step, number, hop, mirror, database, broker = astuple(decision)
    return Answer(outcome, reason, step, number, hop, mirror, database, None if broker is None else broker.bytes)


def question_of(asked: Conversation) -> Question:
    broker = asked.to_broker_instance
    return Question(asked.database, asked.to_service_name, None if broker is None else broker.bytes, asked.is_initiator)


@pytest.mark.rule("R13", "R24", "R32", "R41")
@pytest.mark.parametrize("pending", ["continue", "delay"])
@pytest.mark.parametrize("seed", range(40))
def test_every_way_a_tie_may_fall(seed: int, pending: PendingRequest) -> None:
    """Ids, routes, databases and re-entries."""
    world, conversations = seeded_world(seed, conversations=6)
    catalog = catalog_of(world)
    behaviour = Behaviour(catalog, now=NOW, pending_request=pending, with_routes=True)
    router = ssbroker.Router(catalog, pending_request=pending)
    told = behaviour.answers_to([question_of(asked) for asked in conversations])
    for asked, answers in zip(conversations, told, strict=True):
        assert set(answers) == seen(router, asked, Random(seed)), asked
        assert len(set(answers)) == len(answers)


@pytest.mark.rule("R41")
def test_begun_in_msdb_itself() -> None:
    """The pick of the first pass and that of the second are independent."""
    world = here(
        route(1, "TCP://me", service="Stock", table="msdb"),
        route(2, "TCP://other", service="Stock", table="msdb"),
        own=("TCP://me",),
        forwarding=True,
    )
    asked = Conversation(to_service_name="Stock", database="msdb")
    answers = Behaviour(catalog_of(world), now=NOW, with_routes=True).answers_to([question_of(asked)])[0]
    assert set(answers) == seen(ssbroker.Router(catalog_of(world)), asked, Random(1))
    assert {answer.outcome for answer in answers} == {"REMOTE", "FORWARD", "DROPPED"}


def test_names_that_nothing_knows_are_asked_once() -> None:
    """What makes large fleets quick: one question stands for all that are alike."""
    behaviour = Behaviour(catalog_of(here(route(1, "TCP://hub"))), now=NOW)
    assert behaviour.class_of(Question("Sales", "one")) == behaviour.class_of(Question("Sales", "another"))
    transport = Behaviour(catalog_of(here(route(1, "TRANSPORT"))), now=NOW)
    assert transport.from_database("Sales", "a.example:1/x")[0].next_hop == "TCP://a.example:1"
    assert transport.from_database("Sales", "b.example:1/x")[0].next_hop == "TCP://b.example:1"
