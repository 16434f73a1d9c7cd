"""Events: Service Broker's trace events as records, handed to subscribers and to logging."""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime
from typing import Any

import pytest

from ssbroker.protocol import events
from ssbroker.protocol.events import (
    LOGGER,
    ConnectionEvent,
    ConnectionStep,
    ConversationEvent,
    ConversationStep,
    Event,
    EventLog,
    QueueDisabled,
)

KINDS = [item for name in events.__all__ if isinstance(item := getattr(events, name), type) and issubclass(item, Event)]
# Event numbers of sp_trace_setevent.
TRACE_IDS = {
    "Broker:Conversation": 124,
    "Broker:Conversation Group": 136,
    "Broker:Connection": 138,
    "Broker:Forwarded Message Sent": 139,
    "Broker:Forwarded Message Dropped": 140,
    "Broker:Message Classify": 141,
    "Broker:Queue Disabled": 143,
    "Broker:Conversation Moved": 0,
    "Broker:Job Failed": 0,
    "Broker:Mirrored Route State Changed": 144,
    "Broker:Remote Message Acknowledgement": 149,
    "Broker:Message Undeliverable": 160,
    "Broker:Corrupted Message": 161,
    "Broker:Activation": 163,
}


def conversation() -> ConversationEvent:
    return ConversationEvent(
        at=0, conversation_id=uuid.UUID(int=1), step=ConversationStep.BEGIN_DIALOG, is_initiator=True
    )


def test_events_have_service_brokers_names_and_numbers() -> None:
    assert {kind.NAME: kind.TRACE_ID for kind in KINDS if kind.NAME} == TRACE_IDS
    assert len(ConversationStep) == 13
    assert [step.value for step in ConnectionStep][:3] == ["Connecting", "Connected", "Connect Failed"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_is_documented_on_its_own_line(kind: type[Event]) -> None:
    emitted = "".join(ancestor.__doc__ or "" for ancestor in kind.__mro__)
    assert [each.name for each in fields(kind) if not re.search(rf"^ +{each.name}: ", emitted, re.MULTILINE)] == []


def test_events_are_immutable_and_have_a_timestamp() -> None:
    event = QueueDisabled(at=1_500_000, queue="Orders")
    with pytest.raises(FrozenInstanceError):
        event.queue = "Others"  # type: ignore[misc]
    assert event.when == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_a_subscriber_gets_only_the_requested_kinds() -> None:
    log = EventLog()
    everything: list[Event] = []
    queues: list[Any] = []
    log.subscribe(everything.append)
    stop = log.subscribe(queues.append, QueueDisabled, ConnectionEvent)
    log.emit(conversation())
    log.emit(QueueDisabled(at=0, queue="Orders"))
    stop()
    log.emit(QueueDisabled(at=0, queue="Others"))
    assert [type(event) for event in everything] == [ConversationEvent, QueueDisabled, QueueDisabled]
    assert [event.queue for event in queues] == ["Orders"]
    assert log.counts == {"Broker:Conversation": 1, "Broker:Queue Disabled": 2}
    assert EventLog().wants(ConversationEvent) is False
    assert log.wants(ConversationEvent) is True


def test_a_failing_subscriber_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    seen: list[Event] = []

    def fails(event: Event) -> None:
        raise RuntimeError(event.NAME)

    log.subscribe(fails)
    log.subscribe(seen.append)
    LOGGER.setLevel(logging.ERROR)
    log.emit(QueueDisabled(at=0, queue="Orders"))
    assert len(seen) == 1
    assert "a subscriber failed" in caplog.text


def test_events_are_logged_at_the_level_of_their_kind(caplog: pytest.LogCaptureFixture) -> None:
    LOGGER.setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG, logger=LOGGER.name):
        EventLog().emit(QueueDisabled(at=0, queue="Orders", database="Sales"))
        EventLog().emit(conversation())
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.DEBUG]
    assert caplog.records[0].getMessage() == "Broker:Queue Disabled: database=Sales, queue=Orders"
    assert events.ConversationStep.BEGIN_DIALOG in caplog.records[1].getMessage()
