"""Fragments as DataFrames, and the resulting rows in a form that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame

import ssbroker.spark
from tests.oracle.traffic import Fragment
from tests.worlds.fragment_tables import fragment_batch, session_keys
from tests.worlds.fragments import KEYS, TrafficMaker
from tests.worlds.seeded import SeededChooser

Row = tuple[Any, ...]

PLANS: Final[tuple[dict[str, Any], ...]] = ({}, {"strategy": "sort"}, {"shard_by": "message"})
"""Options of `reassemble`, one for each kind of query plan."""


def random_fragments(
    seed: int, *, count: int, theme: str, keys: str = "none", has_extra: bool = False
) -> list[Fragment]:
    """Returns the fragments of many small worlds, each with its own conversations, in order of arrival."""
    fragments: list[Fragment] = []
    for number in range(count):
        maker = TrafficMaker(SeededChooser(Random(f"{seed}/{number}")), theme=theme)
        maker.keys, maker.has_extra = keys, has_extra
        maker.conversations = [UUID(int=(0xABCD << 112) + (number << 8) + place) for place in range(3)]
        of_world = KEYS if keys != "none" else (None,)
        maker.key_of = {each: maker.chooser.one_of((*of_world, None)) for each in maker.conversations}
        fragments += maker.traffic().fragments
    return fragments


def fragment_table(
    fragments: list[Fragment], *, keys: str = "none", has_extra: bool = False, text_ids: bool = False
) -> pa.Table:
    """Returns the fragments as an Arrow table; text ids are written in many ways."""
    batch = fragment_batch(fragments, key_column=keys == "column", has_extra=has_extra, text_ids=text_ids)
    return pa.Table.from_batches([batch])


def sorted_like_spark(fragments: Iterable[Fragment]) -> list[Fragment]:
    """Returns the fragments in the order of `strategy="sort"`: by position, signed rows first, then by all other columns, nulls first."""
    rows = list(fragments)
    for name in ("priority", "note"):
        rows.sort(key=lambda row: _null_first(row.extra.get(name)))
    rows.sort(key=lambda row: _null_first(row.key))
    rows.sort(key=lambda row: row.body)
    rows.sort(key=lambda row: _null_first(row.fragment_signature), reverse=True)
    rows.sort(key=lambda row: _null_first(row.message_signature), reverse=True)
    return sorted(rows, key=lambda row: (*row.direction, row.sequence, row.number, row.count))


def session_keys_for(fragments: list[Fragment], keys: str) -> Any:
    return session_keys(keys, fragments)


def collect_all(done: ssbroker.spark.SparkReassembly) -> dict[str, list[Row]]:
    """Returns the rows of all three DataFrames, sorted; computed once."""
    done.persist()
    rows = {name: collect_rows(getattr(done, name)) for name in ("messages", "rejected", "incomplete")}
    done.unpersist()
    return rows


def expected_rows(table: pa.Table, **options: Any) -> dict[str, list[Row]]:
    """Returns the rows of the Arrow function, sorted."""
    done = ssbroker.reassemble(table, **options)
    tables = {"messages": done.messages, "rejected": done.rejected, "incomplete": done.pending}
    return {name: sorted_rows(tuple(row.values()) for row in of.to_pylist()) for name, of in tables.items()}


def collect_rows(frame_: DataFrame) -> list[Row]:
    return sorted_rows(tuple(map(_value, row)) for row in frame_.collect())


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def _null_first(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def _value(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value
