"""The transmission object of an endpoint, which records sent and acknowledged messages, and its packed form in the work table."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.ack_ranges import AckRange, bit_ranges, fragments_in_range, lowest_bits
from ssbroker.protocol.storage import EndpointKey


@dataclass(slots=True)
class Flight:
    """Fragments that were sent together and wait for their acknowledgement.

    Attributes:
        due: When the unacknowledged fragments are sent again.
        attempt: The number of earlier retransmissions.
        fragments: A bit mask of the fragments for each message.
    """

    due: int
    attempt: int
    fragments: dict[int, int]


_NEVER: Final = 2**63 - 1


@dataclass(slots=True)
class Transmission:
    """The transmission object of an endpoint.

    All fragments of the messages before `head`, and the first `cursor` fragments of `head`, have been sent at least once. Single-fragment
    messages after `head`, up to `last_interleaved`, were sent between the fragments of `head` (P13).

    Attributes:
        key: The endpoint.
        acked: All messages up to this number are acknowledged; -1 if no message is acknowledged.
        head: The first message that was not sent completely.
        cursor: The number of fragments of `head` that were sent.
        last_interleaved: The last message that was sent while `head` was in progress; `head` if there was none.
        first_unsent: The first message that had never been sent when `acked` last advanced, as far as known.
        acked_beyond_cursor: A bit mask of the fragments of `head` beyond the cursor that the peer already has, because
            they were sent before a restart.
        in_flight: A bit mask of the unacknowledged fragments for each message.
        fragment_counts: The fragment counts of incompletely acknowledged messages with more than one fragment.
        fragment_bytes: The number of bytes charged for each fragment of a message in flight.
        started_sizes: The number of bytes charged for a started message until it is acknowledged in order.
        started_bytes: The sum of `started_sizes`: the number of bytes that the peer may have to buffer.
        flights: The fragments in flight, grouped by the time at which they are sent again.
        fragments_in_flight: The number of fragments in flight.
        bytes_in_flight: The number of bytes charged for the fragments in flight.
        is_dirty: Whether the object has changed since it was packed (P32).
        last_used: The time of the last change.
        last_repaired: The last message that was sent again immediately because the peer had discarded it.
        window_bytes: The number of bytes of a message of several fragments that may be in flight; 0 means the initial value.
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
        """Records that a fragment is sent for the first time: the next fragment of `head`, or a single-fragment message after it."""
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
        """Returns whether a fragment is the next fragment of `head`, or the next single-fragment message to interleave."""
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
        """Removes and returns due flights, reduced to at most `limit` unacknowledged fragments; the remaining fragments stay due."""
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
        # Without `any`, because an interrupt in a generator that `any` closes early would be lost.
        due = self.next_due()
        return due is not None and due <= now

    def clamp_acknowledgement(self, acked: int, runs: list[AckRange]) -> tuple[int, list[AckRange]]:
        """Limits an acknowledgement to sent messages; a partly sent message counts as fully sent, as it may have been before a restart."""
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

        An acknowledgement that is merely old names nothing that was sent after a later acknowledgement arrived.
        """
        return acked < self.acked and any(run[2] >= self.first_unsent for run in runs)

    def acknowledge(self, acked: int, runs: list[AckRange]) -> None:
        """Removes from flight the fragments that a clamped acknowledgement names."""
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
        """Continues at the message with the given number; earlier messages have been removed from the transmission queue."""
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
        """Moves the cursor past fragments that the peer has, but not past the last fragment, which must be sent to be acknowledged."""
        if self.acked_beyond_cursor:
            self.acked_beyond_cursor &= (1 << (self.fragment_counts[self.head] - 1)) - 1
            received = self.acked_beyond_cursor >> self.cursor
            self.cursor += (received ^ (received + 1)).bit_length() - 1

    def _requeue_lost(self) -> None:
        """Retransmits the message after `acked` if the peer had acknowledged all its fragments and then discarded it (P23).

        The first such retransmission of a message is immediate.
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


PACKED_MAX: Final = 1024
_FIXED: Final = struct.Struct(">B16s?qqiqqqqbH")
_VERSION: Final = 2
_CHARGE_BYTES_MAX: Final = 5
_NOTHING_DUE: Final = -1
_ATTEMPTS_MAX: Final = 100
_CONTINUATION: Final = 0x80
"""The bit that means that another byte follows."""


def pack_transmission(transmission: Transmission) -> bytes:
    """Packs a transmission object into at most `PACKED_MAX` bytes.

    If more ranges are in flight than fit, everything after the message `acked` is packed as unsent, and is sent
    again at the earliest due time. `acked_beyond_cursor` is not packed, because the next acknowledgement repeats it;
    neither are the charges of started messages.

    Examples:
        >>> len(pack_transmission(Transmission((bytes(16), True))))
        74
    """
    entries = [number for entry in _packed_entries(transmission) for number in entry]
    data = b"".join(map(_encode_varint, entries))
    # In the packed form, all flights share one due time, because the waits need not be exact.
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
    """Yields the runs of single-fragment messages in flight, and each message of several fragments with its runs of fragments in flight."""
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
    """Unpacks a transmission object that `pack_transmission` has packed.

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
        raise ValueError(f"a packed transmission object of version {version} and {len(data)} bytes")
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
    """Reads consecutive variable-length numbers, seven bits per byte."""

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
