"""The XML body of Error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import Final

from ssbroker.protocol.config import ERROR
from ssbroker.protocol.errors import error_text

_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"})
_SAID: Final = re.compile(
    rb"<Code>\s*(?P<code>-?\d{1,10})\s*</Code>\s*<Description>(?P<description>[^<]*)</Description>"
)
# What XML 1.0 cannot hold, not even escaped.
_CONTROLS: Final = (code for code in range(32) if chr(code) not in "\t\n\r")
_FORBIDDEN: Final = dict.fromkeys((*_CONTROLS, *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True)
class ConversationError:
    """Why a conversation ends with an error.

    Attributes:
        code: Above 0 the application's, below 0 the broker's: the number of its error, negated (fact 132).
        description: For a person.
    """

    code: int
    description: str

    def body(self) -> bytes:
        """The body of the Error message.

        Examples:
            >>> ConversationError(7, "a < b").body()[-57:]
            b'<Code>7</Code><Description>a &lt; b</Description></Error>'
        """
        said = escaped(self.description)
        return f'<Error xmlns="{ERROR}"><Code>{self.code}</Code><Description>{said}</Description></Error>'.encode()


def escaped(text: str) -> str:
    """A text as XML holds it; what XML cannot hold becomes a replacement character.

    Args:
        text: The text.

    Returns:
        The text, escaped.

    Examples:
        >>> escaped("a < b")
        'a &lt; b'
    """
    return text.translate(_FORBIDDEN).translate(_ESCAPES)


def failure(number: int, **values: object) -> ConversationError:
    """A failure that the broker finds.

    Args:
        number: Service Broker's error number, above 0.
        values: What its text names.

    Returns:
        The failure, with the number negated.

    Examples:
        >>> failure(8489)
        ConversationError(code=-8489, description='the lifetime of the conversation has expired')
    """
    return ConversationError(-number, error_text(number, **values))


def read_failure(body: bytes | None) -> ConversationError | None:
    """What the body of an Error message says; for those who only want to know.

    Args:
        body: The body, of whatever origin.

    Returns:
        The failure; None where it is none that could be read.

    Examples:
        >>> read_failure(ConversationError(7, "a < b").body())
        ConversationError(code=7, description='a < b')
    """
    found = _SAID.search(body or b"")
    if found is None:
        return None
    try:
        return ConversationError(int(found["code"]), unescape(found["description"].decode(errors="replace")))
    except ValueError:  # a number of more digits than Python reads
        return None
