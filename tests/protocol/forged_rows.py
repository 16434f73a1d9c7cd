"""Rows of a secured dialog, forged without the key by an attacker who has all rows ever sent. `python -m tests.protocol.forged_rows --rows 1000000`."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

from ssbroker._well_known import END_DIALOG, ERROR
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import NAMES, Protection
from tests.protocol.pair import CONVERSATION, KEY, SECOND, Pair, Row, pair
from tests.protocol.test_receiver import with_new_header_digest

OTHER: Final = b"two conversation"
FAILED: Final = b"bad conversation"
DIALOGS: Final = (CONVERSATION, OTHER, FAILED)
BATCH: Final = 1000
MESSAGES: Final = 60
NOW: Final = 20 * SECOND

Forgery = Callable[[Random, Row, Sequence[Row]], Row]


def _bit(random: Random, value: bytes) -> bytes:
    bit = random.randrange(8 * len(value))
    return (int.from_bytes(value) ^ 1 << bit).to_bytes(len(value))


def _flipped(column: str) -> Forgery:
    return lambda random, row, _: {**row, column: _bit(random, row[column] or bytes(16))}


def _shifted(column: str) -> Forgery:
    return lambda random, row, _: {**row, column: max(0, (row[column] or 0) + random.choice((-2, -1, 1, 2, 100)))}


def _copied(*columns: str) -> Forgery:
    """Takes some columns from another row."""

    def forge(random: Random, row: Row, rows: Sequence[Row]) -> Row:
        other = random.choice(rows)
        return {**row, **{column: other[column] for column in columns}}

    return forge


def _signed_with_md5(random: Random, row: Row, _: Sequence[Row]) -> Row:
    """Signs with MD5, which needs no key."""
    body = random.randbytes(16)
    return with_new_header_digest(
        {**row, "security": Protection.PLAIN, "message_body": body if row["is_sequenced"] else b""}
    )


def _signed_at_random(random: Random, row: Row, _: Sequence[Row]) -> Row:
    """Returns an arbitrary signature."""
    return {**row, "header_signature": random.randbytes(16), "message_body": random.randbytes(32)}


def _acknowledged(random: Random, row: Row, _: Sequence[Row]) -> Row:
    """Acknowledges more than was received."""
    return {**row, "acked_sequence_number": random.randrange(1 << 40), "acked_ahead": row["acked_ahead"] or b""}


FORGERIES: Final[dict[str, Forgery]] = {
    **{
        f"a bit of {column}": _flipped(column)
        for column in (
            "message_body",
            "message_signature",
            "fragment_signature",
            "header_signature",
            "conversation_id",
            "from_broker_instance",
            "message_id",
            "acked_ahead",
        )
    },
    **{
        f"another {column}": _shifted(column)
        for column in ("message_sequence_number", "fragment_number", "fragment_count", "priority")
    },
    "the body of another row": _copied("message_body"),
    "body and signatures of another row": _copied(
        "message_body", "message_signature", "fragment_signature", "header_signature"
    ),
    "the place of another row": _copied("message_sequence_number", "fragment_number", "fragment_count"),
    "the conversation of another row": _copied("conversation_id"),
    "kind and type of another row": _copied(
        "is_sequenced", "message_type_name", "is_end_of_dialog", "is_conversation_error"
    ),
    "the acknowledgement of another row": _copied("acked_sequence_number", "acked_ahead"),
    "turned round": lambda _, row, __: {**row, "is_initiator": not row["is_initiator"]},
    "another service": lambda _, row, __: {**row, "to_service_name": "Thief"},
    "another contract": lambda _, row, __: {**row, "service_contract_name": "Theft"},
    "another lifetime": lambda random, row, __: {**row, "lifetime": random.randrange(1 << 50)},
    "cut": lambda random, row, __: {
        **row,
        "message_body": row["message_body"][: random.randrange(max(1, len(row["message_body"])))],
    },
    "longer": lambda random, row, __: {**row, "message_body": row["message_body"] + random.randbytes(1)},
    "as if the body were unencrypted": lambda _, row, __: {**row, "security": Protection.SIGNED},
    "unencrypted, with correct digests": _signed_with_md5,
    "encrypted with a key of the attacker": _signed_at_random,
    "an acknowledgement of more": _acknowledged,
}
"""Changes a row."""


def recorded(engines: Pair) -> list[Row]:
    """Returns rows of every kind before they arrive: fragments, acknowledgements, an end and an error.

    The dialogs have the same key.
    """
    for conversation in DIALOGS[1:]:
        engines.begin(conversation=conversation, session_key=KEY)
    random = Random(22)
    for conversation in DIALOGS:
        engines.a.send((conversation, True), b"first")
        engines.exchange()
        engines.b.send((conversation, False), b"first back")
        engines.exchange(5 * SECOND)
    engines.b.send((OTHER, False), b"answered")
    engines.a.receive_and_commit(engines.b.rows(10 * SECOND), 10 * SECOND)
    acknowledgements = engines.a.rows(12 * SECOND)
    for conversation in (CONVERSATION, OTHER):
        for number in range(MESSAGES):
            engines.a.send((conversation, True), random.randbytes(16 * (1 + number % 4)))
        engines.a.send((conversation, True), b"the last", message_type=END_DIALOG)
    engines.a.send((FAILED, True), b"<Error/>", message_type=ERROR)
    return [*acknowledgements, *engines.a.rows(NOW)]


def forged(rows: Sequence[Row], random: Random) -> Iterator[tuple[str, Row]]:
    """Yields forged rows forever, each with the name of its change; none equals a sent row."""
    honest = {_frozen(row) for row in rows}
    names = [*FORGERIES]
    while True:
        name = random.choice(names)
        row = FORGERIES[name](random, random.choice(rows), rows)
        if _frozen(row) not in honest:
            yield name, row


def _frozen(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in NAMES)


def attack(number: int, *, seed: int = 22) -> tuple[Counter[str], int]:
    """Passes forged rows to a receiver that also gets honest ones.

    Args:
        number: Number of forged rows.
        seed: Seed of the forgeries.

    Returns:
        The number of forgeries of each kind, and the number of honest messages received afterwards.

    Raises:
        AssertionError: A forged row was accepted.
    """
    engines = pair(DialogEngine, dialog={"session_key": KEY}, max_fragment_bytes=16)
    rows = recorded(engines)
    before = [engines.b.queue((conversation, False)) for conversation in DIALOGS]
    engines.b.rows(NOW)  # the rows sent without acknowledgements
    tried: Counter[str] = Counter()
    made = forged(rows, Random(seed))
    while tried.total() < number:
        batch = [next(made) for _ in range(min(BATCH, number - tried.total()))]
        tried.update(name for name, _ in batch)
        effects = engines.b.receive([row for _, row in batch], NOW)
        assert effects.is_empty, "a forged row was accepted"
        engines.b.dialogs.confirm(effects, now=NOW)
        answers = engines.b.rows(NOW)
        assert answers == [], f"a forged row was answered: {answers[:1]}"
        engines.b.events.clear()
    assert [engines.b.queue((conversation, False)) for conversation in DIALOGS] == before
    engines.b.receive_and_commit(rows, NOW)
    received = [engines.b.queue((conversation, False)) for conversation in DIALOGS]
    return tried, sum(len(queue) for queue in received) - sum(len(queue) for queue in before)


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.forged_rows")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=22)
    arguments = parser.parse_args()
    started = time.perf_counter()
    tried, received = attack(arguments.rows, seed=arguments.seed)
    for name, count in sorted(tried.items()):
        print(f"{count:>10,}  {name}")
    print(
        f"{tried.total():>10,}  forged rows in {time.perf_counter() - started:.0f} s, 0 accepted; {received} honest messages after them"
    )


if __name__ == "__main__":
    main()
