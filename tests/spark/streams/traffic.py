"""Files of fragments that arrive one after another, and the expected output of a stream."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import ssbroker

NOW_SERVICE: Final = "//storm/Now"
LATE_SERVICE: Final = "//storm/Late"
CATALOG: Final = """CREATE DATABASE Storm -- ssbroker: service_broker_guid=57024000-0000-4000-8000-000000000001
GO
USE Storm
GO
DROP ROUTE AutoCreatedLocal
CREATE ROUTE Now WITH SERVICE_NAME = N'//storm/Now', ADDRESS = N'TCP://now.example:4022'
"""
LATE_ROUTE: Final = "CREATE ROUTE Late WITH SERVICE_NAME = N'//storm/Late', ADDRESS = N'TCP://late.example:4022'\n"

Key = tuple[bytes, bool, int]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected output.

    Attributes:
        messages: The body and next hop of each message.
        rejected: The rejected fragments and the reasons.
        waiting: How many of the messages wait for the late route.
    """

    messages: dict[Key, tuple[bytes, str]]
    rejected: Counter[tuple[Any, ...]]
    waiting: int


def write(folder: Path, *, files: int, conversations: int, messages: int, seed: int) -> Expected:
    """Writes the fragments, and a catalog without the late route.

    Messages of one to eight fragments arrive in random order; every fiftieth fragment is repeated later, every eightieth arrives damaged first. Rejections
    depend only on the order of the files, not on the order within a file.
    """
    source = random.Random(seed)
    table = _messages(conversations, messages, source)
    fragments = ssbroker.fragment(table, max_fragment_bytes=256)
    arrivals = _arrivals(fragments, files, source)
    (folder / "fragments").mkdir()
    for number, arrived in enumerate(arrivals):
        path = folder / "fragments" / f"{number:05d}.parquet"
        pq.write_table(_plain(arrived), path)
        os.utime(path, (number, number))
    set_catalog(folder, has_late_route=False)
    done = ssbroker.reassemble(pa.concat_tables(arrivals))
    assert done.messages.num_rows == messages
    next_hops = {NOW_SERVICE: "TCP://now.example:4022", LATE_SERVICE: "TCP://late.example:4022"}
    rows = done.messages.to_pylist()
    complete = {_key(row): (row["message_body"], next_hops[row["to_service_name"]]) for row in rows}
    assert len(complete) == messages
    rejected = Counter(tuple(row.values()) for row in done.rejected.to_pylist())
    return Expected(complete, rejected, sum(row["to_service_name"] == LATE_SERVICE for row in rows))


def set_catalog(folder: Path, *, has_late_route: bool) -> None:
    """Replaces the catalog atomically."""
    unfinished = folder / "unfinished"
    unfinished.write_text(CATALOG + (LATE_ROUTE if has_late_route else ""), encoding="utf-8")
    unfinished.replace(folder / "catalog.sql")


def _messages(conversations: int, messages: int, source: random.Random) -> pa.Table:
    ids = [source.randbytes(16) for _ in range(conversations)]
    numbers = Counter[tuple[int, bool]]()
    rows = []
    for _ in range(messages):
        place, is_initiator = source.randrange(conversations), source.random() < 0.6
        rows.append(
            {
                "conversation_id": ids[place],
                "is_initiator": is_initiator,
                "message_sequence_number": numbers[place, is_initiator],
                "message_body": source.randbytes(source.choice((20, 200, 700, 2000))),
                "database": "Storm",
                "to_service_name": LATE_SERVICE if place % 5 == 0 else NOW_SERVICE,
            }
        )
        numbers[place, is_initiator] += 1
    return pa.Table.from_pylist(rows)


def _arrivals(fragments: pa.Table, files: int, source: random.Random) -> list[pa.Table]:
    """Returns the fragments of each file, roughly in the order in which they were sent, some of them late."""
    damaged = _damaged(fragments)
    rows: list[list[pa.Table]] = [[] for _ in range(files)]
    for number in range(fragments.num_rows):
        place = number * files // fragments.num_rows
        first = min(files - 1, place + source.choice((0, 0, 0, 1, 2)))
        chance = source.random()
        if chance < 1 / 80 and first + 1 < files:
            rows[first].append(damaged.slice(number, 1))
            first += 1
        rows[first].append(fragments.slice(number, 1))
        if chance > 1 - 1 / 50:
            rows[source.randrange(first, files)].append(fragments.slice(number, 1))
    for of_file in rows:
        source.shuffle(of_file)
    return [pa.concat_tables(of_file) if of_file else fragments.slice(0, 0) for of_file in rows]


def _damaged(fragments: pa.Table) -> pa.Table:
    place = fragments.column_names.index("message_body")
    intact: list[Any] = fragments["message_body"].to_pylist()
    bodies = pa.chunked_array([pa.array([bytes([body[0] ^ 1]) + body[1:] for body in intact], pa.binary())])
    return fragments.set_column(place, fragments.schema.field(place), bodies)


def _plain(table: pa.Table) -> pa.Table:
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
    return table.combine_chunks().cast(pa.schema(fields))


def _key(row: dict[str, Any]) -> Key:
    return row["conversation_id"], row["is_initiator"], row["message_sequence_number"]
