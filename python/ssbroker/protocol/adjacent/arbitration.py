"""Which of two connections between the same two instances stays (N9)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ssbroker.protocol.adjacent.hello import Far, Own


class Stays(StrEnum):
    """Which of two connections stays; the other one is left with SUPERSEDED."""

    FIRST = "FIRST"
    """The one that was there; it is to be probed, since the far side may know that it is broken."""
    SECOND = "SECOND"
    """The one that came later."""
    BOTH = "BOTH"
    """Both, for now: the far side dialled them, and says which it leaves."""


@dataclass(frozen=True, slots=True)
class Met:
    """A connection on which both sides have said HELLO.

    Attributes:
        far: What the far side said.
        is_accept: Whether the far side dialled.
    """

    far: Far
    is_accept: bool


def stays(own: Own, first: Met, second: Met) -> Stays:
    """Which of two connections with one instance stays. Both sides come to the same, each by itself.

    Args:
        own: What this side said on both.
        first: The one that was there.
        second: The one that came later.

    Returns:
        Which stays.

    Examples:
        >>> own = Own(instance_id=b"a" * 16, name="shop", number=5)
        >>> far = Far(instance_id=b"b" * 16, name="bank", number=4, max_frame_bytes=8 << 20)
        >>> stays(own, Met(far, is_accept=True), Met(far, is_accept=False)).value
        'SECOND'
    """
    if first.far.number != second.far.number:
        return Stays.SECOND  # the far side was started anew, and nobody is at the other end of the first
    if first.is_accept is second.is_accept:
        return Stays.BOTH if second.is_accept else Stays.SECOND
    own_wins = (own.number, own.instance_id) > (second.far.number, second.far.instance_id)
    return Stays.SECOND if own_wins is not second.is_accept else Stays.FIRST
