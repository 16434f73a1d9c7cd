"""What of a direction has arrived and waits, while that is in memory: which parts are there, not the parts (P14, N38)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ssbroker.protocol.ledger import Key
from ssbroker.protocol.runs import Place, Runs

_FRAGMENT_CHARGE: Final = 512
_WEIGHT: Final = 512


@dataclass(slots=True)
class Early:
    """A message that is incomplete, or waits for others.

    Attributes:
        count: How many fragments it has.
        digest: The MD5 of the whole, where it is known.
        fragments: How many of them are there.
        body_bytes: And how many bytes these have.
    """

    count: int
    digest: bytes | None
    fragments: int = 0
    body_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it is there."""
        return self.fragments == self.count


@dataclass(slots=True, eq=False)
class Incoming:
    """A direction that is being received.

    Attributes:
        key: The endpoint that receives.
        next: The number of the message that is expected next.
        early: The messages that are incomplete or wait, by number.
        runs: Which of their fragments are there.
        fragments: How many these are together.
        body_bytes: And how many bytes they have.

    Examples:
        >>> incoming = Incoming((bytes(16), True), 3)
        >>> for number, fragment in ((3, 1), (4, 0), (4, 1)):
        ...     incoming.note((number, fragment), count=2, digest=None, size=100)
        >>> incoming.end, incoming.charge, incoming.runs.told()
        (3, 1836, [(3, 1, 4, 1)])
        >>> incoming.note((3, 0), count=2, digest=None, size=100)
        >>> incoming.end
        5
        >>> incoming.reach(5)
        >>> incoming.charge, incoming.weight
        (0, 0)
    """

    key: Key
    next: int
    early: dict[int, Early] = field(default_factory=dict)
    runs: Runs = field(default_factory=Runs)
    fragments: int = 0
    body_bytes: int = 0

    def note(self, place: Place, *, count: int, digest: bytes | None, size: int) -> None:
        """Notes that a fragment waits which was not there.

        Args:
            place: Which one.
            count: How many its message has.
            digest: The MD5 of the whole.
            size: How long it is.
        """
        number, fragment = place
        message = self.early.get(number)
        if message is None:
            message = self.early[number] = Early(count, digest)
        message.fragments += 1
        message.body_bytes += size
        self.fragments += 1
        self.body_bytes += size
        before = (number, fragment - 1) if fragment else self._last_before(number)
        self.runs.add(place, before=before, after=(number, fragment + 1) if fragment + 1 < count else (number + 1, 0))

    def reach(self, number: int) -> None:
        """Notes that all messages before a number are whole, and their parts gone."""
        if self.early:
            for each in range(self.next, number):
                self._forget(each)
            self.runs.reach(number)
        self.next = number

    def drop(self, number: int) -> None:
        """Notes that the parts of a message have gone."""
        if number in self.early:
            self._forget(number)
            self.runs.drop(number, before=self._last_before(number))

    def skip(self, number: int) -> None:
        """Goes on at a number, with nothing there."""
        self.next = number
        self.early, self.runs = {}, Runs()
        self.fragments = self.body_bytes = 0

    def contradicts(self, part: Part) -> bool:
        """Whether a part says other things of its message than those that are there."""
        message = self.early.get(part.sequence)
        return message is not None and (message.count, message.digest) != (part.count, part.message_digest)

    def has_room(self, part: Part, *, most: int, message_most: int) -> bool:
        """Whether a part may wait here, or need not, since the first message that is missing becomes whole with it (P26).

        Args:
            part: The part.
            most: What may be charged for all that waits.
            message_most: How long a message may be.
        """
        message = self.early.get(part.sequence)
        if message is None:
            return len(part.body) <= message_most and self.charge + part.charge <= most
        is_last = part.sequence == self.next and message.fragments + 1 == message.count
        return message.body_bytes + len(part.body) <= message_most and (is_last or self.charge + part.charge <= most)

    @property
    def end(self) -> int:
        """Before which number all is whole."""
        number = self.next
        while (message := self.early.get(number)) is not None and message.is_whole:
            number += 1
        return number

    @property
    def charge(self) -> int:
        """What all that waits counts for, in bytes."""
        return self.fragments * _FRAGMENT_CHARGE + self.body_bytes

    @property
    def weight(self) -> int:
        """What it takes in memory to know what is there, about, in bytes."""
        return (len(self.early) + len(self.runs)) * _WEIGHT

    def _last_before(self, number: int) -> Place | None:
        """The last fragment of the message before one, if that is known."""
        message = self.early.get(number - 1)
        return None if message is None else (number - 1, message.count - 1)

    def _forget(self, number: int) -> None:
        message = self.early.pop(number, None)
        if message is not None:
            self.fragments -= message.fragments
            self.body_bytes -= message.body_bytes


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
    """

    incoming: Incoming
    sequence: int
    fragment: int
    count: int
    body: bytes
    message_digest: bytes | None
    fragment_digest: bytes | None
    kind: tuple[str, bytes | None, bool, bool]

    @property
    def sender(self) -> Key:
        """The side of its conversation that has sent it."""
        conversation_id, is_initiator = self.incoming.key
        return (conversation_id, not is_initiator)

    @property
    def is_error(self) -> bool:
        """Whether it is of an error with which the application has ended the dialog."""
        return self.kind[-1]

    @property
    def charge(self) -> int:
        """What it counts for while it waits, in bytes."""
        return _FRAGMENT_CHARGE + len(self.body)
