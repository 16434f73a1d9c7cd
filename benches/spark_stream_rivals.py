"""Alternative reassembly of streams in Spark, and the lower bound, which copies the files.

Both rivals verify signatures and drop duplicates. The second does not order messages: it returns each as soon as it is complete.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MESSAGES: Final = (
    "conversation_id binary, is_initiator boolean, message_sequence_number bigint, message_body binary, "
    "message_signature binary"
)
_DIRECTION: Final = ("conversation_id", "is_initiator")
_MESSAGE: Final = (*_DIRECTION, "message_sequence_number")


class Direction(StatefulProcessor):
    """One key per direction of a conversation; the state is a pickled dict."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("direction", "state binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803 - Spark's names
        next_number, waiting = pickle.loads(self._state.get()[0]) if self._state.exists() else (0, {})
        for row in rows:
            number = row["message_sequence_number"]
            if number >= next_number:
                parts = waiting.setdefault(number, ({}, row["fragment_count"], bytes(row["message_signature"])))[0]
                parts.setdefault(row["fragment_number"], bytes(row["message_body"]))
        while next_number in waiting and len(waiting[next_number][0]) == waiting[next_number][1]:
            parts, count, signature = waiting.pop(next_number)
            body = b"".join(parts[number] for number in range(count))
            if hashlib.md5(body, usedforsecurity=False).digest() != signature:
                break
            yield Row(
                conversation_id=key[0],
                is_initiator=key[1],
                message_sequence_number=next_number,
                message_body=body,
                message_signature=signature,
            )
            next_number += 1
        self._state.update((pickle.dumps((next_number, waiting)),))

    def close(self) -> None:
        """Does nothing: no resources are open."""


def by_direction(fragments: DataFrame) -> DataFrame:
    """Reassembles with `transformWithState`, one key per direction, and Python dicts."""
    grouped = fragments.groupBy(*_DIRECTION)
    whole: DataFrame = grouped.transformWithState(Direction(), MESSAGES, outputMode="Append", timeMode="None")
    return whole


def by_batches(fragments: DataFrame, target: Path, checkpoint: Path) -> DataStreamWriter:
    """Reassembles with `foreachBatch` and Spark's own functions; incomplete messages are kept in Parquet files.

    It handles neither the order of messages nor duplicates of complete messages, which saves it work.
    """
    kept = checkpoint.with_name(f"{checkpoint.name}-kept")

    def reassemble_batch(new: DataFrame, batch: int) -> None:
        spark: SparkSession = new.sparkSession
        before = kept / str(batch - 1)
        rows = new.unionByName(spark.read.parquet(str(before))) if before.exists() else new
        grouped = rows.groupBy(*_MESSAGE).agg(
            sf.sort_array(sf.collect_set(sf.struct("fragment_number", "message_body"))).alias("parts"),
            sf.first("fragment_count").alias("fragment_count"),
            sf.first("message_signature").alias("message_signature"),
            sf.first("fragment_signature").alias("fragment_signature"),
        )
        grouped.persist()
        is_complete = sf.size("parts") == sf.col("fragment_count")
        joined = sf.aggregate("parts", sf.lit(b""), lambda body, part: sf.concat(body, part["message_body"]))
        whole = grouped.where(is_complete).withColumn("message_body", joined)
        matches = sf.unhex(sf.md5("message_body")) == sf.col("message_signature")
        whole.where(matches).select(*_MESSAGE, "message_body", "message_signature").write.mode("overwrite").parquet(
            str(target / f"batch={batch}")
        )
        rest = grouped.where(~is_complete).select("*", sf.inline("parts")).select(new.columns)
        rest.write.mode("overwrite").parquet(str(kept / str(batch)))
        grouped.unpersist()

    return fragments.writeStream.foreachBatch(reassemble_batch)
