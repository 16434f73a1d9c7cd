"""An invalid row ends a query and is named, so that it can be filtered out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ssbroker.exceptions import InputError, NullError, UnknownDatabaseError
from tests.rules.fragments import A, first_of_two, single
from tests.spark.streams.steps import BucketRunner, assembly, batch_of, routing, task
from tests.spark.streams.test_delayed_messages import ROUTED, catalog, message_to

RESUME = "To resume the query from its checkpoint, filter out such rows before the stream"


def notes_of(runner: BucketRunner, batches: list[pa.RecordBatch], kind: type[InputError]) -> list[str]:
    kept = runner.state
    with pytest.raises(kind) as caught:
        runner.run(*batches)
    assert runner.state == kept
    return caught.value.__notes__


def with_column(batch: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, values)


def test_invalid_fragments_are_named_by_their_keys() -> None:
    runner = BucketRunner(task(assembly()))
    runner.run(batch_of([first_of_two(0)]))
    broken = with_column(batch_of([single(1), single(2)]), "is_initiator", pa.array([True, None]))
    (note,) = notes_of(runner, [batch_of([single(3)]), broken], NullError)
    assert note == (
        f"The row has conversation_id 0x{A.hex}, is_initiator None, message_sequence_number 2, fragment_number 0. {RESUME}."
    )


def test_invalid_messages_are_named_by_their_routing_columns() -> None:
    runner = BucketRunner(task(assembly(acknowledgements=False), routing([catalog(ROUTED)])))
    batch = batch_of([message_to(ROUTED, 0), message_to(ROUTED, 1)], has_extra=True)
    (note,) = notes_of(runner, [with_column(batch, "further_0", pa.array([ROUTED, None]))], NullError)
    assert "is_initiator True, to_service_name None, message_sequence_number 1. To resume" in note


def test_an_unknown_database_may_be_added() -> None:
    routed = routing([catalog(ROUTED)])
    names = {**routed.names, "database": "further_0"}
    runner = BucketRunner(task(assembly(acknowledgements=False), routing([catalog(ROUTED)], names=names)))
    (note,) = notes_of(runner, [batch_of([message_to(ROUTED, 0)], has_extra=True)], UnknownDatabaseError)
    assert note.endswith(f"{RESUME}, or add the database to the catalog.")
