"""Writes and reads every format of the command, with other libraries than the command uses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker import schemas
from tests.cli.conftest import as_text

SUFFIXES = (".parquet", ".csv", ".jsonl", ".arrow", ".arrows")
_INTEGERS = ("match_step", "route_id", "priority")
_NUMBERS = ("_number", "_fragment", "_fragments", "_count", "_bytes")


def write(table: pa.Table, path: Path) -> Path:
    """Writes a table in the format of the suffix, as a tool of a user would."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=max(1, table.num_rows // 3))
    elif path.suffix in {".arrow", ".arrows"}:
        kind = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with kind(str(path), table.schema) as ipc:
            for batch in table.to_batches(max_chunksize=max(1, table.num_rows // 3)):
                ipc.write_batch(batch)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table.column_names)
            writer.writerows(as_text(row).values() for row in table.to_pylist())
    else:
        lines = [json.dumps(as_text(row), ensure_ascii=False) for row in table.to_pylist()]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """Reads an output of the command, with ids as text; an empty cell of CSV is null."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return [_typed(row) for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".parquet":
        return [as_text(row) for row in pq.read_table(path).to_pylist()]
    kind = pa.ipc.open_file if path.suffix == ".arrow" else pa.ipc.open_stream
    with path.open("rb") as opened:
        return [as_text(row) for row in kind(opened).read_all().to_pylist()]


def decisions_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the columns that routing adds, which must be the last ones."""
    names = schemas.DECISIONS.names
    assert all(list(row)[-len(names) :] == names for row in rows)
    return [{name: row[name] for name in names} for row in rows]


def _typed(row: dict[str, str]) -> dict[str, Any]:
    return {
        name: None
        if value == ""
        else int(value)
        if name in _INTEGERS or (name.endswith(_NUMBERS) and not value.startswith("["))
        else json.loads(value)
        if value.startswith("[")
        else value == "true"
        if name == "is_initiator"
        else value
        for name, value in row.items()
    }
