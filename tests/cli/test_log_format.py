"""The log of `ssbroker serve`."""

from __future__ import annotations

import io
import json
import logging
import uuid

import pytest

from ssbroker.cli.serve_logging import LogFormat, start_logging, stop_logging
from ssbroker.protocol.events import (
    ConnectionEvent,
    ConnectionStep,
    ConversationEvent,
    ConversationStep,
    EventLog,
    QueueDisabled,
)

CONNECTION_ID = uuid.UUID(int=7)


def start(form: LogFormat, level: str = "info") -> tuple[io.StringIO, logging.Handler]:
    stream = io.StringIO()
    return stream, start_logging(form, level, to=stream)


def test_json_record() -> None:
    stream, handler = start("json")
    try:
        logging.getLogger("ssbroker.broker").warning("%s: two\nlines", "Sales", extra={"details": {"more": 1}})
    finally:
        stop_logging(handler)
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "logger": "ssbroker.broker", "message": "Sales: two\nlines", "more": 1}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "cp1252"])
def test_json_record_is_valid_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    r"""Standard error writes unsupported characters as Python escapes, and `\xe9` is not valid JSON."""
    # pytest-xdist cannot pass the captured lone surrogate to the other process.
    monkeypatch.setattr(logging.getLogger("ssbroker"), "propagate", False)
    stream = io.BytesIO()
    handler = start_logging("json", "info", to=io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace"))
    try:
        logging.getLogger("ssbroker.broker").warning("%s", "Caf\xe9 \U0001f600 \u4e2d \udcff")
    finally:
        stop_logging(handler)
    assert json.loads(stream.getvalue())["message"] == "Caf\xe9 \U0001f600 \u4e2d \udcff"


def test_event_is_logged_with_its_attributes() -> None:
    stream, handler = start("json")
    try:
        event = ConnectionEvent(
            at=0, connection_id=CONNECTION_ID, step=ConnectionStep.CONNECTED, address="TCP://stock:4022"
        )
        EventLog().emit(event)
    finally:
        stop_logging(handler)
    found = json.loads(stream.getvalue())
    assert found["event"] == "Broker:Connection"
    assert (found["step"], found["address"], found["connection_id"]) == (
        "Connected",
        "TCP://stock:4022",
        str(CONNECTION_ID),
    )


def test_text_record_is_one_line() -> None:
    stream, handler = start("text")
    try:
        EventLog().emit(QueueDisabled(at=0, database="Sales", queue="Orders\nERROR forged \x1b[31m"))
    finally:
        stop_logging(handler)
    (line,) = stream.getvalue().splitlines()
    assert "ERROR Broker:Queue Disabled: " in line
    assert "Orders\\nERROR forged \\x1b[31m" in line


def test_exception_is_logged_in_both_formats() -> None:
    for form in ("json", "text"):
        stream, handler = start(form)
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logging.getLogger("ssbroker.broker").exception("it failed")
        finally:
            stop_logging(handler)
        assert "ZeroDivisionError" in stream.getvalue()
        assert "it failed" in stream.getvalue()


def test_log_level() -> None:
    debug_event = ConversationEvent(
        at=0, conversation_id=CONNECTION_ID, step=ConversationStep.SEND_MESSAGE, is_initiator=True
    )
    for level, count in (("debug", 1), ("info", 0)):
        stream, handler = start("json", level)
        try:
            EventLog().emit(debug_event)
        finally:
            stop_logging(handler)
        assert len(stream.getvalue().splitlines()) == count


def test_nothing_is_stream_after_stop_logging() -> None:
    stream, handler = start("json")
    stop_logging(handler)
    logging.getLogger("ssbroker.broker").error("late")
    assert stream.getvalue() == ""
