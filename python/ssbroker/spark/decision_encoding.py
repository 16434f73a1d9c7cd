"""Encodes whole decisions that workers return to the JVM: as a number and a broker id, or as a decision code and the other fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from ssbroker.catalog.catalog import Catalog
from ssbroker.spark import decision_codes, input_columns
from ssbroker.spark.decision_codes import CODED_FIELDS, Labels
from ssbroker.spark.routing_task import RouteTask, coded_decisions_of_partition, decision_numbers_of_partition
from ssbroker.spark.transferred_columns import TransferredColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


DecisionFunction: TypeAlias = Callable[..., Any]  # from batches of columns to structs

_PLAN_CHARACTERS_MAX: Final = 2_000
"""The maximum length of strings in a query plan, because people read plans."""
_NUMBER_FIELD: Final = "decision_number"
_CODE_MASK: Final = 0x7FF
_TARGET_SHIFT: Final = 11
_LOW_MASK: Final = 0x7FFF_FFFF
_NO_ROUTE_BIT: Final = 1 << 31
_ROUTE_SHIFT: Final = 32


class DecisionEncoding(Protocol):
    """The form in which Python returns decisions to the JVM."""

    @property
    def struct(self) -> str:
        """The Spark type that Python returns for each row."""

    def function(self, task: RouteTask, transfer: TransferredColumns) -> DecisionFunction:
        """Returns the function that encodes decisions in Python workers."""

    def decode(self, frame: DataFrame, encoded: Column) -> dict[str, Column]:
        """Returns the decision columns, in contract order, from the returned struct and the columns of the input."""


def choose_encoding(catalog: Catalog, types: Mapping[str, pa.DataType], labels: Labels) -> DecisionEncoding:
    """Returns the encoding for decisions by a catalog: numbers if the catalog numbers its addresses and databases, else columns."""
    targets = catalog.native.destinations()
    if targets is None or not all(map(_has_string_array, targets)):
        return _ColumnEncoding(labels=labels, fields=decision_codes.possible_fields(catalog))
    addresses, databases = targets
    return _NumberEncoding(
        labels=labels,
        addresses=addresses,
        databases=databases if catalog.has_services else [],
        has_ids=types.get(input_columns.BROKER_COLUMN) == pa.binary(),
    )


@dataclass(frozen=True, kw_only=True)
class _ColumnEncoding:
    labels: Labels
    fields: Mapping[str, str]

    @property
    def struct(self) -> str:
        return _struct_type(self.fields)

    def function(self, task: RouteTask, transfer: TransferredColumns) -> DecisionFunction:
        labels, fields = self.labels, tuple(self.fields)

        # Spark evaluates the annotations to determine the kind of function, and pyarrow's classes accept no type
        # parameters at run time.
        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return coded_decisions_of_partition(task, transfer, labels, fields, batches)

        return decide

    def decode(self, frame: DataFrame, encoded: Column) -> dict[str, Column]:  # noqa: ARG002 - the protocol has it
        return self.labels.decode({name: encoded[name] for name in self.fields})


@dataclass(frozen=True, kw_only=True)
class _NumberEncoding:
    """The encoding of `_core.Router.route_packed`.

    Attributes:
        labels: The outcomes and reasons, in the order of their codes.
        addresses: The addresses, in the order of their numbers.
        databases: The databases, whose numbers follow the numbers of the addresses; empty if no message is delivered locally.
        has_ids: Whether the input contains the broker ids as bytes, so that they need not be returned.
    """

    labels: Labels
    addresses: Sequence[str]
    databases: Sequence[str]
    has_ids: bool

    @property
    def struct(self) -> str:
        return _struct_type({_NUMBER_FIELD: "bigint", "broker_instance": CODED_FIELDS["broker_instance"]})

    def function(self, task: RouteTask, transfer: TransferredColumns) -> DecisionFunction:
        return_named_ids = not self.has_ids

        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return decision_numbers_of_partition(task, transfer, batches, return_named_ids=return_named_ids)

        return decide

    def decode(self, frame: DataFrame, encoded: Column) -> dict[str, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        spark, number = frame.sparkSession, encoded[_NUMBER_FIELD]
        low = number.bitwiseAND(_LOW_MASK).cast("int")
        target = sf.shiftright(low, _TARGET_SHIFT) - 1
        route_id = sf.when(number.bitwiseAND(_NO_ROUTE_BIT) == 0, sf.shiftright(number, _ROUTE_SHIFT).cast("int"))
        broker = encoded["broker_instance"]
        decision = {
            decision_codes.DECISION_CODE: low.bitwiseAND(_CODE_MASK),
            "route_id": route_id,
            "next_hop_address": sf.get(_string_array(spark, self.addresses), target),
            "broker_instance": sf.coalesce(frame[input_columns.BROKER_COLUMN], broker) if self.has_ids else broker,
        }
        if self.databases:
            decision["target_database"] = sf.get(_string_array(spark, self.databases), target - len(self.addresses))
        return self.labels.decode(decision)


def _struct_type(fields: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


def _has_string_array(strings: Sequence[str]) -> bool:
    """Returns whether `_string_array` supports these strings; before PySpark 4.0, the result of a query cannot be used as a column."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    return hasattr(DataFrame, "scalar") or len(json.dumps(strings)) <= _PLAN_CHARACTERS_MAX


def _string_array(spark: SparkSession, strings: Sequence[str]) -> Column:
    """Returns an array of strings that is not rebuilt for each row: a literal in the plan or, if it is long, the result of a query."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    literal = json.dumps(strings)
    if len(literal) <= _PLAN_CHARACTERS_MAX:
        return sf.from_json(sf.lit(literal), "array<string>")
    query = spark.sql("SELECT from_json(texts, 'array<string>') FROM VALUES (:texts) AS t(texts)", {"texts": literal})
    return query.scalar()
