"""The HTML that notebooks show for results."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker._notebook import ROWS_MAX, collapsible, section, table
from ssbroker.broker.received_message import Message
from ssbroker.diagnose import Findings, Fleet, compare, lint, trace
from tests.guards.repository import ROOT

SCRIPT = ROOT / "examples" / "route_a_day" / "routes.sql"
AT = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Balance(HTMLParser):
    """Checks that elements are closed in order, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(value: Any) -> str:
    parser = Balance()
    parser.feed(value._repr_html_())
    parser.close()
    assert parser.open == []
    return " ".join(parser.text)


def fragments(*bodies: bytes) -> pa.Table:
    number = len(bodies)
    return pa.table(
        {
            "conversation_id": [bytes(16)] * number,
            "is_initiator": [True] * number,
            "message_sequence_number": list(range(number)),
            "fragment_number": [0] * number,
            "fragment_count": [1] * number,
            "message_body": list(bodies),
        }
    )


def test_a_catalog_shows_its_counts_and_first_routes() -> None:
    catalog = ssbroker.Catalog.load(SCRIPT, now=AT)
    text = shown(catalog)
    assert f"{catalog.routes.num_rows} routes" in text
    assert "InvoicesHere" in text
    assert f"and {catalog.routes.num_rows - ROWS_MAX} more" in text


def test_a_router_shows_its_options_and_catalog() -> None:
    text = shown(ssbroker.Router(ssbroker.Catalog.load(SCRIPT, now=AT), tie_break="first"))
    assert "tie_break='first'" in text
    assert "InvoicesHere" in text


def test_an_explanation_shows_the_decision_first_and_then_all_steps() -> None:
    router = ssbroker.Router(ssbroker.Catalog.load(SCRIPT, now=AT))
    explanation = router.explain("//shop.example/Billing/Invoices", database="Sales", now=AT)
    html = explanation._repr_html_()
    steps, decision = str(explanation).rsplit("\n", 1)
    assert html.index("Decision: LOCAL") < html.index("Find: the search")
    assert decision in shown(explanation)
    assert steps in shown(explanation)


def shop(**instances: str) -> Fleet:
    """Returns a fleet whose NORTH sends to SOUTH, which has no route back."""
    scripts = {
        "NORTH": "CREATE DATABASE Sales; USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q;\n"
        "CREATE ROUTE Stock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://south:4022';\n",
        "SOUTH": "CREATE DATABASE Stores; USE Stores; CREATE QUEUE Q; CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT]);\n",
        **instances,
    }
    catalogs = {}
    with TemporaryDirectory() as folder:
        for name, text in scripts.items():
            path = Path(folder, f"{name}.sql")
            path.write_text(f"-- ssbroker: addresses=TCP://{name.lower()}:4022\n{text}")
            catalogs[name] = ssbroker.Catalog.load(path, now=AT)
    return Fleet(catalogs)


def test_findings_show_each_problem_with_its_place_and_whole_remedy() -> None:
    found = lint(shop(), at=AT)
    html = unescape(found._repr_html_())
    assert html.startswith(f"<div><strong>{len(found)} finding{'s' if len(found) > 1 else ''}: ")
    for finding in found:
        assert f"{finding.code} {finding.severity}: {finding.where}" in html
        assert finding.message in html
        assert f"<pre>{finding.remedy}</pre>" in html
        assert finding.line is None or f":{finding.line}" in html
    shown(found)
    assert shown(Findings([])) == "No findings"


def test_findings_beyond_the_first_are_counted() -> None:
    routes = "".join(
        f"CREATE ROUTE R{number} WITH SERVICE_NAME = N'//S{number}', ADDRESS = N'LOCAL';\n"
        for number in range(ROWS_MAX + 1)
    )
    found = lint(shop(NORTH=f"CREATE DATABASE Sales; USE Sales;\n{routes}"), at=AT)
    assert len(found) > ROWS_MAX
    assert f"and {len(found) - ROWS_MAX} more" in shown(found)


def test_a_trace_shows_its_end_and_every_hop_with_its_explanation() -> None:
    followed = trace(shop(), "//Stock", instance="NORTH", database="Sales", at=AT)
    text = shown(followed)
    assert text.startswith('NORTH/Sales starts a conversation with "//Stock"')
    assert "DELIVERED to SOUTH/Stores" in text
    assert "No acknowledgement arrives" in text
    assert followed.acknowledgement is not None
    for hop in (*followed.hops, *followed.acknowledgement.hops):
        assert str(hop.explanation) in text


def test_a_comparison_shows_causes_and_changes() -> None:
    before = shop()
    back = "CREATE ROUTE Back WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';\n"
    after = shop(
        SOUTH=f"CREATE DATABASE Stores; USE Stores; CREATE QUEUE Q; CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT]);\n{back}"
    )
    compared = compare(before, after, at=AT)
    text = shown(compared)
    assert f"{len(compared.changes)} change" in text
    assert "route appeared" in text
    assert "REMOTE TCP://north:4022" in text
    assert shown(compare(before, before, at=AT)) == "No changes"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"two chairs & <b>a table</b>", "two chairs & <b>a table</b>"),
        ("zwei Stühle".encode("utf-16-le"), "zwei Stühle"),
        (bytes(range(200, 250)), "50 bytes"),
        (b"x" * 5000, "5,000 bytes"),
        (None, "(none)"),
    ],
)
def test_a_message_shows_its_columns_and_its_body_as_text_if_it_is_one(body: bytes | None, expected: str) -> None:
    row = (body, bytes(16), bytes(16), bytes(16), True, 7, "Order", "//Stock", "DEFAULT", 5, 1, "N")
    html = Message(row)._repr_html_()
    text = shown(Message(row))
    for value in ("Order", "//Stock", "7", "00000000-0000-0000-0000-000000000000"):
        assert value in text
    assert expected in text
    assert "<b>" not in html
    assert len(html) < 4000


def test_markup_in_names_is_escaped() -> None:
    router = ssbroker.Router(ssbroker.Catalog(ssbroker.schemas.ROUTES.empty_table()))
    explanation = router.explain("<script>alert(1)</script>", database="msdb")
    assert "<script>" not in explanation._repr_html_()


def test_characters_that_reorder_text_are_shown_as_escapes() -> None:
    name = "//Orders\u202e"
    for html in (section(name), collapsible(name), table(pa.table({name: [name]}))):
        assert "\u202e" not in html
        assert "//Orders\\u202e" in html


def test_a_reassembly_shows_messages_and_why_fragments_were_rejected() -> None:
    table = fragments(b"x" * 16, b"<b>")
    result = ssbroker.reassemble(pa.concat_tables([table, table.slice(length=1)]))
    assert repr(result) == "Reassembly(messages=2, rejected=1, acknowledgements=1, pending=0)"
    text = shown(result)
    assert "2 messages, 1 rejected fragment, no pending messages" in text
    assert "16 bytes" in text, "a body of 16 bytes is not a GUID"
    assert "00000000-0000-0000-0000-000000000000" in text
    assert re.search(r"duplicate\s+1", text)
