"""The HTML report contains all results, loads nothing from the network, and works in a browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from ssbroker import Catalog, InputError, Router, SchemaError
from ssbroker.diagnose import Findings, Fleet, compare, html_graph, html_report, lint, reachability, trace
from ssbroker.diagnose.html_traffic import Flow, compared_flows
from tests.browser import Page, browser, skip_without_browser
from tests.diagnose.finding_cases import fleet, north, passing, south
from tests.guards.repository import ROOT
from tests.rules.setting import here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW

TWO = fleet(NORTH=north("TCP://out"), SOUTH=south("LOCAL"))
PLANNED = fleet(NORTH=north("TCP://out"), SOUTH=south("TCP://north"))
SHOP = Catalog.load(ROOT / "examples" / "route_a_day" / "routes.sql", now=NOW)
HOSTILE = "</script><img src=x onerror=alert(1)>'\" \u202e&amp;"


@pytest.fixture(scope="module")
def shop_page() -> str:
    return html_report(SHOP, at=NOW)


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", html))


def data_of(html: str, name: str) -> Any:
    (text,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


def explanations_of(html: str) -> list[str]:
    texts: list[str] = json.loads(gzip.decompress(base64.b64decode(data_of(html, "data")["explanations"])))
    return texts


def decisions_of(html: str) -> list[dict[str, Any]]:
    data = data_of(html, "data")
    return [dict(zip(data["fields"], row, strict=True)) for row in data["decisions"]]


def conversations(*services: str) -> pa.Table:
    return pa.table(
        {
            "conversation_id": [number.to_bytes(16, "big") for number in range(len(services))],
            "database": ["Sales"] * len(services),
            "to_service_name": list(services),
            "to_broker_instance": pa.nulls(len(services), pa.binary(16)),
        }
    )


def test_report_shows_all_findings_with_place_and_remedy(shop_page: str) -> None:
    html = shop_page
    text = text_of(html)
    for finding in lint(SHOP, at=NOW):
        assert finding.where in text
        assert finding.message in text
        assert f"<pre>{finding.remedy}" in unescape(html)
        if finding.line is not None:
            assert f"routes.sql:{finding.line}" in text


def test_report_contains_all_cells_of_the_reachability() -> None:
    html = html_report(TWO, at=NOW)
    table = html[html.index('<table class="matrix">') :]
    services = [unescape(title) for title in re.findall(r'<th scope="col" title="([^"]*)"', table)]
    endings = data_of(html, "endings")
    found = {
        (unescape(start), service): (worst, endings[int(number)])
        for start, row in re.findall(r'<tr><th scope="row" title="([^"]*)">(.*?)</tr>', table)
        for service, (worst, number) in zip(
            services, re.findall(r'<td class="(\w+)" data-end="(\d+)">', row), strict=True
        )
    }
    matrix = reachability(TWO, at=NOW).to_pylist()
    assert found.keys() == {(f"{row['instance']}/{row['database']}", row["service"]) for row in matrix}
    for row in matrix:
        worst, ending = found[f"{row['instance']}/{row['database']}", row["service"]]
        assert row["outcome"] in ending
        assert (row["reason"] or "") in ending
        traced = trace(TWO, row["service"], instance=row["instance"], database=row["database"], at=NOW)
        is_lost = row["outcome"] == "DELIVERED" and not traced.delivered
        assert not row["certain"] or worst == ("unacknowledged" if is_lost else row["outcome"].lower())
    assert "unacknowledged" in {worst for worst, _ in found.values()}


def test_graph_data_are_the_decisions_of_the_router(shop_page: str) -> None:
    """Every decision on a conversation without broker id, with its explanation."""
    decisions = [row for row in decisions_of(shop_page) if row["database"] and not row["broker_id"]]
    router = Router(SHOP, tie_break="first")
    explanations = explanations_of(shop_page)
    routes = {(row["database"], row["route_id"]): row["name"] for row in SHOP.routes.to_pylist()}
    assert len(decisions) > 60
    for row in decisions:
        explanation = router.explain(row["service"] or "any other service", database=row["database"], now=NOW)
        same = [each for each in decisions if (each["database"], each["service"]) == (row["database"], row["service"])]
        decided = explanation.decision
        assert str(explanation) == explanations[row["explanation"]]
        hop = decided["target_database"] if decided["outcome"] == "LOCAL" else decided["next_hop_address"]
        (first,) = [
            each
            for each in same
            if (each["outcome"], each["reason"], each["step"], each["hop"])
            == (decided["outcome"], decided["reason"], decided["match_step"], hop)
            and each["route"] == routes.get((each["route_table"], decided["route_id"]))
        ]
        assert (first["route"] is None) == (decided["route_id"] is None)


def test_graph_data_name_the_instance_of_a_next_hop_and_messages_from_outside() -> None:
    decisions = decisions_of(html_report(TWO, at=NOW))
    sent = [row for row in decisions if row["hop"] == "TCP://south:4022"]
    assert {row["hop_instance"] for row in sent} == {"SOUTH"}
    (arriving,) = [
        row for row in decisions if row["instance"] == "SOUTH" and row["database"] is None and row["service"] == "Stock"
    ]
    assert (arriving["outcome"], arriving["hop"]) == ("LOCAL", "Stores")


def test_route_that_only_conversations_with_its_broker_id_use() -> None:
    broker = UUID("D8D4D268-02A3-4C62-8F91-634B89C1E314")
    world = here(route(1, "TCP://any", service="S"), route(2, "TCP://one", service="S", broker=broker))
    rows = decisions_of(html_report(catalog_of(world), at=NOW))
    found = {(row["broker_id"], row["hop"]) for row in rows if row["database"] == "Sales" and row["service"] == "S"}
    assert found == {(None, "TCP://any:4022"), (str(broker).upper(), "TCP://one:4022")}


def test_worst_decisions_have_explanations_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_graph, "EXPLANATIONS_MAX", 20)
    many = here(*(route(number, f"TCP://h{number}", service=f"S{number}") for number in range(70)))
    html = html_report(catalog_of(many), at=NOW)
    assert len(explanations_of(html)) == 20
    explained = [row["outcome"] for row in decisions_of(html) if row["explanation"] is not None]
    assert explained[0] == "DELAYED"
    assert [row for row in decisions_of(html) if row["outcome"] == "DELAYED" and row["explanation"] is None] == []


def test_comparison_comes_first_and_shows_traffic_before_and_after() -> None:
    before, after = (
        catalog_of(here(route(1, address, service="Orders"), route(2, "TCP://mail", service="Mail")))
        for address in ("TCP://old", "TCP://new")
    )
    compared = compare(before, after, conversations(*["Orders"] * 3, *["Mail"] * 7), at=NOW)
    html = html_report(after, comparison=compared, at=NOW)
    assert html.index('id="changes"') < html.index('id="findings"') < html.index('id="routes"')
    text = text_of(html)
    assert "3 of 10 conversations change" in text
    left, right = html.split('aria-label="Traffic: After"')
    for part, place in ((left, "old"), (right, "new")):
        assert "<title>Orders: 3 (30%)</title>" in part
        assert f"<title>REMOTE to {place}:4022: 3</title>" in part
        # What changes comes first, though Mail has more conversations.
        assert part.index("<title>Orders: 3") < part.index("<title>Mail: 7")


def test_compared_traffic_keeps_parentheses_of_a_name() -> None:
    destinations = {("A", "Orders", "LOCAL Sales (old)"): [2, 0], ("A", "Orders", "DELAYED (no_route)"): [0, 2]}
    before, after = compared_flows(destinations)
    assert before == {Flow("Orders", "LOCAL", "Sales (old)"): 2}
    assert after == {Flow("Orders", "DELAYED", "no_route"): 2}


def test_traffic_counts_decisions_and_adds_up_the_smallest() -> None:
    names = [f"S{number}" for number in range(30)]
    catalog = catalog_of(
        here(*(route(number + 1, f"TCP://h{number}", service=name) for number, name in enumerate(names)))
    )
    rows = conversations(*[name for number, name in enumerate(names) for _ in range(number + 1)], "nothing")
    decisions = Router(catalog).route(rows.to_batches()[0], now=NOW)
    joined = pa.table(
        {
            **{name: rows[name] for name in rows.column_names},
            **dict(zip(decisions.schema.names, decisions.columns, strict=True)),
        }
    )
    svg = re.findall(r'<svg class="sankey".*?</svg>', html_report(catalog, traffic=joined, at=NOW), re.DOTALL)[0]
    total = 30 * 31 // 2 + 1
    for column in (r"S\d+|\d+ more services", "REMOTE|DELAYED", r"h\d+:4022|\d+ more destinations|delayed: no_route"):
        counts = [int(count.replace(",", "")) for count in re.findall(rf"<title>(?:{column}): ([\d,]+) \(", svg)]
        assert sum(counts) == total, column
    assert "18 more services" in svg
    grouped = joined.group_by(
        ["to_service_name", "outcome", "next_hop_address", "target_database", "reason"]
    ).aggregate([([], "count_all")])
    counted = grouped.rename_columns([*grouped.column_names[:-1], "conversations"])
    assert svg in html_report(catalog, traffic=counted, at=NOW)
    with pytest.raises(SchemaError, match=r"traffic\.outcome: the column is missing"):
        html_report(catalog, traffic=joined.drop_columns(["outcome"]), at=NOW)


@pytest.mark.parametrize("outcome", ["local", None])
def test_traffic_with_an_unknown_outcome_is_refused(outcome: str | None) -> None:
    row = {"to_service_name": "Orders", "outcome": outcome, "next_hop_address": None, "target_database": "Sales"}
    traffic = pa.table({name: pa.array([value], pa.string()) for name, value in row.items()})
    with pytest.raises(InputError, match=rf"traffic\.outcome: {outcome!r} is not an outcome; expected one of LOCAL, "):
        html_report(TWO, traffic=traffic, findings=lint(Fleet({})), at=NOW)


def test_trace_shows_hops_with_their_explanations() -> None:
    found = trace(TWO, "Stock", instance="NORTH", database="Sales", at=NOW)
    text = text_of(html_report(TWO, trace=found, at=NOW))
    for hop in (*found.hops, *(found.acknowledgement.hops if found.acknowledgement else ())):
        assert str(hop.explanation) in text
    assert "DELIVERED to SOUTH/Stores" in text
    lost = fleet(NORTH=north("TCP://out"), SOUTH=south("TCP://nowhere"))
    text = text_of(html_report(lost, trace=trace(lost, "Stock", instance="NORTH", database="Sales", at=NOW), at=NOW))
    assert "No acknowledgement arrives: the initiator resends the message about every minute" in text
    named = Fleet({"NORTH": TWO["NORTH"], "SOUTH 2": TWO["SOUTH"]})
    text = text_of(html_report(named, trace=trace(named, "Stock", instance="NORTH", database="Sales", at=NOW), at=NOW))
    assert 'route 1 "route 1"' in text
    assert "DELIVERED to SOUTH 2/Stores" in text


def hostile_page() -> str:
    world = here(
        replace(route(1, "TCP://other", service=HOSTILE), name=HOSTILE),
        route(2, "LOCAL", service="data-search"),
        services=(("Sales", HOSTILE),),
    )
    catalog = catalog_of(world)
    planned = catalog_of(here(replace(route(1, "TCP://planned", service=HOSTILE), name=HOSTILE)))
    compared = compare(catalog, planned, conversations(HOSTILE), at=NOW)
    decided = Router(catalog).route(conversations(HOSTILE).to_batches()[0], now=NOW)
    traffic = pa.table(
        {
            "to_service_name": [HOSTILE],
            **{name: decided.column(name) for name in ("outcome", "next_hop_address", "target_database")},
        }
    )
    found = trace(catalog, HOSTILE, database="Sales", at=NOW)
    return html_report(
        Fleet({HOSTILE: catalog}), comparison=compared, trace=found, traffic=traffic, at=NOW, title=HOSTILE
    )


def test_names_are_escaped_everywhere() -> None:
    html = hostile_page()
    assert "<img" not in html
    assert "\u202e" not in html
    assert html.count("</script>") == html.count("<script")
    assert decisions_of(html)[0]["instance"].startswith("</script><img src=x onerror=alert(1)>")


def test_policy_allows_exactly_the_scripts_and_styles_of_the_page() -> None:
    html = html_report(TWO, at=NOW)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, tag in (("script-src", "<script>"), ("style-src", '<style id="__________cytoscape_stylesheet">')):
        contents = re.findall(rf"{re.escape(tag)}(.*?)</{tag[1:6]}", html, re.DOTALL)
        hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in contents}
        assert set(rules[rule].split()) == hashes
    own = re.sub(r"<script>.*?</script>|<footer>.*?</footer>", "", html, flags=re.DOTALL)
    assert re.findall(r"https?://|\bsrc=|@import|url\(|\sstyle=|\son\w+=", own) == []


def test_libraries_are_named_with_version_and_licence() -> None:
    folder = ROOT / "python" / "ssbroker" / "diagnose" / "page"
    notice = (folder / "LICENSES.txt").read_text()
    for name, pattern in (("cytoscape", r'="(3\.\d+\.\d+)"'), ("dagre", r'="(3\.\d+\.\d+)"')):
        (version,) = set(re.findall(pattern, (folder / f"{name}.min.js").read_text()))
        assert re.search(rf"{name}(?:\.js)? {re.escape(version)} \(", notice, re.IGNORECASE)
    assert notice.count("Permission is hereby granted") == 2
    assert "Permission is hereby granted" in html_report(TWO, at=NOW)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 600_000


def test_reachability_of_many_services_is_merged_and_too_many_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = catalog_of(here(*(route(number, f"TCP://{number % 3}", service=f"S{number}") for number in range(1000))))
    html = html_report(wide, findings=lint(Fleet({})), at=NOW)
    assert "S0 and 333 more" in html
    assert len(re.findall(r'<th scope="col"', html)) == 3
    monkeypatch.setattr(
        import_module("ssbroker.diagnose.html_report"), "_COMPUTED_MAX", 3000
    )  # the function has the same name
    assert "too large for this page" in html_report(wide, findings=lint(Fleet({})), at=NOW)


def test_empty_report() -> None:
    html = html_report(Fleet({}), comparison=compare(Fleet({}), Fleet({}), at=NOW), at=NOW)
    assert "No findings." in html
    assert "No changes." in html
    assert "There is no database or no known service." in html


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    skip_without_browser()
    with browser() as opened:
        yield opened


@pytest.fixture
def folder(page: Page, tmp_path: Path) -> Iterator[Path]:
    """A folder for pages; fails if a page reports an error, violates its policy, or asks for anything but itself."""
    page.messages.clear()
    page.requests.clear()
    yield tmp_path
    assert page.messages == []
    assert [
        address for address in page.requests if not address.startswith("file://") and not address.startswith("data:")
    ] == []


GRAPH = "document.getElementById('graph')._cyreg.cy"


def show(page: Page, folder: Path, html: str, *, width: int = 1300, dark: bool = False) -> None:
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    page.open(file, width=width, dark=dark)


def click_node(page: Page, label: str) -> None:
    x, y = page.evaluate(
        "(() => { const box = document.getElementById('graph'); box.scrollIntoView({block: 'start', behavior: 'instant'});"
        f"const place = {GRAPH}.nodes().filter((node) => node.data('fullLabel') === {json.dumps(label)})[0].renderedPosition();"
        "const at = box.getBoundingClientRect(); return [at.x + place.x, at.y + place.y]; })()"
    )
    page.click(x, y)


def labels(page: Page, kind: str) -> list[str]:
    return sorted(page.evaluate(f"{GRAPH}.{kind}().map((each) => each.data('fullLabel') ?? each.data('label'))"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1300, 1920])
def test_page_fits_its_window_and_draws_four_layers(
    shop_page: str, page: Page, folder: Path, width: int, scheme: str
) -> None:
    show(page, folder, shop_page, width=width, dark=scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    nodes = page.evaluate(
        f"{GRAPH}.nodes().map((node) => [node.data('layer'), node.position('x'), node.renderedBoundingBox().h])"
    )
    layers = [[x for layer, x, _ in nodes if layer == number] for number in range(4)]
    assert all(max(layers[number]) < min(layers[number + 1]) for number in range(3))
    assert min(height for *_, height in nodes) >= 15, "text would be too small to read"
    boxes = page.evaluate(
        f"{GRAPH}.nodes().map((node) => {{ const box = node.boundingBox({{includeOverlays: false}}); return [box.x1, box.y1, box.x2, box.y2]; }})"
    )
    apart = [
        one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        for number, one in enumerate(boxes)
        for other in boxes[:number]
    ]
    assert all(apart)
    stubs = page.evaluate(
        f"{GRAPH}.edges('[offset]').map((edge) => edge.segmentPoints()[0].y - edge.source().position('y'))"
    )
    assert len(stubs) > 30
    assert max(map(abs, stubs)) < 1, "a label beside its node is on a horizontal part of its arrow"
    background, text = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    bright = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (background, text)]
    assert (bright[0] < bright[1]) == (scheme == "dark")
    assert len(page.picture()) > 20_000


def test_edges_name_route_and_step_and_a_click_explains(shop_page: str, page: Page, folder: Path) -> None:
    show(page, folder, shop_page)
    assert "CarrierRed, step 2" in labels(page, "edges")
    click_node(page, "//customs.example/Declare")
    details = page.evaluate("document.getElementById('details').textContent")
    expected = Router(SHOP, tie_break="first").explain("//customs.example/Declare", database="Shipping", now=NOW)
    assert str(expected) in details
    assert "REMOTE to TCP://declare.customs.example:4022" in details
    assert page.evaluate(f"{GRAPH}.nodes('.faded').length") > 20
    page.press("Escape")
    assert page.evaluate(f"{GRAPH}.nodes('.faded').length") == 0


def test_search_and_filter_reduce_graph_and_table(shop_page: str, page: Page, folder: Path) -> None:
    show(page, folder, shop_page)
    page.click_on("#search")
    page.type("customs")
    page.wait_for(f"{GRAPH}.nodes().length === 4")
    assert page.evaluate("document.getElementById('shown').textContent").startswith("1 decision of ")
    assert labels(page, "nodes") == [
        "//customs.example/Declare",
        "Shipping",
        "declare.customs.example:4022",
        "instance",
    ]
    page.click_on("#decisions summary")
    assert page.evaluate("document.querySelectorAll('#decisions tbody tr').length") == 1
    page.click_on("#outcomes label:nth-child(2)")
    assert page.evaluate("document.getElementById('shown').textContent").startswith("0 decisions")
    page.click_on("#reset")
    assert page.evaluate("document.querySelectorAll('#decisions tbody tr').length") > 60


def test_graph_and_matrix_work_with_the_keyboard(page: Page, folder: Path) -> None:
    show(page, folder, html_report(TWO, at=NOW))
    page.evaluate("document.getElementById('graph').focus()")
    heading = "document.querySelector('#details h3').textContent"
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown"):
        page.press(key)
        seen.append(page.evaluate(heading))
    assert seen[0] == seen[2] != seen[1]
    assert {seen[2], seen[3]} == set(TWO)
    page.press("Enter")
    assert page.evaluate("document.getElementById('instance').selectedOptions[0].textContent") == seen[3]
    assert page.evaluate(f"{GRAPH}.nodes('[layer = 0]').map((node) => node.data('label'))") == [seen[3]]
    zoom = page.evaluate(f"{GRAPH}.zoom()")
    page.press("+")
    assert page.evaluate(f"{GRAPH}.zoom()") > zoom
    page.evaluate("document.querySelector('.matrix td').focus()")
    page.press("ArrowRight")
    cell = page.evaluate("document.getElementById('cell').textContent")
    assert cell.startswith("NORTH/")
    assert page.evaluate("document.activeElement.cellIndex") == 2
    page.click_on(".matrix tr:nth-child(2) td")
    assert page.evaluate("document.getElementById('cell').textContent") != cell


def test_findings_are_filtered_and_their_remedy_is_copied(page: Page, folder: Path) -> None:
    circle = fleet(
        A=passing("TCP://a", "TCP://b"), B=passing("TCP://b", "TCP://a"), C=replace(north(), addresses=("TCP://c",))
    )
    show(page, folder, html_report(circle, at=NOW))
    page.click_on("#filter")
    page.type("ssb020")
    shown = page.evaluate(
        "[...document.querySelectorAll('#findings .code')].filter((each) => !each.hidden).map((each) => each.textContent)"
    )
    assert ["SSB020" in text for text in shown] == [True]
    page.evaluate(
        "copied = null; document.execCommand = () => { copied = document.activeElement.value; return true; }; navigator.clipboard && (navigator.clipboard.writeText = async (text) => { copied = text; }); 0"
    )
    (finding, *_) = [each for each in lint(circle, at=NOW) if each.code == "SSB020"]
    page.click_on("#findings .code:not([hidden]) .copy")
    page.wait_for("copied !== null")
    assert page.evaluate("copied") == finding.scripts[0][1]


def test_statements_of_each_instance_can_be_copied_alone() -> None:
    scripts = (("NORTH", "USE [A]; ONE;"), ("NORTH", "USE [B]; TWO;"), ("SOUTH", "USE [C]; THREE;"))
    one = catalog_of(here(route(1, "LOCAL", service="Missing")))
    finding = replace(lint(one, at=NOW)[0], scripts=scripts)
    html = html_report(Fleet({"NORTH": one, "SOUTH": one}), findings=Findings([finding]), at=NOW)
    blocks = re.findall(r'<p class="dim">In (\w+):</p><div class="remedy"><pre>(.*?)</pre>', html, re.DOTALL)
    assert blocks == [("NORTH", "USE [A]; ONE; USE [B]; TWO;"), ("SOUTH", "USE [C]; THREE;")]
    alone = html_report(one, findings=Findings([replace(finding, scripts=scripts[:1])]), at=NOW)
    assert "<pre>USE [A]; ONE;</pre>" in alone
    assert ">In NORTH:<" not in alone


def test_changes_are_records_on_a_phone(page: Page, folder: Path) -> None:
    before, after = (catalog_of(here(route(1, address, service="Orders"))) for address in ("TCP://old", "TCP://new"))
    html = html_report(after, comparison=compare(before, after, at=NOW), findings=lint(Fleet({})), at=NOW)
    cells = "[...document.querySelectorAll('#changes .records')].at(-1).querySelectorAll('tr:nth-child(2) td')"
    boxes = f"[...{cells}].map((cell) => [cell.getBoundingClientRect().x, cell.getBoundingClientRect().right])"
    show(page, folder, html, width=390)
    assert len({left for left, _ in page.evaluate(boxes)}) == 1, "one below the other"
    assert max(right for _, right in page.evaluate(boxes)) <= 390
    assert page.evaluate("getComputedStyle(document.querySelector('.records tr')).display") == "none"
    show(page, folder, html, width=1300)
    assert len({left for left, _ in page.evaluate(boxes)}) == len(page.evaluate(boxes))


def test_hostile_names_do_nothing(page: Page, folder: Path) -> None:
    html = hostile_page().replace("</body>", "<script>alert(2)</script></body>")
    show(page, folder, html)
    (violation,) = page.messages
    page.messages.clear()
    assert "Content Security Policy" in violation, "a script that is not in the page's policy does not run"
    click_node(page, page.evaluate(f"{GRAPH}.nodes('[kind = \"service\"]')[0].data('fullLabel')"))
    page.click_on(".matrix td")
    assert page.evaluate("document.images.length") == 0


def test_fifty_instances_with_a_thousand_routes(page: Page, folder: Path) -> None:
    """The graph shows the instances; one of them is shown with its databases, services and routes."""
    names = [f"SITE{number:02}" for number in range(50)]
    worlds = {
        name: replace(
            here(
                *(
                    route(
                        each,
                        f"TCP://site{(number * 7 + each * each) % 50:02}",
                        service=f"//{(number * 7 + each * each) % 50}/{each}",
                    )
                    for each in range(1, 21)
                ),
                own=(f"TCP://site{number:02}",),
            )
        )
        for number, name in enumerate(names)
    }
    many = fleet(**worlds)
    show(page, folder, html_report(many, findings=lint(Fleet({})), at=NOW))
    assert set(labels(page, "nodes")) == set(names)
    assert "too large to draw" in page.evaluate("document.getElementById('note').textContent")
    click_node(page, "SITE07")
    page.click_on("#details button")
    shown = labels(page, "nodes")
    assert {"SITE07", "Sales"} <= set(shown)
    assert sum(name.startswith("//") for name in shown) == 20
    assert {f"route {number}, step 2" for number in range(1, 21)} <= set(labels(page, "edges"))


def test_six_thousand_routes_of_one_instance_are_clustered_until_a_search(
    page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_graph, "EXPLANATIONS_MAX", 20)
    wide = catalog_of(here(*(route(number, f"TCP://h{number}", service=f"//S{number}") for number in range(6000))))
    show(page, folder, html_report(wide, findings=lint(Fleet({})), at=NOW))
    assert "REMOTE" in labels(page, "nodes")
    assert "6,000 services" in labels(page, "edges")
    page.click_on("#search")
    page.type("//S4711")
    page.wait_for(f"{GRAPH}.nodes().some((node) => node.data('fullLabel') === '//S4711')")
    assert "//S4711" in labels(page, "nodes")
