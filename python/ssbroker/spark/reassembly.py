"""`reassemble` for DataFrames: complete, verified, ordered messages from fragments in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

import pyarrow as pa

from ssbroker import reassembly as keys
from ssbroker._arguments import integer_argument
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import SessionKeys
from ssbroker.schemas import MESSAGES, PENDING, REJECTED
from ssbroker.spark.arguments import MESSAGE_BYTES_MAX, check_frame, default_pending_bytes
from ssbroker.spark.fragment_columns import FragmentColumns, read_fragment_columns
from ssbroker.spark.reassembly_output import (
    INCOMPLETE,
    KEYS,
    KIND,
    MESSAGE,
    REJECTION,
    extra_name,
    schema,
    select_columns,
    select_extra_columns,
)
from ssbroker.spark.reassembly_task import MessageRouting, ReassembleTask, reassemble_partition
from ssbroker.spark.shared_values import broadcasts_allowed, share_session_keys
from ssbroker.spark.worker_version_check import on_workers

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import Column, DataFrame, SparkSession


_CONVERSATION, _IS_INITIATOR, _NUMBER = KEYS
_NEXT_NUMBER: Final = "next_number"
_COMPLETE_COUNT: Final = "whole_messages"
_GAP_PREFIX: Final = "of_"


def deliverable(rows: DataFrame) -> DataFrame:
    """Returns the messages that are not preceded by a missing message of their direction.

    Bodies are not shuffled: the few directions with a gap are broadcast, unless the session disables broadcasts
    (`spark.sql.autoBroadcastJoinThreshold=-1`).
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    gaps = _next_expected_numbers(rows).where(sf.col(_NEXT_NUMBER) < sf.col(_COMPLETE_COUNT))
    if broadcasts_allowed(rows):
        gaps = sf.broadcast(gaps)
    messages = rows.where(sf.col(KIND) == MESSAGE)
    without_gap = sf.col(_NEXT_NUMBER).isNull() | (sf.col(_NUMBER) < sf.col(_NEXT_NUMBER))
    return messages.join(gaps, _same_direction(), "left").where(without_gap).select(*rows.columns)


def pending_messages(rows: DataFrame) -> DataFrame:
    """Returns the messages that are incomplete or follow a missing message, with the columns of `schemas.PENDING`."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    number, next_number = sf.col(_NUMBER), sf.coalesce(sf.col(_NEXT_NUMBER), sf.lit(0))
    is_complete = sf.col(KIND) == MESSAGE
    kept = rows.where(sf.col(KIND) != REJECTION)
    size = sf.when(is_complete, sf.length("message_body").cast("bigint")).otherwise(sf.col("received_bytes"))
    kept = kept.withColumns(
        {
            "received_fragments": sf.when(is_complete, sf.col("fragment_count")).otherwise(
                sf.col("received_fragments")
            ),
            "received_bytes": size,
        }
    ).drop("message_body")
    joined = kept.join(_next_expected_numbers(rows), _same_direction(), "left").where(
        ~is_complete | (number >= next_number)
    )
    return joined.withColumn("waits_for_sequence_number", sf.when(number > next_number, next_number))


def _next_expected_numbers(rows: DataFrame) -> DataFrame:
    """Returns, for each direction with a complete message, the first missing sequence number and the number of complete messages."""
    from pyspark.sql import Window  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    names = {name: f"{_GAP_PREFIX}{name}" for name in KEYS}
    complete = rows.where(sf.col(KIND) == MESSAGE).select(*(sf.col(name).alias(to) for name, to in names.items()))
    direction = (names[_CONVERSATION], names[_IS_INITIATOR])
    rank = sf.row_number().over(Window.partitionBy(*direction).orderBy(names[_NUMBER])) - 1
    # Numbers are unique, so there is no gap before a number that equals its rank.
    without_gap = complete.select(*direction, (rank == sf.col(names[_NUMBER])).cast("bigint").alias(_NEXT_NUMBER))
    return without_gap.groupBy(*direction).agg(
        sf.sum(_NEXT_NUMBER).alias(_NEXT_NUMBER), sf.count("*").alias(_COMPLETE_COUNT)
    )


def _same_direction() -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    same = (sf.col(name) == sf.col(f"{_GAP_PREFIX}{name}") for name in (_CONVERSATION, _IS_INITIATOR))
    return next(same) & next(same)


Strategy = Literal["hash", "sort"]
"""How fragments are sorted before they are reassembled; see `reassemble`."""
ShardBy = Literal["conversation", "message"]
"""The unit that is never spread over several tasks."""

_COALESCE_PERSISTED: Final = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


@dataclass(frozen=True, kw_only=True)
class ReassemblyOptions:
    """How fragments are reassembled; raises `OptionError` for an invalid value."""

    strategy: Strategy
    shard_by: ShardBy
    in_order: bool
    session_keys: SessionKeys | None = field(repr=False)
    max_message_bytes: int
    max_pending_bytes: int | None
    max_fragments_per_message: int | None

    def __post_init__(self) -> None:
        for name, allowed in (("strategy", get_args(Strategy)), ("shard_by", get_args(ShardBy))):
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r:.80}")
        if not isinstance(self.in_order, bool):
            raise OptionError(f"in_order: expected True or False, got {self.in_order!r:.80}")
        integer_argument(self.max_message_bytes, name="max_message_bytes", minimum=1, maximum=MESSAGE_BYTES_MAX)
        if self.max_pending_bytes is not None:
            integer_argument(self.max_pending_bytes, name="max_pending_bytes", minimum=0, maximum=2**63 - 1)
        if self.max_fragments_per_message is not None:
            integer_argument(
                self.max_fragments_per_message, name="max_fragments_per_message", minimum=1, maximum=2**31 - 1
            )

    def task(self, spark: SparkSession, columns: FragmentColumns, routing: MessageRouting | None) -> ReassembleTask:
        """Returns the task that is sent to workers."""
        normal = keys.normalize_session_keys(self.session_keys)
        column = normal if isinstance(normal, str) else None
        return ReassembleTask(
            names=columns.names,
            extra=tuple(map(extra_name, range(len(columns.extra)))),
            by_message=self.shard_by == "message",
            in_order=self.in_order,
            max_message_bytes=self.max_message_bytes,
            max_fragments_per_message=self.max_fragments_per_message,
            max_pending_bytes=default_pending_bytes(self.max_message_bytes)
            if self.max_pending_bytes is None
            else self.max_pending_bytes,
            session_keys=share_session_keys(spark, normal) if isinstance(normal, dict) else column,
            routing=routing,
        )


@dataclass(frozen=True)
class SparkReassembly:
    """The result of reassembling fragments: three DataFrames from one computation.

    Each DataFrame is computed when it is read. Reading several DataFrames repeats the computation, unless `persist` keeps the result.
    """

    _rows: DataFrame
    _columns: FragmentColumns
    _needs_gap_filter: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}(DataFrames: messages, rejected, incomplete)"

    @property
    def messages(self) -> DataFrame:
        """The complete messages: the columns of `schemas.MESSAGES`, followed by the extra columns of fragment 0.

        With `shard_by="conversation"` and `in_order`, the messages of a direction are in one partition, in order.
        """
        return self._select_messages({})

    @property
    def rejected(self) -> DataFrame:
        """The rejected fragments and the reasons (`schemas.REJECTED`)."""
        return self._of_kind(REJECTION).select(*select_columns(REJECTED))

    @property
    def incomplete(self) -> DataFrame:
        """The messages that are incomplete or wait for an earlier message (`schemas.PENDING`)."""
        rows = pending_messages(self._rows) if self._needs_gap_filter else self._of_kind(INCOMPLETE)
        return rows.select(*select_columns(PENDING))

    def persist(self, storage_level: StorageLevel | None = None) -> Self:
        """Persists the rows, including the bodies, when they are first computed.

        Args:
            storage_level: The storage level, as for `DataFrame.persist`; None means memory, and disk for rows that do not fit.

        Returns:
            The same object.
        """
        settings = self._rows.sparkSession.conf
        before = settings.get(_COALESCE_PERSISTED)
        # Without this setting, Spark does not coalesce the shuffle partitions of persisted rows, and runs a task for
        # each partition whenever the rows are read.
        settings.set(_COALESCE_PERSISTED, "true")
        try:
            if storage_level is None:
                self._rows.persist()
            else:
                self._rows.persist(storage_level)
        finally:
            settings.set(_COALESCE_PERSISTED, str(before))
        return self

    def unpersist(self) -> Self:
        """Removes the persisted rows.

        Returns:
            The same object.
        """
        self._rows.unpersist()
        return self

    def _select_messages(self, added: dict[str, Column]) -> DataFrame:
        rows = deliverable(self._rows) if self._needs_gap_filter else self._of_kind(MESSAGE)
        extra = select_extra_columns(self._columns.extra)
        return rows.select(*select_columns(MESSAGES), *extra, *(column.alias(name) for name, column in added.items()))

    def _of_kind(self, kind: int) -> DataFrame:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._rows.where(sf.col(KIND) == kind)


def reassemble(
    fragments_df: DataFrame,
    *,
    strategy: Strategy = "hash",
    shard_by: ShardBy = "conversation",
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    max_message_bytes: int = 256 << 20,
    max_pending_bytes: int | None = None,
    max_fragments_per_message: int | None = 1 << 20,
) -> SparkReassembly:
    """Reassembles fragments into complete, verified messages, in order and exactly once for each conversation and direction.

    Columns and options are checked before a job starts. An invalid value, such as a null in a required column or an id
    that is not a GUID, fails the job with a `PythonException` that contains the error message; filter out such rows of
    `fragments_df` first. Other problems with fragments are not errors but rows in `rejected` or `incomplete`.

    Each direction starts at sequence number 0: with `in_order`, messages wait for lower numbers that are missing from
    the input, even if an earlier job has released those messages. To continue after earlier jobs, use
    `reassemble_stream`, or `in_order=False`.

    Args:
        fragments_df: Fragments (`schemas.FRAGMENTS`, signatures are optional), on classic Spark or Spark Connect, in any order;
            not a stream. In extra columns, a message gets the values of its fragment 0.
        strategy: `hash` sorts the fragments of each task by one 64-bit number, computed from their direction and
            sequence number. `sort` sorts them by all their columns, which is slightly slower, but the result is the
            same in every run, even if fragments contradict each other.
        shard_by: `conversation` reassembles each direction of a conversation in one task. `message` spreads a direction
            over all tasks, for exceptionally large conversations. Spark then shuffles the sequence numbers again, to put
            the messages in order, but not the bodies.
        in_order: Whether a message waits for earlier messages of its direction. With `shard_by="conversation"`, the
            messages of a direction are in one partition of the result, ordered by number. With `shard_by="message"`,
            rows have no order.
        session_keys: Keys that encrypt the signatures, by conversation id, or the name of the column with the keys,
            which is omitted from the messages.
        max_message_bytes: The maximum message size, at most 2**30; larger messages are rejected as `limit_exceeded`.
        max_pending_bytes: The maximum pending bytes of one direction, counted as by `ssbroker.Reassembler`; fragments
            beyond this limit are rejected as `limit_exceeded`. None means 1 GiB, or four times `max_message_bytes` if
            that is more; only messages that wait for an earlier message can reach this limit.
        max_fragments_per_message: The maximum number of fragments of a message; None for no limit.

    Returns:
        The messages, the rejected fragments and the incomplete messages.

    Raises:
        SchemaError: A column that is read is missing, occurs twice or has an unsupported type, or the DataFrame is a stream.
        OptionError: An option has an invalid value.

    Examples:
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> columns = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, "
        >>> columns += "fragment_count int, message_body binary"
        >>> parts = [(bytes(16), True, 0, 1, 2, b"world"), (bytes(16), True, 0, 0, 2, b"Hello, "), (bytes(16), True, 2, 0, 1, b"?")]
        >>> done = ssbroker.spark.reassemble(spark.createDataFrame(parts, columns))
        >>> bytes(done.messages.first().message_body)
        b'Hello, world'
        >>> done.incomplete.select("message_sequence_number", "waits_for_sequence_number").first()
        Row(message_sequence_number=2, waits_for_sequence_number=1)
        >>> spark.stop()
    """
    options = ReassemblyOptions(
        strategy=strategy,
        shard_by=shard_by,
        in_order=in_order,
        session_keys=session_keys,
        max_message_bytes=max_message_bytes,
        max_pending_bytes=max_pending_bytes,
        max_fragments_per_message=max_fragments_per_message,
    )
    columns = read_columns(fragments_df, session_keys, name="ssbroker.spark.reassemble")
    return SparkReassembly(*plan_reassembly(fragments_df, columns, options, None))


def read_columns(fragments: DataFrame, session_keys: SessionKeys | None, *, name: str) -> FragmentColumns:
    """Checks the fragments before a job starts; returns their columns. `name` is the function that was called."""
    check_frame(fragments, name="fragments_df")
    if fragments.isStreaming:
        raise SchemaError(
            f"fragments_df: {name} does not accept a streaming DataFrame, because the fragments of a message may arrive in different "
            "micro-batches; use ssbroker.spark.stream, which also routes, or ssbroker.spark.reassemble_stream, or read the input "
            "as a batch (spark.read)",
            expected="a batch DataFrame",
            actual="a streaming DataFrame",
        )
    return read_fragment_columns(fragments, session_keys)


def plan_reassembly(
    fragments: DataFrame, columns: FragmentColumns, options: ReassemblyOptions, routing: MessageRouting | None
) -> tuple[DataFrame, FragmentColumns, bool]:
    """Plans the reassembly, without running a job; returns the arguments of `SparkReassembly`."""
    task = options.task(fragments.sparkSession, columns, routing)
    sort_by_all_columns = options.strategy == "sort"
    partitioned = columns.repartitioned(fragments, by_message=task.by_message, sort_by_all_columns=sort_by_all_columns)
    rows = partitioned.mapInArrow(on_workers(_arrow_function(task)), schema(columns.extra, routed=routing is not None))
    return rows, columns, task.by_message and task.in_order


def _arrow_function(task: ReassembleTask) -> Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]:
    def reassemble_fragments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reassemble_partition(task, batches)

    return reassemble_fragments
