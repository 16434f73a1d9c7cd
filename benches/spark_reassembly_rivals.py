"""Reassembly with Spark's own functions, and the lower bound for reassembly in Python."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from benches.spark_rivals import untouched

_DIRECTION: Final = ("conversation_id", "is_initiator")
_KEYS: Final = (*_DIRECTION, "message_sequence_number")


def natively(fragments: DataFrame) -> DataFrame:
    """Groups, collects, sorts, concatenates and verifies with Spark's own functions.

    It handles neither duplicates nor the order of messages, which saves it work.
    """
    return _complete(_grouped(fragments))


def natively_in_order(fragments: DataFrame) -> DataFrame:
    """Like `natively`, but drops duplicates and orders the messages of a direction, like ssbroker.

    It does not check for missing messages. One shuffle by direction is enough for grouping and order.
    """
    grouped = _grouped(fragments.repartition(*_DIRECTION))

    def is_first(part: Column, place: Column) -> Column:
        before = sf.get("parts", place - 1)["fragment_number"]
        return (place == 0) | (part["fragment_number"] != before)

    return _complete(grouped.withColumn("parts", sf.filter("parts", is_first))).sortWithinPartitions(*_KEYS)


def shuffled(fragments: DataFrame) -> DataFrame:
    """Shuffles by direction only: the rest of the time of `natively` is all that can be saved."""
    return fragments.repartition(*_DIRECTION)


def shuffled_untouched(fragments: DataFrame) -> DataFrame:
    """Shuffles by direction, and passes all columns through Python."""
    return untouched(shuffled(fragments))


def answer(messages: DataFrame) -> tuple[int, int]:
    """Returns the number of messages and a digest that is independent of their order."""
    total = sf.sum(sf.xxhash64(*_KEYS, "message_body", "message_signature").cast("decimal(38,0)"))
    row = messages.agg(sf.count("*"), total).collect()[0]
    return int(row[0]), int(row[1])


def _grouped(fragments: DataFrame) -> DataFrame:
    return fragments.groupBy(*_KEYS).agg(
        sf.sort_array(sf.collect_list(sf.struct("fragment_number", "message_body"))).alias("parts"),
        sf.first("fragment_count").alias("fragment_count"),
        sf.first("message_signature").alias("message_signature"),
    )


def _complete(grouped: DataFrame) -> DataFrame:
    joined = sf.aggregate("parts", sf.lit(b""), lambda body, part: sf.concat(body, part["message_body"]))
    whole = grouped.where(sf.size("parts") == sf.col("fragment_count")).withColumn("message_body", joined)
    matches = sf.unhex(sf.md5("message_body")) == sf.col("message_signature")
    return whole.where(matches).select(*_KEYS, "message_body", "message_signature")
