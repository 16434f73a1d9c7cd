"""R43: forwarding of rows that are for other instances."""

from __future__ import annotations

import pytest

from ssbroker.broker.network.connection import SharedOutbox
from ssbroker.broker.network.forwarding import PROGRESS_INTERVAL, ROW_BYTES, sizes_of
from ssbroker.broker.views import INSTANCE_VIEWS
from ssbroker.protocol.config import SECOND
from tests.broker.network.forwarded_rows import (
    FAR,
    FROM,
    HOUR,
    NEAR,
    TO,
    Forwarder,
    Outboxes,
    decided,
    onwards,
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
    """Nothing else is changed, so that the far side can verify it."""
    came = wire([row(0), row(1, body=b"")], hops=9, lives=60, consumed=3, key_exchange=b"blob")
    forwarder.forwarding.forward(peer(), came, onwards(NEXT, 2))
    went = forwarder.outboxes.write(NEXT)
    assert went == [{**each, "hops_remaining": 8} for each in came.to_pylist()]
    assert forwarder.forwarding.run_due(now=forwarder.now) is None
    assert [(each.next_hop_address, each.hops_remaining) for each in forwarder.sent] == [(NEXT, 8), (NEXT, 8)]
    assert forwarder.dropped == []


@pytest.mark.rule("R43")
def test_rows_for_several_hops_keep_their_order_on_each(forwarder: Forwarder) -> None:
    """R43."""
    ways = [NEXT, OTHER, NEXT, NEXT, OTHER]
    forwarder.forwarding.forward(
        peer(), wire([row(each) for each in range(5)]), decided([(way, None, None) for way in ways])
    )
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [0, 2, 3]
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(OTHER)] == [1, 4]


@pytest.mark.rule("R42")
@pytest.mark.parametrize(("hops", "goes_on"), [(16, 15), (2, 1), (1, None), (0, None), (-128, None), (127, 15)])
def test_remaining_hops_are_decremented(forwarder: Forwarder, hops: int, goes_on: int | None) -> None:
    """11285 when they are used up; a neighbour cannot give a row more than 16."""
    forwarder.forwarding.forward(peer(), wire([row()], hops=hops), onwards(NEXT))
    assert [each["hops_remaining"] for each in forwarder.outboxes.write(NEXT)] == ([] if goes_on is None else [goes_on])
    assert forwarder.why == ([11285] if goes_on is None else [])
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R42")
@pytest.mark.parametrize(("lives", "consumed"), [(60, 60), (60, 61), (0, 0), (-5, 0)])
def test_an_expired_row_is_dropped(forwarder: Forwarder, lives: int, consumed: int) -> None:
    """11291."""
    forwarder.forwarding.forward(peer(), wire([row()], lives=lives, consumed=consumed), onwards(NEXT))
    assert forwarder.outboxes.write(NEXT) == []
    assert forwarder.why == [11291]
    event = forwarder.dropped[0]
    assert (event.time_to_live, event.time_consumed) == (lives, consumed)


@pytest.mark.rule("R42")
def test_time_passes_while_a_row_is_held() -> None:
    """It is added to what others have held it."""
    forwarder = Forwarder(outboxes=Outboxes(most=1))
    forwarder.forwarding.forward(peer(), wire([row(0)]), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(1)], lives=60, consumed=10), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(2)], lives=60, consumed=-3), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(3)], lives=30, consumed=10), onwards(NEXT))
    forwarder.outboxes.write(NEXT)
    forwarder.now += 20 * SECOND + 1
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["time_consumed"] for each in forwarder.outboxes.write(NEXT)] == [30]
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["time_consumed"] for each in forwarder.outboxes.write(NEXT)] == [20]
    forwarder.forwarding.run_due(now=forwarder.now)
    assert forwarder.why == [11291]


@pytest.mark.rule("R42")
def test_rows_held_too_long_are_dropped_in_time() -> None:
    """R42."""
    forwarder = Forwarder()
    forwarder.forwarding.forward(peer(), wire([row(0)], lives=60), onwards(NEXT, mirror=MIRROR, broker_instance=FAR))
    forwarder.forwarding.forward(peer(), wire([row(1)], lives=90), onwards(NEXT, mirror=MIRROR, broker_instance=FAR))
    due = forwarder.forwarding.run_due(now=forwarder.now)
    assert due == forwarder.now + 60 * SECOND
    forwarder.now = due
    assert forwarder.forwarding.run_due(now=due) == due + 30 * SECOND
    assert forwarder.why == [11291]
    forwarder.now += 30 * SECOND
    assert forwarder.forwarding.run_due(now=forwarder.now) is None
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R43")
def test_a_row_in_transit_is_not_accepted_twice(forwarder: Forwarder) -> None:
    """11288; once it has been written, the same row may pass again, since its sender did not hear of it."""
    forwarder.forwarding.forward(peer(), wire([row(), row()]), onwards(NEXT, 2))
    forwarder.forwarding.forward(peer(2), wire([row()]), onwards(OTHER))
    assert forwarder.why == [11288, 11288]
    assert len(forwarder.outboxes.write(NEXT)) == 1
    forwarder.forwarding.forward(peer(), wire([row()]), onwards(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1
    assert forwarder.outboxes.write(OTHER) == []


@pytest.mark.rule("R43")
def test_a_forged_row_does_not_block_the_real_one(forwarder: Forwarder) -> None:
    """What has another signature is another row."""
    forged = row(body=b"no chairs")
    forged.header_signature = bytes(16)
    forwarder.forwarding.forward(peer(2), wire([forged]), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(3)]), onwards(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 2


@pytest.mark.rule("R43")
def test_rows_beyond_the_limit_are_dropped() -> None:
    """11289; each row counts with what it holds and 512 bytes, until it has been written."""
    one = sizes_of(wire([row(0)]))[0]
    assert ROW_BYTES + len(b"two chairs") < one < ROW_BYTES + 100
    forwarder = Forwarder(most=3 * one)
    forwarder.forwarding.forward(peer(), wire([row(each) for each in range(4)]), onwards(NEXT, 4))
    assert forwarder.why == [11289]
    assert forwarder.dropped[0].message_sequence_number == 3
    assert forwarder.forwarding.pending == (3, 3 * one)
    forwarder.outboxes.write(NEXT)
    assert forwarder.forwarding.pending == (0, 0)
    forwarder.forwarding.forward(peer(), wire([row(3)]), onwards(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1


@pytest.mark.rule("R43")
@pytest.mark.threat("T3")
def test_all_variable_columns_count_towards_the_limit() -> None:
    """Not its body alone."""
    forwarder = Forwarder(most=10_000)
    named = row(1)
    named.contract = "x" * 10_000
    forwarder.forwarding.forward(peer(), wire([row()], key_exchange=bytes(10_000)), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([named]), onwards(NEXT))
    assert forwarder.why == [11289, 11289]


@pytest.mark.rule("R43")
def test_a_message_larger_than_the_limit_passes_in_fragments() -> None:
    """Nothing is put together here."""
    forwarder = Forwarder(most=3_000)
    for number in range(10):
        forwarder.forwarding.forward(peer(), wire([row(body=bytes(2_000), fragment=number)]), onwards(NEXT))
        assert len(forwarder.outboxes.write(NEXT)) == 1
    assert forwarder.dropped == []


@pytest.mark.rule("R43")
def test_rows_wait_in_order_for_a_full_outbox() -> None:
    """They go once there is room, as many as there is room for."""
    forwarder = Forwarder(outboxes=Outboxes(most=1))
    for number in range(4):
        forwarder.forwarding.forward(peer(), wire([row(number)]), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(9)]), onwards(OTHER))
    seen = []
    while written := forwarder.outboxes.write(NEXT):
        seen += [each["message_sequence_number"] for each in written]
        forwarder.forwarding.outbox_drained(NEXT)
    assert seen == [0, 1, 2, 3]
    assert len(forwarder.outboxes.write(OTHER)) == 1
    forwarder.forwarding.run_due(now=forwarder.now)
    assert len(forwarder.sent) == 5


@pytest.mark.rule("R43")
def test_rows_in_transit_to_an_unreachable_address_are_dropped(forwarder: Forwarder) -> None:
    """11292; its senders have it, and it may come again."""
    for _ in range(2):
        forwarder.forwarding.forward(peer(), wire([row(0)]), onwards(NEXT))
        forwarder.outboxes.box(NEXT).clear()
        forwarder.forwarding.connection_failed(NEXT, "connection refused")
        assert forwarder.forwarding.pending == (0, 0)
    assert [(each.error, each.next_hop_address) for each in forwarder.dropped] == [(11292, NEXT)] * 2
    assert "connection refused" in forwarder.dropped[0].text
    assert forwarder.sent == []
    forwarder.forwarding.forward(peer(), wire([row(0)]), onwards(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1


@pytest.mark.rule("R43")
def test_waiting_rows_are_sent_once_the_address_is_dialed_again(forwarder: Forwarder) -> None:
    """Its outbox takes nothing for a while after a failed dial, and says when it does."""
    box = forwarder.outboxes.box(NEXT)
    box.block()
    forwarder.forwarding.forward(peer(), wire([row(0)]), onwards(NEXT))
    forwarder.forwarding.connection_failed(NEXT, "connection refused")
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), onwards(NEXT, 2))
    assert forwarder.why == [11288]
    assert forwarder.forwarding.pending[0] == 2
    box.unblock()
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [0, 1]


@pytest.mark.rule("R43")
def test_a_full_outbox_is_asked_to_report_free_space(forwarder: Forwarder) -> None:
    """Also where it has taken all before the dial failed."""
    emitted: list[str] = []
    forwarder.outboxes.boxes[NEXT] = box = SharedOutbox(1, on_drained=lambda: emitted.append(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(0)]), onwards(NEXT))
    forwarder.forwarding.forward(peer(), wire([row(1)]), onwards(NEXT))
    box.block()
    box.clear()
    forwarder.forwarding.connection_failed(NEXT, "connection refused")
    assert forwarder.why == [11292]
    box.unblock()
    assert emitted == [NEXT]


@pytest.mark.rule("R43")
def test_an_unreachable_address_does_not_delay_others() -> None:
    """Before a row for another address is dropped for want of room, those that wait for nothing are."""
    one = sizes_of(wire([row(0)]))[0]
    forwarder = Forwarder(most=3 * one)
    forwarder.forwarding.connection_failed(NEXT, "no route to host")
    forwarder.outboxes.box(NEXT).block()
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), onwards(NEXT, 2))
    forwarder.forwarding.forward(peer(), wire([row(2)]), onwards(NEXT, mirror=MIRROR, broker_instance=FAR))
    forwarder.forwarding.forward(peer(2), wire([row(5), row(6), row(7)]), onwards(OTHER, 3))
    assert len(forwarder.outboxes.write(OTHER)) == 3
    assert {each.message_sequence_number for each in forwarder.dropped} == {0, 1, 2}


@pytest.mark.rule("R42")
def test_rows_are_not_sent_back_to_their_sender(forwarder: Forwarder) -> None:
    """28071; whatever the address by which that instance is known."""
    forwarder.forwarding.connected(NEXT, peer(2, address=NEXT))
    forwarder.forwarding.forward(peer(2), wire([row(0)]), onwards(NEXT))
    assert forwarder.why == [28071]
    forwarder.forwarding.forward(peer(1), wire([row(0)]), onwards(NEXT))
    assert len(forwarder.outboxes.write(NEXT)) == 1
    assert forwarder.forwarding.pending == (0, 0)


@pytest.mark.rule("R53", "R54")
def test_a_mirrored_route_holds_rows_until_the_principal_is_known(forwarder: Forwarder) -> None:
    """They go to the principal, and to nobody before it is known."""
    forwarder.forwarding.forward(peer(), wire([row(0)]), onwards(NEXT, mirror=MIRROR, broker_instance=FAR))
    assert (forwarder.outboxes.write(NEXT), forwarder.outboxes.write(MIRROR)) == ([], [])
    forwarder.forwarding.mirrors_changed()
    assert forwarder.forwarding.pending[0] == 1
    forwarder.principal = MIRROR
    forwarder.forwarding.mirrors_changed()
    assert forwarder.outboxes.write(NEXT) == []
    assert len(forwarder.outboxes.write(MIRROR)) == 1


@pytest.mark.rule("R53")
def test_rows_for_a_lost_principal_are_sent_to_its_successor(forwarder: Forwarder) -> None:
    """Whoever was the principal, comes back and believes it still is gets none of it, and what its senders repeat is no double."""
    course = onwards(NEXT, 2, mirror=MIRROR, broker_instance=FAR)
    forwarder.principal = NEXT
    forwarder.outboxes.box(NEXT).block()
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), course)
    forwarder.forwarding.forward(peer(), wire([row(7)]), onwards(NEXT))
    forwarder.forwarding.connection_failed(NEXT, "connection refused")
    forwarder.principal = None
    forwarder.forwarding.mirrors_changed()
    forwarder.principal = MIRROR
    forwarder.forwarding.mirrors_changed()
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(MIRROR)] == [0, 1]
    forwarder.forwarding.forward(peer(), wire([row(0), row(1)]), course)
    assert forwarder.why == []
    assert len(forwarder.outboxes.write(MIRROR)) == 2
    forwarder.outboxes.box(NEXT).unblock()
    forwarder.forwarding.outbox_drained(NEXT)
    assert [each["message_sequence_number"] for each in forwarder.outboxes.write(NEXT)] == [7]


@pytest.mark.rule("R43")
def test_the_view_shows_rows_until_they_are_written(forwarder: Forwarder) -> None:
    """Sys.dm_broker_forwarded_messages."""
    forwarder.forwarding.forward(peer(), wire([row(4, fragment=2)], hops=9, consumed=5), onwards(NEXT))
    forwarder.now += 3 * SECOND
    names = INSTANCE_VIEWS["sys.dm_broker_forwarded_messages"].names
    shown = [dict(zip(names, each, strict=True)) for each in forwarder.forwarding.view_rows()]
    assert shown == [
        {
            "conversation_id": row().conversation_id,
            "is_initiator": True,
            "to_service_name": TO,
            "to_broker_instance": FAR,
            "from_service_name": FROM,
            "from_broker_instance": NEAR,
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
    """Events are told once what they tell is so."""
    seen: list[int] = []
    forwarder.log.subscribe(lambda _: seen.append(len(forwarder.forwarding.view_rows())))
    forwarder.forwarding.forward(peer(), wire([row(0), row(0)]), onwards(NEXT, 2))
    assert seen == [1]


@pytest.mark.rule("R43")
def test_forwarded_rows_are_counted(forwarder: Forwarder) -> None:
    """R43."""
    came = wire([row(0), row(1), row(1)])
    forwarder.forwarding.forward(peer(), came, onwards(NEXT, 3))
    forwarder.outboxes.write(NEXT)
    forwarder.forwarding.run_due(now=forwarder.now)
    counters = forwarder.forwarding.counters
    assert (counters.messages, counters.bytes, counters.discarded) == (2, sum(sizes_of(came)[:2]), 1)
