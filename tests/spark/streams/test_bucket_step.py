"""Steps of a bucket return the rows of the batch functions, for any batches of fragments and any reload of the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._arguments import EPOCH
from ssbroker.exceptions import NullError, SchemaError
from ssbroker.schemas import ACKNOWLEDGEMENTS, MESSAGES, PENDING, REJECTED
from ssbroker.spark.streams import stream_rows
from ssbroker.spark.streams.bucket_state import state_from_bytes
from ssbroker.spark.streams.options import AGE_MAX
from tests.oracle.reassembly import Oracle
from tests.oracle.traffic import Fragment, Limits, Row
from tests.property.traffic_replay import charge_of
from tests.rules.fragments import A, B, first_of_two, parts, second_of_two, single
from tests.spark.streams.steps import (
    EXTRA_COLUMNS,
    SECOND,
    START,
    BucketRunner,
    InlineValue,
    assembly,
    batch_of,
    select,
    task,
)
from tests.worlds.fragment_tables import session_keys_of
from tests.worlds.fragments import Traffic
from tests.worlds.seeded import seeded_traffic
from tests.worlds.strategies import traffics

WORLDS = 400
_struct: Any = pa.struct  # its stubs know too little of it


@dataclass
class ExpiryModel:
    """An independent model of pending times: since when each message is pending, and when it last grew."""

    oracle: Oracle
    age_us: int | None
    waiting: dict[tuple[bytes, bool, int], tuple[int, int, int]]

    def step(self, now_us: int) -> list[Row]:
        """Returns the messages that expire now; the others remain."""
        before, self.waiting, expired = self.waiting, {}, []
        for row in self.oracle.pending():
            key = (row["conversation_id"], row["is_initiator"], row["message_sequence_number"])
            since, grown, size = before.get(key, (now_us, now_us, row["received_fragments"]))
            grown = now_us if size != row["received_fragments"] else min(grown, now_us)
            if self.age_us is not None and grown + self.age_us <= now_us:
                self.oracle.forget(key[0], is_initiator=key[1], sequence=key[2])
                expired.append({**row, "waiting_since": timestamp(since)})
            else:
                self.waiting[key] = (since, grown, row["received_fragments"])
        return expired

    @property
    def due_us(self) -> int | None:
        if self.age_us is None or not self.waiting:
            return None
        return min(grown for _, grown, _ in self.waiting.values()) + self.age_us


def timestamp(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def keys_for(traffic: Traffic) -> Any:
    keys = session_keys_of(traffic)
    return (
        InlineValue(str(sorted(keys.items())), {each.bytes: key for each, key in keys.items()})
        if isinstance(keys, dict)
        else keys
    )


def check(traffic: Traffic, *, age_us: int | None, moves: list[int]) -> None:
    """Compares every row of every step, pending times and due times; the clock follows the moves."""
    limits = replace(traffic.limits, max_pending_messages=None, max_sequence_distance=None)
    traffic = replace(traffic, limits=limits).charged(charge_of)
    extra_names = ("note", "priority") if traffic.has_extra else ()
    runner = BucketRunner(
        task(assembly(limits, in_order=traffic.in_order, session_keys=keys_for(traffic), max_pending_age_us=age_us))
    )
    pending_bytes = 1 << 30 if limits.max_pending_bytes is None else limits.max_pending_bytes
    oracle = Oracle(replace(limits, max_pending_bytes=pending_bytes), in_order=traffic.in_order)
    model, now_us = ExpiryModel(oracle, age_us, {}), START
    for place, (_, _, fragments) in enumerate(traffic.pushes()):
        now_us += moves[place % len(moves)]
        batches = []
        if fragments:
            batches.append(batch_of(fragments, has_extra=traffic.has_extra, key_column=traffic.keys == "column"))
        output = runner.run(*batches, now_us=now_us)
        expected = oracle.push(fragments)
        assert select(output.get(stream_rows.MESSAGE, []), MESSAGES, *extra_names) == expected.messages
        assert select(output.get(stream_rows.REJECTION, []), REJECTED) == expected.rejected
        assert select(output.get(stream_rows.ACKNOWLEDGEMENT, []), ACKNOWLEDGEMENTS) == expected.acknowledgements
        assert select(output.get(stream_rows.EXPIRY, []), stream_rows.EXPIRED) == model.step(now_us)
        waiting = runner.waiting()
        assert select(waiting, PENDING) == oracle.pending()
        assert [row["since"] for row in waiting] == [timestamp(since) for since, _, _ in model.waiting.values()]
        assert runner.last is not None
        assert runner.last.due_us == model.due_us


@pytest.mark.parametrize("number", range(4))
def test_every_row_matches_the_oracle(number: int) -> None:
    """Contradictions, damage, limits, session keys and extra columns; each step reloads the stored state."""
    for seed in range(number * WORLDS // 4, (number + 1) * WORLDS // 4):
        random = Random(seed)
        moves = [random.choice((0, 1, 5, 30, -20)) * SECOND for _ in range(7)]
        check(seeded_traffic(seed), age_us=random.choice((None, 10 * SECOND)), moves=moves)


@given(
    traffic=traffics(),
    age=st.one_of(st.none(), st.integers(1, 100)),
    moves=st.lists(st.integers(-100, 100), min_size=1, max_size=8),
)
def test_every_row_matches_the_oracle_with_hypothesis(traffic: Traffic, age: int | None, moves: list[int]) -> None:
    """The same with Hypothesis: the clock moves forward and back."""
    check(traffic, age_us=age, moves=moves)


def test_a_thousand_conversations_in_one_bucket() -> None:
    """Messages are in order for each direction, for any split into batches."""
    random = Random(3)
    fragments = [
        part
        for sequence in range(3)
        for number in range(1000)
        for part in parts(b"%d of %d" % (sequence, number), sequence, size=3, conversation=UUID(int=number))
    ]
    random.shuffle(fragments)
    runner, found = BucketRunner(task(assembly(acknowledgements=False))), []
    for first in range(0, len(fragments), 1500):
        found += runner.run(batch_of(fragments[first : first + 1500])).get(stream_rows.MESSAGE, [])
    bodies: dict[bytes, list[bytes]] = {}
    for row in found:
        bodies.setdefault(row["conversation_id"], []).append(row["message_body"])
    assert bodies == {
        UUID(int=number).bytes: [b"%d of %d" % (sequence, number) for sequence in range(3)] for number in range(1000)
    }
    assert runner.waiting() == []


@pytest.mark.rule("P12", "P18")
def test_duplicates_are_detected_after_any_time() -> None:
    """Nothing of the direction is pending, but its next number is still known."""
    runner = BucketRunner(task(assembly()))
    assert runner.run(batch_of([single(0)]))[stream_rows.MESSAGE]
    output = runner.run(batch_of([single(0)]), now_us=START + 10**9 * SECOND)
    assert [row["reason"] for row in output[stream_rows.REJECTION]] == ["duplicate"]
    assert stream_rows.MESSAGE not in output


def test_expired_messages_may_be_sent_again() -> None:
    """An incomplete message that does not grow is emitted with what was missing, and its fragments are not duplicates afterwards."""
    runner = BucketRunner(task(assembly(max_pending_age_us=60 * SECOND)))
    runner.run(batch_of([first_of_two(0)]), now_us=START)
    assert runner.last is not None
    assert runner.last.due_us == START + 60 * SECOND
    assert runner.run(now_us=START + 59 * SECOND) == {}
    output = runner.run(now_us=START + 60 * SECOND)
    assert select(output[stream_rows.EXPIRY], stream_rows.EXPIRED) == [
        {
            "conversation_id": A.bytes,
            "is_initiator": True,
            "message_sequence_number": 0,
            "fragment_count": 2,
            "received_fragments": 1,
            "received_bytes": 0,
            "first_missing_fragment": 1,
            "waits_for_sequence_number": None,
            "waiting_since": timestamp(START),
        }
    ]
    assert runner.state is None
    whole = runner.run(batch_of([first_of_two(0), second_of_two(first_of_two(0))]), now_us=START + 61 * SECOND)
    assert len(whole[stream_rows.MESSAGE]) == 1


def test_the_end_of_the_longest_wait_is_a_valid_date() -> None:
    """It is a valid date even years from now."""
    runner = BucketRunner(task(assembly(max_pending_age_us=AGE_MAX // timedelta(microseconds=1))))
    runner.run(batch_of([first_of_two(0)]), now_us=START + 1000 * 365 * 24 * 3600 * SECOND)
    (waiting,) = runner.waiting()
    assert waiting["until"] - waiting["since"] == AGE_MAX


def test_growing_messages_do_not_expire() -> None:
    fragments = parts(b"abcdefgh", 0, size=2)
    runner = BucketRunner(task(assembly(max_pending_age_us=60 * SECOND)))
    for place, fragment in enumerate(fragments):
        output = runner.run(batch_of([fragment]), now_us=START + place * 50 * SECOND)
    assert [row["message_body"] for row in output[stream_rows.MESSAGE]] == [b"abcdefgh"]


def test_duplicates_are_not_growth() -> None:
    """Repeating a fragment does not keep a message alive."""
    runner = BucketRunner(task(assembly(max_pending_age_us=60 * SECOND)))
    runner.run(batch_of([first_of_two(0)]), now_us=START)
    assert stream_rows.EXPIRY not in runner.run(batch_of([first_of_two(0)]), now_us=START + 40 * SECOND)
    assert stream_rows.EXPIRY in runner.run(batch_of([first_of_two(0)]), now_us=START + 60 * SECOND)


def test_a_clock_set_back_does_not_delay_expiry_forever() -> None:
    """Growth in the future counts as growth now."""
    runner = BucketRunner(task(assembly(max_pending_age_us=60 * SECOND)))
    runner.run(batch_of([first_of_two(0)]), now_us=START + 10**6 * SECOND)
    runner.run(batch_of([single(0, conversation=B)]), now_us=START)
    assert stream_rows.EXPIRY in runner.run(now_us=START + 60 * SECOND)


def test_a_step_without_changes_keeps_the_same_bytes() -> None:
    """The state is not stored again without a change."""
    runner = BucketRunner(task(assembly(max_pending_age_us=60 * SECOND)))
    runner.run(batch_of([first_of_two(0)]))
    kept = runner.state
    runner.run(now_us=START + SECOND)
    assert runner.state is kept


def test_invalid_values_are_errors_and_store_nothing() -> None:
    runner = BucketRunner(task(assembly()))
    runner.run(batch_of([first_of_two(0)]))
    kept = runner.state
    batch = batch_of([single(1)])
    broken = batch.set_column(0, "conversation_id", pa.nulls(1, pa.binary(16)))
    with pytest.raises(NullError, match="conversation_id"):
        runner.run(broken)
    assert runner.state == kept


def test_other_extra_columns_are_refused() -> None:
    """Pending messages have the columns of before."""
    runner = BucketRunner(task(assembly()))
    runner.run(batch_of([with_extra(first_of_two(0))], has_extra=True))
    with pytest.raises(
        SchemaError, match="created with the extra columns note string, priority int32, but the query now has none"
    ):
        runner.run(batch_of([single(1)]))


def test_renamed_extra_columns_are_refused() -> None:
    """A query that was restarted with its columns in another order."""
    runner = BucketRunner(task(assembly(), extra_names=("note", "priority")))
    runner.run(batch_of([with_extra(first_of_two(0))], has_extra=True))
    runner.task = task(assembly(), extra_names=("title", "priority"))
    for batches in ([batch_of([with_extra(single(1))], has_extra=True)], []):
        with pytest.raises(
            SchemaError, match="columns note string, priority int32, but the query now has title, priority;"
        ):
            runner.run(*batches)


def test_checkpoints_without_names_can_be_resumed() -> None:
    """Checkpoints of earlier versions have no names."""
    runner = BucketRunner(task(assembly()))
    runner.run(batch_of([with_extra(first_of_two(0))], has_extra=True))
    assert runner.state is not None
    kept = state_from_bytes(runner.state)
    assert kept.extra is not None
    runner.state = replace(kept, extra=pa.schema([field.remove_metadata() for field in kept.extra])).to_bytes()
    output = runner.run(batch_of([with_extra(single(0, conversation=B))], has_extra=True))
    assert [row["further_0"] for row in output[stream_rows.MESSAGE]] == ["a"]


@pytest.mark.parametrize("began_large", [False, True])
def test_types_that_depend_on_the_session_are_equivalent(*, began_large: bool) -> None:
    """The time zone of timestamps and the size of strings depend on the session."""
    batch = batch_of([with_extra(first_of_two(0, body=b"a body"))], has_extra=True)
    rest = batch_of([with_extra(second_of_two(first_of_two(0, body=b"a body")))], has_extra=True)
    nested: Any = _struct({"at": pa.list_(pa.timestamp("us", "UTC")), "by": pa.map_(pa.string(), pa.binary())})
    large: Any = _struct(
        {"at": pa.list_(pa.timestamp("us", "Asia/Tokyo")), "by": pa.map_(pa.large_string(), pa.large_binary())}
    )
    value = [{"at": [EPOCH], "by": [("key", b"value")]}]

    def with_nested(rows: pa.RecordBatch, *, is_large: bool) -> pa.RecordBatch:
        body = rows.column("message_body").cast(pa.large_binary() if is_large else pa.binary())
        note = rows.column("further_0").cast(pa.large_string() if is_large else pa.string())
        rows = rows.append_column("further_2", pa.array(value, large if is_large else nested))
        rows = rows.set_column(rows.schema.get_field_index("further_0"), "further_0", note)
        return rows.set_column(rows.schema.get_field_index("message_body"), "message_body", body)

    runner = BucketRunner(task(assembly(), extra_names=(*EXTRA_COLUMNS, "nested")))
    runner.run(with_nested(batch, is_large=began_large))
    output = runner.run(with_nested(rest, is_large=not began_large))
    assert [(row["message_body"], row["further_0"], row["further_2"]) for row in output[stream_rows.MESSAGE]] == [
        (b"a body", "a", value[0])
    ]


def test_metrics_are_emitted_if_enabled() -> None:
    runner = BucketRunner(task(assembly(), has_metrics=True))
    output = runner.run(batch_of([first_of_two(0), single(0, conversation=B)]))
    assert runner.state is not None
    assert [row["state_bytes"] for row in output[stream_rows.METRICS]] == [len(runner.state)]
    assert [row["incomplete_messages"] for row in output[stream_rows.METRICS]] == [1]


def test_the_state_of_an_idle_direction_is_small() -> None:
    """Some tens of bytes each, however many messages there were."""
    runner = BucketRunner(task(assembly(acknowledgements=False), fixed={}))
    fragments: list[Fragment] = [single(0, conversation=UUID(int=number)) for number in range(10_000)]
    runner.run(batch_of(fragments))
    assert runner.state is not None
    assert len(runner.state) / 10_000 < 40


def with_extra(fragment: Fragment) -> Fragment:
    return replace(fragment, extra={"note": "a", "priority": 1})


def test_limits_apply_to_one_bucket() -> None:
    """Fragments beyond the limit are rejected and may be sent again."""
    runner = BucketRunner(task(assembly(Limits(max_pending_bytes=1000))))
    output = runner.run(batch_of([first_of_two(0, body=bytes(600))]))
    assert [row["reason"] for row in output[stream_rows.REJECTION]] == ["limit_exceeded"]
    assert runner.state is None
