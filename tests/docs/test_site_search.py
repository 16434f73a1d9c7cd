"""The search of the documentation site finds pages, in a browser and without another server."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from tests.browser import browser, skip_without_browser
from tests.guards.repository import ROOT

SITE = ROOT / "target" / "site"
FOUND = {
    "live page": "how-to/monitoring.html",
    "reassemble_stream": "api/ssbroker.spark.html",
    "poison message": "how-to/activation.html",
    "broker id": "concepts/identity.html",
}
LINKS = "[...document.querySelectorAll('#search-results li > a')].map((each) => each.href)"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Logs nothing."""


def test_search_finds_pages() -> None:
    skip_without_browser()
    if not (SITE / "search.html").exists():  # `make docs` has not run
        subprocess.run([sys.executable, ROOT / "scripts" / "docs_site.py"], check=True, cwd=ROOT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=SITE)) as server, browser() as page:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{server.server_address[0]!s}:{server.server_address[1]}"
        for words, expected in FOUND.items():
            page.open(f"{url}/search.html?q={words.replace(' ', '+')}", width=1300)
            page.wait_for("document.querySelector('#search-results .search-summary')?.textContent.includes('found')")
            links: list[str] = page.evaluate(LINKS)
            assert any(expected in link for link in links), (words, links)
        server.shutdown()
    assert {each for each in page.requests if not each.startswith((url, "data:", "about:"))} == set()
