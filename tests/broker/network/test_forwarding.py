"""Forwarding of rows for other instances (R43)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssbroker.broker.network.forwarding import PROGRESS_INTERVAL, ROW_BYTES, sizes_of
from ssbroker.broker.network.shared_outbox import SharedOutbox
from ssbroker.broker.views import INSTANCE_VIEWS
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.wire.frames import DropReason
from tests.broker.network.forwarded_rows import (
    HOUR,
    SENDER_BROKER,
    SENDER_SERVICE,
    TARGET_BROKER,
    TARGET_SERVICE,
    Forwarder,
    Outboxes,
    decisions,
    forward_to,
    peer,
    row,
    wire,
)

NEXT = "TCP://stock.example:4022"
OTHER = "TCP://archive.example:4022"
MIRROR = "TCP://mirror.example:4022"


@pytest.fixture
def forwarder() -> Forwarder:
    return Forwarder()


@pytest.mark.rule("R43")
def test_a_row_is_forwarded_unchanged_except_for_hops(forwarder: Forwarder) -> None:
    """The target can still verify it."""
    rows = wire([row(0), row(1, body=b"")], hops=9, lifetime=60, consumed=3, key_exchange=b"blob")
    forwarder.forwarding.forward(peer(), rows, forward_to(NEXT, 2))
    sent_rows = forwarder.outboxes.write(NEXT)
    assert sent_rows == [{**each, "hops_remaining": 8} for each in rows.to_pylist()]
    assert forwarder.forwarding.run_due(now=forwarder.now) is None
    assert [(each.next_hop_address, each.hops_remaining) for each in forwarder.sent] == [(NEXT, 8), (NEXT, 8)]
    assert forwarder.dropped == []


@pytest.mark.rule("R43")
def test_rows_for_several_hops_keep_their_order_on_each(forwarder: Forwarder) -> None:
    next_hops = [NEXT, OTHER, NEXT, NEXT, OTHER]
    forwarder.forwarding.forward(
        peer(), wire([row(each) for each in range(5)]), decisions([(next_hop, None, None) for next_hop in next_hops])
    )
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [0, 2, 3]
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(OTHER)] == [1, 4]


@pytest.mark.rule("R42")
@pytest.mark.parametrize(("hops", "expected"), [(16, 15), (2, 1), (1, None), (0, None), (-128, None), (127, 15)])
def test_remaining_hops_are_decremented(forwarder: Forwarder, hops: int, expected: int | None) -> None:
    """11285 if none remain; a peer cannot set more than 16."""
    forwarder.forwarding.forward(peer(), wire([row()], hops=hops), forward_to(NEXT))
    assert [each["hops_remaining"] for each in forwarder.outboxes.write(NEXT)] == (
        [] if expected is None else [expected]
    )
    assert forwarder.drop_errors == ([11285] if expected is None else [])
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R42")
@pytest.mark.parametrize(("lifetime", "consumed"), [(60, 60), (60, 61), (0, 0), (-5, 0)])
def test_an_expired_row_is_dropped(forwarder: Forwarder, lifetime: int, consumed: int) -> None:
    forwarder.forwarding.forward(peer(), wire([row()], lifetime=lifetime, consumed=consumed), forward_to(NEXT))
    assert forwarder.outboxes.write(NEXT) == []
    assert forwarder.drop_errors == [11291]
    event = forwarder.dropped[0]
    assert (event.time_to_live, event.time_consumed) == (lifetime, consumed)


@pytest.mark.rule("R42")
def test_the_time_in_which_a_row_is_held_is_counted() -> None:
    """The time is added to that of earlier forwarders."""
    forwarder = Forwarder(outboxes=Outboxes(max_bytes=1))
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(1)], lifetime=60, consumed=10), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(2)], lifetime=60, consumed=-3), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(3)], lifetime=30, consumed=10), forward_to(NEXT))
    forwarder.outboxes.write(NEXT)
    forwarder.now += 20 * SECOND + 1
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["time_consumed"] for each in forwarder.outboxes.write(NEXT)] == [30]
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["time_consumed"] for each in forwarder.outboxes.write(NEXT)] == [20]
    forwarder.forwarding.run_due(now=forwarder.now)
    assert forwarder.drop_errors == [11291]


@pytest.mark.rule("R42")
def test_rows_held_too_long_are_dropped_in_time() -> None:
    forwarder = Forwarder()
    forwarder.forwarding.forward(
        peer(), wire([row(0)], lifetime=60), forward_to(NEXT, mirror=MIRROR, broker_instance=TARGET_BROKER)
    )
    forwarder.forwarding.forward(
        peer(), wire([row(1)], lifetime=90), forward_to(NEXT, mirror=MIRROR, broker_instance=TARGET_BROKER)
    )
    due = forwarder.forwarding.run_due(now=forwarder.now)
    assert due == forwarder.now + 60 * SECOND
    forwarder.now = due
    assert forwarder.forwarding.run_due(now=due) == due + 30 * SECOND
    assert forwarder.drop_errors == [11291]
    forwarder.now += 30 * SECOND
    assert forwarder.forwarding.run_due(now=forwarder.now) is None
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R43")
def test_a_row_in_transit_is_not_accepted_twice(forwarder: Forwarder) -> None:
    """11288; once it is written, the same row is accepted again, since its sender may not have been acknowledged."""
    forwarder.forwarding.forward(peer(), wire([row(), row()]), forward_to(NEXT, 2))
    forwarder.forwarding.forward(peer(2), wire([row()]), forward_to(OTHER))
    assert forwarder.drop_errors == [11288, 11288]
    assert len(forwarder.outboxes.write(NEXT)) == 1
    forwarder.forwarding.forward(peer(), wire([row()]), forward_to(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1
    assert forwarder.outboxes.write(OTHER) == []


@pytest.mark.rule("R43")
def test_a_forged_row_does_not_block_the_real_one(forwarder: Forwarder) -> None:
    """Rows with different signatures are different rows."""
    forged = row(body=b"no chairs")
    forged.header_signature = bytes(16)
    forwarder.forwarding.forward(peer(2), wire([forged]), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(3)]), forward_to(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 2


@pytest.mark.rule("R43")
def test_rows_beyond_the_limit_are_dropped() -> None:
    """11289; each row counts as its size plus 512 bytes until it is written."""
    one = sizes_of(wire([row(0)]))[0]
    assert ROW_BYTES + len(b"two chairs") < one < ROW_BYTES + 100
    forwarder = Forwarder(max_bytes=3 * one)
    forwarder.forwarding.forward(peer(), wire([row(each) for each in range(4)]), forward_to(NEXT, 4))
    assert forwarder.drop_errors == [11289]
    assert forwarder.dropped[0].message_sequence_number == 3
    ((peer_key, reasons),) = forwarder.outboxes.drops
    assert peer_key == peer().key
    assert list(reasons.values()) == [DropReason.NOT_FORWARDED]
    assert forwarder.forwarding.pending == (3, 3 * one)
    forwarder.outboxes.write(NEXT)
    assert forwarder.forwarding.pending == (0, 0)
    forwarder.forwarding.forward(peer(), wire([row(3)]), forward_to(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1


@pytest.mark.rule("R43")
@pytest.mark.threat("T3")
def test_all_variable_columns_count_towards_the_limit() -> None:
    forwarder = Forwarder(max_bytes=10_000)
    row_with_long_name = row(1)
    row_with_long_name.contract = "x" * 10_000
    forwarder.forwarding.forward(peer(), wire([row()], key_exchange=bytes(10_000)), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row_with_long_name]), forward_to(NEXT))
    assert forwarder.drop_errors == [11289, 11289]


@pytest.mark.rule("R43")
def test_a_message_larger_than_the_limit_passes_in_fragments() -> None:
    """Forwarders do not reassemble messages."""
    forwarder = Forwarder(max_bytes=3_000)
    for number in range(10):
        forwarder.forwarding.forward(peer(), wire([row(body=bytes(2_000), fragment=number)]), forward_to(NEXT))
        assert len(forwarder.outboxes.write(NEXT)) == 1
    assert forwarder.dropped == []


@pytest.mark.rule("R43")
def test_rows_wait_in_order_for_a_full_outbox() -> None:
    forwarder = Forwarder(outboxes=Outboxes(max_bytes=1))
    for number in range(4):
        forwarder.forwarding.forward(peer(), wire([row(number)]), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(9)]), forward_to(OTHER))
    sequence_numbers = []
    while written := forwarder.outboxes.write(NEXT):
        sequence_numbers += [each["message_sequence_number"] for each in written]
        forwarder.forwarding.outbox_drained(NEXT)
    assert sequence_numbers == [0, 1, 2, 3]
    assert len(forwarder.outboxes.write(OTHER)) == 1
    forwarder.forwarding.run_due(now=forwarder.now)
    assert len(forwarder.sent) == 5


@pytest.mark.rule("R43")
def test_rows_in_transit_to_an_unreachable_address_are_dropped(forwarder: Forwarder) -> None:
    """11292; the sender still has them, and they are accepted again."""
    for _ in range(2):
        forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT))
        forwarder.outboxes.box(NEXT).clear()
        forwarder.forwarding.connection_failed(NEXT, "connection refused")
        assert forwarder.forwarding.pending == (0, 0)
    assert [(each.error, each.next_hop_address) for each in forwarder.dropped] == [(11292, NEXT)] * 2
    assert "connection refused" in forwarder.dropped[0].text
    assert forwarder.sent == []
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1


@pytest.mark.rule("R43")
def test_waiting_rows_are_sent_once_the_address_is_dialled_again(forwarder: Forwarder) -> None:
    """The outbox accepts no rows for some time after a failed dial, and reports the end of that time."""
    box = forwarder.outboxes.box(NEXT)
    box.block()
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT))
    forwarder.forwarding.connection_failed(NEXT, "connection refused")
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), forward_to(NEXT, 2))
    assert forwarder.drop_errors == [11288]
    assert forwarder.forwarding.pending[0] == 2
    box.unblock()
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [0, 1]


@pytest.mark.rule("R43")
def test_a_full_outbox_is_asked_to_report_free_space(forwarder: Forwarder) -> None:
    """Also if it had accepted all rows before the dial failed."""
    drained: list[str] = []
    forwarder.outboxes.boxes[NEXT] = box = SharedOutbox(1, on_drained=lambda: drained.append(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(1)]), forward_to(NEXT))
    box.block()
    box.clear()
    forwarder.forwarding.connection_failed(NEXT, "connection refused")
    assert forwarder.drop_errors == [11292]
    box.unblock()
    assert drained == [NEXT]


@pytest.mark.rule("R43")
def test_an_unreachable_address_does_not_delay_others() -> None:
    """At the limit, rows for the unreachable address are dropped before rows for another address."""
    one = sizes_of(wire([row(0)]))[0]
    forwarder = Forwarder(max_bytes=3 * one)
    forwarder.forwarding.connected(OTHER, peer(99, address=OTHER))
    forwarder.outboxes.on_dial = lambda _: None
    forwarder.forwarding.connection_failed(NEXT, "no route to host")
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), forward_to(NEXT, 2))
    forwarder.forwarding.forward(peer(), wire([row(2)]), forward_to(NEXT, mirror=MIRROR, broker_instance=TARGET_BROKER))
    forwarder.forwarding.forward(peer(2), wire([row(5), row(6), row(7)]), forward_to(OTHER, 3))
    assert len(forwarder.outboxes.write(OTHER)) == 3
    assert {each.message_sequence_number for each in forwarder.dropped} == {0, 1, 2}


@pytest.mark.rule("R42")
def test_rows_are_not_sent_back_to_their_sender(forwarder: Forwarder) -> None:
    """28071; the sender is recognized by its instance id and principal, not by its address."""
    forwarder.forwarding.connected(NEXT, peer(2, address=NEXT))
    forwarder.forwarding.forward(peer(2), wire([row(0)]), forward_to(NEXT))
    assert forwarder.drop_errors == [28071]
    forwarder.forwarding.forward(peer(1), wire([row(0)]), forward_to(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1
    forwarder.forwarding.forward(replace(peer(2), principal="copy"), wire([row(0)]), forward_to(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R42")
def test_rows_wait_until_the_instance_at_their_address_is_known(forwarder: Forwarder) -> None:
    """It may be their sender, to which no row is sent back."""
    dialled: list[str] = []
    forwarder.outboxes.on_dial = dialled.append
    forwarder.forwarding.forward(peer(2), wire([row(0)]), forward_to(NEXT))
    forwarder.forwarding.forward(peer(1), wire([row(1)]), forward_to(NEXT))
    assert dialled == [NEXT, NEXT]
    assert forwarder.outboxes.write(NEXT) == []
    assert forwarder.forwarding.pending[0] == 2
    forwarder.forwarding.connected(NEXT, peer(2, address=NEXT))
    assert [(event.error, event.message_sequence_number) for event in forwarder.dropped] == [(28071, 0)]
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [1]
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R43")
def test_rows_for_an_address_that_never_answered_are_dropped_when_a_dial_fails(forwarder: Forwarder) -> None:
    forwarder.outboxes.on_dial = lambda address: forwarder.forwarding.connection_failed(address, "connection refused")
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT))
    assert forwarder.drop_errors == [11292]
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R53", "R54")
def test_a_mirrored_route_holds_rows_until_the_principal_is_known(forwarder: Forwarder) -> None:
    """They are then sent to the principal only."""
    forwarder.forwarding.forward(peer(), wire([row(0)]), forward_to(NEXT, mirror=MIRROR, broker_instance=TARGET_BROKER))
    assert (forwarder.outboxes.write(NEXT), forwarder.outboxes.write(MIRROR)) == ([], [])
    forwarder.forwarding.mirrors_changed()
    assert forwarder.forwarding.pending[0] == 1
    forwarder.principal = MIRROR
    forwarder.forwarding.mirrors_changed()
    assert forwarder.outboxes.write(NEXT) == []
    assert len(forwarder.outboxes.write(MIRROR)) == 1


@pytest.mark.rule("R53")
def test_rows_for_a_lost_principal_are_sent_to_its_successor(forwarder: Forwarder) -> None:
    """A former principal that comes back gets none of them, and rows that are sent again are not duplicates."""
    forward_to_mirrored = forward_to(NEXT, 2, mirror=MIRROR, broker_instance=TARGET_BROKER)
    forwarder.principal = NEXT
    forwarder.outboxes.box(NEXT).block()
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), forward_to_mirrored)
    forwarder.forwarding.forward(peer(), wire([row(7)]), forward_to(NEXT))
    forwarder.forwarding.connection_failed(NEXT, "connection refused")
    forwarder.principal = None
    forwarder.forwarding.mirrors_changed()
    forwarder.principal = MIRROR
    forwarder.forwarding.mirrors_changed()
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(MIRROR)] == [0, 1]
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), forward_to_mirrored)
    assert forwarder.drop_errors == []
    assert len(forwarder.outboxes.write(MIRROR)) == 2
    forwarder.outboxes.box(NEXT).unblock()
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [7]


@pytest.mark.rule("R43")
def test_the_view_shows_rows_until_they_are_written(forwarder: Forwarder) -> None:
    forwarder.forwarding.forward(peer(), wire([row(4, fragment=2)], hops=9, consumed=5), forward_to(NEXT))
    forwarder.now += 3 * SECOND
    names = INSTANCE_VIEWS["sys.dm_broker_forwarded_messages"].names
    shown = [dict(zip(names, each, strict=True)) for each in forwarder.forwarding.view_rows()]
    assert shown == [
        {
            "conversation_id": row().conversation_id,
            "is_initiator": True,
            "to_service_name": TARGET_SERVICE,
            "to_broker_instance": TARGET_BROKER,
            "from_service_name": SENDER_SERVICE,
            "from_broker_instance": SENDER_BROKER,
            "adjacent_broker_address": NEXT,
            "message_sequence_number": 4,
            "message_fragment_number": 2,
            "hops_remaining": 8,
            "time_to_live": HOUR,
            "time_consumed": 8,
            "message_id": row(4).message_id,
        }
    ]
    assert forwarder.forwarding.run_due(now=forwarder.now) == forwarder.now + PROGRESS_INTERVAL
    forwarder.outboxes.write(NEXT)
    assert forwarder.forwarding.run_due(now=forwarder.now) is None
    assert forwarder.forwarding.view_rows() == []


@pytest.mark.rule("R43")
def test_a_subscriber_may_read_the_view(forwarder: Forwarder) -> None:
    """Events are emitted after the state they report."""
    sequence_numbers: list[int] = []
    forwarder.log.subscribe(lambda _: sequence_numbers.append(len(forwarder.forwarding.view_rows())))
    forwarder.forwarding.forward(peer(), wire([row(0), row(0)]), forward_to(NEXT, 2))
    assert sequence_numbers == [1]


@pytest.mark.rule("R43")
def test_forwarded_rows_are_counted(forwarder: Forwarder) -> None:
    rows = wire([row(0), row(1), row(1)])
    forwarder.forwarding.forward(peer(), rows, forward_to(NEXT, 3))
    forwarder.outboxes.write(NEXT)
    forwarder.forwarding.run_due(now=forwarder.now)
    counters = forwarder.forwarding.counters
    assert (counters.messages, counters.bytes, counters.discarded) == (2, sum(sizes_of(rows)[:2]), 1)
