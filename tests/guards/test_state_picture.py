"""The page about dialogs shows the state table that the broker uses."""

from __future__ import annotations

from tests.guards import state_picture


def test_the_picture_and_the_table_are_up_to_date() -> None:
    assert state_picture.main([]) == 0, "run `make format`"
