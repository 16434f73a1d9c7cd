"""Views and queues read by the tasks of a job (U21)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.broker.objects.queue_names import queue_key
from ssbroker.broker.views import slices
from ssbroker.exceptions import InputError
from ssbroker.spark.source.filters import Pushed, push
from ssbroker.spark.source.machine import this_machine
from ssbroker.spark.source.settings import Reading

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

    reading: Reading
    """What is read."""
    schema: pa.Schema
    """The columns to give."""
    machine: str
    """The machine of the driver."""
    pushed: Pushed
    """The filters that are answered here."""

    @classmethod
    def of(cls, reading: Reading, schema: pa.Schema) -> Scan:
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
                for cut in slices.cuts(
                    database,
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
        return self._shown(slices.slice_of(database, self.reading.name, part.span, self.schema.names))

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
                chosen = [database for database in chosen if key in database.objects().queues]
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
