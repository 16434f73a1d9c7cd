"""Service Broker's error numbers, their texts, and the exceptions and Error messages that contain them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import Final

from ssbroker._well_known import ERROR
from ssbroker.exceptions import BrokerError

DATABASE_EXISTS: Final = 1801
ENDPOINT_GONE: Final = 8462
LIFETIME_EXPIRED: Final = 8489
ANSWERED_ELSEWHERE: Final = 8495
RECEIVE_DISABLED: Final = 9617
NO_CONVERSATION: Final = 11209
QUEUE_DISABLED: Final = 11219
WRONG_BROKER: Final = 11220
WRONG_SERVICE: Final = 11222
ACKNOWLEDGED_UNSENT: Final = 28010
ERROR_TEXTS: Final[dict[int, str]] = {
    8408: "the service {service!r} does not accept the contract {contract!r}; add the contract to the service, or begin the dialog with another contract",
    8410: "a timer of {timeout} s would fire after the end of the lifetime of the conversation {handle}; set a shorter timer",
    8411: "{name} is out of range: expected an integer number of seconds from 1 to 2147483647, got {value!r}",
    8426: "the {kind} {handle} does not exist in this database",
    8427: "cannot end the conversation {handle}: its state is {state}",
    8428: "the message type {message_type!r} does not exist",
    8429: "cannot send on the conversation {handle}: its state is {state}",
    8430: "the body is not valid for the message type {message_type!r}: {reason}",
    8431: "the contract {contract!r} does not include the message type {message_type!r}",
    8432: "the message type {message_type!r} can be sent only by the target; this side is the initiator",
    8433: "{name} cannot be None; use empty bytes for an empty body",
    8434: "the message type {message_type!r} can be sent only by the initiator; this side is the target",
    8438: "cannot move the conversation {handle}: its state is {state}",
    8457: "the message type {message_type!r} cannot be sent by this side under the contract {contract!r}",
    8458: "cannot set a timer on the conversation {handle}: its state is {state}",
    8459: "{name}: expected at most {maximum} bytes, got {length} bytes",
    8462: "the remote endpoint of the conversation no longer exists",
    8489: "the lifetime of the conversation has expired",
    8490: "the service {service!r} does not exist in the database with the requested broker id",
    8494: "the sender may not send to the service {service!r}; in the target database, use GRANT SEND ON SERVICE for the sender's user or for public",
    8495: "another copy of the service has already answered this conversation",
    8498: "the contract {contract!r} does not include the message type {message_type!r} at the target",
    9610: "the service {service!r} cannot join the conversation group: the group belongs to service {other!r}",
    9617: "the queue {queue!r} is disabled; enable it with Database.alter_queue({queue!r}, status=True)",
    9618: "cannot send: the queue {queue!r} has retention on, and is disabled; enable it with Database.alter_queue({queue!r}, status=True), or turn retention off",
    9719: "the database was restored or got a new broker id, which ended the conversation",
    9720: "the remote database was restored or got a new broker id, which ended the conversation",
    11209: "the conversation id does not match an active conversation",
    11210: "the service {service!r} was not found",
    11212: "the conversation endpoint is closed",
    11217: "the message is out of sequence",
    11218: "duplicate message",
    11219: "the queue {queue!r} is disabled",
    11220: "the broker id of the message does not match the conversation",
    11224: "another copy of the service has already answered this conversation",
    15151: "the {kind} {name!r} does not exist",
    11222: "the services or the contract do not match the conversation",
    28013: "the broker of the database is disabled",
    28010: "the peer acknowledged messages that were not sent",
}
"""The text of each error number, in our own words, with placeholders in braces."""


def error_text(number: int, **values: object) -> str:
    """Returns the text of a Service Broker error number with its placeholders filled in.

    Examples:
        >>> error_text(8428, message_type="Order")
        "the message type 'Order' does not exist"
    """
    return ERROR_TEXTS[number].format(**values)


def broker_error(number: int, **values: object) -> BrokerError:
    """Returns the exception for a refused call; the caller raises it.

    Examples:
        >>> print(broker_error(8428, message_type="Order"))
        8428: the message type 'Order' does not exist
    """
    return refusal(error_text(number, **values), number)


def refusal(reason: str, number: int | None = None) -> BrokerError:
    """Returns an error with an optional Service Broker number."""
    return BrokerError(reason if number is None else f"{number}: {reason}", number=number)


@dataclass(frozen=True, slots=True)
class ConversationError:
    """An error that ends a conversation.

    Attributes:
        code: A positive code from the application, or the negated number of a broker error.
        description: The text for a person.
    """

    code: int
    description: str

    def body(self) -> bytes:
        """Returns the body of the Error message."""
        return error_body(self.code, self.description)


def conversation_error(number: int, **values: object) -> ConversationError:
    """Returns the error with which the broker ends a conversation, given its Service Broker number."""
    return ConversationError(-number, error_text(number, **values))


def error_body(code: int, text: str) -> bytes:
    """Returns the XML body of an Error message; the code is negative if the broker reports the error.

    Examples:
        >>> error_body(-8462, "gone").decode()
        '<Error xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/Error"><Code>-8462</Code><Description>gone</Description></Error>'
    """
    return f'<Error xmlns="{ERROR}"><Code>{code}</Code><Description>{escaped(text)}</Description></Error>'.encode()


def parse_error_body(body: bytes | None) -> ConversationError | None:
    """Parses the body of an Error message leniently; returns None if it lacks a code or a description."""
    found = _CODE_AND_DESCRIPTION.search(body or b"")
    if found is None:
        return None
    try:
        return ConversationError(int(found["code"]), unescape(found["description"].decode(errors="replace")))
    except ValueError:  # too many digits for Python
        return None


def escaped(text: str) -> str:
    """Escapes a text for XML; replaces characters that XML 1.0 does not allow even in escaped form."""
    return text.translate(_FORBIDDEN).translate(_ESCAPES)


_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"})
_CONTROLS: Final = (code for code in range(32) if chr(code) not in "\t\n\r")
_FORBIDDEN: Final = dict.fromkeys((*_CONTROLS, *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}")

_CODE_AND_DESCRIPTION: Final = re.compile(
    rb"<Code>\s*(?P<code>-?\d{1,10})\s*</Code>\s*<Description>(?P<description>[^<]*)</Description>"
)
