"""`route_stream`: the conversations of a stream routed as they come; what is DELAYED waits and is tried again."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from ssbroker.catalog.catalog import Catalog
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.spark import columns, reassembly_rows
from ssbroker.spark.columns import bucket_column
from ssbroker.spark.streams import extra_columns, row_kinds, stream
from ssbroker.spark.streams.options import BucketCount
from ssbroker.spark.streams.stream import PATIENCE, StreamRouting
from ssbroker.spark.streams.task import StreamTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def route_stream(
    conversations_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    buckets: int = 16,
    bucket_key: bytes | None = None,
    max_delayed_bytes: int = 64 << 20,
    catalog_patience: timedelta = PATIENCE,
    observe: str | None = None,
) -> DataFrame:
    """Adds to each conversation where it goes, as `route` does, at the moment of its micro-batch.

    A row whose decision is DELAYED is kept in Spark's state instead, each for itself, and tried again after 4, 8, 16, 32, 64, 64 ... seconds
    and when the catalog has changed; it comes out once, with the decision that let it go. What the state needs stands at `stream`.

    Args:
        conversations_df: A stream of rows of `sys.transmission_queue`, on classic Spark or Spark Connect. Further columns stay as they are.
        catalog: As for `stream`, like all that follow.
        tie_break: The same.
        pending_request: The same.
        buckets: The same.
        bucket_key: The same.
        max_delayed_bytes: The same.
        catalog_patience: The same.
        observe: The same.

    Returns:
        The columns of the input, then those of the decision.

    Raises:
        SchemaError: The DataFrame is no stream, or a column is missing, has a type that cannot be read or the name of a column of the
            decision.
        InputError: There is no catalog at the path.
        OptionError: An option is not what it can be, or the state store is not RocksDB.

    Examples:
        >>> import ssbroker.spark
        >>> ssbroker.spark.route_stream(None, 7)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog or a path, got int
    """
    forwarding = StreamRouting(
        catalog=catalog,
        tie_break=tie_break,
        pending_request=pending_request,
        max_delayed_bytes=max_delayed_bytes,
        catalog_patience=catalog_patience,
    )
    spread = BucketCount(count=buckets, key=bucket_key)
    spark = stream.checked(conversations_df, name="ssbroker.spark.route_stream", observe=observe)
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    read = columns.conversation_columns(conversations_df)
    fields = conversations_df.schema
    types = {
        name: columns.arrow_type(name, fields[name].dataType, expected=columns.EXPECTED_TYPES[name]) for name in read
    }
    columns.check_arrow_types(fields)
    on_the_way = [reassembly_rows.extra_name(place) for place in range(len(fields))]
    names = {name: on_the_way[fields.names.index(name)] for name in read}
    task = StreamTask(
        fixed={**spread.fixed, "in_order": None},
        carried=tuple(fields.names),
        assembly=None,
        routing=forwarding.routing(spark, types, names, direction=None),
        figures=observe is not None,
    )
    named = conversations_df.toDF(*on_the_way)
    # The text of an id may be spelled in several ways; where each row is for itself, it does not matter where it waits.
    placed = named.select(bucket_column(sf.col(names[read[0]]), count=spread.count, key=spread.key or b""), *on_the_way)
    behind = extra_columns.without_watermark(fields.fields)
    extra = dict(zip(on_the_way, behind, strict=True))
    made = stream.observed(stream.through_buckets(placed, tuple(on_the_way), task, extra), observe)
    columns_behind = reassembly_rows.select_extra_columns(behind)
    assert task.routing is not None  # noqa: S101 - it was made above
    return made.select(*columns_behind, *row_kinds.decisions(task.routing.labels))
