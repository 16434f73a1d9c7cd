"""`stream_state`: what waits in the state of a stream, as a DataFrame (U10)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arguments import is_utf8_text, whole_number
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.schemas import PENDING
from ssbroker.spark.columns import check_session
from ssbroker.spark.reassembly_rows import to_spark_type
from ssbroker.spark.streams import step
from ssbroker.spark.streams.row_kinds import ArrowColumn, column, nulls, pc, same
from ssbroker.spark.streams.state import NAME, BucketState, state_from_bytes, whole_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MOMENT: Final = pa.timestamp("us", tz="UTC")
_OWN: Final[dict[str, pa.DataType]] = {
    "waits_for": pa.string(),
    **{field.name: to_spark_type(field.type) for field in PENDING},
    "to_service_name": pa.string(),
    "tries": pa.int32(),
    "since": _MOMENT,
    "until": _MOMENT,
}
STATE: Final = (
    "bucket int, waits_for string, conversation_id binary, is_initiator boolean, message_sequence_number bigint, "
    "fragment_count int, received_fragments int, received_bytes bigint, first_missing_fragment int, "
    "waits_for_sequence_number bigint, to_service_name string, tries int, since timestamp, until timestamp"
)
"""The columns of `stream_state`."""
_NO_OPERATION: Final = "requirement failed"
"""All that Spark says where an operation of this number has no state."""


def stream_state(spark: SparkSession, checkpoint: str | os.PathLike[str], *, operator_id: int = 0) -> DataFrame:
    """What waits in the state of a stream, after the last micro-batch that was committed; the query may run meanwhile.

    Args:
        spark: The session, classic or Spark Connect.
        checkpoint: The checkpoint of a query on `stream`, `reassemble_stream` or `route_stream`.
        operator_id: Which stateful operation of the query it is, if there are others before it.

    Returns:
        A row for each message that waits: in which bucket; what it waits for (`fragment`, `message` before it, `route`); its keys; how much of
        it is there, the first fragment that is missing or the number of the message that must come first; for which service, and how often a
        route was looked for; since when it waits; until when: it is given up or tried again, null for never.

    Raises:
        SchemaError: `spark` is no session, or `checkpoint` no path.
        OptionError: `operator_id` is no number that there can be.
        InputError: The checkpoint cannot be read, is of another query, or nothing has been committed yet.

    Examples:
        >>> import ssbroker.spark
        >>> ssbroker.spark.stream_state(None, "checkpoint", operator_id=-1)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: operator_id: expected a whole number from 0 to 2147483647; got -1
    """
    whole_number(operator_id, name="operator_id", minimum=0, maximum=2**31 - 1)
    check_session(spark)
    path = _path(checkpoint)
    reader = spark.read.format("statestore").option("stateVarName", NAME).option("operatorId", operator_id)
    with _reading(path, operator_id):
        kept = reader.load(path).selectExpr(
            "key.bucket as bucket",
            "user_map_key.part as part",
            "user_map_value.state as state",
            "user_map_value.parts as parts",
        )
        kept.schema  # noqa: B018 - Spark Connect looks for the checkpoint only now
    return kept.mapInArrow(_read, STATE)


def _path(given: object) -> str:
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str):
        raise SchemaError(f"checkpoint: expected a path, got {type(given).__qualname__}", expected="a path")
    if not path.strip() or not is_utf8_text(path):
        raise InputError(f"checkpoint: expected a path, got {path!r:.200}", value=path, expected="a path")
    return path


@contextmanager
def _reading(path: str, operator_id: int) -> Iterator[None]:
    """Turns what Spark says of a checkpoint that holds no state of ours into our words."""
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - pyspark is an extra

    expected = "the checkpointLocation of a query on stream, reassemble_stream or route_stream"
    try:
        yield
    except Exception as error:
        # What Hadoop throws comes as it is, by a library that Spark Connect does without.
        if not isinstance(error, PySparkException) and type(error).__module__ != "py4j.protocol":
            raise
        condition = (isinstance(error, PySparkException) and error.getCondition()) or ""
        if condition.startswith("STDS_COMMITTED_BATCH_UNAVAILABLE"):
            found = f"nothing has been committed there; expected {expected} that has run"
        elif condition.startswith("STDS_") or isinstance(error, AnalysisException) or _NO_OPERATION in str(error):
            found = f"operation {operator_id} of the query keeps no state of ssbroker; expected {expected}"
            found += ", and as operator_id the number of this one among its stateful operations"
        else:
            thrown = getattr(error, "java_exception", None)
            found = f"cannot be read: {str(error if thrown is None else thrown).splitlines()[0]:.400}"
        raise InputError(f"checkpoint: {path}: {found}", value=path, expected=expected) from error


def waiting_rows(state: BucketState) -> pa.Table:
    """What waits in one bucket, in the columns of `STATE` after the first.

    Args:
        state: What is kept of the bucket.

    Returns:
        The rows.
    """
    parts = []
    if state.waits is not None:
        parts.append(_pending(state.waits, state.max_pending_age_us))
    if state.delayed is not None:
        parts.append(_delayed(state.delayed, state))
    tables = [_of(columns) for columns in parts]
    return pa.concat_tables(tables) if tables else pa.schema(_OWN).empty_table()


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    told: Iterator[Any] = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches)
    for bucket, state in whole_states(itertools.chain.from_iterable(told)):
        for rows in waiting_rows(state_from_bytes(state)).to_batches():
            number = same(bucket, pa.int32(), rows.num_rows)
            yield pa.RecordBatch.from_arrays([number, *rows.columns], names=["bucket", *rows.schema.names])


def _pending(waits: pa.Table, age_us: int | None) -> dict[str, ArrowColumn]:
    columns = {name: column(waits, name) for name in waits.schema.names}
    is_whole = pc.is_null(columns["first_missing_fragment"])
    columns["waits_for"] = pc.if_else(is_whole, "message", "fragment")
    columns["since"] = columns.pop(step.WAITING_SINCE).cast(_MOMENT)
    grown = columns.pop(step.GROWN)
    if age_us is not None:
        columns["until"] = pc.add(grown, age_us).cast(_MOMENT)
    return columns


def _delayed(queue: pa.Table, state: BucketState) -> dict[str, ArrowColumn]:
    names = {**state.names, "message_sequence_number": "message_sequence_number"}
    columns = {name: column(queue, at) for name, at in names.items() if name in _OWN and at in queue.schema.names}
    if "message_body" in queue.schema.names:
        columns["received_bytes"] = pc.binary_length(column(queue, "message_body")).cast(pa.int64())
    columns["waits_for"] = same("route", pa.string(), queue.num_rows)
    columns["tries"] = column(queue, step.TRIES).cast(pa.int32())
    columns["since"] = column(queue, step.DELAYED_SINCE).cast(_MOMENT)
    columns["until"] = column(queue, step.DUE).cast(_MOMENT)
    return columns


def _of(columns: dict[str, ArrowColumn]) -> pa.Table:
    """The columns that there are, and nulls."""
    count = len(columns["since"])
    arrays = [
        columns[name].cast(arrow_type) if name in columns else nulls(arrow_type, count)
        for name, arrow_type in _OWN.items()
    ]
    return pa.Table.from_arrays(arrays, names=list(_OWN))
