"""`stream_state`: the pending and delayed messages in the state of a stream, as a DataFrame."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arguments import integer_argument, is_utf8_text
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.schemas import PENDING
from ssbroker.spark.arguments import check_session
from ssbroker.spark.arrow_columns import ArrowColumn, column, nulls, pc, repeat, to_spark_type
from ssbroker.spark.compat import check_spark_version
from ssbroker.spark.reassembly_output import TIMESTAMP
from ssbroker.spark.streams import bucket_step, delayed_queue
from ssbroker.spark.streams.bucket_state import STATE_VARIABLE, BucketState, join_state_parts, state_from_bytes
from ssbroker.spark.worker_version_check import on_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_COLUMNS: Final[dict[str, pa.DataType]] = {
    "waits_for": pa.string(),
    **{field.name: to_spark_type(field.type) for field in PENDING},
    "to_service_name": pa.string(),
    "tries": pa.int32(),
    "since": TIMESTAMP,
    "until": TIMESTAMP,
}
STATE_SCHEMA: Final = (
    "bucket int, waits_for string, conversation_id binary, is_initiator boolean, message_sequence_number bigint, "
    "fragment_count int, received_fragments int, received_bytes bigint, first_missing_fragment int, "
    "waits_for_sequence_number bigint, to_service_name string, tries int, since timestamp_ltz, until timestamp_ltz"
)
"""The columns of `stream_state`. In DDL, the type of `timestamp` depends on the setting `spark.sql.timestampType`."""
_NO_STATE: Final = "requirement failed"
"""The only text that Spark reports if a stateful operator has no state."""


def stream_state(spark: SparkSession, checkpoint: str | os.PathLike[str], *, operator_id: int = 0) -> DataFrame:
    """Reads the pending and delayed messages in the state of a stream as of the last committed micro-batch; the query may be running.

    Args:
        spark: The session, classic or Spark Connect.
        checkpoint: The checkpoint of a query on `stream`, `reassemble_stream` or `route_stream`.
        operator_id: The index of ssbroker's operator among the stateful operators of the query, counted from 0; 0 if the
            query has no other stateful operator.

    Returns:
        A row for each message: `bucket`; `waits_for` (`fragment`, an earlier `message`, or `route`); `conversation_id`,
        `is_initiator` and `message_sequence_number`; `fragment_count`, `received_fragments` and `received_bytes`;
        `first_missing_fragment` or `waits_for_sequence_number`; `to_service_name`; `tries`, the number of times it was
        routed; `since`, the time at which the wait began; and `until`, the time at which it expires or is retried, null
        for never.

    Raises:
        SchemaError: `spark` is not a session, or `checkpoint` is not a path.
        OptionError: `operator_id` is out of range.
        InputError: The checkpoint cannot be read, contains no state of ssbroker for this operator, or has no committed
            micro-batch.

    Examples:
        >>> import tempfile
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        >>> settings = {"spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": rocksdb,
        ...             "spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        >>> spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        >>> columns = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, "
        >>> columns += "fragment_count int, message_body binary"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spark.createDataFrame([(bytes(16), True, 0, 0, 2, b"one ")], columns).write.parquet(f"{folder}/in")
        ...     arriving = spark.readStream.schema(columns).parquet(f"{folder}/in")
        ...     reassembled = ssbroker.spark.reassemble_stream(arriving, buckets=1)
        ...     query = reassembled.messages.writeStream.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True)
        ...     query.format("memory").queryName("messages").start().awaitTermination(600)
        ...     waiting = ssbroker.spark.stream_state(spark, f"{folder}/at")
        ...     waiting.select("waits_for", "received_fragments", "fragment_count", "first_missing_fragment").first()
        True
        Row(waits_for='fragment', received_fragments=1, fragment_count=2, first_missing_fragment=1)
        >>> spark.stop()
    """
    integer_argument(operator_id, name="operator_id", minimum=0, maximum=2**31 - 1)
    check_session(spark)
    check_spark_version("streams", name="ssbroker.spark.stream_state")
    path = _checkpoint_path(checkpoint)
    reader = spark.read.format("statestore").option("stateVarName", STATE_VARIABLE).option("operatorId", operator_id)
    spark.streams.active  # noqa: B018 - Spark 4.1 reads states only after its streaming query manager has been created
    with _errors_translated(path, operator_id):
        parts_df = reader.load(path).selectExpr(
            "key.bucket as bucket",
            "user_map_key.part as part",
            "user_map_value.state as state",
            "user_map_value.parts as parts",
        )
        parts_df.schema  # noqa: B018 - Spark Connect reads the checkpoint only now
    return parts_df.mapInArrow(on_workers(_read_states), STATE_SCHEMA)


def _checkpoint_path(checkpoint: object) -> str:
    path = os.fspath(checkpoint) if isinstance(checkpoint, os.PathLike) else checkpoint
    if not isinstance(path, str):
        raise SchemaError(f"checkpoint: expected a path, got {type(checkpoint).__qualname__}", expected="a path")
    if not path.strip() or not is_utf8_text(path):
        raise InputError(f"checkpoint: expected a path, got {path!r:.200}", value=path, expected="a path")
    return path


@contextmanager
def _errors_translated(path: str, operator_id: int) -> Iterator[None]:
    """Turns Spark's errors about checkpoints without ssbroker's state into `InputError`."""
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - pyspark is an extra

    expected = "the checkpointLocation of a query on stream, reassemble_stream or route_stream"
    try:
        yield
    except Exception as error:
        # Hadoop's exceptions arrive as py4j errors; py4j cannot be imported here, because Spark Connect does not need
        # it.
        if not isinstance(error, PySparkException) and type(error).__module__ != "py4j.protocol":
            raise
        condition = (isinstance(error, PySparkException) and error.getCondition()) or ""
        if condition.startswith("STDS_COMMITTED_BATCH_UNAVAILABLE"):
            problem = f"no micro-batch has been committed; expected {expected} that has run"
        elif condition.startswith("STDS_") or isinstance(error, AnalysisException) or _NO_STATE in str(error):
            problem = f"stateful operator {operator_id} of the query has no state of ssbroker; expected {expected}"
            problem += (
                "; operator_id must be the index of ssbroker's operator among the stateful operators of the query"
            )
        else:
            java_exception = getattr(error, "java_exception", None)
            problem = f"cannot be read: {str(error if java_exception is None else java_exception).splitlines()[0]:.400}"
        raise InputError(f"checkpoint: {path}: {problem}", value=path, expected=expected) from error


def waiting_rows(state: BucketState) -> pa.Table:
    """Returns the messages that wait in one bucket, with the columns of `STATE_SCHEMA` except the first."""
    parts = []
    if state.waits is not None:
        parts.append(_pending_columns(state.waits, state.max_pending_age_us))
    if state.delayed is not None:
        parts.append(_delayed_columns(state.delayed, state))
    tables = [_to_table(columns) for columns in parts]
    return pa.concat_tables(tables) if tables else pa.schema(_COLUMNS).empty_table()


def _read_states(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    parts: Iterator[Any] = (zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches)
    for bucket, state in join_state_parts(itertools.chain.from_iterable(parts)):
        for rows in waiting_rows(state_from_bytes(state)).to_batches():
            number = repeat(bucket, pa.int32(), rows.num_rows)
            yield pa.RecordBatch.from_arrays([number, *rows.columns], names=["bucket", *rows.schema.names])


def _pending_columns(waits: pa.Table, age_us: int | None) -> dict[str, ArrowColumn]:
    columns = {name: column(waits, name) for name in waits.schema.names}
    is_complete = pc.is_null(columns["first_missing_fragment"])
    columns["waits_for"] = pc.if_else(is_complete, "message", "fragment")
    columns["since"] = columns.pop(bucket_step.WAITING_SINCE).cast(TIMESTAMP)
    last_growth = columns.pop(bucket_step.LAST_GROWTH)
    if age_us is not None:
        columns["until"] = pc.add(last_growth, age_us).cast(TIMESTAMP)
    return columns


def _delayed_columns(queue: pa.Table, state: BucketState) -> dict[str, ArrowColumn]:
    names = {**state.names, "message_sequence_number": "message_sequence_number"}
    columns = {name: column(queue, at) for name, at in names.items() if name in _COLUMNS and at in queue.schema.names}
    if "message_body" in queue.schema.names:
        columns["received_bytes"] = pc.binary_length(column(queue, "message_body")).cast(pa.int64())
    columns["waits_for"] = repeat("route", pa.string(), queue.num_rows)
    columns["tries"] = column(queue, delayed_queue.TRIES).cast(pa.int32())
    columns["since"] = column(queue, delayed_queue.DELAYED_SINCE).cast(TIMESTAMP)
    columns["until"] = column(queue, delayed_queue.DUE).cast(TIMESTAMP)
    return columns


def _to_table(columns: dict[str, ArrowColumn]) -> pa.Table:
    """Returns a table of these columns, with nulls for missing columns."""
    count = len(columns["since"])
    arrays = [
        columns[name].cast(arrow_type) if name in columns else nulls(arrow_type, count)
        for name, arrow_type in _COLUMNS.items()
    ]
    return pa.Table.from_arrays(arrays, names=list(_COLUMNS))
