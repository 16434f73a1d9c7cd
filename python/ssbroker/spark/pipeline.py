"""`pipeline` for DataFrames: from raw fragments to messages that are verified, whole, in order and routed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.reassembly import SessionKeys
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.spark import columns, reassembly, reassembly_rows, worker
from ssbroker.spark.broadcast import ship
from ssbroker.spark.columns import check_free
from ssbroker.spark.reassembly import ReassemblyOptions, RoutingTask, ShardBy, SparkReassembly, Strategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_OWN: Final = ("conversation_id", "is_initiator")
"""What routing reads of the messages themselves."""


@dataclass(frozen=True)
class Pipeline(SparkReassembly):
    """What comes of fragments that are put together and routed, as three DataFrames of one computation.

    Each is computed when it is read, and reading two computes twice, unless `persist` keeps what was computed.
    """

    _labels: columns.Labels

    @property
    def messages(self) -> DataFrame:
        """The messages that are whole and whose turn it is: `schemas.MESSAGES`, further columns, and those of the decision."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._messages(self._labels.unpacked({name: sf.col(name) for name in reassembly_rows.DECISION}))


def pipeline(
    fragments_df: DataFrame,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    strategy: Strategy = "hash",
    shard_by: ShardBy = "conversation",
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    max_message_bytes: int = 256 << 20,
    max_pending_bytes: int | None = None,
    max_fragments_per_message: int | None = 1 << 20,
) -> Pipeline:
    """Puts fragments together as `reassemble` does, and routes each message as `route` does, in one go.

    A message is routed in the task that put it together, so that its body goes into Python and back once.

    Args:
        fragments_df: Fragments (`schemas.FRAGMENTS`) with the columns of conversations among their further ones: `to_service_name`, and
            `database` and `to_broker_instance` where they are known.
        catalog: The instance's databases, services and routing tables.
        now: The moment at which routes expire, None for that of this call. Without a zone it is UTC.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.
        strategy: As for `reassemble`, like all that follow.
        shard_by: The same.
        in_order: The same.
        session_keys: The same.
        max_message_bytes: The same.
        max_pending_bytes: The same.
        max_fragments_per_message: The same.

    Returns:
        The messages with their decisions, the fragments that were rejected, and what is incomplete.

    Raises:
        SchemaError: A column is missing, occurs twice, has a type that cannot be read or the name of a column of the decision, or the
            DataFrame is a stream.
        OptionError: An option is not what it can be.

    Examples:
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> columns = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, "
        >>> columns += "fragment_count int, message_body binary, to_service_name string"
        >>> parts = [(bytes(16), True, 0, 1, 2, b"two", "//Orders"), (bytes(16), True, 0, 0, 2, b"one ", "//Orders")]
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> done = ssbroker.spark.pipeline(spark.createDataFrame(parts, columns), Catalog(pa.table(routes)))
        >>> done.messages.selectExpr("cast(message_body as string)", "outcome", "next_hop_address").first()
        Row(message_body='one two', outcome='REMOTE', next_hop_address='TCP://orders:4022')
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
    columns.check_tie_break(tie_break)
    found = reassembly.read(fragments_df, session_keys, name="ssbroker.spark.pipeline")
    check_free(fragments_df, [field.name for field in found.further])
    carried = found.of_conversations()
    types: dict[str, pa.DataType] = {
        "conversation_id": pa.binary(),
        "is_initiator": pa.bool_(),
        **{
            name: columns.arrow_type(name, kind, expected=columns.EXPECTED[name]) for name, (_, kind) in carried.items()
        },
    }
    labels = columns.rehearse(catalog, types, tie_break=tie_break, pending_request=pending_request)
    task = worker.RouteTask(
        catalog=ship(fragments_df.sparkSession, catalog),
        now=utc_datetime(now),
        tie_break=tie_break,
        pending_request=pending_request,
    )
    names = {**dict(zip(_OWN, _OWN, strict=True)), **{name: on_the_way for name, (on_the_way, _) in carried.items()}}
    routing = RoutingTask(task=task, labels=labels, names=names)
    return Pipeline(*reassembly.assemble(fragments_df, found, chosen, routing), labels)
