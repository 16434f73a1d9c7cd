"""What commands show in terminals of two widths: `python -m tests.cli.screen_snapshot --write` records it."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from ssbroker import Instance
from tests.cli.terminal import Terminal

WIDTHS = (80, 140)
BEFORE = """
CREATE DATABASE Sales
GO
USE Sales
CREATE QUEUE Orders
CREATE SERVICE [//Orders] ON QUEUE Orders ([DEFAULT])
CREATE ROUTE StockOfTheSouthernWarehouse WITH SERVICE_NAME = '//warehouse.southern.shop.example/Stock/Reservations',
    ADDRESS = 'TCP://south.warehouse.shop.example:4022'
CREATE ROUTE Billing WITH SERVICE_NAME = '//shop.example/Billing', ADDRESS = 'TCP://billing.shop.example:4022' -- ssbroker: lifetime=2026-12-06T00:00:00Z
CREATE ROUTE CopyA WITH SERVICE_NAME = '//shop.example/Catalogue/Search', ADDRESS = 'TCP://search-a.catalogue.shop.example:4022'
CREATE ROUTE CopyB WITH SERVICE_NAME = '//shop.example/Catalogue/Search', ADDRESS = 'TCP://search-b.catalogue.shop.example:4022'
"""
CONVERSATIONS = """conversation_id,database,to_service_name
6f9619ff-8b86-d011-b42d-00c04fc964f1,Sales,//warehouse.southern.shop.example/Stock/Reservations
6f9619ff-8b86-d011-b42d-00c04fc964f2,Sales,//shop.example/Catalogue/Search
6f9619ff-8b86-d011-b42d-00c04fc964f3,Sales,//shop.example/Catalogue/Search
6f9619ff-8b86-d011-b42d-00c04fc964f4,Sales,//shop.example/Payments
"""
AT = ("--at", "2026-11-20T12:00Z")
COMMANDS = (
    ("route", "north.sql", "--conversations", "day.csv", "-o", "routed.csv", "--no-progress", *AT),
    ("compare", "north.sql", "planned.sql", *AT),
    ("compare", "north.sql", "planned.sql", "--conversations", "day.csv", "--no-progress", *AT),
    ("lint", "north.sql", "--level", "info", *AT),
    ("explain", "north.sql", "--to-service", "//shop.example/Payments", *AT),
    ("trace", "north.sql", "--to-service", "//shop.example/Payments", *AT),
    ("stuck", "north.sql", "--queue", "day.csv", *AT),
    ("status", "shop"),
)
TYPED = (r"\?", r"\dr", r"\d services", "SELECT name, service_id FROM services;", "SELECT * FROM rout;", r"\x", r"\dq")
_VARYING = (
    (re.compile(r"\b[0-9.]+ s \([0-9,]+ rows/s\)"), "0.1 s (40 rows/s)"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"\b0:0[0-9]:[0-9]{2}\b"), "0:00:00"),
    (re.compile(r"^ssbroker [0-9.]+\S*, instance"), "ssbroker 1.0.0, instance"),
)


def snapshot(width: int) -> Path:
    """Returns the file with the screens of a width."""
    return Path(__file__).with_name(f"screens_{width}.txt")


def screens(width: int) -> str:
    """Returns what the commands show, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "north.sql").write_text(BEFORE, encoding="utf-8")
        moved = BEFORE.replace("TCP://south.warehouse", "TCP://south-new.warehouse").replace("search-b", "search-c")
        (folder / "planned.sql").write_text(moved, encoding="utf-8")
        (folder / "day.csv").write_text(CONVERSATIONS, encoding="utf-8")
        with Instance.create(folder / "shop", name="shop", background=False) as instance:
            instance.execute(BEFORE)
            with instance.database("Sales").transaction() as t:
                t.send(t.begin_dialog("//Orders", "//Nowhere"), b"two chairs")
        shown = []
        for command in COMMANDS:
            with Terminal(*command, columns=width, folder=folder) as terminal:
                terminal.end()
                shown += [f"$ ssbroker {' '.join(command)}", *terminal.lines(), ""]
        with Terminal("sql", "shop", columns=width, folder=folder) as terminal:
            terminal.wait(lambda lines: bool(lines) and lines[-1] == "shop/Sales>")
            for line in TYPED:
                terminal.send(line)
            shown += ["$ ssbroker sql shop", *terminal.lines(), ""]
    return "\n".join(_steady(line) for line in shown)


def _steady(line: str) -> str:
    for pattern, text in _VARYING:
        line = pattern.sub(text, line)
    return line


if __name__ == "__main__":
    for columns in WIDTHS:
        if "--write" in sys.argv:
            snapshot(columns).write_text(screens(columns), encoding="utf-8")
        else:
            print(screens(columns))
