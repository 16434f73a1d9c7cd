"""How large a message may be in Spark, and what may be pending beside it."""

from __future__ import annotations

from typing import Final

MESSAGE_BYTES_MAX: Final = 1 << 30
"""What a message may have at most: beyond it, Spark's memory and its cells of 2 GiB give out."""

_LEAST: Final = 1 << 30
_MESSAGES: Final = 4


def room_for(max_message_bytes: int) -> int:
    """What may be pending where nothing else is said: room for any message, and then some.

    Args:
        max_message_bytes: The largest message.

    Returns:
        The bytes.

    Examples:
        >>> room_for(1 << 20) >> 30, room_for(1 << 30) >> 30
        (1, 4)
    """
    return max(_LEAST, _MESSAGES * max_message_bytes)
