"""Order where each message was put together for itself: which may be delivered is decided from their numbers, without bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ssbroker.spark.tagged import KEYS, KIND, MESSAGE, REJECTION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CONVERSATION, _IS_INITIATOR, _NUMBER = KEYS
_NEXT: Final = "next_number"
_WHOLE: Final = "whole_messages"
_OF: Final = "of_"
_THRESHOLD: Final = "spark.sql.autoBroadcastJoinThreshold"
"""Above how many bytes Spark broadcasts nothing of its own accord; below 0 it never does."""


def delivered(rows: DataFrame) -> DataFrame:
    """The messages before which none of their direction is missing.

    Bodies are not shuffled for it: the directions that have a gap, by number few, are brought to them, unless the session
    has switched broadcasts off (`spark.sql.autoBroadcastJoinThreshold=-1`).

    Args:
        rows: Messages and others, as `tagged.schema` has them.

    Returns:
        Those messages, with the same columns.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    gaps = _next_numbers(rows).where(sf.col(_NEXT) < sf.col(_WHOLE))
    if _may_broadcast(rows):
        gaps = sf.broadcast(gaps)
    messages = rows.where(sf.col(KIND) == MESSAGE)
    in_turn = sf.col(_NEXT).isNull() | (sf.col(_NUMBER) < sf.col(_NEXT))
    return messages.join(gaps, _same_direction(), "left").where(in_turn).select(*rows.columns)


def waiting(rows: DataFrame) -> DataFrame:
    """The messages that are incomplete or behind a gap, as `schemas.PENDING` has them.

    Args:
        rows: Messages and others, as `tagged.schema` has them.

    Returns:
        Those messages; `waits_for_sequence_number` says for which they wait.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    number, next_number = sf.col(_NUMBER), sf.coalesce(sf.col(_NEXT), sf.lit(0))
    is_whole = sf.col(KIND) == MESSAGE
    kept = rows.where(sf.col(KIND) != REJECTION)
    size = sf.when(is_whole, sf.length("message_body").cast("bigint")).otherwise(sf.col("received_bytes"))
    kept = kept.withColumns(
        {
            "received_fragments": sf.when(is_whole, sf.col("fragment_count")).otherwise(sf.col("received_fragments")),
            "received_bytes": size,
        }
    ).drop("message_body")
    joined = kept.join(_next_numbers(rows), _same_direction(), "left").where(~is_whole | (number >= next_number))
    return joined.withColumn("waits_for_sequence_number", sf.when(number > next_number, next_number))


def _may_broadcast(rows: DataFrame) -> bool:
    """Whether the session allows broadcasts at all: by a hint, Spark makes one also where it does not."""
    threshold = str(rows.sparkSession.conf.get(_THRESHOLD)).strip()
    return not threshold.startswith("-")


def _next_numbers(rows: DataFrame) -> DataFrame:
    """For each direction of which a message is whole: the first number that is missing, and how many are whole."""
    from pyspark.sql import Window  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    names = {name: f"{_OF}{name}" for name in KEYS}
    whole = rows.where(sf.col(KIND) == MESSAGE).select(*(sf.col(name).alias(to) for name, to in names.items()))
    direction = (names[_CONVERSATION], names[_IS_INITIATOR])
    place = sf.row_number().over(Window.partitionBy(*direction).orderBy(names[_NUMBER])) - 1
    # Numbers do not repeat, so the one at its own place has all those before it.
    in_turn = whole.select(*direction, (place == sf.col(names[_NUMBER])).cast("bigint").alias(_NEXT))
    return in_turn.groupBy(*direction).agg(sf.sum(_NEXT).alias(_NEXT), sf.count("*").alias(_WHOLE))


def _same_direction() -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    same = (sf.col(name) == sf.col(f"{_OF}{name}") for name in (_CONVERSATION, _IS_INITIATOR))
    return next(same) & next(same)
