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
from ssbroker.protocol.config import SECOND, Backoff, ProtocolSettings
from ssbroker.protocol.dialog import Dialog, Flight
from ssbroker.protocol.envelope import SEQUENCE_MAX, bit_ranges, column_values, replace_columns, sliced_column
from ssbroker.protocol.storage import DialogStorage, Key, MessageRange


@dataclass(slots=True)
class SendTurn:
    """What one dialog may send now.

    Attributes:
        dialog: The dialog.
        lost: What goes again, as it was sent before.
        room: How many fragments may go that were never sent.
        room_bytes: And how many bytes of them.
        last: The last message that may go.
        fragment_bytes: How long a fragment is.
        is_asking: Whether it is to be asked whether there is an error of the application, which would go before all that may go now.
        fresh: What goes for the first time, as bits for each message.
        found: The messages that its transmission queue still has.
        is_full: Whether more could go at once, in its next turn.
        is_held: Whether a large message waits until others are through.
        is_passing: Whether the message that is under way takes all the room for itself, so that only single ones may pass it.
        dues: When what goes now goes again.
    """

    dialog: Dialog
    lost: list[Flight]
    room: int
    room_bytes: int
    last: int
    fragment_bytes: int
    is_asking: bool = False
    fresh: dict[int, int] = field(default_factory=dict)
    found: set[int] = field(default_factory=set)
    is_full: bool = False
    is_held: bool = False
    is_passing: bool = False
    dues: list[int] = field(default_factory=list)

    def coming(self) -> int:
        """Which fragments of the message that is under way go now for the first time, as bits."""
        return self.dialog.transmission.coming(self.most)

    @property
    def most(self) -> int:
        """How many whole fragments may go that were never sent; one goes in any case, where there is room at all."""
        return min(self.room, max(self.room_bytes // self.fragment_bytes, 1))

    @property
    def most_bytes(self) -> int:
        """How many bytes of messages have to be read, so that all can go that may."""
        return min(self.room_bytes, self.room * self.fragment_bytes)

    def goes_again(self) -> dict[int, int]:
        """What goes again, as bits for each message."""
        found: dict[int, int] = {}
        for flight in self.lost:
            for number, mask in flight.fragments.items():
                found[number] = found.get(number, 0) | mask
        return found

    @property
    def is_plain(self) -> bool:
        """Whether all that goes are messages that were never sent, of a conversation without keys, with nothing of another one under way."""
        dialog, transmission = self.dialog, self.dialog.transmission
        is_between = transmission.cursor == 0 and transmission.passed == transmission.head
        return dialog.is_known and dialog.outbound is None and not self.lost and is_between

    def take_plain(self, lengths: Sequence[int]) -> int:
        """Notes that the first of some whole messages go, as many as fit.

        Args:
            lengths: How long they are; the first one is `head`.

        Returns:
            How many these are.
        """
        transmission = self.dialog.transmission
        going, size = len(lengths), sum(lengths)
        if going > self.room or size > self.room_bytes:
            going = size = 0
            for length in lengths[: self.room]:
                if size + length > self.room_bytes and (going or transmission.fragments):
                    break
                going += 1
                size += length
        self.fresh = dict.fromkeys(range(transmission.head, transmission.head + going), 1)
        self.room -= going
        self.room_bytes -= size
        self.is_full |= going < len(lengths) or (going > 0 and self.room == 0)
        transmission.send_whole(lengths[:going])
        return going

    @property
    def is_drained(self) -> bool:
        """Whether the transmission queue held no more than what goes: there was room left, and nothing else in the way."""
        transmission = self.dialog.transmission
        has_room = self.room > 0 and self.room_bytes > 0 and transmission.head <= self.last
        return has_room and not (self.is_full or self.is_held or self.is_passing) and transmission.cursor == 0


@dataclass(frozen=True, slots=True)
class FragmentedTurn:
    """Fragments that go now, in order.

    Attributes:
        rows: Their columns: those of `schemas.FRAGMENTS`, what kind of message they are of, and the place of their turn.
        turns: The turn of each.
        read_bytes: How many bytes of messages were read for them.
    """

    rows: pa.Table
    turns: list[SendTurn]
    read_bytes: int


WORTH_KEEPING: Final = 1 << 20
"""From how many bytes on a message is kept cut in any case; smaller ones while they are under way."""
FRAGMENTS_MAX: Final = 1 << 16
"""Of how many fragments the digests are kept at most, but for those of the last message."""
FRAGMENTS_LEAST: Final = 32
"""As how many fragments a message counts that has fewer: so much does it take anyway."""
_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")


class FragmentCache:
    """Cut messages without their bytes, the last used ones.

    Examples:
        >>> from ssbroker.reassembly import fragment
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [3], "message_body": [b"onetwo"]})
        >>> cuts = FragmentCache()
        >>> cuts.keep((bytes(16), True), 3, fragment(messages, max_fragment_bytes=3))
        >>> cuts.has((bytes(16), True), 3), cuts.has((bytes(16), True), 4)
        (True, False)
        >>> part = cuts.part((bytes(16), True), 3, 1, b"two", size=3)
        >>> part.equals(fragment(messages, max_fragment_bytes=3).slice(1))
        True
    """

    __slots__ = ("_fragments", "_kept")

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Key, int], pa.Table] = OrderedDict()
        self._fragments = 0

    def keep(self, key: Key, sequence: int, fragments: pa.Table) -> None:
        """Keeps what is said of a message's fragments; that of messages which were not used for the longest time goes.

        Args:
            key: The endpoint.
            sequence: The message.
            fragments: All its fragments, in order.
        """
        self.drop(key, sequence)
        while self._kept and self._fragments + _count(fragments) > FRAGMENTS_MAX:
            _, gone = self._kept.popitem(last=False)
            self._fragments -= _count(gone)
        # Taken, because a slice would hold all that was cut with it, the bytes too.
        self._kept[key, sequence] = fragments.remove_column(_BODY).take(pa.array(range(fragments.num_rows)))
        self._fragments += _count(fragments)

    def has(self, key: Key, sequence: int) -> bool:
        """Whether a message is kept; then it has been used."""
        if (key, sequence) not in self._kept:
            return False
        self._kept.move_to_end((key, sequence))
        return True

    def part(self, key: Key, sequence: int, first: int, body: bytes, *, size: int) -> pa.Table:
        """Fragments that follow one another, of a message that is kept.

        Args:
            key: The endpoint.
            sequence: The message.
            first: The first fragment.
            body: The bytes of all of them.
            size: How many bytes one has; the last may have fewer.

        Returns:
            The fragments as they were cut.
        """
        column = sliced_column(body, size)
        rows = self._kept[key, sequence].slice(first, len(column))
        return rows.add_column(_BODY, schemas.FRAGMENTS.field(_BODY), column)

    def drop(self, key: Key, sequence: int) -> None:
        """Drops one message."""
        gone = self._kept.pop((key, sequence), None)
        self._fragments -= 0 if gone is None else _count(gone)

    def forget(self, key: Key) -> None:
        """Drops all of an endpoint."""
        for place in [place for place in self._kept if place[0] == key]:
            self.drop(*place)


def _count(fragments: pa.Table) -> int:
    return max(fragments.num_rows, FRAGMENTS_LEAST)


UNDER_WAY_MAX: Final = 128 << 20
"""How many bytes of large messages are under way at most, but for the first: half of what a far side makes whole at once (N38)."""
_REST: Final = 10 * SECOND
"""After so long without anything new of it a message keeps nobody waiting: its far side may not be there."""
_LOOK_AGAIN: Final = SECOND // 4
_PATIENCE: Final = 10 * SECOND
"""After so long a message that waits is begun before any other."""


class LargeMessageQueue:
    """The dialogs that have a large message under way, and those that wait until there is room for theirs.

    Args:
        fragment_bytes: How long a fragment of a dialog is.

    Attributes:
        due: When those that wait are looked at again; None where none does.

    Examples:
        >>> from ssbroker.protocol.dialog import dialog_of
        >>> from ssbroker.protocol.storage import DialogEndpoint
        >>> dialogs = [dialog_of(DialogEndpoint(conversation_id=bytes([number]) * 16, is_initiator=True, service_name="Shop",
        ...                               broker_instance=bytes(16), far_service_name="Bank")) for number in range(3)]
        >>> large = LargeMessageQueue(lambda dialog: 32 << 10)
        >>> for dialog in dialogs:
        ...     dialog.transmission.send(0, 0, 2000, 32 << 10)
        ...     print(large.goes_on(dialog, 5))
        ...     large.went(dialog, 5)
        True
        True
        False
        >>> large.due, large.let_go(250_005) == dialogs[2:], large.due, large.goes_on(dialogs[2], 10_000_006)
        (250005, True, None, True)
    """

    __slots__ = ("_fragment_bytes", "_since", "_under_way", "_waiting", "due")

    def __init__(self, fragment_bytes: Callable[[Dialog], int]) -> None:
        self._fragment_bytes: Final = fragment_bytes
        self._under_way: Final[dict[Key, tuple[Dialog, int, int]]] = {}
        self._waiting: Final[dict[Key, Dialog]] = {}
        # Since when they wait, and when they have said so last, those first that have waited longest.
        self._since: Final[dict[Key, tuple[int, int]]] = {}
        self.due: int | None = None

    def chosen(self, dialogs: Sequence[Dialog], now: int) -> int:
        """Which of some dialogs may begin a message: who has waited for too long, else the first; one, for nobody knows how long it is.

        Args:
            dialogs: The dialogs, at least one.
            now: The moment.

        Returns:
            Its place.
        """
        key = self._overdue(now)
        return next((place for place, dialog in enumerate(dialogs) if dialog.key == key), 0)

    def room(self, dialog: Dialog, now: int) -> int:
        """The longest message that a dialog may begin: any where none is under way, and nobody has waited for too long.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        if not (self._under_way or self._since):
            return 2**63 - 1
        for key, (other, _, used) in list(self._under_way.items()):
            if not other.transmission.cursor or used + _REST <= now:
                del self._under_way[key]
        if self._overdue(now) not in (None, dialog.key):
            return WORTH_KEEPING
        taken = sum(size for _, size, _ in self._under_way.values())
        return max(UNDER_WAY_MAX - taken, WORTH_KEEPING) if taken else 2**63 - 1

    def _overdue(self, now: int) -> Key | None:
        """Who has waited longest, and for too long, and still does."""
        for key, (since, last) in list(self._since.items()):
            if last + 4 * _LOOK_AGAIN >= now:
                return key if since + _PATIENCE <= now else None
            del self._since[key]
        return None

    def goes_on(self, dialog: Dialog, now: int) -> bool:
        """Whether a dialog may send more of its message; if not, it waits.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        size = self._size(dialog)
        if size < WORTH_KEEPING or dialog.key in self._under_way or size <= self.room(dialog, now):
            return True
        self.wait(dialog, now)
        return False

    def went(self, dialog: Dialog, now: int) -> None:
        """Notes that a dialog has sent something new.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        size = self._size(dialog)
        self._since.pop(dialog.key, None)
        if size >= WORTH_KEEPING:
            self._under_way[dialog.key] = (dialog, size, now)
        else:
            self._under_way.pop(dialog.key, None)

    def forget(self, key: Key) -> None:
        """Notes that nothing of a dialog is under way any more."""
        self._under_way.pop(key, None)
        self._since.pop(key, None)

    def wait(self, dialog: Dialog, now: int) -> None:
        """Has a dialog wait.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        self._waiting[dialog.key] = dialog
        self._since[dialog.key] = (self._since.get(dialog.key, (now, now))[0], now)
        self.due = now + _LOOK_AGAIN if self.due is None else self.due

    def let_go(self, now: int) -> list[Dialog]:
        """The dialogs that have waited, when it is time to look at them again, in the order in which they came.

        Args:
            now: The moment.
        """
        if self.due is None or now < self.due:
            return []
        waited = list(self._waiting.values())
        self._waiting.clear()
        self.due = None
        return waited

    def _size(self, dialog: Dialog) -> int:
        """How long the message is that is under way, about; 0 where none is."""
        transmission = dialog.transmission
        return (
            transmission.counts.get(transmission.head, 0) * self._fragment_bytes(dialog) if transmission.cursor else 0
        )


_ANY: Final = 2**63 - 1


def wanted(turn: SendTurn, largest: int) -> list[MessageRange]:
    """Ranges of messages: those that go again, the one that is under way, and those after it, as far as they are not too large to begin.

    Args:
        turn: The turn.
        largest: The longest message that it may begin.

    Returns:
        The ranges, in order.
    """
    transmission, key = turn.dialog.transmission, turn.dialog.key
    if not turn.dialog.is_known:
        return [MessageRange(key, 0, SEQUENCE_MAX, turn.room, turn.most_bytes, largest)]
    head, after = transmission.head, max(transmission.head, transmission.passed) + 1
    is_begun = transmission.cursor > 0 or after > head + 1
    if not (turn.lost or is_begun):
        following = MessageRange(key, head, turn.last, turn.room, turn.most_bytes, largest)
        return [following] if turn.room and head <= turn.last else []
    numbers = {number for flight in turn.lost for number in flight.fragments} - turn.found
    if turn.room and head <= turn.last and head not in turn.found:
        if is_begun:
            numbers.add(head)
        else:  # nothing of it was sent, and nothing has passed it: it is the first of those that follow
            after = head
    ranges = [MessageRange(key, first, first + number - 1, number, _ANY) for first, number in _ranges(sorted(numbers))]
    if turn.room and after <= turn.last:
        most = largest if after == head else _passing(turn)
        ranges.append(MessageRange(key, after, turn.last, turn.room, turn.most_bytes, most))
    return ranges


def _passing(turn: SendTurn) -> int:
    """The longest message that may pass the one that is under way: a single one; where that will be through, what is not large may follow."""
    return min(turn.fragment_bytes, WORTH_KEEPING) if turn.is_passing else WORTH_KEEPING


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as runs: first, and how many."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], end - at
        at = end


def interleaved(rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int]) -> Iterator[int]:
    """Rows of a dialog so that the single messages after a large one go between its fragments (P13).

    Args:
        rows: Rows, by message and fragment.
        sequences: The message of each row.
        counts: How many fragments it has.

    Yields:
        The rows.

    Examples:
        >>> list(interleaved(range(6), [0, 0, 0, 1, 2, 3], [3, 3, 3, 1, 1, 2]))
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
    """Messages of one conversation, one number behind the other."""

    turn: SendTurn
    waiting: int
    """How many there are."""
    going: int
    """How many of them go, the first ones."""


@dataclass(frozen=True, slots=True)
class FastOutbound:
    """Whole messages that go now, in order.

    Attributes:
        messages: The messages (`ledger.MESSAGES`), run behind run.
        runs: The runs.
        read_bytes: How many bytes of messages were read.
    """

    messages: pa.Table
    runs: Sequence[FastOutboundRun]
    read_bytes: int


def cut_plain(messages: pa.Table, turns: Sequence[SendTurn], by_key: Mapping[Key, int]) -> FastOutbound | None:
    """Takes what goes, and notes that in the dialogs.

    Args:
        messages: What was read for the turns (`ledger.MESSAGES`).
        turns: The turns.
        by_key: The place of each, by its endpoint.

    Returns:
        What goes; None where one of the turns, or of the messages, is no plain one: then nothing is noted.
    """
    if not all(turn.is_plain for turn in turns) or (found := _core.outgoing_runs(messages)) is None:
        return None
    runs = [(turns[by_key[conversation_id, side]], first, lengths) for conversation_id, side, first, lengths in found]
    for turn, first, lengths in runs:
        if first != turn.dialog.transmission.head or max(lengths) > turn.fragment_bytes:
            return None
    taken = [FastOutboundRun(turn, len(lengths), turn.take_plain(lengths)) for turn, _, lengths in runs]
    return FastOutbound(messages, taken, sum(sum(lengths) for _, _, lengths in runs))


def departing(cut: FastOutbound) -> pa.Table:
    """The rows in which messages go; the first one of each conversation carries the acknowledgement that is due (P15).

    Args:
        cut: The messages.

    Returns:
        The rows (`envelope.ENVELOPE`), in their order.
    """
    senders = []
    for turn, waiting, going in cut.runs:
        dialog, endpoint, acknowledgement = turn.dialog, turn.dialog.endpoint, None
        if going and dialog.ack_due is not None:
            acknowledgement = dialog.ack
            dialog.paid()
        names = (endpoint.service_name, endpoint.far_service_name, endpoint.service_contract_name)
        brokers = (endpoint.broker_instance, endpoint.far_broker_instance)
        senders.append((waiting, going, names, *brokers, endpoint.priority, endpoint.lifetime, acknowledgement))
    return pa.Table.from_batches(_core.outgoing_rows(cut.messages, senders))


_DIALOG: Final = "dialog"
_KEY: Final = "session_key"
_MESSAGE: Final = ("conversation_id", "is_initiator", "message_sequence_number", "is_conversation_error")
_FRAGMENT: Final = (_DIALOG, "message_sequence_number", "fragment_number", "fragment_count")


class Sender:
    """Chooses, reads and cuts what is to be sent.

    Args:
        ledger: Where the messages are.
        settings: The windows and the size of fragments.
        backoff: When what is sent goes again.

    Attributes:
        large: The dialogs that have a large message under way, or wait until they may go on with theirs.
    """

    __slots__ = ("_backoff", "_cuts", "_ledger", "_other_lengths", "_settings", "large")

    def __init__(self, ledger: DialogStorage, settings: ProtocolSettings, backoff: Backoff) -> None:
        self._ledger = ledger
        self._settings = settings
        self._backoff = backoff
        self._cuts = FragmentCache()
        self._other_lengths = ledger.set_fragment_bytes(settings.max_fragment_bytes)
        self.large = LargeMessageQueue(self._fragment_bytes)

    def turn(self, dialog: Dialog, now: int) -> SendTurn:
        """What a dialog may send now."""
        settings, transmission = self._settings, dialog.transmission
        size, head = self._fragment_bytes(dialog), transmission.head
        lost = transmission.landed(now, settings.turn_fragments)
        again = sum([mask.bit_count() for flight in lost for mask in flight.fragments.values()]) if lost else 0
        room = min(settings.turn_fragments - again, settings.window_fragments - transmission.fragments)
        room_bytes = settings.window_bytes - transmission.bytes
        is_blocked = transmission.fragments and room_bytes < size
        if is_blocked or (room > 0 and not self.large.goes_on(dialog, now)):
            room = 0
        is_full = bool(lost) and any(flight.due <= now for flight in transmission.flights)
        last = self.last_of(dialog)
        turn = SendTurn(dialog, lost, max(room, 0), room_bytes, last, size, is_full=is_full)
        turn.is_passing = transmission.cursor > 0 and turn.coming().bit_count() == turn.most
        turn.is_asking = dialog.is_known and dialog.is_told and (room <= 0 or head > last or turn.is_passing)
        return turn

    def _fragment_bytes(self, dialog: Dialog) -> int:
        return self._other_lengths.get(dialog.key, self._settings.max_fragment_bytes)

    def last_of(self, dialog: Dialog) -> int:
        """The last message that may be sent: the first one only, until it is settled which copy of the service has taken it (R8)."""
        if dialog.has_ended:
            return SEQUENCE_MAX
        endpoint = dialog.endpoint
        if endpoint.is_initiator and not endpoint.is_bound and endpoint.far_broker_instance is None:
            return 0
        transmission = dialog.transmission
        if transmission.begun > self._settings.ahead_bytes:
            return transmission.head - (transmission.cursor == 0)
        return transmission.acked + self._settings.max_sequence_distance

    def cut(self, turns: Sequence[SendTurn], now: int) -> FragmentedTurn | FastOutbound:
        """Reads and cuts what the turns need, and notes in the dialogs what goes."""
        self._make_way(turns)
        kept = [
            part
            for place, turn in enumerate(turns)
            if turn.lost or turn.dialog.transmission.cursor
            for part in self._kept(turn, place)
        ]
        chosen = self.large.chosen([turn.dialog for turn in turns], now)
        limits = [WORTH_KEEPING] * len(turns)
        limits[chosen] = self.large.room(turns[chosen].dialog, now)
        messages = self._ledger.outgoing(
            [each for turn, limit in zip(turns, limits, strict=True) for each in wanted(turn, limit)]
        )
        by_key = {turn.dialog.key: number for number, turn in enumerate(turns)}
        if messages["message_body"].null_count:
            messages = self._held(messages, turns, by_key)
            has_room = limits[chosen] > WORTH_KEEPING and not turns[chosen].is_held
            if has_room:  # the others may begin theirs in their next turn
                for turn in turns:
                    turn.is_full |= turn.is_held
        if not messages.num_rows and not kept:
            self._launch(turns, now)
            return FragmentedTurn(messages, [], 0)
        if not kept and (plain := cut_plain(messages, turns, by_key)) is not None:
            self._launch(turns, now)
            return plain
        read_bytes = messages.nbytes + sum(part.nbytes for part in kept)
        conversations, sides, sequences, errors = (column_values(messages[name]) for name in _MESSAGE)
        places = [by_key[key] for key in zip(conversations, sides, strict=True)]
        fresh = self._fragments(messages, places, turns)
        fragments = pa.concat_tables([*kept, fresh])
        self._begin(turns, places, sequences, errors)
        taken, owners = self._taken(fragments, turns)
        self._keep(fresh, turns)
        self._launch(turns, now)
        if taken == list(range(fragments.num_rows)):
            return FragmentedTurn(fragments, owners, read_bytes)
        return FragmentedTurn(fragments.take(pa.array(taken, pa.int64())), owners, read_bytes)

    def _make_way(self, turns: Sequence[SendTurn]) -> None:
        """Has the errors of applications go at once, whatever the windows and R8 say (N30): what they have dropped is forgotten."""
        asking = [turn for turn in turns if turn.is_asking]
        ended = self._ledger.ending_errors([turn.dialog.key for turn in asking]) if asking else {}
        for turn in asking:
            dialog, transmission, settings = turn.dialog, turn.dialog.transmission, self._settings
            dialog.is_told = False
            if dialog.key in ended:
                dialog.has_ended, turn.is_passing, turn.last = True, False, SEQUENCE_MAX
                transmission.skip(ended[dialog.key])
                turn.room = min(settings.turn_fragments, settings.window_fragments - transmission.fragments)
                turn.room_bytes = settings.window_bytes - transmission.bytes

    @staticmethod
    def _held(messages: pa.Table, turns: Sequence[SendTurn], by_key: Mapping[Key, int]) -> pa.Table:
        """The messages that were read; those that were too long to be begun hold up their dialogs."""
        is_read = messages["message_body"].is_valid()
        held = messages.filter(pc.invert(is_read))
        for key in zip(column_values(held["conversation_id"]), column_values(held["is_initiator"]), strict=True):
            turns[by_key[key]].is_held = not turns[by_key[key]].is_passing
        return messages.filter(is_read)

    def _kept(self, turn: SendTurn, place: int) -> Iterator[pa.Table]:
        """Fragments of messages that were cut for an earlier turn; their bytes are read."""
        transmission, key, size = turn.dialog.transmission, turn.dialog.key, turn.fragment_bytes
        needed = turn.goes_again()
        if turn.room and turn.dialog.is_known and transmission.cursor:
            needed[transmission.head] = needed.get(transmission.head, 0) | turn.coming()
        for number, mask in needed.items():
            if not self._cuts.has(key, number):
                continue
            runs = list(bit_ranges(mask))
            bodies = self._ledger.read_body_slices(
                key, number, [(first * size, (last + 1) * size) for first, last in runs]
            )
            if bodies is not None:
                turn.found.add(number)
                for (first, _), body in zip(runs, bodies, strict=True):
                    part = self._cuts.part(key, number, first, body, size=size)
                    yield replace_columns(part, part.schema, {_DIALOG: [place] * part.num_rows})

    def abandon(self, dialog: Dialog) -> None:
        """Forgets all that a dialog has under way."""
        dialog.transmission.abandon()
        self._cuts.forget(dialog.key)
        self.large.forget(dialog.key)

    def _fragments(self, messages: pa.Table, places: list[int], turns: Sequence[SendTurn]) -> pa.Table:
        keys = [None if turn.dialog.outbound is None else turn.dialog.outbound.signature_key for turn in turns]
        table = messages.append_column(_DIALOG, pa.array(places, pa.int32()))
        named = None
        if any(key is not None for key in keys):
            table = table.append_column(_KEY, pa.array([keys[place] for place in places], pa.binary()))
            named = _KEY
        lengths = {turn.fragment_bytes for turn in turns}
        if len(lengths) == 1:
            return cutting.fragment(table, max_fragment_bytes=lengths.pop(), session_keys=named)
        cut: list[pa.Table] = []
        for length in lengths:
            its = table.filter(pa.array([turns[place].fragment_bytes == length for place in places], pa.bool_()))
            cut.append(cutting.fragment(its, max_fragment_bytes=length, session_keys=named))
        return pa.concat_tables(cut)

    def _begin(self, turns: Sequence[SendTurn], places: list[int], numbers: list[int], errors: list[bool]) -> None:
        for place, number, is_error in zip(places, numbers, errors, strict=True):
            turn = turns[place]
            turn.found.add(number)
            if not turn.dialog.is_known:
                # The first that is there is the first that was never acknowledged: those before it have left the queue.
                transmission = turn.dialog.transmission
                transmission.acked, transmission.head, transmission.passed = number - 1, number, number
                turn.dialog.is_known = True
                turn.last = self.last_of(turn.dialog)
            if is_error:  # with it the application has ended the dialog, and dropped what was before it (B13)
                turn.dialog.transmission.skip(number)
                turn.dialog.has_ended = True
                turn.last, turn.room = max(turn.last, number), max(turn.room, 1)

    def _taken(self, fragments: pa.Table, turns: Sequence[SendTurn]) -> tuple[list[int], list[SendTurn]]:
        """Which rows go, in what order, and whose they are."""
        places, sequences, numbers, counts = _places(fragments)
        sizes: list[Any] = pc.binary_length(fragments["message_body"]).to_pylist()
        rows_of: list[list[int]] = [[] for _ in turns]
        for row, place in enumerate(places):
            rows_of[place].append(row)
        taken: list[int] = []
        owners: list[SendTurn] = []
        for turn, rows in zip(turns, rows_of, strict=True):
            before = len(taken)
            if turn.lost:
                lost = turn.goes_again()
                taken += [row for row in rows if lost.get(sequences[row], 0) >> numbers[row] & 1]
            if turn.room:
                at = self._singles(turn, rows, sequences, counts, sizes)
                taken += rows[:at]
                for row in interleaved(rows[at:], sequences, counts):
                    if self._goes(turn, sequences[row], numbers[row], counts[row], sizes[row]):
                        taken.append(row)
            turn.is_full |= bool(turn.fresh) and turn.room == 0
            owners += [turn] * (len(taken) - before)
        return taken, owners

    @staticmethod
    def _singles(
        turn: SendTurn, rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int], sizes: Sequence[int]
    ) -> int:
        """Notes that the first rows go, as many as are whole messages whose turn it is and that fit; how many these are."""
        transmission = turn.dialog.transmission
        for at, row in enumerate(rows):
            sequence, size = sequences[row], sizes[row]
            if sequence != transmission.head or counts[row] != 1 or sequence > turn.last or turn.room <= 0:
                return at
            if turn.room_bytes < size and transmission.fragments:
                return at
            turn.room -= 1
            turn.room_bytes -= size
            transmission.send(sequence, 0, 1, size)
            turn.fresh[sequence] = 1
        return len(rows)

    def _keep(self, fragments: pa.Table, turns: Sequence[SendTurn]) -> None:
        """Keeps what was read whole and is large, or has not gone whole, for the turns that follow."""
        heads = [turn.dialog.transmission.head if turn.dialog.transmission.cursor else None for turn in turns]
        if fragments.nbytes < WORTH_KEEPING and not any(head is not None for head in heads):
            return
        for row, (place, sequence, number, count) in enumerate(zip(*_places(fragments), strict=True)):
            is_large = count * turns[place].fragment_bytes >= WORTH_KEEPING
            if number == 0 and count > 1 and (is_large or sequence == heads[place]):
                self._cuts.keep(turns[place].dialog.key, sequence, fragments.slice(row, count))

    def _goes(self, turn: SendTurn, sequence: int, number: int, count: int, size: int) -> bool:
        """Whether a fragment goes for the first time now; then that is noted."""
        transmission = turn.dialog.transmission
        if sequence > turn.last or not transmission.is_next(sequence, number, count):
            return False
        if turn.room <= 0 or (turn.room_bytes < size and transmission.fragments):
            turn.is_full = True
            return False
        turn.room -= 1
        turn.room_bytes -= size
        transmission.send(sequence, number, count, size if count == 1 else turn.fragment_bytes)
        turn.fresh[sequence] = turn.fresh.get(sequence, 0) | 1 << number
        return True

    def _launch(self, turns: Sequence[SendTurn], now: int) -> None:
        for turn in turns:
            turn.dialog.is_drained = turn.is_drained
            transmission = turn.dialog.transmission
            transmission.used = now
            flights = self._again(turn) if turn.lost else []
            if turn.fresh:
                flights.append((turn.fresh, 0))
                self.large.went(turn.dialog, now)
            for fragments, attempt in flights:
                due = now + self._backoff.wait(attempt)
                transmission.launch(fragments, due=due, attempt=attempt)
                turn.dues.append(due)
            if turn.is_held and not (turn.is_full or transmission.cursor):
                self.large.wait(turn.dialog, now)

    @staticmethod
    def _again(turn: SendTurn) -> list[tuple[dict[int, int], int]]:
        """What goes again, without messages that the transmission queue does not have any more; and for how many times then."""
        for flight in turn.lost:
            for number in [number for number in flight.fragments if number not in turn.found]:
                turn.dialog.transmission.drop(number)
                del flight.fragments[number]
        # What is known not to have arrived goes again with the wait that it had: nobody has let that pass in silence.
        return [(flight.fragments, flight.attempt + (flight.due > 0)) for flight in turn.lost if flight.fragments]


def _places(fragments: pa.Table) -> tuple[list[int], list[int], list[int], list[int]]:
    """Of fragments their turns, messages, numbers and counts."""
    places, sequences, numbers, counts = (column_values(fragments[name]) for name in _FRAGMENT)
    return places, sequences, numbers, counts


_LEAST: Final = 1
_MOST: Final = 64
_BYTES: Final = 128 << 10


class TurnPacing:
    """What a turn comes to is not known before: few dialogs have theirs first, as many as came to little the last time, and then more.

    Attributes:
        number: How many have their turn now.
        bytes: What all turns since the beginning came to: what was read for them, or of what was read before.

    Examples:
        >>> pace = TurnPacing()
        >>> pace.begin()
        >>> pace.took(1, 1024)
        >>> pace.number, pace.bytes
        (2, 1024)
        >>> pace.begin()
        >>> pace.number
        64
    """

    __slots__ = ("_turns", "bytes", "number")

    def __init__(self) -> None:
        self.number = _LEAST
        self.bytes = 0
        self._turns = 0

    def begin(self) -> None:
        """Begins anew, with what is known from the last time."""
        if self._turns:
            self.number = min(max(_LEAST, self._turns * _BYTES // (self.bytes + 1)), _MOST)
        self.bytes = self._turns = 0

    def took(self, turns: int, size: int) -> None:
        """Notes what some turns came to, in bytes; a large message is read whole for a turn that sends little of it."""
        self._turns += turns
        self.bytes += size
        self.number *= 2
