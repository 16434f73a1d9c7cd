"""What a served instance writes while it runs: one line for each record, for people or for programs (N28)."""

from __future__ import annotations

import codecs
import json
import logging
import sys
import uuid
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TextIO

from ssbroker.protocol.events import Event

Form = Literal["json", "text"]
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
ROOT: Final = "ssbroker"


def write_log(form: Form, level: str, *, to: TextIO | None = None) -> logging.Handler:
    """Has everything that the library logs written as lines.

    Args:
        form: `json` for one JSON object a line, `text` for people.
        level: The least level that is written.
        to: Where to; None is standard error.

    Returns:
        What writes, to be given to `end_log`.
    """
    stream = to or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(is_ascii=not _is_utf8(stream)) if form == "json" else TextLines())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])
    return handler


def end_log(handler: logging.Handler) -> None:
    """Writes no more.

    Args:
        handler: What `write_log` returned.
    """
    logger = logging.getLogger(ROOT)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


class JsonLines(logging.Formatter):
    """A record as one JSON object: `time`, `level`, `logger`, `message`, and what else there is to say.

    An event of the broker comes with its name as `event`, and its attributes by their names.

    Args:
        is_ascii: Whether all other letters are escaped, for a stream that does not write UTF-8: what it has no letter for it would escape as
            Python does, which is no JSON.

    Examples:
        >>> record = logging.LogRecord("ssbroker.broker", logging.INFO, "", 0, "serving %s", ("shop",), None)
        >>> json.loads(JsonLines().format(record))["message"]
        'serving shop'
    """

    def __init__(self, *, is_ascii: bool = False) -> None:
        super().__init__()
        self._is_ascii: Final = is_ascii

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            line["event"] = event.NAME
            line |= {
                field.name: value
                for field in fields(event)
                if (value := getattr(event, field.name)) is not None and field.name != "at"
            }
        line |= getattr(record, "said", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=self._is_ascii, default=_plain)


class TextLines(logging.Formatter):
    """A record as one line for people; of an exception, what Python says follows.

    Examples:
        >>> record = logging.LogRecord("ssbroker.broker", logging.INFO, "", 0, "serving %s", ("shop",), None)
        >>> TextLines().format(record).partition("Z ")[2]
        'INFO serving shop'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        words = record.getMessage()
        shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in words)
        line = f"{_moment(record)} {record.levelname} {shown}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _is_utf8(stream: TextIO) -> bool:
    """Whether all letters can be written to a stream as JSON has them; one in memory takes any."""
    encoding: str | None = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> object:
    """What JSON has no word for."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, uuid.UUID):
        return str(value)
    return repr(value)
