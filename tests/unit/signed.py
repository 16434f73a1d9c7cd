"""Messages to cut, and what they come to."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

IDS = [uuid.UUID(int=number).bytes for number in range(1, 100)]


def messages(bodies: list[bytes | None], **columns: Any) -> pa.RecordBatch:
    """One message for each body, each of a conversation of its own, and further columns."""
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
    """The batch with another column of this name."""
    columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), name: column}
    return pa.record_batch(columns)


def without(batch: pa.RecordBatch, *names: str) -> pa.RecordBatch:
    """The batch without some columns."""
    return batch.select([name for name in batch.schema.names if name not in names])
