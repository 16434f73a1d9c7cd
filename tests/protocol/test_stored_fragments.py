"""P14, P26: fragments of incomplete messages are in storage, and are read only once the message is complete."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.protocol.arrow_columns import column_values
from ssbroker.protocol.inbound_direction import InboundDirection, OpenedFragment
from ssbroker.testing.memory_storage import MemoryDialogStorage
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, B, Pair, Side, established_pair, pair
from tests.protocol.test_receiver import with_new_header_digest

KIB = 1 << 10


def ten_messages(engines: Pair) -> tuple[dict[bytes, bytes], list[list[list[dict[str, object]]]]]:
    """Ten messages of 64 KiB, and their fragments: eight of each message at a time, by message."""
    bodies = {bytes([number]) * 16: bytes([number]) * (64 * KIB) for number in range(10)}
    for conversation, body in bodies.items():
        engines.a.send(engines.begin(conversation=conversation, far_broker_instance=B), body)
    rows = engines.a.rows()
    assert len(rows) == 640
    by_message = [[row for row in rows if row["conversation_id"] == each] for each in bodies]
    return bodies, [[fragments[first : first + 8] for fragments in by_message] for first in range(0, 64, 8)]


def read_sizes(patch: pytest.MonkeyPatch, storage: MemoryDialogStorage) -> list[int]:
    """Records the number of bytes of each read."""
    sizes: list[int] = []
    stored = storage.read_stored

    def read(*given: Any, **options: Any) -> pa.Table:
        rows = stored(*given, **options)
        sizes.append(sum(map(len, column_values(rows["message_body"]))))
        return rows

    patch.setattr(storage, "read_stored", read)
    return sizes


@pytest.mark.rule("P26")
@pytest.mark.parametrize("together", [1, 5])
def test_interleaved_messages_larger_than_memory_are_completed(
    engine: EngineFactory, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Memory holds a third of them, and no message is completed before the others; none is rejected or sent again.

    Each is read once, when its last fragment arrives.
    """
    engines = pair(engine, max_fragment_bytes=KIB, max_pending_bytes=400 * KIB)
    read = read_sizes(monkeypatch, engines.b.storage)
    bodies, rounds = ten_messages(engines)
    for all_fragments in rounds:
        assert read == []
        for start in range(0, 10, together):
            engines.b.receive_and_commit(
                [row for fragments in all_fragments[start : start + together] for row in fragments]
            )
    assert engines.b.rejection_events == []
    assert sum(read) <= 10 * 57 * KIB
    assert {conversation: engines.b.queue((conversation, False)) for conversation in bodies} == {
        conversation: [body] for conversation, body in bodies.items()
    }
    assert all(engines.b.storage.accounts[conversation, False].stored == {} for conversation in bodies)


@pytest.mark.rule("P26")
def test_a_batch_completes_no_more_messages_than_fit_into_memory(engine: EngineFactory) -> None:
    """The last fragments of ten messages arrive together: those beyond the limit are rejected, and accepted later."""
    engines = pair(engine, max_fragment_bytes=KIB, max_pending_bytes=400 * KIB)
    bodies, rounds = ten_messages(engines)
    for all_fragments in rounds:
        engines.b.receive_and_commit([row for fragments in all_fragments for row in fragments])
    whole = [conversation for conversation in bodies if engines.b.queue((conversation, False))]
    assert 5 <= len(whole) < 10
    (text,) = {event.text for event in engines.b.rejection_events}
    assert text.endswith("or too many bytes are waiting (max_pending_bytes)")
    assert len(engines.b.rejection_events) == 8 * (10 - len(whole))
    engines.b.receive_and_commit([row for fragments in rounds[-1] for row in fragments])
    assert [engines.b.queue((conversation, False)) for conversation in bodies] == [[body] for body in bodies.values()]


@pytest.mark.rule("P26")
def test_a_message_nearly_as_large_as_the_memory_is_completed_after_a_restart(engine: EngineFactory) -> None:
    """Also the first message of its dialog."""
    engines = pair(engine, max_fragment_bytes=KIB, max_pending_bytes=100 * KIB)
    engines.a.send(engines.outgoing, bytes(64 * KIB))
    rows = engines.a.rows()
    for first in range(0, 64, 8):
        engines.restart(engines.b)
        engines.b.receive_and_commit(rows[first : first + 8])
    assert engines.b.rejection_events == []
    assert engines.b.queue(engines.incoming) == [bytes(64 * KIB)]


@pytest.mark.rule("P26")
def test_only_arrived_fragments_are_reported_if_memory_is_full(engine: EngineFactory) -> None:
    """Not the stored fragments."""
    engines = established_pair(engine, max_fragment_bytes=KIB, max_pending_bytes=64 * KIB, fragments_per_turn=100)
    engines.a.send(engines.outgoing, b"next", bytes(64 * KIB))
    first, *rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit(rows[:40])
    assert engines.b.rejection_events == []
    for _ in range(2):
        engines.restart(engines.b)
        engines.b.receive_and_commit(rows[60:])
    assert [event.fragment_number for event in engines.b.rejection_events] == [62, 63, 62, 63]
    engines.b.receive_and_commit([first, *rows[40:]])
    assert engines.b.queue(engines.incoming)[1:] == [b"next", bytes(64 * KIB)]


@pytest.mark.rule("P26")
@pytest.mark.parametrize("size", [64 * KIB, 64 * KIB + 1])
def test_the_next_message_may_have_the_maximum_size(engine: EngineFactory, size: int) -> None:
    """Also while early messages have taken all the memory of the dialog; a larger message is never received."""
    engines = established_pair(
        engine,
        max_fragment_bytes=4 * KIB,
        max_pending_bytes=16 * KIB,
        max_message_bytes=64 * KIB,
        fragments_per_turn=100,
    )
    engines.a.send(engines.outgoing, bytes(size), bytes(KIB * 20))
    rows = engines.a.rows(20 * SECOND)
    count = -(-size // (4 * KIB))
    engines.b.receive_and_commit(rows[count:])
    assert engines.b.rejection_events
    for start in range(0, count, 7):
        engines.restart(engines.b)
        engines.b.receive_and_commit(rows[start : min(start + 7, count)])
    assert engines.b.queue(engines.incoming)[1:] == ([bytes(size)] if size == 64 * KIB else [])
    too_large = "the message is larger than this instance accepts (max_message_bytes)"
    assert (too_large in [event.text for event in engines.b.rejection_events]) == (size > 64 * KIB)


@pytest.mark.rule("P26")
def test_the_number_of_fragments_of_the_next_message_is_limited() -> None:
    """They take memory even if they are empty."""
    incoming = InboundDirection((b"one conversation", False), 0)
    for number in range(0, 40, 2):
        part = OpenedFragment(incoming, 0, number, 1 << 30, b"", None, None, ("DEFAULT", None, False, False))
        fits = incoming.has_room(part, max_bytes=16 * 512, max_message_bytes=64 * KIB)
        assert fits == (number < 32)
        if fits:
            incoming.add((0, number), count=part.count, digest=None, size=0)


@pytest.mark.rule("P14", "P26")
def test_stored_fragments_are_read_in_parts(engine: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """About as much per read as arrives in a batch, also of the messages that wait for it."""
    monkeypatch.setattr("ssbroker.protocol.batch_reassembly._READ_BYTES", 10 * KIB)
    engines = established_pair(engine, max_fragment_bytes=KIB)
    bodies = [bytes([number]) * 3000 for number in range(20)]
    engines.a.send(engines.outgoing, *bodies)
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit(rows[1:], 20 * SECOND)
    read = read_sizes(monkeypatch, engines.b.storage)
    engines.b.receive_and_commit(rows[:1], 20 * SECOND)
    assert engines.b.queue(engines.incoming)[1:] == bodies
    assert max(read) <= 11 * KIB
    assert sum(read) == 20 * 3000 - KIB


@pytest.mark.rule("P26")
def test_dialogs_that_use_too_much_memory_are_evicted(engine: EngineFactory) -> None:
    """Dialogs that received nothing for the longest time are evicted first, and loaded again on demand."""
    engines = pair(engine, max_fragment_bytes=4, max_pending_bytes=128 * KIB)
    names = [bytes([number]) * 16 for number in range(8)]
    sent: dict[bytes, list[dict[str, Any]]] = {}
    for name in names:
        engines.a.send(engines.begin(conversation=name, far_broker_instance=B), bytes(80))
    for row in engines.a.rows():
        sent.setdefault(row["conversation_id"], []).append(row)
    loaded: list[int] = []
    for name in names:
        engines.b.receive_and_commit(sent[name][::2])
        residents = engines.b.dialogs._cache.loaded
        loaded.append(sum(residents[each, False].incoming is not None for each in names if (each, False) in residents))
    assert loaded == [1, 2, 2, 2, 2, 2, 2, 2]
    for name in names:
        engines.b.receive_and_commit(sent[name])
    assert [engines.b.queue((name, False)) for name in names] == [[bytes(80)]] * 8
    assert engines.b.rejection_events == []


@pytest.mark.rule("P26", "P14")
@pytest.mark.parametrize("field", ["fragment_count", "message_signature"])
def test_only_a_fragment_that_contradicts_stored_ones_is_rejected(engine: EngineFactory, field: str) -> None:
    """Also after a restart."""
    engines = established_pair(engine, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, b"in three one")
    rows = engines.a.rows(20 * SECOND)
    other = with_new_header_digest({**rows[2], field: {"fragment_count": 4, "message_signature": bytes(16)}[field]})
    engines.b.receive_and_commit(rows[:1], 20 * SECOND)
    for _ in range(2):
        engines.b.receive_and_commit([other], 20 * SECOND)
        engines.restart(engines.b)
    text = "the fragment contradicts an earlier fragment of its message"
    assert [event.text for event in engines.b.rejection_events] == [text] * 2
    engines.b.receive_and_commit(rows[1:], 20 * SECOND)
    assert engines.b.queue(engines.incoming) == [b"first", b"in three one"]


@pytest.mark.rule("P23", "P16")
def test_a_message_with_altered_stored_fragments_is_sent_again(engine: EngineFactory) -> None:
    """The conversation continues, and nothing is lost."""
    engines = established_pair(engine, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, b"in three one")
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit(rows[:2], 20 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
    del engines.b.storage.accounts[engines.incoming].stored[1, 0]
    engines.b.receive_and_commit(rows[2:], 22 * SECOND)
    assert engines.b.storage.accounts[engines.incoming].stored == {}
    engines.exchange(30 * SECOND)
    assert engines.b.queue(engines.incoming) == [b"first", b"in three one"]
    assert engines.a.storage.waiting() == []


def calls(side: Side, rows: list[dict[str, Any]]) -> int:
    """Returns the number of function calls for a batch."""
    counted = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        side.receive_and_commit(rows, 21 * SECOND)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.rule("P15", "P18")
def test_the_cost_of_a_duplicate_is_independent_of_stored_fragments(engine: EngineFactory) -> None:
    """Nor that of another early message; acknowledged fragments are kept as ranges."""
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, *[b"%d" % number for number in range(1000)])
    rows = engines.a.rows(20 * SECOND)
    costs: list[tuple[int, int]] = []
    for first, last in ((1, 10), (10, 990)):
        engines.b.receive_and_commit(rows[first:last], 20 * SECOND)
        costs.append((calls(engines.b, rows[last - 1 : last]), calls(engines.b, rows[last + 1 : last + 2])))
        engines.b.receive_and_commit(rows[last : last + 2], 21 * SECOND)
    assert costs[0] == costs[1]
