"""A row that cannot be read ends a query, and is named, so that it can be left out (U14)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ssbroker.exceptions import InputError, NullError, UnknownDatabaseError
from tests.rules.fragments import A, first_of_two, single
from tests.spark.stream_steps import Player, assembly, batch_of, routing, task
from tests.spark.test_stream_delayed import ROUTED, catalog, to

RESUME = "To resume the query from its checkpoint, filter out such rows before the stream"


def notes_of(player: Player, batches: list[pa.RecordBatch], kind: type[InputError]) -> list[str]:
    kept = player.state
    with pytest.raises(kind) as caught:
        player.play(*batches)
    assert player.state == kept
    return caught.value.__notes__


def with_column(batch: pa.RecordBatch, name: str, values: Any) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, values)


def test_a_fragment_is_named_by_its_keys_wherever_it_stands() -> None:
    player = Player(task(assembly()))
    player.play(batch_of([first_of_two(0)]))
    broken = with_column(batch_of([single(1), single(2)]), "is_initiator", pa.array([True, None]))
    (note,) = notes_of(player, [batch_of([single(3)]), broken], NullError)
    assert note == (
        f"The row has conversation_id 0x{A.hex}, is_initiator None, message_sequence_number 2, fragment_number 0. {RESUME}."
    )


def test_a_message_is_named_with_what_it_is_routed_by() -> None:
    player = Player(task(assembly(acknowledgements=False), routing([catalog(ROUTED)])))
    batch = batch_of([to(ROUTED, 0), to(ROUTED, 1)], has_extra=True)
    (note,) = notes_of(player, [with_column(batch, "further_0", pa.array([ROUTED, None]))], NullError)
    assert "is_initiator True, to_service_name None, message_sequence_number 1. To resume" in note


def test_a_database_may_come_back() -> None:
    routed = routing([catalog(ROUTED)])
    names = {**routed.names, "database": "further_0"}
    player = Player(task(assembly(acknowledgements=False), routing([catalog(ROUTED)], names=names)))
    (note,) = notes_of(player, [batch_of([to(ROUTED, 0)], has_extra=True)], UnknownDatabaseError)
    assert note.endswith(f"{RESUME}, or add the database to the catalog.")
