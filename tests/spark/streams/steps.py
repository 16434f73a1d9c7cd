"""Runs steps of a bucket without Spark; each step starts from the bytes that the previous one stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa

import ssbroker
from ssbroker.schemas import CONVERSATIONS, ROUTES
from ssbroker.spark import decision_codes
from ssbroker.spark.dry_run import validate_routing
from ssbroker.spark.shared_values import SharedValue
from ssbroker.spark.streams import stream_rows
from ssbroker.spark.streams.bucket_state import state_from_bytes
from ssbroker.spark.streams.bucket_step import StepOutput, run_step
from ssbroker.spark.streams.stream_catalog import StreamCatalog
from ssbroker.spark.streams.stream_state import waiting_rows
from ssbroker.spark.streams.task import AssemblySettings, RoutingSettings, StreamTask
from tests.oracle.traffic import Fragment, Limits, Row
from tests.worlds.fragment_tables import fragment_batch
from tests.worlds.universe import NOW

SECOND = 1_000_000
START = 1_790_000_000 * SECOND
EXTRA_COLUMNS = {"note": "further_0", "priority": "further_1"}
FIXED: dict[str, str | int | bool | None] = {"buckets": 16, "in_order": True}
DIRECTION = ("conversation_id", "is_initiator")


@dataclass(frozen=True)
class MemoryCatalog(StreamCatalog):
    """A catalog in memory, which a test may replace."""

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
class InlineValue(SharedValue[Any]):
    """A value that needs no transfer to a worker."""

    given: Any = field(compare=False, hash=False)

    def value(self) -> Any:
        return self.given


def assembly(limits: Limits | None = None, **changed: Any) -> AssemblySettings:
    """Returns assembly settings with these limits only."""
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
def labels() -> decision_codes.Labels:
    types = {each.name: each.type for each in CONVERSATIONS}
    empty = ssbroker.Catalog(ROUTES.empty_table())
    return validate_routing(empty, types, now=NOW, tie_break="hash", pending_request="continue")


def routing(catalogs: list[ssbroker.Catalog], **changed: Any) -> RoutingSettings:
    """Returns routing settings; the service is the first extra column."""
    options: dict[str, Any] = {
        "catalog": MemoryCatalog(catalogs),
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
        "extra_names": tuple(EXTRA_COLUMNS),
        "assembly": assembled,
        "routing": routed,
        "has_metrics": False,
    }
    return StreamTask(**{**options, **changed})


def batch_of(fragments: Sequence[Fragment], *, has_extra: bool = False, key_column: bool = False) -> pa.RecordBatch:
    """Returns fragments as a bucket gets them: extra columns are named by position."""
    batch = fragment_batch(fragments, has_extra=has_extra, key_column=key_column)
    return batch.rename_columns([EXTRA_COLUMNS.get(name, name) for name in batch.schema.names])


class BucketRunner:
    """Runs steps of one bucket."""

    def __init__(self, played: StreamTask) -> None:
        self.task = played
        self.state: bytes | None = None
        self.last: StepOutput | None = None

    def run(self, *batches: pa.RecordBatch, now_us: int = START) -> dict[str, list[Row]]:
        """Runs a step; returns its output rows by kind."""
        done = run_step(self.task, self.state, batches, now_us=now_us)
        assert done.due_us is None or done.due_us > now_us
        self.state, self.last = done.state, done
        output: dict[str, list[Row]] = {}
        for kind, rows in done.rows:
            output.setdefault(kind, []).extend(rows.to_pylist())
        return output

    def waiting(self) -> list[Row]:
        """Returns the rows of `stream_state`."""
        return [] if self.state is None else waiting_rows(state_from_bytes(self.state)).to_pylist()


def select(rows: Sequence[Row], schema: pa.Schema, *further: str) -> list[Row]:
    """Returns the columns of a kind, and some extra columns under their own names."""
    extra_names = {place: name for name, place in EXTRA_COLUMNS.items() if name in further}
    return [{extra_names.get(name, name): row[name] for name in (*schema.names, *extra_names)} for row in rows]


def bodies(output: dict[str, list[Row]]) -> list[bytes]:
    return [row["message_body"] for row in output.get(stream_rows.MESSAGE, [])]
