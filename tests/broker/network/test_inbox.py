"""P13, P14, P16: the fragments of a large message wait in memory until it is complete, and no longer than its sender can wait."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.broker.network import inbox as inbox_module
from ssbroker.broker.network.inbox import HELD_PAUSE, HELD_TIME, Inbox
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.wire.frames import WIRE

KIB = 1 << 10
PART = bytes(64 * KIB)
PEER = Peer(b"peer".ljust(16), "peer", None, "TCP://peer:4022", uuid.UUID(int=1), True)
OTHER_PEER = Peer(b"peer".ljust(16), "peer", None, "TCP://peer:4022", uuid.UUID(int=2), True)
_BY_TYPE: dict[Any, Any] = {pa.string(): "Bank", pa.bool_(): True, pa.binary(): b"", pa.binary(16): bytes(16)}
ROW = {field.name: _BY_TYPE.get(field.type, 1) for field in WIRE if not field.nullable}

Place = tuple[int, int, int, int]
"""Conversation, message, fragment, fragment count."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


class HeldInbox(Inbox):
    """An inbox with a clock that the test sets."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(pause=lambda: None, resume=lambda: None, clock=self.clock, holds_large_messages=True)

    def taken(self) -> list[list[Place]]:
        """Takes everything; returns the places of each batch."""
        found: list[list[Place]] = []
        while not self.is_empty:
            found += [places(rows) for _, rows in self.take()]
        return found

    def after(self, microseconds: int) -> list[list[Place]]:
        """Advances the clock and releases what is due; takes everything."""
        self.clock.now += microseconds
        self.release_due(0)
        return self.taken()


def row(conversation: int, message: int, fragment: int = 0, count: int = 1, **changes: Any) -> dict[str, Any]:
    place = {"message_sequence_number": message, "fragment_number": fragment, "fragment_count": count}
    ids = {"conversation_id": conversation.to_bytes(16), "is_sequenced": True, "to_broker_instance": bytes(16)}
    return {**ROW, **ids, **place, "message_body": PART if count > 1 else b"small", **changes}


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=WIRE)


def fragments(conversation: int, message: int, numbers: Sequence[int], count: int, **changes: Any) -> pa.Table:
    return table(row(conversation, message, number, count, **changes) for number in numbers)


def places(rows: pa.Table) -> list[Place]:
    columns = ("message_sequence_number", "fragment_number", "fragment_count")
    conversations = [int.from_bytes(each or b"") for each in rows["conversation_id"].to_pylist()]
    return list(zip(conversations, *(rows[name].to_pylist() for name in columns), strict=True))


@pytest.fixture
def inbox() -> HeldInbox:
    return HeldInbox()


def whole(conversation: int, message: int, count: int) -> list[Place]:
    return [(conversation, message, number, count) for number in range(count)]


@pytest.mark.rule("P13")
def test_a_message_is_taken_in_one_batch_once_it_is_complete(inbox: HeldInbox) -> None:
    """Also if its size exceeds what one turn processes otherwise, and if its fragments arrive in any order."""
    assert inbox.put(PEER, fragments(1, 5, range(100), 256))
    assert not inbox.put(PEER, fragments(1, 5, range(200, 256), 256))
    assert inbox.is_empty
    assert inbox.is_holding
    assert inbox.after(HELD_PAUSE - 1) == []
    assert inbox.put(PEER, fragments(1, 5, range(100, 200), 256))
    (taken,) = [places(rows) for _, rows in inbox.take()]
    assert sorted(taken) == whole(1, 5, 256)
    assert inbox.release_due(0) is None
    assert not inbox.is_holding


@pytest.mark.rule("P13")
def test_other_dialogs_pass_and_the_same_dialog_keeps_its_order(inbox: HeldInbox) -> None:
    inbox.put(PEER, table([row(1, 5, 0, 2), row(2, 0), row(1, 6), row(2, 1)]))
    assert inbox.taken() == [[(2, 0, 0, 1)], [(2, 1, 0, 1)]]
    inbox.put(PEER, table([row(1, 5, 1, 2), row(1, 7)]))
    assert inbox.taken() == [[(1, 5, 0, 2), (1, 6, 0, 1), (1, 5, 1, 2)], [(1, 7, 0, 1)]]


@pytest.mark.rule("P15")
def test_acknowledgements_pass(inbox: HeldInbox) -> None:
    inbox.put(PEER, fragments(1, 5, [0], 2))
    inbox.put(PEER, table([row(1, 0, is_sequenced=False)]))
    assert inbox.taken() == [[(1, 0, 0, 1)]]


@pytest.mark.rule("P16")
def test_fragments_are_released_once_nothing_else_arrives(inbox: HeldInbox) -> None:
    """The sender may wait for their acknowledgement. The rest of the message passes; the next message waits again."""
    inbox.put(PEER, fragments(1, 5, [0, 1], 4))
    assert inbox.release_due(7) == 7 + HELD_PAUSE
    assert inbox.after(HELD_PAUSE - 1) == []
    assert inbox.after(1) == [whole(1, 5, 4)[:2]]
    assert inbox.put(PEER, fragments(1, 5, [2], 4))
    assert inbox.taken() == [[(1, 5, 2, 4)]]
    inbox.put(PEER, table([row(1, 5, 3, 4), row(1, 6, 0, 2)]))
    assert inbox.taken() == [[(1, 5, 3, 4)]]
    inbox.put(PEER, fragments(1, 6, [1], 2))
    assert inbox.taken() == [whole(1, 6, 2)]


@pytest.mark.rule("P17")
def test_fragments_that_arrive_slowly_are_released_before_the_sender_repeats_them(inbox: HeldInbox) -> None:
    released: list[Place] = []
    waited = number = 0
    while not released:
        inbox.put(PEER, fragments(1, 5, [number], 200))
        number += 1
        waited += HELD_PAUSE - 1
        released += [place for batch in inbox.after(HELD_PAUSE - 1) for place in batch]
    assert HELD_TIME <= waited < HELD_TIME + HELD_PAUSE
    assert released == whole(1, 5, 200)[:number]


@pytest.mark.rule("R8")
def test_first_messages_do_not_wait(inbox: HeldInbox) -> None:
    """Their sender waits for an acknowledgement that names the broker instance."""
    inbox.put(PEER, fragments(1, 0, [0], 2, to_broker_instance=None))
    assert inbox.taken() == [[(1, 0, 0, 2)]]


@pytest.mark.rule("P26")
def test_messages_longer_than_the_memory_do_not_wait(inbox: HeldInbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "HELD_BYTES_MAX", 4 * len(PART))
    inbox.put(PEER, fragments(1, 5, [0], 5))
    assert inbox.taken() == [[(1, 5, 0, 5)]]
    inbox.put(PEER, fragments(1, 6, [0], 4))
    assert inbox.taken() == []


@pytest.mark.rule("P26")
@pytest.mark.parametrize("counts", [{1: 3, 2: 3}, {1: 3, 2: 2**31 - 1}])
def test_memory_is_bounded_by_the_bytes_that_arrive(
    inbox: HeldInbox, monkeypatch: pytest.MonkeyPatch, counts: dict[int, int]
) -> None:
    """The longest waiting message is released, whatever the others declare."""
    monkeypatch.setattr(inbox_module, "HELD_BYTES_MAX", 3 * len(PART) + 10_000)
    inbox.put(PEER, fragments(1, 5, [0, 1], counts[1]))
    assert inbox.taken() == []
    inbox.put(PEER, fragments(2, 5, [0, 1], counts[2], message_body=PART if counts[2] == 3 else b""))
    assert inbox.taken() == ([whole(1, 5, 3)[:2]] if counts[2] == 3 else [[(2, 5, 0, counts[2]), (2, 5, 1, counts[2])]])


def test_duplicates_complete_nothing(inbox: HeldInbox) -> None:
    """A fragment that is sent again is not a missing one; nor is one of the same message on another connection."""
    inbox.put(PEER, fragments(1, 5, [0, 0, 0], 3))
    inbox.put(OTHER_PEER, fragments(1, 5, [1, 2], 3))
    assert inbox.taken() == []
    assert [sorted(batch) for batch in inbox.after(HELD_PAUSE)] == [[(1, 5, 0, 3)] * 3, whole(1, 5, 3)[1:]]


def test_everything_is_released_when_the_instance_stops(inbox: HeldInbox) -> None:
    inbox.put(PEER, fragments(1, 5, [0], 3))
    inbox.release_all()
    assert inbox.taken() == [[(1, 5, 0, 3)]]


@pytest.mark.rule("P11")
@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_taken_once_and_in_the_order_of_its_dialog(
    inbox: HeldInbox, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever is interleaved, repeated, lost or late."""
    rng = Random(seed)
    monkeypatch.setattr(inbox_module, "HELD_BYTES_MAX", rng.choice([4, 10, 1000]) * len(PART))
    sent: list[Place] = []
    taken: list[Place] = []
    positions = dict.fromkeys(range(1, 5), (0, 0))
    counts = {(each, number): rng.choice([1, 1, 2, 5, 12]) for each in positions for number in range(60)}
    for _ in range(60):
        rows = []
        for _ in range(rng.randint(1, 12)):
            conversation = rng.choice(list(positions))
            message, fragment = positions[conversation]
            count = counts[conversation, message]
            if rng.random() < 0.95:
                rows += [(conversation, message, fragment, count)] * rng.choice([1, 1, 1, 2])
            positions[conversation] = (message, fragment + 1) if fragment + 1 < count else (message + 1, 0)
        inbox.put(PEER, table(row(*each) for each in rows))
        sent += rows
        inbox.clock.now += rng.choice([0, 0, HELD_PAUSE // 3, HELD_PAUSE])
        inbox.release_due(0)
        if rng.random() < 0.7:
            taken += [place for batch in inbox.taken() for place in batch]
    inbox.release_all()
    taken += [place for batch in inbox.taken() for place in batch]
    for conversation in positions:
        assert [each for each in taken if each[0] == conversation] == [each for each in sent if each[0] == conversation]
