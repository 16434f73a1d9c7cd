"""Sends messages: chooses messages that the windows allow, reads and fragments them, and interleaves large messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import ssbroker.reassembly as cutting
from ssbroker import _core
from ssbroker.protocol.ack_ranges import AckRange, bit_ranges
from ssbroker.protocol.arrow_columns import column_values, replace_columns
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import SEQUENCE_MAX, sender_keys
from ssbroker.protocol.large_messages import CACHED_BYTES_MIN, FragmentCache, LargeMessageQueue
from ssbroker.protocol.retry_waits import Backoff
from ssbroker.protocol.send_turn import FastOutbound, FastOutboundRun, FragmentBatch, SendTurn
from ssbroker.protocol.settings import SECOND, ProtocolSettings
from ssbroker.protocol.storage import DialogStorage, EndpointKey, MessageRange
from ssbroker.protocol.transmission import Flight, Transmission

_UNLIMITED: Final = 2**63 - 1


def ranges_to_read(turn: SendTurn, max_body_bytes: int) -> list[MessageRange]:
    """Returns the ranges of messages to read: retransmissions, the message in progress, and later messages of at most `max_body_bytes`."""
    transmission, key = turn.dialog.transmission, turn.dialog.key
    if not turn.dialog.knows_queue_start:
        return [MessageRange(key, 0, SEQUENCE_MAX, turn.fragment_budget, turn.read_limit, max_body_bytes)]
    head, after = transmission.head, max(transmission.head, transmission.last_interleaved) + 1
    is_started = transmission.cursor > 0 or after > head + 1
    if not (turn.retransmissions or is_started):
        following = MessageRange(key, head, turn.last_sendable, turn.fragment_budget, turn.read_limit, max_body_bytes)
        return [following] if turn.fragment_budget and head <= turn.last_sendable else []
    numbers = {number for flight in turn.retransmissions for number in flight.fragments} - turn.found_messages
    if turn.fragment_budget and head <= turn.last_sendable and head not in turn.found_messages:
        if is_started:
            numbers.add(head)
        else:  # neither `head` nor interleaved messages were sent: `head` is the first of the following messages
            after = head
    ranges = [
        MessageRange(key, first, first + number - 1, number, _UNLIMITED)
        for first, number in _number_ranges(sorted(numbers))
    ]
    if turn.fragment_budget and after <= turn.last_sendable:
        max_following_bytes = max_body_bytes if after == head else _max_passing_bytes(turn)
        ranges.append(
            MessageRange(key, after, turn.last_sendable, turn.fragment_budget, turn.read_limit, max_following_bytes)
        )
    return ranges


def _max_passing_bytes(turn: SendTurn) -> int:
    """Returns the size of the longest message after the message in progress that may be sent in this turn."""
    return min(turn.fragment_bytes, CACHED_BYTES_MIN) if turn.singles_only else CACHED_BYTES_MIN


def _number_ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields runs of consecutive numbers: the first number and the length."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], end - at
        at = end


def interleave(rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int]) -> Iterator[int]:
    """Yields the rows of a dialog with single-fragment messages placed between the fragments of the preceding large message (P13).

    Args:
        rows: Row indexes, ordered by message and fragment.
        sequences: The message of each row.
        counts: The fragment count of each row's message.

    Yields:
        Row indexes.

    Examples:
        >>> list(interleave(range(6), [0, 0, 0, 1, 2, 3], [3, 3, 3, 1, 1, 2]))
        [0, 3, 1, 4, 2, 5]
    """
    at = 0
    while at < len(rows):
        first = rows[at]
        if counts[first] == 1:
            yield first
            at += 1
            continue
        end = at
        while end < len(rows) and sequences[rows[end]] == sequences[first]:
            end += 1
        after = end
        while after < len(rows) and counts[rows[after]] == 1 and after - end < end - at:
            after += 1
        for offset in range(end - at):
            yield rows[at + offset]
            if end + offset < after:
                yield rows[end + offset]
        at = after


_DIALOG: Final = "dialog"
_KEY: Final = "session_key"
_MESSAGE: Final = ("conversation_id", "is_initiator", "message_sequence_number", "is_conversation_error")
_FRAGMENT: Final = (_DIALOG, "message_sequence_number", "fragment_number", "fragment_count")
_FAST_WITHIN: Final = SECOND
"""The window of a dialog grows if sent fragments are acknowledged within this time."""
_SLOW_AFTER: Final = 5 * SECOND // 2
"""The window of a dialog shrinks if the acknowledgement of sent fragments takes longer than this."""


class Sender:
    """Selects, reads and fragments the messages to send.

    Attributes:
        large: The dialogs that have a large message in progress, or wait to start one.
    """

    __slots__ = ("_backoff", "_cache", "_other_lengths", "_settings", "_storage", "large")

    def __init__(self, storage: DialogStorage, settings: ProtocolSettings, backoff: Backoff) -> None:
        self._storage = storage
        self._settings = settings
        self._backoff = backoff
        self._cache = FragmentCache()
        self._other_lengths = storage.set_fragment_bytes(settings.max_fragment_bytes)
        self.large = LargeMessageQueue(self._fragment_bytes)

    def plan_turn(self, dialog: Dialog, now: int) -> SendTurn:
        """Returns what a dialog may send now."""
        settings, transmission = self._settings, dialog.transmission
        size, head = self._fragment_bytes(dialog), transmission.head
        retransmissions = transmission.take_due(now, settings.fragments_per_turn)
        resent = (
            sum([mask.bit_count() for flight in retransmissions for mask in flight.fragments.values()])
            if retransmissions
            else 0
        )
        fragment_budget = min(
            settings.fragments_per_turn - resent, settings.window_fragments - transmission.fragments_in_flight
        )
        if retransmissions:
            transmission.window_bytes = 0
        byte_budget = self._window_bytes(transmission) - transmission.bytes_in_flight
        is_blocked = transmission.fragments_in_flight and byte_budget < size
        if is_blocked or (fragment_budget > 0 and not self.large.may_continue(dialog, now)):
            fragment_budget = 0
        is_full = bool(retransmissions) and any(flight.due <= now for flight in transmission.flights)
        last_sendable = self.last_sendable(dialog)
        turn = SendTurn(
            dialog, retransmissions, max(fragment_budget, 0), byte_budget, last_sendable, size, has_more=is_full
        )
        turn.singles_only = transmission.cursor > 0 and turn.next_unsent().bit_count() == turn.fragment_limit
        turn.checks_ending_error = (
            dialog.knows_queue_start
            and dialog.has_new_messages
            and (fragment_budget <= 0 or head > last_sendable or turn.singles_only)
        )
        return turn

    def acknowledge(self, dialog: Dialog, acked: int, runs: list[AckRange], now: int) -> None:
        """Removes from flight the fragments that a clamped acknowledgement names, and adapts the window to how long acknowledging took.

        Fragments in flight should arrive within a second, so that the timer of P17 does not expire for fragments that are merely slow.
        """
        transmission = dialog.transmission
        window = max(transmission.window_bytes, self._settings.window_bytes)
        if 2 * transmission.bytes_in_flight < window:
            transmission.acknowledge(acked, runs)
            return
        before = list(transmission.flights)
        transmission.acknowledge(acked, runs)
        self._adapt_window(transmission, window, before, now)

    def _adapt_window(self, transmission: Transmission, window: int, before: Sequence[Flight], now: int) -> None:
        """Doubles the window if acknowledging was quick, and halves it if slow; `before` are the flights before the acknowledgement."""
        settings = self._settings
        left = {id(flight) for flight in transmission.flights}
        due = min((flight.due for flight in before if flight.attempt == 0 and id(flight) not in left), default=None)
        if due is None:
            return
        took = now + self._backoff.first_wait - due
        if took <= _FAST_WITHIN:
            transmission.window_bytes = max(min(2 * window, settings.max_window_bytes), settings.window_bytes)
        elif took > _SLOW_AFTER:
            transmission.window_bytes = max(window // 2, settings.window_bytes)

    def _window_bytes(self, transmission: Transmission) -> int:
        """Returns the number of bytes that may be in flight; only a large message uses more than the initial value."""
        grown = transmission.window_bytes if transmission.cursor else 0
        return max(grown, self._settings.window_bytes)

    def _fragment_bytes(self, dialog: Dialog) -> int:
        return self._other_lengths.get(dialog.key, self._settings.max_fragment_bytes)

    def last_sendable(self, dialog: Dialog) -> int:
        """Returns the last message that may be sent: only the first message, until a broker instance has answered the initiator (R8)."""
        if dialog.ended_with_error:
            return SEQUENCE_MAX
        endpoint = dialog.endpoint
        if endpoint.is_initiator and not endpoint.is_bound and endpoint.far_broker_instance is None:
            return 0
        transmission = dialog.transmission
        if transmission.started_bytes > self._settings.max_ahead_bytes:
            return transmission.head - (transmission.cursor == 0)
        return transmission.acked + self._settings.max_sequence_distance

    def take_fragments(self, turns: Sequence[SendTurn], now: int) -> FragmentBatch | FastOutbound:
        """Reads and fragments the messages that the turns need, and marks the fragments as sent."""
        self._apply_ending_errors(turns)
        cached = [
            part
            for place, turn in enumerate(turns)
            if turn.retransmissions or turn.dialog.transmission.cursor
            for part in self._cached_fragments(turn, place)
        ]
        chosen_place = self.large.choose([turn.dialog for turn in turns], now)
        limits = [CACHED_BYTES_MIN] * len(turns)
        limits[chosen_place] = self.large.startable_bytes(turns[chosen_place].dialog, now)
        messages = self._storage.outgoing(
            [each for turn, limit in zip(turns, limits, strict=True) for each in ranges_to_read(turn, limit)]
        )
        by_key = {turn.dialog.key: number for number, turn in enumerate(turns)}
        if messages["message_body"].null_count:
            messages = self._exclude_held(messages, turns, by_key)
            has_room = limits[chosen_place] > CACHED_BYTES_MIN and not turns[chosen_place].is_waiting
            if has_room:  # the other dialogs may start their messages in their next turn
                for turn in turns:
                    turn.has_more |= turn.is_waiting
        if not messages.num_rows and not cached:
            self._record_flights(turns, now)
            return FragmentBatch(messages, [], 0)
        if not cached and (fast := take_fast(messages, turns, by_key)) is not None:
            self._record_flights(turns, now)
            return fast
        read_bytes = messages.nbytes + sum(part.nbytes for part in cached)
        conversations, sides, sequences, errors = (column_values(messages[name]) for name in _MESSAGE)
        places = [by_key[key] for key in zip(conversations, sides, strict=True)]
        new = self._fragment_messages(messages, places, turns)
        fragments = pa.concat_tables([*cached, new])
        self._note_read(turns, places, sequences, errors)
        taken, owners = self._choose_rows(fragments, turns)
        self._cache_fragments(new, turns)
        self._record_flights(turns, now)
        if taken == list(range(fragments.num_rows)):
            return FragmentBatch(fragments, owners, read_bytes)
        return FragmentBatch(fragments.take(pa.array(taken, pa.int64())), owners, read_bytes)

    def _apply_ending_errors(self, turns: Sequence[SendTurn]) -> None:
        """Lets an error that ends a dialog bypass the windows and R8, and forgets the messages that the application dropped."""
        asking = [turn for turn in turns if turn.checks_ending_error]
        ended = self._storage.ending_errors([turn.dialog.key for turn in asking]) if asking else {}
        for turn in asking:
            dialog, transmission, settings = turn.dialog, turn.dialog.transmission, self._settings
            dialog.has_new_messages = False
            if dialog.key in ended:
                dialog.ended_with_error, turn.singles_only, turn.last_sendable = True, False, SEQUENCE_MAX
                transmission.skip_to(ended[dialog.key])
                turn.fragment_budget = min(
                    settings.fragments_per_turn, settings.window_fragments - transmission.fragments_in_flight
                )
                turn.byte_budget = self._window_bytes(transmission) - transmission.bytes_in_flight

    @staticmethod
    def _exclude_held(messages: pa.Table, turns: Sequence[SendTurn], by_key: Mapping[EndpointKey, int]) -> pa.Table:
        """Returns the messages that were read; if a message was too long to start, its dialog waits."""
        is_read = messages["message_body"].is_valid()
        held = messages.filter(pc.invert(is_read))
        for key in sender_keys(held):
            turns[by_key[key]].is_waiting = not turns[by_key[key]].singles_only
        return messages.filter(is_read)

    def _cached_fragments(self, turn: SendTurn, place: int) -> Iterator[pa.Table]:
        """Yields fragments of messages that were split in an earlier turn, reading only their bodies."""
        transmission, key, size = turn.dialog.transmission, turn.dialog.key, turn.fragment_bytes
        needed = turn.fragments_to_resend()
        if turn.fragment_budget and turn.dialog.knows_queue_start and transmission.cursor:
            needed[transmission.head] = needed.get(transmission.head, 0) | turn.next_unsent()
        for number, mask in needed.items():
            if not self._cache.has(key, number):
                continue
            runs = list(bit_ranges(mask))
            bodies = self._storage.read_body_slices(
                key, number, [(first * size, (last + 1) * size) for first, last in runs]
            )
            if bodies is not None:
                turn.found_messages.add(number)
                for (first, _), body in zip(runs, bodies, strict=True):
                    part = self._cache.fragments_of(key, number, first, body, size=size)
                    yield replace_columns(part, part.schema, {_DIALOG: [place] * part.num_rows})

    def abandon(self, dialog: Dialog) -> None:
        """Forgets everything that a dialog has in progress."""
        dialog.transmission.abandon()
        self._cache.drop_dialog(dialog.key)
        self.large.remove(dialog.key)

    def _fragment_messages(self, messages: pa.Table, places: list[int], turns: Sequence[SendTurn]) -> pa.Table:
        keys = [
            None if turn.dialog.outbound_cipher is None else turn.dialog.outbound_cipher.signature_key for turn in turns
        ]
        table = messages.append_column(_DIALOG, pa.array(places, pa.int32()))
        key_column = None
        if any(key is not None for key in keys):
            table = table.append_column(_KEY, pa.array([keys[place] for place in places], pa.binary()))
            key_column = _KEY
        lengths = {turn.fragment_bytes for turn in turns}
        if len(lengths) == 1:
            return cutting.fragment(table, max_fragment_bytes=lengths.pop(), session_keys=key_column)
        fragmented: list[pa.Table] = []
        for length in lengths:
            rows = table.filter(pa.array([turns[place].fragment_bytes == length for place in places], pa.bool_()))
            fragmented.append(cutting.fragment(rows, max_fragment_bytes=length, session_keys=key_column))
        return pa.concat_tables(fragmented)

    def _note_read(self, turns: Sequence[SendTurn], places: list[int], numbers: list[int], errors: list[bool]) -> None:
        for place, number, is_error in zip(places, numbers, errors, strict=True):
            turn = turns[place]
            turn.found_messages.add(number)
            if not turn.dialog.knows_queue_start:
                # The queue starts with the first unacknowledged message, because acknowledged messages have been
                # removed.
                transmission = turn.dialog.transmission
                transmission.acked, transmission.head, transmission.last_interleaved = number - 1, number, number
                turn.dialog.knows_queue_start = True
                turn.last_sendable = self.last_sendable(turn.dialog)
            if is_error:  # the application ended the dialog with this error, and dropped the earlier messages
                turn.dialog.transmission.skip_to(number)
                turn.dialog.ended_with_error = True
                turn.last_sendable, turn.fragment_budget = max(turn.last_sendable, number), max(turn.fragment_budget, 1)

    def _choose_rows(self, fragments: pa.Table, turns: Sequence[SendTurn]) -> tuple[list[int], list[SendTurn]]:
        """Returns the rows to send, in order, and the turn of each."""
        places, sequences, numbers, counts = _fragment_positions(fragments)
        sizes: list[Any] = pc.binary_length(fragments["message_body"]).to_pylist()
        rows_of: list[list[int]] = [[] for _ in turns]
        for row, place in enumerate(places):
            rows_of[place].append(row)
        taken: list[int] = []
        owners: list[SendTurn] = []
        for turn, rows in zip(turns, rows_of, strict=True):
            before = len(taken)
            if turn.retransmissions:
                resent = turn.fragments_to_resend()
                taken += [row for row in rows if resent.get(sequences[row], 0) >> numbers[row] & 1]
            if turn.fragment_budget:
                at = self._take_whole(turn, rows, sequences, counts, sizes)
                taken += rows[:at]
                for row in interleave(rows[at:], sequences, counts):
                    if self._take(turn, sequences[row], numbers[row], counts[row], sizes[row]):
                        taken.append(row)
            turn.has_more |= bool(turn.new_fragments) and turn.fragment_budget == 0
            owners += [turn] * (len(taken) - before)
        return taken, owners

    @staticmethod
    def _take_whole(
        turn: SendTurn, rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int], sizes: Sequence[int]
    ) -> int:
        """Marks leading single-fragment messages as sent, as many as are next in order and fit; returns their number."""
        transmission = turn.dialog.transmission
        for at, row in enumerate(rows):
            sequence, size = sequences[row], sizes[row]
            if (
                sequence != transmission.head
                or counts[row] != 1
                or sequence > turn.last_sendable
                or turn.fragment_budget <= 0
            ):
                return at
            if turn.byte_budget < size and transmission.fragments_in_flight:
                return at
            turn.fragment_budget -= 1
            turn.byte_budget -= size
            transmission.mark_sent(sequence, 0, 1, size)
            turn.new_fragments[sequence] = 1
        return len(rows)

    def _cache_fragments(self, fragments: pa.Table, turns: Sequence[SendTurn]) -> None:
        """Caches messages for later turns if they are large or were not sent completely."""
        heads = [turn.dialog.transmission.head if turn.dialog.transmission.cursor else None for turn in turns]
        if fragments.nbytes < CACHED_BYTES_MIN and not any(head is not None for head in heads):
            return
        for row, (place, sequence, number, count) in enumerate(zip(*_fragment_positions(fragments), strict=True)):
            is_large = count * turns[place].fragment_bytes >= CACHED_BYTES_MIN
            if number == 0 and count > 1 and (is_large or sequence == heads[place]):
                self._cache.put(turns[place].dialog.key, sequence, fragments.slice(row, count))

    def _take(self, turn: SendTurn, sequence: int, number: int, count: int, size: int) -> bool:
        """Marks a fragment as sent if it is next and fits; returns whether it is sent."""
        transmission = turn.dialog.transmission
        if sequence > turn.last_sendable or not transmission.is_next_unsent(sequence, number, count):
            return False
        if turn.fragment_budget <= 0 or (turn.byte_budget < size and transmission.fragments_in_flight):
            turn.has_more = True
            return False
        turn.fragment_budget -= 1
        turn.byte_budget -= size
        transmission.mark_sent(sequence, number, count, size if count == 1 else turn.fragment_bytes)
        turn.new_fragments[sequence] = turn.new_fragments.get(sequence, 0) | 1 << number
        return True

    def _record_flights(self, turns: Sequence[SendTurn], now: int) -> None:
        for turn in turns:
            turn.dialog.is_drained = turn.is_drained
            transmission = turn.dialog.transmission
            transmission.last_used = now
            flights = self._found_retransmissions(turn) if turn.retransmissions else []
            if turn.new_fragments:
                flights.append((turn.new_fragments, 0))
                self.large.mark_sent(turn.dialog, now)
            for fragments, attempt in flights:
                due = now + self._backoff.wait(attempt)
                transmission.add_flight(fragments, due=due, attempt=attempt)
                turn.due_times.append(due)
            if turn.is_waiting and not (turn.has_more or transmission.cursor):
                self.large.wait(turn.dialog, now)

    @staticmethod
    def _found_retransmissions(turn: SendTurn) -> list[tuple[dict[int, int], int]]:
        """Returns the retransmissions of messages that are still queued, with their attempt numbers."""
        for flight in turn.retransmissions:
            for number in [number for number in flight.fragments if number not in turn.found_messages]:
                turn.dialog.transmission.drop_message(number)
                del flight.fragments[number]
        # A flight that is known to be lost keeps its attempt number: no wait for an acknowledgement has expired.
        return [
            (flight.fragments, flight.attempt + (flight.due > 0)) for flight in turn.retransmissions if flight.fragments
        ]


def _fragment_positions(fragments: pa.Table) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns the turn index, message number, fragment number and fragment count of each fragment."""
    places, sequences, numbers, counts = (column_values(fragments[name]) for name in _FRAGMENT)
    return places, sequences, numbers, counts


def take_fast(messages: pa.Table, turns: Sequence[SendTurn], by_key: Mapping[EndpointKey, int]) -> FastOutbound | None:
    """Takes whole messages for the turns, and marks them as sent; returns None, and changes nothing, if the fast path does not apply to all turns."""
    if not all(turn.is_fast for turn in turns) or (found := _core.outgoing_runs(messages)) is None:
        return None
    runs = [(turns[by_key[conversation_id, side]], first, lengths) for conversation_id, side, first, lengths in found]
    for turn, first, lengths in runs:
        if first != turn.dialog.transmission.head or max(lengths) > turn.fragment_bytes:
            return None
    taken = [FastOutboundRun(turn, len(lengths), turn.take_whole_messages(lengths)) for turn, _, lengths in runs]
    return FastOutbound(messages, taken, sum(sum(lengths) for _, _, lengths in runs))
