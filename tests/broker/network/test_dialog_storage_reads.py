"""Reads of the protocol engine: messages to send, waiting conversations, and transmission objects of idle dialogs."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pyarrow as pa
import pytest

from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.broker.database import database_context
from ssbroker.broker.network import dialog_storage
from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.storage import MESSAGES, MessageRange, Refusal
from ssbroker.store.sqlite import Connection
from tests.broker.dialog_calls import end, send
from tests.broker.network.engine_pair import DEFAULT, MINUTE, ORDERS, TRADE, Pair, pair, senders_with_messages

ALL = 2**62


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path)
    yield made
    made.close()


def sent(engines: Pair, *wanted: MessageRange) -> list[dict[str, Any]]:
    table = engines.shop.storage.outgoing(wanted)
    assert table.schema.equals(MESSAGES)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@pytest.mark.rule("P16")
def test_requested_messages_are_read_in_order_up_to_the_limit(engines: Pair) -> None:
    first, other = engines.begin(*[b"%d" % number for number in range(6)]), engines.begin(b"", b"x" * 1000)
    one, two = engines.shop.key(first), engines.shop.key(other)
    rows = sent(engines, MessageRange(one, 2, 4, 9, ALL), MessageRange(two, 0, ALL, 9, ALL))
    assert [(row["message_sequence_number"], row["message_body"]) for row in rows] == [
        (2, b"2"),
        (3, b"3"),
        (4, b"4"),
        (0, b""),
        (1, b"x" * 1000),
    ]
    assert {row["message_type_name"] for row in rows} == {DEFAULT}
    assert len(sent(engines, MessageRange(one, 0, ALL, 2, ALL))) == 2
    assert [row["message_body"] for row in sent(engines, MessageRange(one, 0, ALL, 9, 3))] == [b"0", b"1", b"2"]
    assert len(sent(engines, MessageRange(two, 1, ALL, 9, 1))) == 1  # the first message is returned whatever its size
    assert sent(engines, MessageRange(one, 7, 9, 9, ALL)) == sent(engines) == []
    assert [row["message_body"] for row in sent(engines, MessageRange(two, 0, ALL, 9, ALL, 999))] == [b"", None]
    assert [row["message_body"] for row in sent(engines, MessageRange(one, 0, ALL, 9, ALL, 0))] == [None]


@pytest.mark.rule("P13")
def test_slices_of_a_body_are_read(engines: Pair) -> None:
    body = bytes(range(256)) * 400
    key = engines.shop.key(engines.begin(b"first", body))
    spans = [(0, 3), (8190, 8200), (50_000, 100_000), (len(body) - 1, len(body) + 9), (len(body) + 9, len(body) + 10)]
    assert engines.shop.storage.read_body_slices(key, 1, spans) == [body[begin:end] for begin, end in spans]
    assert engines.shop.storage.read_body_slices(key, 1, []) == []
    assert engines.shop.storage.read_body_slices(key, 2, spans) is None
    assert engines.shop.storage.read_body_slices((bytes(16), True), 1, spans) is None


MIB = 1 << 20


def test_a_large_body_is_read_once_over_many_turns(engines: Pair) -> None:
    """SQLite walks the overflow pages of a body from the start, so a read per turn would visit many more pages."""
    size = 33 * MIB + 5
    body = Random(1).randbytes(size)
    key = engines.shop.key(engines.begin(body))
    with database_context(engines.shop.database).file.read() as connection:  # the next reader gets the same connection
        pass
    before = pages_visited(connection)
    found: list[bytes] = []
    for begin in range(0, size, MIB):
        found += engines.shop.storage.read_body_slices(key, 0, [(begin, begin + MIB)]) or [b""]
    assert b"".join(found) == body
    assert pages_visited(connection) - before < 4 * size // 4096


@pytest.mark.parametrize("seed", range(20))
def test_messages_read_ahead_equal_the_stored_ones(engines: Pair, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Reads of several messages, with repeated slices and with messages that are removed during the reads."""
    rng = Random(seed)
    monkeypatch.setattr(dialog_storage, "READ_AHEAD_MAX", rng.choice([100, 1000, 5000]))
    bodies = {engines.shop.key(engines.begin(body)): body for body in (rng.randbytes(4000) for _ in range(3))}
    positions = dict.fromkeys(bodies, 0)
    for _ in range(200):
        key = rng.choice(list(bodies))
        if rng.random() < 0.1:
            engines.shop.storage.drop_read_ahead()
        step, position = rng.randint(0, 400), positions[key]
        again = sorted(rng.sample(range(position + 1), 2)) if position and rng.random() < 0.3 else None
        spans = [*([(again[0], again[1])] if again else []), (position, position + step)]
        expected = [bodies[key][begin:end] for begin, end in spans]
        assert engines.shop.storage.read_body_slices(key, 0, spans) == expected
        positions[key] = (position + step) if position < 4200 else 0
    removed = next(iter(bodies))
    with database_context(engines.shop.database).file.write() as connection:
        connection.execute("DELETE FROM ssb_transmission_queue WHERE transmission_id = 1")
    assert engines.shop.storage.read_body_slices(removed, 0, [(0, 9)]) is None


def pages_visited(connection: Connection) -> int:
    """Returns the number of pages that a connection has requested, cached or not."""
    return sum(connection.status(each)[0] for each in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS))


def test_message_ids_are_constant_and_distinct(engines: Pair) -> None:
    keys = [engines.shop.key(engines.begin(b"1", b"2")) for _ in range(2)]
    ids = [row["message_id"] for row in sent(engines, *[MessageRange(key, 0, 1, 9, ALL) for key in keys])]
    engines.shop.restart()
    assert ids == [row["message_id"] for row in sent(engines, *[MessageRange(key, 0, 1, 9, ALL) for key in keys])]
    assert len(set(ids)) == 4
    assert {uuid.UUID(bytes=each).version for each in ids} == {8}


def test_the_error_that_ended_a_conversation_is_returned(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1", b"2")
    key = engines.shop.key(shop)
    end(engines.shop.database, shop, error=(7, "sold out"))
    (row,) = sent(engines, MessageRange(key, 1, 1, 1, ALL), MessageRange(key, 2, 2, 1, ALL))
    assert (row["message_sequence_number"], row["message_type_name"], row["is_conversation_error"]) == (3, ERROR, True)
    other = engines.begin(b"1")
    end(engines.shop.database, other)
    (_, row) = sent(engines, MessageRange(engines.shop.key(other), 0, ALL, 9, ALL))
    assert (row["message_type_name"], row["is_end_of_dialog"], row["message_body"]) == (END_DIALOG, True, b"")


@pytest.mark.rule("P16")
def test_after_a_restart_all_conversations_with_messages_are_found(engines: Pair) -> None:
    handles = [engines.begin(b"1"), engines.begin(), engines.begin(b"1")]
    keys = {engines.shop.key(handles[0]), engines.shop.key(handles[2])}
    engines.shop.restart()
    assert set(senders_with_messages(engines.shop.database)) == keys


@pytest.mark.rule("P32")
def test_objects_of_idle_dialogs_are_stored_until_the_process_ends(engines: Pair) -> None:
    shop, _ = engines.establish()
    engines.clock.advance(seconds=MINUTE)
    assert engines.shop.dialogs.flush(now=engines.shop.now) == 1
    assert engines.shop.count("transmission_objects") == 1
    assert list(engines.shop.storage.load_transmissions([engines.shop.key(shop)])) == [engines.shop.key(shop)]
    send(engines.shop.database, shop, b"1")
    engines.exchange()
    assert engines.stock.instance.view(ORDERS, database="Sales").num_rows == 1
    engines.shop.restart()
    assert engines.shop.count("transmission_objects") == 0


@pytest.mark.rule("P32")
def test_a_damaged_object_is_reported_with_its_conversation(engines: Pair) -> None:
    shop, _ = engines.establish()
    engines.clock.advance(seconds=MINUTE)
    engines.shop.dialogs.flush(now=engines.shop.now)
    key = engines.shop.key(shop)
    engines.shop.storage.save_transmissions({key: b"damaged"})
    send(engines.shop.database, shop, b"1")
    with pytest.raises(MalformedDataError, match=f"conversation {uuid.UUID(bytes=key[0])}: work table: not a valid"):
        engines.exchange()


@pytest.mark.rule("P32")
def test_objects_are_removed_with_their_endpoints(engines: Pair) -> None:
    shop, _ = engines.establish()
    key = engines.shop.key(shop)
    engines.shop.storage.save_transmissions({key: b"packed", (bytes(16), True): b"of nobody"})
    assert engines.shop.storage.load_transmissions([key, (bytes(16), True)]) == {key: b"packed"}
    end(engines.shop.database, shop, cleanup=True)
    assert engines.shop.count("transmission_objects") == 0


@pytest.mark.rule("P25")
def test_the_binding_of_a_conversation_is_read(engines: Pair) -> None:
    shop = engines.begin(b"1")
    engines.stock.receive_rows(engines.shop.rows())
    engines.clock.advance(seconds=1)
    effects = engines.shop.process(engines.stock.rows())
    (bound,) = effects.bound
    secured = replace(bound, far_session_key=b"k" * 32, far_certificate=b"c" * 32)
    engines.shop.storage.commit(replace(effects, bound=(secured,)))
    (read,) = engines.shop.storage.endpoints([engines.shop.key(shop)])
    assert read == secured
    assert engines.shop.storage.endpoints([(bytes(16), True)]) == [None]


def test_message_types_of_the_broker_cannot_be_forged(engines: Pair) -> None:
    """The type, the header and the body of a message that ends a dialog must match."""
    shop, stock = engines.establish()
    conversation, _ = engines.shop.key(shop)
    send(engines.shop.database, shop, b"")

    def refusal_code(kind: str, body: bytes, *, is_end: bool = False, is_error: bool = False) -> int | None:
        row = (conversation, True, 1, kind, None, is_end, is_error, body)
        arrays = [pa.array([value], field.type) for value, field in zip(row, MESSAGES, strict=True)]
        answer = engines.stock.storage.validate(pa.Table.from_arrays(arrays, schema=MESSAGES), [TRADE]).get(0)
        assert answer is None or isinstance(answer, Refusal)
        return None if answer is None else answer.code

    assert refusal_code("Order", b"") is None
    assert refusal_code(END_DIALOG, b"", is_end=True) is None
    assert refusal_code(ERROR, b"<Error/>", is_error=True) is None
    assert refusal_code(END_DIALOG, b"") == -8498
    assert refusal_code(ERROR, b"<Error/>") == -8498
    assert refusal_code("Order", b"", is_end=True) == -8498
    assert refusal_code("no such type", b"", is_error=True) == -8498
    assert refusal_code(END_DIALOG, b"x", is_end=True) == -8430
    assert refusal_code(ERROR, b"no XML", is_error=True) == -8430
    end(engines.stock.database, stock)
    assert refusal_code("no such type", b"") is None  # the message is dropped
