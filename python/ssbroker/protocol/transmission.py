"""Transmission objects (P31, P32): what one endpoint has sent and what of it is acknowledged, in memory and packed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from ssbroker.protocol.acknowledgement import Run, lowest, named
from ssbroker.protocol.flight import Flight
from ssbroker.protocol.ledger import Key

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
        return lowest(left & ((1 << self.counts[self.head]) - 1), most)

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
                    first[sequence] = lowest(left[sequence], most)
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

    def believed(self, acked: int, runs: list[Run]) -> tuple[int, list[Run]]:
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
        sent: list[Run] = []
        for first_message, first, last_message, last in runs:
            for begin, end in stretches:
                low, high = max((first_message, first), begin), min((last_message, last), end)
                if low <= high:
                    sent.append((*low, *high))
        return min(acked, head - 1), sent

    def is_forgotten(self, acked: int, runs: list[Run]) -> bool:
        """Whether an acknowledgement says that the far side has lost messages which it had acknowledged before it got one that it names (B28).

        Only what is `believed`. An acknowledgement that is merely old names nothing that was sent after a later one had come.
        """
        return acked < self.acked and any(run[2] >= self.unsent for run in runs)

    def acknowledge(self, acked: int, runs: list[Run]) -> None:
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
                self._clear(sequence, named(run, sequence, self.counts.get(sequence, 1)))
            if self.cursor and run[0] <= self.head <= run[2]:
                self.ahead |= named(run, self.head, self.counts[self.head])
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
