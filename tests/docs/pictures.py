"""Makes the pictures of the HTML report for the documentation: `python -m tests.docs.pictures`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ssbroker import Catalog
from ssbroker.diagnose import Fleet, html_report
from tests.browser import browser
from tests.guards.repository import ROOT

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
PICTURE = ROOT / "docs" / "how-to" / "diagnose-page.png"
CLICK = """
(() => {
  const graph = document.getElementById("graph");
  document.getElementById("routes").scrollIntoView({ behavior: "instant" });
  const place = graph._cyreg.cy.nodes().filter((node) => node.data("fullLabel") === "//red.example/Pickup")[0].renderedPosition();
  const at = graph.getBoundingClientRect();
  return [at.x + place.x, at.y + place.y];
})()
"""


def main() -> None:
    """Makes the picture of a graph in which a service is chosen."""
    shop = Catalog.load(ROOT / "examples" / "route_a_day" / "routes.sql", now=AT)
    with TemporaryDirectory() as folder, browser() as page:
        file = Path(folder, "report.html")
        file.write_text(html_report(Fleet({"SHOP": shop}), at=AT), encoding="utf-8")
        page.open(file, width=1300, height=860)
        page.click(*page.evaluate(CLICK))
        page.evaluate("document.querySelector('#details details').open = true")
        PICTURE.write_bytes(page.picture())
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
