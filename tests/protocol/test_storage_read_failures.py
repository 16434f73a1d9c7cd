"""P16, P17: a storage that temporarily cannot be read causes delays only; nothing is acknowledged before it is durable."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from ssbroker.exceptions import StorageError
from ssbroker.protocol.storage import DialogEndpoint
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, Side, established_pair, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def unreadable(side: Side, *methods: str) -> Iterator[None]:
    """Makes the storage of a side unreadable."""

    def fails(*_: Any, **__: Any) -> Any:
        raise StorageError("disk I/O error", file="a file")

    with pytest.MonkeyPatch.context() as patch:
        for method in methods:
            patch.setattr(side.storage, method, fails)
        yield


def fails_to_arrive(engines: Pair, rows: list[dict[str, Any]], method: str) -> None:
    """Passes rows that cannot be processed, because storage cannot be read."""
    with unreadable(engines.b, method), pytest.raises(StorageError):
        engines.b.receive(rows, 20 * SECOND)


@pytest.mark.rule("P16")
@pytest.mark.parametrize("method", ["validate", "list_stored", "read_stored", "endpoints"])
def test_rows_that_could_not_be_processed_have_not_arrived(engine: EngineFactory, method: str) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"order", b"what waits for it")
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit([row for row in rows if row["message_sequence_number"] == 2], 20 * SECOND)
    engines.b.rows(23 * SECOND)
    engines.b.dialogs.flush(now=60 * SECOND)
    fails_to_arrive(engines, rows, method)
    engines.b.receive_and_commit(rows, 21 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(23 * SECOND), 23 * SECOND)
    assert engines.b.queue(engines.incoming)[-2:] == [b"order", b"what waits for it"]
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("P17")
def test_due_messages_are_sent_again_once_they_can_be_read(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"lost")
    engines.a.rows(20 * SECOND)
    with unreadable(engines.a, "outgoing"), pytest.raises(StorageError):
        engines.a.rows(30 * SECOND)
    assert engines.a.dialogs.next_timeout() == 0
    assert numbers(engines.a.rows(31 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P17")
def test_new_messages_are_sent_once_they_can_be_read(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"new")
    with unreadable(engines.a, "outgoing"), pytest.raises(StorageError):
        engines.a.rows(20 * SECOND)
    assert numbers(engines.a.rows(21 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P16")
def test_a_due_acknowledgement_is_sent_later(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"order")
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND), 20 * SECOND)
    other = engines.b.storage.begin(
        DialogEndpoint(
            conversation_id=b"the second one..",
            is_initiator=True,
            service_name="Bank",
            far_service_name="Shop",
            broker_instance=engines.b.name,
        )
    )
    engines.b.send(other, b"in the way")
    with unreadable(engines.b, "outgoing"), pytest.raises(StorageError):
        engines.b.rows(22 * SECOND)
    acked = [row["acked_sequence_number"] for row in engines.b.rows(23 * SECOND)]
    assert 1 in acked


@pytest.mark.rule("P17")
def test_a_dialog_that_cannot_be_loaded_is_loaded_later(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"lost")
    engines.a.rows(20 * SECOND)
    assert engines.a.dialogs.flush(now=31 * SECOND)
    with unreadable(engines.a, "endpoints"), pytest.raises(StorageError):
        engines.a.rows(32 * SECOND)
    assert numbers(engines.a.rows(33 * SECOND)) == [(1, 0)]
