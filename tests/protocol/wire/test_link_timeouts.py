from __future__ import annotations

import pytest

from ssbroker.exceptions import OptionError, PeerError, ProtocolError
from ssbroker.protocol.wire.frames import FrameKind, GoodbyeReason, PeerIdentity, encode_frame
from ssbroker.protocol.wire.link import LinkLimits, PeerGreeted, PeerLeft
from tests.protocol.wire.links import BANK, SECOND, linked, numbered, numbers, sent_pieces

DATABASE = b"id of a database"


def test_hello_must_arrive_within_ten_seconds() -> None:
    bank = linked(greet=False).bank
    assert bank.next_timeout() == 10 * SECOND
    assert bank.handle_timeout(now=10 * SECOND - 1) == []
    bank.receive(b"SSBW", now=9 * SECOND)
    assert bank.handle_timeout(now=10 * SECOND) == [PeerLeft(GoodbyeReason.SILENT, "no HELLO within 10 s")]
    assert bank.is_closed
    assert bank.next_timeout() is None


def test_an_idle_connection_is_closed_after_thirty_seconds() -> None:
    both = linked()
    both.shop.send(numbered(1))
    both.to_bank(7 * SECOND)
    both.bank.receive(encode_frame(FrameKind.PONG), now=36 * SECOND)
    assert both.bank.next_timeout() == 37 * SECOND
    assert both.bank.handle_timeout(now=37 * SECOND - 1) == []
    assert sent_pieces(both.bank, 37 * SECOND - 1) == []
    assert both.bank.handle_timeout(now=37 * SECOND) == []
    assert both.bank.is_leaving
    both.settle(37 * SECOND)
    assert both.at_shop[-1] == PeerLeft(GoodbyeReason.IDLE, "no traffic")
    assert both.shop.is_closed
    assert both.bank.is_closed


def test_unwritten_data_keep_the_connection_open() -> None:
    both = linked()
    both.shop.send(numbered(1))
    assert both.shop.next_timeout() is None


def test_a_ping_is_sent_after_ten_seconds_of_silence() -> None:
    both = linked()
    both.shop.send(numbered(1))
    assert len(sent_pieces(both.shop, SECOND)) == 1
    assert both.shop.next_timeout() == 11 * SECOND
    both.shop.handle_timeout(now=11 * SECOND)
    [ping] = sent_pieces(both.shop, 11 * SECOND)
    assert ping == encode_frame(FrameKind.PING)
    assert both.shop.next_timeout() == 21 * SECOND
    both.bank.receive(ping, now=12 * SECOND)
    assert both.to_shop(12 * SECOND) == []
    assert both.shop.next_timeout() == 31 * SECOND  # the idle timeout


def test_a_peer_silent_for_twenty_seconds_is_disconnected() -> None:
    both = linked()
    both.shop.send(numbered(1))
    sent_pieces(both.shop, 0)
    both.shop.handle_timeout(now=10 * SECOND)
    sent_pieces(both.shop, 10 * SECOND)
    assert both.shop.handle_timeout(now=20 * SECOND - 1) == []
    assert both.shop.handle_timeout(now=20 * SECOND) == [PeerLeft(GoodbyeReason.SILENT, "no answer within 20 s")]
    assert both.shop.is_closed


def test_any_byte_counts_as_a_sign_of_life() -> None:
    both = linked()
    both.shop.send(numbered(1))
    sent_pieces(both.shop, 0)
    both.shop.receive(b"S", now=9 * SECOND)
    assert both.shop.next_timeout() == 30 * SECOND


def test_no_answer_is_expected_without_a_ping() -> None:
    both = linked()
    assert both.shop.next_timeout() == 30 * SECOND


def test_a_link_is_probed_when_its_peer_dials_again() -> None:
    both = linked()
    both.bank.probe(now=3 * SECOND)
    assert sent_pieces(both.bank, 3 * SECOND) == [encode_frame(FrameKind.PING)]
    assert both.bank.next_timeout() == 13 * SECOND
    assert both.bank.handle_timeout(now=13 * SECOND) == [PeerLeft(GoodbyeReason.SILENT, "no answer within 20 s")]


def test_a_side_that_pauses_reading_still_sends_pings() -> None:
    both = linked()
    both.bank.send(numbered(1))
    sent_pieces(both.bank, 0)
    both.bank.pause(now=0)
    for second in (5, 10, 15, 20, 25):
        assert both.bank.next_timeout() == second * SECOND
        assert both.bank.handle_timeout(now=second * SECOND) == []
        assert sent_pieces(both.bank, second * SECOND) == [encode_frame(FrameKind.PONG)]
    both.bank.resume(now=26 * SECOND)
    assert both.bank.next_timeout() == 30 * SECOND
    both.bank.send(numbered(1))
    sent_pieces(both.bank, 27 * SECOND)
    assert both.bank.next_timeout() == 36 * SECOND


def test_signs_of_life_reset_the_peers_timeout() -> None:
    both = linked()
    both.shop.send(numbered(1))
    sent_pieces(both.shop, 0)
    for second in range(5, 60, 5):
        both.shop.receive(encode_frame(FrameKind.PONG), now=second * SECOND)
        if second < 30:
            assert both.shop.handle_timeout(now=second * SECOND) == []
            assert not both.shop.is_leaving


def test_goodbye_is_sent_after_queued_rows() -> None:
    both = linked()
    both.shop.send(numbered(3000))
    both.shop.leave(GoodbyeReason.SUPERSEDED, "another connection stays", now=0)
    with pytest.raises(ProtocolError, match="it is LEAVING"):
        both.shop.send(numbered(1))
    received = both.to_bank()
    assert numbers(received) == list(range(3000))
    assert received[-1] == PeerLeft(GoodbyeReason.SUPERSEDED, "another connection stays")


def test_rows_in_transit_are_received_after_goodbye() -> None:
    both = linked()
    both.bank.send(numbered(3000))
    both.shop.leave(GoodbyeReason.IDLE, now=0)
    both.to_bank()
    assert both.bank.is_leaving
    assert not both.bank.is_closed
    received = both.to_shop()
    assert numbers(received) == list(range(3000))
    assert received[-1] == PeerLeft(GoodbyeReason.IDLE)
    assert both.shop.is_closed
    assert both.bank.is_closed


def test_crossing_goodbyes_end_both_sides() -> None:
    both = linked()
    both.shop.leave(GoodbyeReason.IDLE, now=0)
    both.bank.leave(GoodbyeReason.STOPPING, now=0)
    both.settle()
    assert both.at_bank[-1] == PeerLeft(GoodbyeReason.IDLE)
    assert both.at_shop[-1] == PeerLeft(GoodbyeReason.STOPPING)
    assert both.shop.is_closed
    assert both.bank.is_closed


def test_leaving_twice_equals_leaving_once() -> None:
    both = linked()
    both.shop.leave(GoodbyeReason.IDLE, now=0)
    both.shop.leave(GoodbyeReason.STOPPING, now=0)
    assert len(sent_pieces(both.shop)) == 1
    both.shop.leave(GoodbyeReason.STOPPING, now=0)
    assert sent_pieces(both.shop) == []


def test_a_frame_after_goodbye_is_rejected() -> None:
    both = linked()
    goodbye = encode_frame(FrameKind.GOODBYE, b"\x01")
    with pytest.raises(PeerError, match="PING: not allowed while the connection is LEFT"):
        both.bank.receive(goodbye + encode_frame(FrameKind.PING), now=0)
    both.shop.leave(GoodbyeReason.IDLE, now=0)
    sent_pieces(both.shop)
    with pytest.raises(PeerError, match="GOODBYE: not allowed while the connection is OVER"):
        both.shop.receive(goodbye * 2, now=0)


def test_an_unanswered_goodbye_times_out_five_seconds_after_the_last_traffic() -> None:
    both = linked()
    both.shop.leave(GoodbyeReason.IDLE, now=40 * SECOND)
    assert both.shop.next_timeout() == 45 * SECOND
    sent_pieces(both.shop, 42 * SECOND)
    assert both.shop.next_timeout() == 47 * SECOND
    assert both.shop.handle_timeout(now=47 * SECOND) == [PeerLeft(GoodbyeReason.SILENT, "no GOODBYE within 5 s")]
    assert both.shop.is_closed


def test_leaving_ends_after_a_minute_despite_slow_traffic() -> None:
    """Half a frame, a byte at a time; complete frames without content; and a peer that reads nothing."""
    frame = encode_frame(FrameKind.PONG)
    for trickled in ([frame[:1], *[bytes([each]) for each in frame[1:15]]], [frame] * 15):
        both = linked()
        both.shop.leave(GoodbyeReason.IDLE, now=SECOND)
        sent_pieces(both.shop, SECOND)
        for second, data in enumerate(trickled, start=1):
            both.shop.receive(data, now=4 * second * SECOND)
            assert both.shop.handle_timeout(now=4 * second * SECOND) == []
        assert both.shop.next_timeout() == 61 * SECOND
        assert both.shop.handle_timeout(now=61 * SECOND) == [PeerLeft(GoodbyeReason.SILENT, "no GOODBYE within 60 s")]
        assert both.shop.is_closed
    left = linked()
    left.bank.send(numbered(1))
    left.shop.leave(GoodbyeReason.STOPPING, now=0)
    left.to_bank(0)
    for second in range(1, 15):
        left.bank.receive(frame[second - 1 : second], now=4 * second * SECOND)
    assert left.bank.next_timeout() == 60 * SECOND
    left.bank.handle_timeout(now=60 * SECOND)
    assert left.bank.is_closed


def test_a_side_that_cannot_write_ends_after_goodbye() -> None:
    both = linked()
    both.bank.send(numbered(1))
    both.shop.leave(GoodbyeReason.STOPPING, now=0)
    both.to_bank(SECOND)
    assert both.bank.next_timeout() == 6 * SECOND
    assert both.bank.handle_timeout(now=6 * SECOND) == []
    assert both.bank.is_closed


def test_leaving_before_hello_sends_hello_and_goodbye() -> None:
    both = linked(greet=False)
    both.bank.leave(GoodbyeReason.REFUSED, "who are you", now=0)
    assert both.to_shop() == [
        PeerGreeted(PeerIdentity(instance_id=BANK, name="bank", run_number=2, max_frame_bytes=8 << 20)),
        PeerLeft(GoodbyeReason.REFUSED, "who are you"),
    ]
    assert both.bank.is_closed
    assert both.to_bank() == []


def test_a_leaving_side_answers_nothing() -> None:
    both = linked()
    both.shop.query_role(DATABASE)
    both.to_bank()
    both.bank.leave(GoodbyeReason.STOPPING, now=0)
    both.bank.reply_role(DATABASE, "principal", 1)
    assert both.to_shop() == [PeerLeft(GoodbyeReason.STOPPING)]


def test_the_reason_silent_is_never_sent() -> None:
    with pytest.raises(ProtocolError, match="got SILENT"):
        linked().shop.leave(GoodbyeReason.SILENT, now=0)


def test_contradictory_limits_are_rejected() -> None:
    with pytest.raises(OptionError, match="silence_timeout"):
        LinkLimits(ping_after=20 * SECOND)
