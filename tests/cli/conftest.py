"""A small network on disk, conversations for it, and a fixture that runs the command in this process."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker import Catalog, Router
from ssbroker.cli import main
from tests.cli.spark_process import SparkProcess

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)
NOW_TEXT = "2026-11-20T21:00:00Z"
COPIES = [str(uuid.UUID(int=number)) for number in (11, 12, 13)]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run of the command."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `ssbroker` with arguments in this process."""

    def ssbroker(*arguments: object) -> Result:
        status = main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Result(status=status, out=out, err=err)

    return ssbroker


@pytest.fixture(scope="session")
def run_on_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """Runs `ssbroker` with arguments in a process that may start Spark."""
    with SparkProcess(tmp_path_factory.mktemp("on-spark")) as calls:
        yield calls


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A folder of tables: two user databases, local and remote services, and copies of a service with equal routes."""
    folder = tmp_path / "network"
    folder.mkdir()
    routes = [
        ("Sales", "Stock", "//Stock", None, "TCP://stock:4022", None),
        ("Sales", "Mirrored", "//Ledger", None, "TCP://ledger-1:4022", "TCP://ledger-2:4022"),
        *(("Sales", f"Copy{copy[-1]}", "//Copied", copy, f"TCP://copy-{copy[-1]}:4022", None) for copy in COPIES),
        ("Sales", "Here", "//Orders", None, "LOCAL", None),
        ("Billing", "Anything", None, None, "TCP://hub:4022", None),
        ("msdb", "In", "//Orders", None, "LOCAL", None),
        ("msdb", "Through", "//Stock", None, "TCP://stock:4022", None),
    ]
    names = ("database", "name", "remote_service_name", "broker_instance", "address", "mirror_address")
    table = pa.table({name: [route[number] for route in routes] for number, name in enumerate(names)})
    pq.write_table(
        table.append_column("lifetime", pa.nulls(len(routes), pa.timestamp("us", "UTC"))), folder / "routes.parquet"
    )
    pq.write_table(pa.table({"database": ["Sales"], "name": ["//Orders"]}), folder / "services.parquet")
    settings = {"addresses": ["TCP://here:4022"], "message_forwarding": False, "pending_requests": []}
    (folder / "instance.json").write_text(json.dumps(settings))
    return folder


def conversations(rows: int, *, seed: int = 7) -> pa.Table:
    """Returns conversations of every kind that the network has, with extra columns."""
    source = random.Random(seed)
    services = ["//Stock", "//Ledger", "//Copied", "//Orders", "//Nowhere", 'with "quotes", and\nmore']
    kinds = [(database, service) for database in ("Sales", "Billing", None) for service in services]
    picked = [source.choice(kinds) for _ in range(rows)]
    return pa.table(
        {
            "note": pa.array([source.choice(["007", "", "naïve", None, "a,b\nc"]) for _ in range(rows)], pa.string()),
            "conversation_id": pa.array([source.randbytes(16) for _ in range(rows)], pa.binary(16)),
            "database": pa.array([database for database, _ in picked], pa.string()),
            "to_service_name": pa.array([service for _, service in picked], pa.string()),
            "to_broker_instance": pa.array(
                [source.choice([uuid.UUID(int=12).bytes, None, None]) for _ in range(rows)], pa.binary(16)
            ),
            "is_initiator": pa.array([source.random() < 0.9 for _ in range(rows)], pa.bool_()),
            "priority": pa.array([source.choice([1, 10, None]) for _ in range(rows)], pa.int8()),
        }
    )


def expected_decisions(catalog: Path, table: pa.Table, **options: Any) -> list[dict[str, Any]]:
    """Returns the decisions of the Python API, with `broker_instance` as text."""
    decisions = Router(Catalog.load(catalog), **options).route(table.combine_chunks().to_batches()[0], now=NOW)
    return [as_text(row) for row in decisions.to_pylist()]


def as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with ids as GUIDs and other bytes as hexadecimal digits."""
    return {name: _value_as_text(name, value) if isinstance(value, bytes) else value for name, value in row.items()}


def _value_as_text(name: str, value: bytes) -> str:
    return f"0x{value.hex()}" if name.endswith(("_body", "_signature", "_key")) else str(uuid.UUID(bytes=value))
