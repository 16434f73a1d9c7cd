"""One step of a bucket, without Spark: state and new rows in, results and new state out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ssbroker.spark import reassembly, worker
from ssbroker.spark.broadcast import SharedValue
from ssbroker.spark.streams import extra_columns, row_kinds
from ssbroker.spark.streams.row_kinds import ArrowColumn, column, key, nulls, pc, same, with_column
from ssbroker.spark.streams.state import BucketState, state_from_bytes
from ssbroker.spark.streams.task import AssemblySettings, RoutingSettings, StreamTask

WAITING_SINCE: Final = "since_us"
GROWN: Final = "grown_us"
WAITS: Final = pa.schema([*PENDING, pa.field(WAITING_SINCE, pa.int64()), pa.field(GROWN, pa.int64())])
"""What waits, since when, and when a fragment of it was last accepted."""

_KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number")


@dataclass(frozen=True)
class WaitingDirections:
    """What waits after a step.

    Attributes:
        rows: Those that go on: `WAITS`, None for none; the same object as before if nothing has changed.
        expired: Those that are given up: the same.
        due_us: When the next is given up, None for never.
    """

    rows: pa.Table | None
    expired: pa.Table | None
    due_us: int | None


def waits(
    before: pa.Table | None, pending: pa.Table | None, *, max_age_us: int | None, now_us: int
) -> WaitingDirections:
    """Compares what is pending now with what waited before.

    Args:
        before: What waited: `WAITS`.
        pending: What is pending: `schemas.PENDING`; None if nothing has come.
        max_age_us: After how long what does not grow is given up, None for never.
        now_us: The moment. Where the clock has been set back, nothing has grown later than that.

    Returns:
        What waits, and what is given up.
    """
    rows = before if pending is None else _since(before, pending, now_us=now_us)
    if rows is None or not rows.num_rows:
        return WaitingDirections(None, None, None)
    if max_age_us is None:
        return WaitingDirections(rows, None, None)
    grown = column(rows, GROWN)
    if pc.max(grown).as_py() > now_us:
        grown = pc.min_element_wise(grown, now_us)
        rows = with_column(rows, GROWN, grown)
    is_over = pc.less_equal(grown, now_us - max_age_us)
    if not pc.any(is_over).as_py():
        return WaitingDirections(rows, None, _first(grown) + max_age_us)
    rest = rows.filter(pc.invert(is_over))
    due_us = _first(column(rest, GROWN)) + max_age_us if rest.num_rows else None
    return WaitingDirections(rest if rest.num_rows else None, rows.filter(is_over), due_us)


def _since(before: pa.Table | None, pending: pa.Table, *, now_us: int) -> pa.Table:
    """What is pending, with the moments of what waited before and has not grown."""
    now = same(now_us, pa.int64(), pending.num_rows)
    if before is None or not pending.num_rows:
        return with_column(with_column(pending, WAITING_SINCE, now), GROWN, now)
    place = pc.index_in(key(pending, _KEYS), value_set=key(before, _KEYS))
    since = pc.coalesce(column(before, WAITING_SINCE).take(place), pa.scalar(now_us, pa.int64()))
    had = column(before, "received_fragments").take(place)
    is_as_before = pc.fill_null(pc.equal(had, column(pending, "received_fragments")), fill_value=False)
    grown = pc.if_else(is_as_before, column(before, GROWN).take(place), pa.scalar(now_us, pa.int64()))
    return with_column(with_column(pending, WAITING_SINCE, since), GROWN, grown)


def _first(moments: ArrowColumn) -> int:
    first: int = pc.min(moments).as_py()
    return first


RETRY_FIRST_US: Final = 4_000_000
RETRY_MOST_US: Final = 64_000_000

ARRIVAL: Final = "ssbroker arrival"
DELAYED_SINCE: Final = "ssbroker since"
DUE: Final = "ssbroker due"
TRIES: Final = "ssbroker tries"
TURN: Final = {ARRIVAL: pa.int64(), DELAYED_SINCE: pa.int64(), DUE: pa.int64(), TRIES: pa.int64()}
"""What is kept beside a message that waits: its place among all that came, since when, when it is tried again, how often it was."""

_ROW_BYTES: Final = 256
_DELAYED: Final = "is_delayed"


@dataclass(frozen=True)
class StepResult:
    """What comes of a step.

    Attributes:
        released: Messages with their decisions, in the order of their directions.
        queue: What waits, oldest first: the columns of messages and `TURN`; None for nothing.
        arrivals: How many messages have come so far.
    """

    released: list[pa.RecordBatch]
    queue: pa.Table | None
    arrivals: int

    @property
    def due_us(self) -> int | None:
        """When the next is tried again."""
        if self.queue is None:
            return None
        due: int = pc.min(self.queue[DUE]).as_py()
        return due


@dataclass(frozen=True, kw_only=True)
class DelayedLimits:
    """Where messages wait for a route.

    Attributes:
        decide: Adds the decision to messages, and says of which it is DELAYED.
        direction: The columns of what goes in order; None where each is for itself.
        max_bytes: How much may wait.
    """

    decide: Callable[[pa.RecordBatch], tuple[pa.RecordBatch, ArrowColumn]]
    direction: tuple[str, ...] | None
    max_bytes: int

    def turn(
        self, queue: pa.Table | None, arrived: pa.Table | None, *, arrivals: int, changed: bool, now_us: int
    ) -> StepResult:
        """Routes what has come and what is due.

        Args:
            queue: What waits: the columns of messages and `TURN`.
            arrived: The messages that have come.
            arrivals: How many messages have come so far.
            changed: Whether the catalog says something else than when they were last tried.
            now_us: The moment.

        Returns:
            What is released, and what waits.
        """
        if queue is not None and arrived is None and not changed and self._is_early(queue, now_us):
            return StepResult([], queue, arrivals)
        resting, tried = self._parted(queue, arrived, arrivals=arrivals, changed=changed, now_us=now_us)
        arrivals += arrived.num_rows if arrived is not None else 0
        released: list[pa.RecordBatch] = []
        if tried is not None:
            released, delayed = self._tried(tried, now_us=now_us)
            resting = _together(resting, delayed)
        if resting is None:
            return StepResult(released, None, arrivals)
        resting = resting.take(pc.sort_indices(column(resting, ARRIVAL)))
        over, resting = _over(resting, self.max_bytes)
        for rows in [] if over is None else _messages(over).to_batches():
            released.append(self.decide(rows)[0])
        return StepResult(released, resting, arrivals)

    def _parted(
        self, queue: pa.Table | None, arrived: pa.Table | None, *, arrivals: int, changed: bool, now_us: int
    ) -> tuple[pa.Table | None, pa.Table | None]:
        """What goes on waiting, and what is tried now, oldest first."""
        new = None if arrived is None or not arrived.num_rows else _new(arrived, arrivals=arrivals, now_us=now_us)
        if queue is None:
            return None, new
        # Where the clock has been set back, nothing waits longer than it would have to.
        queue = with_column(queue, DUE, pc.min_element_wise(column(queue, DUE), now_us + RETRY_MOST_US))
        is_due = same(True, pa.bool_(), queue.num_rows) if changed else pc.less_equal(column(queue, DUE), now_us)
        resting, tried = queue.filter(pc.invert(is_due)), queue.filter(is_due)
        if new is not None and self.direction is not None and resting.num_rows:
            place = pc.index_in(key(new, self.direction), value_set=key(resting, self.direction))
            behind = pc.is_valid(place)
            for name in (DUE, TRIES):
                new = with_column(new, name, pc.coalesce(column(resting, name).take(place), column(new, name)))
            resting, new = _rows(resting, new.filter(behind)), new.filter(pc.invert(behind))
        return _some(resting), _together(_some(tried), new)

    def _is_early(self, queue: pa.Table, now_us: int) -> bool:
        """Whether nothing is due, and nothing waits longer than it would have to because the clock has been set back."""
        least, most = pc.min_max(queue[DUE]).as_py().values()
        early: bool = now_us < least and most <= now_us + RETRY_MOST_US
        return early

    def _tried(self, rows: pa.Table, *, now_us: int) -> tuple[list[pa.RecordBatch], pa.Table | None]:
        """Routes rows: what is released, and what is DELAYED or behind what is."""
        decided = [self.decide(batch) for batch in _messages(rows).to_batches()]
        is_delayed: ArrowColumn = pa.concat_arrays([delayed for _, delayed in decided])
        if not pc.any(is_delayed).as_py():
            return [messages for messages, _ in decided], None
        stays, tries = is_delayed, column(rows, TRIES)
        if self.direction is not None:
            stays, tries = _behind(key(rows, self.direction), is_delayed, tries)
        released, first = [], 0
        for messages, _ in decided:
            kept = messages.filter(pc.invert(stays.slice(first, messages.num_rows)))
            released += [kept] if kept.num_rows else []
            first += messages.num_rows
        wait = pc.shift_left(pa.scalar(RETRY_FIRST_US, pa.int64()), pc.min_element_wise(tries, 32))
        due = pc.add(pc.min_element_wise(wait, RETRY_MOST_US), now_us)
        rows = with_column(with_column(rows, DUE, due), TRIES, pc.add(tries, 1))
        return released, rows.filter(stays)


def _new(messages: pa.Table, *, arrivals: int, now_us: int) -> pa.Table:
    """Messages that have come, with what is kept beside them."""
    count = messages.num_rows
    now = same(now_us, pa.int64(), count)
    values = {
        ARRIVAL: pa.array(range(arrivals, arrivals + count), pa.int64()),
        DELAYED_SINCE: now,
        DUE: now,
        TRIES: same(0, pa.int64(), count),
    }
    for name, value in values.items():
        messages = messages.append_column(name, value)
    return messages


def _behind(keys: ArrowColumn, is_delayed: ArrowColumn, tries: ArrowColumn) -> tuple[ArrowColumn, ArrowColumn]:
    """Of each row, whether it is DELAYED or follows one of its direction that is; and how often that one was tried."""
    place = pa.array(range(len(keys)), pa.int64())
    # The first of each direction: what is looked up is found at its lowest place.
    heads = place.filter(is_delayed)
    first = pc.index_in(keys, value_set=keys.filter(is_delayed))
    head = heads.take(first)
    stays = pc.fill_null(pc.greater_equal(place, head), fill_value=False)
    return stays, pc.coalesce(tries.take(head), tries)


def _over(queue: pa.Table, most: int) -> tuple[pa.Table | None, pa.Table | None]:
    """The oldest rows that are too many, and the rest."""
    sizes: ArrowColumn = same(_ROW_BYTES, pa.int64(), queue.num_rows)
    for field in queue.schema:
        if _is_long(field.type):
            length = pc.fill_null(pc.binary_length(column(queue, field.name)), 0).cast(pa.int64())
            sizes = pc.add(sizes, length)
    total = pc.sum(sizes).as_py()
    if total <= most:
        return None, queue
    left = pc.subtract(total, pc.cumulative_sum(sizes))
    # A row is given up as long as it and those after it are too many.
    count = pc.sum(pc.greater(pc.add(left, sizes), most)).as_py()
    return queue.slice(0, count), _some(queue.slice(count))


def _is_long(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    )


def _messages(rows: pa.Table) -> pa.Table:
    """The rows without what is kept beside them."""
    return rows.drop_columns(list(TURN))


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None


def _rows(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables)


def _together(first: pa.Table | None, second: pa.Table | None) -> pa.Table | None:
    tables = [table for table in (first, second) if table is not None and table.num_rows]
    return _rows(*tables) if tables else None


FRAGMENT: Final = {
    name: name for name in ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")
}
"""What tells fragments apart, and where it stands."""
_CHARACTERS: Final = 80


@contextmanager
def named(rows: pa.Table | pa.RecordBatch, columns: Mapping[str, str]) -> Iterator[None]:
    """Says of an error which row it is about, and how a query goes on that was stopped by it.

    Args:
        rows: What is read in the block.
        columns: What tells rows apart, and the columns in which it stands.

    Examples:
        >>> try:
        ...     with named(pa.table({"conversation_id": [b"a", b"b"]}), {"conversation_id": "conversation_id"}):
        ...         raise InputError("no GUID", row=1)
        ... except InputError as error:
        ...     print(error.__notes__[0])
        It is the row conversation_id 0x62. A query goes on from its checkpoint once a filter before the stream leaves such rows out.
    """
    try:
        yield
    except InputError as error:
        if error.row is not None:
            there = {name: at for name, at in columns.items() if at in rows.schema.names}
            row = ", ".join(f"{name} {_text(rows.column(at)[error.row].as_py())}" for name, at in there.items())
            or_catalog = ", or the catalog has the database" if isinstance(error, UnknownDatabaseError) else ""
            error.add_note(
                f"It is the row {row}. A query goes on from its checkpoint once a filter before the stream leaves such rows out{or_catalog}."
            )
        raise


def _text(value: Any) -> str:
    text = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."


LOOK_US: Final = 4_000_000
"""How often a catalog that may change is looked at while something waits for a route."""

_NUMBER: Final = "message_sequence_number"


@dataclass(frozen=True)
class StepOutput:
    """What comes of one step.

    Attributes:
        rows: Rows with their kind (`kinds.MESSAGE` and the others), in the order in which they came about.
        state: What is kept, None for nothing. The bytes that were given, if nothing has changed.
        due_us: The moment at which something falls due, in microseconds since 1970; None where nothing does.
    """

    rows: list[tuple[str, pa.RecordBatch]]
    state: bytes | None
    due_us: int | None


def step(task: StreamTask, state: bytes | None, given: Sequence[pa.RecordBatch], *, now_us: int) -> StepOutput:
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
    before = (
        BucketState(fixed=task.fixed, names=names) if state is None else state_from_bytes(state).checked(task.fixed)
    )
    if before.extra is not None and not extra_columns.are_called(before.extra, task.carried):
        raise _other_columns(extra_columns.told(before.extra), ", ".join(task.carried) or "none")
    if before.delayed is not None and task.routing is None:
        raise OptionError(
            "catalog: messages of this checkpoint wait for a route, and what follows them must not overtake them: go on with a "
            "catalog, or begin with a new checkpoint"
        )
    turn = _StepRun(task, before, now_us=now_us)
    turn.take(given)
    return turn.end(state)


class _StepRun:
    """One step under way."""

    def __init__(self, task: StreamTask, before: BucketState, *, now_us: int) -> None:
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
            self._tell(row_kinds.MESSAGE, messages)

    def end(self, kept: bytes | None) -> StepOutput:
        """What comes of the step."""
        state = self._state
        if not state.assembler and state.delayed is None:
            after = None
        else:
            after = kept if kept is not None and state is self._before else state.to_bytes()
        if self._task.figures:
            self._tell_batch(row_kinds.FIGURES, self._figures(0 if after is None else len(after)))
        return StepOutput(self._rows, after, min(self._due, default=None))

    def _known(self, rows: pa.Table) -> pa.Table:
        """The rows, if their carried columns are those of before: what waits has none others."""
        extra, before = extra_columns.of(rows.schema, self._task.carried), self._state.extra
        if before is None:
            self._state = replace(self._state, extra=extra)
            return rows
        if not extra_columns.are_same(before, extra):
            raise _other_columns(extra_columns.told(before), extra_columns.told(extra))
        return extra_columns.as_before(rows, before)

    def _assemble(self, assembly: AssemblySettings, fragments: pa.Table | None) -> pa.Table | None:
        """The messages that are whole now and whose turn it is."""
        assembler, pending, messages = None, None, None
        if fragments is not None:
            assembler = _assembler(assembly, self._state.assembler)
            with named(fragments, FRAGMENT):
                pushed = assembler.push(fragments)
            messages, pending = pushed.messages, pushed.pending
            self._tell(row_kinds.REJECTION, pushed.rejected)
            if assembly.acknowledgements:
                self._tell(row_kinds.ACKNOWLEDGEMENT, pushed.acknowledgements)
        found = waits(self._state.waits, pending, max_age_us=assembly.max_pending_age_us, now_us=self._now_us)
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
        since = column(expired, WAITING_SINCE).cast(pa.timestamp("us", tz="UTC"))
        expired = expired.drop_columns([WAITING_SINCE, GROWN])
        self._tell(row_kinds.EXPIRY, expired.append_column(row_kinds.EXPIRED.names[-1], since))

    def _route(self, routing: RoutingSettings, messages: pa.Table | None) -> None:
        """Routes what has come and what waits, as far as it is due."""
        state = self._state
        if messages is not None and not messages.num_rows:
            messages = None
        if messages is None and state.delayed is None:
            return
        router, fingerprint = routing.source.router(routing.tie_break, routing.pending_request, now_us=self._now_us)
        room = DelayedLimits(
            decide=_Decide(router, routing, now_us=self._now_us),
            direction=routing.direction,
            max_bytes=routing.max_delayed_bytes,
        )
        changed = state.catalog != fingerprint
        turn = room.turn(state.delayed, messages, arrivals=state.arrivals, changed=changed, now_us=self._now_us)
        for rows in turn.released:
            self._tell_batch(row_kinds.MESSAGE, rows)
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
        columns: dict[str, ArrowColumn] = dict(zip(rows.schema.names, rows.columns, strict=True))
        for field in self._state.extra or ():
            columns.setdefault(field.name, nulls(field.type, rows.num_rows))
        self._rows.append((kind, pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))))

    def _figures(self, state_bytes: int) -> pa.RecordBatch:
        waits, queue = self._state.waits, self._state.delayed
        counts = (state_bytes, 0 if waits is None else waits.num_rows, 0 if queue is None else queue.num_rows)
        return pa.RecordBatch.from_arrays(
            [pa.array([count], pa.int64()) for count in counts], names=list(row_kinds.FIGURE_COLUMNS)
        )


@dataclass(frozen=True)
class _Decide:
    """Adds the decision to messages."""

    router: Router
    routing: RoutingSettings
    now_us: int

    def __call__(self, messages: pa.RecordBatch) -> tuple[pa.RecordBatch, ArrowColumn]:
        names: Mapping[str, str] = self.routing.names
        conversations = pa.RecordBatch.from_arrays(
            [messages.column(name) for name in names.values()], names=list(names)
        )
        with named(messages, {**names, _NUMBER: _NUMBER}):
            decided = self.router.route(conversations, now=EPOCH + timedelta(microseconds=self.now_us))
        packed = worker.pack_decisions(decided, self.routing.labels)
        columns: list[ArrowColumn] = [*messages.columns, *packed.flatten()]
        names_ = [*messages.schema.names, *packed.type.names]
        is_delayed: ArrowColumn = pc.equal(decided["outcome"].cast(pa.string()), "DELAYED")
        return pa.RecordBatch.from_arrays(columns, names=names_), is_delayed


def _assembler(assembly: AssemblySettings, checkpoint: bytes) -> Reassembler:
    given = assembly.session_keys
    keys: Any = reassembly.native_keys(given) if isinstance(given, SharedValue) else given
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
