"""The in-memory state of one dialog endpoint: what it has sent and what it has received."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, TypeAlias

from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.ack_ranges import ACK_RANGES_MAX, AckRange, bit_ranges, fragments_in_range, lowest_bits
from ssbroker.protocol.config import ProtocolSettings
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey
from ssbroker.security import SecuredDirection


@dataclass(slots=True)
class Flight:
    """Fragments that were sent together and wait for their acknowledgement.

    Attributes:
        due: When the unacknowledged ones are sent again.
        attempt: How often they were sent again before.
        fragments: A bit mask of the fragments for each message.
    """

    due: int
    attempt: int
    fragments: dict[int, int]


_NEVER: Final = 2**63 - 1


@dataclass(slots=True)
class Transmission:
    """The transmission object of an endpoint.

    All fragments of the messages below `head` have been sent at least once, and the first `cursor` fragments of `head`. Single-fragment
    messages after `head`, up to `last_interleaved`, were sent between its fragments (P13).

    Attributes:
        key: The endpoint.
        acked: All messages up to this number are acknowledged; -1 if none is.
        head: The first message that was not sent completely.
        cursor: How many of its fragments were sent.
        last_interleaved: The last message that was sent while `head` was in progress; `head` if none was.
        first_unsent: The first message that had never been sent when `acked` last advanced, as far as known.
        acked_beyond_cursor: A bit mask of the fragments of `head` beyond the cursor that the peer has: they were sent before a restart.
        in_flight: A bit mask of the unacknowledged fragments for each message.
        fragment_counts: The fragment counts of incompletely acknowledged messages with more than one fragment.
        fragment_bytes: How many bytes a fragment of a message in flight is charged for.
        started_sizes: How many bytes a started message is charged for, until it is acknowledged in order.
        started_bytes: The sum of `started_sizes`: what the peer may have to buffer.
        flights: When the fragments in flight are sent again.
        fragments_in_flight: The number of fragments in flight.
        bytes_in_flight: How many bytes they are charged for.
        is_dirty: Whether the object has changed since it was packed (P32).
        last_used: The time of the last change.
        last_repaired: The last message that was sent again immediately because the peer had discarded it.
        window_bytes: How many bytes of a message of several fragments may be in flight; 0 means the initial value.
    """

    key: EndpointKey
    acked: int = -1
    head: int = 0
    cursor: int = 0
    last_interleaved: int = 0
    first_unsent: int = 0
    acked_beyond_cursor: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    fragment_counts: dict[int, int] = field(default_factory=dict)
    fragment_bytes: dict[int, int] = field(default_factory=dict)
    started_sizes: dict[int, int] = field(default_factory=dict)
    started_bytes: int = 0
    flights: list[Flight] = field(default_factory=list)
    fragments_in_flight: int = 0
    bytes_in_flight: int = 0
    is_dirty: bool = True
    last_used: int = 0
    last_repaired: int = -1
    window_bytes: int = 0

    def mark_sent(self, sequence: int, fragment: int, count: int, charge: int) -> None:
        """Records that a fragment is sent for the first time: the next of `head`, or a single-fragment message after it."""
        in_flight = self.in_flight.get(sequence, 0)
        if in_flight and self.fragment_bytes[sequence] != charge:  # an unpacked object has one charge for all messages
            self.bytes_in_flight += (charge - self.fragment_bytes[sequence]) * in_flight.bit_count()
        self.in_flight[sequence] = in_flight | (1 << fragment)
        self.fragments_in_flight += 1
        self.bytes_in_flight += charge
        self.fragment_bytes[sequence] = charge
        if count > 1:
            self.fragment_counts[sequence] = count
        if sequence not in self.started_sizes:
            self.started_sizes[sequence] = count * charge
            self.started_bytes += count * charge
        if sequence != self.head:
            self.last_interleaved = sequence
            return
        self.cursor += 1
        self._advance_cursor()
        if self.cursor == count:
            self.head = self.last_interleaved = max(self.head, self.last_interleaved) + 1
            self.cursor = self.acked_beyond_cursor = 0

    def mark_messages_sent(self, sizes: Sequence[int]) -> None:
        """Records that whole messages of the given sizes, starting at `head`, are sent for the first time."""
        numbers = range(self.head, self.head + len(sizes))
        charges = dict(zip(numbers, sizes, strict=True))
        size = sum(sizes)
        self.in_flight.update(dict.fromkeys(numbers, 1))
        self.fragment_bytes.update(charges)
        self.started_sizes.update(charges)
        self.fragments_in_flight += len(sizes)
        self.bytes_in_flight += size
        self.started_bytes += size
        self.head = self.last_interleaved = numbers.stop

    def is_next_unsent(self, sequence: int, fragment: int, count: int) -> bool:
        """Returns whether this fragment is the next of `head`, or the next single-fragment message to interleave."""
        if sequence == self.head:
            return fragment == self.cursor
        return count == 1 and sequence == max(self.head, self.last_interleaved) + 1

    def next_unsent(self, limit: int) -> int:
        """Returns a bit mask of the next unsent fragments of `head`, at most `limit`; `head` must be partly sent."""
        left = ~self.acked_beyond_cursor >> self.cursor << self.cursor
        return lowest_bits(left & ((1 << self.fragment_counts[self.head]) - 1), limit)

    def add_flight(self, fragments: dict[int, int], *, due: int, attempt: int) -> None:
        """Schedules the retransmission of fragments that are being sent."""
        self.flights.append(Flight(due, attempt, fragments))
        self.is_dirty = True

    def take_due(self, now: int, limit: int) -> list[Flight]:
        """Removes and returns due flights, reduced to at most `limit` unacknowledged fragments; the others stay due."""
        due = [flight for flight in self.flights if flight.due <= now]
        if not due:
            return due
        self.flights = [flight for flight in self.flights if flight.due > now]
        taken: list[Flight] = []
        for flight in due:
            left = self.unacknowledged(flight.fragments)
            if limit > 0 and left:
                first: dict[int, int] = {}
                for sequence in list(left):
                    first[sequence] = lowest_bits(left[sequence], limit)
                    limit -= first[sequence].bit_count()
                    left[sequence] ^= first[sequence]
                    if not left[sequence]:
                        del left[sequence]
                    if not limit:
                        break
                taken.append(Flight(flight.due, flight.attempt, first))
            if left:
                self.flights.append(Flight(flight.due, flight.attempt, left))
        self.is_dirty = True
        return taken

    def expire_all(self) -> None:
        """Makes everything in flight due for retransmission."""
        for flight in self.flights:
            flight.due = 0
        self.is_dirty = True

    def unacknowledged(self, fragments: dict[int, int]) -> dict[int, int]:
        """Returns those of the given fragments that are not acknowledged."""
        in_flight = self.in_flight
        return {sequence: left for sequence, mask in fragments.items() if (left := mask & in_flight.get(sequence, 0))}

    def next_due(self) -> int | None:
        """Returns when the next retransmission is due; None if everything is acknowledged."""
        return min((flight.due for flight in self.flights if self._is_unacknowledged(flight)), default=None)

    def is_due(self, now: int) -> bool:
        """Returns whether a retransmission is due."""
        return any(flight.due <= now and self._is_unacknowledged(flight) for flight in self.flights)

    def clamp_acknowledgement(self, acked: int, runs: list[AckRange]) -> tuple[int, list[AckRange]]:
        """Limits an acknowledgement to what was sent, including all of a partly sent message: it may have been sent before a restart."""
        head, cursor = self.head, self.cursor
        last_of_head = self.fragment_counts[head] - 1 if cursor else 0
        if acked >= head:
            runs = [(head, 0, head, last_of_head), (head + 1, 0, acked, 0), *runs]
        # Two spans: up to the end of the message in progress, and the single-fragment messages interleaved after it.
        end = (head, last_of_head) if cursor else (head - 1, self.fragment_counts.get(head - 1, 1) - 1)
        spans = [((0, 0), end), ((head + 1, 0), (self.last_interleaved, 0))]
        clamped: list[AckRange] = []
        for first_message, first, last_message, last in runs:
            for begin, end in spans:
                low, high = max((first_message, first), begin), min((last_message, last), end)
                if low <= high:
                    clamped.append((*low, *high))
        return min(acked, head - 1), clamped

    def shows_data_loss(self, acked: int, runs: list[AckRange]) -> bool:
        """Returns whether a clamped acknowledgement shows that the peer has lost messages that it had acknowledged.

        An acknowledgement that is merely old names nothing that was sent after a later one arrived.
        """
        return acked < self.acked and any(run[2] >= self.first_unsent for run in runs)

    def acknowledge(self, acked: int, runs: list[AckRange]) -> None:
        """Removes the fragments that a clamped acknowledgement names from flight."""
        self.is_dirty = True
        if acked > self.acked:
            for sequence in [each for each in self.in_flight if each <= acked]:
                self._remove(sequence, -1)
            for sequence in [each for each in self.fragment_counts if each <= acked]:
                del self.fragment_counts[sequence]
            self._release_started(acked)
            self.acked = acked
            sent = max(self.head - (self.cursor == 0), self.last_interleaved - (self.last_interleaved == self.head))
            self.first_unsent = max(self.first_unsent, sent + 1)
        in_flight = sorted(self.in_flight) if runs else []
        for run in runs:
            for sequence in in_flight[bisect_left(in_flight, run[0]) : bisect_right(in_flight, run[2])]:
                self._remove(sequence, fragments_in_range(run, sequence, self.fragment_counts.get(sequence, 1)))
            if self.cursor and run[0] <= self.head <= run[2]:
                self.acked_beyond_cursor |= fragments_in_range(run, self.head, self.fragment_counts[self.head])
        if self.acked_beyond_cursor:
            self._advance_cursor()
        self._requeue_lost()
        self.flights = [flight for flight in self.flights if self._is_unacknowledged(flight)] if self.in_flight else []

    def abandon(self) -> None:
        """Forgets everything in flight, because the conversation is broken."""
        for sequence in list(self.in_flight):
            self._remove(sequence, -1)
        self.flights.clear()
        self.started_sizes.clear()
        self.started_bytes = 0
        self.is_dirty = True

    def skip_to(self, sequence: int) -> None:
        """Continues at a message; the earlier ones have been removed from the transmission queue."""
        for number in [each for each in {*self.in_flight, *self.fragment_counts} if each < sequence]:
            self._remove(number, -1)
            self.fragment_counts.pop(number, None)
        self._release_started(sequence - 1)
        if self.head < sequence:
            self.head, self.cursor, self.acked_beyond_cursor = sequence, 0, 0
        self.last_interleaved = max(self.last_interleaved, self.head)
        self.acked, self.first_unsent = max(self.acked, sequence - 1), _NEVER
        self.is_dirty = True

    def drop_message(self, sequence: int) -> None:
        """Forgets a message that is no longer in the transmission queue."""
        self._remove(sequence, -1)

    @property
    def has_immediate_retransmission(self) -> bool:
        """Whether a retransmission is due immediately."""
        return any(flight.due == 0 for flight in self.flights)

    def _is_unacknowledged(self, flight: Flight) -> bool:
        """Returns whether any fragment of a flight may be unacknowledged, checking the last messages first."""
        in_flight, fragments = self.in_flight, flight.fragments
        return not fragments or any(
            fragments[sequence] & in_flight.get(sequence, 0) for sequence in reversed(fragments)
        )

    def _remove(self, sequence: int, mask: int) -> None:
        before = self.in_flight.get(sequence, 0)
        cleared = before & mask
        if not cleared:
            return
        number = cleared.bit_count()
        self.fragments_in_flight -= number
        self.bytes_in_flight -= number * self.fragment_bytes[sequence]
        if cleared == before:
            del self.in_flight[sequence], self.fragment_bytes[sequence]
        else:
            self.in_flight[sequence] = before ^ cleared

    def _release_started(self, last: int) -> None:
        """Releases the charges of started messages up to a number."""
        sizes = self.started_sizes
        for sequence in [*takewhile(last.__ge__, sizes)]:
            self.started_bytes -= sizes.pop(sequence)

    def _advance_cursor(self) -> None:
        """Moves the cursor past fragments that the peer has, but not past the last one, which must be sent to be acknowledged."""
        if self.acked_beyond_cursor:
            self.acked_beyond_cursor &= (1 << (self.fragment_counts[self.head] - 1)) - 1
            received = self.acked_beyond_cursor >> self.cursor
            self.cursor += (received ^ (received + 1)).bit_length() - 1

    def _requeue_lost(self) -> None:
        """Retransmits the next message if the peer had acknowledged all its fragments and then discarded it (P23).

        The first time, the retransmission is immediate.
        """
        sequence = self.acked + 1
        if sequence < self.head and sequence not in self.in_flight:
            count = self.fragment_counts.get(sequence, 1)
            self.in_flight[sequence] = (1 << count) - 1
            self.fragment_bytes[sequence] = 0
            self.fragments_in_flight += count
            if sequence != self.last_repaired or not any(sequence in flight.fragments for flight in self.flights):
                self.flights.append(Flight(0, 0, {sequence: self.in_flight[sequence]}))
            self.last_repaired = sequence


Position: TypeAlias = tuple[int, int]
"""The numbers of a message and of one of its fragments."""


class FragmentRanges:
    """A set of fragment positions, stored as ranges of consecutive positions.

    Examples:
        >>> ranges = FragmentRanges()
        >>> ranges.add((3, 2), before=(3, 1), after=(3, 3))
        >>> ranges.add((4, 0), before=(3, 3), after=(4, 1))
        >>> ranges.add((3, 3), before=(3, 2), after=(4, 0))
        >>> ranges.to_ack_ranges(), (3, 3) in ranges, (4, 1) in ranges
        ([(3, 2, 4, 0)], True, False)
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[Position] = []
        self._lasts: list[Position] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, place: Position) -> bool:
        at = bisect_right(self._firsts, place)
        return at > 0 and place <= self._lasts[at - 1]

    def add(self, place: Position, *, before: Position | None, after: Position) -> None:
        """Adds a position that is not in the set, given the positions before and after it (None if unknown)."""
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

    def remove_before(self, number: int) -> None:
        """Removes all messages before a number."""
        first = (number, 0)
        at = bisect_left(self._lasts, first)
        del self._firsts[:at], self._lasts[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], first)

    def remove_message(self, number: int, *, before: Position | None) -> None:
        """Removes a message, given the position before its first fragment (None if unknown)."""
        begin, end = (number, 0), (number + 1, 0)
        low, high = bisect_left(self._lasts, begin), bisect_left(self._firsts, end)
        firsts, lasts = self._firsts[low:high], self._lasts[low:high]
        rest: list[tuple[Position, Position]] = []
        if before is not None and firsts and firsts[0] < begin:
            rest.append((firsts[0], before))
        if lasts and lasts[-1] >= end:
            rest.append((end, lasts[-1]))
        self._firsts[low:high] = [first for first, _ in rest]
        self._lasts[low:high] = [last for _, last in rest]

    def to_ack_ranges(self) -> list[AckRange]:
        """Returns the ranges in ascending order, as many as an acknowledgement can name."""
        return [
            (*first, *last)
            for first, last in zip(self._firsts[:ACK_RANGES_MAX], self._lasts[:ACK_RANGES_MAX], strict=True)
        ]


_FRAGMENT_OVERHEAD: Final = 512
_ENTRY_BYTES: Final = 512


@dataclass(slots=True)
class PendingMessage:
    """A message that is incomplete or waits for earlier messages.

    Attributes:
        count: The number of its fragments.
        digest: The MD5 digest of the whole message, if known.
        fragments: How many fragments have arrived.
        body_bytes: The number of bytes in these fragments.
    """

    count: int
    digest: bytes | None
    fragments: int = 0
    body_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all fragments have arrived."""
        return self.fragments == self.count


@dataclass(slots=True, eq=False)
class InboundDirection:
    """The receive state of one direction of a dialog.

    Attributes:
        key: The receiving endpoint.
        next: The number of the next expected message.
        pending: The messages that are incomplete or out of order, by number.
        ranges: The positions of the fragments that have arrived for them.
        pending_fragments: The number of these fragments.
        pending_bytes: The number of bytes in these fragments.
    """

    key: EndpointKey
    next: int
    pending: dict[int, PendingMessage] = field(default_factory=dict)
    ranges: FragmentRanges = field(default_factory=FragmentRanges)
    pending_fragments: int = 0
    pending_bytes: int = 0

    def add(self, place: Position, *, count: int, digest: bytes | None, size: int) -> None:
        """Records a fragment that has arrived for the first time and must wait."""
        number, fragment = place
        message = self.pending.get(number)
        if message is None:
            message = self.pending[number] = PendingMessage(count, digest)
        message.fragments += 1
        message.body_bytes += size
        self.pending_fragments += 1
        self.pending_bytes += size
        before = (number, fragment - 1) if fragment else self._last_fragment_before(number)
        self.ranges.add(place, before=before, after=(number, fragment + 1) if fragment + 1 < count else (number + 1, 0))

    def advance_to(self, number: int) -> None:
        """Records that all messages before a number are complete and released."""
        if self.pending:
            for each in range(self.next, number):
                self._remove(each)
            self.ranges.remove_before(number)
        self.next = number

    def drop_message(self, number: int) -> None:
        """Records that the fragments of a message were discarded."""
        if number in self.pending:
            self._remove(number)
            self.ranges.remove_message(number, before=self._last_fragment_before(number))

    def skip_to(self, number: int) -> None:
        """Continues at a number and forgets all pending messages."""
        self.next = number
        self.pending, self.ranges = {}, FragmentRanges()
        self.pending_fragments = self.pending_bytes = 0

    def conflicts_with(self, part: OpenedFragment) -> bool:
        """Returns whether a fragment contradicts the earlier fragments of its message."""
        message = self.pending.get(part.sequence)
        return message is not None and (message.count, message.digest) != (part.count, part.message_digest)

    def has_room(self, part: OpenedFragment, *, max_bytes: int, max_message_bytes: int) -> bool:
        """Returns whether a fragment may be kept (P26). For the next expected message, only the charge for its fragments is limited."""
        message = self.pending.get(part.sequence) or PendingMessage(part.count, None)
        if message.body_bytes + len(part.body) > max_message_bytes:
            return False
        if part.sequence == self.next and (message.fragments + 1) * _FRAGMENT_OVERHEAD <= max_bytes:
            return True
        return self.charged_bytes + part.charged_bytes <= max_bytes

    @property
    def complete_until(self) -> int:
        """The number of the first incomplete message."""
        number = self.next
        while (message := self.pending.get(number)) is not None and message.is_complete:
            number += 1
        return number

    @property
    def charged_bytes(self) -> int:
        """How many bytes the pending fragments are charged for."""
        return self.pending_fragments * _FRAGMENT_OVERHEAD + self.pending_bytes

    @property
    def memory_bytes(self) -> int:
        """Approximately how many bytes of memory this state takes."""
        return (len(self.pending) + len(self.ranges)) * _ENTRY_BYTES

    def _last_fragment_before(self, number: int) -> Position | None:
        """Returns the position of the last fragment of the preceding message, if known."""
        message = self.pending.get(number - 1)
        return None if message is None else (number - 1, message.count - 1)

    def _remove(self, number: int) -> None:
        message = self.pending.pop(number, None)
        if message is not None:
            self.pending_fragments -= message.fragments
            self.pending_bytes -= message.body_bytes


@dataclass(slots=True)
class OpenedFragment:
    """A verified and decrypted fragment.

    Attributes:
        incoming: The receive state of its direction.
        sequence: The number of its message.
        fragment: The number of the fragment.
        count: The number of fragments of its message.
        body: The content of the fragment.
        message_digest: The MD5 digest of the whole message, if known.
        fragment_digest: The MD5 digest of the fragment, if it has to be checked.
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
    def sender(self) -> EndpointKey:
        """The key of the sending endpoint."""
        conversation_id, is_initiator = self.incoming.key
        return (conversation_id, not is_initiator)

    @property
    def is_error(self) -> bool:
        """Whether it belongs to an error with which the application ended the dialog."""
        return self.kind[-1]

    @property
    def charged_bytes(self) -> int:
        """How many bytes it is charged for while it waits."""
        return _FRAGMENT_OVERHEAD + len(self.body)


@dataclass(slots=True, eq=False)
class Dialog:
    """An endpoint in memory: its row, transmission object, ciphers and receive state.

    Attributes:
        key: The key of the endpoint.
        endpoint: Its row, as last committed.
        transmission: Its transmission object.
        knows_queue_start: Whether the first message of its transmission queue is known.
        is_drained: Whether the transmission queue held nothing unsent when it was last read.
        has_new_messages: Whether messages were queued since the last check for an error with which the application ended the dialog.
        ended_with_error: Whether the application ended the dialog with an error, which is then all that is left to send.
        outbound_cipher: Seals what the endpoint sends; None if the conversation has no keys.
        inbound_cipher: Opens what the endpoint receives.
        incoming: Its receive state; None if that is not loaded.
        ack: The acknowledgement of what is durable: the last number received in order (None if none), and the ranges beyond it.
        ack_due: When the acknowledgement is sent on its own; None if it is not owed.
        unacked_fragments: How many fragments were received since the last acknowledgement.
        unacked_bytes: How many bytes were received since the last acknowledgement.
    """

    key: EndpointKey
    endpoint: DialogEndpoint
    transmission: Transmission
    knows_queue_start: bool = False
    is_drained: bool = False
    has_new_messages: bool = True
    ended_with_error: bool = False
    outbound_cipher: SecuredDirection | None = None
    inbound_cipher: SecuredDirection | None = None
    incoming: InboundDirection | None = None
    ack: tuple[int | None, bytes] = (None, b"")
    ack_due: int | None = None
    unacked_fragments: int = 0
    unacked_bytes: int = 0

    def must_ack_now(self, settings: ProtocolSettings) -> bool:
        """Returns whether a quarter of the initial send window is unacknowledged, so that the sender would soon stall."""
        return (
            4 * self.unacked_fragments >= settings.window_fragments or 4 * self.unacked_bytes >= settings.window_bytes
        )

    def is_due(self, now: int) -> bool:
        """Returns whether an acknowledgement or a retransmission is due."""
        if self.ack_due is not None and self.ack_due <= now:
            return True
        return self.transmission.is_due(now)

    def replace_endpoint(self, endpoint: DialogEndpoint) -> None:
        """Replaces the row and the ciphers; what was sent and received stays."""
        self.endpoint = endpoint
        if endpoint.session_key is not None:
            self.outbound_cipher = SecuredDirection(
                endpoint.session_key, conversation_id=endpoint.conversation_id, is_initiator=endpoint.is_initiator
            )
            self.inbound_cipher = make_inbound_cipher(endpoint.key, endpoint.far_session_key or endpoint.session_key)

    def bind(self, endpoint: DialogEndpoint) -> None:
        """Replaces the row after the peer has answered, and uses the key that its answer may have brought."""
        self.endpoint = endpoint
        if endpoint.far_session_key is not None:
            self.inbound_cipher = make_inbound_cipher(endpoint.key, endpoint.far_session_key)

    def reply_with_peer_key(self) -> None:
        """Seals replies with the peer's session key, because no endpoint is created here whose own key could be sent."""
        peer_key = self.endpoint.far_session_key
        if peer_key is not None:
            self.endpoint = replace(self.endpoint, session_key=peer_key, far_session_key=None)
            self.outbound_cipher = SecuredDirection(peer_key, conversation_id=self.key[0], is_initiator=self.key[1])

    def mark_ack_sent(self) -> None:
        """Records that the acknowledgement is being sent."""
        self.ack_due = None
        self.unacked_fragments = self.unacked_bytes = 0


def make_dialog(endpoint: DialogEndpoint, transmission: Transmission | None = None) -> Dialog:
    """Loads an endpoint into memory, with its transmission object if the work table has one."""
    state = transmission or Transmission(endpoint.key, first_unsent=endpoint.send_sequence)
    dialog = Dialog(endpoint.key, endpoint, state, knows_queue_start=transmission is not None)
    dialog.replace_endpoint(endpoint)
    return dialog


def make_inbound_cipher(key: EndpointKey, session_key: bytes) -> SecuredDirection:
    """Returns the cipher that opens what the peer of an endpoint sends, sealed with the given session key."""
    return SecuredDirection(session_key, conversation_id=key[0], is_initiator=not key[1])


PACKED_MAX: Final = 1024

_FIXED: Final = struct.Struct(">B16s?qqiqqqqbH")
_VERSION: Final = 2
_CHARGE_BYTES_MAX: Final = 5
_NOTHING_DUE: Final = -1
_ATTEMPTS_MAX: Final = 100
_CONTINUATION: Final = 0x80
"""The bit of a byte that marks that another byte follows."""


def pack_transmission(transmission: Transmission) -> bytes:
    """Packs an object into at most `PACKED_MAX` bytes.

    If more ranges are in flight than fit, everything after the acknowledged number is packed as unsent and is sent again at the earliest
    due time. `acked_beyond_cursor` is not packed, because the next acknowledgement repeats it, nor are the charges of started messages.

    Examples:
        >>> len(pack_transmission(Transmission((bytes(16), True))))
        74
    """
    entries = [number for entry in _packed_entries(transmission) for number in entry]
    data = b"".join(map(_encode_varint, entries))
    # One due time for all flights: the waits need not be exact.
    due = min((flight.due for flight in transmission.flights), default=0)
    attempt = max((flight.attempt for flight in transmission.flights), default=_NOTHING_DUE)
    if _FIXED.size + len(data) + _CHARGE_BYTES_MAX > PACKED_MAX:
        first = transmission.acked + 1
        waits = [Flight(due, attempt, {})]
        return pack_transmission(
            Transmission(
                transmission.key,
                transmission.acked,
                first,
                last_interleaved=first,
                first_unsent=transmission.first_unsent,
                flights=waits,
                last_used=transmission.last_used,
            )
        )
    charge = (
        -(-transmission.bytes_in_flight // transmission.fragments_in_flight) if transmission.fragments_in_flight else 0
    )
    conversation_id, is_initiator = transmission.key
    position = (
        transmission.acked,
        transmission.head,
        transmission.cursor,
        transmission.last_interleaved,
        transmission.first_unsent,
    )
    fixed = _FIXED.pack(
        _VERSION,
        conversation_id,
        is_initiator,
        *position,
        due,
        transmission.last_used,
        min(attempt, _ATTEMPTS_MAX),
        len(entries),
    )
    return fixed + _encode_varint(charge) + data


def _packed_entries(transmission: Transmission) -> Iterator[tuple[int, ...]]:
    """Yields runs of single-fragment messages in flight, and larger messages with the runs of their fragments."""
    before = transmission.acked
    run = 0
    for sequence in sorted({*transmission.in_flight, *transmission.fragment_counts}):
        if sequence not in transmission.fragment_counts and sequence == before + 1 and run:
            run += 1
        else:
            if run:
                yield (run,)
            run = 0
            yield (transmission.fragment_counts.get(sequence, 1), sequence - before)
            if sequence in transmission.fragment_counts:
                runs = list(bit_ranges(transmission.in_flight.get(sequence, 0)))
                yield (len(runs), *(number for first, last in runs for number in (first, last - first)))
            else:
                run = 1
        before = sequence
    if run:
        yield (run,)


def unpack_transmission(data: bytes) -> Transmission:
    """Unpacks an object that `pack_transmission` has packed.

    Raises:
        MalformedDataError: The bytes are not a packed transmission object.

    Examples:
        >>> unpack_transmission(pack_transmission(Transmission((bytes(16), True), acked=3, head=5, last_interleaved=5))).head
        5
    """
    try:
        return _unpack(data)
    except (struct.error, IndexError, ValueError) as error:
        raise MalformedDataError("work table: not a valid packed transmission object") from error


def _unpack(data: bytes) -> Transmission:
    version, conversation, is_initiator, acked, head, cursor, passed, unsent, due, used, attempt, count = (
        _FIXED.unpack_from(data)
    )
    if version != _VERSION or len(data) > PACKED_MAX:
        raise ValueError(version)
    numbers = _VarintReader(data, _FIXED.size)
    charge = numbers.next()
    end = numbers.count + count
    transmission = Transmission(
        (conversation, is_initiator), acked, head, cursor, passed, unsent, is_dirty=False, last_used=used
    )
    sequence = acked
    while numbers.count < end:
        fragments, distance = numbers.next(), numbers.next()
        sequence += distance
        if fragments == 1:
            run = numbers.next()
            for number in range(sequence, sequence + run):
                transmission.in_flight[number] = 1
            sequence += run - 1
        else:
            transmission.fragment_counts[sequence] = fragments
            mask = 0
            for _ in range(numbers.next()):
                first = numbers.next()
                mask |= ((2 << numbers.next()) - 1) << first
            if mask:
                transmission.in_flight[sequence] = mask
    transmission.fragment_bytes = dict.fromkeys(transmission.in_flight, charge)
    transmission.fragments_in_flight = sum(mask.bit_count() for mask in transmission.in_flight.values())
    transmission.bytes_in_flight = transmission.fragments_in_flight * charge
    if attempt != _NOTHING_DUE:
        transmission.flights.append(Flight(due, attempt, dict(transmission.in_flight)))
    return transmission


def _encode_varint(number: int) -> bytes:
    out = bytearray()
    while number >= _CONTINUATION:
        out.append(number & ~-_CONTINUATION | _CONTINUATION)
        number >>= 7
    out.append(number)
    return bytes(out)


class _VarintReader:
    """Reads consecutive variable-length numbers with seven bits in a byte."""

    __slots__ = ("_data", "_position", "count")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._position = at
        self.count = 0

    def next(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            number |= (byte & ~-_CONTINUATION) << shift
            shift += 7
            if byte < _CONTINUATION:
                self.count += 1
                return number
