"""A bucket of a stream that is played step by step, without Spark: every step begins from the bytes that the one before it kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa

import ssbroker
from ssbroker.schemas import CONVERSATIONS, ROUTES
from ssbroker.spark import columns
from ssbroker.spark.broadcast import SharedValue
from ssbroker.spark.streams import row_kinds
from ssbroker.spark.streams.inspection import waiting_rows
from ssbroker.spark.streams.state import state_from_bytes
from ssbroker.spark.streams.step import StepOutput, step
from ssbroker.spark.streams.task import AssemblySettings, CatalogLocation, RoutingSettings, StreamTask
from tests.oracle.traffic import Fragment, Limits, Row
from tests.worlds.fragment_tables import fragment_batch

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
FURTHER = {"note": "further_0", "priority": "further_1"}
FIXED: dict[str, str | int | bool | None] = {"buckets": 16, "in_order": True}
DIRECTION = ("conversation_id", "is_initiator")


@dataclass(frozen=True)
class Here(CatalogLocation):
    """A catalog that a test has at hand, and may replace."""

    catalogs: list[ssbroker.Catalog] = field(compare=False, hash=False)

    @property
    def may_change(self) -> bool:
        return len(self.catalogs) > 1

    def router(self, tie_break: Any, pending_request: Any, *, now_us: int) -> tuple[ssbroker.Router, str]:
        catalog = self.catalogs[-1]
        router = _routers.get(catalog.fingerprint)
        if router is None:
            router = ssbroker.Router(catalog, tie_break=tie_break, pending_request=pending_request)
            _routers[catalog.fingerprint] = router
        return router, catalog.fingerprint


_routers: dict[str, ssbroker.Router] = {}


@dataclass(frozen=True)
class Given(SharedValue[Any]):
    """What needs no way to a worker."""

    given: Any = field(compare=False, hash=False)

    def value(self) -> Any:
        return self.given


def assembly(limits: Limits | None = None, **changed: Any) -> AssemblySettings:
    """How fragments are put together, with no limits but these."""
    limits = Limits() if limits is None else limits
    options: dict[str, Any] = {
        "in_order": True,
        "max_message_bytes": limits.max_message_bytes,
        "max_fragments_per_message": limits.max_fragments_per_message,
        "max_pending_bytes": 1 << 30 if limits.max_pending_bytes is None else limits.max_pending_bytes,
        "max_pending_age_us": None,
        "session_keys": None,
        "acknowledgements": True,
    }
    return AssemblySettings(**{**options, **changed})


@cache
def labels() -> columns.Labels:
    types = {each.name: each.type for each in CONVERSATIONS}
    empty = ssbroker.Catalog(ROUTES.empty_table())
    return columns.validate_routing(empty, types, tie_break="hash", pending_request="continue")


def routing(catalogs: list[ssbroker.Catalog], **changed: Any) -> RoutingSettings:
    """How messages are routed: the service is the first further column."""
    options: dict[str, Any] = {
        "source": Here(catalogs),
        "tie_break": "hash",
        "pending_request": "continue",
        "labels": labels(),
        "names": {**dict(zip(DIRECTION, DIRECTION, strict=True)), "to_service_name": "further_0"},
        "direction": DIRECTION,
        "max_delayed_bytes": 1 << 20,
    }
    return RoutingSettings(**{**options, **changed})


def task(assembled: AssemblySettings | None, routed: RoutingSettings | None = None, **changed: Any) -> StreamTask:
    options: dict[str, Any] = {
        "fixed": FIXED,
        "extra_names": tuple(FURTHER),
        "assembly": assembled,
        "routing": routed,
        "has_metrics": False,
    }
    return StreamTask(**{**options, **changed})


def batch_of(fragments: Sequence[Fragment], *, has_extra: bool = False, key_column: bool = False) -> pa.RecordBatch:
    """Fragments as a bucket gets them: what is carried has names by its place."""
    batch = fragment_batch(fragments, has_extra=has_extra, key_column=key_column)
    return batch.rename_columns([FURTHER.get(name, name) for name in batch.schema.names])


class Player:
    """Plays one bucket."""

    def __init__(self, played: StreamTask) -> None:
        self.task = played
        self.state: bytes | None = None
        self.last: StepOutput | None = None

    def play(self, *batches: pa.RecordBatch, now_us: int = START) -> dict[str, list[Row]]:
        """One step; what it tells, by kind, each with the columns of its kind."""
        done = step(self.task, self.state, batches, now_us=now_us)
        assert done.due_us is None or done.due_us > now_us
        self.state, self.last = done.state, done
        told: dict[str, list[Row]] = {}
        for kind, rows in done.rows:
            told.setdefault(kind, []).extend(rows.to_pylist())
        return told

    def waits(self) -> list[Row]:
        """What `stream_state` would show."""
        return [] if self.state is None else waiting_rows(state_from_bytes(self.state)).to_pylist()


def only(rows: Sequence[Row], schema: pa.Schema, *further: str) -> list[Row]:
    """The columns of a kind, and some of those that are carried under their own names."""
    own = {place: name for name, place in FURTHER.items() if name in further}
    return [{own.get(name, name): row[name] for name in (*schema.names, *own)} for row in rows]


def bodies(told: dict[str, list[Row]]) -> list[bytes]:
    return [row["message_body"] for row in told.get(row_kinds.MESSAGE, [])]
