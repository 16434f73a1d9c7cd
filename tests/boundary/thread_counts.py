"""Counts the threads of this process while the package is imported and used; run in its own process."""

from __future__ import annotations

import importlib
import json
import tempfile
import threading
from pathlib import Path

import pyarrow as pa  # excludes threads started by importing it
import pyarrow.parquet as pq

TASKS = Path("/proc/self/task")


def threads() -> tuple[int, int]:
    """Returns the number of threads that Python and the system report."""
    return threading.active_count(), len(list(TASKS.iterdir()))


def main() -> None:
    """Prints the counts at the start, after the import, and after each use."""
    routes = pa.table({"name": ["R"] * 1000, "address": ["TCP://orders"] * 1000})
    row = {"to_service_name": ["//Orders"], "conversation_id": pa.array([bytes(16)], pa.binary(16))}
    conversations = pa.concat_tables([pa.table(row)] * 200).combine_chunks()
    counts = [threads()]
    importlib.import_module("ssbroker._core")
    counts.append(threads())
    ssbroker = importlib.import_module("ssbroker")
    counts.append(threads())
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pq.write_table(routes, file.name)
        ssbroker.Catalog.load(file.name)
    counts.append(threads())
    catalog = ssbroker.Catalog(routes)
    counts.append(threads())
    for tie_break in ("hash", "first", "round_robin"):
        router = ssbroker.Router(catalog, tie_break=tie_break)
        router.route(conversations)
        router.explain("//Orders", database="msdb")
        counts.append(threads())
    bodies = {"is_initiator": [True] * 200, "message_sequence_number": range(200), "message_body": [b"body"] * 200}
    messages = pa.table({"conversation_id": pa.array([bytes(16)] * 200, pa.binary(16)), **bodies})
    fragments = ssbroker.fragment(messages, max_fragment_bytes=2)
    counts.append(threads())
    ssbroker.md5(fragments["message_body"])
    counts.append(threads())
    reassembler = ssbroker.Reassembler()
    reassembler.push(fragments.slice(1))
    ssbroker.Reassembler.restore(reassembler.checkpoint()).push(fragments)
    counts.append(threads())
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
