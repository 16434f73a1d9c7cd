"""Reads views and queues in Spark tasks, with filter push-down and streaming offsets."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.broker import views
from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.validation import queue_key
from ssbroker.exceptions import InputError, OptionError
from ssbroker.spark.source.options import ReadOptions
from ssbroker.store.queues import QueueSlice

_VALUES_MAX: Final = 100
_NUMBER: Final = "queuing_order"
_DATABASE: Final = "database"
_COMPARED: Final = {
    "EqualTo": lambda field, value: field == value,
    "GreaterThan": lambda field, value: field > value,
    "GreaterThanOrEqual": lambda field, value: field >= value,
    "LessThan": lambda field, value: field < value,
    "LessThanOrEqual": lambda field, value: field <= value,
}
_PREFIXED: Final = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Filters that are taken over."""

    expression: pc.Expression | None = None
    """What a row has to meet; None is nothing."""
    after: int = 0
    """All rows of a queue have greater numbers."""
    until: int | None = None
    """No row of a queue has a greater number."""
    databases: frozenset[str] | None = None
    """The databases that rows can be of; None is any."""

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows that meet the filters."""
        return table if self.expression is None else table.filter(self.expression)


def push(filters: Sequence[Any], schema: pa.Schema) -> tuple[Pushed, list[Any]]:
    """Takes over what can be answered here.

    Args:
        filters: Spark's filters; a row has to meet all.
        schema: The columns.

    Returns:
        What is taken over, and the filters that are left to Spark.
    """
    pushed, left = Pushed(), []
    for each in filters:
        expression = _expression(each, schema)
        if expression is None:
            left.append(each)
        else:
            pushed = _narrowed(pushed, each, expression)
    return pushed, left


def _expression(asked: Any, schema: pa.Schema) -> Any:
    """A filter as Arrow has it, with Spark's three values of truth; None where that is not known."""
    kind = type(asked).__name__
    if kind == "Not":
        inner = _expression(asked.child, schema)
        return None if inner is None else ~inner
    if len(asked.attribute) != 1 or asked.attribute[0] not in schema.names:
        return None
    name = asked.attribute[0]
    field, column = pc.field(name), schema.field(name).type
    if kind in {"IsNull", "IsNotNull"}:
        return field.is_null() if kind == "IsNull" else field.is_valid()
    values = asked.value if kind == "In" else (asked.value,)
    if not 0 < len(values) <= _VALUES_MAX or not all(_fits(value, column) for value in values):
        return None
    if kind == "In":
        return reduce(or_, (field == pa.scalar(value, column) for value in values))
    if kind in _COMPARED:
        return _COMPARED[kind](field, pa.scalar(values[0], column))
    if kind in _PREFIXED and column == pa.string():
        return _PREFIXED[kind](field, values[0])
    return None


def _fits(value: object, column: pa.DataType) -> bool:
    """Whether a value of a filter is one of the column's, so that they compare here as they do in Spark."""
    if pa.types.is_boolean(column):
        return isinstance(value, bool)
    if pa.types.is_integer(column):
        return isinstance(value, int) and not isinstance(value, bool)
    return (pa.types.is_string(column) and isinstance(value, str)) or (
        pa.types.is_binary(column) and isinstance(value, bytes | bytearray)
    )


def _narrowed(pushed: Pushed, asked: Any, expression: Any) -> Pushed:
    kind = type(asked).__name__
    name = asked.attribute[0] if kind != "Not" else None
    after, until, databases = pushed.after, pushed.until, pushed.databases
    if name == _NUMBER and kind in _COMPARED:
        value = asked.value
        if kind.startswith("Greater") or kind == "EqualTo":
            after = max(after, value - (kind != "GreaterThan"))
        if kind.startswith("Less") or kind == "EqualTo":
            most = max(
                0, value - (kind == "LessThan")
            )  # numbers begin with 1, and what is stored has no less than -2**63
            until = most if until is None else min(until, most)
    elif name == _DATABASE and kind in {"EqualTo", "In"}:
        named = frozenset(asked.value if kind == "In" else (asked.value,))
        databases = named if databases is None else databases & named
    whole = expression if pushed.expression is None else pushed.expression & expression
    return Pushed(whole, after, until, databases)


_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> str:
    """A text that processes of one machine have in common, and those of two do not."""
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
    return f"{os.uname().nodename} {boot}".strip()


SLICE_ROWS: Final = 100_000
SLICE_BYTES: Final = 8 << 20
INLINE_ROWS: Final = 100_000
INLINE_BYTES: Final = 16 << 20
_BATCH_ROWS: Final = 10_000


class Inline(NamedTuple):
    """Rows that travel with the plan."""

    stream: bytes
    """They, as Arrow's IPC stream."""


class Slice(NamedTuple):
    """Rows that a task reads itself."""

    database: str
    """Of which database."""
    span: tuple[int, int] | None
    """The numbers that it covers; None is what has no number."""
    rows: int | None
    """How many there were when the plan was made; None where that is not counted."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A read of a view or a queue; it travels from the driver to the workers."""

    reading: ReadOptions
    """What is read."""
    schema: pa.Schema
    """The columns to give."""
    machine: str
    """The machine of the driver."""
    pushed: Pushed
    """The filters that are answered here."""

    @classmethod
    def of(cls, reading: ReadOptions, schema: pa.Schema) -> Scan:
        """A read without filters, planned on this machine."""
        return cls(reading, schema, this_machine(), Pushed())

    def push(self, filters: list[Any]) -> tuple[Scan, list[Any]]:
        """The same read with filters, and those that are left to Spark."""
        pushed, left = push(filters, self.schema)
        return Scan(self.reading, self.schema, self.machine, pushed), left

    def parts(self) -> list[Inline | Slice]:
        """Divides the read among tasks; few rows travel with the plan.

        Raises:
            InputError: There is no such queue.
            StorageError: The instance cannot be read.
        """
        asked = self.reading
        with opened(asked.folder) as instance:
            if not asked.is_sliced:
                return [inline(self._shown(instance.view(asked.name, asked.database)))]
            found = [
                (database, cut)
                for database in self._databases(instance)
                for cut in views.cuts(
                    database_context(database),
                    asked.name,
                    after=self.pushed.after,
                    until=self.pushed.until,
                    rows_max=SLICE_ROWS,
                    bytes_max=SLICE_BYTES,
                )
            ]
            cuts = [cut for _, cut in found]
            few = sum(cut.rows for cut in cuts) <= INLINE_ROWS and sum(cut.size for cut in cuts) <= INLINE_BYTES
            parts = [Slice(database.name, (cut.after, cut.until), None) for database, cut in found]
            parts += [Slice(database.name, None, None) for database in self._databases(instance)]
            if few:
                return [inline(pa.concat_tables([self.schema.empty_table(), *self._tables(instance, parts)]))]
            return [inline(table) for table in self._tables(instance, parts)] if asked.inline else [*parts]

    def rows(self, part: Inline | Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in the worker.

        Raises:
            InputError: The worker is on another machine than the driver.
            StorageError: The instance cannot be read.
        """
        if isinstance(part, Inline):
            table = pa.ipc.open_stream(part.stream).read_all()
        else:
            self.check_machine()
            with opened(self.reading.folder) as instance:
                table = self._read(instance, part)
        yield from table.to_batches(max_chunksize=_BATCH_ROWS)

    def check_machine(self) -> None:
        """Refuses where the files of the instance are another machine's: its processes share SQLite's log in memory."""
        here = this_machine()
        if here != self.machine:
            raise InputError(
                f"{self.reading.folder}: the driver is on {self.machine}, this worker on {here}, and an instance is read on one "
                "machine; .option('inline', 'true') has all rows travel with the plan",
                value=here,
            )

    def _tables(self, instance: Instance, parts: Iterable[Slice]) -> Iterator[pa.Table]:
        return (self._read(instance, part) for part in parts)

    def _read(self, instance: Instance, part: Slice) -> pa.Table:
        database = instance.database(part.database)
        return self._shown(views.slice_of(database_context(database), self.reading.name, part.span, self.schema.names))

    def _shown(self, table: pa.Table) -> pa.Table:
        """The columns and rows that are asked for, in Spark's types."""
        return self.pushed.apply(table.select(self.schema.names).cast(self.schema))

    def _databases(self, instance: Instance) -> list[Database]:
        asked = self.reading
        if asked.database is not None:
            chosen = [instance.database(asked.database)]
        else:
            chosen = [*instance.databases]
            if asked.is_queue:
                key = queue_key(asked.name)
                chosen = [database for database in chosen if key in database_context(database).objects().queues]
                if not chosen:
                    raise InputError(f"{asked.folder}: no database has a queue {asked.name!r}", value=asked.name)
        named = self.pushed.databases
        return [database for database in chosen if named is None or database.name in named]


def inline(table: pa.Table) -> Inline:
    """Rows that travel with the plan."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return Inline(sink.getvalue().to_pybytes())


def opened(folder: Path) -> Instance:
    """The instance, for a `with` block; whoever else has it open goes on."""
    return Instance.open(folder, background=False)


_log: Final = logging.getLogger("ssbroker.spark")

Offset = dict[str, int]
"""How far a stream has come: `queuing_order`, the number of the last message that it has given."""


class Tail:
    """The messages of a queue by their numbers, which never come twice.

    Args:
        scan: What is read.

    Raises:
        InputError: It is a view, which has no order in which rows come.
        OptionError: No database is named.
    """

    def __init__(self, scan: Scan) -> None:
        if not scan.reading.is_queue:
            name = scan.reading.name
            raise InputError(f"{name} cannot be followed by a stream: expected a queue; read it as a batch", value=name)
        if scan.reading.database is None:
            raise OptionError("a stream follows the queue of one database: expected option database")
        self._scan: Final = scan
        self._folder: Final = scan.reading.folder
        self._name: Final = scan.reading.name
        self._database: Final = scan.reading.database
        self._target: int | None = None

    def initial(self) -> Offset:
        """Where a new stream begins."""
        return {_NUMBER: 0 if self._scan.reading.starting == "earliest" else self._last_number()}

    def latest(self, start: Offset, rows_max: int | None) -> Offset:
        """How far the next batch can go.

        Args:
            start: Where it begins.
            rows_max: The most rows of it; None is all.

        Raises:
            InputError: The database has given fewer numbers than the stream has read.
        """
        cuts_max = None if rows_max is None else 1
        cuts = self._cuts(
            start[_NUMBER], self._target, rows_max=rows_max or SLICE_ROWS, bytes_max=1 << 62, cuts_max=cuts_max
        )
        return {_NUMBER: cuts[-1].until} if cuts else start

    def stop_at_now(self) -> None:
        """Has the stream end with what has entered until now."""
        self._target = self._last_number()

    def parts(self, start: Offset, end: Offset) -> list[Inline | Slice]:
        """Divides a batch among tasks.

        Args:
            start: The last message before it.
            end: Its last message.

        Raises:
            InputError: The database has given fewer numbers than that.
        """
        cuts = self._cuts(start[_NUMBER], end[_NUMBER], rows_max=SLICE_ROWS, bytes_max=SLICE_BYTES)
        parts = [Slice(self._database, (cut.after, cut.until), cut.rows) for cut in cuts]
        return (
            [inline(table) for part in parts for table in self._tables(part)] if self._scan.reading.inline else [*parts]
        )

    def rows(self, part: Inline | Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in the worker; what has gone since it was planned is told to the log."""
        found = 0
        for batch in self._scan.rows(part):
            found += batch.num_rows
            yield batch
        planned = part.rows if isinstance(part, Slice) else None
        if planned is not None and found < planned:
            where = f"{self._name} of {self._database}"
            _log.warning("%s: %d messages were received before the stream had read them", where, planned - found)

    def _tables(self, part: Slice) -> Iterator[pa.Table]:
        yield pa.Table.from_batches(self.rows(part), self._scan.schema)

    def _cuts(
        self, after: int, until: int | None, *, rows_max: int, bytes_max: int, cuts_max: int | None = None
    ) -> list[QueueSlice]:
        with opened(self._folder) as instance:
            database = instance.database(self._database)
            self._check_numbers(views.last_number(database_context(database)), max(after, until or 0))
            return views.cuts(
                database_context(database),
                self._name,
                after=after,
                until=until,
                rows_max=rows_max,
                bytes_max=bytes_max,
                cuts_max=cuts_max,
            )

    def _check_numbers(self, last: int, seen: int) -> None:
        """Refuses a database in whose numbers what is new could not be told from what was read."""
        if last < seen:
            raise InputError(
                f"{self._folder}: the stream has come to number {seen}, and {self._database} has given no more than {last}: it is another "
                "database than before, or an older copy of it; begin with a new checkpoint",
                value=str(last),
            )

    def _last_number(self) -> int:
        with opened(self._folder) as instance:
            return views.last_number(database_context(instance.database(self._database)))
