"""P13: large messages are sent one after another, small ones between them. Of a partly sent message, only the next fragments are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.protocol import large_messages
from ssbroker.protocol.storage import EndpointKey, MessageRange
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, B, Pair, established_pair, numbers, pair

MIB = 1 << 20
ALL = [bytes([letter]) * 16 for letter in b"123"]
SMALL = b"s" * 16


@pytest.fixture
def engines(engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Three dialogs with a message of 2 MiB each, of which memory holds one and the window half; one with a small message."""
    monkeypatch.setattr(large_messages, "LARGE_IN_FLIGHT_MAX", 3 * MIB)
    made = pair(engine, window_bytes=MIB)
    for conversation in ALL:
        made.a.send(made.begin(conversation=conversation, far_broker_instance=B), conversation * (MIB // 8))
    made.a.send(made.begin(conversation=SMALL, far_broker_instance=B), b"small")
    return made


def of(rows: list[dict[str, Any]]) -> set[bytes]:
    """Returns the conversation ids of rows."""
    return {row["conversation_id"] for row in rows}


def read_by(engines: Pair) -> list[int]:
    """Records the number of body bytes of each read by the initiator."""
    read: list[int] = []
    outgoing = engines.a.storage.outgoing

    def counted(wanted: Sequence[MessageRange]) -> pa.Table:
        table = outgoing(wanted)
        read.append(sum(len(body) for body in table["message_body"].to_pylist() if body is not None))
        return table

    parts = engines.a.storage.read_body_slices

    def counted_parts(key: EndpointKey, sequence: int, spans: Sequence[tuple[int, int]]) -> Sequence[bytes] | None:
        found = parts(key, sequence, spans)
        read.append(sum(len(part) for part in found or []))
        return found

    engines.a.storage.outgoing = counted  # type: ignore[method-assign]
    engines.a.storage.read_body_slices = counted_parts  # type: ignore[method-assign]
    return read


@pytest.mark.rule("P13")
def test_a_message_starts_only_when_memory_has_space_for_it(engines: Pair) -> None:
    read = read_by(engines)
    started: list[bytes] = []
    rows = engines.a.rows(0)
    assert of(rows) == {ALL[0], SMALL}
    assert sum(read) < 3 * MIB + 10
    for step in range(1, 40):
        now = step * SECOND // 2
        sent = [row["conversation_id"] for row in rows if row["conversation_id"] in ALL]
        for conversation in sent:
            if started[-1:] != [conversation]:
                started.append(conversation)
        if rows:
            engines.b.receive_and_commit(rows, now)
        if back := engines.b.rows(now):
            engines.a.receive_and_commit(back, now)
        rows = engines.a.rows(now)
    assert started == ALL
    assert [engines.b.queue((conversation, False)) for conversation in ALL] == [[each * (MIB // 8)] for each in ALL]
    assert engines.b.queue((SMALL, False)) == [b"small"]
    assert sum(read) < 2 * 3 * 2 * MIB + 10
    assert all(engines.a.waiting((conversation, True)) == [] for conversation in [*ALL, SMALL])
    assert engines.a.dialogs.next_timeout() is None


@pytest.mark.rule("P13", "P15")
@pytest.mark.parametrize(
    "options", [{"window_fragments": 8}, {"window_bytes": 256 << 10}, {"max_fragment_bytes": 4000}]
)
def test_only_the_fragments_that_an_acknowledgement_allows_are_read(
    engine: EngineFactory, options: dict[str, int]
) -> None:
    """Each acknowledgement of a message of nearly 1 MiB allows a few more fragments; following messages are not read for it."""
    engines = established_pair(engine, acknowledgement_wait=0, **options)
    bodies = [Random(number).randbytes(MIB - 100) for number in range(4)]
    read = read_by(engines)
    engines.a.send(engines.outgoing, bodies[0], b"small", *bodies[1:])
    in_transit = deque(engines.a.rows(20 * SECOND))
    while in_transit:
        engines.b.receive_and_commit([in_transit.popleft()], 20 * SECOND)
        engines.a.receive_and_commit(engines.b.rows(20 * SECOND), 20 * SECOND)
        in_transit += engines.a.rows(20 * SECOND)
    assert engines.b.queue(engines.incoming)[1:] == [bodies[0], b"small", *bodies[1:]]
    assert sum(read) < 2.2 * sum(map(len, bodies))


@pytest.mark.rule("P17")
def test_a_silent_peer_blocks_other_large_messages_for_ten_seconds(engines: Pair) -> None:
    rows = engines.a.rows(0)
    times = [half_seconds * SECOND // 2 for half_seconds in range(1, 30)]
    for now in times:
        later = engines.a.rows(now)
        if of(later) & {*ALL[1:]}:
            break
        rows += later
    assert 10 * SECOND <= now <= 11 * SECOND
    assert of(later) - {SMALL} <= {ALL[0], ALL[1]}
    assert of(rows) == {ALL[0], SMALL}


@pytest.mark.rule("P13")
def test_only_lost_fragments_are_read_again(engines: Pair) -> None:
    """Each is fragmented once, however many there are, and however often fragments are lost."""
    started = [row for step in range(60) for row in engines.a.rows(step * SECOND)]
    assert of(started) >= {*ALL}
    read = read_by(engines)
    sent = [row for step in range(60, 300) for row in engines.a.rows(step * SECOND)]
    assert of(sent) >= {*ALL}
    assert sum(read) <= sum(len(row["message_body"]) for row in sent)


@pytest.mark.rule("P13", "P17")
def test_all_lost_fragments_of_a_message_are_sent_again_together(engines: Pair) -> None:
    """Even if its fragments were sent at different times."""
    first = engines.a.rows(0)
    lost = {row["fragment_number"] for row in first if row["conversation_id"] == ALL[0]}
    part = [row for row in first if row["conversation_id"] == ALL[0] and row["fragment_number"] % 4 == 0]
    engines.b.receive_and_commit(part, SECOND)
    engines.a.receive_and_commit(engines.b.rows(2 * SECOND), 2 * SECOND)
    second = engines.a.rows(2 * SECOND)
    lost |= {row["fragment_number"] for row in second if row["conversation_id"] == ALL[0]}
    lost -= {row["fragment_number"] for row in part}
    again = engines.a.rows(20 * SECOND)
    assert {row["fragment_number"] for row in again if row["conversation_id"] == ALL[0]} == lost


@pytest.mark.rule("P14", "P13", "P26")
def test_small_messages_leave_the_peer_memory_for_a_large_one(engine: EngineFactory) -> None:
    """Three hundred small messages alone would fill the peer's memory."""
    engines = established_pair(
        engine, max_fragment_bytes=1000, max_pending_bytes=512 << 10, window_bytes=128_000, max_ahead_bytes=64_000
    )
    engines.a.send(engines.outgoing, bytes(200_000), *[bytes(1000)] * 300)
    engines.exchange(20 * SECOND, times=100)
    assert engines.a.waiting(engines.outgoing) == []
    assert len(engines.b.queue(engines.incoming)) == 302


@pytest.mark.rule("P14", "P17")
def test_messages_behind_an_incomplete_one_leave_memory_for_it(engine: EngineFactory) -> None:
    """Until its fragments are sent again, the other messages could fill the memory."""
    engines = established_pair(
        engine, max_fragment_bytes=1000, max_pending_bytes=256 << 10, window_bytes=64_000, max_ahead_bytes=48_000
    )
    engines.a.send(engines.outgoing, bytes(8000), *[bytes(1000)] * 400)
    lost = [[(1, fragment)] for fragment in range(6)]
    for step in range(400):
        now = 20 * SECOND + step * SECOND // 10
        rows = [row for row in engines.a.rows(now) if step > 30 or numbers([row]) not in lost]
        engines.b.receive_and_commit(rows, now)
        engines.a.receive_and_commit(engines.b.rows(now), now)
    engines.exchange(70 * SECOND, times=60)
    assert engines.a.waiting(engines.outgoing) == []
    assert len(engines.b.queue(engines.incoming)) == 402


def test_waiting_dialogs_are_tried_again(engines: Pair) -> None:
    engines.a.rows(0)
    assert engines.a.dialogs.next_timeout() == SECOND // 4


def test_an_ended_dialog_stops_waiting(engines: Pair) -> None:
    engines.a.rows(0)
    for conversation in ALL[:2]:
        del engines.a.storage.accounts[conversation, True]
        engines.a.dialogs.forget([(conversation, True)])
    assert of(engines.a.rows(SECOND)) & {*ALL} == {ALL[2]}


@pytest.mark.rule("P17")
def test_a_message_larger_than_the_memory_starts_despite_other_traffic(
    engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two other messages is always in transit. After ten seconds neither starts before the waiting one."""
    monkeypatch.setattr(large_messages, "LARGE_IN_FLIGHT_MAX", 5 * MIB)
    engines = pair(engine, window_bytes=MIB)
    lanes = [engines.begin(conversation=conversation, far_broker_instance=B) for conversation in ALL[:2]]
    giant = engines.begin(conversation=b"g" * 16, far_broker_instance=B)
    engines.a.send(lanes[0], *[bytes(2 * MIB)] * 40)
    engines.a.rows(0)
    engines.a.send(lanes[1], *[bytes(2 * MIB)] * 40)
    engines.a.send(giant, bytes(6 * MIB))
    for step in range(1, 60):
        now = step * SECOND // 2
        rows = engines.a.rows(now)
        if (b"g" * 16) in of(rows):
            break
        engines.b.receive_and_commit(rows, now)
        if back := engines.b.rows(now):
            engines.a.receive_and_commit(back, now)
    assert 10 * SECOND <= now <= 13 * SECOND
    assert len(engines.a.waiting(lanes[0])) > 1


@pytest.mark.rule("P13")
def test_the_next_large_message_starts_when_the_previous_one_is_sent(
    engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the waiting dialogs are checked again."""
    monkeypatch.setattr(large_messages, "LARGE_IN_FLIGHT_MAX", 1)
    engines = pair(engine, window_bytes=8 << 20)
    conversations = [bytes([number]) * 16 for number in range(3)]
    for conversation in conversations:
        engines.a.send(engines.begin(conversation=conversation, far_broker_instance=B), bytes(2 << 20))
    rows = engines.a.rows(0)
    assert [row["conversation_id"] for row in rows] == [each for each in conversations for _ in range(32)]
    assert numbers(rows) == [(0, number) for number in range(32)] * 3
