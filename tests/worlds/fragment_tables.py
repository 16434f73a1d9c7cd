"""Conversion of fragments to Arrow, and of results to rows of the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tests.oracle.traffic import Fragment, Row
from tests.worlds.arrow import guid_array
from tests.worlds.fragments import KEY_COLUMN, Traffic

EXTRA_TYPES: dict[str, pa.DataType] = {"note": pa.string(), "priority": pa.int32()}


def _signatures(values: Iterable[bytes | None]) -> pa.Array[Any]:
    own = list(values)
    readable = all(value is None or len(value) == 16 for value in own)
    return pa.array(own, pa.binary(16) if readable else pa.binary())


def fragment_batch(
    fragments: Sequence[Fragment], *, key_column: bool = False, has_extra: bool = False, text_ids: bool = False
) -> pa.RecordBatch:
    """Returns a batch of fragments; signatures of another length make the column variable-length."""
    columns: dict[str, pa.Array[Any]] = {
        "conversation_id": guid_array((fragment.conversation_id for fragment in fragments), text=text_ids),
        "is_initiator": pa.array([fragment.is_initiator for fragment in fragments], pa.bool_()),
        "message_sequence_number": pa.array([fragment.sequence for fragment in fragments], pa.int64()),
        "fragment_number": pa.array([fragment.number for fragment in fragments], pa.int32()),
        "fragment_count": pa.array([fragment.count for fragment in fragments], pa.int32()),
        "message_body": pa.array([fragment.body for fragment in fragments], pa.binary()),
        "message_signature": _signatures(fragment.message_signature for fragment in fragments),
        "fragment_signature": _signatures(fragment.fragment_signature for fragment in fragments),
    }
    if key_column:
        columns[KEY_COLUMN] = pa.array([fragment.key for fragment in fragments], pa.binary())
    if has_extra:
        for name, type_ in EXTRA_TYPES.items():
            columns[name] = pa.array([fragment.extra[name] for fragment in fragments], type_)
    return pa.record_batch(columns)


def batch_of_traffic(traffic: Traffic, *, text_ids: bool = False) -> pa.RecordBatch:
    """Returns all fragments of the traffic."""
    return fragment_batch(
        traffic.fragments,
        key_column=traffic.keys == "column",
        has_extra=traffic.has_extra,
        text_ids=text_ids,
    )


def message_batch(
    messages: Sequence[Fragment], *, key_column: bool = False, has_extra: bool = False, text_ids: bool = False
) -> pa.RecordBatch:
    """Returns a batch of messages to split: each is one fragment, unsigned."""
    batch = fragment_batch(messages, key_column=key_column, has_extra=has_extra, text_ids=text_ids)
    return batch.drop_columns(["fragment_number", "fragment_count", "message_signature", "fragment_signature"])


def session_keys_of(traffic: Traffic) -> Any:
    """Returns `session_keys` for the traffic."""
    return session_keys(traffic.keys, traffic.fragments)


def session_keys(where: str, fragments: Iterable[Fragment]) -> Any:
    """Returns `session_keys` for given keys."""
    if where == "column":
        return KEY_COLUMN
    if where == "mapping":
        return {fragment.conversation_id: fragment.key for fragment in fragments if fragment.key is not None}
    return None


def rows_of(table: pa.Table) -> list[Row]:
    """Returns the rows of a result, with labels as text."""
    return list(table.to_pylist())
