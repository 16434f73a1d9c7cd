"""The page for people: it says what the functions say, needs nothing from elsewhere, and opens in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from ssbroker.diagnose import Fleet, compare, html_report, lint, reachability
from ssbroker.diagnose.report import arranged
from tests.diagnose.cases import fleet, north, passing, south
from tests.rules.setting import here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser is installed ({', '.join(NAMES)})")

TWO = fleet(NORTH=north("TCP://out"), SOUTH=south("LOCAL"))
PLANNED = fleet(NORTH=north("TCP://out"), SOUTH=south("TCP://north"))


def page() -> str:
    return html_report(TWO, comparison=compare(TWO, PLANNED, at=NOW), at=NOW, title="Net <1>")


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", html))


def test_it_holds_every_finding_every_instance_and_every_cell() -> None:
    html = page()
    text = text_of(html)
    for finding in lint(TWO, at=NOW):
        assert finding.where in text
        assert finding.message in text
        assert finding.remedy in text
    assert [f"<title>{name}</title>" in html for name in TWO] == [True, True]
    assert "<title>NORTH to SOUTH: 1 route</title>" in html
    assert "<title>NORTH to TCP://out:4022: 1 route</title>" in html
    cells = re.findall(r'<td class="(\w+)" title="([^"]+) to ([^"]+?): ([^"]+)">', html)
    matrix = reachability(TWO, at=NOW).to_pylist()
    assert {(start, service) for _, start, service, _ in cells} == {
        (f"{row['instance']}/{row['database']}", row["service"]) for row in matrix
    }
    assert sum(told.count("; ") + 1 for *_, told in cells) == len(matrix)
    for change in compare(TWO, PLANNED, at=NOW).changes:
        assert change.object in text
        assert change.after in text


def test_it_needs_nothing_from_elsewhere_and_runs_no_text_of_a_catalog() -> None:
    nasty = here(
        route(1, "TCP://other", service="<script>alert(1)</script>"), route(2, "LOCAL", service='"><img src=x>')
    )
    html = html_report(catalog_of(nasty), at=NOW)
    assert re.findall(r"https?://|\bsrc=(?!x)|@import|url\((?!#)", html) == []
    assert html.count("<script>") == 1
    assert "<img" not in html
    assert "<h1>Net &lt;1&gt;</h1>" in page()


def test_what_is_too_large_for_a_page_is_said() -> None:
    many = Fleet({f"I{number:03}": catalog_of(here()) for number in range(160)})
    assert "160 instances and addresses are too many for a picture" in html_report(many, at=NOW)
    wide = here(*(route(number, f"TCP://{number}", service=f"S{number}") for number in range(6000)))
    assert "too large for a page" in html_report(catalog_of(wide), at=NOW)


def test_nothing_to_tell_is_told() -> None:
    html = html_report(Fleet({}), comparison=compare(Fleet({}), Fleet({}), at=NOW), at=NOW)
    assert "Nothing is found." in html
    assert "Nothing changes." in html
    assert "No database begins a conversation" in html


def test_columns_follow_the_way_and_circles_become_a_ring() -> None:
    places = arranged("ABCD", [("A", "B"), ("B", "C"), ("A", "C"), ("D", "C")])
    assert places["A"].x < places["B"].x < places["C"].x
    assert len(set(places.values())) == 4
    ring = arranged("ABC", [("A", "B"), ("B", "C"), ("C", "A")])
    assert len(set(ring.values())) == 3
    assert min(place.x for place in ring.values()) == min(place.y for place in ring.values()) == 0
    assert arranged("", []) == {}


def opened(html: str, folder: Path, *, then: str = "") -> str:
    """The document as a browser has it after its scripts, and after a further one."""
    file = folder / "page.html"
    file.write_text(html.replace("</body>", f"<script>{then}</script></body>"))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1300,1000", f"--screenshot={folder / 'page.png'}",
        "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@needs_browser
def test_a_browser_shows_it_and_its_filter_works(tmp_path: Path) -> None:
    circle = fleet(
        A=passing("TCP://a", "TCP://b"), B=passing("TCP://b", "TCP://a"), C=replace(north(), addresses=("TCP://c",))
    )
    html = html_report(circle, at=NOW)
    watch = "window.onerror = text => document.title = text;"
    tells = """
      const boxes = [...document.querySelectorAll("svg g rect")].map(box => box.getBoundingClientRect());
      const apart = boxes.every((one, i) => boxes.every((other, j) => i === j || one.right <= other.left || other.right <= one.left
        || one.bottom <= other.top || other.bottom <= one.top));
      filter.value = "ssb020"; filter.dispatchEvent(new Event("input"));
      const shown = [...document.querySelectorAll("#findings details")].filter(block => !block.hidden);
      document.title = [boxes.length, boxes.every(box => box.width > 20), apart, shown.length, shown[0].textContent.slice(0, 6)].join(" ");
    """
    dom = opened(html.replace("<script>", f"<script>{watch}", 1), tmp_path, then=tells)
    title = re.search(r"<title>([^<]*)</title>", dom)
    boxes = len(circle) + 1  # and one address that is none of the fleet's
    assert title is not None
    assert title[1] == f"{boxes} true true 1 SSB020"
    assert (tmp_path / "page.png").stat().st_size > 10_000
