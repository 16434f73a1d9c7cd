"""Messages to split, with their expected fragments."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

IDS = [uuid.UUID(int=number).bytes for number in range(1, 100)]


def messages(bodies: list[bytes | None], **columns: Any) -> pa.RecordBatch:
    """Returns one message for each body, each in its own conversation, with extra columns."""
    rows = len(bodies)
    return pa.record_batch(
        {
            "conversation_id": pa.array([IDS[row % len(IDS)] for row in range(rows)], pa.binary(16)),
            "is_initiator": pa.array([row % 3 != 0 for row in range(rows)], pa.bool_()),
            "message_sequence_number": pa.array([row // len(IDS) for row in range(rows)], pa.int64()),
            "message_body": pa.array(bodies, pa.binary()),
            **columns,
        }
    )


def with_column(batch: pa.RecordBatch, name: str, column: Any) -> pa.RecordBatch:
    """Returns the batch with a column replaced or added."""
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), name: column}
    return pa.record_batch(columns)


def without(batch: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    """Returns the batch without some columns."""
    return batch.select([name for name in batch.schema.names if name not in names])
