"""One routing table in every supported format."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker.catalog import load as loading

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "database": "Sales",
        "name": "Orders",
        "route_id": 65537,
        "remote_service_name": "//Contoso/Orders",
        "broker_instance": "A326E034-E4CF-4E7D-9FB0-ED1EA2BE0C08",
        "lifetime": datetime(2026, 11, 21, tzinfo=UTC),
        "address": "TCP://orders:4022",
        "mirror_address": "TCP://mirror:4022",
        "principal_id": "1",
    },
    {
        "database": "Sales",
        "name": "AutoCreatedLocal",
        "route_id": 65536,
        "remote_service_name": None,
        "broker_instance": None,
        "lifetime": None,
        "address": "LOCAL",
        "mirror_address": None,
        "principal_id": "1",
    },
]
CSV = (
    "database,name,route_id,remote_service_name,broker_instance,lifetime,address,mirror_address,principal_id\n"
    "Sales,Orders,65537,//Contoso/Orders,A326E034-E4CF-4E7D-9FB0-ED1EA2BE0C08,2026-11-21,TCP://orders:4022,TCP://mirror:4022,1\n"
    "Sales,AutoCreatedLocal,65536,,NULL,,LOCAL,NULL,1\n"
)


def load(path: Path) -> loading.CatalogSource:
    return loading.load_source(path, now=NOW)


def as_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()} for row in rows
    ]


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path)


def write_csv(path: Path) -> None:
    path.write_text(CSV, encoding="utf-8")


def write_json(path: Path) -> None:
    path.write_text(json.dumps(as_json(ROWS), indent=1), encoding="utf-8")


def write_json_lines(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, as_json(ROWS))) + "\n\n", encoding="utf-8")


def write_arrow(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write_arrow_stream(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


Write = Callable[[Path], None]
FORMATS: list[tuple[str, Write]] = [
    ("routes.parquet", write_parquet),
    ("routes.csv", write_csv),
    ("routes.CSV", write_csv),
    ("routes.json", write_json),
    ("routes.json", write_json_lines),
    ("routes.jsonl", write_json_lines),
    ("routes.ndjson", write_json_lines),
    ("routes.arrow", write_arrow),
    ("routes.feather", write_arrow),
    ("routes.arrow", write_arrow_stream),
]
