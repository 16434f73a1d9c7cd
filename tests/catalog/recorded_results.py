"""A DB-API connection that replays recorded result sets of SQL Server and rejects all other statements."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from ssbroker.catalog import sql_server

Result = tuple[tuple[str, ...], Sequence[tuple[Any, ...]]]
"""Column names and rows."""

Driver = Literal["text", "uuid", "bytes"]
"""How a driver returns a `uniqueidentifier`; see `tests/data/sql_server/README.md`."""

_FOLDER = Path(__file__).parents[1] / "data" / "sql_server"
_GUIDS: Mapping[Driver, Callable[[str], object]] = {
    "text": str.upper,
    "uuid": uuid.UUID,
    "bytes": lambda text: uuid.UUID(text).bytes_le,
}

SALES = "5A1E5000-0000-4000-8000-000000000001"
STOCK = "D8D4D268-02A3-4C62-8F91-634B89C1E314"
HANDLE = "6F9619FF-8B86-D011-B42D-00C04FC964FF"

_ROUTES = ("name", "route_id", "remote_service_name", "broker_instance", "lifetime", "address", "mirror_address")
_LOCAL = ("AutoCreatedLocal", 65536, None, None, None, "LOCAL", None)
_QUEUE = (
    "conversation_handle", "conversation_id", "to_service_name", "to_broker_instance", "from_service_name", "enqueue_time",
    "message_sequence_number", "is_initiator", "transmission_status",
)  # fmt: skip


def driver_datetime(*parts: int) -> datetime:
    """Returns a `datetime` as drivers return it, without a time zone."""
    year, month, day, *rest = parts
    return datetime(year, month, day, *rest)  # type: ignore[arg-type]  # noqa: DTZ001 - as SQL Server keeps it


class Cursor:
    """Returns the rows of one statement at a time."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = results
        self._rows: Sequence[tuple[Any, ...]] = ()
        self.description: list[tuple[Any, ...]] = []
        self.closed = False

    def execute(self, operation: str) -> None:
        names, self._rows = self._results[operation]
        self.description = [(name, None, None, None, None, None, None) for name in names]

    def fetchall(self) -> Sequence[tuple[Any, ...]]:
        return self._rows

    def close(self) -> None:
        self.closed = True


class Connection:
    """Replays results, and remembers its cursors."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = results
        self.cursors: list[Cursor] = []

    def cursor(self) -> Cursor:
        self.cursors.append(Cursor(self._results))
        return self.cursors[-1]


def recorded(name: str, *, driver: Driver) -> dict[str, Result]:
    """Returns the results of a file under `tests/data/sql_server`, as a driver delivers them."""
    results = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))["results"]
    converters: dict[str, Callable[[str], object]] = {
        "uniqueidentifier": _GUIDS[driver],
        "datetime": datetime.fromisoformat,
    }
    return {
        result["statement"]: (
            tuple(column for column, _ in result["columns"]),
            [
                tuple(
                    value if value is None or kind not in converters else converters[kind](value)
                    for value, (_, kind) in zip(row, result["columns"], strict=True)
                )
                for row in result["rows"]
            ],
        )
        for result in results
    }


def shop(**others: Result) -> dict[str, Result]:
    """Returns the results of an instance with msdb and two databases, one with an awkward name."""
    databases = [("Odd]Name", None, 0), ("Sales", SALES, 1), ("msdb", "11111111-2222-4333-8444-555555555555", 1)]
    routes: dict[str, Sequence[tuple[Any, ...]]] = {
        "[Odd]]Name]": [],
        "[Sales]": [
            _LOCAL,
            (
                "Stock",
                65537,
                "//Stock",
                STOCK,
                driver_datetime(2027, 1, 1, 12, 30, 0, 123000),
                "TCP://stock:4022",
                None,
            ),
            ("Broken", 65538, "//Gone", "", None, "LOCAL", None),
        ],
        "[msdb]": [_LOCAL],
    }
    results: dict[str, Result] = {
        sql_server.DATABASES_QUERY: (("name", "service_broker_guid", "is_broker_enabled"), databases),
        sql_server.ENDPOINTS_QUERY: (
            ("machine", "port", "ip_address", "is_message_forwarding_enabled"),
            [("SQL-01", 4022, None, True)],
        ),
    }
    for database, rows in routes.items():
        results[sql_server.ROUTES_QUERY.format(database=database)] = (_ROUTES, rows)
        services = [("//Sales",)] if database == "[Sales]" else []
        results[sql_server.SERVICES_QUERY.format(database=database)] = (("name",), services)
        results[sql_server.TRANSMISSION_QUEUE_QUERY.format(database=database)] = (_QUEUE, [])
    waiting = [
        (
            HANDLE,
            SALES,
            "//Gone",
            None,
            "//Sales",
            driver_datetime(2026, 11, 20, 20),
            0,
            1,
            "The target service name could not be found.",
        ),
        (HANDLE, None, "//Stock", STOCK, "//Sales", driver_datetime(2026, 11, 20, 20), 1, None, ""),
    ]
    results[sql_server.TRANSMISSION_QUEUE_QUERY.format(database="[Sales]")] = (_QUEUE, waiting)
    return {**results, **others}
