"""The reassembler agrees with the oracle in thousands of small worlds of edge cases, and in some large ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given

import ssbroker
import ssbroker.schemas
from tests.oracle.fragmentation import fragment_message
from tests.oracle.reassembly import Limits, Oracle
from tests.property.traffic_replay import check_traffic, results_of
from tests.worlds.fragment_tables import (
    batch_of_traffic,
    fragment_batch,
    message_batch,
    rows_of,
    session_keys,
    session_keys_of,
)
from tests.worlds.fragments import KEYS, Step, Traffic
from tests.worlds.seeded import seeded_traffic
from tests.worlds.strategies import traffics

WORLDS = 2000
CHUNKS = 10
LARGE_WORLDS = 60


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P18", "P21", "P22", "P23", "P26")
@pytest.mark.parametrize("number", range(CHUNKS))
def test_every_row_equals_the_oracle(number: int) -> None:
    """All columns of all results, both orders, all limits, with and without keys."""
    for seed in range(number * WORLDS // CHUNKS, (number + 1) * WORLDS // CHUNKS):
        check_traffic(seeded_traffic(seed), text_ids=seed % 3 == 0)


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P18", "P21", "P22", "P23", "P26")
@pytest.mark.parametrize("number", range(CHUNKS))
def test_every_row_of_a_large_world_equals_the_oracle(number: int) -> None:
    """Hundreds of fragments in a few pushes, more than one block."""
    for seed in range(number * LARGE_WORLDS // CHUNKS, (number + 1) * LARGE_WORLDS // CHUNKS):
        check_traffic(seeded_traffic(seed, size=12))


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P18", "P21")
@pytest.mark.parametrize("in_order", [True, False])
def test_every_row_of_many_conversations_equals_the_oracle(in_order: bool) -> None:  # noqa: FBT001
    """Thousands of conversations, and of messages that are completed in one push."""
    random = Random(12)
    crowd = [
        replace(fragment, conversation_id=UUID(int=(fragment.conversation_id.int + (seed << 64)) % 2**128), extra={})
        for seed in range(600)
        if (traffic := seeded_traffic(seed)).keys == "none"  # a session key would bind the conversation
        for fragment in traffic.fragments
    ]
    assert len(crowd) > 10_000
    random.shuffle(crowd)
    steps = (Step(rows=len(crowd) - 2000, checkpoint=True), Step(rows=1), Step(rows=1999))
    check_traffic(
        Traffic(fragments=tuple(crowd), steps=steps, limits=Limits(), in_order=in_order, keys="none", has_extra=False)
    )


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P18")
def test_every_row_beyond_the_prefetch_threshold_equals_the_oracle() -> None:
    """More directions and pending messages than are looked up without prefetching."""
    random = Random(14)
    fragments = [
        fragment
        for _ in range(6_000)
        for id_, is_initiator in [(UUID(int=random.getrandbits(128)), random.random() < 0.5)]
        for sequence in range(2)
        for fragment in fragment_message(
            random.randbytes(random.randrange(1, 9)),
            conversation_id=id_,
            is_initiator=is_initiator,
            sequence=sequence,
            max_fragment_bytes=4,
            key=None,
        )
    ]
    random.shuffle(fragments)
    third = len(fragments) // 3
    steps = tuple(Step(rows=rows, checkpoint=False) for rows in (third, third, len(fragments) - 2 * third))
    check_traffic(
        Traffic(fragments=tuple(fragments), steps=steps, limits=Limits(), in_order=True, keys="none", has_extra=False)
    )


@pytest.mark.rule("P13", "P21", "P23")
@pytest.mark.parametrize("key", [None, KEYS[0]])
def test_every_row_of_long_messages_equals_the_oracle(key: bytes | None) -> None:
    """Fragments of up to 64 KiB of messages of up to a megabyte; some damaged, some duplicated, in any order."""
    random = Random(13)
    for _ in range(5):
        fragments = [
            fragment
            for sequence in range(40)
            for fragment in fragment_message(
                random.randbytes(int(2 ** random.uniform(0, 20))),
                conversation_id=UUID(int=sequence % 3),
                is_initiator=True,
                sequence=sequence // 3,
                max_fragment_bytes=int(2 ** random.uniform(10, 16)),
                key=key,
            )
        ]
        fragments += random.sample(fragments, len(fragments) // 20)
        for place in random.sample(range(len(fragments)), len(fragments) // 20):
            damaged = bytes(len(fragments[place].body))
            fragments[place] = replace(fragments[place], body=damaged, fragment_signature=None)
        random.shuffle(fragments)
        third = len(fragments) // 3
        check_traffic(
            Traffic(
                fragments=tuple(fragments),
                steps=(Step(rows=third, checkpoint=True), Step(rows=len(fragments) - third)),
                limits=Limits(),
                in_order=True,
                keys="none" if key is None else "column",
                has_extra=False,
            )
        )


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P18", "P21", "P22", "P23", "P26")
@given(traffic=traffics())
def test_every_row_equals_the_oracle_with_hypothesis(traffic: Traffic) -> None:
    check_traffic(traffic)


def test_reassemble_is_one_push_without_other_limits() -> None:
    """Including `pending`."""
    for seed in range(500):
        traffic = seeded_traffic(seed)
        longest = traffic.limits.max_message_bytes
        oracle = Oracle(Limits(max_message_bytes=longest), in_order=traffic.in_order)
        result = ssbroker.reassemble(
            batch_of_traffic(traffic),
            in_order=traffic.in_order,
            session_keys=session_keys_of(traffic),
            max_message_bytes=longest,
        )
        assert results_of(result) == oracle.push(traffic.fragments), seed
        assert rows_of(result.pending) == oracle.pending(), seed


@pytest.mark.rule("P13", "P21", "P22", "P23")
@pytest.mark.parametrize("keys", ["none", "mapping", "column"])
def test_fragments_equal_those_of_the_oracle(keys: str) -> None:
    """Every column."""
    random = Random(25)
    for _ in range(200):
        size = random.randrange(1, 9)
        # One message for each fragment: any generated fragment in range may be a message.
        messages = [
            replace(message, sequence=number, key=KEYS[number % 3] if keys != "none" else None)
            for number, message in enumerate(seeded_traffic(random.randrange(10_000)).fragments)
        ]
        if keys == "mapping":
            messages = [replace(message, key=KEYS[message.conversation_id.int % 3]) for message in messages]
        got = ssbroker.fragment(
            message_batch(messages, key_column=keys == "column"),
            max_fragment_bytes=size,
            session_keys=session_keys(keys, messages),
        )
        expected = [
            fragment
            for message in messages
            for fragment in fragment_message(
                message.body,
                conversation_id=message.conversation_id,
                is_initiator=message.is_initiator,
                sequence=message.sequence,
                max_fragment_bytes=size,
                key=message.key,
            )
        ]
        own = ssbroker.schemas.FRAGMENTS.names
        assert got.column_names[: len(own)] == own
        assert rows_of(got.select(own)) == rows_of(pa.Table.from_batches([fragment_batch(expected)]).select(own))
