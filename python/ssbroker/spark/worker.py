"""What runs in Spark's Python workers: batches of key columns in, structs of decisions out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker._arguments import epoch_microseconds
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.schemas import CONVERSATIONS, DECISIONS
from ssbroker.spark import columns
from ssbroker.spark.broadcast import SharedValue
from ssbroker.spark.columns import Labels
from ssbroker.spark.transfer import TransferredColumns

_Column: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

_ROUTERS_MAX: Final = 4
_GUID_OR_LABEL: Final = {
    name: pa.binary() if DECISIONS.field(name).type == pa.binary(16) else pa.string()
    for name in DECISIONS.names
    if not pa.types.is_integer(DECISIONS.field(name).type)
}


@dataclass(frozen=True, kw_only=True)
class RouteTask:
    """How to route: small enough to travel with every task."""

    catalog: SharedValue[Catalog]
    now: datetime
    tie_break: TieBreak
    pending_request: PendingRequest


@functools.lru_cache(maxsize=_ROUTERS_MAX)
def router_of(catalog: SharedValue[Catalog], tie_break: TieBreak, pending_request: PendingRequest) -> Router:
    """The router of a shipped catalog: compiled by the first task of a process, found by all that follow."""
    return Router(catalog.value(), tie_break=tie_break, pending_request=pending_request)


def packed_decisions(
    task: RouteTask, crossing: TransferredColumns, labels: Labels, fields: Sequence[str], batches: Iterator[Any]
) -> Iterator[pa.StructArray]:
    """The decisions of a partition as structs of fields `columns.PACKED`.

    Args:
        task: How to route.
        crossing: How the columns came.
        labels: The labels by number.
        fields: The fields that the structs have; the others are null in every row.
        batches: The columns of each batch; where there is but one, that one.

    Yields:
        A struct for each row.

    Raises:
        InputError: A value is not what was expected.
    """
    for batch, first_row in _arrived(crossing, batches):
        yield packed_of(_decide(task, batch, first_row=first_row), labels, fields)


def verdicts(
    task: RouteTask, crossing: TransferredColumns, batches: Iterator[Any], *, tells_named: bool
) -> Iterator[pa.StructArray]:
    """The decisions of a partition as structs of a number and a broker id.

    Args:
        task: How to route, by a catalog whose places have numbers.
        crossing: How the columns came.
        batches: The columns of each batch; where there is but one, that one.
        tells_named: Whether the broker ids that conversations name come back too.

    Yields:
        A struct for each row.

    Raises:
        InputError: A value is not what was expected.
    """
    router = router_of(task.catalog, task.tie_break, task.pending_request).native
    now_us = epoch_microseconds(task.now)
    for batch, first_row in _arrived(crossing, batches):
        with _placed(batch, first_row):
            decided: Any = router.verdicts(batch, now_us, tells_named)
        yield decided.to_struct_array()


def packed(task: RouteTask, conversations: pa.RecordBatch, labels: Labels) -> pa.StructArray:
    """The decisions of one batch as structs `columns.PACKED`.

    Args:
        task: How to route.
        conversations: The batch.
        labels: The labels by number.

    Returns:
        A struct for each row.

    Raises:
        InputError: A value is not what was expected.
    """
    return packed_of(_decide(task, conversations, first_row=0), labels)


def packed_of(decided: pa.RecordBatch, labels: Labels, fields: Sequence[str] = tuple(columns.PACKED)) -> pa.StructArray:
    """Decisions as structs of fields `columns.PACKED`.

    Args:
        decided: The decisions.
        labels: The labels by number.
        fields: The fields; the verdict is the first.

    Returns:
        A struct for each row.
    """
    outcome = _numbers(decided["outcome"], labels.outcomes, shift=8)
    reason = _numbers(decided["reason"], labels.reasons, shift=4)
    step: _Column = decided["match_step"].cast(pa.int16())
    verdict = pc.add(pc.add(outcome, reason), step.fill_null(columns.NO_STEP))
    return pa.StructArray.from_arrays([verdict, *(_plain(decided, name) for name in fields[1:])], list(fields))


def decisions(task: RouteTask, given: Sequence[_Column], named: dict[str, _Column]) -> pa.StructArray:
    """The decisions of one batch as structs `columns.DECISION`.

    Args:
        task: How to route.
        given: Columns in the order of the contract.
        named: Further columns by name.

    Returns:
        A struct for each row.

    Raises:
        SchemaError: A column is missing or has a type that cannot be read.
        InputError: A value is not what was expected.
    """
    by_name = {**dict(zip(CONVERSATIONS.names, given, strict=False)), **named}
    decided = _decide(task, pa.RecordBatch.from_arrays(list(by_name.values()), names=list(by_name)), first_row=0)
    return pa.StructArray.from_arrays([_plain(decided, name) for name in DECISIONS.names], DECISIONS.names)


def _arrived(crossing: TransferredColumns, batches: Iterator[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The conversations of each batch, and the place of the first in the partition."""
    first_row = 0
    for given in batches:
        batch = crossing.arrived(list(given) if isinstance(given, tuple) else [given])
        yield batch, first_row
        first_row += batch.num_rows


def _decide(task: RouteTask, batch: pa.RecordBatch, *, first_row: int) -> pa.RecordBatch:
    router = router_of(task.catalog, task.tie_break, task.pending_request)
    with _placed(batch, first_row):
        return router.route(batch, now=task.now)


@contextmanager
def _placed(batch: pa.RecordBatch, first_row: int) -> Iterator[None]:
    """Says of an error where in the job the batch is."""
    try:
        yield
    except InputError as error:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context = TaskContext.get()
        where = "" if context is None else f" of partition {context.partitionId()}"
        error.add_note(f"Row 0 of this batch of {batch.num_rows} rows is row {first_row}{where} of the Spark job.")
        raise


def _numbers(column: _Column, labels: tuple[str, ...], *, shift: int) -> _Column:
    """The number of each row's label, at its place in a verdict, whatever the order of the dictionary."""
    places = [labels.index(label) << shift for label in column.dictionary.to_pylist()]
    return pa.array(places, pa.int16()).take(column.indices)


def _plain(decided: pa.RecordBatch, name: str) -> _Column:
    """A column as Spark takes it: no dictionaries, no binary of fixed size."""
    column = decided[name]
    return column.cast(_GUID_OR_LABEL[name]) if name in _GUID_OR_LABEL else column
