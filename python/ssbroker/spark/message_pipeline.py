"""`pipeline` for DataFrames: reassembles fragments and routes the messages in one pass."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.reassembly import SessionKeys
from ssbroker.router import PendingRequest
from ssbroker.spark import reassembly
from ssbroker.spark.arguments import SparkTieBreak, check_tie_break, loaded_catalog
from ssbroker.spark.decision_codes import CODED_FIELDS, Labels
from ssbroker.spark.dry_run import validate_routing
from ssbroker.spark.input_columns import check_no_reserved_columns
from ssbroker.spark.reassembly import ReassemblyOptions, ShardBy, SparkReassembly, Strategy
from ssbroker.spark.reassembly_task import MessageRouting
from ssbroker.spark.routing_task import RouteTask
from ssbroker.spark.shared_values import share_catalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, repr=False)
class Pipeline(SparkReassembly):
    """The result of reassembling and routing fragments: three DataFrames from one computation.

    Each DataFrame is computed when it is read. Reading several DataFrames repeats the computation, unless `persist` keeps the result.
    """

    _labels: Labels

    @property
    def messages(self) -> DataFrame:
        """The complete messages, ordered as by `reassemble`: the columns of `schemas.MESSAGES`, extra columns, and the decision columns."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        return self._select_messages(self._labels.decode({name: sf.col(name) for name in CODED_FIELDS}))


def pipeline(
    fragments_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    strategy: Strategy = "hash",
    shard_by: ShardBy = "conversation",
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    max_message_bytes: int = 256 << 20,
    max_pending_bytes: int | None = None,
    max_fragments_per_message: int | None = 1 << 20,
) -> Pipeline:
    """Reassembles fragments as `reassemble` does, and routes each message as `route` does, in one pass.

    A message is routed in the task that reassembled it, so its body is transferred to Python and back only once. An
    invalid value in a column that routing reads, such as an unknown database, fails the job. To separate the messages
    with invalid values instead, call `reassemble`, and `route` its messages with `errors="reject"`.

    Each direction starts at sequence number 0: with `in_order`, messages wait for lower numbers that are missing from
    the input, even if an earlier job has released those messages. To continue after earlier jobs, use `stream`, or
    `in_order=False`.

    Args:
        fragments_df: Fragments (`schemas.FRAGMENTS`) with the columns of conversations as extra columns: `to_service_name`, and
            `database` and `to_broker_instance` if they are known.
        catalog: The instance's databases, services and routing tables; or a path that `Catalog.load` reads, with `now`
            as the time from which LIFETIME counts.
        now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        strategy: See `reassemble`, which also describes the options below.
        shard_by: See `reassemble`.
        in_order: See `reassemble`.
        session_keys: See `reassemble`.
        max_message_bytes: See `reassemble`.
        max_pending_bytes: See `reassemble`.
        max_fragments_per_message: See `reassemble`.

    Returns:
        The messages with their decisions, the rejected fragments and the incomplete messages.

    Raises:
        SchemaError: A column is missing, occurs twice, or has an unsupported type or the name of a decision column; or
            the DataFrame is a stream.
        OptionError: An option has an invalid value.

    Examples:
        >>> import pyarrow as pa
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
    options = ReassemblyOptions(
        strategy=strategy,
        shard_by=shard_by,
        in_order=in_order,
        session_keys=session_keys,
        max_message_bytes=max_message_bytes,
        max_pending_bytes=max_pending_bytes,
        max_fragments_per_message=max_fragments_per_message,
    )
    check_tie_break(tie_break)
    moment = utc_datetime(now)
    catalog = loaded_catalog(catalog, now=moment)
    fragment_columns = reassembly.read_columns(fragments_df, session_keys, name="ssbroker.spark.pipeline")
    check_no_reserved_columns(fragments_df, [field.name for field in fragment_columns.extra])
    types, names = fragment_columns.routing_columns()
    labels = validate_routing(catalog, types, now=moment, tie_break=tie_break, pending_request=pending_request)
    task = RouteTask(
        catalog=share_catalog(fragments_df.sparkSession, catalog),
        now=moment,
        tie_break=tie_break,
        pending_request=pending_request,
    )
    routing = MessageRouting(task=task, labels=labels, names=names)
    return Pipeline(*reassembly.plan_reassembly(fragments_df, fragment_columns, options, routing), labels)
