from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.protocol.wire.connection import TABLE, Input, Met, Phase, Stays, stays
from ssbroker.protocol.wire.frames import Far
from tests.protocol.wire import BANK, own

DATABASE = b"id of a database"


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
