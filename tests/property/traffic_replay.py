"""Replays traffic to a reassembler, step by step, and compares it with the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any
from uuid import UUID

import pyarrow as pa

import ssbroker
from tests.oracle.reassembly import Fragment, Limits, Oracle, Pushed
from tests.worlds.fragment_tables import batch_of_traffic, fragment_batch, rows_of, session_keys_of
from tests.worlds.fragments import Traffic

READABLE = 40
"""Maximum number of fragments to show in a failure."""


def reassembler_for(limits: Limits, *, in_order: bool = True, session_keys: Any = None) -> ssbroker.Reassembler:
    """Creates a reassembler with exactly these limits."""
    return ssbroker.Reassembler(
        max_pending_bytes=limits.max_pending_bytes,
        max_pending_messages=limits.max_pending_messages,
        max_message_bytes=limits.max_message_bytes,
        max_fragments_per_message=limits.max_fragments_per_message,
        max_sequence_distance=limits.max_sequence_distance,
        in_order=in_order,
        session_keys=session_keys,
    )


def results_of(result: ssbroker.Reassembly) -> Pushed:
    """Converts a result to that of the oracle."""
    return Pushed(rows_of(result.messages), rows_of(result.rejected), rows_of(result.acknowledgements))


def charge_of(extra: Mapping[str, Any]) -> int:
    """P26: returns what a reassembler charges for these extra columns."""
    return _charge_of(extra["note"], extra["priority"])


@cache
def _charge_of(note: str | None, priority: int | None) -> int:
    first = Fragment(
        conversation_id=UUID(int=1),
        is_initiator=True,
        sequence=0,
        number=0,
        count=2,
        body=b"",
        extra={"note": note, "priority": priority},
    )
    reassembler = reassembler_for(Limits())
    reassembler.push(fragment_batch([first], has_extra=True))
    oracle = Oracle()
    oracle.push([first])
    return reassembler.pending_bytes - oracle.pending_bytes


def check_traffic(traffic: Traffic, *, text_ids: bool = False) -> None:
    """Compares every column of every result, the pending messages and the memory charge, after each step."""
    traffic = traffic.charged(charge_of)
    batch = batch_of_traffic(traffic, text_ids=text_ids)
    keys = session_keys_of(traffic)
    reassembler = reassembler_for(traffic.limits, in_order=traffic.in_order, session_keys=keys)
    oracle = Oracle(traffic.limits, in_order=traffic.in_order)
    for start, step, fragments in traffic.pushes():
        actual = results_of(reassembler.push(batch.slice(start, step.rows)))
        expected = oracle.push(fragments)
        for name in ("rejected", "messages", "acknowledgements"):
            assert_same(name, getattr(actual, name), getattr(expected, name), traffic, start)
        if step.checkpoint:
            reassembler = ssbroker.Reassembler.restore(reassembler.checkpoint(), session_keys=keys)
        if step.forget is not None:
            conversation, is_initiator, sequence = step.forget
            dropped = reassembler.forget(conversation, is_initiator=is_initiator, message_sequence_number=sequence)
            expected_drop = oracle.forget(conversation.bytes, is_initiator=is_initiator, sequence=sequence)
            assert_same("forgotten", [dropped], [expected_drop], traffic, start)
        assert_same("pending", rows_of(reassembler.pending()), oracle.pending(), traffic, start)
        assert_same("bytes", [reassembler.pending_bytes], [oracle.pending_bytes], traffic, start)
        assert_same("count", [reassembler.pending_messages], [oracle.pending_messages], traffic, start)


def assert_same(name: str, got: Sequence[Any], expected: Sequence[Any], traffic: Traffic, start: int) -> None:
    """Reports the first row that differs, with the traffic if it is short enough."""
    if got == expected:
        return
    for number, (one, other) in enumerate(zip_longest(got, expected)):
        if one != other:
            seen = traffic if len(traffic.fragments) <= READABLE else f"{len(traffic.fragments)} fragments"
            raise AssertionError(
                f"{name}, row {number} of the push at {start}\nreassembler: {one}\noracle: {other}\n{seen}"
            )


def in_one_chunked_table(batch: pa.RecordBatch, cuts: list[int]) -> pa.Table:
    """Returns the same rows in chunks that end at the cuts."""
    ends = [*cuts, batch.num_rows]
    starts = [0, *cuts]
    return pa.Table.from_batches([batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True)])
