"""The router agrees with the oracle in many small worlds of edge cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from random import Random
from uuid import UUID

import pytest
from hypothesis import given

import ssbroker
from ssbroker.router import PendingRequest, TieBreak
from tests.oracle.routing import Conversation, Decision, Oracle, World
from tests.oracle.world import MSDB, Route
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.seeded import seeded_world
from tests.worlds.strategies import worlds
from tests.worlds.universe import BROKER_IDS, NOW

WORLDS = 1000
CHUNKS = 10
CONVERSATIONS = 40
TIE_BREAKS: tuple[TieBreak, ...] = ("hash", "round_robin", "first")
PENDING: tuple[PendingRequest, ...] = ("continue", "delay")
OPTIONS = tuple(product(TIE_BREAKS, PENDING))


def assert_same(
    world: World, conversations: Sequence[Conversation], got: Sequence[Decision], expected: Sequence[Decision], why: str
) -> None:
    """Reports the first conversation with a different decision, with everything needed to reproduce it."""
    assert len(got) == len(expected)
    for conversation, one, other in zip(conversations, got, expected, strict=True):
        assert one == other, f"{why}\nrouter: {one}\noracle: {other}\n{conversation}\n{world}"


def check_world(world: World, conversations: Sequence[Conversation], *, text_guids: bool) -> None:
    """Routes the conversations with all options, in two batches if turns must continue between them."""
    catalog = catalog_of(world, text_guids=text_guids)
    batch = batch_of(conversations, text_guids=text_guids)
    half = len(conversations) // 2
    for tie_break, pending_request in OPTIONS:
        router = ssbroker.Router(catalog, tie_break=tie_break, pending_request=pending_request)
        oracle = Oracle(world, now=NOW, tie_break=tie_break, pending_request=pending_request)
        parts = (batch.slice(0, half), batch.slice(half)) if tie_break == "round_robin" else (batch,)
        got = [decision for part in parts for decision in decisions_of(router.route(part, now=NOW))]
        expected = [oracle.decide(conversation) for conversation in conversations]
        assert_same(world, conversations, got, expected, f"tie_break={tie_break} pending_request={pending_request}")


def chunk(number: int) -> Iterator[tuple[int, World, list[Conversation]]]:
    """Returns the worlds of one chunk, each with its seed."""
    for seed in range(number * WORLDS // CHUNKS, (number + 1) * WORLDS // CHUNKS):
        yield seed, *seeded_world(seed, conversations=CONVERSATIONS)


@pytest.mark.rule("R51")
@pytest.mark.parametrize("number", range(CHUNKS))
def test_every_decision_equals_the_oracle(number: int) -> None:
    """All columns, all tie breaks, both values of `pending_request`; ids as text and as bytes."""
    for seed, world, conversations in chunk(number):
        check_world(world, conversations, text_guids=seed % 2 == 0)


@pytest.mark.rule("R51")
@given(case=worlds())
def test_every_decision_equals_the_oracle_with_hypothesis(case: tuple[World, list[Conversation]]) -> None:
    check_world(*case, text_guids=False)


@pytest.mark.rule("R23", "R51")
def test_similar_names_with_an_address_equal_the_oracle() -> None:
    """A batch remembers decisions for such names; conversations that differ in one value do not share a decision."""
    tie = (("TRANSPORT", "TCP://mirror.example"), ("TCP://other.example", "TCP://mirror.example"))
    tables = ((("TRANSPORT", None),), tie, (("TRANSPORT", None), ("TCP://other.example", None)))
    hosts_and_ports = ("one.example:4022", "two.example:4022", "own.example:4022", "one.example:0000")
    names = [f"TCP://{host_and_port}/Orders" for host_and_port in hosts_and_ports]
    databases = ("Sales", "Stores", MSDB)
    for seed, choice in enumerate(product(tables, repeat=len(databases))):
        routes = [
            Route(database=database, address=address, mirror_address=mirror)
            for database, table in zip(databases, choice, strict=True)
            for address, mirror in table
        ]
        routes = [replace(route, route_id=number) for number, route in enumerate(routes, start=1)]
        world = World(routes=tuple(routes), addresses=("TCP://own.example:4022",), message_forwarding=True)
        conversations = [
            Conversation(
                database=database,
                to_service_name=name,
                to_broker_instance=broker,
                is_initiator=is_initiator,
                conversation_id=UUID(int=number),
            )
            for number, (_, database, name, broker, is_initiator) in enumerate(
                product(range(3), ("Sales", "Stores", None), names, (None, *BROKER_IDS[:2]), (True, False))
            )
        ]
        Random(seed).shuffle(conversations)
        check_world(world, conversations, text_guids=False)


@pytest.mark.rule("R5")
def test_ids_as_text_and_as_bytes_are_the_same() -> None:
    """In any case, with or without braces, or as 16 bytes."""
    for seed in range(200):
        world, conversations = seeded_world(seed, conversations=CONVERSATIONS)
        answers = [
            ssbroker.Router(catalog_of(world, text_guids=catalog_text)).route(
                batch_of(conversations, text_guids=text), now=NOW
            )
            for catalog_text, text in product((True, False), repeat=2)
        ]
        assert all(answer.equals(answers[0]) for answer in answers[1:])


@pytest.mark.parametrize("tie_break", ["hash", "first"])
@pytest.mark.parametrize("pending_request", ["continue", "delay"])
def test_explain_decides_like_route(tie_break: TieBreak, pending_request: PendingRequest) -> None:
    """The decision and its steps."""
    for seed in range(250):
        world, conversations = seeded_world(seed, conversations=10)
        router = ssbroker.Router(catalog_of(world), tie_break=tie_break, pending_request=pending_request)
        oracle = Oracle(world, now=NOW, tie_break=tie_break, pending_request=pending_request)
        got = []
        for conversation in conversations:
            explanation = router.explain(
                conversation.to_service_name,
                to_broker_instance=conversation.to_broker_instance,
                database=conversation.database,
                is_initiator=conversation.is_initiator,
                conversation_id=conversation.conversation_id,
                now=NOW,
            )
            assert explanation.to_dict()["picks_undetermined"] is False
            assert str(explanation)
            got.append(Decision(**explanation.decision))
        expected = [oracle.decide(conversation) for conversation in conversations]
        assert_same(world, conversations, got, expected, f"explain, tie_break={tie_break}")
        routed = decisions_of(router.route(batch_of(conversations), now=NOW))
        assert [asdict(decision) for decision in routed] == [asdict(decision) for decision in got]


@pytest.mark.rule("R24", "R41")
def test_explain_uses_the_next_turns() -> None:
    """Even if a conversation of msdb re-enters, and takes two turns of one table."""
    for seed in range(100):
        world, conversations = seeded_world(seed, conversations=15)
        router = ssbroker.Router(catalog_of(world), tie_break="round_robin")
        for conversation in (*conversations, *conversations):
            explanation = router.explain(
                conversation.to_service_name,
                to_broker_instance=conversation.to_broker_instance,
                database=conversation.database,
                is_initiator=conversation.is_initiator,
                now=NOW,
            )
            (routed,) = decisions_of(router.route(batch_of([conversation]), now=NOW))
            assert Decision(**explanation.decision) == routed, seed


@pytest.mark.rule("R24")
def test_explain_takes_no_turn() -> None:
    for seed in range(100):
        world, conversations = seeded_world(seed, conversations=CONVERSATIONS)
        catalog = catalog_of(world)
        asked = ssbroker.Router(catalog, tie_break="round_robin")
        unasked = ssbroker.Router(catalog, tie_break="round_robin")
        for conversation in conversations:
            asked.explain(
                conversation.to_service_name,
                to_broker_instance=conversation.to_broker_instance,
                database=conversation.database,
                is_initiator=conversation.is_initiator,
                now=NOW,
            )
        batch = batch_of(conversations)
        assert asked.route(batch, now=NOW).equals(unasked.route(batch, now=NOW))
