"""Sends messages: windows, turns, fragmentation, interleaving of large messages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

import ssbroker.reassembly as cutting
from ssbroker import _core, schemas
from ssbroker.protocol.ack_ranges import AckRange, bit_ranges
from ssbroker.protocol.arrow_columns import column_values, replace_columns, sliced_column
from ssbroker.protocol.backoff import Backoff
from ssbroker.protocol.config import SECOND, ProtocolSettings
from ssbroker.protocol.dialog import Dialog, Flight, Transmission
from ssbroker.protocol.envelope import SEQUENCE_MAX
from ssbroker.protocol.storage import DialogStorage, EndpointKey, MessageRange


@dataclass(slots=True)
class SendTurn:
    """What one dialog may send now.

    Attributes:
        dialog: The dialog.
        retransmissions: The flights that are sent again.
        fragment_budget: How many unsent fragments may be sent.
        byte_budget: How many bytes of unsent fragments may be sent.
        last_sendable: The last message that may be sent.
        fragment_bytes: The maximum size of a fragment.
        checks_ending_error: Whether to look for an error with which the application ended the dialog, which would take precedence.
        new_fragments: A bit mask of the fragments sent for the first time, for each message.
        found_messages: The messages that are still in the transmission queue.
        has_more: Whether the dialog can send more in its next turn.
        is_waiting: Whether a large message waits until others are sent.
        singles_only: Whether the message in progress uses the whole budget, so that only single-fragment messages may be interleaved.
        due_times: When what is sent now is sent again.
    """

    dialog: Dialog
    retransmissions: list[Flight]
    fragment_budget: int
    byte_budget: int
    last_sendable: int
    fragment_bytes: int
    checks_ending_error: bool = False
    new_fragments: dict[int, int] = field(default_factory=dict)
    found_messages: set[int] = field(default_factory=set)
    has_more: bool = False
    is_waiting: bool = False
    singles_only: bool = False
    due_times: list[int] = field(default_factory=list)

    def next_unsent(self) -> int:
        """Returns a bit mask of the fragments of the message in progress that are sent for the first time now."""
        return self.dialog.transmission.next_unsent(self.fragment_limit)

    @property
    def fragment_limit(self) -> int:
        """How many full fragments may be sent for the first time; at least one if there is any budget."""
        return min(self.fragment_budget, max(self.byte_budget // self.fragment_bytes, 1))

    @property
    def read_limit(self) -> int:
        """How many bytes of messages to read to use the whole budget."""
        return min(self.byte_budget, self.fragment_budget * self.fragment_bytes)

    def fragments_to_resend(self) -> dict[int, int]:
        """Returns a bit mask of the fragments to send again, for each message."""
        found: dict[int, int] = {}
        for flight in self.retransmissions:
            for number, mask in flight.fragments.items():
                found[number] = found.get(number, 0) | mask
        return found

    @property
    def is_fast(self) -> bool:
        """Whether only unsent messages are sent, on a conversation without keys and with no message in progress."""
        dialog, transmission = self.dialog, self.dialog.transmission
        is_between = transmission.cursor == 0 and transmission.last_interleaved == transmission.head
        return dialog.knows_queue_start and dialog.outbound_cipher is None and not self.retransmissions and is_between

    def take_whole_messages(self, lengths: Sequence[int]) -> int:
        """Marks as many whole messages as fit as sent, starting at `head`, and returns their number."""
        transmission = self.dialog.transmission
        count, size = len(lengths), sum(lengths)
        if count > self.fragment_budget or size > self.byte_budget:
            count = size = 0
            for length in lengths[: self.fragment_budget]:
                if size + length > self.byte_budget and (count or transmission.fragments_in_flight):
                    break
                count += 1
                size += length
        self.new_fragments = dict.fromkeys(range(transmission.head, transmission.head + count), 1)
        self.fragment_budget -= count
        self.byte_budget -= size
        self.has_more |= count < len(lengths) or (count > 0 and self.fragment_budget == 0)
        transmission.mark_messages_sent(lengths[:count])
        return count

    @property
    def is_drained(self) -> bool:
        """Whether the transmission queue held nothing else: there was budget left, and nothing else was in the way."""
        transmission = self.dialog.transmission
        has_room = self.fragment_budget > 0 and self.byte_budget > 0 and transmission.head <= self.last_sendable
        return has_room and not (self.has_more or self.is_waiting or self.singles_only) and transmission.cursor == 0


@dataclass(frozen=True, slots=True)
class FragmentedTurn:
    """The fragments that are sent now, in order.

    Attributes:
        rows: The columns of `schemas.FRAGMENTS`, the kind of message, and the index of the turn.
        turns: The turn of each row.
        read_bytes: How many bytes of messages were read for them.
    """

    rows: pa.Table
    turns: list[SendTurn]
    read_bytes: int


CACHED_BYTES_MIN: Final = 1 << 20
"""The fragments of messages of at least this size are always cached; those of smaller ones only while they are in progress."""
CACHED_FRAGMENTS_MAX: Final = 1 << 16
"""The maximum number of cached fragments, apart from those of the last message."""
COUNTED_FRAGMENTS_MIN: Final = 32
"""A cached message counts as at least this many fragments, because of its fixed overhead."""
_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")


class FragmentCache:
    """The fragments of recently used messages, without their bodies: a least-recently-used cache.

    Examples:
        >>> from ssbroker.reassembly import fragment
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [3], "message_body": [b"onetwo"]})
        >>> cache = FragmentCache()
        >>> cache.put((bytes(16), True), 3, fragment(messages, max_fragment_bytes=3))
        >>> cache.has((bytes(16), True), 3), cache.has((bytes(16), True), 4)
        (True, False)
        >>> part = cache.fragments_of((bytes(16), True), 3, 1, b"two", size=3)
        >>> part.equals(fragment(messages, max_fragment_bytes=3).slice(1))
        True
    """

    __slots__ = ("_fragments", "_messages")

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[EndpointKey, int], pa.Table] = OrderedDict()
        self._fragments = 0

    def put(self, key: EndpointKey, sequence: int, fragments: pa.Table) -> None:
        """Caches all fragments of a message and evicts the least recently used messages if necessary."""
        self.drop(key, sequence)
        while self._messages and self._fragments + _counted_fragments(fragments) > CACHED_FRAGMENTS_MAX:
            _, evicted = self._messages.popitem(last=False)
            self._fragments -= _counted_fragments(evicted)
        # `take` copies: a slice would keep the whole batch alive, including the bodies.
        self._messages[key, sequence] = fragments.remove_column(_BODY).take(pa.array(range(fragments.num_rows)))
        self._fragments += _counted_fragments(fragments)

    def has(self, key: EndpointKey, sequence: int) -> bool:
        """Returns whether a message is cached, and marks it as recently used."""
        if (key, sequence) not in self._messages:
            return False
        self._messages.move_to_end((key, sequence))
        return True

    def fragments_of(self, key: EndpointKey, sequence: int, first: int, body: bytes, *, size: int) -> pa.Table:
        """Returns consecutive fragments of a cached message.

        Args:
            key: The endpoint.
            sequence: The message.
            first: The number of the first fragment.
            body: The content of these fragments.
            size: The size of a fragment in bytes; the last one may be shorter.
        """
        column = sliced_column(body, size)
        rows = self._messages[key, sequence].slice(first, len(column))
        return rows.add_column(_BODY, schemas.FRAGMENTS.field(_BODY), column)

    def drop(self, key: EndpointKey, sequence: int) -> None:
        """Removes the cached fragments of a message."""
        dropped = self._messages.pop((key, sequence), None)
        self._fragments -= 0 if dropped is None else _counted_fragments(dropped)

    def drop_dialog(self, key: EndpointKey) -> None:
        """Drops all messages of an endpoint."""
        for place in [place for place in self._messages if place[0] == key]:
            self.drop(*place)


def _counted_fragments(fragments: pa.Table) -> int:
    return max(fragments.num_rows, COUNTED_FRAGMENTS_MIN)


LARGE_IN_FLIGHT_MAX: Final = 16 << 20
"""Maximum size of large messages in progress, apart from the first: half of what a peer holds until a message is complete."""
_STALLED_AFTER: Final = 10 * SECOND
"""A message that has not progressed for this long does not delay others: its peer may be down."""
_RECHECK_INTERVAL: Final = SECOND // 4
_OVERDUE_AFTER: Final = 10 * SECOND
"""A message that has waited this long is started before any other."""


class LargeMessageQueue:
    """The dialogs with a large message in progress, and those that wait to start one.

    Args:
        fragment_bytes: Returns the maximum fragment size of a dialog.

    Attributes:
        next_check: When the waiting dialogs are checked again; None if none waits.
    """

    __slots__ = ("_fragment_bytes", "_in_flight", "_waiting", "_waiting_since", "next_check")

    def __init__(self, fragment_bytes: Callable[[Dialog], int]) -> None:
        self._fragment_bytes: Final = fragment_bytes
        self._in_flight: Final[dict[EndpointKey, tuple[Dialog, int, int]]] = {}
        self._waiting: Final[dict[EndpointKey, Dialog]] = {}
        # The times at which each dialog started waiting and last asked, the longest waiting first.
        self._waiting_since: Final[dict[EndpointKey, tuple[int, int]]] = {}
        self.next_check: int | None = None

    def choose(self, dialogs: Sequence[Dialog], now: int) -> int:
        """Returns the index of the dialog that may start a message of unknown size: one that is overdue, else the first."""
        key = self._overdue(now)
        return next((place for place, dialog in enumerate(dialogs) if dialog.key == key), 0)

    def max_message_bytes(self, dialog: Dialog, now: int) -> int:
        """Returns the size of the longest message that a dialog may start."""
        if not (self._in_flight or self._waiting_since):
            return 2**63 - 1
        for key, (other, _, used) in list(self._in_flight.items()):
            if not other.transmission.cursor or used + _STALLED_AFTER <= now:
                del self._in_flight[key]
        if self._overdue(now) not in (None, dialog.key):
            return CACHED_BYTES_MIN
        taken = sum(size for _, size, _ in self._in_flight.values())
        return max(LARGE_IN_FLIGHT_MAX - taken, CACHED_BYTES_MIN) if taken else 2**63 - 1

    def _overdue(self, now: int) -> EndpointKey | None:
        """Returns the dialog that has waited longest, if it is overdue and still waits."""
        for key, (since, last) in list(self._waiting_since.items()):
            if last + 4 * _RECHECK_INTERVAL >= now:
                return key if since + _OVERDUE_AFTER <= now else None
            del self._waiting_since[key]
        return None

    def may_continue(self, dialog: Dialog, now: int) -> bool:
        """Returns whether a dialog may send more of its message; if not, the dialog waits."""
        size = self._message_size(dialog)
        if size < CACHED_BYTES_MIN or dialog.key in self._in_flight or size <= self.max_message_bytes(dialog, now):
            return True
        self.wait(dialog, now)
        return False

    def mark_sent(self, dialog: Dialog, now: int) -> None:
        """Records that a dialog has sent new fragments."""
        size = self._message_size(dialog)
        self._waiting_since.pop(dialog.key, None)
        if size >= CACHED_BYTES_MIN:
            self._in_flight[dialog.key] = (dialog, size, now)
        elif self._in_flight.pop(dialog.key, None) is not None and self._waiting:
            self.next_check = now  # the next message need not wait

    def remove(self, key: EndpointKey) -> None:
        """Records that a dialog has no message in progress any more."""
        self._in_flight.pop(key, None)
        self._waiting_since.pop(key, None)

    def wait(self, dialog: Dialog, now: int) -> None:
        """Makes a dialog wait."""
        self._waiting[dialog.key] = dialog
        self._waiting_since[dialog.key] = (self._waiting_since.get(dialog.key, (now, now))[0], now)
        self.next_check = now + _RECHECK_INTERVAL if self.next_check is None else self.next_check

    def take_waiting(self, now: int) -> list[Dialog]:
        """Removes and returns the waiting dialogs in order of arrival, if their check is due."""
        if self.next_check is None or now < self.next_check:
            return []
        waited = list(self._waiting.values())
        self._waiting.clear()
        self.next_check = None
        return waited

    def _message_size(self, dialog: Dialog) -> int:
        """Returns the approximate size of the message in progress; 0 if there is none."""
        transmission = dialog.transmission
        return (
            transmission.fragment_counts.get(transmission.head, 0) * self._fragment_bytes(dialog)
            if transmission.cursor
            else 0
        )


_UNLIMITED: Final = 2**63 - 1


def ranges_to_read(turn: SendTurn, max_body_bytes: int) -> list[MessageRange]:
    """Returns the ranges of messages to read: retransmissions, the message in progress, and later ones of at most `max_body_bytes`."""
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
        else:  # nothing of it was sent and nothing was interleaved: it is the first of the following messages
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
    """Returns the size of the longest message that may follow the message in progress in this turn."""
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
    """Yields the rows of a dialog with single-fragment messages placed between the fragments of the large one before them (P13).

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


class FastOutboundRun(NamedTuple):
    """Consecutive messages of one conversation."""

    turn: SendTurn
    available: int
    """The number of messages read."""
    sent: int
    """How many of them are sent, starting with the first."""


@dataclass(frozen=True, slots=True)
class FastOutbound:
    """Whole messages that are sent now, in order.

    Attributes:
        messages: The messages (`storage.MESSAGES`), one run after another.
        runs: The runs.
        read_bytes: How many bytes of messages were read.
    """

    messages: pa.Table
    runs: Sequence[FastOutboundRun]
    read_bytes: int


def take_fast(messages: pa.Table, turns: Sequence[SendTurn], by_key: Mapping[EndpointKey, int]) -> FastOutbound | None:
    """Takes whole messages for the turns and marks them as sent; None, without changes, if the fast path does not apply to all."""
    if not all(turn.is_fast for turn in turns) or (found := _core.outgoing_runs(messages)) is None:
        return None
    runs = [(turns[by_key[conversation_id, side]], first, lengths) for conversation_id, side, first, lengths in found]
    for turn, first, lengths in runs:
        if first != turn.dialog.transmission.head or max(lengths) > turn.fragment_bytes:
            return None
    taken = [FastOutboundRun(turn, len(lengths), turn.take_whole_messages(lengths)) for turn, _, lengths in runs]
    return FastOutbound(messages, taken, sum(sum(lengths) for _, _, lengths in runs))


def encode_fast(batch: FastOutbound) -> pa.Table:
    """Encodes whole messages as envelope rows; the first row of each conversation carries the acknowledgement that is due (P15)."""
    senders = []
    for turn, waiting, going in batch.runs:
        dialog, endpoint, acknowledgement = turn.dialog, turn.dialog.endpoint, None
        if going and dialog.ack_due is not None:
            acknowledgement = dialog.ack
            dialog.mark_ack_sent()
        names = (endpoint.service_name, endpoint.far_service_name, endpoint.service_contract_name)
        brokers = (endpoint.broker_instance, endpoint.to_broker_instance)
        senders.append((waiting, going, names, *brokers, endpoint.priority, endpoint.lifetime, acknowledgement))
    return pa.Table.from_batches(_core.outgoing_rows(batch.messages, senders))


_DIALOG: Final = "dialog"
_KEY: Final = "session_key"
_MESSAGE: Final = ("conversation_id", "is_initiator", "message_sequence_number", "is_conversation_error")
_FRAGMENT: Final = (_DIALOG, "message_sequence_number", "fragment_number", "fragment_count")


_FAST_WITHIN: Final = SECOND
"""The window of a dialog grows if what was sent is acknowledged within this time."""
_SLOW_AFTER: Final = 5 * SECOND // 2
"""It shrinks if that takes longer than this."""


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
        """Removes what a clamped acknowledgement names from flight, and adapts the window to how long that took.

        What is in flight should arrive within a second, so that the timer of P17 does not expire for what is only slow.
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
        """Doubles the window if acknowledged fragments took little time, and halves it if they took long; `before` was in flight."""
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
        """Returns how many bytes may be in flight; only a large message uses more than the initial value."""
        grown = transmission.window_bytes if transmission.cursor else 0
        return max(grown, self._settings.window_bytes)

    def _fragment_bytes(self, dialog: Dialog) -> int:
        return self._other_lengths.get(dialog.key, self._settings.max_fragment_bytes)

    def last_sendable(self, dialog: Dialog) -> int:
        """Returns the last message that may be sent: only the first, until a broker instance has answered the initiator (R8)."""
        if dialog.ended_with_error:
            return SEQUENCE_MAX
        endpoint = dialog.endpoint
        if endpoint.is_initiator and not endpoint.is_bound and endpoint.far_broker_instance is None:
            return 0
        transmission = dialog.transmission
        if transmission.started_bytes > self._settings.max_ahead_bytes:
            return transmission.head - (transmission.cursor == 0)
        return transmission.acked + self._settings.max_sequence_distance

    def take_fragments(self, turns: Sequence[SendTurn], now: int) -> FragmentedTurn | FastOutbound:
        """Reads and fragments what the turns need, and marks it as sent."""
        self._apply_ending_errors(turns)
        cached = [
            part
            for place, turn in enumerate(turns)
            if turn.retransmissions or turn.dialog.transmission.cursor
            for part in self._cached_fragments(turn, place)
        ]
        chosen_place = self.large.choose([turn.dialog for turn in turns], now)
        limits = [CACHED_BYTES_MIN] * len(turns)
        limits[chosen_place] = self.large.max_message_bytes(turns[chosen_place].dialog, now)
        messages = self._storage.outgoing(
            [each for turn, limit in zip(turns, limits, strict=True) for each in ranges_to_read(turn, limit)]
        )
        by_key = {turn.dialog.key: number for number, turn in enumerate(turns)}
        if messages["message_body"].null_count:
            messages = self._exclude_held(messages, turns, by_key)
            has_room = limits[chosen_place] > CACHED_BYTES_MIN and not turns[chosen_place].is_waiting
            if has_room:  # the others may start theirs in their next turn
                for turn in turns:
                    turn.has_more |= turn.is_waiting
        if not messages.num_rows and not cached:
            self._record_flights(turns, now)
            return FragmentedTurn(messages, [], 0)
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
            return FragmentedTurn(fragments, owners, read_bytes)
        return FragmentedTurn(fragments.take(pa.array(taken, pa.int64())), owners, read_bytes)

    def _apply_ending_errors(self, turns: Sequence[SendTurn]) -> None:
        """Makes an error that ends a dialog skip the windows and R8, and forgets the messages that the application dropped."""
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
        """Returns the messages that were read; those that were too long to start make their dialogs wait."""
        is_read = messages["message_body"].is_valid()
        held = messages.filter(pc.invert(is_read))
        for key in zip(column_values(held["conversation_id"]), column_values(held["is_initiator"]), strict=True):
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
                # The queue starts with the first unacknowledged message: acknowledged ones have been removed.
                transmission = turn.dialog.transmission
                transmission.acked, transmission.head, transmission.last_interleaved = number - 1, number, number
                turn.dialog.knows_queue_start = True
                turn.last_sendable = self.last_sendable(turn.dialog)
            if is_error:  # the application ended the dialog with it, and dropped the earlier messages
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
        """Marks leading single-fragment messages as sent, as many as are next in order and fit, and returns their number."""
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
        """Marks a fragment as sent if it is next and fits, and returns whether it is sent."""
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


_BATCH_MIN: Final = 1
_BATCH_MAX: Final = 64
_BATCH_BYTES: Final = 128 << 10


class TurnPacing:
    """Adapts the number of turns taken at a time to their size, which is unknown beforehand.

    Attributes:
        batch_size: How many dialogs have their turn next.
        bytes: The size of all turns since `start`.

    Examples:
        >>> pacing = TurnPacing()
        >>> pacing.start()
        >>> pacing.record(1, 1024)
        >>> pacing.batch_size, pacing.bytes
        (2, 1024)
        >>> pacing.start()
        >>> pacing.batch_size
        64
    """

    __slots__ = ("_turns", "batch_size", "bytes")

    def __init__(self) -> None:
        self.batch_size = _BATCH_MIN
        self.bytes = 0
        self._turns = 0

    def start(self) -> None:
        """Resets the counts and estimates the batch size from the last ones."""
        if self._turns:
            self.batch_size = min(max(_BATCH_MIN, self._turns * _BATCH_BYTES // (self.bytes + 1)), _BATCH_MAX)
        self.bytes = self._turns = 0

    def record(self, turns: int, size: int) -> None:
        """Records the size of some turns in bytes, including what was read but not sent."""
        self._turns += turns
        self.bytes += size
        self.batch_size *= 2
