"""The HTML that notebooks show for results."""

from __future__ import annotations

import re
from datetime import datetime
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa

import ssbroker
from ssbroker._notebook import ROWS_MAX
from tests.guards.repository import ROOT

SCRIPT = ROOT / "examples" / "route_a_day" / "routes.sql"
AT = datetime(2026, 11, 20, 12)  # noqa: DTZ001  # taken as UTC


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


def test_markup_in_names_is_escaped() -> None:
    router = ssbroker.Router(ssbroker.Catalog(ssbroker.schemas.ROUTES.empty_table()))
    explanation = router.explain("<script>alert(1)</script>", database="msdb")
    assert "<script>" not in explanation._repr_html_()


def test_a_reassembly_shows_messages_and_why_fragments_were_rejected() -> None:
    table = fragments(b"x" * 16, b"<b>")
    result = ssbroker.reassemble(pa.concat_tables([table, table.slice(length=1)]))
    assert repr(result) == "Reassembly(messages=2, rejected=1, acknowledgements=1)"
    text = shown(result)
    assert "2 messages, 1 rejected fragment" in text
    assert "16 bytes" in text, "a body of 16 bytes is not a GUID"
    assert "00000000-0000-0000-0000-000000000000" in text
    assert re.search(r"duplicate\s+1", text)
