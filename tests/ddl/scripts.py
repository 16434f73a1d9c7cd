"""Helpers that read short DDL scripts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest

from ssbroker import ddl
from ssbroker.exceptions import DdlError, DdlWarning

NOW: Final = datetime(2026, 11, 20, 21, tzinfo=UTC)
GUID: Final = "D8D4D268-02A3-4C62-8F91-634B89C1E314"


def read(*lines: str, now: datetime = NOW, file: str | None = "routes.sql") -> ddl.ScriptTables:
    """Reads the script of these lines."""
    return ddl.read("\n".join(lines), now=now, file=file)


def refused(*lines: str) -> DdlError:
    """Returns the error that the script of these lines raises."""
    with pytest.raises(DdlError) as caught:
        read(*lines)
    return caught.value


NOT_ABOUT_BROKER: Final = "skipped (not about Service Broker)"
LENIENT: Final = ddl.ScriptOptions(lenient=True)


def skipped(*lines: str) -> tuple[ddl.ScriptTables, list[str]]:
    """Reads the script of these lines and returns its notes about statements too, of which there is at least one."""
    with pytest.warns(DdlWarning):
        script = read(*lines)
    return script, [str(note) for note in script.notes if note.kind != "empty"]


def routes(script: ddl.ScriptTables, database: str = "Sales") -> dict[str, dict[str, Any]]:
    """Returns the routes of a database by name."""
    rows = [row for row in script.routes.to_pylist() if row["database"] == database]
    assert len({row["name"] for row in rows}) == len(rows)
    return {row["name"]: row for row in rows}


def names(script: ddl.ScriptTables, database: str = "Sales") -> list[str]:
    """Returns the names of a database's routes."""
    return list(routes(script, database))


def databases(script: ddl.ScriptTables) -> dict[str, tuple[bytes | None, bool]]:
    """Returns broker id and state of each database."""
    return {row["name"]: (row["service_broker_guid"], row["is_broker_enabled"]) for row in script.databases.to_pylist()}


def services(script: ddl.ScriptTables) -> list[tuple[str, str]]:
    """Returns database and name of each service."""
    return [(row["database"], row["name"]) for row in script.services.to_pylist()]
