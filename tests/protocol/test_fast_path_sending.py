"""The sending fast path sends runs of messages with the same result as message by message."""

from __future__ import annotations

import hashlib
import random
from typing import Any, Final

import pyarrow as pa
import pytest

from ssbroker import _core
from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.exceptions import MalformedDataError, SchemaError
from ssbroker.protocol import sender
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.send_turn import FastOutbound
from ssbroker.protocol.sender import take_fast
from ssbroker.protocol.storage import MESSAGES, NO_MESSAGES, messages_table
from tests.protocol.pair import SECOND, A, B, Pair, Row, established_pair, numbers, pair

KEYS: Final = [(b"conversation %03d" % number, True) for number in range(4)]
TURNS: Final = 40


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[FastOutbound | None]:
    """Records the results of turns that may use the fast path; None if it was not used."""
    made: list[FastOutbound | None] = []

    def watched(*given: Any) -> FastOutbound | None:
        made.append(take_fast(*given))
        return made[-1]

    monkeypatch.setattr(sender, "take_fast", watched)
    return made


def played(seed: int) -> list[Any]:
    """Runs a random history of some dialogs; returns the sent rows, the timeouts and the state of each dialog."""
    rng = random.Random(seed)
    engines = pair(
        DialogEngine,
        max_fragment_bytes=100,
        window_fragments=rng.choice([3, 8, 1024]),
        window_bytes=rng.choice([250, 2_000, 4 << 20]),
        fragments_per_turn=rng.choice([2, 5, 64]),
    )
    for conversation, _ in KEYS:
        engines.begin(conversation=conversation)
    for _ in range(2):
        for key in KEYS:
            engines.a.send(key, b"some")
        engines.exchange()
    found: list[Any] = []
    now = 6 * SECOND
    for _ in range(TURNS):
        now += rng.choice([SECOND, 5 * SECOND, 70 * SECOND])
        send_more(engines, rng)
        if rng.random() < 0.05:
            engines.restart(engines.a)
        rows = engines.a.rows(now, max_rows=rng.choice([3, 4096]))
        known = engines.a.dialogs._cache.loaded
        states = {key: repr(known[key].transmission) for key in sorted(known)}
        found += [rows, engines.a.dialogs.next_timeout(), states]
        kept = [row for row in rows if rng.random() > 0.1]
        engines.b.receive_and_commit(kept, now)
        if rng.random() < 0.8:
            engines.a.receive_and_commit([row for row in engines.b.rows(now) if rng.random() > 0.1], now)
    return found


def send_more(engines: Pair, rng: random.Random) -> None:
    """Applications send messages in established dialogs, and rarely end one."""
    for key in rng.sample(KEYS, rng.randint(0, len(KEYS))):
        outgoing = engines.a.storage.accounts[key].outgoing
        if any(message.is_end or message.is_error for message in outgoing.values()):
            continue
        for _ in range(rng.randint(1, 9)):
            engines.a.send(key, rng.randbytes(rng.choice([0, 1, 60, 60, 60, 100, 101, 350])))
        if rng.random() < 0.02:
            engines.a.send(key, b"", message_type=rng.choice([END_DIALOG, ERROR]))


@pytest.mark.parametrize("seed", range(40))
def test_the_fast_path_sends_the_same_rows(
    seed: int, cuts: list[FastOutbound | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows in the same order at the same times, with any losses, long messages, ends and evictions in between."""
    in_runs = played(seed)
    assert any(cuts)
    monkeypatch.setattr(sender, "take_fast", lambda *_: None)
    assert in_runs == played(seed)


def test_small_messages_of_established_dialogs_take_the_fast_path(cuts: list[FastOutbound | None]) -> None:
    engines = established_pair(DialogEngine)
    cuts.clear()
    for step in range(10):
        engines.a.send(engines.outgoing, *(b"%d" % number for number in range(step)))
        engines.exchange((20 + 10 * step) * SECOND)
    assert [sum(run.sent for run in cut.runs) for cut in cuts if cut is not None] == list(range(1, 10))
    assert None not in cuts


@pytest.mark.parametrize(
    ("bodies", "kind"),
    [([b"1", b"x" * 101, b"2"], "Order"), ([b"1"], ERROR)],
    ids=["a message of two fragments", "an error of the application"],
)
def test_one_unusual_message_excludes_its_turn_from_the_fast_path(
    bodies: list[bytes], kind: str, cuts: list[FastOutbound | None]
) -> None:
    engines = established_pair(DialogEngine, max_fragment_bytes=100)
    other = engines.begin(conversation=KEYS[0][0])
    engines.a.send(other, b"first")
    engines.exchange(20 * SECOND)
    cuts.clear()
    engines.a.send(engines.outgoing, *bodies, message_type=kind)
    engines.a.send(other, b"second")
    assert len(numbers(engines.a.rows(40 * SECOND))) == sum(1 + (len(body) > 100) for body in bodies) + 1
    assert cuts[0] is None


def test_a_row_has_the_columns_of_message_sender_and_receiver() -> None:
    messages = messages_table(
        [
            (b"c" * 16, True, 7, "Order", b"i" * 16, False, False, b"one"),
            (b"c" * 16, True, 8, "Order", b"j" * 16, True, False, b""),
            (b"d" * 16, False, 0, "Bill", b"k" * 16, False, False, b"two"),
        ]
    )
    names = ("Shop", "Bank", "Contract")
    senders = [(2, 1, names, A, B, 5, 1_000_000, (3, b"ahead")), (1, 1, names[::-1], B, None, 10, None, None)]
    [batch] = _core.outgoing_rows(messages, senders)
    first, second = batch.to_pylist()
    common = {"fragment_number": 0, "fragment_count": 1, "is_sequenced": True, "security": 0}
    assert common.items() <= first.items()
    assert common.items() <= second.items()
    assert {**first, **common} == first
    assert [first["message_sequence_number"], second["message_sequence_number"]] == [7, 0]
    assert (first["acked_sequence_number"], first["acked_ahead"]) == (3, b"ahead")
    assert (second["acked_sequence_number"], second["acked_ahead"]) == (None, None)
    assert [second[name] for name in ("from_service_name", "to_service_name", "service_contract_name")] == [
        *names[::-1]
    ]
    assert (first["to_broker_instance"], second["to_broker_instance"]) == (B, None)
    assert (first["lifetime"].timestamp(), second["lifetime"], second["priority"]) == (1.0, None, 10)
    for row in (first, second):
        digest = hashlib.md5(row["message_body"], usedforsecurity=False).digest()
        assert (row["message_signature"], row["fragment_signature"]) == (digest, digest)
    assert batch["header_signature"] == _core.header_digests(batch)


def changed(row: Row, **values: Any) -> tuple[Any, ...]:
    """Returns a message with other values in some columns."""
    return tuple({**row, **values}.values())


def test_consecutive_messages_of_a_sender_form_a_run() -> None:
    usual = (b"c" * 16, True, 7, "Order", b"i" * 16, False, False, b"one")
    row: Row = dict(zip(MESSAGES.names, usual, strict=True))
    then = changed(row, message_sequence_number=8, message_body=b"")
    other = changed(row, is_initiator=False)
    assert _core.outgoing_runs(NO_MESSAGES) == []
    assert _core.outgoing_runs(messages_table([usual, then, other])) == [
        (b"c" * 16, True, 7, [3, 0]),
        (b"c" * 16, False, 7, [3]),
    ]
    for alone in (
        [usual, changed(row, message_sequence_number=9)],
        [usual, usual],
        [usual, other, then],
        [changed(row, is_conversation_error=True)],
        [changed(row, message_sequence_number=2**63 - 1), changed(row, message_sequence_number=-(2**63))],
    ):
        assert _core.outgoing_runs(messages_table(alone)) is None
    unread = pa.table({name: [row[name]] for name in MESSAGES.names[:-1]} | {"message_body": pa.nulls(1, pa.binary())})
    assert _core.outgoing_runs(unread.cast(pa.schema([field.with_nullable(True) for field in MESSAGES]))) is None


def test_messages_in_several_chunks() -> None:
    rows = [(b"c" * 16, True, number, "Order", b"i" * 16, False, False, b"%d" % number) for number in range(5)]
    messages = pa.concat_tables([messages_table(rows[:2]), messages_table(rows[2:])])
    assert _core.outgoing_runs(messages) == [(b"c" * 16, True, 0, [1] * 5)]
    sender = (5, 4, ("Shop", "Bank", "Contract"), A, B, 5, None, None)
    batches = _core.outgoing_rows(messages, [sender])
    assert [batch["message_sequence_number"].to_pylist() for batch in batches] == [[0, 1], [2, 3]]


def test_the_number_of_rows_is_that_of_the_messages() -> None:
    rows = [(b"c" * 16, True, number, "Order", b"i" * 16, False, False, b"") for number in range(2)]
    for waiting in (1, 3):
        sender = (waiting, 1, ("Shop", "Bank", "Contract"), A, B, 5, None, None)
        with pytest.raises(MalformedDataError, match="number of messages differs"):
            _core.outgoing_rows(messages_table(rows), [sender])
    with pytest.raises(SchemaError, match="message_body"):
        _core.outgoing_runs(NO_MESSAGES.drop(["message_body"]))
    with pytest.raises(SchemaError, match="message_id"):
        _core.outgoing_rows(NO_MESSAGES.drop(["message_id"]), [])
