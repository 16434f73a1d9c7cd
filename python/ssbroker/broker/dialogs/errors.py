"""The XML body of Error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import Final

from ssbroker.protocol.config import ERROR
from ssbroker.protocol.errors import error_text

_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"})
_CODE_AND_DESCRIPTION: Final = re.compile(
    rb"<Code>\s*(?P<code>-?\d{1,10})\s*</Code>\s*<Description>(?P<description>[^<]*)</Description>"
)
# Characters that XML 1.0 does not allow, not even escaped.
_CONTROLS: Final = (code for code in range(32) if chr(code) not in "\t\n\r")
_FORBIDDEN: Final = dict.fromkeys((*_CONTROLS, *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True)
class ConversationError:
    """An error that ends a conversation.

    Attributes:
        code: A positive code of the application, or the negated number of a broker error.
        description: The text for a person.
    """

    code: int
    description: str

    def body(self) -> bytes:
        """Returns the body of the Error message."""
        description = escaped(self.description)
        return (
            f'<Error xmlns="{ERROR}"><Code>{self.code}</Code><Description>{description}</Description></Error>'.encode()
        )


def escaped(text: str) -> str:
    """Escapes a text for XML; replaces characters that XML does not allow."""
    return text.translate(_FORBIDDEN).translate(_ESCAPES)


def failure(number: int, **values: object) -> ConversationError:
    """Returns a broker error with a Service Broker number."""
    return ConversationError(-number, error_text(number, **values))


def read_failure(body: bytes | None) -> ConversationError | None:
    """Parses the body of an Error message leniently; None if it has no code and description."""
    found = _CODE_AND_DESCRIPTION.search(body or b"")
    if found is None:
        return None
    try:
        return ConversationError(int(found["code"]), unescape(found["description"].decode(errors="replace")))
    except ValueError:  # too many digits for Python
        return None
