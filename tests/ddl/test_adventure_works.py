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
    return script, [str(warning.message).removeprefix("adventure_works.sql:") for warning in caught]


@pytest.fixture(scope="module")
def loaded() -> tuple[ddl.ScriptTables, list[str]]:
    return load(FILE.read_bytes())


def test_databases(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    assert databases(loaded[0]) == {
        HR: (uuid.UUID("0B7F6A10-5C0E-4A53-9B7E-2F1D33A4C701").bytes, True),
        "Old_Works": (None, False),
        "AdventureWorks": (None, True),
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
        (HR, "AutoCreatedLocal", 65536, None, None, None, "transport", None),
        ("Old_Works", "AutoCreatedLocal", 65536, None, None, None, "LOCAL", None),
        (works, "AutoCreatedLocal", 65536, None, None, None, "LOCAL", None),
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
        (HR, "名前 / Größe", 65537, "//Adventure-Works.com/名前", None, None, "TCP://[2001:db8::17]:4022", None),
        ("msdb", "Expenses", 65536, "//Adventure-Works.com/Expenses", None, None, "LOCAL", None),
        ("msdb", "Elsewhere", 65537, None, None, None, f"tcp://Gateway.{site}", None),
    ]


def test_skipped_statements(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    no_effect = "skipped (does not affect routing)"
    assert loaded[1] == [
        f"8: :on ...: {no_effect}",
        f"9: SET NOCOUNT ON: {no_effect}",
        f"10: SET XACT_ABORT ON: {no_effect}",
        "15: IF NOT EXISTS (SELECT * FROM sys.databases WHERE name = '......: skipped entirely, including CREATE DATABASE, ALTER DATABASE",
        "29: ALTER DATABASE [Old_Works]: skipped RECOVERY",
        f"43: GRANT CONNECT ON ENDPOINT::[SSB Endpoint] TO public: {no_effect}",
        f"49: CREATE MESSAGE TYPE [//Adventure-Works.com/Expenses/SubmitEx...: {no_effect}",
        f"50: CREATE MESSAGE TYPE [//Adventure-Works.com/Expenses/Outcome]...: {no_effect}",
        f"51: CREATE CONTRACT [//Adventure-Works.com/Expenses/Submission] ...: {no_effect}",
        f"55: CREATE PROCEDURE dbo.MoveRoutes @host nvarchar(200) AS BEGIN...: {no_effect}",
        "71: IF EXISTS (SELECT * FROM sys.routes WHERE name = '...') DROP...: skipped entirely, including DROP ROUTE",
        f"86: EXEC ( ...: {no_effect}",
        f"87: EXEC dbo.MoveRoutes ...: {no_effect}",
        f"103: BEGIN TRANSACTION: {no_effect}",
        f"107: COMMIT: {no_effect}",
        "109: BEGIN TRY CREATE ROUTE Never WITH ADDRESS = '...'; END TRY: skipped entirely, including CREATE ROUTE",
        f"112: BEGIN CATCH PRINT ERROR_MESSAGE(); END CATCH: {no_effect}",
        f"116: GRANT CREATE ROUTE TO [AW\\Deploy]: {no_effect}",
    ]


def test_encodings_of_ssms_give_the_same_result(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    text = FILE.read_text(encoding="utf-8").replace("\n", "\r\n")
    assert load(codecs.BOM_UTF16_LE + text.encode("utf-16-le")) == loaded
    assert load(codecs.BOM_UTF8 + text.encode()) == loaded


def test_round_trip(loaded: tuple[ddl.ScriptTables, list[str]]) -> None:
    written = ddl.write(loaded[0], now=NOW)
    assert ddl.read(written, now=NOW + timedelta(days=400)) == loaded[0]
