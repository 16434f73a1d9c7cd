"""The HTML report contains all results, loads nothing from the network, and works in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from ssbroker.diagnose import Fleet, compare, html_report, lint, reachability
from ssbroker.diagnose.report import layout
from tests.diagnose.finding_cases import fleet, north, passing, south
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


def test_report_contains_all_findings_instances_and_cells() -> None:
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
    assert sum(details.count("; ") + 1 for *_, details in cells) == len(matrix)
    for change in compare(TWO, PLANNED, at=NOW).changes:
        assert change.object in text
        assert change.after in text


def test_report_is_self_contained_and_escapes_catalog_text() -> None:
    hostile = here(
        route(1, "TCP://other", service="<script>alert(1)</script>"), route(2, "LOCAL", service='"><img src=x>')
    )
    html = html_report(catalog_of(hostile), at=NOW)
    assert re.findall(r"https?://|\bsrc=(?!x)|@import|url\((?!#)", html) == []
    assert html.count("<script>") == 1
    assert "<img" not in html
    assert "<h1>Net &lt;1&gt;</h1>" in page()


def test_oversized_graph_and_matrix_are_omitted() -> None:
    many = Fleet({f"I{number:03}": catalog_of(here()) for number in range(160)})
    assert "it has 160 instances and addresses" in html_report(many, at=NOW)
    wide = here(*(route(number, f"TCP://{number}", service=f"S{number}") for number in range(6000)))
    assert "too large for this page" in html_report(catalog_of(wide), at=NOW)


def test_empty_report() -> None:
    html = html_report(Fleet({}), comparison=compare(Fleet({}), Fleet({}), at=NOW), at=NOW)
    assert "No findings." in html
    assert "No changes." in html
    assert "There is no database or no known service." in html


def test_layout_uses_columns_for_paths_and_a_ring_for_cycles() -> None:
    places = layout("ABCD", [("A", "B"), ("B", "C"), ("A", "C"), ("D", "C")])
    assert places["A"].x < places["B"].x < places["C"].x
    assert len(set(places.values())) == 4
    ring = layout("ABC", [("A", "B"), ("B", "C"), ("C", "A")])
    assert len(set(ring.values())) == 3
    assert min(place.x for place in ring.values()) == min(place.y for place in ring.values()) == 0
    assert layout("", []) == {}


def rendered(html: str, folder: Path, *, then: str = "") -> str:
    """Returns the document of a browser after its scripts and an extra one have run."""
    file = folder / "page.html"
    file.write_text(html.replace("</body>", f"<script>{then}</script></body>"))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1300,1000", f"--screenshot={folder / 'page.png'}",
        "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@needs_browser
def test_report_in_a_browser_with_filter(tmp_path: Path) -> None:
    circle = fleet(
        A=passing("TCP://a", "TCP://b"), B=passing("TCP://b", "TCP://a"), C=replace(north(), addresses=("TCP://c",))
    )
    html = html_report(circle, at=NOW)
    on_error = "window.onerror = text => document.title = text;"
    script = """
      const boxes = [...document.querySelectorAll("svg g rect")].map(box => box.getBoundingClientRect());
      const apart = boxes.every((one, i) => boxes.every((other, j) => i === j || one.right <= other.left || other.right <= one.left
        || one.bottom <= other.top || other.bottom <= one.top));
      filter.value = "ssb020"; filter.dispatchEvent(new Event("input"));
      const shown = [...document.querySelectorAll("#findings details")].filter(block => !block.hidden);
      document.title = [boxes.length, boxes.every(box => box.width > 20), apart, shown.length, shown[0].textContent.slice(0, 6)].join(" ");
    """
    dom = rendered(html.replace("<script>", f"<script>{on_error}", 1), tmp_path, then=script)
    title = re.search(r"<title>([^<]*)</title>", dom)
    boxes = len(circle) + 1  # and one address outside the fleet
    assert title is not None
    assert title[1] == f"{boxes} true true 1 SSB020"
    assert (tmp_path / "page.png").stat().st_size > 10_000
