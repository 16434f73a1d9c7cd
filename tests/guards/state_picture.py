"""Draws the states of a conversation from the table that the broker goes by. Run: `python -m tests.guards.state_picture --write`."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Final
from xml.sax.saxutils import escape

from ssbroker.protocol.states import DESCRIPTIONS, TABLE, ConversationInput, ConversationState
from tests.guards.repository import ROOT

PICTURE: Final = ROOT / "docs" / "concepts" / "dialog-states.svg"
PAGE: Final = ROOT / "docs" / "concepts" / "dialogs.md"
_BEGIN: Final = "<!-- drawn from the table -->\n"
_END: Final = "<!-- end of what is drawn -->\n"

_PLACES: Final = {
    ConversationState.SO: (110, 130),
    ConversationState.SI: (110, 360),
    ConversationState.CO: (400, 240),
    ConversationState.DI: (690, 130),
    ConversationState.DO: (690, 360),
    ConversationState.ER: (400, 490),
    ConversationState.CD: (970, 240),
}
_WIDTH, _HEIGHT = 1060, 540
_BOX = (150, 44)
_WORDS: Final = {
    ConversationInput.MESSAGE: "first message whole",
    ConversationInput.END_DIALOG: "EndDialog arrives",
    ConversationInput.ERROR: "Error arrives",
    ConversationInput.FAILURE: "the broker gives up",
    ConversationInput.ACKNOWLEDGED: "acknowledged",
}
_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>\n'
)
# Ways that would run through another box bend: by how many units, to which side.
_BENDS: Final = {(ConversationState.SO, ConversationState.CD): -310, (ConversationState.ER, ConversationState.CD): 200}
# Where on its way the words of one stand that crosses another; the others have theirs in the middle.
_WORDS_AT: Final = {
    (ConversationState.SO, ConversationState.ER): 0.75,
    (ConversationState.DI, ConversationState.ER): 0.75,
    (ConversationState.DO, ConversationState.CD): 0.4,
}


def picture() -> str:
    """The picture, an SVG: every way that changes a state, but CLEANUP, which leads from each to the end."""
    ways: dict[tuple[ConversationState, ConversationState], list[ConversationInput]] = defaultdict(list)
    for happened, row in TABLE.items():
        for before, after in row.items():
            if (
                isinstance(after, ConversationState)
                and after is not before
                and happened is not ConversationInput.CLEANUP
            ):
                ways[before, after].append(happened)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">\n',
        _TIP,
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>\n',
        *(_way(before, after, happened) for (before, after), happened in ways.items()),
        *(_box(state) for state in ConversationState),
        "</svg>\n",
    ]
    return "".join(parts)


def table() -> str:
    """The whole table, for the page."""
    head = (
        "| | "
        + " | ".join(f"`{state}`" for state in ConversationState)
        + " |\n|---|"
        + "---|" * len(ConversationState)
        + "\n"
    )
    return head + "".join(
        f"| {happened} | "
        + " | ".join("-" if row[state] == state else str(row[state]) for state in ConversationState)
        + " |\n"
        for happened, row in TABLE.items()
    )


def page(text: str) -> str:
    """The page with the table as it should be."""
    above, _, rest = text.partition(_BEGIN)
    _, _, below = rest.partition(_END)
    return f"{above}{_BEGIN}\n{table()}\n{_END}{below}"


def _box(state: ConversationState) -> str:
    x, y = _PLACES[state]
    width, height = _BOX
    return (
        f'<rect x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="8" fill="#eef4fb" stroke="#36577c"/>'
        f'<text x="{x}" y="{y - 3}" text-anchor="middle" font-weight="bold">{state}</text>'
        f'<text x="{x}" y="{y + 13}" text-anchor="middle" font-size="10">{DESCRIPTIONS[state]}</text>\n'
    )


def _way(before: ConversationState, after: ConversationState, happened: list[ConversationInput]) -> str:
    (x1, y1), (x2, y2) = _PLACES[before], _PLACES[after]
    bend = _BENDS.get((before, after), 0)
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    middle = ((x1 + x2) / 2 - bend * (y2 - y1) / length, (y1 + y2) / 2 + bend * (x2 - x1) / length)
    start, end = _edge(before, middle), _edge(after, middle)
    t = _WORDS_AT.get((before, after), 0.5)
    x, y = ((1 - t) ** 2 * a + 2 * t * (1 - t) * m + t**2 * b for a, m, b in zip(start, middle, end, strict=True))
    words = [_WORDS.get(each, str(each)) for each in happened]
    lines = "".join(
        f'<text x="{x:.0f}" y="{y + 4 + 14 * (place - (len(words) - 1) / 2):.0f}" text-anchor="middle" '
        f'stroke="#fff" stroke-width="4" paint-order="stroke">{escape(word)}</text>'
        for place, word in enumerate(words)
    )
    return (
        f'<path d="M{start[0]:.0f} {start[1]:.0f}Q{middle[0]:.0f} {middle[1]:.0f} {end[0]:.0f} {end[1]:.0f}" fill="none" '
        f'stroke="#555" marker-end="url(#tip)"/>{lines}\n'
    )


def _edge(state: ConversationState, towards: tuple[float, float]) -> tuple[float, float]:
    """Where a line from a box to a point leaves the box."""
    x, y = _PLACES[state]
    dx, dy = towards[0] - x, towards[1] - y
    scale = min(_BOX[0] / 2 / abs(dx) if dx else 1e9, _BOX[1] / 2 / abs(dy) if dy else 1e9)
    return x + dx * scale, y + dy * scale


def main(arguments: list[str]) -> int:
    """Write picture and page (`--write`), or say whether they are up to date."""
    text = PAGE.read_text(encoding="utf-8")
    if arguments == ["--write"]:
        PICTURE.write_text(picture(), encoding="utf-8")
        PAGE.write_text(page(text), encoding="utf-8")
        return 0
    drawn = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture()
    return int(not drawn or page(text) != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
