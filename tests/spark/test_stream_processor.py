"""What Spark sees of a bucket: one value, one timer, cells in and out; played by Spark's own tester, without a session."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from ssbroker.exceptions import MalformedDataError
from ssbroker.spark.streams import state
from ssbroker.spark.streams import state as kept_parts
from ssbroker.spark.streams.options import BucketCount, StreamLimits
from ssbroker.spark.streams.state import state_from_bytes
from ssbroker.spark.streams.stream import processor
from tests.oracle.traffic import Fragment
from tests.rules.fragments import A, B, first_of_two, parts, second_of_two, single
from tests.spark.stream_steps import SECOND, START, assembly, batch_of, task

MS = 1000
OPTIONS: dict[str, Any] = {
    "in_order": True,
    "session_keys": None,
    "acknowledgements": False,
    "max_message_bytes": 1,
    "max_fragments_per_message": None,
    "max_pending_bytes": 1,
    "max_pending_age": None,
}


def cell(place: int, *fragments: Fragment) -> Row:
    return Row(bucket=3, place=place, cell=state.to_ipc(batch_of(fragments)))


def played(**changed: Any) -> Any:
    untyped: Any = TwsTester
    made = untyped(processor(task(assembly(**changed))), timeMode="processingTime")
    made.setProcessingTime(START // MS)
    return made


def told(rows: list[Row]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(row.kind, state.from_ipc(row.cell).to_pylist()) for row in rows]


def kept(of: Any) -> bytes | None:
    """The state of bucket 3, and whether its parts are those that there should be."""
    found = of.peekMapState(kept_parts.STATE_VARIABLE, 3)
    rows = [(3, number, *part) for (number,), part in found.items()]
    states = [state for _, state in kept_parts.join_state_parts(rows)]
    assert [number for _, number, _, _ in sorted(rows)] == [*range(rows[0][3] if rows else 0)]
    return states[0] if states else None


def timers(of: Any) -> list[int]:
    return [int(timer) for timer in of.handle._timers.listTimers(3)]


def test_cells_in_the_order_of_their_places() -> None:
    """A task that is run again gets them in any order, and does the same."""
    bucket = played(acknowledgements=False)
    early, late = parts(b"abcd", 0, size=2)
    contradiction = parts(b"abXX", 0, size=2)[1]
    rows = told(bucket.test(3, [cell(9, contradiction), cell(1, early), cell(2, late)]))
    assert [kind for kind, _ in rows] == ["rejected", "message"]
    assert rows[1][1][0]["message_body"] == b"abcd"
    state = kept(bucket)
    assert state is not None
    assert state_from_bytes(state).waits is None


def test_one_timer_which_comes_when_something_is_due() -> None:
    """U7, U9."""
    bucket = played(acknowledgements=False, max_pending_age_us=60 * SECOND)
    assert bucket.test(3, [cell(1, first_of_two(0))]) == []
    assert timers(bucket) == [(START + 60 * SECOND) // MS]
    assert told(bucket.setProcessingTime((START + 30 * SECOND) // MS)) == []
    assert bucket.test(3, [cell(1, first_of_two(0, conversation=B))]) == []
    assert timers(bucket) == [(START + 60 * SECOND) // MS]
    first = told(bucket.setProcessingTime((START + 60 * SECOND) // MS))
    assert [(kind, [row["conversation_id"] for row in rows]) for kind, rows in first] == [("expired", [A.bytes])]
    assert timers(bucket) == [(START + 90 * SECOND) // MS]
    second = told(bucket.setProcessingTime((START + 90 * SECOND) // MS))
    assert [(kind, [row["conversation_id"] for row in rows]) for kind, rows in second] == [("expired", [B.bytes])]
    assert timers(bucket) == []
    assert kept(bucket) is None


def test_a_large_state_is_kept_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows and shrinks, and no part stays behind."""
    monkeypatch.setattr(kept_parts, "PART_CHARACTERS", 1000)
    bucket = played(acknowledgements=False, max_message_bytes=10_000)
    body = bytes(value % 251 for value in range(9000))
    pieces = parts(body, 0, size=1000)
    counts = []
    for place, piece in enumerate(pieces[1:]):
        assert bucket.test(3, [cell(place, piece)]) == []
        assert kept(bucket) is not None
        counts.append(len(bucket.peekMapState(kept_parts.STATE_VARIABLE, 3)))
    assert counts == sorted(counts)
    assert counts[-1] > len(pieces)
    ((kind, rows),) = told(bucket.test(3, [cell(20, pieces[0])]))
    assert (kind, rows[0]["message_body"]) == ("message", body)
    assert len(bucket.peekMapState(kept_parts.STATE_VARIABLE, 3)) == 1
    assert kept(bucket) is not None


def test_parts_in_any_order_and_one_that_is_missing() -> None:
    """U10."""
    one, other = state.text_from_bytes(b"a state"), state.text_from_bytes(b"another")
    rows = [(1, 1, one[3:], 2), (2, 0, other, 1), (1, 0, one[:3], 2)]
    assert list(kept_parts.join_state_parts(rows)) == [(2, b"another"), (1, b"a state")]
    with pytest.raises(MalformedDataError, match="state: parts of bucket 1 are missing"):
        list(kept_parts.join_state_parts(rows[:2]))


def test_a_timer_for_what_has_become_whole_meanwhile_does_nothing() -> None:
    bucket = played(acknowledgements=False, max_pending_age_us=60 * SECOND)
    bucket.test(3, [cell(1, first_of_two(0))])
    assert [kind for kind, _ in told(bucket.test(3, [cell(1, second_of_two(first_of_two(0)))]))] == ["message"]
    assert told(bucket.setProcessingTime((START + 60 * SECOND) // MS)) == []


def test_it_pickles_with_its_task() -> None:
    made = pickle.loads(cloudpickle.dumps(processor(task(assembly()))))
    untyped: Any = TwsTester
    assert told(untyped(made, timeMode="processingTime").test(3, [cell(1, single(0))]))[-1][0] == "message"


def test_rows_are_packed_by_bucket_in_their_order() -> None:
    """Few large cells, whatever the batches of Spark are."""
    numbers = [value % 7 for value in range(100)]
    rows = pa.record_batch({"bucket": pa.array(numbers, pa.int32()), "c0": list(range(100))})
    batches = [rows.slice(first, 9) for first in range(0, 100, 9)]
    (packed,) = state.pack_rows(["number"], iter(batches), partition=2)
    assert packed["bucket"].to_pylist() == list(range(7))
    assert set(packed["place"].to_pylist()) == {2 << 40}
    found: Any = packed
    for bucket, packed_cell in zip(found["bucket"].to_pylist(), found["cell"].to_pylist(), strict=True):
        of_bucket = [number for number in range(100) if number % 7 == bucket]
        assert state.from_ipc(packed_cell)["number"].to_pylist() == of_bucket


@pytest.mark.parametrize("key", [b"", "text", b"x" * 65, 7])
def test_a_bucket_key_is_bytes(key: Any) -> None:
    """U4."""
    with pytest.raises(ValueError, match="bucket_key: expected 1 to 64 bytes or None"):
        BucketCount(count=1, key=key)


def test_what_is_fixed_says_nothing_of_the_bucket_key() -> None:
    """A checkpoint shows that it is another, not which it is."""
    one, other = BucketCount(count=1, key=b"one"), BucketCount(count=1, key=b"other")
    assert one.fixed != other.fixed != BucketCount(count=1, key=None).fixed
    assert "one" not in str(one.fixed)


def test_what_must_not_change_is_what_the_state_was_made_by() -> None:
    """The spread, and what a reassembler's checkpoint goes on with; the rest may change from run to run."""
    assert BucketCount(count=4, key=None).fixed.keys() == {"buckets", "bucket_key"}
    assert StreamLimits(**OPTIONS).fixed == {
        "in_order": True,
        "session_keys": "none",
        "max_message_bytes": 1,
        "max_fragments_per_message": None,
        "max_pending_bytes": 1,
    }


@pytest.mark.parametrize(("largest", "room"), [(1, 1 << 30), (256 << 20, 1 << 30), (1 << 30, 1 << 32)])
def test_there_is_room_for_any_message_unless_it_is_said(largest: int, room: int) -> None:
    """U3."""
    changed = {**OPTIONS, "max_message_bytes": largest, "max_pending_bytes": None}
    assert StreamLimits(**changed).fixed["max_pending_bytes"] == room


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"in_order": 1}, "in_order: expected True or False"),
        ({"acknowledgements": None}, "acknowledgements: expected True or False"),
        ({"max_message_bytes": 2**30 + 1}, "max_message_bytes: expected a whole number from 1"),
        ({"max_pending_bytes": 2**32 + 1}, "max_pending_bytes: expected a whole number from 0"),
        ({"max_fragments_per_message": 0}, "max_fragments_per_message: expected a whole number from 1"),
        ({"max_pending_age": 60}, "max_pending_age: .* of at least 0:00:01 and at most 36525 days; got 60"),
        ({"max_pending_age": timedelta(0)}, "max_pending_age: expected a datetime.timedelta of at least 0:00:01"),
        ({"max_pending_age": timedelta(36525, 1)}, "max_pending_age: .* at most 36525 days; got .*days=36525"),
        ({"max_pending_age": timedelta.max}, "max_pending_age: .* at most 36525 days; got .*days=999999999"),
    ],
)
def test_an_option_that_cannot_be_is_refused_at_once(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamLimits(**{**OPTIONS, **changed})
