"""One step of a bucket, without Spark: state and new rows in, output rows and new state out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import EPOCH
from ssbroker.exceptions import InputError, OptionError, SchemaError, UnknownDatabaseError
from ssbroker.reassembly import Reassembler
from ssbroker.router import Router
from ssbroker.schemas import PENDING
from ssbroker.spark import reassembly_task
from ssbroker.spark.arrow_columns import ArrowColumn, column, nulls, pc, repeat, row_keys, with_column
from ssbroker.spark.reassembly_output import KEYS, TIMESTAMP
from ssbroker.spark.routing_task import code_decisions
from ssbroker.spark.shared_values import SharedValue
from ssbroker.spark.streams import extra_columns, stream_rows
from ssbroker.spark.streams.bucket_state import BucketState, state_from_bytes
from ssbroker.spark.streams.delayed_queue import DelayedQueue
from ssbroker.spark.streams.task import AssemblySettings, RoutingSettings, StreamTask

WAITING_SINCE: Final = "since_us"
LAST_GROWTH: Final = "grown_us"
WAITING_SCHEMA: Final = pa.schema([*PENDING, pa.field(WAITING_SINCE, pa.int64()), pa.field(LAST_GROWTH, pa.int64())])
"""The pending messages, with the time since which they have been pending and the time at which a fragment was last accepted."""


@dataclass(frozen=True)
class PendingMessages:
    """The pending messages after a step.

    Attributes:
        rows: The messages that remain (`WAITING_SCHEMA`); None for none. The same object as before if nothing has changed.
        expired: The messages that have expired; None for none.
        due_us: When the next message expires; None for never.
    """

    rows: pa.Table | None
    expired: pa.Table | None
    due_us: int | None


def update_waiting(
    before: pa.Table | None, pending: pa.Table | None, *, max_age_us: int | None, now_us: int
) -> PendingMessages:
    """Compares the pending messages with those of the previous step, and separates the expired messages.

    `before` has the schema `WAITING_SCHEMA`; `pending` has the schema `schemas.PENDING`, or is None if no fragments
    have arrived. If the clock has been set back, times of last fragments that are in the future are set to now.
    """
    rows = before if pending is None else _with_times(before, pending, now_us=now_us)
    if rows is None or not rows.num_rows:
        return PendingMessages(None, None, None)
    if max_age_us is None:
        return PendingMessages(rows, None, None)
    last_growth = column(rows, LAST_GROWTH)
    if pc.max(last_growth).as_py() > now_us:
        last_growth = pc.min_element_wise(last_growth, now_us)
        rows = with_column(rows, LAST_GROWTH, last_growth)
    is_expired = pc.less_equal(last_growth, now_us - max_age_us)
    if not pc.any(is_expired).as_py():
        return PendingMessages(rows, None, _earliest(last_growth) + max_age_us)
    rest = rows.filter(pc.invert(is_expired))
    due_us = _earliest(column(rest, LAST_GROWTH)) + max_age_us if rest.num_rows else None
    return PendingMessages(rest if rest.num_rows else None, rows.filter(is_expired), due_us)


def _with_times(before: pa.Table | None, pending: pa.Table, *, now_us: int) -> pa.Table:
    """Returns the pending messages with the times since which each message has waited and at which it last received a fragment."""
    now = repeat(now_us, pa.int64(), pending.num_rows)
    if before is None or not pending.num_rows:
        return with_column(with_column(pending, WAITING_SINCE, now), LAST_GROWTH, now)
    position = pc.index_in(row_keys(pending, KEYS), value_set=row_keys(before, KEYS))
    since = pc.coalesce(column(before, WAITING_SINCE).take(position), pa.scalar(now_us, pa.int64()))
    received_before = column(before, "received_fragments").take(position)
    has_not_grown = pc.fill_null(pc.equal(received_before, column(pending, "received_fragments")), fill_value=False)
    last_growth = pc.if_else(has_not_grown, column(before, LAST_GROWTH).take(position), pa.scalar(now_us, pa.int64()))
    return with_column(with_column(pending, WAITING_SINCE, since), LAST_GROWTH, last_growth)


def _earliest(times: ArrowColumn) -> int:
    first: int = pc.min(times).as_py()
    return first


FRAGMENT_KEYS: Final = {
    name: name for name in ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")
}
"""The key columns of fragments."""
_TEXT_CHARACTERS_MAX: Final = 80


@contextmanager
def error_row_described(rows: pa.Table | pa.RecordBatch, columns: Mapping[str, str]) -> Iterator[None]:
    """Adds to an error the row that it concerns, and how to resume the query.

    `columns` are the columns of `rows` that identify a row, by the names to show.

    Examples:
        >>> try:
        ...     with error_row_described(pa.table({"conversation_id": [b"a", b"b"]}), {"conversation_id": "conversation_id"}):
        ...         raise InputError("no GUID", row=1)
        ... except InputError as error:
        ...     print(error.__notes__[0])
        The row has conversation_id 0x62. To resume the query from its checkpoint, filter out such rows before the stream.
    """
    try:
        yield
    except InputError as error:
        if error.row is not None:
            present = {name: at for name, at in columns.items() if at in rows.schema.names}
            row = ", ".join(f"{name} {_text(rows.column(at)[error.row].as_py())}" for name, at in present.items())
            or_catalog = ", or add the database to the catalog" if isinstance(error, UnknownDatabaseError) else ""
            error.add_note(
                f"The row has {row}. To resume the query from its checkpoint, filter out such rows before the stream{or_catalog}."
            )
        raise


def _text(value: Any) -> str:
    text = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _TEXT_CHARACTERS_MAX else f"{text[:_TEXT_CHARACTERS_MAX]}..."


CATALOG_CHECK_US: Final = 4_000_000
"""The interval at which a catalog that may change is checked while messages wait for a route."""

_SEQUENCE_NUMBER: Final = "message_sequence_number"


@dataclass(frozen=True)
class StepOutput:
    """The output of one step.

    Attributes:
        rows: The rows with their kinds (such as `stream_rows.MESSAGE`), in order.
        state: The new state; None for none. The same bytes as before if nothing has changed.
        due_us: When the next step is due, in microseconds since 1970; None for never.
    """

    rows: list[tuple[str, pa.RecordBatch]]
    state: bytes | None
    due_us: int | None


def run_step(task: StreamTask, state: bytes | None, batches: Sequence[pa.RecordBatch], *, now_us: int) -> StepOutput:
    """Processes the rows that have arrived for a bucket, and due work.

    Args:
        task: The task of the stream.
        state: The state after the previous step; None if there is none.
        batches: The fragments, or complete rows if nothing is reassembled; empty if only time has passed.
        now_us: The current time, in microseconds since 1970. It may be earlier than in a previous step.

    Raises:
        MalformedDataError: The state is truncated, altered or from a different version.
        OptionError: The state was created with different options, or contains delayed messages although there is no catalog.
        SchemaError: The extra columns have changed.
        InputError: A value is invalid.
    """
    names = {} if task.routing is None else task.routing.names
    before = (
        BucketState(fixed=task.fixed, names=names)
        if state is None
        else state_from_bytes(state).with_options(task.fixed)
    )
    if before.extra is not None and not extra_columns.have_names(before.extra, task.extra_names):
        raise _columns_changed(extra_columns.describe(before.extra), ", ".join(task.extra_names) or "none")
    if before.delayed is not None and task.routing is None:
        raise OptionError(
            "catalog: messages in this checkpoint wait for a route, and later ones must not overtake them; pass a catalog, "
            "or start the query with a new checkpoint"
        )
    run = _StepRun(task, before, now_us=now_us)
    run.process(batches)
    return run.finish(state)


class _StepRun:
    """A step in progress."""

    def __init__(self, task: StreamTask, before: BucketState, *, now_us: int) -> None:
        self._task: Final = task
        self._now_us: Final = now_us
        self._before: Final = before
        self._state = before
        self._rows: Final[list[tuple[str, pa.RecordBatch]]] = []
        self._due: Final[list[int]] = []

    def process(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Reassembles the fragments that have arrived, routes new and delayed messages, and drops expired messages."""
        messages = pa.Table.from_batches(list(batches)) if batches else None
        if messages is not None:
            messages = self._check_extra_columns(messages)
        if self._task.assembly is not None:
            messages = self._assemble(self._task.assembly, messages)
        if self._task.routing is not None:
            self._route(self._task.routing, messages)
        elif messages is not None:
            self._emit(stream_rows.MESSAGE, messages)

    def finish(self, state_before: bytes | None) -> StepOutput:
        """Returns the output of the step."""
        state = self._state
        if not state.assembler and state.delayed is None:
            after = None
        else:
            is_unchanged = state_before is not None and state is self._before
            after = state_before if is_unchanged else state.to_bytes()
        if self._task.has_metrics:
            self._emit_batch(stream_rows.METRICS, self._metrics(0 if after is None else len(after)))
        return StepOutput(self._rows, after, min(self._due, default=None))

    def _check_extra_columns(self, rows: pa.Table) -> pa.Table:
        """Returns the rows, with the extra columns cast to their types in the state; raises `SchemaError` if these columns have changed."""
        extra, before = extra_columns.select_extra(rows.schema, self._task.extra_names), self._state.extra
        if before is None:
            self._state = replace(self._state, extra=extra)
            return rows
        if not extra_columns.have_types(before, extra):
            raise _columns_changed(extra_columns.describe(before), extra_columns.describe(extra))
        return extra_columns.cast_to(rows, before)

    def _assemble(self, assembly: AssemblySettings, fragments: pa.Table | None) -> pa.Table | None:
        """Returns the messages that are now complete and in order; None if no fragments have arrived."""
        assembler, pending, messages = None, None, None
        if fragments is not None:
            assembler = _restore_reassembler(assembly, self._state.assembler)
            with error_row_described(fragments, FRAGMENT_KEYS):
                pushed = assembler.push(fragments)
            messages, pending = pushed.messages, pushed.pending
            self._emit(stream_rows.REJECTION, pushed.rejected)
            if assembly.acknowledgements:
                self._emit(stream_rows.ACKNOWLEDGEMENT, pushed.acknowledgements)
        found = update_waiting(self._state.waits, pending, max_age_us=assembly.max_pending_age_us, now_us=self._now_us)
        if found.expired is not None:
            assembler = _restore_reassembler(assembly, self._state.assembler) if assembler is None else assembler
            self._expire(assembler, found.expired)
        if assembler is not None:
            checkpoint = assembler.checkpoint() if assembler.pending_bytes else b""
            self._state = replace(self._state, assembler=checkpoint)
        age_us = None if found.rows is None else assembly.max_pending_age_us
        if found.rows is not self._before.waits or age_us != self._before.max_pending_age_us:
            self._state = replace(self._state, waits=found.rows, max_pending_age_us=age_us)
        self._due.extend([] if found.due_us is None else [found.due_us])
        return messages

    def _expire(self, assembler: Reassembler, expired: pa.Table) -> None:
        for conversation, is_initiator, number in zip(
            *(expired[name].to_pylist() for name in expired.schema.names[:3]), strict=True
        ):
            assembler.forget(conversation, is_initiator=is_initiator, message_sequence_number=number)
        since = column(expired, WAITING_SINCE).cast(TIMESTAMP)
        expired = expired.drop_columns([WAITING_SINCE, LAST_GROWTH])
        self._emit(stream_rows.EXPIRY, expired.append_column(stream_rows.EXPIRED.names[-1], since))

    def _route(self, routing: RoutingSettings, messages: pa.Table | None) -> None:
        """Routes the new messages and the delayed messages that are due."""
        state = self._state
        if messages is not None and not messages.num_rows:
            messages = None
        if messages is None and state.delayed is None:
            return
        router, fingerprint = routing.catalog.router(routing.tie_break, routing.pending_request, now_us=self._now_us)
        delayed_queue = DelayedQueue(
            decide=_MessageRouter(router, routing, now_us=self._now_us),
            direction=routing.direction,
            max_bytes=routing.max_delayed_bytes,
        )
        changed = state.catalog != fingerprint
        result = delayed_queue.retry(
            state.delayed, messages, arrivals=state.arrivals, changed=changed, now_us=self._now_us
        )
        for rows in result.released:
            self._emit_batch(stream_rows.MESSAGE, rows)
        if result.queue is not state.delayed:
            self._state = replace(
                state, delayed=result.queue, arrivals=result.arrivals, catalog=fingerprint, names=routing.names
            )
        if result.due_us is not None:
            check_us = [self._now_us + CATALOG_CHECK_US] if routing.catalog.may_change else []
            self._due.extend([result.due_us, *check_us])

    def _emit(self, kind: str, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            self._emit_batch(kind, batch)

    def _emit_batch(self, kind: str, rows: pa.RecordBatch) -> None:
        """Emits rows of a kind; extra columns that they lack are added as nulls."""
        if not rows.num_rows:
            return
        columns: dict[str, ArrowColumn] = dict(zip(rows.schema.names, rows.columns, strict=True))
        for field in self._state.extra or ():
            columns.setdefault(field.name, nulls(field.type, rows.num_rows))
        self._rows.append((kind, pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))))

    def _metrics(self, state_bytes: int) -> pa.RecordBatch:
        waits, queue = self._state.waits, self._state.delayed
        counts = (state_bytes, 0 if waits is None else waits.num_rows, 0 if queue is None else queue.num_rows)
        return pa.RecordBatch.from_arrays(
            [pa.array([count], pa.int64()) for count in counts], names=list(stream_rows.METRIC_COLUMNS)
        )


@dataclass(frozen=True)
class _MessageRouter:
    """Adds decisions to messages, and returns which of them are DELAYED."""

    router: Router
    routing: RoutingSettings
    now_us: int

    def __call__(self, messages: pa.RecordBatch) -> tuple[pa.RecordBatch, ArrowColumn]:
        names: Mapping[str, str] = self.routing.names
        conversations = pa.RecordBatch.from_arrays(
            [messages.column(name) for name in names.values()], names=list(names)
        )
        with error_row_described(messages, {**names, _SEQUENCE_NUMBER: _SEQUENCE_NUMBER}):
            decided = self.router.route(conversations, now=EPOCH + timedelta(microseconds=self.now_us))
        coded = code_decisions(decided, self.routing.labels)
        columns: list[ArrowColumn] = [*messages.columns, *coded.flatten()]
        names_ = [*messages.schema.names, *(field.name for field in coded.type)]
        is_delayed: ArrowColumn = pc.equal(decided["outcome"].cast(pa.string()), "DELAYED")
        return pa.RecordBatch.from_arrays(columns, names=names_), is_delayed


def _restore_reassembler(assembly: AssemblySettings, checkpoint: bytes) -> Reassembler:
    given = assembly.session_keys
    keys: Any = reassembly_task.native_keys(given) if isinstance(given, SharedValue) else given
    if checkpoint:
        return Reassembler.restore(checkpoint, session_keys=keys)
    return Reassembler(
        max_pending_bytes=assembly.max_pending_bytes,
        max_pending_messages=None,
        max_message_bytes=assembly.max_message_bytes,
        max_fragments_per_message=assembly.max_fragments_per_message,
        max_sequence_distance=None,
        in_order=assembly.in_order,
        session_keys=keys,
    )


def _columns_changed(expected: str, actual: str) -> SchemaError:
    return SchemaError(
        f"this checkpoint was created with the extra columns {expected}, but the query now has {actual}; use the same columns "
        "in the same order, or start the query with a new checkpoint",
        expected=expected,
        actual=actual,
    )
