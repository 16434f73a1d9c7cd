"""`stream` and `reassemble_stream`: reassemble the fragments of a stream, and route the messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import reassembly as keys
from ssbroker._arguments import whole_number
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import SessionKeys
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.spark import columns, reassembly_rows
from ssbroker.spark.broadcast import share_catalog, share_session_keys
from ssbroker.spark.columns import FragmentColumns, check_frame, check_no_reserved_columns
from ssbroker.spark.streams import extra_columns, row_kinds, state, task
from ssbroker.spark.streams.options import DELAYED_BYTES_MAX, BucketCount, StreamLimits, catalog_given, microseconds
from ssbroker.spark.streams.row_kinds import StreamKinds
from ssbroker.spark.streams.state import StateParts
from ssbroker.spark.streams.step import step
from ssbroker.spark.streams.task import (
    AssemblySettings,
    CatalogLocation,
    CatalogPath,
    FixedCatalog,
    RoutingSettings,
    StreamTask,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructField


_US: Final = 1000


class BucketStore:
    """What is kept and told of buckets, by the handle that Spark gives.

    Args:
        task: What is done with each bucket.
        handle: Spark's.
    """

    def __init__(self, task: StreamTask, handle: Any) -> None:
        self._task: Final = task
        self._handle: Final = handle
        self._kept: Final = StateParts(handle)

    def step(self, given: Sequence[bytes], now_ms: int) -> list[tuple[str, bytes]]:
        """Does the step of the bucket whose turn it is.

        Args:
            given: The cells that have come for it.
            now_ms: The moment of the micro-batch, in milliseconds since 1970.

        Returns:
            What it tells: kinds and cells.
        """
        kept = self._kept.get()
        batches = [batch for cell in given for batch in state.of_ipc(cell).to_batches()]
        done = step(self._task, kept, batches, now_us=now_ms * _US)
        if done.state is None:
            self._kept.clear()
        elif done.state is not kept:
            self._kept.put(done.state)
        if done.due_us is not None:
            self._come_again(-(-done.due_us // _US), now_ms)
        return list(state.cells_of(done.rows))

    def _come_again(self, due_ms: int, now_ms: int) -> None:
        """One timer in the future, and none later than what is due."""
        due_ms = max(due_ms, now_ms + 1)
        timers = [int(timer) for timer in self._handle.listTimers()]
        for timer in timers:
            if timer > due_ms:
                self._handle.deleteTimer(timer)
        if not any(now_ms < timer <= due_ms for timer in timers):
            self._handle.registerTimer(due_ms)


def processor(task: StreamTask) -> StatefulProcessor:
    """Keeps the buckets of a query.

    Args:
        task: What is done with each.

    Returns:
        The processor, which pickles.
    """
    from pyspark.sql import Row  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415 - the same

    def told(rows: list[tuple[str, bytes]]) -> Iterator[Any]:
        return iter([Row(kind=kind, cell=cell) for kind, cell in rows])

    class Buckets(StatefulProcessor):
        """The state and one timer of each bucket."""

        def init(self, handle: Any) -> None:
            self._keeper = BucketStore(task, handle)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - Spark's names
            # In the order in which the rows came, as far as there is one: a task that is run again does the same.
            given = [bytes(row.cell) for row in sorted(rows, key=lambda row: int(row.place))]
            return told(self._keeper.step(given, timerValues.getCurrentProcessingTimeInMs()))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - the same
            return told(self._keeper.step([], timerValues.getCurrentProcessingTimeInMs()))

        def close(self) -> None:
            """Nothing is open."""

    return Buckets()


_PATIENCE: Final = "catalog_patience"


@dataclass(frozen=True, kw_only=True)
class StreamRouting:
    """How messages are routed.

    Attributes:
        catalog: As of `stream`, like all that follow.
        tie_break: The same.
        pending_request: The same.
        max_delayed_bytes: The same.
        catalog_patience: The same.

    Raises:
        OptionError: One is not what it can be.
    """

    catalog: Catalog | str | os.PathLike[str]
    tie_break: TieBreak
    pending_request: PendingRequest
    max_delayed_bytes: int
    catalog_patience: timedelta

    def __post_init__(self) -> None:
        catalog_given(self.catalog)
        columns.check_tie_break(self.tie_break)
        whole_number(self.max_delayed_bytes, name="max_delayed_bytes", minimum=0, maximum=DELAYED_BYTES_MAX)
        microseconds(self.catalog_patience, name=_PATIENCE, least=timedelta(0))

    def routing(
        self,
        spark: SparkSession,
        types: Mapping[str, pa.DataType],
        names: Mapping[str, str],
        *,
        direction: tuple[str, ...] | None,
    ) -> RoutingSettings:
        """What the workers are told.

        Args:
            spark: The session.
            types: The columns of conversations that there are, and their types.
            names: Their names in messages.
            direction: The columns of what goes in order, None where each row is for itself.

        Returns:
            The same, checked.

        Raises:
            SchemaError: A column is missing or has a type that cannot be read.
            OptionError: An option is not what it can be.
            InputError: There is no catalog at the path.
        """
        given = catalog_given(self.catalog)
        catalog = given if isinstance(given, Catalog) else task.load(Path(given))
        labels = columns.validate_routing(
            catalog, types, tie_break=self.tie_break, pending_request=self.pending_request
        )
        source: CatalogLocation = (
            FixedCatalog(share_catalog(spark, given, in_stream=True)) if isinstance(given, Catalog) else self._at(given)
        )
        return RoutingSettings(
            source=source,
            tie_break=self.tie_break,
            pending_request=self.pending_request,
            labels=labels,
            names=names,
            direction=direction,
            max_delayed_bytes=self.max_delayed_bytes,
        )

    def _at(self, path: str) -> CatalogPath:
        return CatalogPath(path, microseconds(self.catalog_patience, name=_PATIENCE, least=timedelta(0)))


PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` needs."""

_DIRECTION: Final = ("conversation_id", "is_initiator")
_BATCH: Final = {
    "ssbroker.spark.stream": "ssbroker.spark.pipeline or reassemble",
    "ssbroker.spark.reassemble_stream": "ssbroker.spark.reassemble",
    "ssbroker.spark.route_stream": "ssbroker.spark.route",
}


def rows(
    fragments: DataFrame,
    limits: StreamLimits,
    buckets: BucketCount,
    forwarding: StreamRouting | None,
    *,
    observe: str | None,
    name: str,
) -> tuple[DataFrame, StreamKinds]:
    """The rows of all kinds, and how to select those of one.

    Args:
        fragments: The stream.
        limits: How fragments are put together.
        buckets: How conversations are spread.
        forwarding: How messages are routed, if they are.
        observe: The name of the figures, None for none.
        name: The function that was called.

    Returns:
        What a `Stream` is made of.

    Raises:
        SchemaError: It is no stream, or a column is missing, occurs twice or has a type that cannot be read.
        OptionError: The state store is not RocksDB, or an option is not what it can be.
        InputError: There is no catalog at the path.
    """
    spark = checked(fragments, name=name, observe=observe)
    found = columns.read_fragment_columns(fragments, limits.session_keys)
    behind = extra_columns.without_watermark(found.extra)
    extra = {reassembly_rows.extra_name(place): field for place, field in enumerate(behind)}
    routing = None
    if forwarding is not None:
        check_no_reserved_columns(fragments, [field.name for field in found.extra])
        routing = _routing(spark, found, forwarding, in_order=limits.in_order)
    task = StreamTask(
        fixed={**buckets.fixed, **limits.fixed},
        carried=tuple(field.name for field in found.extra),
        assembly=_assembly(spark, limits),
        routing=routing,
        figures=observe is not None,
    )
    placed = found.with_bucket(fragments, count=buckets.count, key=buckets.key or b"")
    labels = None if routing is None else routing.labels
    made = through_buckets(placed, found.names, task, extra)
    return observed(made, observe), StreamKinds(behind, labels, limits.acknowledgements)


def checked(given: DataFrame, *, name: str, observe: str | None) -> SparkSession:
    """Checks what every stream needs.

    Args:
        given: What should be a stream.
        name: The function that was called.
        observe: The name of the figures.

    Returns:
        The session.

    Raises:
        SchemaError: It is no stream.
        OptionError: The state store is not RocksDB, or the name of the figures is empty.
    """
    check_frame(given, name=name)
    if not given.isStreaming:
        raise SchemaError(
            f"{name} takes a stream (spark.readStream), and this DataFrame is none; for it there is {_BATCH[name]}",
            expected="a stream",
            actual="a DataFrame that is no stream",
        )
    figures: object = observe
    if figures is not None and not (isinstance(figures, str) and figures):
        raise OptionError(f"observe: expected a name or None; got {observe!r:.80}")
    spark = given.sparkSession
    provider = spark.conf.get(PROVIDER)
    if provider != ROCKSDB:
        raise OptionError(f"{name} keeps its state in RocksDB: set {PROVIDER} to {ROCKSDB}; it is {provider}")
    return spark


def through_buckets(
    placed: DataFrame, names: tuple[str, ...], task: StreamTask, extra: Mapping[str, StructField]
) -> DataFrame:
    """Packs rows by bucket, has each bucket do its step, and unpacks what comes of it.

    Args:
        placed: The number of the bucket, then a column for each of `names`.
        names: What the columns are called in the workers.
        task: What is done with each bucket.
        further: The columns that are carried, by their names on the way.

    Returns:
        The rows of all kinds, and the figures among them.
    """
    own = row_kinds.own_columns(assembled=task.assembly is not None, routed=task.routing is not None)
    on_the_way = tuple(extra)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context: Any = TaskContext.get()
        return state.pack_rows(names, batches, partition=context.partitionId())

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return state.unpack_rows(own, on_the_way, batches)

    schema = row_kinds.schema(extra, assembled=task.assembly is not None, routed=task.routing is not None)
    stateful = (
        placed.mapInArrow(pack, state.PACKED)
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=processor(task),
            outputStructType=state.TOLD,
            outputMode="Append",
            timeMode="ProcessingTime",
        )
    )
    return stateful.mapInArrow(unpack, schema)


def observed(made: DataFrame, name: str | None) -> DataFrame:
    """The rows without the figures, which are observed if they have a name (U11).

    Args:
        made: What `through_buckets` made.
        name: The name of the figures, None for none.

    Returns:
        The rows.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if name is None:
        return made
    kind = sf.col(row_kinds.KIND)
    told = [row_kinds.MESSAGE, row_kinds.REJECTION, row_kinds.ACKNOWLEDGEMENT, row_kinds.EXPIRY]
    counts = [sf.count(sf.when(kind == each, True)).alias(f"{each}_rows") for each in told]
    sums = [sf.sum(figure).alias(figure) for figure in row_kinds.FIGURE_COLUMNS]
    if "message_body" in made.columns:
        sums.append(sf.sum(sf.length("message_body")).alias("message_bytes"))
    buckets = sf.count(sf.when(kind == row_kinds.FIGURES, True)).alias("buckets")
    return made.observe(name, *counts, *sums, buckets).where(kind != row_kinds.FIGURES)


def _assembly(spark: SparkSession, limits: StreamLimits) -> AssemblySettings:
    normal = keys.normalize_session_keys(limits.session_keys)
    column = normal if isinstance(normal, str) else None
    age = limits.max_pending_age
    return AssemblySettings(
        in_order=limits.in_order,
        max_message_bytes=limits.max_message_bytes,
        max_fragments_per_message=limits.max_fragments_per_message,
        max_pending_bytes=limits.room,
        max_pending_age_us=None if age is None else microseconds(age, name="max_pending_age", least=age),
        session_keys=share_session_keys(spark, normal, in_stream=True) if isinstance(normal, dict) else column,
        acknowledgements=limits.acknowledgements,
    )


def _routing(
    spark: SparkSession, found: FragmentColumns, forwarding: StreamRouting, *, in_order: bool
) -> RoutingSettings:
    read = found.routing_columns()
    types: dict[str, pa.DataType] = {"conversation_id": pa.binary(), "is_initiator": pa.bool_()}
    for name, (_, kind) in read.items():
        types[name] = columns.arrow_type(name, kind, expected=columns.EXPECTED_TYPES[name])
    names = {**dict(zip(_DIRECTION, _DIRECTION, strict=True)), **{name: at for name, (at, _) in read.items()}}
    return forwarding.routing(spark, types, names, direction=_DIRECTION if in_order else None)


PATIENCE: Final = timedelta(minutes=5)
"""How long a catalog that cannot be read any more goes on, unless told."""


@dataclass(frozen=True)
class Stream:
    """What comes of a stream of fragments.

    A query writes one DataFrame. One that needs several kinds of rows writes `rows` with `foreachBatch` and parts each batch by `kinds`; the
    function persists the batch first, since Spark computes it anew for each use, and uses it in any case.

    Attributes:
        rows: The rows of all kinds, told apart by the column `kind`; their other columns are for `kinds` to select.
        kinds: Selects the rows of one kind. It pickles, so that a function for `foreachBatch` may use it, on Spark Connect too.
    """

    rows: DataFrame
    kinds: StreamKinds

    @property
    def messages(self) -> DataFrame:
        """As of `StreamKinds.messages`."""
        return self.kinds.messages(self.rows)

    @property
    def rejected(self) -> DataFrame:
        """As of `StreamKinds.rejected`."""
        return self.kinds.rejected(self.rows)

    @property
    def acknowledgements(self) -> DataFrame:
        """As of `StreamKinds.acknowledgements`."""
        return self.kinds.acknowledgements(self.rows)

    @property
    def expired(self) -> DataFrame:
        """As of `StreamKinds.expired`."""
        return self.kinds.expired(self.rows)


def stream(
    fragments_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str] | None = None,
    *,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    acknowledgements: bool = False,
    buckets: int = 16,
    bucket_key: bytes | None = None,
    max_pending_age: timedelta | None = None,
    max_pending_bytes: int | None = None,
    max_delayed_bytes: int = 64 << 20,
    max_message_bytes: int = 256 << 20,
    max_fragments_per_message: int | None = 1 << 20,
    catalog_patience: timedelta = PATIENCE,
    observe: str | None = None,
) -> Stream:
    """Puts the fragments of a stream together as `reassemble` does and, with a catalog, routes each message as `route` does.

    What is incomplete, what is known of each direction and what waits for a route is kept in Spark's state, so that each message comes out
    once, also when a query is killed and started again from its checkpoint. It needs the RocksDB state store:
    `spark.sql.streaming.stateStore.providerClass` set to
    `org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider`, and a query with `trigger(processingTime=...)`; one with
    `availableNow` ends only when `spark.sql.streaming.noDataMicroBatches.enabled` is false. Each micro-batch runs a task for each of the
    `spark.sql.shuffle.partitions`, of which no more than there are buckets have anything to do: as many as there are cores are enough.

    A message whose conversation is DELAYED waits, and with it what follows in its direction, until it has a route: it is tried again after
    4, 8, 16, 32, 64, 64 ... seconds, and when the catalog has changed.

    Args:
        fragments_df: A stream of fragments (`schemas.FRAGMENTS`, the signatures left out or not), on classic Spark or Spark Connect. With
            a catalog, the columns of conversations are among the further ones, as for `pipeline`.
        catalog: The instance's databases, services and routing tables; or the path of what `Catalog.load` takes, which every worker
            can read: when it says something else, the stream goes on by that. None puts together and routes nothing.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.
        in_order: Whether a message waits for those before it in its direction.
        session_keys: As for `reassemble`.
        acknowledgements: Whether the rows have those of what the senders are told.
        buckets: Into how many parts the state is cut; it stays so while the checkpoint lives. A part is read and written whole by each
            micro-batch that touches it: some hundred KB are well.
        bucket_key: By what conversations are spread over the parts, so that who chooses their ids cannot choose where they meet. It
            stays so, too.
        max_pending_age: After how long a message is dropped and told as expired when it does not grow, incomplete or behind a gap;
            its fragments may come again. From 1 second to 36,525 days; None for never.
        max_pending_bytes: What may be charged for all that is remembered in one bucket, as for `Reassembler`, at most 2**32. None for
            1 GiB, or four of the largest messages where those are more.
        max_delayed_bytes: How much may wait for a route in one bucket; what is beyond comes out as DELAYED, oldest first.
        max_message_bytes: The largest message, at most 2**30.
        max_fragments_per_message: The most fragments of a message.
        catalog_patience: How long the last catalog goes on when the path cannot be read any more.
        observe: A name under which each micro-batch tells its figures (`observedMetrics` of a query's progress), None for no figures.

    Returns:
        The rows as a streaming DataFrame, and how to select those of one kind.

    Raises:
        SchemaError: The DataFrame is no stream, or a column is missing, occurs twice, has a type that cannot be read or the name of a
            column of the decision.
        InputError: There is no catalog at the path.
        OptionError: An option is not what it can be, or the state store is not RocksDB.

    Examples:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog, schemas
        >>> rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        >>> settings = {"spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": rocksdb,
        ...             "spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        >>> spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        >>> columns = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, "
        >>> columns += "fragment_count int, message_body binary, to_service_name string"
        >>> parts = [(bytes(16), True, 0, 1, 2, b"two", "//Orders"), (bytes(16), True, 0, 0, 2, b"one ", "//Orders")]
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spark.createDataFrame(parts, columns).coalesce(1).write.parquet(f"{folder}/in")
        ...     arriving = spark.readStream.schema(columns).parquet(f"{folder}/in")
        ...     landed = ssbroker.spark.stream(arriving, Catalog(pa.table(routes)), buckets=1)
        ...     query = landed.messages.writeStream.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True)
        ...     query.format("memory").queryName("landed").start().awaitTermination(600)
        True
        >>> spark.table("landed").selectExpr("cast(message_body as string)", "outcome", "next_hop_address").first()
        Row(message_body='one two', outcome='REMOTE', next_hop_address='TCP://orders:4022')
        >>> spark.stop()
    """
    forwarding = None
    if catalog is not None:
        forwarding = StreamRouting(
            catalog=catalog,
            tie_break=tie_break,
            pending_request=pending_request,
            max_delayed_bytes=max_delayed_bytes,
            catalog_patience=catalog_patience,
        )
    limits = StreamLimits(
        in_order=in_order,
        session_keys=session_keys,
        acknowledgements=acknowledgements,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=max_fragments_per_message,
        max_pending_bytes=max_pending_bytes,
        max_pending_age=max_pending_age,
    )
    chosen = BucketCount(count=buckets, key=bucket_key)
    return Stream(*rows(fragments_df, limits, chosen, forwarding, observe=observe, name="ssbroker.spark.stream"))


def reassemble_stream(
    fragments_df: DataFrame,
    *,
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    acknowledgements: bool = False,
    buckets: int = 16,
    bucket_key: bytes | None = None,
    max_pending_age: timedelta | None = None,
    max_pending_bytes: int | None = None,
    max_message_bytes: int = 256 << 20,
    max_fragments_per_message: int | None = 1 << 20,
    observe: str | None = None,
) -> Stream:
    """Puts the fragments of a stream together: `stream` without a catalog.

    Args:
        fragments_df: As for `stream`, like all that follow.
        in_order: The same.
        session_keys: The same.
        acknowledgements: The same.
        buckets: The same.
        bucket_key: The same.
        max_pending_age: The same.
        max_pending_bytes: The same.
        max_message_bytes: The same.
        max_fragments_per_message: The same.
        observe: The same.

    Returns:
        The rows as a streaming DataFrame, and how to select those of one kind.

    Raises:
        SchemaError: The DataFrame is no stream, or a column is missing, occurs twice or has a type that cannot be read.
        OptionError: An option is not what it can be, or the state store is not RocksDB.

    Examples:
        >>> import ssbroker.spark
        >>> ssbroker.spark.reassemble_stream(None, buckets=0)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: buckets: expected a whole number from 1 to 65536; got 0
    """
    limits = StreamLimits(
        in_order=in_order,
        session_keys=session_keys,
        acknowledgements=acknowledgements,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=max_fragments_per_message,
        max_pending_bytes=max_pending_bytes,
        max_pending_age=max_pending_age,
    )
    chosen = BucketCount(count=buckets, key=bucket_key)
    name = "ssbroker.spark.reassemble_stream"
    return Stream(*rows(fragments_df, limits, chosen, None, observe=observe, name=name))
