"""From a stream of fragments to the one DataFrame of all kinds of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import session_keys as keys
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.spark import columns, fragment_columns, tagged
from ssbroker.spark.fragment_columns import FragmentColumns
from ssbroker.spark.frames import check_frame
from ssbroker.spark.names import check_free
from ssbroker.spark.shipping import ship_keys
from ssbroker.spark.streams import carried, kinds, packing
from ssbroker.spark.streams.forwarding import Forwarding
from ssbroker.spark.streams.kinds import StreamKinds
from ssbroker.spark.streams.options import Buckets, Limits, microseconds
from ssbroker.spark.streams.processor import processor
from ssbroker.spark.streams.task import Assembly, Routing, Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField

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
    limits: Limits,
    buckets: Buckets,
    forwarding: Forwarding | None,
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
    found = fragment_columns.read(fragments, limits.session_keys)
    behind = carried.without_watermark(found.further)
    further = {tagged.further_name(place): field for place, field in enumerate(behind)}
    routing = None
    if forwarding is not None:
        check_free(fragments, [field.name for field in found.further])
        routing = _routing(spark, found, forwarding, in_order=limits.in_order)
    task = Task(
        fixed={**buckets.fixed, **limits.fixed},
        carried=tuple(field.name for field in found.further),
        assembly=_assembly(spark, limits),
        routing=routing,
        figures=observe is not None,
    )
    placed = found.by_bucket(fragments, count=buckets.count, key=buckets.key or b"")
    labels = None if routing is None else routing.labels
    made = through_buckets(placed, found.names, task, further)
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
    placed: DataFrame, names: tuple[str, ...], task: Task, further: Mapping[str, StructField]
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
    own = kinds.own_columns(assembled=task.assembly is not None, routed=task.routing is not None)
    on_the_way = tuple(further)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context: Any = TaskContext.get()
        return packing.packed(names, batches, partition=context.partitionId())

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packing.unpacked(own, on_the_way, batches)

    schema = kinds.schema(further, assembled=task.assembly is not None, routed=task.routing is not None)
    stateful = (
        placed.mapInArrow(pack, packing.PACKED)
        .groupBy("bucket")
        .transformWithState(
            statefulProcessor=processor(task),
            outputStructType=packing.TOLD,
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
    kind = sf.col(kinds.KIND)
    told = [kinds.MESSAGE, kinds.REJECTION, kinds.ACKNOWLEDGEMENT, kinds.EXPIRY]
    counts = [sf.count(sf.when(kind == each, True)).alias(f"{each}_rows") for each in told]
    sums = [sf.sum(figure).alias(figure) for figure in kinds.FIGURE_COLUMNS]
    if "message_body" in made.columns:
        sums.append(sf.sum(sf.length("message_body")).alias("message_bytes"))
    buckets = sf.count(sf.when(kind == kinds.FIGURES, True)).alias("buckets")
    return made.observe(name, *counts, *sums, buckets).where(kind != kinds.FIGURES)


def _assembly(spark: SparkSession, limits: Limits) -> Assembly:
    normal = keys.normal(limits.session_keys)
    column = normal if isinstance(normal, str) else None
    age = limits.max_pending_age
    return Assembly(
        in_order=limits.in_order,
        max_message_bytes=limits.max_message_bytes,
        max_fragments_per_message=limits.max_fragments_per_message,
        max_pending_bytes=limits.room,
        max_pending_age_us=None if age is None else microseconds(age, name="max_pending_age", least=age),
        session_keys=ship_keys(spark, normal, in_stream=True) if isinstance(normal, dict) else column,
        acknowledgements=limits.acknowledgements,
    )


def _routing(spark: SparkSession, found: FragmentColumns, forwarding: Forwarding, *, in_order: bool) -> Routing:
    read = found.of_conversations()
    types: dict[str, pa.DataType] = {"conversation_id": pa.binary(), "is_initiator": pa.bool_()}
    for name, (_, kind) in read.items():
        types[name] = columns.arrow_type(name, kind, expected=columns.EXPECTED[name])
    names = {**dict(zip(_DIRECTION, _DIRECTION, strict=True)), **{name: at for name, (at, _) in read.items()}}
    return forwarding.routing(spark, types, names, direction=_DIRECTION if in_order else None)
