"""What has no route waits in the stream, with all that follow it, and is tried again (P11, R17, R18, R62; U6)."""

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
from ssbroker.spark.streams import row_kinds
from tests.oracle.traffic import Fragment, Row
from tests.rules.fragments import A, B, single
from tests.spark.stream_steps import SECOND, START, Here, Player, assembly, batch_of, bodies, routing, task

ROUTED, LATE, NOWHERE = "//Routed", "//Late", "//Nowhere"
CONVERSATIONS = [UUID(int=number) for number in range(1, 4)]


@cache
def catalog(*services: str) -> ssbroker.Catalog:
    """Routes to these services, in the one user database."""
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


def to(service: str, sequence: int, *, conversation: UUID = A) -> Fragment:
    """A message for a service, which its body names too."""
    body = f"{service} {sequence}".encode()
    return replace(single(sequence, body=body, conversation=conversation), extra={"note": service, "priority": 0})


def player(*catalogs: ssbroker.Catalog, in_order: bool = True, **changed: Any) -> Player:
    direction = {} if in_order else {"direction": None}
    assembled = assembly(in_order=in_order, acknowledgements=False)
    return Player(task(assembled, routing(list(catalogs), **direction, **changed)))


def catalogs_of(played: Player) -> list[ssbroker.Catalog]:
    """Those that a test may replace."""
    assert played.task.routing is not None
    source = played.task.routing.source
    assert isinstance(source, Here)
    return source.catalogs


def sent(*fragments: Fragment) -> pa.RecordBatch:
    return batch_of(fragments, has_extra=True)


@dataclass
class Queue:
    """U6 and R18, read literally: the transmission queue of each direction."""

    routed: set[str] = field(default_factory=set)
    waits: dict[Any, list[tuple[str, int]]] = field(default_factory=dict)
    due: dict[Any, tuple[int, int]] = field(default_factory=dict)

    def turn(self, arrived: list[tuple[Any, str, int]], now_us: int, *, changed: bool) -> dict[Any, list[int]]:
        """What each direction gives out."""
        given: dict[Any, list[int]] = {}
        new: dict[Any, list[tuple[str, int]]] = {}
        for key, service, number in arrived:
            new.setdefault(key, []).append((service, number))
        for key in {**self.waits, **new}:
            queue = self.waits.pop(key, [])
            due_us, tries = self.due.pop(key, (now_us, 0))
            due_us = min(due_us, now_us + 64 * SECOND)
            is_tried = not queue or changed or due_us <= now_us
            old = len(queue)
            queue += new.get(key, [])
            while is_tried and queue and queue[0][0] in self.routed:
                given.setdefault(key, []).append(queue.pop(0)[1])
                old -= 1
            tries = tries if old > 0 else 0
            if queue:
                self.waits[key] = queue
                self.due[key] = (now_us + min(4 << tries, 64) * SECOND, tries + 1) if is_tried else (due_us, tries)
        return given


def told(rows: list[Row], *, in_order: bool) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for row in rows:
        key = key_of(row["conversation_id"], row["message_sequence_number"], in_order=in_order)
        found.setdefault(key, []).append(row["message_sequence_number"])
    return found


def key_of(conversation: bytes, number: int, *, in_order: bool) -> Any:
    return conversation if in_order else (conversation, number)


def check(seed: int, *, in_order: bool, moves: list[int]) -> None:
    """Directions whose messages are for several services, catalogs that come and go, a clock that goes forth and back."""
    random = Random(seed)
    catalogs = {name: catalog(*name) for name in ((ROUTED,), (ROUTED, LATE), (LATE,))}
    routes = random.choice(list(catalogs))
    played = player(catalogs[routes], in_order=in_order)
    source = catalogs_of(played)
    queue, now_us, numbers, last = Queue(), START, dict.fromkeys(CONVERSATIONS, 0), None
    for move in moves:
        now_us += move * SECOND
        if random.random() < 0.3:
            routes = random.choice(list(catalogs))
            source[:] = [catalogs[routes]]
        arrived = []
        for _ in range(random.choice((0, 0, 1, 3))):
            conversation = random.choice(CONVERSATIONS)
            service = random.choices((ROUTED, LATE, NOWHERE), (6, 3, 1))[0]
            arrived.append(to(service, numbers[conversation], conversation=conversation))
            numbers[conversation] += 1
        queue.routed = set(routes)
        new = [
            (key_of(each.conversation_id.bytes, each.sequence, in_order=in_order), each.extra["note"], each.sequence)
            for each in arrived
        ]
        changed = bool(queue.waits) and last != routes
        expected = queue.turn(new, now_us, changed=changed)
        rows = played.play(*([sent(*arrived)] if arrived else []), now_us=now_us).get(row_kinds.MESSAGE, [])
        assert told(rows, in_order=in_order) == expected
        assert played.last is not None
        dues = [due for due, _ in queue.due.values()]
        assert played.last.due_us == (min(dues) if dues else None)
        last = routes
    assert len(played.waits()) == sum(map(len, queue.waits.values()))


@pytest.mark.parametrize("in_order", [True, False])
def test_what_waits_and_what_goes_are_those_of_the_literal_queue(*, in_order: bool) -> None:
    for seed in range(60):
        random = Random(seed + 1000)
        moves = [random.choice((0, 1, 4, 9, 40, 70, -30)) for _ in range(12)]
        check(seed, in_order=in_order, moves=moves)


@given(
    seed=st.integers(0, 2**32),
    in_order=st.booleans(),
    moves=st.lists(st.integers(-100, 100), min_size=1, max_size=15),
)
def test_the_same_from_hypothesis(seed: int, in_order: bool, moves: list[int]) -> None:  # noqa: FBT001
    check(seed, in_order=in_order, moves=moves)


@pytest.mark.rule("R18")
def test_a_delayed_message_is_tried_again_after_4_8_16_32_64_64_seconds() -> None:
    """R18."""
    played = player(catalog(ROUTED))
    played.play(sent(to(LATE, 0)))
    now_us, waits = START, []
    for _ in range(7):
        assert played.last is not None
        assert played.last.due_us is not None
        waits.append((played.last.due_us - now_us) // SECOND)
        now_us = played.last.due_us
        assert played.play(now_us=now_us) == {}
    assert waits == [4, 8, 16, 32, 64, 64, 64]


@pytest.mark.rule("R62")
def test_it_is_given_out_once_with_the_decision_that_let_it_go() -> None:
    """And what came after it in its direction follows it, in order."""
    played = player(catalog(ROUTED))
    assert played.play(sent(to(LATE, 0), to(ROUTED, 1))) == {}
    assert [(row["waits_for"], row["message_sequence_number"], row["tries"]) for row in played.waits()] == [
        ("route", 0, 1),
        ("route", 1, 1),
    ]
    assert played.play(sent(to(ROUTED, 2)), now_us=START + SECOND) == {}
    assert bodies(played.play(sent(to(ROUTED, 0, conversation=B)), now_us=START + SECOND)) == [b"//Routed 0"]
    catalogs_of(played)[:] = [catalog(ROUTED, LATE)]
    gone = played.play(now_us=START + 2 * SECOND)
    assert bodies(gone) == [b"//Late 0", b"//Routed 1", b"//Routed 2"]
    assert {row["next_hop_address"] for row in gone[row_kinds.MESSAGE]} == {"TCP://far.example:4022"}
    assert played.waits() == []
    assert played.play(now_us=START + 100 * SECOND) == {}


def test_a_catalog_that_may_change_is_looked_at_while_something_waits() -> None:
    """Every four seconds, however long the next try is away."""
    played = player(catalog(ROUTED), catalog(ROUTED))
    played.play(sent(to(LATE, 0)))
    now_us = START
    for _ in range(5):
        now_us += 4 * SECOND
        played.play(now_us=now_us)
        assert played.last is not None
        assert played.last.due_us == now_us + 4 * SECOND


def test_what_is_too_much_is_given_out_as_delayed_oldest_first() -> None:
    """A reader sees that nobody will try again; those after it keep their order."""
    played = player(catalog(ROUTED), max_delayed_bytes=1000)
    first = played.play(sent(*(to(LATE, number) for number in range(3))))
    assert first == {}
    second = played.play(sent(to(LATE, 3), to(ROUTED, 4)), now_us=START + SECOND)
    assert bodies(second) == [b"//Late 0", b"//Late 1"]
    assert [row["next_hop_address"] for row in second[row_kinds.MESSAGE]] == [None, None]
    assert [row["message_sequence_number"] for row in played.waits()] == [2, 3, 4]


def test_nothing_may_wait_where_there_is_no_room() -> None:
    """U6."""
    played = player(catalog(ROUTED), max_delayed_bytes=0)
    assert bodies(played.play(sent(to(LATE, 0), to(ROUTED, 1)))) == [b"//Late 0", b"//Routed 1"]
    assert played.waits() == []


def test_a_hundred_thousand_bytes_wait_through_many_steps() -> None:
    """Order holds for each direction however often the state is kept and read."""
    played = player(catalog(ROUTED))
    for number in range(60):
        body = bytes([number]) * 2000
        fragment = replace(single(number, body=body), extra={"note": LATE, "priority": 0})
        assert played.play(sent(fragment), now_us=START + number * SECOND) == {}
    catalogs_of(played)[:] = [catalog(LATE)]
    assert bodies(played.play(now_us=START + 60 * SECOND)) == [bytes([number]) * 2000 for number in range(60)]
