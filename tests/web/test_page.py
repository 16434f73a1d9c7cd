"""The live page in a browser: it shows the state as it changes, explains undelivered messages, and is usable on a phone and with the keyboard."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from ssbroker import Instance
from ssbroker.broker.instance import instance_context
from ssbroker.protocol.events import QueueDisabled
from ssbroker.web.server import HttpServer
from tests.browser import Page, browser, skip_without_browser
from tests.web.shop import HOSTILE, create_shop

TOKEN = "an-example-of-a-token"
LIVE = "document.getElementById('link').textContent === 'Live'"
VISIBLE_HOSTILE = HOSTILE.replace("\u202e", "\\u202e")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with (
        create_shop(tmp_path_factory.mktemp("page") / "shop") as instance,
        instance.serve(port=0, allow_unencrypted=True),
    ):
        yield instance


@pytest.fixture(scope="module")
def url(shop: Instance) -> Iterator[str]:
    http = HttpServer(shop, "127.0.0.1", 0)
    host, port = http.start()
    yield f"http://{host}:{port}/"
    http.close()


@pytest.fixture(scope="module")
def opened() -> Iterator[Page]:
    skip_without_browser()
    with browser() as page:
        yield page


@pytest.fixture
def page(opened: Page, url: str) -> Iterator[Page]:
    """A browser; fails if the page reports an error, violates its policy, or asks another server."""
    opened.messages.clear()
    opened.requests.clear()
    yield opened
    opened("Page.navigate", url="about:blank")
    assert opened.messages == []
    assert {request for request in opened.requests if not request.startswith((url, "data:,", "about:blank"))} == set()


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.evaluate(f"[...document.querySelectorAll({selector!r})].map((each) => each.textContent)")
    return found


def test_the_page_shows_the_state(page: Page, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    assert page.evaluate("document.title") == "shop · ssbroker"
    totals = texts(page, "#totals li")
    assert {"5undelivered messages", "2disabled queues"} <= set(totals)
    assert texts(page, "#waiting td:first-child") == ["//bank/Payments", f"//nobody/{VISIBLE_HOSTILE}"]
    assert any("no database of this instance has the service" in text for text in texts(page, "#waiting .reason"))
    queues = texts(page, "#queues tr td:first-child")
    assert queues[:3] == [
        "Sales: dbo.Archive",
        "Sales: dbo.Broken",
        "Sales: dbo.Intake",
    ]  # those that need a look come first
    assert f"Sales: dbo.{VISIBLE_HOSTILE}" in queues
    assert any("ZeroDivisionError" in text for text in texts(page, "#queues .reason"))
    assert texts(page, "#conversations td:nth-child(2)") == ["CO CONVERSING"]


def test_names_are_text(page: Page, url: str) -> None:
    """Names of peers and of users cannot add elements, run scripts, or change the direction of the text around them."""
    page.open(url, width=1300)
    page.wait_for(LIVE)
    assert page.evaluate("document.querySelectorAll('img, iframe, script:not([src])').length") == 0
    assert "\u202e" not in page.evaluate("document.body.textContent")


def test_the_page_follows_changes(page: Page, shop: Instance, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.evaluate("document.querySelector('#queues button.more').focus()")
    shop.database("Sales").queue("Followed").put(b"two chairs")
    ready = "[...document.querySelectorAll('#queues tr')].find((row) => row.textContent.includes('dbo.Followed'))?.cells[2].textContent"
    page.wait_for(f"{ready} === '1'")
    assert page.evaluate("document.activeElement.className") == "more"  # rows that are added do not take the focus away
    shop.database("Sales").queue("Followed").put(b"four tables")
    page.wait_for(f"{ready} === '2'")


def test_charts_of_a_queue_open_and_close_with_the_keyboard(page: Page, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.evaluate("document.querySelector('#queues button.more').focus()")
    page.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert texts(page, "figcaption span:first-child") == ["Ready messages", "Age of oldest message"]
    page.wait_for("document.querySelector('figure path.line').getAttribute('d').startsWith('M')")
    assert page.evaluate("document.querySelector('figure svg').getAttribute('aria-label')").startswith(
        "Ready messages: max. "
    )
    page.press("Enter")
    page.wait_for("document.querySelectorAll('figure').length === 0")


def test_one_click_explains_why_messages_wait(page: Page, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.click_on("#waiting tr:nth-child(2) button")
    page.wait_for("document.querySelector('#explanation[open] pre')")
    assert texts(page, "#explained") == ["Why messages for //bank/Payments are undelivered"]
    assert "Decision: REMOTE, sent to TCP://bank.example:4022" in texts(page, "#explanation pre")[0]
    (request,) = (request for request in page.requests if "/explain?" in request)
    asked = parse_qs(urlsplit(request).query, keep_blank_values=True)
    assert set(asked) == {"database", "service", "status"}
    page.press("Escape")
    page.wait_for("!document.getElementById('explanation').open")
    assert page.evaluate("document.activeElement.textContent") == "Explain"


def test_events_appear(page: Page, shop: Instance, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    instance_context(shop).events.emit(QueueDisabled(at=0, database="Sales", queue=HOSTILE, error="five failures"))
    page.wait_for("document.querySelector('#events .error')")
    assert texts(page, "#events .error .name")[0] == f"Sales: queue: {VISIBLE_HOSTILE}, error: five failures"


def test_times_have_a_date(page: Page, shop: Instance, url: str) -> None:
    """A page and a connection stay open for days."""
    page.open(url, width=1300)
    page.wait_for(LIVE)
    connection = (
        "{ connection_id: 'old', is_accept: true, state_desc: 'OPEN', connect_time: '2026-11-14T12:00:00.000Z' }"
    )
    connected = page.evaluate(  # at once: the server's next state does not have this connection
        f"receive('state', {{ ...state, serving: {{ ...state.serving, connections: [{connection}] }} }});"
        "document.querySelector('#connections td[data-name=Connected]').textContent"
    )
    assert re.fullmatch(r"2026-11-1[45] \d\d:\d\d:\d\d", connected)  # in the time zone of the browser
    instance_context(shop).events.emit(QueueDisabled(at=0, database="Sales", queue="dbo.Orders", error="five failures"))
    page.wait_for("document.querySelector('#events .error')")
    (at, *_) = texts(page, "#events .error .dim")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", at)


def test_a_job_that_fails_at_once_is_moved(page: Page, shop: Instance, url: str) -> None:
    """The page does not say that it has failed five times."""
    toys = shop.database("Sales").queue("Toys", on_poison="move")
    toys.put(b"a chair for Mars")
    with toys.take(timeout=0) as job:
        job.fail("no such planet")
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.wait_for("document.getElementById('queues').textContent.includes('no such planet')")  # not in an earlier state
    (moved,) = (text for text in texts(page, "#queues .reason") if "no such planet" in text)
    assert re.fullmatch(r"1 conversation group moved to dbo\.Toys_failed; last failure .* UTC: no such planet", moved)


def test_the_filter_selects_queues(page: Page, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.evaluate("document.getElementById('filter').focus()")
    page.type("INTAKE")
    page.wait_for("document.querySelectorAll('#queues tr').length === 2")
    assert texts(page, "#queues td:first-child") == ["Sales: dbo.Intake"]


def test_a_large_state_says_what_the_page_omits(page: Page, url: str) -> None:
    """The totals count all rows, and a filter that finds nothing does not mean that there is nothing."""
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.evaluate("document.getElementById('filter').value = 'Refunds'")
    page.evaluate(  # the server's next state omits nothing
        "receive('state', { ...state, totals: { ...state.totals, ready: 1234, disabled_queues: 7 }, omitted: { ...state.omitted, queues: 60 } });"
        "window.shown = ['#totals li', '#queues .content p'].map((each) => [...document.querySelectorAll(each)].map((one) => one.textContent))"
    )
    totals, queues = page.evaluate("shown")
    assert {"1,234ready messages", "7disabled queues"} <= set(totals)
    assert queues == ["No queues", "60 more rows not shown; ssbroker status shows all."]


def test_a_paused_page_does_not_change(page: Page, shop: Instance, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.click_on("#pause")
    shop.database("Sales").queue("Paused").put(b"one")
    page.wait_for("state.queues.some((row) => row.queue === 'dbo.Paused')")
    assert "dbo.Paused" not in page.evaluate("document.getElementById('queues').textContent")
    page.click_on("#pause")
    page.wait_for("document.getElementById('queues').textContent.includes('dbo.Paused')")


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [390, 1300, 1920])
def test_the_page_fits_the_window_and_is_legible(page: Page, url: str, width: int, is_dark: bool) -> None:  # noqa: FBT001 - parametrized
    page.open(url, width=width, dark=is_dark)
    page.wait_for(LIVE)
    page.click_on("#queues button.more")
    page.wait_for("document.querySelector('figure')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrasts = page.evaluate(CONTRASTS)
    assert contrasts
    assert {text: ratio for text, ratio in contrasts.items() if ratio < 4.5} == {}  # as WCAG demands


# The contrast of each text with the first opaque background behind it.
CONTRASTS = """
(() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = parts(color).slice(0, 3).map((value) => value / 255).map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if ((parts(color)[3] ?? 1) === 1) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const found = {};
  for (const node of document.querySelectorAll("h1, h2, th, td, li, a, button, figcaption span, .dim, #link")) {
    if (!node.checkVisibility() || !node.textContent.trim()) continue;
    const [one, other] = [light(getComputedStyle(node).color), light(behind(node))];
    found[`${node.tagName} ${node.textContent.trim().slice(0, 40)}`] = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  }
  return found;
})()
"""


def test_the_token_is_asked_for_and_kept_for_the_tab(opened: Page, shop: Instance) -> None:
    http = HttpServer(shop, "127.0.0.1", 0, token=TOKEN)
    host, port = http.start()
    try:
        opened.open(f"http://{host}:{port}/", width=1300)
        opened.wait_for("!document.getElementById('login').hidden")
        assert "bank" not in opened.evaluate("document.body.textContent")
        # Before the first state, the page does not claim that there is nothing.
        assert set(texts(opened, "main .content, main .forwarded")) == {"Loading…"}
        for given in ("not the token of this", TOKEN):
            opened.evaluate("document.getElementById('token').focus()")
            opened.type(given)
            opened.press("Enter")
            opened.wait_for("document.getElementById('refused').textContent || " + LIVE)
        opened.wait_for(LIVE)
        assert opened.evaluate("document.getElementById('login').hidden")
        opened.open(f"http://{host}:{port}/", width=1300)
        opened.wait_for(LIVE)
        opened.evaluate("sessionStorage.clear()")
        opened.open("about:blank", width=1300)
        opened.open(f"http://{host}:{port}/#token={TOKEN}", width=1300)
        opened.wait_for(LIVE)
        assert opened.evaluate("location.href") == f"http://{host}:{port}/"
    finally:
        http.close()


def test_the_page_says_that_the_server_has_ended_and_finds_the_next_one(opened: Page, shop: Instance) -> None:
    http = HttpServer(shop, "127.0.0.1", 0)
    host, port = http.start()
    opened.open(f"http://{host}:{port}/", width=1300)
    opened.wait_for(LIVE)
    http.close()
    opened.wait_for("document.getElementById('link').textContent.startsWith('Disconnected')")
    again = HttpServer(shop, host, port)
    started = threading.Event()
    for _ in range(100):
        try:
            again.start()
            break
        except OSError:
            started.wait(0.1)
    opened.wait_for(LIVE)
    again.close()


HIDE_WHILE_THE_SERVER_IS_AWAY = """
window.requests = 0;
window.scheduled = new Map();
window.fetch = () => { window.requests += 1; return Promise.reject(new Error("away")); };
window.setTimeout = (run) => { const number = window.scheduled.size + 1; window.scheduled.set(number, run); return number; };
window.clearTimeout = (number) => { window.scheduled.set(number, null); };
stopper.abort();
stream();
"""


def test_a_hidden_page_does_not_try_again(page: Page, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.evaluate(HIDE_WHILE_THE_SERVER_IS_AWAY)
    page.wait_for("scheduled.size === 1")  # the next try
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.evaluate("[...scheduled.values()].at(-1)()")  # a minute later
    assert page.evaluate("document.getElementById('link').textContent") == "Paused while hidden"
    page.evaluate("[...scheduled.values()].slice(0, -1).forEach((each) => each?.())")
    assert page.evaluate("requests") == 1


def test_a_page_that_reads_again_keeps_the_gap(page: Page, url: str) -> None:
    page.open(url, width=1300)
    page.wait_for(LIVE)
    key = "keyOf({ database: 'Sales', queue: 'dbo.Orders' })"
    page.evaluate(f"depths.set({key}, [[10.04, 2, 0]])")
    page.evaluate("receive('history', { run, queues: [['Sales', 'dbo.Orders', [[10, 2, 0], [10, null, null]]]] })")
    assert page.evaluate(f"depths.get({key}).slice(0, 2)") == [[10, 2, 0], [10, None, None]]


def test_a_server_that_starts_again_leaves_a_gap(page: Page, url: str) -> None:
    """Its number of forwarded messages starts from 0 again, which is no negative rate."""
    page.open(url, width=1300)
    page.wait_for(LIVE)
    page.evaluate(  # at once: without the states of the server
        "const forwarding = (messages) => ({ ...state, at: new Date(new Date(state.at).getTime() + 1000).toISOString(),"
        "  forwarding: { messages, bytes: 0, messages_discarded: 0, pending_messages: 0, pending_bytes: 0 } });"
        "const states = [forwarding(5000), forwarding(20)];"
        "receive('state', states[0]);"
        "receive('history', { run: 'next', queues: [] });"
        "receive('state', states[1]);"
        "window.rate = document.querySelector('.forwarded td[data-name=\"Per second\"]').textContent;"
        f"window.points = depths.get({INTAKE}).slice(-3).map((point) => point[1]);"
    )
    assert page.evaluate("[rate, points]") == ["0", [4, None, 4]]


INTAKE = "keyOf({ database: 'Sales', queue: 'dbo.Intake' })"
