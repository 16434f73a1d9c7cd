"""`reassemble` for DataFrames: whole, verified messages, in order, from fragments in any order.

The fragments of a conversation are brought together by a shuffle, and each task puts together what it got, in one `mapInArrow`
(docs/dev/2026-11-21-spark-reassembly.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

import pyarrow as pa

from ssbroker import options
from ssbroker import session_keys as keys
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.schemas import MESSAGES, PENDING, REJECTED
from ssbroker.session_keys import SessionKeys
from ssbroker.spark import assembling, fragment_columns, gaps, tagged
from ssbroker.spark.fragment_columns import FragmentColumns
from ssbroker.spark.frames import check_frame
from ssbroker.spark.room import MESSAGE_BYTES_MAX, room_for
from ssbroker.spark.shipping import ship_keys

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import Column, DataFrame, SparkSession

Strategy = Literal["hash", "sort"]
"""Whether fragments are pushed as they come, or sorted first."""
ShardBy = Literal["conversation", "message"]
"""What is never spread over several tasks."""

_COALESCE_PERSISTED: Final = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How fragments are put together; checked when it is made.

    Raises:
        OptionError: One is not what it can be.
    """

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
                raise OptionError(f"{name}: expected one of {', '.join(allowed)}; got {getattr(self, name)!r:.80}")
        if not isinstance(self.in_order, bool):
            raise OptionError(f"in_order: expected True or False; got {self.in_order!r:.80}")
        options.whole(self.max_message_bytes, name="max_message_bytes", least=1, most=MESSAGE_BYTES_MAX)
        if self.max_pending_bytes is not None:
            options.whole(self.max_pending_bytes, name="max_pending_bytes", least=0, most=2**63 - 1)
        if self.max_fragments_per_message is not None:
            options.whole(self.max_fragments_per_message, name="max_fragments_per_message", least=1, most=2**31 - 1)

    def task(
        self, spark: SparkSession, columns: FragmentColumns, routing: assembling.Routing | None
    ) -> assembling.Task:
        """What a worker is told."""
        normal = keys.normal(self.session_keys)
        column = normal if isinstance(normal, str) else None
        return assembling.Task(
            names=columns.names,
            further=tuple(map(tagged.further_name, range(len(columns.further)))),
            by_message=self.shard_by == "message",
            in_order=self.in_order,
            max_message_bytes=self.max_message_bytes,
            max_fragments_per_message=self.max_fragments_per_message,
            max_pending_bytes=room_for(self.max_message_bytes)
            if self.max_pending_bytes is None
            else self.max_pending_bytes,
            session_keys=ship_keys(spark, normal) if isinstance(normal, dict) else column,
            routing=routing,
        )


@dataclass(frozen=True)
class Reassembly:
    """What comes of fragments, as three DataFrames of one computation.

    Each is computed when it is read, and reading two computes twice, unless `persist` keeps what was computed.
    """

    _rows: DataFrame
    _columns: FragmentColumns
    _are_gaps_open: bool

    @property
    def messages(self) -> DataFrame:
        """The messages that are whole and whose turn it is: `schemas.MESSAGES`, then the further columns of fragment 0."""
        return self._messages({})

    @property
    def rejected(self) -> DataFrame:
        """The fragments that were refused, and why: `schemas.REJECTED`."""
        return self._of_kind(tagged.REJECTION).select(*tagged.selected(REJECTED))

    @property
    def incomplete(self) -> DataFrame:
        """The messages that are incomplete, or wait for one before them that is: `schemas.PENDING`."""
        rows = gaps.waiting(self._rows) if self._are_gaps_open else self._of_kind(tagged.INCOMPLETE)
        return rows.select(*tagged.selected(PENDING))

    def persist(self, storage_level: StorageLevel | None = None) -> Self:
        """Has Spark keep what it computes, bodies included, from the first reading on.

        Args:
            storage_level: Where, as for `DataFrame.persist`; None for memory, and disk for what does not fit.

        Returns:
            The same.
        """
        settings = self._rows.sparkSession.conf
        before = settings.get(_COALESCE_PERSISTED)
        # Otherwise Spark keeps every shuffle partition of what is persisted as it is, and runs a task for each, at each reading.
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
        """Has Spark drop what it kept.

        Returns:
            The same.
        """
        self._rows.unpersist()
        return self

    def _messages(self, added: dict[str, Column]) -> DataFrame:
        rows = gaps.delivered(self._rows) if self._are_gaps_open else self._of_kind(tagged.MESSAGE)
        further = tagged.selected_further(self._columns.further)
        return rows.select(
            *tagged.selected(MESSAGES), *further, *(column.alias(name) for name, column in added.items())
        )

    def _of_kind(self, kind: int) -> DataFrame:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._rows.where(sf.col(tagged.KIND) == kind)


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
) -> Reassembly:
    """Puts fragments together: each message once, byte for byte, verified, in order for its conversation and direction.

    Columns and options are checked before a job starts. A value that is wrong ends the job with a `PythonException` that carries
    the error's text. Whatever else is wrong with fragments is no error but a row of `rejected` or `incomplete`.

    Args:
        fragments_df: Fragments (`schemas.FRAGMENTS`, the signatures left out or not), on classic Spark or Spark Connect, in any order;
            no stream. Messages carry the further columns of their fragment number 0.
        strategy: `hash` has Spark bring the fragments of a direction together by a number for each message. `sort` has it sort them by
            all they have: a little slower, and the same answer at every run even where fragments contradict each other.
        shard_by: `conversation` brings each direction of a conversation to one task. `message` spreads a direction over all tasks,
            for conversations that are larger than the rest; only the numbers of its messages are then brought together.
        in_order: Whether a message waits for those before it in its direction. With `shard_by="conversation"` the messages of a
            direction are in one partition of the result, by number. With `shard_by="message"` rows come in no particular order.
        session_keys: Keys that encrypt the signatures, by conversation id, or the column that has them (and is left out of the messages).
        max_message_bytes: The largest message, at most 2**30; a larger one is rejected as `limit_exceeded`.
        max_pending_bytes: What may be pending of one direction, charged as by `ssbroker.Reassembler`; what there is no room for is
            rejected as `limit_exceeded`. None: 1 GiB or four of the largest messages, which only messages behind a gap can reach.
        max_fragments_per_message: The most fragments of a message, None for no limit.

    Returns:
        The messages, the fragments that were rejected, and what is incomplete.

    Raises:
        SchemaError: A column is missing, occurs twice or has a type that cannot be read, or the DataFrame is a stream.
        OptionError: An option is not what it can be.

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
    chosen = Options(
        strategy=strategy,
        shard_by=shard_by,
        in_order=in_order,
        session_keys=session_keys,
        max_message_bytes=max_message_bytes,
        max_pending_bytes=max_pending_bytes,
        max_fragments_per_message=max_fragments_per_message,
    )
    columns = read(fragments_df, session_keys, name="ssbroker.spark.reassemble")
    return Reassembly(*assemble(fragments_df, columns, chosen, None))


def read(fragments: DataFrame, session_keys: SessionKeys | None, *, name: str) -> FragmentColumns:
    """Looks at the fragments before a job starts.

    Args:
        fragments: The fragments.
        session_keys: As for `reassemble`.
        name: The function that was called.

    Returns:
        Their columns.

    Raises:
        SchemaError: They are a stream, or a column is missing, occurs twice or has a type that cannot be read.
        OptionError: The session keys are not what they can be.
    """
    check_frame(fragments, name="fragments_df")
    if fragments.isStreaming:
        raise SchemaError(
            f"fragments: {name} takes no stream, since a message may begin in one micro-batch and end in another; for a stream there are "
            "ssbroker.spark.stream, which routes as well, and ssbroker.spark.reassemble_stream, which keep what is incomplete. Or read "
            "what has arrived as a batch (spark.read)",
            expected="a DataFrame that is no stream",
            actual="a stream",
        )
    return fragment_columns.read(fragments, session_keys)


def assemble(
    fragments: DataFrame, columns: FragmentColumns, chosen: Options, routing: assembling.Routing | None
) -> tuple[DataFrame, FragmentColumns, bool]:
    """The rows of all kinds, not computed yet.

    Args:
        fragments: The fragments.
        columns: Their columns.
        chosen: The options.
        routing: How messages are routed, if they are.

    Returns:
        What a `Reassembly` is made of.
    """
    task = chosen.task(fragments.sparkSession, columns, routing)
    is_sorted = chosen.strategy == "sort"
    together = columns.brought_together(fragments, by_message=task.by_message, is_sorted=is_sorted)
    rows = together.mapInArrow(_function(task), tagged.schema(columns.further, routed=routing is not None))
    return rows, columns, task.by_message and task.in_order


def _function(task: assembling.Task) -> Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]:
    def reassemble_fragments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return assembling.assembled(task, batches)

    return reassemble_fragments
