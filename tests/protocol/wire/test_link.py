from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.wire.frames import (
    DROPS_MAX,
    DropReason,
    FrameKind,
    GoodbyeReason,
    PeerIdentity,
    encode_frame,
    pack_batch,
)
from ssbroker.protocol.wire.link import (
    UNREAD_QUERIES_MAX,
    Link,
    LinkLimits,
    PeerGreeted,
    PeerLeft,
    RoleQuery,
    RoleReply,
    RowsDropped,
)
from tests.protocol.wire.link_fuzz import figures
from tests.protocol.wire.links import (
    BANK,
    SHOP,
    Linked,
    bytes_of,
    linked,
    numbered,
    numbers,
    own,
    row,
    sent_pieces,
    table,
)

DATABASE = b"id of a database"


def test_both_sides_exchange_hello_first() -> None:
    both = linked(greet=False)
    assert both.to_bank() == [
        PeerGreeted(PeerIdentity(instance_id=SHOP, name="shop", run_number=1, max_frame_bytes=8 << 20))
    ]
    assert both.to_shop() == [
        PeerGreeted(PeerIdentity(instance_id=BANK, name="bank", run_number=2, max_frame_bytes=8 << 20))
    ]
    assert both.shop.peer is not None
    assert both.shop.peer.name == "bank"


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind is not FrameKind.HELLO])
def test_before_hello_no_frame_has_an_effect(kind: FrameKind) -> None:
    bodies = {
        FrameKind.FRAGMENTS: bytes_of(table(row())),
        FrameKind.ROLE_QUERY: DATABASE,
        FrameKind.ROLE_REPLY: DATABASE + b"\x01" + bytes(8),
        FrameKind.GOODBYE: b"\x01",
        FrameKind.DROPPED: bytes(16) + b"\x01\x01",
    }
    both = linked(greet=False)
    with pytest.raises(PeerError, match=f"{kind.name}: not allowed while the connection is GREETING"):
        both.bank.receive(encode_frame(kind, bodies.get(kind, b"")), now=0)
    assert both.bank.is_closed
    assert sent_pieces(both.bank) == []  # a peer that has not sent HELLO gets no reason


def test_a_second_hello_ends_the_connection() -> None:
    both = linked()
    with pytest.raises(PeerError, match="HELLO: not allowed while the connection is OPEN"):
        both.bank.receive(sent_pieces(Link(own(), limits=LinkLimits(), now=0))[0], now=0)


def test_rows_queued_before_hello_wait_for_it() -> None:
    both = linked(greet=False)
    both.shop.send(numbered(3))
    both.shop.query_role(DATABASE)
    hello = sent_pieces(both.shop)
    assert len(hello) == 1
    assert len(hello[0]) < 100
    both.bank.receive(hello[0], now=0)
    both.to_shop()
    assert numbers(both.to_bank()) == [0, 1, 2]


def test_after_hello_the_frame_limit_is_the_announced_one() -> None:
    shop = Link(own(max_frame_bytes=2 << 20), limits=LinkLimits(), now=0)
    shop.receive(sent_pieces(linked(greet=False).bank)[0], now=0)
    with pytest.raises(PeerError, match=f"expected a body of 1 to {2 << 20} bytes"):
        shop.receive(encode_frame(FrameKind.FRAGMENTS, bytes((2 << 20) + 1))[:16], now=0)


def test_an_instance_that_receives_its_own_id_closes_the_connection() -> None:
    itself = PeerIdentity(instance_id=SHOP, name="shop", run_number=1, max_frame_bytes=8 << 20)
    both = Linked(
        Link(own(), limits=LinkLimits(), now=0),
        Link(own(), limits=LinkLimits(), now=0),
    )
    both.settle()
    for received in (both.at_shop, both.at_bank):
        assert received == [
            PeerGreeted(itself, is_self=True),
            PeerLeft(GoodbyeReason.ITSELF, "the instance has dialled itself"),
        ]
    assert both.shop.is_closed
    assert both.bank.is_closed


@pytest.mark.rule("P1")
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.data())
def test_rows_arrive_in_order_in_pieces_of_any_size(counts: list[int], data: st.DataObject) -> None:
    both, sent = linked(), 0
    for count in counts:
        both.shop.send(numbered(count, first=sent))
        sent += count
    stream = b"".join(sent_pieces(both.shop))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    ends = [*cuts, len(stream)]
    received = [
        occurrence
        for start, end in zip([0, *cuts], ends, strict=True)
        for occurrence in both.bank.receive(stream[start:end], now=0)
    ]
    assert numbers(received) == list(range(sent))
    assert both.shop.waiting == (0, 0)


def test_a_piece_to_write_is_little_more_than_a_frame() -> None:
    both = linked()
    both.shop.send(numbered(100, size=100_000))
    assert both.shop.waiting[1] > 10_000_000
    sizes = [len(piece) for piece in sent_pieces(both.shop)]
    assert sizes[0] < 200_000
    assert 900_000 < max(sizes) < (1 << 20) + (64 << 10)
    assert both.shop.waiting == (0, 0)


def test_role_queries_are_sent_before_rows() -> None:
    both = linked()
    both.shop.send(numbered(3000))
    hello_first = b"".join(both.shop.data_to_send(now=0))
    both.shop.query_role(DATABASE)
    both.bank.receive(hello_first, now=0)
    assert isinstance(both.to_bank()[0], RoleQuery)


@pytest.mark.rule("P26")
def test_a_damaged_frame_ends_the_connection_with_a_reason() -> None:
    both = linked()
    both.shop.send(numbered(3))
    [data] = sent_pieces(both.shop)
    with pytest.raises(PeerError, match="does not match its checksum"):
        both.bank.receive(data[:-1] + bytes([data[-1] ^ 1]), now=0)
    assert both.bank.receive(data, now=0) == []
    [left] = both.to_shop()
    assert left == PeerLeft(GoodbyeReason.BROKEN, "FRAGMENTS: the frame does not match its checksum")
    assert both.bank.is_closed
    with pytest.raises(ProtocolError, match="it is OVER"):
        both.bank.send(numbered(1))


@pytest.mark.rule("P26")
def test_a_frame_without_a_valid_batch_ends_the_connection() -> None:
    both = linked()
    with pytest.raises(PeerError, match="FRAGMENTS: not a valid batch of fragments"):
        both.bank.receive(encode_frame(FrameKind.FRAGMENTS, b"rows"), now=0)


def test_a_role_query_is_answered() -> None:
    both = linked()
    both.shop.query_role(DATABASE)
    assert both.to_bank() == [RoleQuery(DATABASE)]
    both.bank.reply_role(DATABASE, "principal", 7)
    assert both.to_shop() == [RoleReply(DATABASE, "principal", 7)]


@pytest.mark.threat("T6")
def test_an_unrequested_role_ends_the_connection() -> None:
    both = linked()
    both.shop.query_role(DATABASE)
    answer = encode_frame(FrameKind.ROLE_REPLY, DATABASE + b"\x01" + bytes(8))
    both.shop.receive(answer, now=0)
    with pytest.raises(PeerError, match=rf"^ROLE_REPLY: the role of broker id {UUID(bytes=DATABASE)} was not queried$"):
        both.shop.receive(answer, now=0)


def test_reasons_for_dropped_rows_arrive() -> None:
    both = linked()
    reasons = {
        (b"one conversation", True): DropReason.NOT_ACCEPTED,
        (b"two conversation", False): DropReason.NO_RETURN_ROUTE,
    }
    both.bank.report_drops(reasons)
    assert both.to_shop() == [RowsDropped(reasons)]
    assert both.to_shop() == []


@pytest.mark.threat("T6")
def test_reasons_that_wait_are_limited() -> None:
    both = linked()
    for number in range(2 * DROPS_MAX):
        both.bank.report_drops({(b"%016d" % number, True): DropReason.NOT_ACCEPTED})
    (arrived,) = both.to_shop()
    assert isinstance(arrived, RowsDropped)
    assert list(arrived.reasons) == [(b"%016d" % number, True) for number in range(DROPS_MAX)]


def test_answering_without_a_query_is_an_error() -> None:
    both = linked()
    with pytest.raises(ProtocolError, match="no unanswered query"):
        both.bank.reply_role(DATABASE, "mirror", 0)
    for wrong in (b"short", bytes(17)):
        with pytest.raises(ProtocolError, match="a broker id"):
            both.shop.query_role(wrong)
        with pytest.raises(ProtocolError, match="a broker id"):
            both.bank.reply_role(wrong, "mirror", 0)


@pytest.mark.threat("T4")
def test_a_peer_that_queries_without_reading_is_disconnected() -> None:
    both = linked()
    question = encode_frame(FrameKind.ROLE_QUERY, DATABASE)
    both.bank.receive(question * UNREAD_QUERIES_MAX, now=0)
    for _ in range(UNREAD_QUERIES_MAX):
        both.bank.reply_role(DATABASE, "principal", 1)
    with pytest.raises(PeerError, match="without reading the replies"):
        both.bank.receive(question, now=0)


@pytest.mark.threat("T4")
def test_many_pings_are_answered_by_one_pong() -> None:
    both = linked()
    both.bank.receive(encode_frame(FrameKind.PING) * 10_000, now=0)
    assert sent_pieces(both.bank) == [encode_frame(FrameKind.PONG)]


@pytest.mark.threat("T5")
@given(st.lists(st.binary(max_size=64), max_size=8), st.booleans())
def test_random_bytes_give_nothing_or_a_peer_error(pieces: list[bytes], greeted: bool) -> None:  # noqa: FBT001
    bank = linked(greet=greeted).bank
    try:
        for piece in pieces:
            assert bank.receive(piece, now=0) == []
    except PeerError:
        assert bank.receive(b"more", now=0) == []
        sent_pieces(bank)
        assert bank.is_closed


@given(st.lists(st.sampled_from(list(FrameKind)), max_size=12), st.integers(0, 12))
def test_any_sequence_of_frames_is_processed_or_rejected(kinds: list[FrameKind], leaves_after: int) -> None:
    frames = {
        FrameKind.HELLO: sent_pieces(linked(greet=False).shop)[0],
        FrameKind.FRAGMENTS: encode_frame(FrameKind.FRAGMENTS, pack_batch(numbered(2))),
        FrameKind.ROLE_QUERY: encode_frame(FrameKind.ROLE_QUERY, DATABASE),
        FrameKind.ROLE_REPLY: encode_frame(FrameKind.ROLE_REPLY, DATABASE + b"\x01" + bytes(8)),
        FrameKind.PING: encode_frame(FrameKind.PING),
        FrameKind.PONG: encode_frame(FrameKind.PONG),
        FrameKind.GOODBYE: encode_frame(FrameKind.GOODBYE, b"\x04"),
        FrameKind.DROPPED: encode_frame(FrameKind.DROPPED, bytes(16) + b"\x01\x01"),
    }
    bank = linked(greet=False).bank
    rows = 0
    for number, kind in enumerate(kinds):
        if number == leaves_after:
            bank.leave(GoodbyeReason.STOPPING, now=0)
        was_over, was_greeted, before = bank.is_closed, bank.peer is not None, rows
        try:
            rows += len(numbers(bank.receive(frames[kind], now=0)))
        except PeerError:
            assert (kind is FrameKind.HELLO) is was_greeted or kind is FrameKind.ROLE_REPLY or bank.is_leaving
            break
        assert rows == before or (kind is FrameKind.FRAGMENTS and was_greeted and not was_over)
        sent_pieces(bank)


def test_input_of_hostile_peers_is_rejected_or_waits() -> None:
    """`link_fuzz` runs millions of inputs."""
    received = figures(3_000, seed=7)
    assert received.total() == 3_000
    assert received["taken"] > 300
    assert sum(count for what, count in received.items() if what not in ("taken", "waits for more")) > 1_000
