"""What was said and has not gone through a channel yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from ssbroker.broker.network.connections.tls import Channel
from ssbroker.protocol.adjacent.frames import Data

PIECE_BYTES: Final = 64 << 10
"""What is sealed at a time: pieces that a processor's cache holds, and for which memory is not asked of the system each time."""


class Unsealed:
    """What was said, in small pieces.

    Args:
        channel: What it goes through.
    """

    __slots__ = ("_channel", "_pieces")

    def __init__(self, channel: Channel) -> None:
        self._channel: Final = channel
        self._pieces: Final[deque[memoryview]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing."""
        return not self._pieces

    def put(self, said: Iterable[Data]) -> None:
        """Takes what is said, behind the rest.

        Args:
            said: The bytes, which stay where they are.
        """
        for data in said:
            view = memoryview(data)
            self._pieces.extend(view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))

    def seal(self, most: int = PIECE_BYTES) -> None:
        """Has some of it go through the channel.

        Args:
            most: From how many bytes on that wait there no more of it does.

        Raises:
            PeerError: The far side has ended it.
        """
        while self._pieces and self._channel.unsent_bytes < most:
            self._channel.seal(self._pieces.popleft())
