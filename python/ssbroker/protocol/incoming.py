"""What arrives, while it is in memory: directions, their parts, and which of them leave where there is no room for all (N38)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ssbroker.protocol.spans import Spans

_FRAGMENT_CHARGE: Final = 512


@dataclass(slots=True, eq=False)
class Incoming:
    """A direction that is being received.

    Attributes:
        name: What it is called in the reassembler.
        base: The number at which it was loaded.
        next: The number of the message that is expected next.
        early: For each message that is incomplete or waits, how many fragments it has, and which are there.
        charges: What each of these takes in memory, about, in bytes.
        is_loaded: Whether the reassembler has it; where others needed its room, it has to be loaded anew (N38).
    """

    name: bytes
    base: int
    next: int
    early: dict[int, tuple[int, Spans]] = field(default_factory=dict)
    charges: dict[int, int] = field(default_factory=dict)
    is_loaded: bool = True

    def note(self, part: Part) -> None:
        """Notes that a part is there which is incomplete or early."""
        sequence = part.sequence
        if sequence not in self.early:
            self.early[sequence] = (part.count, Spans())
        self.early[sequence][1].add(part.fragment)
        self.charges[sequence] = self.charges.get(sequence, 0) + part.charge

    def reach(self, number: int) -> None:
        """Notes that all messages before a number are whole, and their parts gone."""
        if self.early and number > self.next:
            self.early = {sequence: held for sequence, held in self.early.items() if sequence >= number}
            self.charges = {sequence: charge for sequence, charge in self.charges.items() if sequence >= number}
        self.next = number

    def drop(self, sequence: int) -> None:
        """Notes that the parts of a message have gone."""
        self.early.pop(sequence, None)
        self.charges.pop(sequence, None)

    def skip(self, name: bytes, number: int) -> None:
        """Goes on at a number under another name, with nothing there."""
        self.name, self.base, self.next = name, number, number
        self.early, self.charges = {}, {}

    @property
    def is_proven(self) -> bool:
        """Whether a message has become whole since it was loaded; of those of which none has, only half of the memory may be taken."""
        return self.next > self.base

    @property
    def charge(self) -> int:
        """What it takes in memory, about, in bytes."""
        return sum(self.charges.values())


@dataclass(slots=True)
class Part:
    """An opened fragment.

    Attributes:
        incoming: Its direction.
        sequence: Its message's number.
        fragment: Its own.
        count: How many its message has.
        body: The part.
        message_digest: The MD5 of the whole, where it is known.
        fragment_digest: The MD5 of the part, where it has to be compared.
        kind: Message type, message id, whether it ends the dialog, whether it is an error.
        is_stored: Whether it is kept by the ledger already.
    """

    incoming: Incoming
    sequence: int
    fragment: int
    count: int
    body: bytes
    message_digest: bytes | None
    fragment_digest: bytes | None
    kind: tuple[str, bytes | None, bool, bool]
    is_stored: bool = False

    @property
    def charge(self) -> int:
        """What it takes in memory, at most, in bytes."""
        return charge_of(1, len(self.body))


def charge_of(fragments: int, body_bytes: int) -> int:
    """What fragments take in memory, at most, with a share of their message and direction (M18), in bytes.

    Args:
        fragments: How many.
        body_bytes: How long their parts are together.

    Examples:
        >>> charge_of(2, 800)
        1924
    """
    return fragments * _FRAGMENT_CHARGE + body_bytes * 9 // 8


def in_the_way(
    loaded: Iterable[Incoming], parts: Sequence[Part], *, pending_bytes: int, max_pending_bytes: int
) -> list[Incoming]:
    """Which directions take the room that parts need (P26): those of which least is there, so that the others become whole.

    Args:
        loaded: The directions that are in memory.
        parts: The parts; their own directions stay.
        pending_bytes: What is charged for all that is in memory.
        max_pending_bytes: What may be, of directions of which no message has become whole half of it.

    Returns:
        The directions to unload.

    Examples:
        >>> directions = [Incoming(bytes([number]), 0, 0, {0: (9, Spans())}, {0: 40 * number}) for number in (2, 1)]
        >>> part = Part(Incoming(bytes(1), 0, 0), 0, 0, 9, bytes(80), None, None, ("DEFAULT", None, False, False))
        >>> [len(in_the_way(directions, [part], pending_bytes=120, max_pending_bytes=most)) for most in (1444, 1443, 1300)]
        [0, 1, 2]
    """
    fresh = charge_of(len(parts), sum(len(part.body) for part in parts))
    over = pending_bytes + fresh - max_pending_bytes
    if 2 * (over + max_pending_bytes) <= max_pending_bytes:
        return []
    unproven = [incoming.charge for incoming in loaded if not incoming.is_proven]
    unproven += [part.charge for part in parts if not part.incoming.is_proven]
    over_half = sum(unproven) - max_pending_bytes // 2
    needed = {part.incoming for part in parts}
    found: list[Incoming] = []
    for incoming in sorted(loaded, key=lambda each: each.charge):
        if over <= 0 and over_half <= 0:
            break
        if incoming in needed or not incoming.early or (over <= 0 and incoming.is_proven):
            continue
        found.append(incoming)
        over -= incoming.charge
        over_half -= 0 if incoming.is_proven else incoming.charge
    return found
