"""The log of `ssbroker serve`: records of the library as lines of JSON or text."""

from __future__ import annotations

import codecs
import json
import logging
import sys
import uuid
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TextIO

from ssbroker.protocol.events import Event, attributes, readable_value

LogFormat = Literal["json", "text"]
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
ROOT_LOGGER: Final = "ssbroker"


def start_logging(log_format: LogFormat, level: str, *, to: TextIO | None = None) -> logging.Handler:
    """Writes the log records of the library to `to` (default: standard error); returns the handler for `stop_logging`."""
    stream = to or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines(is_ascii=not _is_utf8(stream)) if log_format == "json" else TextLines())
    logger = logging.getLogger(ROOT_LOGGER)
    logger.addHandler(handler)
    logger.setLevel(LEVELS[level])
    return handler


def stop_logging(handler: logging.Handler) -> None:
    """Removes a handler that `start_logging` returned."""
    logger = logging.getLogger(ROOT_LOGGER)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: `time`, `level`, `logger`, `message`, and the details of the record.

    The record of an event also contains the name of the event as `event`, and the attributes of the event.

    Args:
        is_ascii: Whether to escape all non-ASCII characters, for a stream that is not UTF-8: it would write them as
            Python escapes, which are not valid JSON.

    Examples:
        >>> record = logging.LogRecord("ssbroker.broker", logging.INFO, "", 0, "serving %s", ("shop",), None)
        >>> json.loads(JsonLines().format(record))["message"]
        'serving shop'
    """

    def __init__(self, *, is_ascii: bool = False) -> None:
        super().__init__()
        self._is_ascii: Final = is_ascii

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            line["event"] = event.NAME
            line |= {name: readable_value(value) for name, value in attributes(event).items() if value is not None}
        line |= getattr(record, "details", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=self._is_ascii, default=_json_default)


class TextLines(logging.Formatter):
    """Formats a record as one line of text, followed by the traceback of an exception.

    Examples:
        >>> record = logging.LogRecord("ssbroker.broker", logging.INFO, "", 0, "serving %s", ("shop",), None)
        >>> TextLines().format(record).partition("Z ")[2]
        'INFO serving shop'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        message = record.getMessage()
        printable = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in message)
        line = f"{_timestamp(record)} {record.levelname} {printable}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _is_utf8(stream: TextIO) -> bool:
    """Returns whether the stream can write every character; a stream in memory can."""
    encoding: str | None = getattr(stream, "encoding", None)
    return encoding is None or codecs.lookup(encoding).name == "utf-8"


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json_default(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, uuid.UUID | datetime):
        return str(value)
    return repr(value)
