"""Messages without a route wait in the stream, with all later ones of their direction, and are retried."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ssbroker
from ssbroker.spark.streams import stream_rows
from ssbroker.spark.streams.delayed_queue import _split_excess
from tests.oracle.traffic import Fragment, Row
from tests.rules.fragments import A, B, single
from tests.spark.streams.steps import (
    SECOND,
    START,
    BucketRunner,
    MemoryCatalog,
    assembly,
    batch_of,
    bodies,
    routing,
    task,
)

ROUTED, LATE, NOWHERE = "//Routed", "//Late", "//Nowhere"
CONVERSATIONS = [UUID(int=number) for number in range(1, 4)]


@cache
def catalog(*services: str) -> ssbroker.Catalog:
    """Returns a catalog with routes to these services, in the only user database."""
    count = len(services)
    return ssbroker.Catalog(
        pa.table(
            {
                "name": pa.array(list(services), pa.string()),
                "remote_service_name": pa.array(list(services), pa.string()),
                "broker_instance": pa.nulls(count, pa.string()),
                "lifetime": pa.nulls(count, pa.timestamp("us", tz="UTC")),
                "address": pa.array(["TCP://far.example"] * count, pa.string()),
                "mirror_address": pa.nulls(count, pa.string()),
            }
        )
    )


def message_to(service: str, sequence: int, *, conversation: UUID = A) -> Fragment:
    """Returns a message for a service, which its body names too."""
    body = f"{service} {sequence}".encode()
    return replace(single(sequence, body=body, conversation=conversation), extra={"note": service, "priority": 0})


def runner_with(*catalogs: ssbroker.Catalog, in_order: bool = True, **changed: Any) -> BucketRunner:
    direction = {} if in_order else {"direction": None}
    assembled = assembly(in_order=in_order, acknowledgements=False)
    return BucketRunner(task(assembled, routing(list(catalogs), **direction, **changed)))


def catalogs_of(runner: BucketRunner) -> list[ssbroker.Catalog]:
    """Returns the catalogs of a runner, which a test may replace."""
    assert runner.task.routing is not None
    catalog = runner.task.routing.catalog
    assert isinstance(catalog, MemoryCatalog)
    return catalog.catalogs


def service_batch(*fragments: Fragment) -> pa.RecordBatch:
    return batch_of(fragments, has_extra=True)


@dataclass
class DelayModel:
    """An independent model of the transmission queue of each direction (R18)."""

    routed: set[str] = field(default_factory=set)
    waiting: dict[Any, list[tuple[str, int]]] = field(default_factory=dict)
    due: dict[Any, tuple[int, int]] = field(default_factory=dict)

    def step(self, arrived: list[tuple[Any, str, int]], now_us: int, *, changed: bool) -> dict[Any, list[int]]:
        """Returns the messages that each direction emits."""
        emitted: dict[Any, list[int]] = {}
        new: dict[Any, list[tuple[str, int]]] = {}
        for key, service, number in arrived:
            new.setdefault(key, []).append((service, number))
        for key in {**self.waiting, **new}:
            queue = self.waiting.pop(key, [])
            due_us, tries = self.due.pop(key, (now_us, 0))
            due_us = min(due_us, now_us + 64 * SECOND)
            is_due = not queue or changed or due_us <= now_us
            old = len(queue)
            queue += new.get(key, [])
            while is_due and queue and queue[0][0] in self.routed:
                emitted.setdefault(key, []).append(queue.pop(0)[1])
                old -= 1
            tries = tries if old > 0 else 0
            if queue:
                self.waiting[key] = queue
                self.due[key] = (now_us + min(4 << tries, 64) * SECOND, tries + 1) if is_due else (due_us, tries)
        return emitted


def numbers_by_key(rows: list[Row], *, in_order: bool) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for row in rows:
        key = key_of(row["conversation_id"], row["message_sequence_number"], in_order=in_order)
        found.setdefault(key, []).append(row["message_sequence_number"])
    return found


def key_of(conversation: bytes, number: int, *, in_order: bool) -> Any:
    return conversation if in_order else (conversation, number)


def check(seed: int, *, in_order: bool, moves: list[int]) -> None:
    """Runs directions with several services, changing catalogs, and a clock that moves forward and back."""
    random = Random(seed)
    catalogs = {name: catalog(*name) for name in ((ROUTED,), (ROUTED, LATE), (LATE,))}
    routes = random.choice(list(catalogs))
    runner = runner_with(catalogs[routes], in_order=in_order)
    source = catalogs_of(runner)
    queue, now_us, numbers, last = DelayModel(), START, dict.fromkeys(CONVERSATIONS, 0), None
    for move in moves:
        now_us += move * SECOND
        if random.random() < 0.3:
            routes = random.choice(list(catalogs))
            source[:] = [catalogs[routes]]
        arrived = []
        for _ in range(random.choice((0, 0, 1, 3))):
            conversation = random.choice(CONVERSATIONS)
            service = random.choices((ROUTED, LATE, NOWHERE), (6, 3, 1))[0]
            arrived.append(message_to(service, numbers[conversation], conversation=conversation))
            numbers[conversation] += 1
        queue.routed = set(routes)
        new = [
            (key_of(each.conversation_id.bytes, each.sequence, in_order=in_order), each.extra["note"], each.sequence)
            for each in arrived
        ]
        changed = bool(queue.waiting) and last != routes
        expected = queue.step(new, now_us, changed=changed)
        rows = runner.run(*([service_batch(*arrived)] if arrived else []), now_us=now_us).get(stream_rows.MESSAGE, [])
        assert numbers_by_key(rows, in_order=in_order) == expected
        assert runner.last is not None
        dues = [due for due, _ in queue.due.values()]
        assert runner.last.due_us == (min(dues) if dues else None)
        last = routes
    assert len(runner.waiting()) == sum(map(len, queue.waiting.values()))


@pytest.mark.parametrize("in_order", [True, False])
def test_emitted_and_waiting_messages_match_the_model(*, in_order: bool) -> None:
    for seed in range(60):
        random = Random(seed + 1000)
        moves = [random.choice((0, 1, 4, 9, 40, 70, -30)) for _ in range(12)]
        check(seed, in_order=in_order, moves=moves)


@given(
    seed=st.integers(0, 2**32),
    in_order=st.booleans(),
    moves=st.lists(st.integers(-100, 100), min_size=1, max_size=15),
)
def test_the_model_matches_with_hypothesis(seed: int, in_order: bool, moves: list[int]) -> None:  # noqa: FBT001
    check(seed, in_order=in_order, moves=moves)


@pytest.mark.rule("R18")
def test_delayed_messages_are_retried_after_4_8_16_32_64_64_seconds() -> None:
    runner = runner_with(catalog(ROUTED))
    runner.run(service_batch(message_to(LATE, 0)))
    now_us, waiting = START, []
    for _ in range(7):
        assert runner.last is not None
        assert runner.last.due_us is not None
        waiting.append((runner.last.due_us - now_us) // SECOND)
        now_us = runner.last.due_us
        assert runner.run(now_us=now_us) == {}
    assert waiting == [4, 8, 16, 32, 64, 64, 64]


@pytest.mark.rule("R62")
def test_a_delayed_message_is_emitted_once_with_its_final_decision() -> None:
    """Later messages of its direction follow in order."""
    runner = runner_with(catalog(ROUTED))
    assert runner.run(service_batch(message_to(LATE, 0), message_to(ROUTED, 1))) == {}
    assert [(row["waits_for"], row["message_sequence_number"], row["tries"]) for row in runner.waiting()] == [
        ("route", 0, 1),
        ("route", 1, 1),
    ]
    assert runner.run(service_batch(message_to(ROUTED, 2)), now_us=START + SECOND) == {}
    assert bodies(runner.run(service_batch(message_to(ROUTED, 0, conversation=B)), now_us=START + SECOND)) == [
        b"//Routed 0"
    ]
    catalogs_of(runner)[:] = [catalog(ROUTED, LATE)]
    output = runner.run(now_us=START + 2 * SECOND)
    assert bodies(output) == [b"//Late 0", b"//Routed 1", b"//Routed 2"]
    assert {row["next_hop_address"] for row in output[stream_rows.MESSAGE]} == {"TCP://far.example:4022"}
    assert runner.waiting() == []
    assert runner.run(now_us=START + 100 * SECOND) == {}


def test_changeable_catalogs_are_checked_while_messages_wait() -> None:
    """Every four seconds, however late the next retry is."""
    runner = runner_with(catalog(ROUTED), catalog(ROUTED))
    runner.run(service_batch(message_to(LATE, 0)))
    now_us = START
    for _ in range(5):
        now_us += 4 * SECOND
        runner.run(now_us=now_us)
        assert runner.last is not None
        assert runner.last.due_us == now_us + 4 * SECOND


def test_messages_beyond_the_limit_are_emitted_as_delayed_oldest_first() -> None:
    """Their decision shows that they are not retried; the remaining ones keep their order."""
    runner = runner_with(catalog(ROUTED), max_delayed_bytes=1000)
    first = runner.run(service_batch(*(message_to(LATE, number) for number in range(3))))
    assert first == {}
    second = runner.run(service_batch(message_to(LATE, 3), message_to(ROUTED, 4)), now_us=START + SECOND)
    assert bodies(second) == [b"//Late 0", b"//Late 1"]
    assert [row["next_hop_address"] for row in second[stream_rows.MESSAGE]] == [None, None]
    assert [row["message_sequence_number"] for row in runner.waiting()] == [2, 3, 4]


def test_with_limit_zero_no_message_waits() -> None:
    runner = runner_with(catalog(ROUTED), max_delayed_bytes=0)
    assert bodies(runner.run(service_batch(message_to(LATE, 0), message_to(ROUTED, 1)))) == [
        b"//Late 0",
        b"//Routed 1",
    ]
    assert runner.waiting() == []


def test_messages_wait_through_many_steps() -> None:
    """Directions keep their order however often the state is stored and loaded."""
    runner = runner_with(catalog(ROUTED))
    for number in range(60):
        body = bytes([number]) * 2000
        fragment = replace(single(number, body=body), extra={"note": LATE, "priority": 0})
        assert runner.run(service_batch(fragment), now_us=START + number * SECOND) == {}
    catalogs_of(runner)[:] = [catalog(LATE)]
    assert bodies(runner.run(now_us=START + 60 * SECOND)) == [bytes([number]) * 2000 for number in range(60)]


@pytest.mark.parametrize("is_reassembled", [True, False])
@pytest.mark.parametrize("was_nullable", [True, False])
def test_a_column_may_become_nullable_or_not_while_messages_wait(*, is_reassembled: bool, was_nullable: bool) -> None:
    """It may change with the text of a query, such as a filter, and with the schema of a source."""
    assembled = assembly(acknowledgements=False) if is_reassembled else None
    runner = BucketRunner(task(assembled, routing([catalog(ROUTED)])))
    batches = [
        declared_nullable(service_batch(message_to(service, number)), is_nullable=is_nullable)
        for number, (service, is_nullable) in enumerate(
            [(LATE, was_nullable), (ROUTED, not was_nullable), (ROUTED, was_nullable)]
        )
    ]
    assert runner.run(batches[0]) == {}
    assert runner.run(batches[1], now_us=START + SECOND) == {}
    assert runner.run(batches[2], now_us=START + 5 * SECOND) == {}
    catalogs_of(runner)[:] = [catalog(ROUTED, LATE)]
    assert bodies(runner.run(now_us=START + 6 * SECOND)) == [b"//Late 0", b"//Routed 1", b"//Routed 2"]


def declared_nullable(batch: pa.RecordBatch, *, is_nullable: bool) -> pa.RecordBatch:
    """Returns the batch with its extra columns declared nullable or not."""
    fields = [field.with_nullable(is_nullable) if field.name.startswith("further") else field for field in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.string()), pa.map_(pa.string(), pa.binary()), pa.struct([("text", pa.string())]), pa.string_view()],
    ids=str,
)
def test_the_limit_includes_all_columns_of_variable_size(kind: Any) -> None:
    text = "x" * 1000
    value: Any = [(text, b"")] if pa.types.is_map(kind) else [text] if pa.types.is_list(kind) else text
    value = {"text": text} if pa.types.is_struct(kind) else value
    rows: Any = pa.array([value] * 3, kind)
    queue = pa.table({"message_body": pa.array([b""] * 3), "further_0": rows})
    excess, kept = _split_excess(queue, 2 * 1500)
    assert excess is not None
    assert kept is not None
    assert (excess.num_rows, kept.num_rows) == (1, 2)
