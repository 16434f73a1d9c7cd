"""How the decisions of `route` come back from Python into the JVM: as one number where that says all, else as columns.

Each column that comes back costs more than to take a number apart in generated code. What a number stands for, addresses and names of
databases, is then looked up in an array beside the plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from ssbroker.catalog import Catalog
from ssbroker.spark import columns, worker
from ssbroker.spark.columns import PACKED, Labels
from ssbroker.spark.crossing import Crossing
from ssbroker.spark.worker import Task

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Decide: TypeAlias = Callable[..., Any]  # from batches of columns to structs

_IN_PLAN: Final = 2_000
"""How many characters of texts may stand in a plan, which people read."""
_VERDICT: Final = 0x7FF
_PLACE: Final = 11
_LOW: Final = 0x7FFF_FFFF
_NO_ROUTE: Final = 1 << 31
_ROUTE: Final = 32


class Returning(Protocol):
    """A way back."""

    @property
    def struct(self) -> str:
        """What Python gives for each row, as a type of Spark."""

    def function(self, task: Task, crossing: Crossing) -> Decide:
        """What runs in Python."""

    def unpacked(self, given: DataFrame, packed: Column) -> dict[str, Column]:
        """The decision columns, in the order of the contract, of the struct beside the columns given."""


def returning(catalog: Catalog, types: Mapping[str, pa.DataType], labels: Labels) -> Returning:
    """The way back for the decisions by a catalog.

    Args:
        catalog: The catalog.
        types: The columns that routing reads, and their types in Arrow.
        labels: The labels by number.

    Returns:
        The way.
    """
    places = catalog.native.places()
    if places is None:
        return _ByColumns(labels=labels, fields=columns.settable(catalog))
    addresses, databases = places
    return _ByNumber(
        labels=labels,
        addresses=addresses,
        databases=databases if catalog.has_services else [],
        has_ids=types.get(columns.BROKER) == pa.binary(),
    )


@dataclass(frozen=True, kw_only=True)
class _ByColumns:
    labels: Labels
    fields: Mapping[str, str]

    @property
    def struct(self) -> str:
        return _struct(self.fields)

    def function(self, task: Task, crossing: Crossing) -> Decide:
        labels, fields = self.labels, tuple(self.fields)

        # Spark reads the kind of function from its annotations, and pyarrow's classes take no parameters when they are read.
        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return worker.packed_decisions(task, crossing, labels, fields, batches)

        return decide

    def unpacked(self, given: DataFrame, packed: Column) -> dict[str, Column]:  # noqa: ARG002 - as of the other way
        return self.labels.unpacked({name: packed[name] for name in self.fields})


@dataclass(frozen=True, kw_only=True)
class _ByNumber:
    """As `_core.Router.verdicts` has it.

    Attributes:
        labels: The labels by number.
        addresses: The first places.
        databases: Those after them; none where nothing is delivered.
        has_ids: Whether the JVM has the broker ids that conversations name as bytes, so that they need not come back.
    """

    labels: Labels
    addresses: Sequence[str]
    databases: Sequence[str]
    has_ids: bool

    @property
    def struct(self) -> str:
        return _struct({"verdict": "bigint", "broker_instance": PACKED["broker_instance"]})

    def function(self, task: Task, crossing: Crossing) -> Decide:
        tells_named = not self.has_ids

        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return worker.verdicts(task, crossing, batches, tells_named=tells_named)

        return decide

    def unpacked(self, given: DataFrame, packed: Column) -> dict[str, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        spark, whole = given.sparkSession, packed["verdict"]
        low = whole.bitwiseAND(_LOW).cast("int")
        place = sf.shiftright(low, _PLACE) - 1
        route_id = sf.when(whole.bitwiseAND(_NO_ROUTE) == 0, sf.shiftright(whole, _ROUTE).cast("int"))
        broker = packed["broker_instance"]
        found = {
            "verdict": low.bitwiseAND(_VERDICT),
            "route_id": route_id,
            "next_hop_address": sf.get(_texts(spark, self.addresses), place),
            "broker_instance": sf.coalesce(given[columns.BROKER], broker) if self.has_ids else broker,
        }
        if self.databases:
            found["target_database"] = sf.get(_texts(spark, self.databases), place - len(self.addresses))
        return self.labels.unpacked(found)


def _struct(fields: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


def _texts(spark: SparkSession, texts: Sequence[str]) -> Column:
    """An array of texts that is not made anew for each row: in the plan, or if it is long as the result of a query."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    written = json.dumps(texts)
    if len(written) <= _IN_PLAN:
        return sf.from_json(sf.lit(written), "array<string>")
    query = spark.sql("SELECT from_json(texts, 'array<string>') FROM VALUES (:texts) AS t(texts)", {"texts": written})
    return query.scalar()
