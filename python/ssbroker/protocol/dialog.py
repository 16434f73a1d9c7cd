"""The in-memory state of one dialog endpoint: what it has sent and what has arrived."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, TypeAlias

from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.config import ProtocolSettings
from ssbroker.protocol.envelope import ACK_RANGES_MAX, AckRange, bit_ranges, fragments_in_range, lowest_bits
from ssbroker.protocol.storage import DialogEndpoint, Key
from ssbroker.security import SecuredDirection


@dataclass(slots=True)
class Flight:
    """Fragments that were sent at one moment and wait for their acknowledgement.

    Attributes:
        due: When what is left of them is sent again.
        attempt: How often they were sent again before.
        fragments: Which they were, as bits for each message.
    """

    due: int
    attempt: int
    fragments: dict[int, int]


_NEVER: Final = 2**63 - 1


@dataclass(slots=True)
class Transmission:
    """The transmission object of an endpoint.

    Messages below `head` have been sent whole at least once, and `cursor` fragments of `head`; single ones after it, up to `passed`, went between
    its fragments (P13).

    Attributes:
        key: The endpoint.
        acked: All messages up to this number are acknowledged, -1 for none.
        head: The first message that was not sent whole.
        cursor: How many of its fragments were sent.
        passed: The last message that was sent before `head` was through; `head` for none.
        unsent: The first message that nobody had ever sent when `acked` was told last, as far as that is known: whoever has it has told that.
        ahead: What the far side has of `head` beyond the cursor, as bits: it was sent before a restart (N40).
        flying: Which fragments were sent and are not acknowledged, as bits for each message.
        counts: How many fragments messages have of which not all is acknowledged, where it is more than one.
        charges: What a fragment of a message in flight counts for, in bytes.
        sizes: What messages count for, in bytes, that were begun and are not acknowledged up to their number.
        begun: What these count for together: what the far side may have to keep.
        flights: When they are sent again.
        fragments: How many fragments are in flight.
        bytes: What they count for.
        is_dirty: Whether it was changed since it was packed (P32).
        used: The moment of its last change.
        mended: The last message that was sent anew at once since the far side had to forget it.
    """

    key: Key
    acked: int = -1
    head: int = 0
    cursor: int = 0
    passed: int = 0
    unsent: int = 0
    ahead: int = 0
    flying: dict[int, int] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    charges: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    begun: int = 0
    flights: list[Flight] = field(default_factory=list)
    fragments: int = 0
    bytes: int = 0
    is_dirty: bool = True
    used: int = 0
    mended: int = -1

    def send(self, sequence: int, fragment: int, count: int, charge: int) -> None:
        """Notes that a fragment is sent for the first time: the next of `head`, or a single message after it."""
        flying = self.flying.get(sequence, 0)
        if flying and self.charges[sequence] != charge:  # what was packed has come back with one charge for all
            self.bytes += (charge - self.charges[sequence]) * flying.bit_count()
        self.flying[sequence] = flying | (1 << fragment)
        self.fragments += 1
        self.bytes += charge
        self.charges[sequence] = charge
        if count > 1:
            self.counts[sequence] = count
        if sequence not in self.sizes:
            self.sizes[sequence] = count * charge
            self.begun += count * charge
        if sequence != self.head:
            self.passed = sequence
            return
        self.cursor += 1
        self._pass_by()
        if self.cursor == count:
            self.head = self.passed = max(self.head, self.passed) + 1
            self.cursor = self.ahead = 0

    def send_whole(self, sizes: Sequence[int]) -> None:
        """Notes that whole messages are sent for the first time, from `head` on, of which nothing was sent, and nothing has passed it.

        Args:
            sizes: What each counts for, in bytes.
        """
        numbers = range(self.head, self.head + len(sizes))
        charges = dict(zip(numbers, sizes, strict=True))
        size = sum(sizes)
        self.flying.update(dict.fromkeys(numbers, 1))
        self.charges.update(charges)
        self.sizes.update(charges)
        self.fragments += len(sizes)
        self.bytes += size
        self.begun += size
        self.head = self.passed = numbers.stop

    def is_next(self, sequence: int, fragment: int, count: int) -> bool:
        """Whether this is the next fragment that was never sent: of `head`, or a single message right after what has passed it."""
        if sequence == self.head:
            return fragment == self.cursor
        return count == 1 and sequence == max(self.head, self.passed) + 1

    def coming(self, most: int) -> int:
        """Which fragments of `head` are to be sent next for the first time, as bits, where some of it was sent.

        Args:
            most: How many at most.
        """
        left = ~self.ahead >> self.cursor << self.cursor
        return lowest_bits(left & ((1 << self.counts[self.head]) - 1), most)

    def launch(self, fragments: dict[int, int], *, due: int, attempt: int) -> None:
        """Notes when fragments that are sent now are sent again."""
        self.flights.append(Flight(due, attempt, fragments))
        self.is_dirty = True

    def landed(self, now: int, most: int) -> list[Flight]:
        """Takes out flights whose time is over, with what of them is still not acknowledged.

        Args:
            now: The moment.
            most: How many fragments at most; the others stay, and their time is over.
        """
        due = [flight for flight in self.flights if flight.due <= now]
        if not due:
            return due
        self.flights = [flight for flight in self.flights if flight.due > now]
        taken: list[Flight] = []
        for flight in due:
            left = self.still_flying(flight.fragments)
            if most > 0 and left:
                first: dict[int, int] = {}
                for sequence in list(left):
                    first[sequence] = lowest_bits(left[sequence], most)
                    most -= first[sequence].bit_count()
                    left[sequence] ^= first[sequence]
                    if not left[sequence]:
                        del left[sequence]
                    if not most:
                        break
                taken.append(Flight(flight.due, flight.attempt, first))
            if left:
                self.flights.append(Flight(flight.due, flight.attempt, left))
        self.is_dirty = True
        return taken

    def hasten(self) -> None:
        """Has all that is in flight sent again at the next turn."""
        for flight in self.flights:
            flight.due = 0
        self.is_dirty = True

    def still_flying(self, fragments: dict[int, int]) -> dict[int, int]:
        """What of some fragments is not acknowledged."""
        flying = self.flying
        return {sequence: left for sequence, mask in fragments.items() if (left := mask & flying.get(sequence, 0))}

    def next_due(self) -> int | None:
        """When something is sent again; None where all is acknowledged."""
        return min((flight.due for flight in self.flights if self._is_flying(flight)), default=None)

    def is_due(self, moment: int) -> bool:
        """Whether something is sent again at a moment or before it."""
        return any(flight.due <= moment and self._is_flying(flight) for flight in self.flights)

    def believed(self, acked: int, runs: list[AckRange]) -> tuple[int, list[AckRange]]:
        """What of an acknowledgement names what was sent, or the rest of the message that is under way: a life before a restart may have sent it.

        Anything else is false, and says nothing.
        """
        head, cursor = self.head, self.cursor
        last_of_head = self.counts[head] - 1 if cursor else 0
        if acked >= head:
            runs = [(head, 0, head, last_of_head), (head + 1, 0, acked, 0), *runs]
        # Two stretches: to the end of what is under way, and the single messages that have passed it.
        end = (head, last_of_head) if cursor else (head - 1, self.counts.get(head - 1, 1) - 1)
        stretches = [((0, 0), end), ((head + 1, 0), (self.passed, 0))]
        sent: list[AckRange] = []
        for first_message, first, last_message, last in runs:
            for begin, end in stretches:
                low, high = max((first_message, first), begin), min((last_message, last), end)
                if low <= high:
                    sent.append((*low, *high))
        return min(acked, head - 1), sent

    def is_forgotten(self, acked: int, runs: list[AckRange]) -> bool:
        """Whether an acknowledgement says that the far side has lost messages which it had acknowledged before it got one that it names (B28).

        Only what is `believed`. An acknowledgement that is merely old names nothing that was sent after a later one had come.
        """
        return acked < self.acked and any(run[2] >= self.unsent for run in runs)

    def acknowledge(self, acked: int, runs: list[AckRange]) -> None:
        """Takes what an acknowledgement names out of flight; only what is `believed`."""
        self.is_dirty = True
        if acked > self.acked:
            for sequence in [each for each in self.flying if each <= acked]:
                self._clear(sequence, -1)
            for sequence in [each for each in self.counts if each <= acked]:
                del self.counts[sequence]
            self._forget_sizes(acked)
            self.acked = acked
            sent = max(self.head - (self.cursor == 0), self.passed - (self.passed == self.head))
            self.unsent = max(self.unsent, sent + 1)
        flying = sorted(self.flying) if runs else []
        for run in runs:
            for sequence in flying[bisect_left(flying, run[0]) : bisect_right(flying, run[2])]:
                self._clear(sequence, fragments_in_range(run, sequence, self.counts.get(sequence, 1)))
            if self.cursor and run[0] <= self.head <= run[2]:
                self.ahead |= fragments_in_range(run, self.head, self.counts[self.head])
        if self.ahead:
            self._pass_by()
        self._mend()
        self.flights = [flight for flight in self.flights if self._is_flying(flight)] if self.flying else []

    def abandon(self) -> None:
        """Forgets all that is in flight: the conversation is broken."""
        for sequence in list(self.flying):
            self._clear(sequence, -1)
        self.flights.clear()
        self.sizes.clear()
        self.begun = 0
        self.is_dirty = True

    def skip(self, sequence: int) -> None:
        """Goes on at a message: those before it are not in the transmission queue any more, and never will be (B13)."""
        for number in [each for each in {*self.flying, *self.counts} if each < sequence]:
            self._clear(number, -1)
            self.counts.pop(number, None)
        self._forget_sizes(sequence - 1)
        if self.head < sequence:
            self.head, self.cursor, self.ahead = sequence, 0, 0
        self.passed = max(self.passed, self.head)
        self.acked, self.unsent = max(self.acked, sequence - 1), _NEVER
        self.is_dirty = True

    def drop(self, sequence: int) -> None:
        """Forgets a message that is not in the transmission queue any more."""
        self._clear(sequence, -1)

    @property
    def is_mended(self) -> bool:
        """Whether something is to be sent again at once."""
        return any(flight.due == 0 for flight in self.flights)

    def _is_flying(self, flight: Flight) -> bool:
        """Whether anything of a flight is not acknowledged, or not known; what was sent last is looked at first."""
        flying, fragments = self.flying, flight.fragments
        return not fragments or any(fragments[sequence] & flying.get(sequence, 0) for sequence in reversed(fragments))

    def _clear(self, sequence: int, mask: int) -> None:
        before = self.flying.get(sequence, 0)
        cleared = before & mask
        if not cleared:
            return
        number = cleared.bit_count()
        self.fragments -= number
        self.bytes -= number * self.charges[sequence]
        if cleared == before:
            del self.flying[sequence], self.charges[sequence]
        else:
            self.flying[sequence] = before ^ cleared

    def _forget_sizes(self, last: int) -> None:
        """Forgets what messages count for, up to a number."""
        sizes = self.sizes
        for sequence in [*takewhile(last.__ge__, sizes)]:
            self.begun -= sizes.pop(sequence)

    def _pass_by(self) -> None:
        """Takes the cursor past what is there already, but not past the last fragment: only a message that was sent can be acknowledged."""
        if self.ahead:
            self.ahead &= (1 << (self.counts[self.head] - 1)) - 1
            there = self.ahead >> self.cursor
            self.cursor += (there ^ (there + 1)).bit_length() - 1

    def _mend(self) -> None:
        """All of the next message was told to be there, and it is not whole: the far side had to forget it (P23). It goes again, at once for once."""
        sequence = self.acked + 1
        if sequence < self.head and sequence not in self.flying:
            count = self.counts.get(sequence, 1)
            self.flying[sequence] = (1 << count) - 1
            self.charges[sequence] = 0
            self.fragments += count
            if sequence != self.mended or not any(sequence in flight.fragments for flight in self.flights):
                self.flights.append(Flight(0, 0, {sequence: self.flying[sequence]}))
            self.mended = sequence


Place: TypeAlias = tuple[int, int]
"""A message and a fragment of it."""


class NumberRuns:
    """Places, each at most once; those that follow one another take no more room than one of them.

    Examples:
        >>> runs = NumberRuns()
        >>> runs.add((3, 2), before=(3, 1), after=(3, 3))
        >>> runs.add((4, 0), before=(3, 3), after=(4, 1))
        >>> runs.add((3, 3), before=(3, 2), after=(4, 0))
        >>> runs.told(), (3, 3) in runs, (4, 1) in runs
        ([(3, 2, 4, 0)], True, False)
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[Place] = []
        self._lasts: list[Place] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, place: Place) -> bool:
        at = bisect_right(self._firsts, place)
        return at > 0 and place <= self._lasts[at - 1]

    def add(self, place: Place, *, before: Place | None, after: Place) -> None:
        """Adds a place that is not there.

        Args:
            place: The place.
            before: The one that it follows; None where that is not known.
            after: The one that follows it.
        """
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, place)
        follows = at > 0 and lasts[at - 1] == before
        precedes = at < len(firsts) and firsts[at] == after
        if follows and precedes:
            del firsts[at]
            del lasts[at - 1]
        elif follows:
            lasts[at - 1] = place
        elif precedes:
            firsts[at] = place
        else:
            firsts.insert(at, place)
            lasts.insert(at, place)

    def reach(self, number: int) -> None:
        """Takes out all messages before a number."""
        first = (number, 0)
        at = bisect_left(self._lasts, first)
        del self._firsts[:at], self._lasts[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], first)

    def drop(self, number: int, *, before: Place | None) -> None:
        """Takes out one message.

        Args:
            number: The message.
            before: The place that its first one follows; None where that is not known.
        """
        begin, end = (number, 0), (number + 1, 0)
        low, high = bisect_left(self._lasts, begin), bisect_left(self._firsts, end)
        firsts, lasts = self._firsts[low:high], self._lasts[low:high]
        rest: list[tuple[Place, Place]] = []
        if before is not None and firsts and firsts[0] < begin:
            rest.append((firsts[0], before))
        if lasts and lasts[-1] >= end:
            rest.append((end, lasts[-1]))
        self._firsts[low:high] = [first for first, _ in rest]
        self._lasts[low:high] = [last for _, last in rest]

    def told(self) -> list[AckRange]:
        """The runs, ascending, as many as an acknowledgement names."""
        return [
            (*first, *last)
            for first, last in zip(self._firsts[:ACK_RANGES_MAX], self._lasts[:ACK_RANGES_MAX], strict=True)
        ]


_FRAGMENT_CHARGE: Final = 512
_WEIGHT: Final = 512


@dataclass(slots=True)
class PendingMessage:
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
class InboundDirection:
    """A direction that is being received.

    Attributes:
        key: The endpoint that receives.
        next: The number of the message that is expected next.
        early: The messages that are incomplete or wait, by number.
        runs: Which of their fragments are there.
        fragments: How many these are together.
        body_bytes: And how many bytes they have.

    Examples:
        >>> incoming = InboundDirection((bytes(16), True), 3)
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
    early: dict[int, PendingMessage] = field(default_factory=dict)
    runs: NumberRuns = field(default_factory=NumberRuns)
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
            message = self.early[number] = PendingMessage(count, digest)
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
        self.early, self.runs = {}, NumberRuns()
        self.fragments = self.body_bytes = 0

    def contradicts(self, part: OpenedFragment) -> bool:
        """Whether a part says other things of its message than those that are there."""
        message = self.early.get(part.sequence)
        return message is not None and (message.count, message.digest) != (part.count, part.message_digest)

    def has_room(self, part: OpenedFragment, *, most: int, message_most: int) -> bool:
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
class OpenedFragment:
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

    incoming: InboundDirection
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


@dataclass(slots=True, eq=False)
class Dialog:
    """An endpoint while it is in memory: its row, its transmission object, its keys, and what of the far side's messages is loaded.

    Attributes:
        key: Which endpoint it is.
        endpoint: Its row, as last committed.
        transmission: What it has sent.
        is_known: Whether it is known where its transmission queue begins.
        is_drained: Whether all that its transmission queue held was sent, when it was last read.
        is_told: Whether more was put into its transmission queue since it was last asked whether the application has ended the dialog (N30).
        has_ended: Whether the application has ended it with an error, which is all that is left to send.
        outbound: Seals what it sends; None for a plain conversation.
        inbound: Opens what it receives.
        incoming: What it is receiving; None while that is not loaded.
        ack: The acknowledgement: what is durable here, up to a number (None for none) and beyond.
        ack_due: When it goes alone; None where none is due.
        ack_owed: How many fragments were taken since the last acknowledgement.
        ack_owed_bytes: And how many bytes.
    """

    key: Key
    endpoint: DialogEndpoint
    transmission: Transmission
    is_known: bool = False
    is_drained: bool = False
    is_told: bool = True
    has_ended: bool = False
    outbound: SecuredDirection | None = None
    inbound: SecuredDirection | None = None
    incoming: InboundDirection | None = None
    ack: tuple[int | None, bytes] = (None, b"")
    ack_due: int | None = None
    ack_owed: int = 0
    ack_owed_bytes: int = 0

    def is_pressed(self, settings: ProtocolSettings) -> bool:
        """Whether a quarter of the window waits for the acknowledgement, so that the sender soon has to."""
        return 4 * self.ack_owed >= settings.window_fragments or 4 * self.ack_owed_bytes >= settings.window_bytes

    def is_due(self, moment: int) -> bool:
        """Whether it has to acknowledge or to send something again."""
        if self.ack_due is not None and self.ack_due <= moment:
            return True
        return self.transmission.is_due(moment)

    def bind(self, endpoint: DialogEndpoint) -> None:
        """Takes over the row as it is now that the far side has answered, with the key that it may have brought."""
        self.endpoint = endpoint
        if endpoint.far_session_key is not None:
            self.inbound = inbound_of(endpoint.key, endpoint.far_session_key)

    def answers_unmade(self) -> None:
        """Has what is answered sealed under the far side's key: no endpoint is made here, with which one of its own would go there."""
        given = self.endpoint.far_session_key
        if given is not None:
            self.endpoint = replace(self.endpoint, session_key=given, far_session_key=None)
            self.outbound = SecuredDirection(given, conversation_id=self.key[0], is_initiator=self.key[1])

    def paid(self) -> None:
        """Notes that the acknowledgement goes now."""
        self.ack_due = None
        self.ack_owed = self.ack_owed_bytes = 0


def dialog_of(endpoint: DialogEndpoint, transmission: Transmission | None = None) -> Dialog:
    """An endpoint, taken into memory.

    Args:
        endpoint: Its row.
        transmission: Its transmission object, where the work table had one.

    Returns:
        The dialog.

    Examples:
        >>> row = DialogEndpoint(conversation_id=bytes(16), is_initiator=True, service_name="Shop", broker_instance=bytes(16),
        ...                far_service_name="Bank")
        >>> dialog_of(row).transmission.head
        0
    """
    begun = transmission or Transmission(endpoint.key, unsent=endpoint.send_sequence)
    dialog = Dialog(endpoint.key, endpoint, begun, is_known=transmission is not None)
    if endpoint.session_key is not None:
        dialog.outbound = SecuredDirection(
            endpoint.session_key, conversation_id=endpoint.conversation_id, is_initiator=endpoint.is_initiator
        )
        dialog.inbound = inbound_of(endpoint.key, endpoint.far_session_key or endpoint.session_key)
    return dialog


def inbound_of(key: Key, session_key: bytes) -> SecuredDirection:
    """What opens that which the far side of an endpoint sends.

    Args:
        key: The endpoint.
        session_key: With what the far side seals.

    Returns:
        The direction towards the endpoint.

    Examples:
        >>> inbound_of((bytes(16), True), bytes(32)).verify_header(b"header", bytes(16))
        False
    """
    return SecuredDirection(session_key, conversation_id=key[0], is_initiator=not key[1])


PACKED_MAX: Final = 1024

_FIXED: Final = struct.Struct(">B16s?qqiqqqqbH")
_VERSION: Final = 2
_CHARGE_MAX: Final = 5
_NOTHING_WAITS: Final = -1
_ATTEMPTS_MAX: Final = 100
_MORE: Final = 0x80
"""The bit of a byte that says that another follows."""


def pack_transmission(transmission: Transmission) -> bytes:
    """An object as bytes.

    Where more is scattered than fits, it is packed as if nothing after the acknowledged number had been sent: that much goes again,
    when the first of it would have. What the far side has beyond the cursor is not packed, for it says so again with its next acknowledgement;
    nor what begun messages count for, which is counted anew from those that follow.

    Args:
        transmission: The object.

    Returns:
        At most `PACKED_MAX` bytes.

    Examples:
        >>> len(pack_transmission(Transmission((bytes(16), True))))
        74
    """
    entries = [number for entry in _entries(transmission) for number in entry]
    data = b"".join(map(_varint, entries))
    # One moment for all that waits: the waits need not be exact.
    due = min((flight.due for flight in transmission.flights), default=0)
    attempt = max((flight.attempt for flight in transmission.flights), default=_NOTHING_WAITS)
    if _FIXED.size + len(data) + _CHARGE_MAX > PACKED_MAX:
        first = transmission.acked + 1
        waits = [Flight(due, attempt, {})]
        return pack_transmission(
            Transmission(
                transmission.key,
                transmission.acked,
                first,
                passed=first,
                unsent=transmission.unsent,
                flights=waits,
                used=transmission.used,
            )
        )
    charge = -(-transmission.bytes // transmission.fragments) if transmission.fragments else 0
    conversation_id, is_initiator = transmission.key
    place = (transmission.acked, transmission.head, transmission.cursor, transmission.passed, transmission.unsent)
    fixed = _FIXED.pack(
        _VERSION,
        conversation_id,
        is_initiator,
        *place,
        due,
        transmission.used,
        min(attempt, _ATTEMPTS_MAX),
        len(entries),
    )
    return fixed + _varint(charge) + data


def _entries(transmission: Transmission) -> Iterator[tuple[int, ...]]:
    """Single messages in flight by runs of their numbers, larger ones each with the runs of their fragments."""
    before = transmission.acked
    run = 0
    for sequence in sorted({*transmission.flying, *transmission.counts}):
        if sequence not in transmission.counts and sequence == before + 1 and run:
            run += 1
        else:
            if run:
                yield (run,)
            run = 0
            yield (transmission.counts.get(sequence, 1), sequence - before)
            if sequence in transmission.counts:
                runs = list(bit_ranges(transmission.flying.get(sequence, 0)))
                yield (len(runs), *(number for first, last in runs for number in (first, last - first)))
            else:
                run = 1
        before = sequence
    if run:
        yield (run,)


def unpack_transmission(data: bytes) -> Transmission:
    """The object of such bytes.

    Args:
        data: What `packed` gave.

    Returns:
        The object, not dirty.

    Raises:
        MalformedDataError: They are no packed object.

    Examples:
        >>> unpack_transmission(pack_transmission(Transmission((bytes(16), True), acked=3, head=5, passed=5))).head
        5
    """
    try:
        return _unpacked(data)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedDataError("work table: this is no packed transmission object") from error


def _unpacked(data: bytes) -> Transmission:
    version, conversation, is_initiator, acked, head, cursor, passed, unsent, due, used, attempt, count = (
        _FIXED.unpack_from(data)
    )
    if version != _VERSION or len(data) > PACKED_MAX:
        raise ValueError(version)
    numbers = _Numbers(data, _FIXED.size)
    charge = numbers.next()
    end = numbers.taken + count
    made = Transmission((conversation, is_initiator), acked, head, cursor, passed, unsent, is_dirty=False, used=used)
    sequence = acked
    while numbers.taken < end:
        fragments, distance = numbers.next(), numbers.next()
        sequence += distance
        if fragments == 1:
            run = numbers.next()
            for number in range(sequence, sequence + run):
                made.flying[number] = 1
            sequence += run - 1
        else:
            made.counts[sequence] = fragments
            mask = 0
            for _ in range(numbers.next()):
                first = numbers.next()
                mask |= ((2 << numbers.next()) - 1) << first
            if mask:
                made.flying[sequence] = mask
    made.charges = dict.fromkeys(made.flying, charge)
    made.fragments = sum(mask.bit_count() for mask in made.flying.values())
    made.bytes = made.fragments * charge
    if attempt != _NOTHING_WAITS:
        made.flights.append(Flight(due, attempt, dict(made.flying)))
    return made


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= _MORE:
        out.append(number & ~-_MORE | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Numbers:
    """Numbers of seven bits a byte, one after the other."""

    __slots__ = ("_at", "_data", "taken")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self.taken = 0

    def next(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & ~-_MORE) << shift
            shift += 7
            if byte < _MORE:
                self.taken += 1
                return number
