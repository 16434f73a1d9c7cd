"""P13, P17, P31, P32, R8: which rows are sent, when, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.storage import MessageRange
from ssbroker.protocol.transmission import PACKED_MAX
from ssbroker.security.secured_direction import SALT_BYTES
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, A, B, Pair, Row, established_pair, numbers, pair


def evict(engines: Pair, now: int) -> int:
    """Leaves the initiator without answers until its dialog is evicted; returns the time of the eviction."""
    while not engines.a.dialogs.flush(now=now):
        now += 11 * SECOND
        engines.a.rows(now)
    return now


@pytest.mark.rule("P13")
def test_a_large_message_is_sent_in_fragments(engine: EngineFactory) -> None:
    """Parts of the message in the transmission queue."""
    engines = established_pair(engine, max_fragment_bytes=10)
    engines.a.send(engines.outgoing, b"0123456789abcdefghijXYZ")
    rows = engines.a.rows(20 * SECOND)
    assert [row["message_body"] for row in rows] == [b"0123456789", b"abcdefghij", b"XYZ"]
    assert [row["fragment_count"] for row in rows] == [3, 3, 3]
    engines.b.receive_and_commit(rows, 20 * SECOND)
    assert engines.b.queue(engines.incoming)[-1] == b"0123456789abcdefghijXYZ"


@pytest.mark.rule("P13")
def test_only_lost_fragments_are_sent_again(engine: EngineFactory) -> None:
    """Fragments of large messages, complete messages and gaps: nothing that arrived is sent again."""
    engines = established_pair(engine, max_fragment_bytes=10)
    engines.a.send(engines.outgoing, b"a" * 45, b"small", b"b" * 25, b"last")
    rows = engines.a.rows(20 * SECOND)
    lost = [(1, 1), (1, 3), (3, 0)]
    engines.b.receive_and_commit(
        [row for row in rows if numbers([row]) != [] and numbers([row])[0] not in lost], 20 * SECOND
    )
    engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
    again = engines.a.rows(30 * SECOND)
    assert sorted(numbers(again)) == lost
    engines.b.receive_and_commit(again, 30 * SECOND)
    assert engines.b.queue(engines.incoming)[1:] == [b"a" * 45, b"small", b"b" * 25, b"last"]


@pytest.mark.rule("P13")
def test_small_messages_are_sent_between_the_fragments_of_a_large_one(engine: EngineFactory) -> None:
    """Within a dialog."""
    engines = established_pair(engine, max_fragment_bytes=10)
    engines.a.send(engines.outgoing, b"a" * 40, b"small", b"tiny")
    assert numbers(engines.a.rows(20 * SECOND)) == [(1, 0), (2, 0), (1, 1), (3, 0), (1, 2), (1, 3)]


@pytest.mark.rule("P13")
def test_dialogs_take_turns(engine: EngineFactory) -> None:
    """Between dialogs: they take turns."""
    engines = established_pair(engine, max_fragment_bytes=10, fragments_per_turn=4)
    other = engines.begin(conversation=b"the second one..", far_broker_instance=B)
    engines.a.send(engines.outgoing, b"a" * 200)
    engines.a.send(other, b"small")
    table = engines.a.dialogs.data_to_send(now=20 * SECOND, max_rows=6)
    assert table is not None
    assert other[0] in table["conversation_id"].to_pylist()
    assert table.num_rows < 20


@pytest.mark.rule("P17")
def test_unacknowledged_rows_are_sent_again_after_doubling_waits(engine: EngineFactory) -> None:
    """4, 8, 16, 32, 64, 64 s, each with a jitter of at most an eighth."""
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"nobody hears this")
    now = 100 * SECOND
    assert len(engines.a.rows(now)) == 1
    waits: list[float] = []
    for _ in range(8):
        due = engines.a.dialogs.next_timeout()
        assert due is not None
        assert engines.a.rows(due - 1) == []
        assert numbers(engines.a.rows(due)) == [(1, 0)]
        waits.append((due - now) / SECOND)
        now = due
    for wait, expected in zip(waits, [4, 8, 16, 32, 64, 64, 64, 64], strict=True):
        assert 0.875 * expected <= wait <= 1.125 * expected


@pytest.mark.rule("P17")
def test_rows_sent_at_different_times_have_separate_retries(engine: EngineFactory) -> None:
    """Each at its own time, even if they were sent again together before, and whichever of them arrives then."""
    for arrives in (0, 1):
        engines = established_pair(engine)
        engines.a.send(engines.outgoing, b"one")
        engines.a.rows(100 * SECOND)
        engines.a.send(engines.outgoing, b"two")
        engines.a.rows(101 * SECOND)
        again = engines.a.rows(110 * SECOND)  # the waits of both have passed
        assert numbers(again) == [(1, 0), (2, 0)]
        engines.b.receive_and_commit([again[arrives]], 110 * SECOND)
        engines.a.receive_and_commit(engines.b.rows(112 * SECOND), 112 * SECOND)
        rows = engines.a.rows(112 * SECOND)
        while not rows:
            due = engines.a.dialogs.next_timeout()
            assert due is not None
            assert due < 120 * SECOND
            rows = engines.a.rows(due)
        assert numbers(rows) == [(2 - arrives, 0)]


@pytest.mark.rule("P17")
def test_waits_have_jitter(engine: EngineFactory) -> None:
    """Without jitter, an outage that recurs in step with the waits starves a dialog."""
    engines = established_pair(engine)
    dues = set()
    for number in range(10):
        engines.a.send(engines.outgoing, b"%d" % number)
        engines.a.rows(100 * SECOND)
        due = engines.a.dialogs.next_timeout()
        assert due is not None
        dues.add(due)
        engines.exchange(100 * SECOND)
    assert len(dues) == 10


@pytest.mark.rule("P17")
def test_a_clock_set_back_delays_nothing(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"once more")
    engines.a.rows(7200 * SECOND)
    assert engines.a.rows(3600 * SECOND) == []
    assert numbers(engines.a.rows(3605 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P16")
def test_the_sender_keeps_a_message_until_it_is_acknowledged(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"kept")
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND), 20 * SECOND)
    assert engines.a.waiting(engines.outgoing) == [1]
    engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
    assert engines.a.waiting(engines.outgoing) == []
    assert engines.a.rows(60 * SECOND) == []


@pytest.mark.rule("R8")
def test_only_the_first_message_is_sent_until_the_target_has_answered(engine: EngineFactory) -> None:
    """It is not known yet which copy of the service will receive it, and all messages must reach the same one."""
    engines = pair(engine)
    engines.a.send(engines.outgoing, b"one", b"two", b"three")
    rows = engines.a.rows()
    assert numbers(rows) == [(0, 0)]
    assert rows[0]["to_broker_instance"] is None


@pytest.mark.rule("R8")
def test_later_messages_carry_the_broker_id_of_the_first_acknowledgement(engine: EngineFactory) -> None:
    """It is durable, so it is used after a restart too."""
    engines = pair(engine)
    engines.a.send(engines.outgoing, b"one", b"two", b"three")
    engines.b.receive_and_commit(engines.a.rows())
    engines.a.receive_and_commit(engines.b.rows())  # immediately: a sender without a broker id waits for it
    rows = engines.a.rows()
    assert numbers(rows) == [(1, 0), (2, 0)]
    assert {row["to_broker_instance"] for row in rows} == {B}
    engines.restart(engines.a)
    assert {row["to_broker_instance"] for row in engines.a.rows(SECOND)} == {B}
    assert engines.a.storage.accounts[engines.outgoing].endpoint.far_broker_instance == B


@pytest.mark.rule("R8")
def test_the_rest_of_the_first_message_carries_the_broker_id_too(engine: EngineFactory) -> None:
    """It reaches the same database, with another signature, because the header has changed."""
    engines = pair(engine, dialog={"session_key": bytes(32)}, max_fragment_bytes=10)
    engines.a.send(engines.outgoing, b"a" * 25)
    first = engines.a.rows()
    engines.b.receive_and_commit(first[:1])
    engines.a.receive_and_commit(engines.b.rows())
    again = engines.a.rows(6 * SECOND)
    assert [(row["to_broker_instance"], *numbers([row])) for row in again] == [(B, (0, 1)), (B, (0, 2))]
    part = slice(SALT_BYTES, SALT_BYTES + 10)
    assert again[0]["message_body"][part] != first[1]["message_body"][part]
    engines.b.receive_and_commit(again, 6 * SECOND)
    assert engines.b.queue(engines.incoming) == [b"a" * 25]


def test_no_more_than_the_window_is_unacknowledged(engine: EngineFactory) -> None:
    """Counted in fragments."""
    engines = established_pair(engine, window_fragments=8, max_fragment_bytes=10)
    engines.a.send(engines.outgoing, b"a" * 35, *[b"small"] * 30)
    rows = engines.a.rows(20 * SECOND)
    assert len(rows) == 8
    assert len(engines.a.rows(30 * SECOND)) == 8  # the same rows again
    engines.b.receive_and_commit(rows[:4], 31 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(33 * SECOND), 33 * SECOND)
    assert len(engines.a.rows(33 * SECOND)) == 4
    assert len(engines.exchange(40 * SECOND, times=60)) > 0
    assert engines.b.queue(engines.incoming)[1:] == [b"a" * 35, *[b"small"] * 30]


def test_no_more_bytes_than_the_window_are_unacknowledged(engine: EngineFactory) -> None:
    """Counted in bytes; a single larger fragment is still sent."""
    engines = established_pair(engine, window_bytes=100, max_fragment_bytes=40)
    engines.a.send(engines.outgoing, b"a" * 400)
    assert sum(len(row["message_body"]) for row in engines.a.rows(20 * SECOND)) <= 100
    tight = established_pair(engine, window_bytes=10, max_fragment_bytes=40)
    tight.a.send(tight.outgoing, b"a" * 80)
    assert numbers(tight.a.rows(20 * SECOND)) == [(1, 0)]


def test_dialogs_of_higher_priority_are_sent_first_if_priorities_are_honored(engine: EngineFactory) -> None:
    for honored in (True, False):
        engines = pair(engine, honor_priority=honored)
        keys = [
            engines.begin(conversation=bytes([priority]) * 16, priority=priority, far_broker_instance=B)
            for priority in (3, 9, 1, 10)
        ]
        for key in keys:
            engines.a.send(key, b"body")
        order = [row["priority"] for row in engines.a.rows()]
        assert order == ([10, 9, 3, 1] if honored else [3, 9, 1, 10])


def test_nothing_is_sent_or_received_after_the_lifetime(engine: EngineFactory) -> None:
    engines = established_pair(engine, dialog={"lifetime": 60 * SECOND})
    engines.a.send(engines.outgoing, b"in time")
    late = engines.a.rows(59 * SECOND)
    assert len(late) == 1
    assert engines.a.rows(70 * SECOND) == []
    engines.b.receive_and_commit(late, 60 * SECOND)
    assert engines.b.queue(engines.incoming) == [b"first"]
    assert engines.b.rejection_events != []


@pytest.mark.rule("P31", "P32")
def test_idle_dialogs_are_evicted_in_a_batch_and_restored_unchanged(engine: EngineFactory) -> None:
    """Meanwhile acknowledged fragments are not forgotten, and others are sent again in time."""
    engines = established_pair(engine, max_fragment_bytes=10)
    engines.a.send(engines.outgoing, b"a" * 95, b"small")
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit([row for row in rows if numbers([row])[0] not in [(1, 3), (1, 4)]], 20 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
    assert engines.a.dialogs.flush(now=23 * SECOND) == 0
    assert sorted(numbers(engines.a.rows(30 * SECOND))) == [(1, 3), (1, 4)]
    assert engines.a.dialogs.flush(now=41 * SECOND) == 1
    assert list(engines.a.storage.work_table) == [engines.outgoing]
    again = engines.a.rows(70 * SECOND)
    assert sorted(numbers(again)) == [(1, 3), (1, 4)]
    engines.b.receive_and_commit(again, 70 * SECOND)
    assert engines.b.queue(engines.incoming)[1:] == [b"a" * 95, b"small"]


@pytest.mark.rule("P32")
def test_only_changed_objects_are_written(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    assert engines.b.dialogs.flush(now=60 * SECOND) == 1
    written = dict(engines.b.storage.work_table)
    engines.b.storage.work_table = dict(written)
    engines.b.dialogs.notify_queued([engines.incoming])  # it is read from storage, and has nothing to send
    engines.b.rows(61 * SECOND)
    engines.b.storage.save_transmissions = lambda objects: written.update(dict.fromkeys(objects, b"written again"))  # type: ignore[method-assign]
    engines.b.dialogs.flush(now=120 * SECOND)
    assert b"written again" not in written.values()


@pytest.mark.rule("P31")
def test_a_packed_object_is_never_larger_than_1024_bytes(engine: EngineFactory) -> None:
    """However scattered the acknowledged fragments are."""
    random = Random(4)
    for share in (0.0, 0.1, 0.3, 0.5, 0.9):
        engines = established_pair(engine, max_fragment_bytes=10, fragments_per_turn=1024)
        bodies = [b"a" * random.choice([5, 5, 5, 35, 120]) for _ in range(900)]
        engines.a.send(engines.outgoing, *bodies)
        rows = engines.a.rows(20 * SECOND)
        assert len(rows) == 1024
        engines.b.receive_and_commit([row for row in rows if random.random() < share], 20 * SECOND)
        engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
        engines.a.rows(22 * SECOND)
        now = evict(engines, 22 * SECOND)
        (packed,) = engines.a.storage.work_table.values()
        assert len(packed) <= PACKED_MAX == 1024
        for step in range(40):
            engines.exchange(now + step * 40 * SECOND, times=2)
        assert engines.b.queue(engines.incoming)[1:] == bodies


@pytest.mark.rule("P1")
def test_rows_of_the_dialog_layer_have_no_address() -> None:
    """Others route and frame its rows; a guard test checks that it imports neither."""
    assert [name for name in ENVELOPE.names if "address" in name or "port" in name or "host" in name] == []


def test_the_header_names_sender_and_receiver(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"body", message_type="Order")
    (row,) = engines.a.rows(20 * SECOND)
    names = ("from_service_name", "from_broker_instance", "to_service_name", "to_broker_instance")
    assert [row[name] for name in names] == ["Shop", A, "Bank", B]
    assert (row["service_contract_name"], row["message_type_name"], row["priority"]) == ("DEFAULT", "Order", 5)


@pytest.mark.rule("P13", "P23")
def test_retries_take_turns_too(engine: EngineFactory) -> None:
    """Also if a complete message is sent again, because the peer had to drop it."""
    engines = established_pair(engine, max_fragment_bytes=4, fragments_per_turn=8)
    engines.a.send(engines.outgoing, bytes(2000))
    engines.a.rows(20 * SECOND)
    engines.a.dialogs.retransmit([engines.outgoing])
    sent: list[int] = []
    while (table := engines.a.dialogs.data_to_send(now=21 * SECOND, max_rows=16)) is not None:
        sent.append(table.num_rows)
    assert sum(sent) == 500
    assert max(sent) <= 16 + 8


@pytest.mark.rule("P14")
def test_both_sides_may_have_different_windows(engine: EngineFactory) -> None:
    """The peer accepts all that overtakes a large message."""
    engines = established_pair(engine, max_fragment_bytes=1000, window_fragments=64, fragments_per_turn=8)
    engines.settings = replace(engines.settings, window_fragments=4)
    engines.restart(engines.b)
    engines.a.send(engines.outgoing, bytes(200_000), *[b"small"] * 200)
    engines.exchange(20 * SECOND, times=60)
    assert engines.a.waiting(engines.outgoing) == []
    assert engines.b.rejection_events == []


@pytest.mark.rule("P31", "P32")
def test_a_restored_dialog_with_a_message_in_transit_is_charged_as_before(engine: EngineFactory) -> None:
    """An evicted dialog has one charge for all messages in transit; more of the same message is charged again."""
    engines = established_pair(engine, max_fragment_bytes=1000, window_bytes=40_000, fragments_per_turn=8)
    engines.a.send(engines.outgoing, bytes(52_000), *[b"s"] * 30)
    first = engines.a.rows(20 * SECOND)
    now = evict(engines, 40 * SECOND)
    for rows in (first[:20], first[20:]):
        engines.b.receive_and_commit(rows, now)
        engines.a.receive_and_commit(engines.b.rows(now + SECOND), now + SECOND)
        now += 2 * SECOND
        sent = engines.a.rows(now)
        transmission = engines.a.dialogs._cache.loaded[engines.outgoing].transmission
        flying = {number: mask.bit_count() for number, mask in transmission.in_flight.items()}
        assert transmission.bytes_in_flight == sum(
            transmission.fragment_bytes[number] * count for number, count in flying.items()
        )
        assert sum(count * (1000 if number == 1 else 1) for number, count in flying.items()) <= 41_000
        engines.b.receive_and_commit(sent, now)
    engines.exchange(now, times=30)
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("P32", "P17")
def test_fragments_too_scattered_to_pack_are_sent_again(engine: EngineFactory) -> None:
    """A row that acknowledges nothing arrives long before the retry is due."""
    random = Random(4)
    engines = established_pair(engine, max_fragment_bytes=10, fragments_per_turn=1024)
    engines.a.send(engines.outgoing, *[b"a" * random.choice([5, 35, 120]) for _ in range(900)])
    engines.b.receive_and_commit([row for row in engines.a.rows(20 * SECOND) if random.random() < 0.5], 20 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
    engines.a.rows(22 * SECOND)
    now = evict(engines, 22 * SECOND)
    engines.b.send(engines.incoming, b"hello")
    engines.a.receive_and_commit([row for row in engines.b.rows(now) if row["is_sequenced"]], now)
    sent: list[Row] = []
    while (due := engines.a.dialogs.next_timeout()) is not None and due < now + 100 * SECOND:
        sent += engines.a.rows(due)
    assert numbers(sent) != []
    engines.exchange(now + 100 * SECOND, times=200)
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("P13", "P17")
def test_a_lost_empty_message_is_sent_again_with_large_fragments(engine: EngineFactory) -> None:
    """A message of one fragment is read as it is, whatever the fragment size."""
    engines = established_pair(engine, max_fragment_bytes=1 << 20)
    engines.a.send(engines.outgoing, bytes(1 << 20), b"")
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit(rows[:1], 20 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(22 * SECOND), 22 * SECOND)
    assert numbers(engines.a.rows(30 * SECOND)) == [(2, 0)]


@pytest.mark.rule("P13")
def test_a_large_message_is_read_once(engine: EngineFactory) -> None:
    """In any number of turns; it also arrives complete after a restart and after losses."""
    engines = established_pair(engine, max_fragment_bytes=1 << 14, fragments_per_turn=8, window_fragments=32)
    body = Random(1).randbytes(2_000_001)
    reads: list[int] = []
    outgoing = engines.a.storage.outgoing

    def counted(wanted: Sequence[MessageRange]) -> pa.Table:
        table = outgoing(wanted)
        reads.append(table["message_sequence_number"].to_pylist().count(1))
        return table

    engines.a.storage.outgoing = counted  # type: ignore[method-assign]
    engines.a.send(engines.outgoing, body, b"small")
    for step in range(60):
        rows = engines.a.rows((20 + 5 * step) * SECOND)
        engines.b.receive_and_commit(
            [row for row in rows if Random(str(numbers([row])) + str(step)).random() > 0.1], (20 + 5 * step) * SECOND
        )
        engines.a.receive_and_commit(engines.b.rows((21 + 5 * step) * SECOND), (21 + 5 * step) * SECOND)
    assert engines.b.queue(engines.incoming)[1:] == [body, b"small"]
    assert sum(reads) == 1


@pytest.mark.rule("P15")
def test_no_table_is_built_if_nothing_is_due(engine: EngineFactory) -> None:
    """A serving instance checks several times for each message; an empty table took longer than all the rest."""
    engines = established_pair(engine)
    engines.exchange(60 * SECOND)
    made: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssbroker.protocol.encoder.rows_to_table", lambda rows: made.append(len(rows)))
        assert (engines.a.dialogs.data_to_send(now=60 * SECOND), made) == (None, [])
