"""Broker ids and conversation ids as arguments."""

from __future__ import annotations

import uuid

from ssbroker import _core
from ssbroker.exceptions import InvalidGuidError

_BYTES = 16


def as_bytes(value: object, *, name: str) -> bytes:
    """The 16 bytes of a GUID, in the order of `uuid.UUID.bytes`.

    Args:
        value: A `uuid.UUID`, text of 36 characters (braces allowed), or 16 bytes.
        name: What the value is, for messages.

    Returns:
        The bytes.

    Raises:
        InvalidGuidError: It is none of these.

    Examples:
        >>> as_bytes("{00000000-0000-0000-0000-000000000001}", name="conversation_id")[-1]
        1
    """
    if isinstance(value, uuid.UUID):
        return value.bytes
    try:
        if isinstance(value, str):
            return _core.parse_guid(value)
        if isinstance(value, bytes) and len(value) == _BYTES:
            return value
    except (InvalidGuidError, UnicodeEncodeError):  # the latter for half a surrogate pair
        pass
    expected = "a GUID: a uuid.UUID, text of 36 characters (braces allowed), or 16 bytes"
    raise InvalidGuidError(
        f"{name}: {value!r:.80} is not {expected}", column=name, value=repr(value), expected=expected
    )
