"""The log contains the first lines of each kind and peer in a minute, then one line that counts the rest."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.cli.serve_logging import JsonLines
from ssbroker.protocol import events
from ssbroker.protocol.events import (
    LOG_LINES_MAX,
    LOG_WINDOW,
    LOGGER,
    WARNED_AGAIN_AFTER,
    ConnectionEvent,
    ConnectionStep,
    CorruptedMessage,
    Event,
    EventLog,
    LogRate,
    MessageUndeliverable,
    QueueDisabled,
)

CONVERSATION = uuid.UUID(int=7)


class Lines(logging.Handler):
    """Keeps log lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    handler, level = Lines(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler.records
    LOGGER.setLevel(level)
    LOGGER.removeHandler(handler)


def forged(number: int, *, peer: bytes | None = b"bank") -> CorruptedMessage:
    return CorruptedMessage(at=number, conversation_id=CONVERSATION, peer=peer)


def test_the_first_lines_of_a_peer_in_a_minute_are_logged_and_the_rest_counted(
    lines: list[logging.LogRecord],
) -> None:
    """Subscribers, and therefore metrics, get all of them."""
    log, seen = EventLog(), list[Event]()
    log.subscribe(seen.append)
    for number in range(1000):
        log.emit(forged(number))
    assert (len(lines), len(seen), log.counts[CorruptedMessage.NAME]) == (LOG_LINES_MAX, 1000, 1000)
    log.emit(forged(5, peer=b"mill"))
    log.emit(MessageUndeliverable(at=5, conversation_id=CONVERSATION, peer=b"bank"))
    assert len(lines) == LOG_LINES_MAX + 2
    log.log_suppressed(now=LOG_WINDOW - 1)
    assert len(lines) == LOG_LINES_MAX + 2
    log.log_suppressed(now=LOG_WINDOW)
    assert (
        lines[-1].getMessage()
        == f"Broker:Corrupted Message: {1000 - LOG_LINES_MAX} more lines suppressed within a minute, from bank"
    )
    logged = json.loads(JsonLines().format(lines[-1]))
    assert (logged["event"], logged["left_out"], logged["source"]) == (
        "Broker:Corrupted Message",
        1000 - LOG_LINES_MAX,
        "bank",
    )
    assert lines[-1].levelno == logging.WARNING
    log.emit(forged(LOG_WINDOW))
    assert len(lines) == LOG_LINES_MAX + 4


def test_the_next_line_of_any_peer_logs_the_count(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    for number in range(LOG_LINES_MAX + 3):
        log.emit(forged(number))
    log.emit(forged(LOG_WINDOW, peer=b"mill"))
    assert [line.getMessage().partition(": 3 more")[1] for line in lines[LOG_LINES_MAX:]] == [": 3 more", ""]


def test_a_clock_set_back_does_not_suppress_lines(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    for number in range(LOG_LINES_MAX):
        log.emit(forged(LOG_WINDOW + number))
    log.emit(forged(0))
    assert len(lines) == LOG_LINES_MAX + 1


def test_a_peer_with_many_names_has_the_lines_of_one(
    lines: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOG_SOURCES_MAX", 10)
    log = EventLog()
    for number in range(1000):
        log.emit(forged(0, peer=f"name {number}".encode()))
    assert len(lines) == 10 + LOG_LINES_MAX
    log.log_suppressed(now=LOG_WINDOW)
    assert (
        lines[-1].getMessage()
        == f"Broker:Corrupted Message: {990 - LOG_LINES_MAX} more lines suppressed within a minute, from others"
    )


def test_events_of_the_instance_itself_are_always_logged(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    for number in range(3 * LOG_LINES_MAX):
        log.emit(QueueDisabled(at=0, queue=str(number)))
    assert len(lines) == 3 * LOG_LINES_MAX


def test_a_failed_dial_is_a_warning_once(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    for step, error, is_repeated in (
        (ConnectionStep.CONNECTING, 0, False),
        (ConnectionStep.CONNECT_FAILED, 9736, False),
        (ConnectionStep.CONNECT_FAILED, 9736, True),
        (ConnectionStep.CONNECTED, 0, False),
        (ConnectionStep.CONNECT_FAILED, 0, False),
    ):
        log.emit(
            ConnectionEvent(
                at=0,
                connection_id=CONVERSATION,
                step=step,
                address="TCP://bank:4022",
                error=error,
                is_repeated=is_repeated,
            )
        )
    assert [line.levelno for line in lines] == [
        logging.DEBUG,
        logging.WARNING,
        logging.DEBUG,
        logging.INFO,
        logging.INFO,  # the instance is stopping
    ]


def test_a_refused_peer_is_a_warning_once_for_each_reason(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    untrusted, unknown = "the peer's certificate is not trusted", "bank is not allowed to connect"
    now = 0
    for after, port, text in (
        (0, 1, untrusted),
        (1, 2, untrusted),
        (1, 3, unknown),
        (WARNED_AGAIN_AFTER - 1, 4, unknown),
        (0, 5, untrusted),
        (WARNED_AGAIN_AFTER, 6, unknown),
    ):
        now += after
        log.emit(
            ConnectionEvent(
                at=now,
                connection_id=CONVERSATION,
                step=ConnectionStep.RECEIVE_IO_ERROR,
                address=f"TCP://192.0.2.1:{port}",
                error=9757,
                text=text,
            )
        )
    warning, debug = logging.WARNING, logging.DEBUG
    assert [line.levelno for line in lines] == [warning, debug, warning, debug, warning, warning]


def test_an_undeliverable_message_is_a_warning_once_for_each_peer_and_reason(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    for peer, text, is_sequenced in (
        (b"bank", "no service; received from 192.0.2.1:1", True),
        (b"bank", "no service; received from 192.0.2.1:2", True),
        (b"shop", "no service; received from 192.0.2.1:1", True),
        (b"bank", "no route; received from 192.0.2.1:1", True),
        (b"bank", "no conversation", False),
    ):
        log.emit(
            MessageUndeliverable(
                at=0, conversation_id=CONVERSATION, is_sequenced=is_sequenced, peer=peer, error=9796, text=text
            )
        )
    warning, debug, info = logging.WARNING, logging.DEBUG, logging.INFO
    assert [line.levelno for line in lines] == [warning, debug, warning, warning, info]


def test_the_peer_of_an_event_is_logged_as_text(lines: list[logging.LogRecord]) -> None:
    EventLog().emit(MessageUndeliverable(at=0, conversation_id=CONVERSATION, peer="caf\xe9".encode(), error=9796))
    assert ", peer=caf\xe9, error=9796, " in lines[0].getMessage()
    assert json.loads(JsonLines().format(lines[0]))["peer"] == "caf\xe9"


def test_the_reasons_that_are_remembered_are_limited(
    lines: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOG_SOURCES_MAX", 3)
    log = EventLog()
    for peer in (b"a", b"b", b"c", b"d", b"d", b"a"):
        log.emit(MessageUndeliverable(at=0, conversation_id=CONVERSATION, peer=peer))
    warning, debug = logging.WARNING, logging.DEBUG
    assert [line.levelno for line in lines] == [warning] * 4 + [debug, warning]


def test_connections_of_one_host_are_counted_together(lines: list[logging.LogRecord]) -> None:
    log = EventLog()
    for port in range(1000):
        step = ConnectionStep.RECEIVE_IO_ERROR
        log.emit(
            ConnectionEvent(at=0, connection_id=CONVERSATION, step=step, address=f"TCP://192.0.2.1:{port}", error=9752)
        )
    assert len(lines) == 1 + LOG_LINES_MAX, "a warning, and lines at debug level"


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(-2 * LOG_WINDOW, 2 * LOG_WINDOW), st.integers(1, LOG_LINES_MAX + 2)
        ),
        max_size=30,
    )
)
def test_each_source_has_its_own_minute_with_any_clock(steps: list[tuple[str, int, int]]) -> None:
    """Compared with a model that checks every source at every step."""
    rate, started, written, now = LogRate[str](others=str.upper), dict[str, int](), dict[str, int](), 0
    for source, forward, lines in steps:
        now += forward
        over = {
            each: written.pop(each) - LOG_LINES_MAX for each, at in started.items() if not at <= now < at + LOG_WINDOW
        }
        started = {each: at for each, at in started.items() if each not in over}
        assert rate.take_suppressed(now=now) == [(each, left) for each, left in over.items() if left > 0]
        for _ in range(lines):
            started.setdefault(source, now)
            written[source] = written.get(source, 0) + 1
            assert rate.allows(source, now=now) == (written[source] <= LOG_LINES_MAX)
