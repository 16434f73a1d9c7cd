"""T5, T12: names come from neighbours, and may be any text: what is kept of them is little, and in a log they write no lines."""

from __future__ import annotations

import logging
import tracemalloc
import uuid

import pytest

from ssbroker.protocol.envelope import encode_names
from ssbroker.protocol.events import CorruptedMessage, EventLog

MIB = 1 << 20


@pytest.mark.threat("T5")
def test_names_that_never_come_again_take_little_memory() -> None:
    """A neighbour may name four other names of 1,024 bytes in each of its rows."""
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


def test_a_name_from_afar_writes_no_line_of_its_own_into_a_log(caplog: pytest.LogCaptureFixture) -> None:
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
