"""P16, P17: a storage that temporarily cannot be read causes delays only; nothing is acknowledged before it is durable."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ssbroker.exceptions import StorageError
from ssbroker.protocol.storage import DialogEndpoint
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, Side, bound, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def unreadable(side: Side, *methods: str) -> Iterator[None]:
    """The file of a side cannot be read."""

    def fails(*_: Any, **__: Any) -> Any:
        raise StorageError("disk I/O error", file="a file")

    with pytest.MonkeyPatch.context() as patch:
        for method in methods:
            patch.setattr(side.storage, method, fails)
        yield


def fails_to_arrive(both: Pair, rows: list[dict[str, Any]], method: str) -> None:
    """Rows arrive, but cannot be planned."""
    with unreadable(both.b, method), pytest.raises(StorageError):
        both.b.arrived(rows, 20 * SECOND)


@pytest.mark.rule("P16")
@pytest.mark.parametrize("method", ["validate", "list_stored", "read_stored", "endpoints"])
def test_rows_that_could_not_be_processed_have_not_arrived(engine: EngineFactory, method: str) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"order", b"what waits for it")
    rows = both.a.rows(20 * SECOND)
    both.b.take([row for row in rows if row["message_sequence_number"] == 2], 20 * SECOND)
    both.b.rows(23 * SECOND)
    both.b.dialogs.flush(now=60 * SECOND)
    fails_to_arrive(both, rows, method)
    both.b.take(rows, 21 * SECOND)
    both.a.take(both.b.rows(23 * SECOND), 23 * SECOND)
    assert both.b.queue(both.incoming)[-2:] == [b"order", b"what waits for it"]
    assert both.a.waiting(both.outgoing) == []


@pytest.mark.rule("P17")
def test_due_messages_are_sent_again_once_they_can_be_read(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    with unreadable(both.a, "outgoing"), pytest.raises(StorageError):
        both.a.rows(30 * SECOND)
    assert both.a.dialogs.next_timeout() == 0
    assert numbers(both.a.rows(31 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P17")
def test_new_messages_are_sent_once_they_can_be_read(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"new")
    with unreadable(both.a, "outgoing"), pytest.raises(StorageError):
        both.a.rows(20 * SECOND)
    assert numbers(both.a.rows(21 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P16")
def test_a_due_acknowledgement_is_sent_later(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"order")
    both.b.take(both.a.rows(20 * SECOND), 20 * SECOND)
    other = both.b.storage.begin(
        DialogEndpoint(
            conversation_id=b"the second one..",
            is_initiator=True,
            service_name="Bank",
            far_service_name="Shop",
            broker_instance=both.b.name,
        )
    )
    both.b.send(other, b"in the way")
    with unreadable(both.b, "outgoing"), pytest.raises(StorageError):
        both.b.rows(22 * SECOND)
    acked = [row["acked_sequence_number"] for row in both.b.rows(23 * SECOND)]
    assert 1 in acked


@pytest.mark.rule("P17")
def test_a_dialog_that_cannot_be_loaded_is_loaded_later(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    assert both.a.dialogs.flush(now=31 * SECOND)
    with unreadable(both.a, "endpoints"), pytest.raises(StorageError):
        both.a.rows(32 * SECOND)
    assert numbers(both.a.rows(33 * SECOND)) == [(1, 0)]
