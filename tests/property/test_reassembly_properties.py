"""Properties that hold for any traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.reassembly import SessionKeys
from tests.oracle.fragmentation import fragment_message
from tests.oracle.reassembly import Fragment, Limits, Pushed, Row
from tests.property.traffic_replay import in_one_chunked_table, reassembler_for, results_of
from tests.worlds.fragment_tables import batch_of_traffic, fragment_batch, rows_of, session_keys_of
from tests.worlds.fragments import Traffic
from tests.worlds.seeded import seeded_traffic

SEEDS = 300


def by_direction(messages: Iterable[Row]) -> dict[tuple[bytes, bool], list[Row]]:
    """Returns the messages of each direction in order of release; the order between directions is undefined."""
    found: dict[tuple[bytes, bool], list[Row]] = {}
    for row in messages:
        found.setdefault((row["conversation_id"], row["is_initiator"]), []).append(row)
    return found


def pushed_in_parts(reassembler: ssbroker.Reassembler, batch: pa.RecordBatch, cuts: Sequence[int]) -> Pushed:
    """Returns all results when the batch is pushed in parts."""
    pushed = Pushed()
    for start, end in zip([0, *cuts], [*cuts, batch.num_rows], strict=True):
        part = results_of(reassembler.push(batch.slice(start, end - start)))
        pushed.messages += part.messages
        pushed.rejected += part.rejected
        pushed.acknowledgements += part.acknowledgements
    return pushed


def random_cuts(random: Random, rows: int) -> list[int]:
    return sorted(random.randrange(rows + 1) for _ in range(random.randrange(5)))


def reassembler_of(traffic: Traffic) -> ssbroker.Reassembler:
    return reassembler_for(traffic.limits, in_order=traffic.in_order, session_keys=session_keys_of(traffic))


@pytest.mark.rule("P11", "P12", "P13", "P14")
@pytest.mark.parametrize("in_order", [True, False])
def test_every_permutation_duplication_and_cut_of_a_few_fragments_gives_the_same_messages(in_order: bool) -> None:  # noqa: FBT001
    """All 720 orders of six fragments, one of them duplicated, in two pushes: each message once, complete, in order."""
    conversation = UUID(int=7)
    bodies = [b"first", b"", b"third"]
    fragments = [
        fragment
        for sequence, body in enumerate(bodies)
        for fragment in fragment_message(
            body, conversation_id=conversation, is_initiator=True, sequence=sequence, max_fragment_bytes=3
        )
    ]
    fragments.append(fragments[0])
    for number, order in enumerate(permutations(fragments)):
        reassembler = reassembler_for(Limits(), in_order=in_order)
        pushed = pushed_in_parts(reassembler, fragment_batch(order), [number % len(fragments)])
        got = [(row["message_sequence_number"], row["message_body"]) for row in pushed.messages]
        assert (got if in_order else sorted(got)) == list(enumerate(bodies)), number
        assert [row["reason"] for row in pushed.rejected] == ["duplicate"], number
        assert reassembler.pending().num_rows == 0


@pytest.mark.rule("P11", "P12", "P13", "P14")
def test_every_permutation_duplication_and_cut_gives_the_same_messages() -> None:
    """With gaps and losses; the incomplete messages are the same too."""
    random = Random(11)
    for seed in range(SEEDS):
        traffic = seeded_traffic(seed, theme="honest")
        reassembler = reassembler_of(traffic)
        usual = by_direction(results_of(reassembler.push(batch_of_traffic(traffic))).messages)
        for _ in range(4):
            again = random.sample(traffic.fragments, random.randrange(len(traffic.fragments) + 1))
            arriving = [*traffic.fragments, *again]
            random.shuffle(arriving)
            batch = batch_of_traffic(replace(traffic, fragments=tuple(arriving)))
            other = reassembler_of(traffic)
            got = by_direction(pushed_in_parts(other, batch, random_cuts(random, len(arriving))).messages)
            if not traffic.in_order:
                got = {key: sorted(rows, key=sequence_of) for key, rows in got.items()}
                usual = {key: sorted(rows, key=sequence_of) for key, rows in usual.items()}
            assert got == usual, seed
            assert other.pending().equals(reassembler.pending()), seed
            assert other.pending_bytes == reassembler.pending_bytes, seed


def sequence_of(row: Row) -> int:
    return int(row["message_sequence_number"])


@pytest.mark.rule("P26")
def test_no_fragment_and_no_byte_is_lost_or_added() -> None:
    """The input rows are fragments of messages, rejected or pending; bytes too."""
    for seed in range(SEEDS):
        traffic = with_counts(one_length_for_each_header(seeded_traffic(seed)))
        length = {header_of(fragment): len(fragment.body) for fragment in traffic.fragments}
        reassembler = reassembler_of(traffic)
        pushed = results_of(reassembler.push(batch_of_traffic(traffic)))
        pending = rows_of(reassembler.pending())
        rejected = [
            (row["conversation_id"], row["is_initiator"], row["message_sequence_number"], row["fragment_number"])
            for row in pushed.rejected
        ]
        rows = sum(row["priority"] for row in pushed.messages) + sum(row["received_fragments"] for row in pending)
        assert rows + len(rejected) == len(traffic.fragments), seed
        size = sum(len(row["message_body"]) for row in pushed.messages) + sum(row["received_bytes"] for row in pending)
        assert size + sum(length[header] for header in rejected) == sum(len(each.body) for each in traffic.fragments)


def header_of(fragment: Fragment) -> tuple[Any, ...]:
    return (*fragment.direction, fragment.sequence, fragment.number)


def one_length_for_each_header(traffic: Traffic) -> Traffic:
    """Removes fragments that differ in length from one with the same header, since rejected rows do not contain lengths."""
    length: dict[tuple[Any, ...], int] = {}
    fragments = [
        each for each in traffic.fragments if length.setdefault(header_of(each), len(each.body)) == len(each.body)
    ]
    return replace(traffic, fragments=tuple(fragments))


def with_counts(traffic: Traffic) -> Traffic:
    """Adds an extra column with the fragment count."""
    fragments = [replace(each, extra={"note": None, "priority": each.count}) for each in traffic.fragments]
    return replace(traffic, fragments=tuple(fragments), has_extra=True)


def test_one_push_equals_pushes_of_single_rows() -> None:
    """Even at the limits, and if one table has many chunks, some of them empty."""
    random = Random(14)
    for seed in range(SEEDS):
        traffic = seeded_traffic(seed)
        batch = batch_of_traffic(traffic)
        in_one_push, singly, in_chunks = (reassembler_of(traffic) for _ in range(3))
        whole = results_of(in_one_push.push(batch))
        parts = pushed_in_parts(singly, batch, range(1, batch.num_rows))
        chunks = results_of(in_chunks.push(in_one_chunked_table(batch, random_cuts(random, batch.num_rows))))
        assert chunks == whole, seed
        assert (parts.messages, parts.rejected) == (whole.messages, whole.rejected), seed
        for other in (singly, in_chunks):
            assert other.pending().equals(in_one_push.pending()), seed
            assert other.pending_bytes == in_one_push.pending_bytes, seed
            assert other.pending_messages == in_one_push.pending_messages, seed


def test_checkpoints_between_pushes_change_nothing() -> None:
    """Rows, acknowledgements, pending messages and memory charges."""
    for seed in range(SEEDS):
        traffic = seeded_traffic(seed)
        batch = batch_of_traffic(traffic)
        steady, stopped = reassembler_of(traffic), reassembler_of(traffic)
        for row in range(batch.num_rows):
            stopped = ssbroker.Reassembler.restore(stopped.checkpoint(), session_keys=session_keys_of(traffic))
            one = batch.slice(row, 1)
            assert results_of(stopped.push(one)) == results_of(steady.push(one)), (seed, row)
            assert stopped.pending_bytes == steady.pending_bytes, (seed, row)
        assert stopped.pending().equals(steady.pending()), seed


@pytest.mark.rule("P13")
def test_reassemble_inverts_fragment() -> None:
    """In any order and with any key."""
    random = Random(25)
    for seed in range(SEEDS):
        bodies = [random.randbytes(random.randrange(50)) for _ in range(random.randrange(1, 20))]
        messages = pa.record_batch(
            {
                "conversation_id": pa.array([bytes(16)] * len(bodies), pa.binary(16)),
                "is_initiator": pa.array([seed % 2 == 0] * len(bodies)),
                "message_sequence_number": pa.array(range(len(bodies)), pa.int64()),
                "message_body": pa.array(bodies, pa.binary()),
                "of_its_own": pa.array([str(number) for number in range(len(bodies))]),
            }
        )
        keys: SessionKeys | None = {UUID(int=0): random.randbytes(random.choice((16, 24, 32)))} if seed % 3 else None
        fragments = ssbroker.fragment(messages, max_fragment_bytes=random.randrange(1, 12), session_keys=keys)
        shuffled = fragments.take(random.sample(range(fragments.num_rows), fragments.num_rows))
        result = ssbroker.reassemble(shuffled, session_keys=keys)
        assert result.rejected.num_rows == result.pending.num_rows == 0
        assert rows_of(result.messages.select(messages.schema.names)) == messages.to_pylist()
