"""Rows of a job sent into dialogs of an instance, once (U23, U24)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ssbroker.broker.dialogs.rows import ADDRESS, BODY, DIALOG, MESSAGE_TYPE
from ssbroker.broker.send_once import Batch, send_once
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.spark.source import staged
from ssbroker.spark.source.scan import opened
from ssbroker.spark.source.settings import Writing
from ssbroker.spark.source.staged import POSITION, Staged

_log: Final = logging.getLogger("ssbroker.spark")

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
_ORDERED: Final = (*_INTEGERS, "float", "double", "string", "date", "timestamp", "timestamp_ntz")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    BODY: ("binary",),
    MESSAGE_TYPE: ("string",),
    **dict.fromkeys(ADDRESS, ("string",)),
    "to_broker_instance": ("string", "binary"),
    DIALOG: ("string", "binary", *_INTEGERS),
    POSITION: _ORDERED,
}


@dataclass(frozen=True, slots=True)
class Sink:
    """A write into an instance; it travels from the driver to the workers.

    Attributes:
        writing: How rows are sent.
        job: The name of a batch write's files.
    """

    writing: Writing
    job: str

    @classmethod
    def of(cls, writing: Writing, columns: Mapping[str, str], *, overwrite: bool, is_stream: bool) -> Sink:
        """A write of rows with these columns.

        Args:
            writing: How they are sent.
            columns: Names and types, as Spark's DDL has them.
            overwrite: Whether Spark is to replace what is there.
            is_stream: Whether it is the sink of a stream.

        Returns:
            The write.

        Raises:
            OptionError: Messages cannot be replaced, or a stream is told its number.
            SchemaError: A column is missing, unknown or has another type.
        """
        if overwrite:
            raise OptionError("what was sent cannot be replaced: expected mode('append')")
        if is_stream and writing.batch is not None:
            raise OptionError("query_id and batch_id: a stream has its own; they are for batch writes")
        for name, kind in columns.items():
            if name not in _TYPES:
                raise SchemaError(f"column {name!r} has no meaning here; there are {', '.join(_TYPES)}", column=name)
            if kind not in _TYPES[name]:
                expected = " or ".join(_TYPES[name])
                raise SchemaError(
                    f"column {name!r} is {kind}, expected {expected}", column=name, expected=expected, actual=kind
                )
        for name, said in ((BODY, None), *((name, getattr(writing.addressing, name)) for name in ADDRESS[:2])):
            if name not in columns and said is None:
                or_option = "" if name == BODY else ", or the option of that name"
                raise SchemaError(f"expected a column {name!r} ({' or '.join(_TYPES[name])}){or_option}", column=name)
        return cls(writing, f"job-{uuid.uuid4().hex}")

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        *,
        partition: int,
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> Staged:
        """Writes the rows of a task beside the instance, in a worker; `query_id` and `batch_id` are those of a stream."""
        folder = self.writing.folder
        place = staged.job_of(folder, self.job if query_id is None else query_id, batch_id)
        return staged.stage(folder, place, batches, partition=partition, query_id=query_id)

    def commit(self, told: Sequence[Staged], batch_id: int | None = None) -> None:
        """Sends what the tasks wrote, in one transaction with the note that it is sent; nothing where it was sent before.

        Args:
            told: What the tasks told.
            batch_id: The number of a stream's batch.

        Raises:
            BrokerError: A message is refused; nothing was sent.
            InputError: A value is not what was expected; nothing was sent.
            StorageError: The database cannot be written; nothing was sent.
        """
        writing = self.writing
        query_id = next((one.query_id for one in told), None)
        batch = writing.batch if query_id is None or batch_id is None else Batch(query_id, batch_id)
        if any(one.rows for one in told):
            with opened(writing.folder) as instance:
                database = instance.database(writing.database)
                sent = send_once(database, staged.parts_of(told), writing.addressing, batch=batch)
            if sent is None:
                self._tell_sent_before(batch, is_stream=query_id is not None)
        staged.forget(told)
        staged.sweep(writing.folder, query_id or self.job, None if query_id is None else batch_id)

    def _tell_sent_before(self, batch: Batch | None, *, is_stream: bool) -> None:
        """A stream gives a batch again when it goes on; who numbers batch writes may have used a number twice."""
        if batch is None or is_stream:
            _log.info("%s: batch %s was sent before", self.writing.folder, batch)
            return
        _log.warning(
            "%s: nothing is sent of this write: batch_id %d of query_id %r, or a later one, was sent before; rows that are new need a "
            "higher batch_id",
            self.writing.folder,
            batch.batch_id,
            batch.writer,
        )

    def abort(self, told: Iterable[Staged | None]) -> None:
        """Removes the files of tasks; what was sent stands in the database, and is no file."""
        staged.forget(told)
        staged.sweep(self.writing.folder, self.job)
