"""What dialogs send: whose turn it is, what of it fits the windows, and how it is cut (P13, B33)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import ssbroker.fragments as cutting
from ssbroker.protocol.acknowledgement import bit_runs
from ssbroker.protocol.columns import listed, replaced
from ssbroker.protocol.cuts import WORTH_KEEPING, Cuts
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import SEQUENCE_MAX
from ssbroker.protocol.interleaving import interleaved
from ssbroker.protocol.large import Large
from ssbroker.protocol.ledger import Key, Ledger
from ssbroker.protocol.plain_departures import PlainCut, cut_plain
from ssbroker.protocol.retry import Backoff
from ssbroker.protocol.settings import Settings
from ssbroker.protocol.turn import Cut, Turn
from ssbroker.protocol.wanting import wanted

_DIALOG: Final = "dialog"
_KEY: Final = "session_key"
_MESSAGE: Final = ("conversation_id", "is_initiator", "message_sequence_number", "is_conversation_error")
_FRAGMENT: Final = (_DIALOG, "message_sequence_number", "fragment_number", "fragment_count")


class Sending:
    """Chooses, reads and cuts what is to be sent.

    Args:
        ledger: Where the messages are.
        settings: The windows and the size of fragments.
        backoff: When what is sent goes again.

    Attributes:
        large: The dialogs that have a large message under way, or wait until they may go on with theirs.
    """

    __slots__ = ("_backoff", "_cuts", "_ledger", "_other_lengths", "_settings", "large")

    def __init__(self, ledger: Ledger, settings: Settings, backoff: Backoff) -> None:
        self._ledger = ledger
        self._settings = settings
        self._backoff = backoff
        self._cuts = Cuts()
        self._other_lengths = ledger.cut_with(settings.max_fragment_bytes)
        self.large = Large(self._fragment_bytes)

    def turn(self, dialog: Dialog, now: int) -> Turn:
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
        turn = Turn(dialog, lost, max(room, 0), room_bytes, last, size, is_full=is_full)
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

    def cut(self, turns: Sequence[Turn], now: int) -> Cut | PlainCut:
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
            return Cut(messages, [], 0)
        if not kept and (plain := cut_plain(messages, turns, by_key)) is not None:
            self._launch(turns, now)
            return plain
        read_bytes = messages.nbytes + sum(part.nbytes for part in kept)
        conversations, sides, sequences, errors = (listed(messages[name]) for name in _MESSAGE)
        places = [by_key[key] for key in zip(conversations, sides, strict=True)]
        fresh = self._fragments(messages, places, turns)
        fragments = pa.concat_tables([*kept, fresh])
        self._begin(turns, places, sequences, errors)
        taken, owners = self._taken(fragments, turns)
        self._keep(fresh, turns)
        self._launch(turns, now)
        if taken == list(range(fragments.num_rows)):
            return Cut(fragments, owners, read_bytes)
        return Cut(fragments.take(pa.array(taken, pa.int64())), owners, read_bytes)

    def _make_way(self, turns: Sequence[Turn]) -> None:
        """Has the errors of applications go at once, whatever the windows and R8 say (N30): what they have dropped is forgotten."""
        asking = [turn for turn in turns if turn.is_asking]
        ended = self._ledger.ended([turn.dialog.key for turn in asking]) if asking else {}
        for turn in asking:
            dialog, transmission, settings = turn.dialog, turn.dialog.transmission, self._settings
            dialog.is_told = False
            if dialog.key in ended:
                dialog.has_ended, turn.is_passing, turn.last = True, False, SEQUENCE_MAX
                transmission.skip(ended[dialog.key])
                turn.room = min(settings.turn_fragments, settings.window_fragments - transmission.fragments)
                turn.room_bytes = settings.window_bytes - transmission.bytes

    @staticmethod
    def _held(messages: pa.Table, turns: Sequence[Turn], by_key: Mapping[Key, int]) -> pa.Table:
        """The messages that were read; those that were too long to be begun hold up their dialogs."""
        is_read = messages["message_body"].is_valid()
        held = messages.filter(pc.invert(is_read))
        for key in zip(listed(held["conversation_id"]), listed(held["is_initiator"]), strict=True):
            turns[by_key[key]].is_held = not turns[by_key[key]].is_passing
        return messages.filter(is_read)

    def _kept(self, turn: Turn, place: int) -> Iterator[pa.Table]:
        """Fragments of messages that were cut for an earlier turn; their bytes are read."""
        transmission, key, size = turn.dialog.transmission, turn.dialog.key, turn.fragment_bytes
        needed = turn.goes_again()
        if turn.room and turn.dialog.is_known and transmission.cursor:
            needed[transmission.head] = needed.get(transmission.head, 0) | turn.coming()
        for number, mask in needed.items():
            if not self._cuts.has(key, number):
                continue
            runs = list(bit_runs(mask))
            bodies = self._ledger.parts(key, number, [(first * size, (last + 1) * size) for first, last in runs])
            if bodies is not None:
                turn.found.add(number)
                for (first, _), body in zip(runs, bodies, strict=True):
                    part = self._cuts.part(key, number, first, body, size=size)
                    yield replaced(part, part.schema, {_DIALOG: [place] * part.num_rows})

    def abandon(self, dialog: Dialog) -> None:
        """Forgets all that a dialog has under way."""
        dialog.transmission.abandon()
        self._cuts.forget(dialog.key)
        self.large.forget(dialog.key)

    def _fragments(self, messages: pa.Table, places: list[int], turns: Sequence[Turn]) -> pa.Table:
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

    def _begin(self, turns: Sequence[Turn], places: list[int], numbers: list[int], errors: list[bool]) -> None:
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

    def _taken(self, fragments: pa.Table, turns: Sequence[Turn]) -> tuple[list[int], list[Turn]]:
        """Which rows go, in what order, and whose they are."""
        places, sequences, numbers, counts = _places(fragments)
        sizes: list[Any] = pc.binary_length(fragments["message_body"]).to_pylist()
        rows_of: list[list[int]] = [[] for _ in turns]
        for row, place in enumerate(places):
            rows_of[place].append(row)
        taken: list[int] = []
        owners: list[Turn] = []
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
        turn: Turn, rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int], sizes: Sequence[int]
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

    def _keep(self, fragments: pa.Table, turns: Sequence[Turn]) -> None:
        """Keeps what was read whole and is large, or has not gone whole, for the turns that follow."""
        heads = [turn.dialog.transmission.head if turn.dialog.transmission.cursor else None for turn in turns]
        if fragments.nbytes < WORTH_KEEPING and not any(head is not None for head in heads):
            return
        for row, (place, sequence, number, count) in enumerate(zip(*_places(fragments), strict=True)):
            is_large = count * turns[place].fragment_bytes >= WORTH_KEEPING
            if number == 0 and count > 1 and (is_large or sequence == heads[place]):
                self._cuts.keep(turns[place].dialog.key, sequence, fragments.slice(row, count))

    def _goes(self, turn: Turn, sequence: int, number: int, count: int, size: int) -> bool:
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

    def _launch(self, turns: Sequence[Turn], now: int) -> None:
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
    def _again(turn: Turn) -> list[tuple[dict[int, int], int]]:
        """What goes again, without messages that the transmission queue does not have any more; and for how many times then."""
        for flight in turn.lost:
            for number in [number for number in flight.fragments if number not in turn.found]:
                turn.dialog.transmission.drop(number)
                del flight.fragments[number]
        # What is known not to have arrived goes again with the wait that it had: nobody has let that pass in silence.
        return [(flight.fragments, flight.attempt + (flight.due > 0)) for flight in turn.lost if flight.fragments]


def _places(fragments: pa.Table) -> tuple[list[int], list[int], list[int], list[int]]:
    """Of fragments their turns, messages, numbers and counts."""
    places, sequences, numbers, counts = (listed(fragments[name]) for name in _FRAGMENT)
    return places, sequences, numbers, counts
