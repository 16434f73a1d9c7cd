"""A row that cannot be processed does not affect the other rows of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker.broker.network import inbound
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.inbound import FAILED_ROWS_MAX
from ssbroker.exceptions import StorageError
from ssbroker.protocol.events import LOG_LINES_MAX, MessageUndeliverable
from ssbroker.protocol.storage import Refusal
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import waiting

BAD = b"bad"
MANY = 40


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def make_validation_fail(monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]) -> list[int]:
    """Makes the bank fail on bad messages; returns the number of messages of each attempt."""
    validate, attempts = SqliteDialogStorage.validate, list[int]()

    def failing_validate(
        self: SqliteDialogStorage, messages: pa.Table, contracts: Sequence[str]
    ) -> Mapping[int, Refusal]:
        attempts.append(messages.num_rows)
        if BAD in messages["message_body"].to_pylist():
            raise error()
        return validate(self, messages, contracts)

    monkeypatch.setattr(SqliteDialogStorage, "validate", failing_validate)
    return attempts


def unexpected_error_events(shop_and_bank: ShopAndBank) -> list[MessageUndeliverable]:
    return [event for event in shop_and_bank.network.emitted("bank", MessageUndeliverable) if event.error == 9736]


def test_a_message_that_cannot_be_processed_is_isolated(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_validation_fail(monkeypatch, lambda: ValueError("cannot validate"))
    bodies = [b"%d" % number for number in range(MANY)]
    for number, body in enumerate(bodies):
        shop_and_bank.send(BAD if number == MANY // 3 else body)
    shop_and_bank.network.settle()
    assert sorted(shop_and_bank.receive_orders()) == sorted(
        body for number, body in enumerate(bodies) if number != MANY // 3
    )
    assert len(waiting(shop_and_bank.sales)) == 1, "the sender keeps the message"
    (event,) = unexpected_error_events(shop_and_bank)
    assert event.peer == b"shop"
    assert "ValueError" in event.text
    (line,) = [record for record in caplog.records if record.exc_info is not None]
    assert "shop" in line.getMessage()
    assert line.exc_info is not None
    assert str(line.exc_info[1]) == "cannot validate"


def test_a_row_that_cannot_be_routed_is_isolated(shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> None:
    conversations = inbound._conversations

    def failing_conversations(rows: pa.Table) -> pa.Table:
        if "//Bad" in rows["to_service_name"].to_pylist():
            raise ValueError(rows)
        return conversations(rows)

    monkeypatch.setattr(inbound, "_conversations", failing_conversations)
    shop_and_bank.sales.create_route("Bad", address="TCP://bank:4022", service_name="//Bad")
    for number in range(MANY):
        shop_and_bank.send(b"%d" % number)
    shop_and_bank.send(BAD, to="//Bad")
    shop_and_bank.network.settle()
    assert len(shop_and_bank.receive_orders()) == MANY
    assert len(unexpected_error_events(shop_and_bank)) == 1


def test_only_some_of_many_bad_rows_are_isolated(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log contains a limited number of them."""
    attempts = make_validation_fail(monkeypatch, lambda: ValueError("cannot validate"))
    for _ in range(8 * MANY):
        shop_and_bank.send(BAD)
    shop_and_bank.network.settle()
    assert attempts[0] == 8 * MANY
    assert len(attempts) < 4 * FAILED_ROWS_MAX
    assert len(unexpected_error_events(shop_and_bank)) in (FAILED_ROWS_MAX, FAILED_ROWS_MAX + 1), (
        "one of the remaining halves has one row"
    )
    for _ in range(5):
        shop_and_bank.network.settle(seconds=5)
    assert sum(record.exc_info is not None for record in caplog.records) <= LOG_LINES_MAX + 1


def test_a_full_disk_isolates_no_row(shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is isolated, and all rows are sent again."""
    attempts = make_validation_fail(monkeypatch, lambda: StorageError("the disk is full"))
    shop_and_bank.send(b"one")
    shop_and_bank.send(BAD)
    shop_and_bank.network.settle()
    assert (attempts, unexpected_error_events(shop_and_bank)) == ([2], [])
    monkeypatch.undo()
    shop_and_bank.network.settle(seconds=5)
    assert sorted(shop_and_bank.receive_orders()) == [BAD, b"one"]


def test_a_log_does_not_grow_while_a_disk_is_full(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = make_validation_fail(monkeypatch, lambda: StorageError("the disk is full"))
    for _ in range(2 * LOG_LINES_MAX):
        shop_and_bank.send(BAD)
        shop_and_bank.network.settle()
    assert len(attempts) >= 2 * LOG_LINES_MAX
    lines = [record for record in caplog.records if "could not be stored" in record.getMessage()]
    assert 0 < len(lines) <= LOG_LINES_MAX + 1
