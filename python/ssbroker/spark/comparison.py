"""Routes a DataFrame of conversations with two catalogs, and compares the decisions."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ssbroker._arguments import compared_times
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.compare import Comparison, from_counts
from ssbroker.diagnose.decision_pairs import COMPARED_COLUMNS, DecisionPair, pair
from ssbroker.diagnose.fleet import SINGLE_INSTANCE
from ssbroker.exceptions import SchemaError
from ssbroker.router import PendingRequest
from ssbroker.schemas import DECISIONS
from ssbroker.spark.arguments import SparkTieBreak, check_frame, loaded_catalog
from ssbroker.spark.input_columns import is_case_sensitive, quoted
from ssbroker.spark.routing import route

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_COUNT: Final = "conversations"


@dataclass(frozen=True, kw_only=True)
class SparkComparison:
    """The routing decisions for the same conversations with two catalogs."""

    rows: DataFrame
    """The columns of the input, followed by the decision columns for both catalogs, named `before_...` and `after_...`."""
    before: Catalog
    """The current catalog."""
    after: Catalog
    """The proposed catalog."""
    moments: tuple[datetime, datetime]
    """The times at which the route lifetimes of `before` and of `after` are evaluated."""

    def __repr__(self) -> str:
        return "SparkComparison(DataFrames: rows)"

    def comparison(self) -> Comparison:
        """Runs the Spark job, and collects on the driver the number of conversations for each database, service name and pair of decisions.

        Returns:
            The comparison, as `ssbroker.diagnose.compare` returns it for the same conversations.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        keys: dict[str, str] = {name: name for name in ("database", "to_service_name") if name in self.rows.columns}
        keys |= {f"{which}_{name}": f"{which} {name}" for which in ("before", "after") for name in COMPARED_COLUMNS}
        selected = self.rows.select(*(sf.col(quoted(name)).alias(alias) for name, alias in keys.items()))
        grouped = selected.groupBy(*map(quoted, keys.values())).agg(sf.count("*").alias(_COUNT))
        counts: Counter[DecisionPair] = Counter()
        for row in grouped.toLocalIterator():
            values: dict[str, Any] = row.asDict()
            counts[pair({"database": self.before.user_database, **values})] += values[_COUNT]
        return from_counts(
            {SINGLE_INSTANCE: (self.before, self.after)}, {SINGLE_INSTANCE: counts}, moments=self.moments
        )


def compare(
    conversations_df: DataFrame,
    before: Catalog | str | os.PathLike[str],
    after: Catalog | str | os.PathLike[str],
    *,
    at: datetime | None = None,
    before_at: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> SparkComparison:
    """Routes each conversation with two catalogs; `comparison()` then reports what changes, why, and for how many conversations.

    Args:
        conversations_df: Conversations (`schemas.CONVERSATIONS`), such as rows of `sys.transmission_queue`, on classic Spark or
            Spark Connect; not a stream. Extra columns are passed through.
        before: The current catalog; or a path that `Catalog.load` reads, with `before_at` as the time from which
            LIFETIME counts.
        after: The proposed catalog; or a path that `Catalog.load` reads, with `at` as the time from which LIFETIME
            counts.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        before_at: The time at which the route lifetimes of `before` are evaluated; None for `at`.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.

    Returns:
        Both decisions for each conversation, in one row. No Spark job runs until they are read.

    Raises:
        SchemaError: A column is missing, has an unsupported type, or has the name of a column that the comparison adds; or
            the DataFrame is a stream.
        OptionError: An option has an invalid value.

    Examples:
        >>> import pyarrow as pa
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog
        >>> def routed(address):
        ...     return Catalog(pa.table({"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"],
        ...         "broker_instance": [None], "lifetime": [None], "address": [address], "mirror_address": [None]}))
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> conversations = spark.createDataFrame([(bytes(16), "//Orders")], "conversation_id binary, to_service_name string")
        >>> ssbroker.spark.compare(conversations, routed("TCP://old"), routed("TCP://new")).comparison()
        Comparison(changes=1, conversations=1 of 1)
        >>> spark.stop()
    """
    moments = compared_times(at=at, before_at=before_at)
    check_frame(conversations_df, name="conversations_df")
    if conversations_df.isStreaming:
        raise SchemaError(
            "conversations_df: ssbroker.spark.compare does not accept a streaming DataFrame; read the input as a batch (spark.read)",
            expected="a batch DataFrame",
            actual="a streaming DataFrame",
        )
    before = loaded_catalog(before, now=moments[0], name="before")
    after = loaded_catalog(after, now=moments[1], name="after")
    rows, exact = conversations_df, is_case_sensitive(conversations_df)
    for which, catalog, now in (("before", before, moments[0]), ("after", after, moments[1])):
        added = {f"{which}_{name}" for name in DECISIONS.names}
        taken = [name for name in rows.columns if (name if exact else name.lower()) in added]
        if taken:
            names = ", ".join(taken)
            added_names, existing = (
                ("a column with this name", "column") if len(taken) == 1 else ("columns with these names", "columns")
            )
            raise SchemaError(
                f"{names}: the comparison adds {added_names}; rename or drop the existing {existing}", column=taken[0]
            )
        routed = route(rows, catalog, now=now, tie_break=tie_break, pending_request=pending_request)
        rows = routed.withColumnsRenamed({name: f"{which}_{name}" for name in DECISIONS.names})
    return SparkComparison(rows=rows, before=before, after=after, moments=moments)
