"""`stream` and `reassemble_stream`: fragments of a stream put together and, with a catalog, the messages routed.

Fragments are packed by bucket of conversations, so that Spark's state has few keys with one value each, and what it moves between the
JVM and Python is a few cells of Arrow data (docs/dev/2026-11-22-stream-decisions.md).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ssbroker.catalog import Catalog
from ssbroker.routing import PendingRequest, TieBreak
from ssbroker.session_keys import SessionKeys
from ssbroker.spark.streams import assembly
from ssbroker.spark.streams.forwarding import Forwarding
from ssbroker.spark.streams.kinds import StreamKinds
from ssbroker.spark.streams.options import Buckets, Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        forwarding = Forwarding(
            catalog=catalog,
            tie_break=tie_break,
            pending_request=pending_request,
            max_delayed_bytes=max_delayed_bytes,
            catalog_patience=catalog_patience,
        )
    limits = Limits(
        in_order=in_order,
        session_keys=session_keys,
        acknowledgements=acknowledgements,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=max_fragments_per_message,
        max_pending_bytes=max_pending_bytes,
        max_pending_age=max_pending_age,
    )
    chosen = Buckets(count=buckets, key=bucket_key)
    return Stream(
        *assembly.rows(fragments_df, limits, chosen, forwarding, observe=observe, name="ssbroker.spark.stream")
    )


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
    limits = Limits(
        in_order=in_order,
        session_keys=session_keys,
        acknowledgements=acknowledgements,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=max_fragments_per_message,
        max_pending_bytes=max_pending_bytes,
        max_pending_age=max_pending_age,
    )
    chosen = Buckets(count=buckets, key=bucket_key)
    name = "ssbroker.spark.reassemble_stream"
    return Stream(*assembly.rows(fragments_df, limits, chosen, None, observe=observe, name=name))
