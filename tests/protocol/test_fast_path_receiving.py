"""The receiving fast path processes runs of rows with the same result as row by row."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pytest

from ssbroker import _core
from ssbroker.protocol.ack_ranges import pack_ack_ranges
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import ENVELOPE, SEQUENCE_MAX
from ssbroker.protocol.events import Event
from ssbroker.protocol.inbound_fast_path import FastInbound, FastInboundFinder
from ssbroker.protocol.storage import BatchChanges, EndpointKey, Refusal
from ssbroker.testing.memory_storage import MemoryDialogStorage
from tests.protocol.pair import (
    CERTIFICATE_A,
    CERTIFICATE_B,
    SECOND,
    B,
    Row,
    Side,
    create_engine,
    disable_fast_path,
    established_pair,
    pair,
)
from tests.protocol.test_receiver import with_new_header_digest

KEYS: Final = [(b"conversation %03d" % number, True) for number in range(4)]


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ENVELOPE)


def with_body(row: Row, body: bytes) -> Row:
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return {**row, "message_body": body, "message_signature": digest}


CHANGES: Final[list[Callable[[Row, random.Random], Row]]] = [
    lambda row, rng: with_body(row, rng.randbytes(rng.randint(0, 40))),
    lambda row, rng: {**row, "message_body": rng.randbytes(5)},
    lambda row, rng: {**row, "message_signature": rng.choice([None, rng.randbytes(16)])},
    lambda row, rng: {**row, "fragment_signature": rng.choice([None, row["message_signature"], bytes(16)])},
    lambda row, rng: {**row, "message_sequence_number": rng.choice([0, 1, 5, SEQUENCE_MAX, SEQUENCE_MAX + 1])},
    lambda row, _: {**row, "message_sequence_number": row["message_sequence_number"] + 1},
    lambda row, rng: {**row, "fragment_number": rng.randint(0, 1), "fragment_count": rng.randint(1, 2)},
    lambda row, _: {**row, "is_initiator": not row["is_initiator"]},
    lambda row, rng: {**row, "to_broker_instance": rng.choice([None, B, bytes(16)])},
    lambda row, _: {**row, "from_broker_instance": bytes(16)},
    lambda row, rng: {**row, rng.choice(["from_service_name", "to_service_name"]): "Nobody"},
    lambda row, _: {**row, "service_contract_name": "Other"},
    lambda row, rng: {**row, "message_type_name": rng.choice([None, "Order", "Bill"])},
    lambda row, rng: {**row, rng.choice(["is_end_of_dialog", "is_conversation_error"]): True},
    lambda row, rng: {**row, "security": rng.randint(0, 2)},
    lambda row, rng: {
        **row,
        "acked_ahead": pack_ack_ranges([]),
        "acked_sequence_number": rng.choice([None, 0, 1]),
    },
    lambda row, _: {**row, "acked_sequence_number": 0},
    lambda row, rng: {**row, "priority": rng.randint(1, 10), "message_id": rng.choice([None, bytes(16)])},
    lambda row, _: {**row, "conversation_id": b"another one.0000"},
    lambda row, _: {**row, "is_sequenced": False},
]


def refuses(message_type: str, body: bytes) -> Refusal | None:
    return Refusal(-8408, "no bills that begin so") if message_type == "Bill" and body[:1] < b"\x10" else None


class Twins:
    """A sender and two receivers of the same rows: one uses the fast path, the other processes each row."""

    def __init__(self) -> None:
        both = pair(DialogEngine, refuses=refuses)
        self.sender = both.a
        for conversation, _ in KEYS:
            both.begin(conversation=conversation)
        self.quick, self.slow = (self._receiver() for _ in range(2))
        self.runs = self.rows = 0
        self._watch()

    def _receiver(self) -> Side:
        storage, events = MemoryDialogStorage(B, refuses=refuses), list[Event]()
        engine = create_engine(storage, DialogEngine, pair(DialogEngine).settings, events)
        return Side(B, storage, engine, CERTIFICATE_A, {}, events)

    def _watch(self) -> None:
        """Counts the rows of the fast path in one receiver, and disables it in the other."""
        receive_and_commit = self.quick.dialogs._fast_inbound.find

        def watched(table: pa.Table, *given: Any, **options: Any) -> FastInbound:
            found = receive_and_commit(table, *given, **options)
            self.runs += len(found.runs)
            self.rows += found.messages.num_rows
            return found

        self.quick.dialogs._fast_inbound = cast("FastInboundFinder", SimpleNamespace(find=watched))
        disable_fast_path(self.slow.dialogs)

    def receive_and_commit(self, rows: list[Row], now: int, *, peer: bytes, is_committed: bool) -> None:
        both = [side.receive(rows, now, peer=peer) for side in (self.quick, self.slow)]
        assert content_of(both[0]) == content_of(both[1])
        for side, effects in zip((self.quick, self.slow), both, strict=True):
            if is_committed:
                side.storage.commit(effects)
                side.dialogs.confirm(effects, now=now)
            else:
                side.dialogs.undo(effects)
        assert self.quick.storage.accounts == self.slow.storage.accounts
        assert sorted(map(repr, self.quick.events)) == sorted(map(repr, self.slow.events))

    def reply(self, keys: list[EndpointKey], body: bytes) -> None:
        """Sends a message back in each conversation that has arrived; further messages acknowledge it."""
        for key in ((conversation, False) for conversation, _ in keys):
            for side in (self.quick, self.slow):
                if key in side.storage.accounts:
                    side.send(key, body)

    def answers(self, now: int) -> list[Row]:
        quick, slow = (sorted(side.rows(now), key=repr) for side in (self.quick, self.slow))
        assert quick == slow
        return quick


def content_of(effects: BatchChanges) -> dict[str, Any]:
    """Returns the content of effects in a comparable form; messages by endpoint."""
    messages: dict[EndpointKey, list[Row]] = defaultdict(list)
    for row in effects.messages.to_pylist():
        messages[row["conversation_id"], not row["is_initiator"]].append(row)
    names = ("at", "created", "bound", "received", "dropped", "acknowledged", "errors", "refusals", "lost_by_peer")
    said = {name: getattr(effects, name) for name in names}
    return {**said, "messages": dict(messages), "stored": effects.stored.to_pylist()}


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_path_gives_the_result_of_row_by_row(seed: int) -> None:
    """With any loss, duplication, reordering, damage, forgery and rollback."""
    rng = random.Random(seed)
    twins = Twins()
    sent: list[Row] = []
    now = 0
    for step in range(30):
        now += rng.choice([SECOND, 5 * SECOND, 70 * SECOND])
        for key in rng.sample(KEYS, rng.randint(0, len(KEYS))):
            kind = rng.choice(["Order", "Order", "Bill"])
            for _ in range(rng.randint(1, 6)):
                twins.sender.send(key, rng.randbytes(rng.randint(0, 60)), message_type=kind)
        twins.reply(rng.sample(KEYS, rng.randint(0, 2)), rng.randbytes(4))
        fresh = twins.sender.rows(now)
        sent += fresh
        rows = list(fresh)
        if step > 2 and rng.random() < 0.5:
            rows += rng.choices(sent, k=3) if sent else []
            rows = [row for row in rows if rng.random() > 0.1]
            for _ in range(rng.randint(0, 3)):
                if rows:
                    at = rng.randrange(len(rows))
                    changed = rng.choice(CHANGES)(rows[at], rng)
                    rows[at] = with_new_header_digest(changed) if rng.random() < 0.8 else changed
            if rng.random() < 0.3:
                rng.shuffle(rows)
        peer = CERTIFICATE_A if rng.random() < 0.95 else CERTIFICATE_B
        twins.receive_and_commit(rows, now, peer=peer, is_committed=rng.random() < 0.85)
        if answers := twins.answers(now):
            twins.sender.receive_and_commit(answers, now)
    assert twins.runs > 0


def test_without_faults_most_rows_take_the_fast_path() -> None:
    twins = Twins()
    for step in range(10):
        for key in KEYS:
            twins.sender.send(key, *(b"%d of %d" % (number, step) for number in range(5)))
        twins.receive_and_commit(twins.sender.rows(step * SECOND), step * SECOND, peer=CERTIFICATE_A, is_committed=True)
        twins.sender.receive_and_commit(twins.answers(step * SECOND), step * SECOND)
    assert twins.rows == (10 * 5 - 1) * len(KEYS)  # the first rows of all start the conversations


def fast_path_rows() -> list[Row]:
    """Five messages of an established conversation."""
    both = established_pair(DialogEngine)
    both.a.send(both.outgoing, *(b"%d" % number for number in range(5)))
    return both.a.rows(20 * SECOND)


def test_a_run_describes_its_rows() -> None:
    rows = fast_path_rows()
    runs, of_rows = _core.incoming_runs(table_of(rows))
    first = rows[0]
    names = ["from_service_name", "to_service_name", "service_contract_name", "message_type_name"]
    brokers = (first["from_broker_instance"], first["to_broker_instance"])
    number = first["message_sequence_number"]
    assert runs == [(first["conversation_id"], True, *brokers, [first[name] for name in names], number, 5, 5, 1, [])]
    assert of_rows.to_pylist() == [0] * 5


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("change", CHANGES, ids=map(str, range(len(CHANGES))))
def test_one_unusual_row_excludes_its_conversation_from_the_fast_path(change: Callable[..., Row], at: int) -> None:
    """Exceptions: a row that differs only in body, priority or id, and a row of another conversation at either end."""
    rows = fast_path_rows()
    others = [with_new_header_digest({**row, "conversation_id": b"another one.1111"}) for row in rows]
    for seed in range(8):
        changed = change(rows[at], random.Random(seed))
        for row in (changed, with_new_header_digest(changed)):
            given = [*others[:2], *rows[:at], row, *others[2:], *rows[at + 1 :]]
            runs, of_rows = _core.incoming_runs(table_of(given))
            of_others = {number for each, number in zip(given, of_rows.to_pylist(), strict=True) if each in others}
            assert (of_others, runs[0][6]) == ({0}, 5)
            if any(run[:2] == (rows[0]["conversation_id"], True) for run in runs):
                is_elsewhere = (row["conversation_id"], row["is_initiator"]) != (rows[0]["conversation_id"], True)
                assert (is_elsewhere and at in {0, 4}) or is_harmless(row, rows[at])


def is_harmless(row: Row, before: Row) -> bool:
    """Returns whether a row differs only in irrelevant columns or in an acknowledgement in order, and its signatures are valid."""
    free = {"priority", "message_id", "header_signature", "fragment_signature", "message_body", "message_signature"}
    if row["acked_ahead"] == b"":
        free |= {"acked_ahead", "acked_sequence_number"}
    return all(row[name] == before[name] for name in row.keys() - free) and with_new_header_digest(row) == row


def test_messages_that_acknowledge_take_the_fast_path() -> None:
    """As in a dialog of requests and answers, where each message acknowledges the one before."""
    both = established_pair(DialogEngine)
    for step in range(3):
        now = (20 + step) * SECOND
        both.a.send(both.outgoing, b"question", b"and another")
        asked = both.a.rows(now)
        both.b.receive_and_commit(asked, now)
        both.b.send(both.incoming, b"answer", b"and another")
        answered = both.b.rows(now)
        assert [row["acked_sequence_number"] for row in answered] == [asked[-1]["message_sequence_number"], None]
        [run], of_rows = _core.incoming_runs(table_of(answered))
        assert (run[6], run[9], of_rows.to_pylist()) == (2, [asked[-1]["message_sequence_number"]], [0, 0])
        changes = both.a.receive_and_commit(answered, now)
        assert [each.rows for each in changes.runs] == [2]
        assert changes.acknowledged == {both.outgoing: asked[-1]["message_sequence_number"]}
        assert both.a.waiting(both.outgoing) == []
        # Its messages are acknowledged by the next question.
        assert both.b.waiting(both.incoming) == [row["message_sequence_number"] for row in answered]
    assert both.a.queue(both.outgoing)[-2:] == [b"answer", b"and another"]
    assert not both.a.rejection_events + both.b.rejection_events


@pytest.mark.parametrize(("ahead", "acked"), [([(3, 0, 4, 0)], 1), (None, 1), ([], -1)])
def test_another_acknowledgement_excludes_its_conversation_from_the_fast_path(
    ahead: list[Any] | None, acked: int
) -> None:
    """One of ranges beyond the order, one without its marker, and a negative one."""
    rows = fast_path_rows()
    packed = None if ahead is None else pack_ack_ranges(ahead)
    rows[2] = with_new_header_digest({**rows[2], "acked_ahead": packed, "acked_sequence_number": acked})
    assert _core.incoming_runs(table_of(rows))[0] == []


def test_an_acknowledgement_of_nothing_yet_is_none_received() -> None:
    rows = fast_path_rows()
    rows[2] = with_new_header_digest({**rows[2], "acked_ahead": b"", "acked_sequence_number": None})
    assert _core.incoming_runs(table_of(rows))[0][0][9] == [-1]


def test_no_rows_give_no_runs() -> None:
    runs, of_rows = _core.incoming_runs(ENVELOPE.empty_table())
    assert (runs, of_rows.to_pylist()) == ([], [])


def test_a_missing_column_is_named() -> None:
    from ssbroker.exceptions import SchemaError  # noqa: PLC0415 - for this one only

    with pytest.raises(SchemaError, match="header_signature"):
        _core.incoming_runs(ENVELOPE.empty_table().drop(["header_signature"]))
