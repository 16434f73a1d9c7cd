"""What the page about dialogs draws is the table that the broker goes by."""

from __future__ import annotations

from tests.guards import state_picture


def test_the_picture_and_the_table_are_up_to_date() -> None:
    assert state_picture.main([]) == 0, "run `make format`"
