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
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.object_names import queue_key
from ssbroker.exceptions import InputError, OptionError
from ssbroker.spark.source.options import ReadOptions
from ssbroker.store.views import QueueSlice

_VALUES_MAX: Final = 100
_NUMBER_COLUMN: Final = "queuing_order"
_DATABASE_COLUMN: Final = "database"
_COMPARISONS: Final = {
    "EqualTo": lambda field, value: field == value,
    "GreaterThan": lambda field, value: field > value,
    "GreaterThanOrEqual": lambda field, value: field >= value,
    "LessThan": lambda field, value: field < value,
    "LessThanOrEqual": lambda field, value: field <= value,
}
_STRING_MATCHES: Final = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The filters that are pushed down."""

    expression: pc.Expression | None = None
    """The condition that rows must meet; None for no condition."""
    after: int = 0
    """Only rows of a queue with a larger `queuing_order` than this number are read."""
    until: int | None = None
    """Only rows of a queue with a `queuing_order` up to this number are read; None for no limit."""
    databases: frozenset[str] | None = None
    """The databases to which rows that meet the condition can belong; None for any database."""

    def apply(self, table: pa.Table) -> pa.Table:
        """Returns the rows that meet the condition."""
        return table if self.expression is None else table.filter(self.expression)


def push_filters(filters: Sequence[Any], schema: pa.Schema) -> tuple[PushedFilters, list[Any]]:
    """Returns the filters that can be pushed down, combined, and the filters that Spark must apply."""
    pushed, unsupported = PushedFilters(), []
    for spark_filter in filters:
        expression = _to_arrow(spark_filter, schema)
        if expression is None:
            unsupported.append(spark_filter)
        else:
            pushed = _with_filter(pushed, spark_filter, expression)
    return pushed, unsupported


def _to_arrow(spark_filter: Any, schema: pa.Schema) -> Any:
    """Converts a filter to Arrow, with SQL's three-valued logic; None if the filter is not supported."""
    filter_name = type(spark_filter).__name__
    if filter_name == "Not":
        inner = _to_arrow(spark_filter.child, schema)
        return None if inner is None else ~inner
    if len(spark_filter.attribute) != 1 or spark_filter.attribute[0] not in schema.names:
        return None
    name = spark_filter.attribute[0]
    field, column = pc.field(name), schema.field(name).type
    if filter_name in {"IsNull", "IsNotNull"}:
        return field.is_null() if filter_name == "IsNull" else field.is_valid()
    values = spark_filter.value if filter_name == "In" else (spark_filter.value,)
    if not 0 < len(values) <= _VALUES_MAX or not all(_has_type(value, column) for value in values):
        return None
    if filter_name == "In":
        return reduce(or_, (field == pa.scalar(value, column) for value in values))
    if filter_name in _COMPARISONS:
        return _COMPARISONS[filter_name](field, pa.scalar(values[0], column))
    if filter_name in _STRING_MATCHES and column == pa.string():
        return _STRING_MATCHES[filter_name](field, values[0])
    return None


def _has_type(value: object, column: pa.DataType) -> bool:
    """Returns whether the value of a filter has the column's type, so that Arrow compares it as Spark does."""
    if pa.types.is_boolean(column):
        return isinstance(value, bool)
    if pa.types.is_integer(column):
        return isinstance(value, int) and not isinstance(value, bool)
    return (pa.types.is_string(column) and isinstance(value, str)) or (
        pa.types.is_binary(column) and isinstance(value, bytes | bytearray)
    )


def _with_filter(pushed: PushedFilters, spark_filter: Any, expression: Any) -> PushedFilters:
    filter_name = type(spark_filter).__name__
    name = spark_filter.attribute[0] if filter_name != "Not" else None
    after, until, databases = pushed.after, pushed.until, pushed.databases
    if name == _NUMBER_COLUMN and filter_name in _COMPARISONS:
        value = spark_filter.value
        if filter_name.startswith("Greater") or filter_name == "EqualTo":
            after = max(after, value - (filter_name != "GreaterThan"))
        if filter_name.startswith("Less") or filter_name == "EqualTo":
            # Numbers start at 1; the clamp keeps the bound within SQLite's 64-bit integers.
            largest = max(0, value - (filter_name == "LessThan"))
            until = largest if until is None else min(until, largest)
    elif name == _DATABASE_COLUMN and filter_name in {"EqualTo", "In"}:
        allowed = frozenset(spark_filter.value if filter_name == "In" else (spark_filter.value,))
        databases = allowed if databases is None else databases & allowed
    combined = expression if pushed.expression is None else pushed.expression & expression
    return PushedFilters(combined, after, until, databases)


_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Returns an identifier of this machine, which is valid until the machine restarts."""
    boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else ""
    return f"{os.uname().nodename} {boot}".strip()


SLICE_ROWS: Final = 100_000
SLICE_BYTES: Final = 8 << 20
INLINE_ROWS: Final = 100_000
INLINE_BYTES: Final = 16 << 20
_BATCH_ROWS: Final = 10_000


class Inline(NamedTuple):
    """Rows that are sent with the plan."""

    stream: bytes
    """The rows as an Arrow IPC stream."""


class Slice(NamedTuple):
    """Rows that a task reads itself."""

    database: str
    """The database."""
    span: tuple[int, int] | None
    """The range of `queuing_order`, after the first number and up to the second; None for messages without a `queuing_order`."""
    rows: int | None
    """The number of rows when the read was planned; None if it was not counted."""
    include_sent: bool = True
    """Whether to read the copies of sent messages that a queue retains."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A planned read of a view or a queue; the driver sends the plan to the workers."""

    options: ReadOptions
    """The options of the read."""
    schema: pa.Schema
    """The columns to return."""
    machine: str
    """The machine of the driver."""
    pushed: PushedFilters
    """The filters that are pushed down."""

    @classmethod
    def of(cls, options: ReadOptions, schema: pa.Schema) -> Scan:
        """Creates a read without filters, planned on this machine."""
        return cls(options, schema, machine_id(), PushedFilters())

    def push_filters(self, filters: list[Any]) -> tuple[Scan, list[Any]]:
        """Returns the read with filters pushed down, and the filters that Spark must apply."""
        pushed, unsupported = push_filters(filters, self.schema)
        return Scan(self.options, self.schema, self.machine, pushed), unsupported

    def parts(self) -> list[Inline | Slice]:
        """Divides the read into partitions; a small result is sent with the plan."""
        options = self.options
        with open_instance(options.folder) as instance:
            if not options.is_sliced:
                return [to_inline(self._project(instance.view(options.name, options.database)))]
            found = [
                (database, each)
                for database in self._databases(instance)
                for each in views.queue_slices(
                    database_context(database),
                    options.name,
                    after=self.pushed.after,
                    until=self.pushed.until,
                    rows_max=SLICE_ROWS,
                    bytes_max=SLICE_BYTES,
                )
            ]
            slices = [each for _, each in found]
            is_small = (
                sum(each.rows for each in slices) <= INLINE_ROWS and sum(each.size for each in slices) <= INLINE_BYTES
            )
            parts = [Slice(database.name, (each.after, each.until), None) for database, each in found]
            parts += [Slice(database.name, None, None) for database in self._databases(instance)]
            if is_small:
                return [to_inline(pa.concat_tables([self.schema.empty_table(), *self._tables(instance, parts)]))]
            return [to_inline(table) for table in self._tables(instance, parts)] if options.inline else [*parts]

    def rows(self, part: Inline | Slice) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition, in the worker; raises `InputError` if the worker and the driver run on different machines."""
        if isinstance(part, Inline):
            table = pa.ipc.open_stream(part.stream).read_all()
        else:
            self.check_machine()
            with open_instance(self.options.folder) as instance:
                table = self._read(instance, part)
        yield from table.to_batches(max_chunksize=_BATCH_ROWS)

    def check_machine(self) -> None:
        """Raises `InputError` on a machine other than the driver's.

        All processes that open an instance share the index of SQLite's write-ahead log in memory.
        """
        here = machine_id()
        if here != self.machine:
            raise InputError(
                f"{self.options.folder}: the driver runs on {self.machine} and this worker on {here}, but an instance can only be read "
                "on its own machine; set .option('inline', 'true') to let the driver read all rows",
                value=here,
            )

    def _tables(self, instance: Instance, parts: Iterable[Slice]) -> Iterator[pa.Table]:
        return (self._read(instance, part) for part in parts)

    def _read(self, instance: Instance, part: Slice) -> pa.Table:
        database = instance.database(part.database)
        return self._project(
            views.read_slice(
                database_context(database),
                self.options.name,
                part.span,
                self.schema.names,
                include_sent=part.include_sent,
            )
        )

    def _project(self, table: pa.Table) -> pa.Table:
        """Returns the requested columns and rows, in types that Spark supports."""
        return self.pushed.apply(table.select(self.schema.names).cast(self.schema))

    def _databases(self, instance: Instance) -> list[Database]:
        options = self.options
        if options.database is not None:
            chosen = [instance.database(options.database)]
        else:
            chosen = [*instance.databases]
            if options.is_queue:
                key = queue_key(options.name)
                chosen = [database for database in chosen if key in database_context(database).objects().queues]
                if not chosen:
                    raise InputError(
                        f"{options.folder}: no database has the queue {options.name!r}; `ssbroker status` lists the queues",
                        value=options.name,
                    )
        allowed = self.pushed.databases
        return [database for database in chosen if allowed is None or database.name in allowed]


def to_inline(table: pa.Table) -> Inline:
    """Serializes rows that are sent with the plan."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return Inline(sink.getvalue().to_pybytes())


def open_instance(folder: Path) -> Instance:
    """Opens the instance for a `with` block; does not affect other processes that have the instance open."""
    return Instance.open(folder, background=False)


_LOGGER: Final = logging.getLogger("ssbroker.spark")

Offset = dict[str, int]
"""The position of a stream: `queuing_order`, the number of the last message that was read."""


class Tail:
    """Reads the messages of a queue as a stream, ordered by their unique numbers (`queuing_order`).

    Copies of sent messages, which a queue with RETENTION = ON contains too, are not read.
    Raises `InputError` for a view, whose rows have no order of arrival, and `OptionError` without a database.
    """

    def __init__(self, scan: Scan) -> None:
        if not scan.options.is_queue:
            name = scan.options.name
            raise InputError(
                f"{name}: a view cannot be read as a stream; read it as a batch, or read a queue", value=name
            )
        if scan.options.database is None:
            raise OptionError("the option database is required: a stream reads the queue of one database")
        self._scan: Final = scan
        self._folder: Final = scan.options.folder
        self._name: Final = scan.options.name
        self._database: Final = scan.options.database
        self._target: int | None = None

    def initial(self) -> Offset:
        """Returns the offset at which a new stream starts."""
        return {_NUMBER_COLUMN: 0 if self._scan.options.starting == "earliest" else self._last_number()}

    def latest(self, start: Offset, rows_max: int | None) -> Offset:
        """Returns the end of the next micro-batch. `rows_max` limits its rows; None means no limit."""
        slices_max = None if rows_max is None else 1
        slices = self._slices(
            start[_NUMBER_COLUMN],
            self._target,
            rows_max=rows_max or SLICE_ROWS,
            bytes_max=1 << 62,
            slices_max=slices_max,
        )
        return {_NUMBER_COLUMN: slices[-1].until} if slices else start

    def end(self) -> Offset:
        """Returns the offset of the last message in the queue."""
        return {_NUMBER_COLUMN: self._last_number()}

    def stop_at_current_end(self) -> None:
        """Ends the stream at the message that entered the queue last."""
        self._target = self._last_number()

    def parts(self, start: Offset, end: Offset) -> list[Inline | Slice]:
        """Divides a micro-batch into partitions; `start` is the offset of the last message before it, `end` that of its last message."""
        slices = self._slices(start[_NUMBER_COLUMN], end[_NUMBER_COLUMN], rows_max=SLICE_ROWS, bytes_max=SLICE_BYTES)
        parts = [Slice(self._database, (each.after, each.until), each.rows, include_sent=False) for each in slices]
        return (
            [to_inline(table) for part in parts for table in self._tables(part)]
            if self._scan.options.inline
            else [*parts]
        )

    def rows(self, part: Inline | Slice) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition, in the worker; logs how many rows other receivers have received since the read was planned."""
        found = 0
        for batch in self._scan.rows(part):
            found += batch.num_rows
            yield batch
        planned = part.rows if isinstance(part, Slice) else None
        if planned is not None and found < planned:
            _LOGGER.warning(
                "queue %s of database %s: other receivers received %d messages before the stream read them; the stream omits these messages",
                self._name,
                self._database,
                planned - found,
            )

    def _tables(self, part: Slice) -> Iterator[pa.Table]:
        yield pa.Table.from_batches(self.rows(part), self._scan.schema)

    def _slices(
        self, after: int, until: int | None, *, rows_max: int, bytes_max: int, slices_max: int | None = None
    ) -> list[QueueSlice]:
        with open_instance(self._folder) as instance:
            database = instance.database(self._database)
            self._check_last_number(views.last_queuing_order(database_context(database)), max(after, until or 0))
            return views.queue_slices(
                database_context(database),
                self._name,
                after=after,
                until=until,
                rows_max=rows_max,
                bytes_max=bytes_max,
                slices_max=slices_max,
                include_sent=False,
            )

    def _check_last_number(self, last: int, seen: int) -> None:
        """Raises `InputError` if the last number in the database is lower than one that the stream has read.

        With reused numbers, the stream could not distinguish new messages from those that it has read.
        """
        if last < seen:
            raise InputError(
                f"{self._folder}: the stream has read up to queuing_order {seen}, but the last queuing_order in {self._database} is {last}; "
                "the database was replaced or restored from an older copy: start the stream with a new checkpoint",
                value=str(last),
            )

    def _last_number(self) -> int:
        with open_instance(self._folder) as instance:
            return views.last_queuing_order(database_context(instance.database(self._database)))
