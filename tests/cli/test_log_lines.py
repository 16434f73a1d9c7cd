"""What a served instance writes while it runs (N28)."""

from __future__ import annotations

import io
import json
import logging
import uuid

import pytest

from ssbroker.cli.log_format import Form, end_log, write_log
from ssbroker.protocol.events import (
    ConnectionEvent,
    ConnectionStep,
    ConversationEvent,
    ConversationStep,
    EventLog,
    QueueDisabled,
)

SOME = uuid.UUID(int=7)


def lines(form: Form, level: str = "info") -> tuple[io.StringIO, logging.Handler]:
    written = io.StringIO()
    return written, write_log(form, level, to=written)


def test_a_line_is_a_json_object() -> None:
    written, handler = lines("json")
    try:
        logging.getLogger("ssbroker.broker").warning("%s: two\nlines", "Sales", extra={"said": {"more": 1}})
    finally:
        end_log(handler)
    (line,) = written.getvalue().splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "logger": "ssbroker.broker", "message": "Sales: two\nlines", "more": 1}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii", "cp1252"])
def test_a_line_is_json_whatever_letters_the_machine_writes(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error writes what it has no letter for as Python does, and JSON knows no `\\xe9`."""
    # What pytest captures goes to another process, which is no place for half a character.
    monkeypatch.setattr(logging.getLogger("ssbroker"), "propagate", False)
    written = io.BytesIO()
    handler = write_log("json", "info", to=io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace"))
    try:
        logging.getLogger("ssbroker.broker").warning("%s", "Caf\xe9 \U0001f600 \u4e2d \udcff")
    finally:
        end_log(handler)
    assert json.loads(written.getvalue())["message"] == "Caf\xe9 \U0001f600 \u4e2d \udcff"


def test_an_event_comes_with_its_attributes() -> None:
    written, handler = lines("json")
    try:
        event = ConnectionEvent(at=0, connection_id=SOME, step=ConnectionStep.CONNECTED, address="TCP://stock:4022")
        EventLog().emit(event)
    finally:
        end_log(handler)
    found = json.loads(written.getvalue())
    assert found["event"] == "Broker:Connection"
    assert (found["step"], found["address"], found["connection_id"]) == ("Connected", "TCP://stock:4022", str(SOME))


def test_a_line_for_people_is_one_line_whatever_it_names() -> None:
    written, handler = lines("text")
    try:
        EventLog().emit(QueueDisabled(at=0, database="Sales", queue="Orders\nERROR forged \x1b[31m"))
    finally:
        end_log(handler)
    (line,) = written.getvalue().splitlines()
    assert "ERROR Broker:Queue Disabled: " in line
    assert "Orders\\nERROR forged \\x1b[31m" in line


def test_an_exception_is_told_in_both_forms() -> None:
    for form in ("json", "text"):
        written, handler = lines(form)
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logging.getLogger("ssbroker.broker").exception("it failed")
        finally:
            end_log(handler)
        assert "ZeroDivisionError" in written.getvalue()
        assert "it failed" in written.getvalue()


def test_the_level_says_what_is_left_out() -> None:
    chatter = ConversationEvent(at=0, conversation_id=SOME, step=ConversationStep.SEND_MESSAGE, is_initiator=True)
    for level, count in (("debug", 1), ("info", 0)):
        written, handler = lines("json", level)
        try:
            EventLog().emit(chatter)
        finally:
            end_log(handler)
        assert len(written.getvalue().splitlines()) == count


def test_after_the_end_nothing_is_written() -> None:
    written, handler = lines("json")
    end_log(handler)
    logging.getLogger("ssbroker.broker").error("late")
    assert written.getvalue() == ""
