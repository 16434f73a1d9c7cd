"""Rows between the operators of a stream: one struct for all kinds of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.exceptions import OptionError
from ssbroker.schemas import ACKNOWLEDGEMENTS, MESSAGES, PENDING, REJECTED
from ssbroker.spark import reassembly_output
from ssbroker.spark.arrow_columns import to_spark_type
from ssbroker.spark.decision_codes import CODED_ARROW_TYPES, CODED_FIELDS, Labels

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType


KIND: Final = reassembly_output.KIND
MESSAGE: Final = "message"
REJECTION: Final = "rejected"
ACKNOWLEDGEMENT: Final = "acknowledgement"
EXPIRY: Final = "expired"
METRICS: Final = "figures"
"""The kind of rows with the size of a bucket; internal, read only by `observe`."""

_WAITING_SINCE: Final = pa.field("waiting_since", reassembly_output.TIMESTAMP)
EXPIRED: Final = pa.schema([*PENDING, _WAITING_SINCE])
"""Messages that were dropped because they got no more fragments: what was missing, and since when they had been pending."""

METRIC_COLUMNS: Final[dict[str, pa.DataType]] = {
    "state_bytes": pa.int64(),
    "incomplete_messages": pa.int64(),
    "delayed_messages": pa.int64(),
}

COLUMNS: Final[dict[str, pa.DataType]] = {
    **{
        field.name: to_spark_type(field.type)
        for schema in (MESSAGES, REJECTED, ACKNOWLEDGEMENTS, EXPIRED)
        for field in schema
    },
    **METRIC_COLUMNS,
}
"""The columns of all kinds after `kind`, and their types; columns with the same name are shared."""

_NUMBER: Final = "message_sequence_number"


@dataclass(frozen=True)
class StreamKinds:
    """Selects the rows of one kind from a stream or from a `foreachBatch` batch; contains no session, and can be pickled."""

    _further: tuple[StructField, ...]
    _labels: Labels | None
    _acknowledgements: bool

    def __repr__(self) -> str:
        return "StreamKinds(messages, rejected, acknowledgements, expired)"

    def messages(self, rows: DataFrame) -> DataFrame:
        """Selects the complete messages, in order; with a catalog, the messages that have a route or can no longer wait for a route.

        Args:
            rows: `Stream.rows`, or a batch of these rows.

        Returns:
            The columns of `schemas.MESSAGES`, the extra columns of the fragments and, with a catalog, the decision columns.
        """
        own = reassembly_output.select_columns(MESSAGES, _key_columns(MESSAGES))
        extra = reassembly_output.select_extra_columns(self._further)
        return _of_kind(rows, MESSAGE).select(*own, *extra, *decision_columns(self._labels))

    def rejected(self, rows: DataFrame) -> DataFrame:
        """Selects the rejected fragments and the reasons.

        Args:
            rows: `Stream.rows`, or a batch of these rows.

        Returns:
            The columns of `schemas.REJECTED`.
        """
        return _of_kind(rows, REJECTION).select(*reassembly_output.select_columns(REJECTED, _key_columns(REJECTED)))

    def acknowledgements(self, rows: DataFrame) -> DataFrame:
        """Selects the acknowledgements for the senders: one for each direction in which a micro-batch accepted a fragment or found a duplicate.

        Args:
            rows: `Stream.rows`, or a batch of these rows.

        Returns:
            The columns of `schemas.ACKNOWLEDGEMENTS`.

        Raises:
            OptionError: The stream was created without `acknowledgements=True`.
        """
        if not self._acknowledgements:
            raise OptionError("acknowledgements: this stream does not emit them; create it with acknowledgements=True")
        return _of_kind(rows, ACKNOWLEDGEMENT).select(
            *reassembly_output.select_columns(ACKNOWLEDGEMENTS, _key_columns(ACKNOWLEDGEMENTS))
        )

    def expired(self, rows: DataFrame) -> DataFrame:
        """Selects the messages that were dropped because no fragment was added to them for `max_pending_age`.

        Args:
            rows: `Stream.rows`, or a batch of these rows.

        Returns:
            The columns of `schemas.PENDING`, then `waiting_since`: when the first fragment arrived.
        """
        return _of_kind(rows, EXPIRY).select(*reassembly_output.select_columns(EXPIRED, _key_columns(EXPIRED)))


def schema(extra: Mapping[str, StructField], *, reassembled: bool, routed: bool) -> StructType:
    """Returns the schema of the rows of all kinds: `kind`, `own_columns`, then the extra columns under their worker names."""
    from pyspark.sql.types import ArrayType, IntegerType, StructType  # noqa: PLC0415 - pyspark is an extra

    result = StructType().add(KIND, "string", nullable=False)
    for name, arrow_type in own_columns(reassembled=reassembled, routed=routed).items():
        result.add(
            name,
            ArrayType(IntegerType())
            if pa.types.is_list(arrow_type)
            else reassembly_output.SPARK_TYPE_NAMES[arrow_type],
        )
    for name, field in extra.items():
        result.add(name, field.dataType, nullable=True, metadata=field.metadata)
    return result


def own_columns(*, reassembled: bool, routed: bool) -> dict[str, pa.DataType]:
    """Returns the types of all columns except `kind` and the extra columns, in the order of the schema."""
    return {**(COLUMNS if reassembled else METRIC_COLUMNS), **(CODED_ARROW_TYPES if routed else {})}


def decision_columns(labels: Labels | None) -> list[Column]:
    """Returns the decision columns, decoded; an empty list if `labels` is None."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if labels is None:
        return []
    coded = {name: sf.col(name) for name in CODED_FIELDS}
    return [column.alias(name) for name, column in labels.decode(coded).items()]


def _of_kind(rows: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return rows.where(sf.col(KIND) == kind)


def _key_columns(kind: pa.Schema) -> dict[str, Column]:
    """Returns the key columns of a kind, declared non-nullable; they are nullable in `rows`, because other kinds may lack them."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    placeholders = {"conversation_id": sf.lit(b""), "is_initiator": sf.lit(False), _NUMBER: sf.lit(0).cast("bigint")}
    return {
        name: sf.coalesce(sf.col(name), placeholder) for name, placeholder in placeholders.items() if name in kind.names
    }
