"""GOODBYE: why a side leaves (N9, N10)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ssbroker.exceptions import PeerError

_TEXT_BYTES_MAX: Final = 512


class Reason(IntEnum):
    """Why a connection ends."""

    IDLE = 1
    """It carried nothing for a while (P2)."""
    SUPERSEDED = 2
    """The same two instances have another one, and that one stays (N9)."""
    ITSELF = 3
    """The instance has dialled itself (N9)."""
    STOPPING = 4
    """The instance stops."""
    REFUSED = 5
    """The far side may not connect."""
    BROKEN = 6
    """The far side broke the protocol."""
    SILENT = 7
    """The far side gave no sign (N10). Only told on this side, since there is nobody to tell it to."""


def packed(reason: Reason, text: str) -> bytes:
    r"""The body of GOODBYE.

    Args:
        reason: Why.
        text: The same for people; what cannot be printed goes as a question mark, and what is too long is cut.

    Returns:
        A byte and the text.

    Examples:
        >>> packed(Reason.STOPPING, "back at 7")
        b'\x04back at 7'
    """
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    cut = printable.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore")
    return bytes([reason]) + cut.encode()


def unpacked(body: bytes) -> tuple[Reason, str]:
    r"""What a GOODBYE says.

    Args:
        body: Its body, not empty.

    Returns:
        Why, and the same for people.

    Raises:
        PeerError: There is no such reason, or the text cannot be printed.

    Examples:
        >>> unpacked(b"\x04back at 7")
        (<Reason.STOPPING: 4>, 'back at 7')
    """
    try:
        reason, text = Reason(body[0]), body[1:].decode()
    except ValueError:
        raise PeerError("GOODBYE: expected a reason from 1 to 6, and UTF-8") from None
    if reason is Reason.SILENT or not text.isprintable():
        raise PeerError("GOODBYE: expected a reason from 1 to 6, and text that can be printed")
    return reason, text
