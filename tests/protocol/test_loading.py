"""P14, P26, N38: directions are read back as memory has room for them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from ssbroker.protocol.ledger import Key
from ssbroker.testing.memory import MemoryLedger
from ssbroker.testing.node import Machine
from tests.protocol.pair import B, Pair, pair


def in_ten_messages(both: Pair) -> tuple[dict[bytes, bytes], list[list[list[dict[str, object]]]]]:
    """Ten messages of 64 KiB, and their fragments: eight of each message at a time, by message."""
    bodies = {bytes([number]) * 16: bytes([number]) * (64 << 10) for number in range(10)}
    for conversation, body in bodies.items():
        both.a.send(both.begin(conversation=conversation, far_broker_instance=B), body)
    rows = both.a.rows()
    assert len(rows) == 640
    of_each = [[row for row in rows if row["conversation_id"] == each] for each in bodies]
    return bodies, [[of_one[first : first + 8] for of_one in of_each] for first in range(0, 64, 8)]


def noted(patch: pytest.MonkeyPatch, ledger: MemoryLedger) -> list[int]:
    """How many bytes were read back at a time."""
    sizes: list[int] = []
    stored = ledger.stored

    def read(keys: Sequence[Key]) -> pa.Table:
        rows = stored(keys)
        sizes.append(rows["message_body"].nbytes)
        return rows

    patch.setattr(ledger, "stored", read)
    return sizes


@pytest.mark.parametrize("together", [1, 5])
def test_p26_n38_large_messages_that_leave_no_room_for_each_other_become_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """P26, N38: a third of them fits into memory, and none comes before the others, also not in a batch; nothing is refused or comes again.

    What is read back at once fits into the half of memory that is for it, however much is kept of those that a batch brings something for.
    """
    both = pair(machine, max_fragment_bytes=1 << 10, max_pending_bytes=400 << 10)
    read = noted(monkeypatch, both.b.ledger)
    bodies, rounds = in_ten_messages(both)
    for of_all in rounds:
        for some in range(0, 10, together):
            both.b.take([row for of_one in of_all[some : some + together] for row in of_one])
    assert both.b.refused == []
    assert together == 1 or max(read) > 90 << 10
    assert max(read) <= 200 << 10
    assert {conversation: both.b.queue((conversation, False)) for conversation in bodies} == {
        conversation: [body] for conversation, body in bodies.items()
    }
    assert all(both.b.ledger.accounts[conversation, False].stored == {} for conversation in bodies)


def test_p26_n38_a_batch_makes_no_more_whole_than_memory_may_hold(machine: Machine) -> None:
    """P26, N38: the last fragments of ten messages at once: what is beyond is refused, and taken when it comes again."""
    both = pair(machine, max_fragment_bytes=1 << 10, max_pending_bytes=400 << 10)
    bodies, rounds = in_ten_messages(both)
    for of_all in rounds:
        both.b.take([row for of_one in of_all for row in of_one])
    whole = [conversation for conversation in bodies if both.b.queue((conversation, False))]
    assert 5 <= len(whole) < 10
    assert {event.text for event in both.b.refused} == {"limit_exceeded"}
    assert len(both.b.refused) == 8 * (10 - len(whole))
    both.b.take([row for of_one in rounds[-1] for row in of_one])
    assert [both.b.queue((conversation, False)) for conversation in bodies] == [[body] for body in bodies.values()]
