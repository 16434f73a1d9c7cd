from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.protocol.wire.frames import PeerIdentity
from ssbroker.protocol.wire.link import (
    TRANSITIONS,
    EstablishedConnection,
    KeptConnection,
    LinkInput,
    Phase,
    choose_connection,
)
from tests.protocol.wire.links import BANK, own

DATABASE = b"id of a database"


@pytest.mark.parametrize(("phase", "happened"), list(itertools.product(Phase, LinkInput)))
def test_every_phase_handles_every_input(phase: Phase, happened: LinkInput) -> None:
    """Inputs outside the table are not allowed to the peer, or never made by this side: GOODBYE is sent once."""
    missing = {
        Phase.GREETING: {LinkInput.FRAME, LinkInput.GOODBYE, LinkInput.WRITTEN},
        Phase.OPEN: {LinkInput.HELLO, LinkInput.WRITTEN},
        Phase.LEAVING: {LinkInput.HELLO},
        Phase.GONE: {LinkInput.HELLO, LinkInput.WRITTEN},
        Phase.LEFT: {LinkInput.HELLO, LinkInput.FRAME, LinkInput.GOODBYE},
        Phase.OVER: {LinkInput.HELLO, LinkInput.FRAME, LinkInput.GOODBYE},
    }
    assert (happened in TRANSITIONS[phase]) is (happened not in missing[phase])


def test_phases_never_go_back() -> None:
    order = list(Phase)
    for phase, inputs in TRANSITIONS.items():
        for after in inputs.values():
            assert order.index(after) >= order.index(phase)
        assert inputs[LinkInput.END] is Phase.OVER


SIDES = st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))


@given(SIDES, SIDES, st.booleans())
def test_both_sides_keep_the_same_of_two_crossing_connections(
    shop: tuple[bytes, int],
    bank: tuple[bytes, int],
    shop_sees_its_own_first: bool,  # noqa: FBT001
) -> None:
    if shop[0] == bank[0]:
        return
    of_shop, of_bank = (own(instance_id, number=number) for instance_id, number in (shop, bank))
    shop_as_peer, bank_as_peer = (
        PeerIdentity(instance_id=instance_id, name="far", run_number=number, max_frame_bytes=8 << 20)
        for instance_id, number in (shop, bank)
    )
    by_shop, by_bank = (
        EstablishedConnection(bank_as_peer, is_accept=False),
        EstablishedConnection(bank_as_peer, is_accept=True),
    )
    order = [by_shop, by_bank] if shop_sees_its_own_first else [by_bank, by_shop]
    at_shop = order[0 if choose_connection(of_shop, *order) is KeptConnection.FIRST else 1] is by_shop
    order = [EstablishedConnection(shop_as_peer, is_accept=True), EstablishedConnection(shop_as_peer, is_accept=False)]
    at_bank = choose_connection(of_bank, *order) is KeptConnection.FIRST
    assert at_shop is at_bank
    assert at_shop is ((shop[1], shop[0]) > (bank[1], bank[0]))


def test_the_connection_of_a_restarted_peer_is_kept() -> None:
    before, after = (
        PeerIdentity(instance_id=BANK, name="bank", run_number=number, max_frame_bytes=8 << 20) for number in (9, 3)
    )
    for first, second in itertools.product((True, False), repeat=2):
        assert (
            choose_connection(
                own(), EstablishedConnection(before, is_accept=first), EstablishedConnection(after, is_accept=second)
            )
            is KeptConnection.SECOND
        )


def test_the_later_of_two_connections_of_one_dialer_is_kept() -> None:
    peer = PeerIdentity(instance_id=BANK, name="bank", run_number=9, max_frame_bytes=8 << 20)
    assert (
        choose_connection(
            own(), EstablishedConnection(peer, is_accept=False), EstablishedConnection(peer, is_accept=False)
        )
        is KeptConnection.SECOND
    )
    assert (
        choose_connection(
            own(), EstablishedConnection(peer, is_accept=True), EstablishedConnection(peer, is_accept=True)
        )
        is KeptConnection.BOTH
    )
