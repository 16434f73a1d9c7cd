"""A bucket of a stream gives the rows of the batch functions, however it is cut and wherever it is begun anew (P11 to P16, P18, P21)."""

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
from ssbroker.spark.streams import row_kinds
from ssbroker.spark.streams.options import AGE_MAX
from ssbroker.spark.streams.state import state_from_bytes
from tests.oracle.reassembly import Oracle
from tests.oracle.traffic import Fragment, Limits, Row
from tests.property.reassembling import charge_of
from tests.rules.fragments import A, B, first_of_two, parts, second_of_two, single
from tests.spark.stream_steps import FURTHER, SECOND, START, Given, Player, assembly, batch_of, only, task
from tests.worlds.fragment_tables import session_keys_of
from tests.worlds.fragments import Traffic
from tests.worlds.seeded import seeded_traffic
from tests.worlds.strategies import traffics

WORLDS = 400
_struct: Any = pa.struct  # its stubs know too little of it


@dataclass
class Book:
    """U7, read literally: since when each message waits, and when it last grew."""

    oracle: Oracle
    age_us: int | None
    waits: dict[tuple[bytes, bool, int], tuple[int, int, int]]

    def turn(self, now_us: int) -> list[Row]:
        """What is given up now; the rest is in the book."""
        before, self.waits, expired = self.waits, {}, []
        for row in self.oracle.pending():
            key = (row["conversation_id"], row["is_initiator"], row["message_sequence_number"])
            since, grown, size = before.get(key, (now_us, now_us, row["received_fragments"]))
            grown = now_us if size != row["received_fragments"] else min(grown, now_us)
            if self.age_us is not None and grown + self.age_us <= now_us:
                self.oracle.forget(key[0], is_initiator=key[1], sequence=key[2])
                expired.append({**row, "waiting_since": moment_of(since)})
            else:
                self.waits[key] = (since, grown, row["received_fragments"])
        return expired

    @property
    def due_us(self) -> int | None:
        if self.age_us is None or not self.waits:
            return None
        return min(grown for _, grown, _ in self.waits.values()) + self.age_us


def moment_of(us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def keys_for(traffic: Traffic) -> Any:
    keys = session_keys_of(traffic)
    return (
        Given(str(sorted(keys.items())), {each.bytes: key for each, key in keys.items()})
        if isinstance(keys, dict)
        else keys
    )


def check(traffic: Traffic, *, age_us: int | None, moves: list[int]) -> None:
    """Every row of every step, what waits since when, and when the next step is due; the clock goes as the moves say."""
    limits = replace(traffic.limits, max_pending_messages=None, max_sequence_distance=None)
    traffic = replace(traffic, limits=limits).charged(charge_of)
    further = ("note", "priority") if traffic.has_extra else ()
    player = Player(
        task(assembly(limits, in_order=traffic.in_order, session_keys=keys_for(traffic), max_pending_age_us=age_us))
    )
    pending_bytes = 1 << 30 if limits.max_pending_bytes is None else limits.max_pending_bytes
    oracle = Oracle(replace(limits, max_pending_bytes=pending_bytes), in_order=traffic.in_order)
    book, now_us = Book(oracle, age_us, {}), START
    for place, (_, _, fragments) in enumerate(traffic.pushes()):
        now_us += moves[place % len(moves)]
        batches = []
        if fragments:
            batches.append(batch_of(fragments, has_extra=traffic.has_extra, key_column=traffic.keys == "column"))
        told = player.play(*batches, now_us=now_us)
        expected = oracle.push(fragments)
        assert only(told.get(row_kinds.MESSAGE, []), MESSAGES, *further) == expected.messages
        assert only(told.get(row_kinds.REJECTION, []), REJECTED) == expected.rejected
        assert only(told.get(row_kinds.ACKNOWLEDGEMENT, []), ACKNOWLEDGEMENTS) == expected.acknowledgements
        assert only(told.get(row_kinds.EXPIRY, []), row_kinds.EXPIRED) == book.turn(now_us)
        waits = player.waits()
        assert only(waits, PENDING) == oracle.pending()
        assert [row["since"] for row in waits] == [moment_of(since) for since, _, _ in book.waits.values()]
        assert player.last is not None
        assert player.last.due_us == book.due_us


@pytest.mark.parametrize("number", range(4))
def test_every_row_is_the_oracles_in_any_cut(number: int) -> None:
    """Contradictions, damage, limits, session keys, further columns; each step goes on from what the one before it kept."""
    for seed in range(number * WORLDS // 4, (number + 1) * WORLDS // 4):
        random = Random(seed)
        moves = [random.choice((0, 1, 5, 30, -20)) * SECOND for _ in range(7)]
        check(seeded_traffic(seed), age_us=random.choice((None, 10 * SECOND)), moves=moves)


@given(
    traffic=traffics(),
    age=st.one_of(st.none(), st.integers(1, 100)),
    moves=st.lists(st.integers(-100, 100), min_size=1, max_size=8),
)
def test_every_row_is_the_oracles_and_what_fails_shrinks(traffic: Traffic, age: int | None, moves: list[int]) -> None:
    """The same, from Hypothesis: the clock goes forth and back."""
    check(traffic, age_us=age, moves=moves)


def test_a_thousand_conversations_in_one_bucket() -> None:
    """Messages in order for each direction, whatever is cut where."""
    random = Random(3)
    fragments = [
        part
        for sequence in range(3)
        for number in range(1000)
        for part in parts(b"%d of %d" % (sequence, number), sequence, size=3, conversation=UUID(int=number))
    ]
    random.shuffle(fragments)
    player, found = Player(task(assembly(acknowledgements=False))), []
    for first in range(0, len(fragments), 1500):
        found += player.play(batch_of(fragments[first : first + 1500])).get(row_kinds.MESSAGE, [])
    bodies: dict[bytes, list[bytes]] = {}
    for row in found:
        bodies.setdefault(row["conversation_id"], []).append(row["message_body"])
    assert bodies == {
        UUID(int=number).bytes: [b"%d of %d" % (sequence, number) for sequence in range(3)] for number in range(1000)
    }
    assert player.waits() == []


@pytest.mark.rule("P12", "P18")
def test_duplicates_are_known_after_any_time() -> None:
    """Nothing of a direction is pending, and its next number is still known."""
    player = Player(task(assembly()))
    assert player.play(batch_of([single(0)]))[row_kinds.MESSAGE]
    told = player.play(batch_of([single(0)]), now_us=START + 10**9 * SECOND)
    assert [row["reason"] for row in told[row_kinds.REJECTION]] == ["duplicate"]
    assert row_kinds.MESSAGE not in told


def test_what_is_given_up_may_come_again() -> None:
    """An incomplete message that does not grow is told with what was missing, and its fragments are not duplicates."""
    player = Player(task(assembly(max_pending_age_us=60 * SECOND)))
    player.play(batch_of([first_of_two(0)]), now_us=START)
    assert player.last is not None
    assert player.last.due_us == START + 60 * SECOND
    assert player.play(now_us=START + 59 * SECOND) == {}
    told = player.play(now_us=START + 60 * SECOND)
    assert only(told[row_kinds.EXPIRY], row_kinds.EXPIRED) == [
        {
            "conversation_id": A.bytes,
            "is_initiator": True,
            "message_sequence_number": 0,
            "fragment_count": 2,
            "received_fragments": 1,
            "received_bytes": 0,
            "first_missing_fragment": 1,
            "waits_for_sequence_number": None,
            "waiting_since": moment_of(START),
        }
    ]
    assert player.state is None
    whole = player.play(batch_of([first_of_two(0), second_of_two(first_of_two(0))]), now_us=START + 61 * SECOND)
    assert len(whole[row_kinds.MESSAGE]) == 1


def test_until_when_the_longest_wait_is_can_be_told() -> None:
    """It is a date, years from now too."""
    player = Player(task(assembly(max_pending_age_us=AGE_MAX // timedelta(microseconds=1))))
    player.play(batch_of([first_of_two(0)]), now_us=START + 1000 * 365 * 24 * 3600 * SECOND)
    (waits,) = player.waits()
    assert waits["until"] - waits["since"] == AGE_MAX


def test_what_grows_is_not_given_up() -> None:
    """U7."""
    fragments = parts(b"abcdefgh", 0, size=2)
    player = Player(task(assembly(max_pending_age_us=60 * SECOND)))
    for place, fragment in enumerate(fragments):
        told = player.play(batch_of([fragment]), now_us=START + place * 50 * SECOND)
    assert [row["message_body"] for row in told[row_kinds.MESSAGE]] == [b"abcdefgh"]


def test_a_duplicate_is_no_growth() -> None:
    """Who sends the same fragment for ever keeps nothing alive."""
    player = Player(task(assembly(max_pending_age_us=60 * SECOND)))
    player.play(batch_of([first_of_two(0)]), now_us=START)
    assert row_kinds.EXPIRY not in player.play(batch_of([first_of_two(0)]), now_us=START + 40 * SECOND)
    assert row_kinds.EXPIRY in player.play(batch_of([first_of_two(0)]), now_us=START + 60 * SECOND)


def test_a_clock_that_is_set_back_delays_nothing_for_ever() -> None:
    """What grew in the future counts as grown now."""
    player = Player(task(assembly(max_pending_age_us=60 * SECOND)))
    player.play(batch_of([first_of_two(0)]), now_us=START + 10**6 * SECOND)
    player.play(batch_of([single(0, conversation=B)]), now_us=START)
    assert row_kinds.EXPIRY in player.play(now_us=START + 60 * SECOND)


def test_a_step_in_which_nothing_happens_keeps_the_same_bytes() -> None:
    """The state is not written anew for nothing."""
    player = Player(task(assembly(max_pending_age_us=60 * SECOND)))
    player.play(batch_of([first_of_two(0)]))
    kept = player.state
    player.play(now_us=START + SECOND)
    assert player.state is kept


def test_a_value_that_is_none_is_an_error_and_nothing_is_kept() -> None:
    """M1."""
    player = Player(task(assembly()))
    player.play(batch_of([first_of_two(0)]))
    kept = player.state
    batch = batch_of([single(1)])
    broken = batch.set_column(0, "conversation_id", pa.nulls(1, pa.binary(16)))
    with pytest.raises(NullError, match="conversation_id"):
        player.play(broken)
    assert player.state == kept


def test_other_further_columns_than_before_are_refused() -> None:
    """What waits has those of before."""
    player = Player(task(assembly()))
    player.play(batch_of([carrying(first_of_two(0))], has_extra=True))
    with pytest.raises(
        SchemaError, match="created with the extra columns note string, priority int32, but the query now has none"
    ):
        player.play(batch_of([single(1)]))


def test_further_columns_of_the_same_type_are_not_taken_for_each_other() -> None:
    """A query that was started again with its columns in another order."""
    player = Player(task(assembly(), extra_names=("note", "priority")))
    player.play(batch_of([carrying(first_of_two(0))], has_extra=True))
    player.task = task(assembly(), extra_names=("title", "priority"))
    for batches in ([batch_of([carrying(single(1))], has_extra=True)], []):
        with pytest.raises(
            SchemaError, match="columns note string, priority int32, but the query now has title, priority;"
        ):
            player.play(*batches)


def test_a_checkpoint_that_kept_no_names_goes_on() -> None:
    """As those of before did."""
    player = Player(task(assembly()))
    player.play(batch_of([carrying(first_of_two(0))], has_extra=True))
    assert player.state is not None
    kept = state_from_bytes(player.state)
    assert kept.extra is not None
    player.state = replace(kept, extra=pa.schema([field.remove_metadata() for field in kept.extra])).to_bytes()
    told = player.play(batch_of([carrying(single(0, conversation=B))], has_extra=True))
    assert [row["further_0"] for row in told[row_kinds.MESSAGE]] == ["a"]


@pytest.mark.parametrize("began_large", [False, True])
def test_columns_are_the_same_whatever_a_session_calls_their_types(*, began_large: bool) -> None:
    """The zone of moments is the session's, and so is whether text may be large."""
    batch = batch_of([carrying(first_of_two(0, body=b"a body"))], has_extra=True)
    rest = batch_of([carrying(second_of_two(first_of_two(0, body=b"a body")))], has_extra=True)
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

    player = Player(task(assembly(), extra_names=(*FURTHER, "nested")))
    player.play(with_nested(batch, is_large=began_large))
    told = player.play(with_nested(rest, is_large=not began_large))
    assert [(row["message_body"], row["further_0"], row["further_2"]) for row in told[row_kinds.MESSAGE]] == [
        (b"a body", "a", value[0])
    ]


def test_figures_are_told_where_they_are_asked_for() -> None:
    """U11."""
    player = Player(task(assembly(), has_metrics=True))
    told = player.play(batch_of([first_of_two(0), single(0, conversation=B)]))
    assert player.state is not None
    assert [row["state_bytes"] for row in told[row_kinds.METRICS]] == [len(player.state)]
    assert [row["incomplete_messages"] for row in told[row_kinds.METRICS]] == [1]


def test_what_is_remembered_of_a_quiet_direction_is_small() -> None:
    """Some tens of bytes for each, however many messages there were."""
    player = Player(task(assembly(acknowledgements=False), fixed={}))
    fragments: list[Fragment] = [single(0, conversation=UUID(int=number)) for number in range(10_000)]
    player.play(batch_of(fragments))
    assert player.state is not None
    assert len(player.state) / 10_000 < 40


def carrying(fragment: Fragment) -> Fragment:
    return replace(fragment, extra={"note": "a", "priority": 1})


def test_limits_are_those_of_one_bucket() -> None:
    """What is beyond is rejected, and may come again."""
    player = Player(task(assembly(Limits(max_pending_bytes=1000))))
    told = player.play(batch_of([first_of_two(0, body=bytes(600))]))
    assert [row["reason"] for row in told[row_kinds.REJECTION]] == ["limit_exceeded"]
    assert player.state is None
