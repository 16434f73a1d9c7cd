"""What commands show in a terminal: nothing is folded, and prose wraps at words."""

from __future__ import annotations

import pytest

from ssbroker.cli.terminal import fitted
from tests.cli import screen_snapshot


@pytest.mark.parametrize("width", screen_snapshot.WIDTHS)
def test_the_screens_equal_the_snapshot(width: int) -> None:
    assert screen_snapshot.screens(width) == screen_snapshot.snapshot(width).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short", ["short"]),
        ("  - one two three four", ["  - one two", "    three four"]),
        ("  2. one two three four", ["  2. one two", "     three", "     four"]),
        ("a-word-that-is-longer-than-the-line and more", ["a-word-that-is-longer-than-the-line", "and more"]),
        ("注文注文注文 注文注文", ["注文注文注文", "注文注文"]),
        ("    USE [Sales]; DROP ROUTE [A route];", ["    USE [Sales]; DROP ROUTE [A route];"]),
        ("Do this: DROP ROUTE [a;b]; or not", ["Do this:", "  DROP ROUTE [a;b];", "or not"]),
        ("Run this: ALTER QUEUE [dbo].[Q] WITH STATUS = ON", ["Run this:", "  ALTER QUEUE [dbo].[Q] WITH STATUS = ON"]),
        ("CREATE QUEUE [Q]: it exists already", ["CREATE QUEUE", "[Q]: it exists", "already"]),
        ("one\ntwo three four five", ["one", "two three four", "five"]),
    ],
)
def test_prose_wraps_at_words_and_statements_do_not(text: str, lines: list[str]) -> None:
    assert fitted(text, 14).split("\n") == lines
