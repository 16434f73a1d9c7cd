"""`reassemble` for DataFrames: complete, verified, ordered messages from fragments in any order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker import reassembly as keys
from ssbroker._arguments import whole_number
from ssbroker.exceptions import InputError, OptionError, SchemaError
from ssbroker.reassembly import Reassembler, SessionKeys
from ssbroker.schemas import MESSAGES, PENDING, REJECTED
from ssbroker.spark import columns, reassembly_rows, worker
from ssbroker.spark.broadcast import MESSAGE_BYTES_MAX, SharedValue, room_for, ship_keys
from ssbroker.spark.columns import NUMBER_BITS, PLACE, FragmentColumns, Labels, check_frame
from ssbroker.spark.reassembly_rows import KEYS, KIND, MESSAGE, REJECTION

if TYPE_CHECKING:
    from pyspark import StorageLevel
    from pyspark.sql import Column, DataFrame, SparkSession


_CONVERSATION, _IS_INITIATOR, _NUMBER = KEYS
_NEXT: Final = "next_number"
_WHOLE: Final = "whole_messages"
_OF: Final = "of_"
_THRESHOLD: Final = "spark.sql.autoBroadcastJoinThreshold"
"""Above how many bytes Spark broadcasts nothing of its own accord; below 0 it never does."""


def delivered(rows: DataFrame) -> DataFrame:
    """The messages before which none of their direction is missing.

    Bodies are not shuffled for it: the directions that have a gap, by number few, are brought to them, unless the session
    has switched broadcasts off (`spark.sql.autoBroadcastJoinThreshold=-1`).

    Args:
        rows: Messages and others, as `tagged.schema` has them.

    Returns:
        Those messages, with the same columns.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    gaps = _next_numbers(rows).where(sf.col(_NEXT) < sf.col(_WHOLE))
    if _may_broadcast(rows):
        gaps = sf.broadcast(gaps)
    messages = rows.where(sf.col(KIND) == MESSAGE)
    in_turn = sf.col(_NEXT).isNull() | (sf.col(_NUMBER) < sf.col(_NEXT))
    return messages.join(gaps, _same_direction(), "left").where(in_turn).select(*rows.columns)


def waiting(rows: DataFrame) -> DataFrame:
    """The messages that are incomplete or behind a gap, as `schemas.PENDING` has them.

    Args:
        rows: Messages and others, as `tagged.schema` has them.

    Returns:
        Those messages; `waits_for_sequence_number` says for which they wait.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    number, next_number = sf.col(_NUMBER), sf.coalesce(sf.col(_NEXT), sf.lit(0))
    is_whole = sf.col(KIND) == MESSAGE
    kept = rows.where(sf.col(KIND) != REJECTION)
    size = sf.when(is_whole, sf.length("message_body").cast("bigint")).otherwise(sf.col("received_bytes"))
    kept = kept.withColumns(
        {
            "received_fragments": sf.when(is_whole, sf.col("fragment_count")).otherwise(sf.col("received_fragments")),
            "received_bytes": size,
        }
    ).drop("message_body")
    joined = kept.join(_next_numbers(rows), _same_direction(), "left").where(~is_whole | (number >= next_number))
    return joined.withColumn("waits_for_sequence_number", sf.when(number > next_number, next_number))


def _may_broadcast(rows: DataFrame) -> bool:
    """Whether the session allows broadcasts at all: by a hint, Spark makes one also where it does not."""
    threshold = str(rows.sparkSession.conf.get(_THRESHOLD)).strip()
    return not threshold.startswith("-")


def _next_numbers(rows: DataFrame) -> DataFrame:
    """For each direction of which a message is whole: the first number that is missing, and how many are whole."""
    from pyspark.sql import Window  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    names = {name: f"{_OF}{name}" for name in KEYS}
    whole = rows.where(sf.col(KIND) == MESSAGE).select(*(sf.col(name).alias(to) for name, to in names.items()))
    direction = (names[_CONVERSATION], names[_IS_INITIATOR])
    place = sf.row_number().over(Window.partitionBy(*direction).orderBy(names[_NUMBER])) - 1
    # Numbers do not repeat, so the one at its own place has all those before it.
    in_turn = whole.select(*direction, (place == sf.col(names[_NUMBER])).cast("bigint").alias(_NEXT))
    return in_turn.groupBy(*direction).agg(sf.sum(_NEXT).alias(_NEXT), sf.count("*").alias(_WHOLE))


def _same_direction() -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    same = (sf.col(name) == sf.col(f"{_OF}{name}") for name in (_CONVERSATION, _IS_INITIATOR))
    return next(same) & next(same)


_Column: TypeAlias = Any  # an Arrow array; what the stubs of pyarrow know of arrays stands in the way here

_COUNT: Final = "whole_count"


@dataclass(frozen=True, kw_only=True)
class RoutingTask:
    """How the messages of a task are routed.

    Attributes:
        task: As of `ssbroker.spark.route`.
        labels: The labels by number.
        names: Where the columns of conversations stand: their names in messages.
    """

    task: worker.RouteTask
    labels: Labels
    names: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ReassembleTask:
    """How to put fragments together: small enough to travel with every task.

    Attributes:
        names: The columns of the fragments, by their places.
        further: Those that are carried.
        by_message: Whether the rows of a message come to one task, those of its direction to several.
        in_order: Whether messages wait for those before them.
        max_message_bytes: As of `ssbroker.Reassembler`.
        max_fragments_per_message: The same.
        max_pending_bytes: The same.
        session_keys: The name of the column, or where the keys are.
        routing: How messages are routed, if they are.
    """

    names: tuple[str, ...]
    further: tuple[str, ...]
    by_message: bool
    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int
    session_keys: str | SharedValue[dict[bytes, bytes]] | None = field(repr=False)
    routing: RoutingTask | None


def assembled(task: ReassembleTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of all kinds of a partition.

    Args:
        task: How to put fragments together.
        batches: The fragments.

    Yields:
        Batches in the schema of `tagged.schema`.

    Raises:
        InputError: A value is not what was expected.
    """
    assembling = _AssemblyRun(task)
    for batch in batches:
        if batch.num_rows:
            yield from assembling.groups(batch)
    yield from assembling.end()


class _AssemblyRun:
    """One task under way. Its rows come group by group: directions, or messages where those before one do not matter."""

    def __init__(self, task: ReassembleTask) -> None:
        self._task: Final = task
        self._reassembler = self._begun()
        self._schema: pa.Schema | None = None
        self._group: int | None = None

    def groups(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What comes of a batch.

        The first group of the batch may have begun before it, and the last may go on after it. What stands between takes no more
        room than the batch, so that no limit is needed for it, and leaves nothing behind.
        """
        group = self._groups_of(batch)
        count = batch.num_rows
        first, last = group[0].as_py(), group[-1].as_py()
        begun, end = 0, count - _count_of(group, last)
        if first == self._group:
            begun = _count_of(group, first)
            yield from self._rows(batch.slice(0, begun))
        if begun < count:
            yield from self.end()
            if begun < end:
                self._reassembler = self._begun(limited=False)
                yield from self._rows(batch.slice(begun, end - begun))
                yield from self.end()
            self._reassembler = self._begun()
            yield from self._rows(batch.slice(end))
        self._group = last

    def end(self) -> Iterator[pa.RecordBatch]:
        """What is incomplete."""
        for pending in self._reassembler.pending().to_batches():
            yield from self._told(reassembly_rows.INCOMPLETE, pending)

    def _groups_of(self, batch: pa.RecordBatch) -> _Column:
        """The group of each row. In order, a direction is one; else what is incomplete need not wait for the end of its direction."""
        place: _Column = batch.columns[-1]
        is_message = self._task.by_message or not self._task.in_order
        return place if is_message else pc.shift_right(place, pa.scalar(NUMBER_BITS, pa.int64()))

    def _rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        task = self._task
        columns: dict[str, _Column] = dict(zip((*task.names, PLACE), batch.columns, strict=True))
        del columns[PLACE]
        if self._schema is None:
            self._schema = _schema(task, {name: columns[name].type for name in task.further})
        if task.by_message:
            columns[_COUNT] = columns["fragment_count"]
        try:
            pushed = self._reassembler.push(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
        except InputError as error:
            error.add_note(f"Row 0 is the first of {batch.num_rows} rows as Spark brought them together.")
            raise
        for messages in pushed.messages.to_batches():
            yield from self._told(reassembly_rows.MESSAGE, messages)
        for rejected in pushed.rejected.to_batches():
            yield from self._told(reassembly_rows.REJECTION, rejected)

    def _told(self, kind: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows with the columns of all kinds."""
        if not rows.num_rows:
            return
        assert self._schema is not None  # noqa: S101 - there is no row of any kind before a batch came
        columns: dict[str, _Column] = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns[reassembly_rows.KIND] = pa.repeat(pa.scalar(kind, pa.int8()), rows.num_rows)
        if _COUNT in columns:
            columns["fragment_count"] = columns[_COUNT]
        if kind == reassembly_rows.MESSAGE and self._task.routing is not None:
            columns |= _decided(self._task.routing, rows)
        arrays: list[_Column] = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
            for field in self._schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _begun(self, *, limited: bool = True) -> Reassembler:
        task = self._task
        keys: Any = native_keys(task.session_keys) if isinstance(task.session_keys, SharedValue) else task.session_keys
        return Reassembler(
            max_pending_bytes=task.max_pending_bytes if limited else None,
            max_pending_messages=None,
            max_message_bytes=task.max_message_bytes,
            max_fragments_per_message=task.max_fragments_per_message,
            max_sequence_distance=None,
            in_order=task.in_order and not task.by_message,
            session_keys=keys,
        )


def _count_of(group: _Column, value: int) -> int:
    """How many rows are of a group."""
    same: _Column = pc.equal(group, pa.scalar(value, pa.int64()))
    return int(pc.sum(same).as_py())


@functools.lru_cache(maxsize=1)
def native_keys(shipped: SharedValue[dict[bytes, bytes]]) -> _core.SessionKeys:
    """Session keys as the native module takes them: made ready by the first task of a process, found by all that follow.

    Args:
        shipped: Where the keys are.

    Returns:
        The same, ready.
    """
    return _core.SessionKeys(list(shipped.value().items()))


def _schema(task: ReassembleTask, further: Mapping[str, pa.DataType]) -> pa.Schema:
    own = {**reassembly_rows.COLUMNS, **(reassembly_rows.DECISION if task.routing else {}), **further}
    return pa.schema(
        [
            pa.field(name, kind, nullable=name not in (reassembly_rows.KIND, *reassembly_rows.KEYS))
            for name, kind in own.items()
        ]
    )


def _decided(routing: RoutingTask, messages: pa.RecordBatch) -> dict[str, _Column]:
    conversations = pa.RecordBatch.from_arrays(
        [messages[name] for name in routing.names.values()], names=list(routing.names)
    )
    packed = worker.packed(routing.task, conversations, routing.labels)
    return dict(zip(packed.type.names, packed.flatten(), strict=True))


Strategy = Literal["hash", "sort"]
"""Whether fragments are pushed as they come, or sorted first."""
ShardBy = Literal["conversation", "message"]
"""What is never spread over several tasks."""

_COALESCE_PERSISTED: Final = "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning"


@dataclass(frozen=True, kw_only=True)
class ReassemblyOptions:
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
        whole_number(self.max_message_bytes, name="max_message_bytes", minimum=1, maximum=MESSAGE_BYTES_MAX)
        if self.max_pending_bytes is not None:
            whole_number(self.max_pending_bytes, name="max_pending_bytes", minimum=0, maximum=2**63 - 1)
        if self.max_fragments_per_message is not None:
            whole_number(self.max_fragments_per_message, name="max_fragments_per_message", minimum=1, maximum=2**31 - 1)

    def task(self, spark: SparkSession, columns: FragmentColumns, routing: RoutingTask | None) -> ReassembleTask:
        """What a worker is told."""
        normal = keys.normalize_session_keys(self.session_keys)
        column = normal if isinstance(normal, str) else None
        return ReassembleTask(
            names=columns.names,
            further=tuple(map(reassembly_rows.further_name, range(len(columns.further)))),
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
class SparkReassembly:
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
        return self._of_kind(reassembly_rows.REJECTION).select(*reassembly_rows.selected(REJECTED))

    @property
    def incomplete(self) -> DataFrame:
        """The messages that are incomplete, or wait for one before them that is: `schemas.PENDING`."""
        rows = waiting(self._rows) if self._are_gaps_open else self._of_kind(reassembly_rows.INCOMPLETE)
        return rows.select(*reassembly_rows.selected(PENDING))

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
        rows = delivered(self._rows) if self._are_gaps_open else self._of_kind(reassembly_rows.MESSAGE)
        further = reassembly_rows.selected_further(self._columns.further)
        return rows.select(
            *reassembly_rows.selected(MESSAGES), *further, *(column.alias(name) for name, column in added.items())
        )

    def _of_kind(self, kind: int) -> DataFrame:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._rows.where(sf.col(reassembly_rows.KIND) == kind)


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
    chosen = ReassemblyOptions(
        strategy=strategy,
        shard_by=shard_by,
        in_order=in_order,
        session_keys=session_keys,
        max_message_bytes=max_message_bytes,
        max_pending_bytes=max_pending_bytes,
        max_fragments_per_message=max_fragments_per_message,
    )
    columns = read(fragments_df, session_keys, name="ssbroker.spark.reassemble")
    return SparkReassembly(*assemble(fragments_df, columns, chosen, None))


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
    return columns.read(fragments, session_keys)


def assemble(
    fragments: DataFrame, columns: FragmentColumns, chosen: ReassemblyOptions, routing: RoutingTask | None
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
    rows = together.mapInArrow(_function(task), reassembly_rows.schema(columns.further, routed=routing is not None))
    return rows, columns, task.by_message and task.in_order


def _function(task: ReassembleTask) -> Callable[[Iterator[Any]], Iterator[pa.RecordBatch]]:
    def reassemble_fragments(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return assembled(task, batches)

    return reassemble_fragments
