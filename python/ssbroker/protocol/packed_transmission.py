"""Transmission objects packed into the bytes that the work table stores."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.ack_ranges import bit_ranges
from ssbroker.protocol.transmission import Flight, Transmission

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
