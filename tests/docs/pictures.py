"""Makes the pictures of the HTML report and of the live page for the documentation: `python -m tests.docs.pictures`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ssbroker import Catalog
from ssbroker.diagnose import Fleet, html_report
from ssbroker.web.server import HttpServer
from tests.browser import browser
from tests.guards.repository import ROOT
from tests.web.shop import create_shop

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
PICTURE = ROOT / "docs" / "how-to" / "diagnose-page.png"
LIVE_PICTURE = ROOT / "docs" / "how-to" / "monitoring-page.png"
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
    """Makes both pictures."""
    picture_of_report()
    picture_of_live_page()


def picture_of_live_page() -> None:
    """Makes the picture of the page of an instance in which messages wait, with the charts of a queue that fills."""
    with (
        TemporaryDirectory() as folder,
        create_shop(Path(folder, "shop"), unsafe=False) as shop,
        shop.serve(port=0, allow_unencrypted=True),
        browser() as page,
    ):
        http = HttpServer(shop, "127.0.0.1", 0)
        host, port = http.start()
        page.open(f"http://{host}:{port}/", width=1300, height=900)
        page.wait_for("document.querySelectorAll('#queues button.more').length > 2")
        jobs = shop.database("Sales").queue("Jobs")
        for second in range(30):
            for _ in range(3 + second % 4):
                jobs.put(b"job")
            page.evaluate("new Promise((done) => setTimeout(done, 1000))")
            for _ in range(8 if second % 6 == 5 else 1):
                with jobs.take(timeout=0):
                    pass
        page.evaluate(
            "[...document.querySelectorAll('#queues button.more')].find((each) => each.textContent.endsWith('Jobs')).click()"
        )
        page.evaluate("window.scrollTo(0, 0)")
        LIVE_PICTURE.write_bytes(page.picture(whole=True))
        http.close()
    print(LIVE_PICTURE.relative_to(ROOT))


def picture_of_report() -> None:
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
