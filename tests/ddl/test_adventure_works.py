"""A realistic script: several databases, with unrelated statements between those about routing."""

from __future__ import annotations

import codecs
import uuid
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from ssbroker import ddl
from ssbroker.exceptions import DdlWarning
from tests.ddl.scripts import NOW, databases, services

FILE: Final = Path(__file__).resolve().parents[1] / "data" / "adventure_works.sql"
HR: Final = "AdventureWorks HR"


def load(data: bytes) -> tuple[ddl.ScriptTables, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DdlWarning)
        script = ddl.read(ddl.decode(data), now=NOW, file="adventure_works.sql")
    assert len(caught) > 1
    return script, [str(note).removeprefix("adventure_works.sql:") for note in script.notes]


@pytest.fixture(scope="module")
def loaded() -> tuple[ddl.ScriptTables, list[str]]:
    return load(FILE.read_bytes())


def test_databases(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    assert databases(loaded[0]) == {
        "AdventureWorks": (None, True),
        HR: (uuid.UUID("0B7F6A10-5C0E-4A53-9B7E-2F1D33A4C701").bytes, True),
        "Old_Works": (None, False),
        "msdb": (None, True),
    }


def test_services(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    assert services(loaded[0]) == [
        ("AdventureWorks", "//Adventure-Works.com/Expenses"),
        ("AdventureWorks", "//Adventure-Works.com/[Reports]"),
        (HR, "//Adventure-Works.com/Hiring"),
    ]


def test_endpoint(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    assert loaded[0].addresses == (
        "TCP://localhost:4022",
        "TCP://127.0.0.1:4022",
        "TCP://[::1]:4022",
        "TCP://aw-sql01.adventure-works.example:4022",
    )
    assert loaded[0].message_forwarding
    assert loaded[0].pending_requests == ()


def test_routes(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    site = "adventure-works.example"
    archive = uuid.UUID("D8D4D268-00A3-4C62-8F91-634B89C1E315").bytes
    ledger = uuid.UUID("69FCC80C-2239-4700-8437-1001ECDDF933").bytes
    works = "AdventureWorks"
    day = NOW + timedelta(days=1)
    assert [tuple(row.values()) for row in loaded[0].routes.to_pylist()] == [
        (works, "AutoCreatedLocal", 65536, None, None, None, "LOCAL", None),
        (HR, "AutoCreatedLocal", 65536, None, None, None, "transport", None),
        ("Old_Works", "AutoCreatedLocal", 65536, None, None, None, "LOCAL", None),
        (
            works,
            "ExpenseRoute",
            65537,
            "//Adventure-Works.com/Expenses/Archive",
            archive,
            None,
            f"TCP://aw-sql02.{site}:1234",
            None,
        ),
        (
            works,
            'Mirrored "Ledger"',
            65538,
            "//Adventure-Works.com/Ledger",
            ledger,
            None,
            f"TCP://aw-sql03.{site}:4022",
            f"TCP://aw-sql04.{site}:4022",
        ),
        (works, "Temporary", 65539, "//Adventure-Works.com/O'Brien", None, day, "TCP://10.1.2.4:4022/", None),
        (works, "NotMe", 65540, None, None, None, "LOCAL", None),
        (HR, "名前 / Größe", 65537, "//Adventure-Works.com/名前", None, None, "TCP://[2001:db8::17]:4022", None),
        ("msdb", "Expenses", 65536, "//Adventure-Works.com/Expenses", None, None, "LOCAL", None),
        ("msdb", "Elsewhere", 65537, None, None, None, f"tcp://Gateway.{site}", None),
        ("msdb", "Never", 65538, None, None, None, "LOCAL", None),
    ]


def test_skipped_statements(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    skipped = "skipped (not about Service Broker)"
    again = "CREATE ROUTE [Never]: the route 'Never' already exists in the database 'msdb'; CATCH handled the error"
    procedure = "not executed, although it contains DROP ROUTE, CREATE ROUTE: procedures are not executed"
    assert loaded[1] == [
        f"9: SET NOCOUNT ON: {skipped}",
        f"10: SET XACT_ABORT ON: {skipped}",
        f"18: ALTER DATABASE AdventureWorks SET RECOVERY FULL: {skipped}",
        "29: ALTER DATABASE [Old_Works]: skipped RECOVERY",
        "43: GRANT CONNECT ON ENDPOINT::[SSB Endpoint] TO public: skipped (transport security)",
        f"55: CREATE PROCEDURE dbo.MoveRoutes @host nvarchar(200) AS BEGIN...: {skipped}",
        f"74: PRINT '...': {skipped}",
        f"87: EXEC dbo.MoveRoutes ...: {procedure}",
        f"110: {again}",
        f"116: GRANT CREATE ROUTE TO [AW\\Deploy]: {skipped}",
    ]


def test_encodings_of_ssms_give_the_same_result(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    text = FILE.read_text(encoding="utf-8").replace("\n", "\r\n")
    assert load(codecs.BOM_UTF16_LE + text.encode("utf-16-le")) == loaded
    assert load(codecs.BOM_UTF8 + text.encode()) == loaded


def test_round_trip(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    written = ddl.write(loaded[0], now=NOW)
    assert ddl.read(written, now=NOW + timedelta(days=400)) == loaded[0]
