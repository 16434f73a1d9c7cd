from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.exceptions import OptionError, PeerError, ProtocolError
from ssbroker.protocol.adjacent.arbitration import Met, Stays, stays
from ssbroker.protocol.adjacent.batch import packed
from ssbroker.protocol.adjacent.frames import Kind, framed
from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.adjacent.hello import Far
from ssbroker.protocol.adjacent.limits import Limits
from ssbroker.protocol.adjacent.link import Link
from ssbroker.protocol.adjacent.occurrences import Greeted, Left, RoleAsked, RoleTold
from ssbroker.protocol.adjacent.phases import TABLE, Input, Phase
from ssbroker.protocol.adjacent.questions import WAITING_MAX
from tests.protocol.wire import BANK, SECOND, SHOP, Linked, linked, numbered, numbers, own, row, said, table

DATABASE = b"id of a database"
FROM_FAR = (Input.HELLO, Input.FRAME, Input.GOODBYE)


# The table.


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(Phase, Input)))
def test_n5_every_phase_knows_every_input(phase: Phase, happened: Input) -> None:
    """What the table leaves out is what the far side may not do, or what this side never does: GOODBYE goes once, and only then."""
    missing = {
        Phase.GREETING: {Input.FRAME, Input.GOODBYE, Input.WRITTEN},
        Phase.OPEN: {Input.HELLO, Input.WRITTEN},
        Phase.LEAVING: {Input.HELLO},
        Phase.GONE: {Input.HELLO, Input.WRITTEN},
        Phase.LEFT: {Input.HELLO, Input.FRAME, Input.GOODBYE},
        Phase.OVER: {Input.HELLO, Input.FRAME, Input.GOODBYE},
    }
    assert (happened in TABLE[phase]) is (happened not in missing[phase])


def test_n5_the_way_through_the_table_has_no_return() -> None:
    order = list(Phase)
    for phase, inputs in TABLE.items():
        for after in inputs.values():
            assert order.index(after) >= order.index(phase)
        assert inputs[Input.END] is Phase.OVER


# HELLO.


def test_n5_each_side_says_hello_first_of_all_and_hears_who_the_other_is() -> None:
    both = linked(greet=False)
    assert both.to_bank() == [Greeted(Far(instance_id=SHOP, name="shop", number=1, max_frame_bytes=8 << 20))]
    assert both.to_shop() == [Greeted(Far(instance_id=BANK, name="bank", number=2, max_frame_bytes=8 << 20))]
    assert both.shop.far is not None
    assert both.shop.far.name == "bank"
    assert (both.shop.is_accept, both.bank.is_accept) == (False, True)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.HELLO])
def test_n5_before_hello_no_frame_has_an_effect(kind: Kind) -> None:
    bodies = {
        Kind.FRAGMENTS: packed(table(row())),
        Kind.ROLE_ASKED: DATABASE,
        Kind.ROLE_TOLD: DATABASE + b"\x01" + bytes(8),
        Kind.GOODBYE: b"\x01",
    }
    both = linked(greet=False)
    with pytest.raises(PeerError, match=f"{kind.name}: it may not come while the connection is GREETING"):
        both.bank.received(framed(kind, bodies.get(kind, b"")), now=0)
    assert both.bank.is_over
    assert said(both.bank) == []  # whoever has not even said HELLO is told nothing


def test_n5_a_second_hello_ends_the_connection() -> None:
    both = linked()
    with pytest.raises(PeerError, match="HELLO: it may not come while the connection is OPEN"):
        both.bank.received(said(Link(own(), is_accept=False, limits=Limits(), now=0))[0], now=0)


def test_n5_rows_that_are_sent_before_hello_wait_for_it() -> None:
    both = linked(greet=False)
    both.shop.send(numbered(3))
    both.shop.ask_role(DATABASE)
    hello = said(both.shop)
    assert len(hello) == 1
    assert len(hello[0]) < 100
    both.bank.received(hello[0], now=0)
    both.to_shop()
    assert numbers(both.to_bank()) == [0, 1, 2]


def test_n4_after_hello_the_limit_of_a_frame_is_what_this_side_has_said() -> None:
    shop = Link(own(max_frame_bytes=2 << 20), is_accept=False, limits=Limits(), now=0)
    shop.received(said(linked(greet=False).bank)[0], now=0)
    with pytest.raises(PeerError, match=f"expected a body of 1 to {2 << 20} bytes"):
        shop.received(framed(Kind.FRAGMENTS, bytes((2 << 20) + 1))[:16], now=0)


def test_n9_an_instance_that_hears_its_own_id_leaves() -> None:
    itself = Far(instance_id=SHOP, name="shop", number=1, max_frame_bytes=8 << 20)
    both = Linked(
        Link(own(), is_accept=False, limits=Limits(), now=0), Link(own(), is_accept=True, limits=Limits(), now=0)
    )
    both.settle()
    for came in (both.at_shop, both.at_bank):
        assert came == [Greeted(itself, is_self=True), Left(Reason.ITSELF, "the instance has dialled itself")]
    assert both.shop.is_over
    assert both.bank.is_over


# Rows.


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.data())
def test_p1_rows_arrive_in_order_however_the_bytes_are_cut(counts: list[int], data: st.DataObject) -> None:
    both, sent = linked(), 0
    for count in counts:
        both.shop.send(numbered(count, first=sent))
        sent += count
    stream = b"".join(said(both.shop))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    ends = [*cuts, len(stream)]
    came = [
        occurrence
        for start, end in zip([0, *cuts], ends, strict=True)
        for occurrence in both.bank.received(stream[start:end], now=0)
    ]
    assert numbers(came) == list(range(sent))
    assert both.shop.waiting_bytes == 0


def test_n7_a_piece_to_write_is_little_more_than_a_frame() -> None:
    both = linked()
    both.shop.send(numbered(100, size=100_000))
    assert both.shop.waiting_bytes > 10_000_000
    first = both.shop.data_to_send(now=0)
    assert first is not None
    assert len(first) < (1 << 20) + (64 << 10)
    assert 8_900_000 < both.shop.waiting_bytes < 9_200_000


def test_n7_questions_go_before_rows() -> None:
    both = linked()
    both.shop.send(numbered(3000))
    said_first = both.shop.data_to_send(now=0)
    both.shop.ask_role(DATABASE)
    assert said_first is not None
    both.bank.received(said_first, now=0)
    assert isinstance(both.to_bank()[0], RoleAsked)


def test_p26_a_frame_of_rows_that_is_damaged_ends_the_connection_and_the_far_side_hears_why() -> None:
    both = linked()
    both.shop.send(numbered(3))
    [data] = said(both.shop)
    with pytest.raises(PeerError, match="does not match its checksum"):
        both.bank.received(data[:-1] + bytes([data[-1] ^ 1]), now=0)
    assert both.bank.received(data, now=0) == []
    [left] = both.to_shop()
    assert left == Left(Reason.BROKEN, "FRAGMENTS: the frame does not match its checksum")
    assert both.bank.is_over
    with pytest.raises(ProtocolError, match="it is OVER"):
        both.bank.send(numbered(1))


def test_p26_a_frame_that_is_whole_and_no_batch_ends_the_connection() -> None:
    both = linked()
    with pytest.raises(PeerError, match="FRAGMENTS: this is no batch of fragments"):
        both.bank.received(framed(Kind.FRAGMENTS, b"rows"), now=0)


# Roles.


def test_n23_a_role_is_asked_and_told() -> None:
    both = linked()
    both.shop.ask_role(DATABASE)
    assert both.to_bank() == [RoleAsked(DATABASE)]
    both.bank.tell_role(DATABASE, "principal", 7)
    assert both.to_shop() == [RoleTold(DATABASE, "principal", 7)]


def test_t6_a_role_that_nobody_asked_for_ends_the_connection() -> None:
    both = linked()
    both.shop.ask_role(DATABASE)
    answer = framed(Kind.ROLE_TOLD, DATABASE + b"\x01" + bytes(8))
    both.shop.received(answer, now=0)
    with pytest.raises(PeerError, match="nobody has asked"):
        both.shop.received(answer, now=0)


def test_n23_nobody_tells_a_role_unasked() -> None:
    both = linked()
    with pytest.raises(ProtocolError, match="has asked nothing"):
        both.bank.tell_role(DATABASE, "mirror", 0)
    for wrong in (b"short", bytes(17)):
        with pytest.raises(ProtocolError, match="a broker id"):
            both.shop.ask_role(wrong)
        with pytest.raises(ProtocolError, match="a broker id"):
            both.bank.tell_role(wrong, "mirror", 0)


def test_t4_who_asks_on_and_on_without_reading_is_cut_off() -> None:
    both = linked()
    question = framed(Kind.ROLE_ASKED, DATABASE)
    both.bank.received(question * WAITING_MAX, now=0)
    for _ in range(WAITING_MAX):
        both.bank.tell_role(DATABASE, "principal", 1)
    with pytest.raises(PeerError, match="without reading the answers"):
        both.bank.received(question, now=0)


def test_t4_pings_without_end_are_answered_by_one_pong() -> None:
    both = linked()
    both.bank.received(framed(Kind.PING) * 10_000, now=0)
    assert said(both.bank) == [framed(Kind.PONG)]


# Time.


def test_n11_hello_has_ten_seconds() -> None:
    bank = linked(greet=False).bank
    assert bank.next_timeout() == 10 * SECOND
    assert bank.handle_timeout(now=10 * SECOND - 1) == []
    bank.received(b"SSBW", now=9 * SECOND)
    assert bank.handle_timeout(now=10 * SECOND) == [Left(Reason.SILENT, "no HELLO within 10 s")]
    assert bank.is_over
    assert bank.next_timeout() is None


def test_n10_a_connection_that_carries_nothing_for_thirty_seconds_is_closed() -> None:
    both = linked()
    both.shop.send(numbered(1))
    both.to_bank(7 * SECOND)
    both.bank.received(framed(Kind.PONG), now=36 * SECOND)
    assert both.bank.next_timeout() == 37 * SECOND
    assert both.bank.handle_timeout(now=37 * SECOND - 1) == []
    assert said(both.bank, 37 * SECOND - 1) == []
    assert both.bank.handle_timeout(now=37 * SECOND) == []
    assert both.bank.is_leaving
    both.settle(37 * SECOND)
    assert both.at_shop[-1] == Left(Reason.IDLE, "nothing to carry")
    assert both.shop.is_over
    assert both.bank.is_over


def test_n10_what_waits_to_be_written_keeps_the_connection() -> None:
    both = linked()
    both.shop.send(numbered(1))
    assert both.shop.next_timeout() is None


def test_n10_after_ten_seconds_of_silence_a_ping_goes_and_the_answer_is_a_sign() -> None:
    both = linked()
    both.shop.send(numbered(1))
    assert len(said(both.shop, SECOND)) == 1
    assert both.shop.next_timeout() == 11 * SECOND
    both.shop.handle_timeout(now=11 * SECOND)
    [ping] = said(both.shop, 11 * SECOND)
    assert ping == framed(Kind.PING)
    assert both.shop.next_timeout() == 21 * SECOND
    both.bank.received(ping, now=12 * SECOND)
    assert both.to_shop(12 * SECOND) == []
    assert both.shop.next_timeout() == 31 * SECOND  # that is when it has been idle


def test_n10_without_a_sign_for_twenty_seconds_the_far_side_is_gone() -> None:
    both = linked()
    both.shop.send(numbered(1))
    said(both.shop, 0)
    both.shop.handle_timeout(now=10 * SECOND)
    said(both.shop, 10 * SECOND)
    assert both.shop.handle_timeout(now=20 * SECOND - 1) == []
    assert both.shop.handle_timeout(now=20 * SECOND) == [Left(Reason.SILENT, "no sign within 20 s")]
    assert both.shop.is_over


def test_n10_any_byte_is_a_sign() -> None:
    both = linked()
    both.shop.send(numbered(1))
    said(both.shop, 0)
    both.shop.received(b"S", now=9 * SECOND)
    assert both.shop.next_timeout() == 30 * SECOND


def test_n10_who_has_asked_nothing_expects_nothing() -> None:
    both = linked()
    assert both.shop.next_timeout() == 30 * SECOND


def test_n9_a_link_is_probed_when_the_far_side_dials_anew() -> None:
    both = linked()
    both.bank.probe(now=3 * SECOND)
    assert said(both.bank, 3 * SECOND) == [framed(Kind.PING)]
    assert both.bank.next_timeout() == 13 * SECOND
    assert both.bank.handle_timeout(now=13 * SECOND) == [Left(Reason.SILENT, "no sign within 20 s")]


def test_n12_who_does_not_read_gives_signs_and_expects_none() -> None:
    both = linked()
    both.bank.send(numbered(1))
    said(both.bank, 0)
    both.bank.pause(now=0)
    for second in (5, 10, 15, 20, 25):
        assert both.bank.next_timeout() == second * SECOND
        assert both.bank.handle_timeout(now=second * SECOND) == []
        assert said(both.bank, second * SECOND) == [framed(Kind.PONG)]
    both.bank.resume(now=26 * SECOND)
    assert both.bank.next_timeout() == 30 * SECOND
    both.bank.send(numbered(1))
    said(both.bank, 27 * SECOND)
    assert both.bank.next_timeout() == 36 * SECOND


def test_n12_signs_keep_the_far_side_patient() -> None:
    both = linked()
    both.shop.send(numbered(1))
    said(both.shop, 0)
    for second in range(5, 60, 5):
        both.shop.received(framed(Kind.PONG), now=second * SECOND)
        if second < 30:
            assert both.shop.handle_timeout(now=second * SECOND) == []
            assert not both.shop.is_leaving


# GOODBYE.


def test_n9_goodbye_goes_behind_what_was_sent_before() -> None:
    both = linked()
    both.shop.send(numbered(3000))
    both.shop.leave(Reason.SUPERSEDED, "another connection stays", now=0)
    with pytest.raises(ProtocolError, match="it is LEAVING"):
        both.shop.send(numbered(1))
    came = both.to_bank()
    assert numbers(came) == list(range(3000))
    assert came[-1] == Left(Reason.SUPERSEDED, "another connection stays")


def test_n9_who_has_left_still_takes_what_was_under_way() -> None:
    both = linked()
    both.bank.send(numbered(3000))
    both.shop.leave(Reason.IDLE, now=0)
    both.to_bank()
    assert both.bank.is_leaving
    assert not both.bank.is_over
    came = both.to_shop()
    assert numbers(came) == list(range(3000))
    assert came[-1] == Left(Reason.IDLE)
    assert both.shop.is_over
    assert both.bank.is_over


def test_n9_goodbyes_that_cross_end_both() -> None:
    both = linked()
    both.shop.leave(Reason.IDLE, now=0)
    both.bank.leave(Reason.STOPPING, now=0)
    both.settle()
    assert both.at_bank[-1] == Left(Reason.IDLE)
    assert both.at_shop[-1] == Left(Reason.STOPPING)
    assert both.shop.is_over
    assert both.bank.is_over


def test_n9_leaving_twice_is_as_leaving_once() -> None:
    both = linked()
    both.shop.leave(Reason.IDLE, now=0)
    both.shop.leave(Reason.STOPPING, now=0)
    assert len(said(both.shop)) == 1
    both.shop.leave(Reason.STOPPING, now=0)
    assert said(both.shop) == []


def test_n9_a_frame_after_goodbye_is_refused() -> None:
    both = linked()
    goodbye = framed(Kind.GOODBYE, b"\x01")
    with pytest.raises(PeerError, match="PING: it may not come while the connection is LEFT"):
        both.bank.received(goodbye + framed(Kind.PING), now=0)
    both.shop.leave(Reason.IDLE, now=0)
    said(both.shop)
    with pytest.raises(PeerError, match="GOODBYE: it may not come while the connection is OVER"):
        both.shop.received(goodbye * 2, now=0)


def test_n9_a_goodbye_that_is_not_answered_has_five_seconds_from_the_last_that_came_or_went() -> None:
    both = linked()
    both.shop.leave(Reason.IDLE, now=40 * SECOND)
    assert both.shop.next_timeout() == 45 * SECOND
    said(both.shop, 42 * SECOND)
    assert both.shop.next_timeout() == 47 * SECOND
    assert both.shop.handle_timeout(now=47 * SECOND) == [Left(Reason.SILENT, "no GOODBYE within 5 s")]
    assert both.shop.is_over


def test_n9_who_was_left_and_cannot_write_ends_all_the_same() -> None:
    both = linked()
    both.bank.send(numbered(1))
    both.shop.leave(Reason.STOPPING, now=0)
    both.to_bank(SECOND)
    assert both.bank.next_timeout() == 6 * SECOND
    assert both.bank.handle_timeout(now=6 * SECOND) == []
    assert both.bank.is_over


def test_n9_who_leaves_before_hello_says_hello_and_goodbye() -> None:
    both = linked(greet=False)
    both.bank.leave(Reason.REFUSED, "who are you", now=0)
    assert both.to_shop() == [
        Greeted(Far(instance_id=BANK, name="bank", number=2, max_frame_bytes=8 << 20)),
        Left(Reason.REFUSED, "who are you"),
    ]
    assert both.bank.is_over
    assert both.to_bank() == []


def test_n9_who_leaves_answers_nothing() -> None:
    both = linked()
    both.shop.ask_role(DATABASE)
    both.to_bank()
    both.bank.leave(Reason.STOPPING, now=0)
    both.bank.tell_role(DATABASE, "principal", 1)
    assert both.to_shop() == [Left(Reason.STOPPING)]


def test_n10_nobody_says_silent() -> None:
    with pytest.raises(ProtocolError, match="got SILENT"):
        linked().shop.leave(Reason.SILENT, now=0)


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="silence"):
        Limits(ping_after=20 * SECOND)


# Hostile bytes.


@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_t5_any_bytes_come_to_nothing_or_a_peer_error(pieces: list[bytes], greeted: bool) -> None:  # noqa: FBT001
    bank = linked(greet=greeted).bank
    try:
        for piece in pieces:
            assert bank.received(piece, now=0) == []
    except PeerError:
        assert bank.received(b"more", now=0) == []
        said(bank)
        assert bank.is_over


@given(st.lists(st.sampled_from(list(Kind)), max_size=12), st.integers(0, 12))
def test_n5_any_sequence_of_frames_is_followed_or_refused(kinds: list[Kind], leaves_after: int) -> None:
    frames = {
        Kind.HELLO: said(linked(greet=False).shop)[0],
        Kind.FRAGMENTS: framed(Kind.FRAGMENTS, packed(numbered(2))),
        Kind.ROLE_ASKED: framed(Kind.ROLE_ASKED, DATABASE),
        Kind.ROLE_TOLD: framed(Kind.ROLE_TOLD, DATABASE + b"\x01" + bytes(8)),
        Kind.PING: framed(Kind.PING),
        Kind.PONG: framed(Kind.PONG),
        Kind.GOODBYE: framed(Kind.GOODBYE, b"\x04"),
    }
    bank = linked(greet=False).bank
    rows = 0
    for number, kind in enumerate(kinds):
        if number == leaves_after:
            bank.leave(Reason.STOPPING, now=0)
        was_over, was_greeted, before = bank.is_over, bank.far is not None, rows
        try:
            rows += len(numbers(bank.received(frames[kind], now=0)))
        except PeerError:
            assert (kind is Kind.HELLO) is was_greeted or kind is Kind.ROLE_TOLD or bank.is_leaving
            break
        assert rows == before or (kind is Kind.FRAGMENTS and was_greeted and not was_over)
        said(bank)


# Arbitration.

SIDES = st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))


@given(SIDES, SIDES, st.booleans())
def test_n9_of_two_that_meet_both_sides_keep_the_same(
    shop: tuple[bytes, int],
    bank: tuple[bytes, int],
    shop_sees_its_own_first: bool,  # noqa: FBT001
) -> None:
    if shop[0] == bank[0]:
        return
    of_shop, of_bank = (own(instance_id, number=number) for instance_id, number in (shop, bank))
    shop_as_far, bank_as_far = (
        Far(instance_id=instance_id, name="far", number=number, max_frame_bytes=8 << 20)
        for instance_id, number in (shop, bank)
    )
    by_shop, by_bank = Met(bank_as_far, is_accept=False), Met(bank_as_far, is_accept=True)
    order = [by_shop, by_bank] if shop_sees_its_own_first else [by_bank, by_shop]
    at_shop = order[0 if stays(of_shop, *order) is Stays.FIRST else 1] is by_shop
    order = [Met(shop_as_far, is_accept=True), Met(shop_as_far, is_accept=False)]
    at_bank = stays(of_bank, *order) is Stays.FIRST
    assert at_shop is at_bank
    assert at_shop is ((shop[1], shop[0]) > (bank[1], bank[0]))


def test_n9_who_was_started_anew_is_on_the_new_connection() -> None:
    before, after = (Far(instance_id=BANK, name="bank", number=number, max_frame_bytes=8 << 20) for number in (9, 3))
    for first, second in itertools.product((True, False), repeat=2):
        assert stays(own(), Met(before, is_accept=first), Met(after, is_accept=second)) is Stays.SECOND


def test_n9_of_two_that_one_side_dialled_that_side_keeps_the_later() -> None:
    far = Far(instance_id=BANK, name="bank", number=9, max_frame_bytes=8 << 20)
    assert stays(own(), Met(far, is_accept=False), Met(far, is_accept=False)) is Stays.SECOND
    assert stays(own(), Met(far, is_accept=True), Met(far, is_accept=True)) is Stays.BOTH
