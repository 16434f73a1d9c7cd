"""The security page lists every threat with the words of the table."""

from __future__ import annotations

from tests.guards.repository import ROOT
from tests.guards.threats import THREATS


def test_the_page_lists_every_threat() -> None:
    page = (ROOT / "docs" / "concepts" / "security.md").read_text(encoding="utf-8")
    rows = [f"| {threat.number} | {threat.summary} | {threat.answer} |" for threat in THREATS]
    assert [row for row in rows if row not in page] == []
