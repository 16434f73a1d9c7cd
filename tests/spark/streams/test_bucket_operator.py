"""The stateful operator: state parts, one timer, cells in and out; run by Spark's own tester, without a session."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from pyspark.sql import Row

from ssbroker._arrow import from_ipc, to_ipc
from ssbroker.exceptions import MalformedDataError
from ssbroker.spark.streams import bucket_state, packed_rows
from ssbroker.spark.streams.bucket_operator import processor
from ssbroker.spark.streams.bucket_state import state_from_bytes
from ssbroker.spark.streams.options import BucketCount, StreamLimits
from tests.oracle.traffic import Fragment
from tests.rules.fragments import A, B, first_of_two, parts, second_of_two, single
from tests.spark.streams.steps import SECOND, START, assembly, batch_of, task

TwsTester: Any = pytest.importorskip(
    "pyspark.sql.streaming.tws_tester", reason="needs PySpark 4.1 or newer, which has TwsTester"
).TwsTester
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
    return Row(bucket=3, place=place, cell=to_ipc(batch_of(fragments)))


def new_tester(**changed: Any) -> Any:
    untyped: Any = TwsTester
    made = untyped(processor(task(assembly(**changed))), timeMode="processingTime")
    made.setProcessingTime(START // MS)
    return made


def output_rows(rows: list[Row]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(row.kind, from_ipc(row.cell).to_pylist()) for row in rows]


def stored_state(of: Any) -> bytes | None:
    """Returns the state of bucket 3, after checking its part numbers."""
    found = of.peekMapState(bucket_state.STATE_VARIABLE, 3)
    rows = [(3, number, *part) for (number,), part in found.items()]
    states = [state for _, state in bucket_state.join_state_parts(rows)]
    assert [number for _, number, _, _ in sorted(rows)] == [*range(rows[0][3] if rows else 0)]
    return states[0] if states else None


def timers(of: Any) -> list[int]:
    return [int(timer) for timer in of.handle._timers.listTimers(3)]


def test_cells_are_read_in_the_order_of_their_places() -> None:
    """A repeated task may get them in another order and must do the same."""
    bucket = new_tester(acknowledgements=False)
    early, late = parts(b"abcd", 0, size=2)
    contradiction = parts(b"abXX", 0, size=2)[1]
    rows = output_rows(bucket.test(3, [cell(9, contradiction), cell(1, early), cell(2, late)]))
    assert [kind for kind, _ in rows] == ["rejected", "message"]
    assert rows[1][1][0]["message_body"] == b"abcd"
    state = stored_state(bucket)
    assert state is not None
    assert state_from_bytes(state).waits is None


def test_one_timer_at_the_due_time() -> None:
    bucket = new_tester(acknowledgements=False, max_pending_age_us=60 * SECOND)
    assert bucket.test(3, [cell(1, first_of_two(0))]) == []
    assert timers(bucket) == [(START + 60 * SECOND) // MS]
    assert output_rows(bucket.setProcessingTime((START + 30 * SECOND) // MS)) == []
    assert bucket.test(3, [cell(1, first_of_two(0, conversation=B))]) == []
    assert timers(bucket) == [(START + 60 * SECOND) // MS]
    first = output_rows(bucket.setProcessingTime((START + 60 * SECOND) // MS))
    assert [(kind, [row["conversation_id"] for row in rows]) for kind, rows in first] == [("expired", [A.bytes])]
    assert timers(bucket) == [(START + 90 * SECOND) // MS]
    second = output_rows(bucket.setProcessingTime((START + 90 * SECOND) // MS))
    assert [(kind, [row["conversation_id"] for row in rows]) for kind, rows in second] == [("expired", [B.bytes])]
    assert timers(bucket) == []
    assert stored_state(bucket) is None


def test_a_large_state_is_stored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state grows and shrinks, and no part remains behind."""
    monkeypatch.setattr(bucket_state, "PART_CHARACTERS", 1000)
    bucket = new_tester(acknowledgements=False, max_message_bytes=10_000)
    body = bytes(value % 251 for value in range(9000))
    pieces = parts(body, 0, size=1000)
    counts = []
    for place, piece in enumerate(pieces[1:]):
        assert bucket.test(3, [cell(place, piece)]) == []
        assert stored_state(bucket) is not None
        counts.append(len(bucket.peekMapState(bucket_state.STATE_VARIABLE, 3)))
    assert counts == sorted(counts)
    assert counts[-1] > len(pieces)
    ((kind, rows),) = output_rows(bucket.test(3, [cell(20, pieces[0])]))
    assert (kind, rows[0]["message_body"]) == ("message", body)
    assert len(bucket.peekMapState(bucket_state.STATE_VARIABLE, 3)) == 1
    assert stored_state(bucket) is not None


def test_parts_are_joined_in_any_order() -> None:
    one, other = bucket_state.text_from_bytes(b"a state"), bucket_state.text_from_bytes(b"another")
    rows = [(1, 1, one[3:], 2), (2, 0, other, 1), (1, 0, one[:3], 2)]
    assert list(bucket_state.join_state_parts(rows)) == [(2, b"another"), (1, b"a state")]
    with pytest.raises(MalformedDataError, match="parts of these buckets are missing: 1"):
        list(bucket_state.join_state_parts(rows[:2]))


def test_a_timer_for_a_completed_message_does_nothing() -> None:
    bucket = new_tester(acknowledgements=False, max_pending_age_us=60 * SECOND)
    bucket.test(3, [cell(1, first_of_two(0))])
    assert [kind for kind, _ in output_rows(bucket.test(3, [cell(1, second_of_two(first_of_two(0)))]))] == ["message"]
    assert output_rows(bucket.setProcessingTime((START + 60 * SECOND) // MS)) == []


@pytest.mark.parametrize("is_more_pending", [False, True])
def test_a_bucket_counts_once_if_rows_and_a_timer_meet(*, is_more_pending: bool) -> None:
    """Spark passes the rows of a micro-batch first, and then the timers that have expired."""
    made = task(assembly(acknowledgements=False, max_pending_age_us=60 * SECOND), has_metrics=True)
    untyped: Any = TwsTester
    bucket = untyped(processor(made), timeMode="processingTime")
    bucket.setProcessingTime(START // MS)
    bucket.test(3, [cell(1, first_of_two(0))])
    bucket._currentProcessingTimeMs = (START + 60 * SECOND) // MS
    arrived = first_of_two(0, conversation=B) if is_more_pending else single(0, conversation=B)
    kinds = [kind for kind, _ in output_rows(bucket.test(3, [cell(1, arrived)]))]
    kinds += [kind for kind, _ in output_rows(bucket._handleExpiredTimers())]
    assert sorted(kinds) == sorted(["expired", "figures"] + ["message"] * (not is_more_pending))
    assert timers(bucket) == [(START + 120 * SECOND) // MS] * is_more_pending


def test_the_processor_pickles_with_its_task() -> None:
    made = pickle.loads(cloudpickle.dumps(processor(task(assembly()))))
    untyped: Any = TwsTester
    assert output_rows(untyped(made, timeMode="processingTime").test(3, [cell(1, single(0))]))[-1][0] == "message"


def test_rows_are_packed_by_bucket_in_order() -> None:
    """Few large cells, whatever Spark's batches are."""
    numbers = [value % 7 for value in range(100)]
    rows = pa.record_batch({"bucket": pa.array(numbers, pa.int32()), "c0": list(range(100))})
    batches = [rows.slice(first, 9) for first in range(0, 100, 9)]
    (packed,) = packed_rows.pack_rows(["number"], iter(batches), partition=2)
    assert packed["bucket"].to_pylist() == list(range(7))
    assert set(packed["place"].to_pylist()) == {2 << 40}
    found: Any = packed
    for bucket, packed_cell in zip(found["bucket"].to_pylist(), found["cell"].to_pylist(), strict=True):
        of_bucket = [number for number in range(100) if number % 7 == bucket]
        assert from_ipc(packed_cell)["number"].to_pylist() == of_bucket


@pytest.mark.parametrize("key", [b"", "text", b"x" * 65, 7])
def test_invalid_bucket_keys_are_refused(key: Any) -> None:
    with pytest.raises(ValueError, match="bucket_key: expected 1 to 64 bytes or None"):
        BucketCount(count=1, key=key)


def test_fixed_options_do_not_reveal_the_bucket_key() -> None:
    """A checkpoint shows that the key differs, but not the key itself."""
    one, other = BucketCount(count=1, key=b"one"), BucketCount(count=1, key=b"other")
    assert one.fixed != other.fixed != BucketCount(count=1, key=None).fixed
    assert "one" not in str(one.fixed)


def test_fixed_options() -> None:
    """The distribution over buckets, and the limits in a reassembler's checkpoint; other options may change between runs."""
    assert BucketCount(count=4, key=None).fixed.keys() == {"buckets", "bucket_key"}
    assert StreamLimits(**OPTIONS).fixed == {
        "in_order": True,
        "session_keys": "none",
        "max_message_bytes": 1,
        "max_fragments_per_message": None,
        "max_pending_bytes": 1,
    }


@pytest.mark.parametrize(("largest", "limit"), [(1, 1 << 30), (256 << 20, 1 << 30), (1 << 30, 1 << 32)])
def test_the_default_limit_holds_four_messages(largest: int, limit: int) -> None:
    changed = {**OPTIONS, "max_message_bytes": largest, "max_pending_bytes": None}
    assert StreamLimits(**changed).fixed["max_pending_bytes"] == limit


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"in_order": 1}, "in_order: expected True or False"),
        ({"acknowledgements": None}, "acknowledgements: expected True or False"),
        ({"max_message_bytes": 2**30 + 1}, "max_message_bytes: expected an integer from 1"),
        ({"max_pending_bytes": 2**32 + 1}, "max_pending_bytes: expected an integer from 0"),
        ({"max_fragments_per_message": 0}, "max_fragments_per_message: expected an integer from 1"),
        ({"max_pending_age": 60}, "max_pending_age: .* of at least 0:00:01 and at most 36525 days, got 60"),
        ({"max_pending_age": timedelta(0)}, "max_pending_age: expected a datetime.timedelta of at least 0:00:01"),
        ({"max_pending_age": timedelta(36525, 1)}, "max_pending_age: .* at most 36525 days, got .*days=36525"),
        ({"max_pending_age": timedelta.max}, "max_pending_age: .* at most 36525 days, got .*days=999999999"),
    ],
)
def test_invalid_options_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamLimits(**{**OPTIONS, **changed})
