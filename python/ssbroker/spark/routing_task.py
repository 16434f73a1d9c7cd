"""The routing of conversations in Python workers: the task that is sent to them, and the functions that they run."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, OptionError
from ssbroker.router import PendingRequest, Router, TieBreak, with_similar_database
from ssbroker.schemas import CONVERSATIONS, DECISIONS
from ssbroker.spark import decision_codes
from ssbroker.spark.arrow_columns import ArrowColumn, to_spark_type
from ssbroker.spark.decision_codes import Labels
from ssbroker.spark.input_columns import EXPECTED_TYPES
from ssbroker.spark.shared_values import SharedValue
from ssbroker.spark.transferred_columns import TransferredColumns

_ROUTERS_MAX: Final = 4


@dataclass(frozen=True, kw_only=True)
class RouteTask:
    """The settings for routing; small enough to be sent with every task."""

    catalog: SharedValue[Catalog]
    now: datetime
    tie_break: TieBreak
    pending_request: PendingRequest


@functools.lru_cache(maxsize=_ROUTERS_MAX)
def cached_router(catalog: SharedValue[Catalog], tie_break: TieBreak, pending_request: PendingRequest) -> Router:
    """Returns the router of a shared catalog; the router is compiled once per worker process."""
    return Router(catalog.value(), tie_break=tie_break, pending_request=pending_request)


def coded_decisions_of_partition(
    task: RouteTask, transfer: TransferredColumns, labels: Labels, fields: Sequence[str], batches: Iterator[Any]
) -> Iterator[pa.StructArray]:
    """Yields the decisions of a partition as structs with some of the fields in `decision_codes.CODED_FIELDS`."""
    for batch, first_row in _decoded_batches(transfer, batches):
        yield code_decisions(_route_batch(task, batch, first_row=first_row), labels, fields)


def decision_numbers_of_partition(
    task: RouteTask, transfer: TransferredColumns, batches: Iterator[Any], *, return_named_ids: bool
) -> Iterator[pa.StructArray]:
    """Yields the decisions of a partition as structs of a decision number and a broker id.

    With `return_named_ids`, broker ids that conversations name are also returned.
    """
    router = cached_router(task.catalog, task.tie_break, task.pending_request).native
    now_us = epoch_microseconds(task.now)
    for batch, first_row in _decoded_batches(transfer, batches):
        with _batch_located(batch, first_row):
            decided = _decision_numbers(router, task.catalog, batch, now_us, return_named_ids=return_named_ids)
        yield decided.to_struct_array()


def _decision_numbers(
    router: Any, catalog: SharedValue[Catalog], batch: pa.RecordBatch, now_us: int, *, return_named_ids: bool
) -> pa.RecordBatch:
    try:
        decided: pa.RecordBatch = router.route_packed(batch, now_us, return_named_ids)
    except InputError as error:
        raise with_similar_database(error, catalog.value()) from None
    return decided


def coded_decisions_of_batch(task: RouteTask, conversations: pa.RecordBatch, labels: Labels) -> pa.StructArray:
    """Returns the decisions of one batch as structs with the fields in `decision_codes.CODED_FIELDS`."""
    return code_decisions(_route_batch(task, conversations, first_row=0), labels)


def code_decisions(
    decided: pa.RecordBatch, labels: Labels, fields: Sequence[str] = tuple(decision_codes.CODED_FIELDS)
) -> pa.StructArray:
    """Encodes decisions as structs with some of the fields in `decision_codes.CODED_FIELDS`; the first field is the decision code."""
    return pa.StructArray.from_arrays([labels.codes(decided), *_spark_columns(decided, fields[1:])], list(fields))


def decision_structs(
    task: RouteTask, positional: Sequence[ArrowColumn], keyword: dict[str, ArrowColumn]
) -> pa.StructArray:
    """Returns the decisions of one batch as structs of the type `decision_codes.DECISION_STRUCT`.

    `positional` are columns in contract order; `keyword` are columns by name. Raises `OptionError` for an unknown name or too many columns.
    """
    unknown = [name for name in keyword if name not in EXPECTED_TYPES]
    if unknown or len(positional) > len(CONVERSATIONS.names):
        names = ", ".join(map(repr, unknown))
        got = (
            f"{'an argument' if len(unknown) == 1 else 'arguments'} {names}"
            if unknown
            else f"{len(positional)} arguments"
        )
        raise OptionError(f"route_udf: expected {', '.join(CONVERSATIONS.names)}, in this order or by name; got {got}")
    by_name = {**dict(zip(CONVERSATIONS.names, positional, strict=False)), **keyword}
    decided = _route_batch(task, pa.RecordBatch.from_arrays(list(by_name.values()), names=list(by_name)), first_row=0)
    return pa.StructArray.from_arrays(_spark_columns(decided, DECISIONS.names), DECISIONS.names)


def _decoded_batches(transfer: TransferredColumns, batches: Iterator[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields the conversations of each batch, and the index of its first row in the partition."""
    first_row = 0
    for arrays in batches:
        batch = transfer.decode(list(arrays) if isinstance(arrays, tuple) else [arrays])
        yield batch, first_row
        first_row += batch.num_rows


def _route_batch(task: RouteTask, batch: pa.RecordBatch, *, first_row: int) -> pa.RecordBatch:
    router = cached_router(task.catalog, task.tie_break, task.pending_request)
    with _batch_located(batch, first_row):
        return router.route(batch, now=task.now)


@contextmanager
def _batch_located(batch: pa.RecordBatch, first_row: int) -> Iterator[None]:
    """Adds to an error the position of the batch in the job."""
    try:
        yield
    except InputError as error:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context = TaskContext.get()
        where = "" if context is None else f" of partition {context.partitionId()}"
        error.add_note(f"Row 0 of this batch of {batch.num_rows} rows is row {first_row}{where} of the Spark job.")
        raise


def _spark_columns(decided: pa.RecordBatch, names: Sequence[str]) -> list[ArrowColumn]:
    columns: list[ArrowColumn] = [decided[name] for name in names]
    return [column.cast(to_spark_type(column.type)) for column in columns]
