"""Names come from peers and may be any text: they use little memory, and add no lines to a log."""

from __future__ import annotations

import logging
import tracemalloc
import uuid

import pytest

from ssbroker.protocol.envelope import encode_names
from ssbroker.protocol.events import CorruptedMessage, EventLog

MIB = 1 << 20


@pytest.mark.threat("T5")
def test_names_that_occur_once_use_little_memory() -> None:
    """A peer may send four new names of 1,024 bytes in each row."""
    encode_names.cache_clear()
    tracemalloc.start()
    try:
        for number in range(10_000):
            name = f"{number:01024d}"
            encode_names("s" + name[1:], "r" + name[1:], "c" + name[1:], "t" + name[1:])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        encode_names.cache_clear()
    assert held < 32 * MIB


def test_a_name_cannot_add_a_line_to_a_log(caplog: pytest.LogCaptureFixture) -> None:
    event = CorruptedMessage(
        at=0,
        conversation_id=uuid.UUID(int=1),
        is_initiator=True,
        message_sequence_number=0,
        fragment_number=0,
        from_service_name="//Shop\nWARNING all is well\x1b[2J",
        peer=None,
        error=11230,
        text="damaged",
    )
    with caplog.at_level(logging.WARNING, logger="ssbroker.events"):
        EventLog().emit(event)
    (record,) = caplog.records
    assert "from_service_name=//Shop\\nWARNING all is well\\x1b[2J," in record.getMessage()
    assert record.getMessage().isprintable()
