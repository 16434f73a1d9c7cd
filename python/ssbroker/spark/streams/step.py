"""One bucket of a stream, without Spark: what was kept and what has come, to rows and what is kept from now on.

Deterministic: the moment is an argument, and nothing is remembered but in the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from ssbroker import moment
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembler import Reassembler
from ssbroker.routing import Router
from ssbroker.spark import assembling, worker
from ssbroker.spark.shipping import Shipped
from ssbroker.spark.streams import carried, delayed, kinds, waiting, wrong_rows
from ssbroker.spark.streams.arrays import Column, column, nulls, pc
from ssbroker.spark.streams.state import State, of_bytes
from ssbroker.spark.streams.task import Assembly, Routing, Task

LOOK_US: Final = 4_000_000
"""How often a catalog that may change is looked at while something waits for a route."""

_NUMBER: Final = "message_sequence_number"


@dataclass(frozen=True)
class Step:
    """What comes of one step.

    Attributes:
        rows: Rows with their kind (`kinds.MESSAGE` and the others), in the order in which they came about.
        state: What is kept, None for nothing. The bytes that were given, if nothing has changed.
        due_us: The moment at which something falls due, in microseconds since 1970; None where nothing does.
    """

    rows: list[tuple[str, pa.RecordBatch]]
    state: bytes | None
    due_us: int | None


def step(task: Task, state: bytes | None, given: Sequence[pa.RecordBatch], *, now_us: int) -> Step:
    """Takes in what has come for a bucket, and does what is due.

    Args:
        task: What to do.
        state: What was kept, None at the beginning.
        given: Fragments, or whole rows where nothing is put together; none where only time has passed.
        now_us: The moment, in microseconds since 1970. It may lie before that of an earlier step.

    Returns:
        The rows that come of it, what is kept, and when to come again.

    Raises:
        MalformedDataError: The state is cut off, altered or of another version.
        OptionError: The state was kept under other options than those of the task, or holds what waits for a route, and there is no
            catalog any more.
        SchemaError: The rows carry other columns than those before them.
        InputError: A value is not what was expected.
    """
    names = {} if task.routing is None else task.routing.names
    before = State(fixed=task.fixed, names=names) if state is None else of_bytes(state).checked(task.fixed)
    if before.further is not None and not carried.are_called(before.further, task.carried):
        raise _other_columns(carried.told(before.further), ", ".join(task.carried) or "none")
    if before.delayed is not None and task.routing is None:
        raise OptionError(
            "catalog: messages of this checkpoint wait for a route, and what follows them must not overtake them: go on with a "
            "catalog, or begin with a new checkpoint"
        )
    turn = _Turn(task, before, now_us=now_us)
    turn.take(given)
    return turn.end(state)


class _Turn:
    """One step under way."""

    def __init__(self, task: Task, before: State, *, now_us: int) -> None:
        self._task: Final = task
        self._now_us: Final = now_us
        self._before: Final = before
        self._state = before
        self._rows: Final[list[tuple[str, pa.RecordBatch]]] = []
        self._due: Final[list[int]] = []

    def take(self, given: Sequence[pa.RecordBatch]) -> None:
        """Puts together what is given, routes it and what waits, and gives up what has waited too long."""
        messages = pa.Table.from_batches(list(given)) if given else None
        if messages is not None:
            messages = self._known(messages)
        if self._task.assembly is not None:
            messages = self._assemble(self._task.assembly, messages)
        if self._task.routing is not None:
            self._route(self._task.routing, messages)
        elif messages is not None:
            self._tell(kinds.MESSAGE, messages)

    def end(self, kept: bytes | None) -> Step:
        """What comes of the step."""
        state = self._state
        if not state.assembler and state.delayed is None:
            after = None
        else:
            after = kept if kept is not None and state is self._before else state.to_bytes()
        if self._task.figures:
            self._tell_batch(kinds.FIGURES, self._figures(0 if after is None else len(after)))
        return Step(self._rows, after, min(self._due, default=None))

    def _known(self, rows: pa.Table) -> pa.Table:
        """The rows, if their carried columns are those of before: what waits has none others."""
        further, before = carried.of(rows.schema, self._task.carried), self._state.further
        if before is None:
            self._state = replace(self._state, further=further)
            return rows
        if not carried.are_same(before, further):
            raise _other_columns(carried.told(before), carried.told(further))
        return carried.as_before(rows, before)

    def _assemble(self, assembly: Assembly, fragments: pa.Table | None) -> pa.Table | None:
        """The messages that are whole now and whose turn it is."""
        assembler, pending, messages = None, None, None
        if fragments is not None:
            assembler = _assembler(assembly, self._state.assembler)
            with wrong_rows.named(fragments, wrong_rows.FRAGMENT):
                pushed = assembler.push(fragments)
            messages, pending = pushed.messages, pushed.pending
            self._tell(kinds.REJECTION, pushed.rejected)
            if assembly.acknowledgements:
                self._tell(kinds.ACKNOWLEDGEMENT, pushed.acknowledgements)
        found = waiting.waits(self._state.waits, pending, max_age_us=assembly.max_pending_age_us, now_us=self._now_us)
        if found.expired is not None:
            assembler = _assembler(assembly, self._state.assembler) if assembler is None else assembler
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
        since = column(expired, waiting.SINCE).cast(pa.timestamp("us", tz="UTC"))
        expired = expired.drop_columns([waiting.SINCE, waiting.GROWN])
        self._tell(kinds.EXPIRY, expired.append_column(kinds.EXPIRED.names[-1], since))

    def _route(self, routing: Routing, messages: pa.Table | None) -> None:
        """Routes what has come and what waits, as far as it is due."""
        state = self._state
        if messages is not None and not messages.num_rows:
            messages = None
        if messages is None and state.delayed is None:
            return
        router, fingerprint = routing.source.router(routing.tie_break, routing.pending_request, now_us=self._now_us)
        room = delayed.Room(
            decide=_Decide(router, routing, now_us=self._now_us),
            direction=routing.direction,
            max_bytes=routing.max_delayed_bytes,
        )
        changed = state.catalog != fingerprint
        turn = room.turn(state.delayed, messages, arrivals=state.arrivals, changed=changed, now_us=self._now_us)
        for rows in turn.released:
            self._tell_batch(kinds.MESSAGE, rows)
        if turn.queue is not state.delayed:
            self._state = replace(
                state, delayed=turn.queue, arrivals=turn.arrivals, catalog=fingerprint, names=routing.names
            )
        if turn.due_us is not None:
            look_us = [self._now_us + LOOK_US] if routing.source.may_change else []
            self._due.extend([turn.due_us, *look_us])

    def _tell(self, kind: str, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            self._tell_batch(kind, batch)

    def _tell_batch(self, kind: str, rows: pa.RecordBatch) -> None:
        """Rows of a kind, with the columns that all kinds carry."""
        if not rows.num_rows:
            return
        columns: dict[str, Column] = dict(zip(rows.schema.names, rows.columns, strict=True))
        for field in self._state.further or ():
            columns.setdefault(field.name, nulls(field.type, rows.num_rows))
        self._rows.append((kind, pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))))

    def _figures(self, state_bytes: int) -> pa.RecordBatch:
        waits, queue = self._state.waits, self._state.delayed
        counts = (state_bytes, 0 if waits is None else waits.num_rows, 0 if queue is None else queue.num_rows)
        return pa.RecordBatch.from_arrays(
            [pa.array([count], pa.int64()) for count in counts], names=list(kinds.FIGURE_COLUMNS)
        )


@dataclass(frozen=True)
class _Decide:
    """Adds the decision to messages."""

    router: Router
    routing: Routing
    now_us: int

    def __call__(self, messages: pa.RecordBatch) -> tuple[pa.RecordBatch, Column]:
        names: Mapping[str, str] = self.routing.names
        conversations = pa.RecordBatch.from_arrays(
            [messages.column(name) for name in names.values()], names=list(names)
        )
        with wrong_rows.named(messages, {**names, _NUMBER: _NUMBER}):
            decided = self.router.route(conversations, now=moment.EPOCH + timedelta(microseconds=self.now_us))
        packed = worker.packed_of(decided, self.routing.labels)
        columns: list[Column] = [*messages.columns, *packed.flatten()]
        names_ = [*messages.schema.names, *packed.type.names]
        is_delayed: Column = pc.equal(decided["outcome"].cast(pa.string()), "DELAYED")
        return pa.RecordBatch.from_arrays(columns, names=names_), is_delayed


def _assembler(assembly: Assembly, checkpoint: bytes) -> Reassembler:
    given = assembly.session_keys
    keys: Any = assembling.native_keys(given) if isinstance(given, Shipped) else given
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


def _other_columns(expected: str, actual: str) -> SchemaError:
    return SchemaError(
        f"this checkpoint began with the further columns {expected}, now they are {actual}; go on with the same columns in the "
        "same order, or begin with a new checkpoint",
        expected=expected,
        actual=actual,
    )
