"""Transmission objects as bytes, for the work table (P32, B34): never more than 1,024."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.acknowledgement import bit_runs
from ssbroker.protocol.flight import Flight
from ssbroker.protocol.transmission import Transmission

PACKED_MAX: Final = 1024

_FIXED: Final = struct.Struct(">B16s?qqiqqqqbH")
_VERSION: Final = 2
_CHARGE_MAX: Final = 5
_NOTHING_WAITS: Final = -1
_ATTEMPTS_MAX: Final = 100
_MORE: Final = 0x80
"""The bit of a byte that says that another follows."""


def packed(transmission: Transmission) -> bytes:
    """An object as bytes.

    Where more is scattered than fits, it is packed as if nothing after the acknowledged number had been sent: that much goes again,
    when the first of it would have. What the far side has beyond the cursor is not packed, for it says so again with its next acknowledgement;
    nor what begun messages count for, which is counted anew from those that follow.

    Args:
        transmission: The object.

    Returns:
        At most `PACKED_MAX` bytes.

    Examples:
        >>> len(packed(Transmission((bytes(16), True))))
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
        return packed(
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
                runs = list(bit_runs(transmission.flying.get(sequence, 0)))
                yield (len(runs), *(number for first, last in runs for number in (first, last - first)))
            else:
                run = 1
        before = sequence
    if run:
        yield (run,)


def unpacked(data: bytes) -> Transmission:
    """The object of such bytes.

    Args:
        data: What `packed` gave.

    Returns:
        The object, not dirty.

    Raises:
        MalformedDataError: They are no packed object.

    Examples:
        >>> unpacked(packed(Transmission((bytes(16), True), acked=3, head=5, passed=5))).head
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
