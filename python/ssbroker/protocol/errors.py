"""System names of Service Broker, and its error numbers with their texts."""

from __future__ import annotations

from typing import Final

from ssbroker.exceptions import BrokerError

DEFAULT: Final = "DEFAULT"
"""The message type and the contract that every database has (fact 140)."""

_SCHEMA: Final = "http://schemas.microsoft.com/SQL/ServiceBroker"
ERROR: Final = f"{_SCHEMA}/Error"
END_DIALOG: Final = f"{_SCHEMA}/EndDialog"
DIALOG_TIMER: Final = f"{_SCHEMA}/DialogTimer"
SYSTEM_SERVICE: Final = f"{_SCHEMA}/ServiceBroker"
"""The service of a database that asks the configuration service for routes (fact 65)."""
CONFIGURATION_NOTICE: Final = f"{_SCHEMA}/BrokerConfigurationNotice"
"""The contract on which it asks (fact 57)."""
MISSING_ROUTE: Final = f"{CONFIGURATION_NOTICE}/MissingRoute"
MISSING_REMOTE_SERVICE_BINDING: Final = f"{CONFIGURATION_NOTICE}/MissingRemoteServiceBinding"

LIFETIME_MAX: Final = 2**31 - 1
"""The longest lifetime or timer, in seconds; a conversation's lifetime unless told otherwise (fact 109)."""
DESCRIPTION_MAX: Final = 3000
"""The longest description of an error, in characters (fact 126)."""
BODY_MAX: Final = 10**9 - 2**10
"""The longest message, in bytes: what a row of SQLite holds, without room for its other columns. (Service Broker's is 2147483647, fact 112.)"""

TEXTS: Final[dict[int, str]] = {
    8408: "service {service!r} does not accept contract {contract!r}: add the contract to the service, or begin the dialog on another",
    8410: "a timer of {timeout} s would end after the conversation's lifetime",
    8411: "{name} is out of range: expected a whole number of seconds from 1 to 2147483647, got {value!r}",
    8412: "{name!r:.80} is no name of a service: it has to have 1 to 256 characters, and no half of a surrogate pair",
    8426: "there is no {kind} {handle} here",
    8427: "conversation {handle} cannot be ended: it is {state}",
    8428: "there is no message type {message_type!r}",
    8429: "nothing can be sent on conversation {handle}: it is {state}",
    8430: "the body is not what message type {message_type!r} demands: {reason}",
    8431: "contract {contract!r} does not hold message type {message_type!r}",
    8432: "message type {message_type!r} may be sent by the target only, and this side is the initiator",
    8433: "a message cannot have None as its body: leave it out, or give b''",
    8434: "message type {message_type!r} may be sent by the initiator only, and this side is the target",
    8438: "conversation {handle} cannot be moved: it is {state}",
    8457: "message type {message_type!r} may not be sent by this side under contract {contract!r}",
    8458: "conversation {handle} cannot have a timer: it is {state}",
    8459: "a message of {length} bytes is too long; the most is {most}",
    8462: "the far side of the conversation is gone",
    8489: "the lifetime of the conversation has passed",
    8490: "there is no service {service!r} in the database with the broker id that was named",
    8494: "the sender may not send to service {service!r}: GRANT SEND ON SERVICE to its user there, or to public",
    8495: "another copy of the service has answered this conversation already",
    8498: "message type {message_type!r} does not stand in contract {contract!r} at the target",
    9610: "service {service!r} cannot join the conversation group, which is one of service {other!r}",
    9617: "queue {queue!r} is off: turn it on with alter_queue(status=True)",
    9618: "nothing can be sent: queue {queue!r} keeps sent messages and is off",
    9719: "the database was restored or got a new broker id; the conversation is over",
    9720: "the far database was restored or got a new broker id; the conversation is over",
    11209: "the conversation is not one that goes on here",
    11210: "service {service!r} is not here",
    11212: "this end of the conversation is closed",
    11217: "the message is not the next one",
    11218: "the message was there already",
    11219: "queue {queue!r} is off",
    11220: "the broker id that the message names is not here",
    11224: "another copy of the service has answered this conversation already",
    15151: "{kind} {name!r} does not exist",
    11222: "the service that it comes from is not the one that this conversation is with",
    28013: "the broker of the database is disabled",
    28010: "more was acknowledged than was sent",
}
"""What a number says, in words of our own; the names in braces are filled in."""


def text(number: int, **values: object) -> str:
    """What an error number says, with its values filled in.

    Args:
        number: Service Broker's error number, as in `TEXTS`.
        values: What the text names.

    Returns:
        One sentence, without the number.

    Examples:
        >>> text(8428, message_type="Order")
        "there is no message type 'Order'"
    """
    return TEXTS[number].format(**values)


def refused(number: int, **values: object) -> BrokerError:
    """The error that refuses a call.

    Args:
        number: Service Broker's error number, as in `TEXTS`.
        values: What its text names.

    Returns:
        The error, to be raised.

    Examples:
        >>> print(refused(8428, message_type="Order"))
        8428: there is no message type 'Order'
    """
    return BrokerError(f"{number}: {text(number, **values)}", number=number)
