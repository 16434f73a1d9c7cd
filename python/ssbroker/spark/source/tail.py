"""A queue followed by a stream: what enters it, and nothing is taken (U22)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from ssbroker.broker.views import slices
from ssbroker.exceptions import InputError, OptionError
from ssbroker.spark.source.scan import SLICE_BYTES, SLICE_ROWS, Inline, Scan, Slice, inline, opened
from ssbroker.store.slices import Cut

_log: Final = logging.getLogger("ssbroker.spark")

Offset = dict[str, int]
"""How far a stream has come: `queuing_order`, the number of the last message that it has given."""
_NUMBER: Final = "queuing_order"


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
    ) -> list[Cut]:
        with opened(self._folder) as instance:
            database = instance.database(self._database)
            self._check_numbers(slices.last_number(database), max(after, until or 0))
            return slices.cuts(
                database,
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
            return slices.last_number(instance.database(self._database))
