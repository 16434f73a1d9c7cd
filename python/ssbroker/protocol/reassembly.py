"""Reassembles the fragments of one direction, from durable state and new arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.dialog import Dialog, InboundDirection, OpenedFragment
from ssbroker.protocol.envelope import column_values, replace_columns
from ssbroker.protocol.states import ConversationState
from ssbroker.protocol.storage import MESSAGES, STORED_FRAGMENTS, DialogStorage, Key, fragments_table
from ssbroker.reassembly import Reassembler

Rejected: TypeAlias = dict[int, tuple[OpenedFragment, str]]
"""Parts that were refused, and why, by `id`."""

_DIGEST: Final = STORED_FRAGMENTS.get_field_index("fragment_signature")
_PLACE: Final = ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")


class ReassemblyPush:
    """What comes of one push.

    Args:
        reassembler: Puts together what is pushed, and knows of nothing.
        parts: What has come.

    Attributes:
        messages: The messages whose turn it is.
        rejected: The parts that were refused.
        forgotten: The messages of which all parts have gone, by endpoint and number.
        broken: The endpoints in ER for which a message has come whole of which nothing was kept.
    """

    __slots__ = ("_bases", "_parts", "_reassembler", "broken", "forgotten", "messages", "rejected")

    def __init__(self, reassembler: Reassembler, parts: Sequence[OpenedFragment]) -> None:
        self._reassembler: Final = reassembler
        self._parts: Final = parts
        self._bases: Final = {part.sender: (part.incoming, part.incoming.next) for part in parts}
        self.messages: Final[list[pa.Table]] = []
        self.rejected: Final[Rejected] = {}
        self.forgotten: Final[list[tuple[Key, int]]] = []
        self.broken: Final[list[Key]] = []

    def push(self, table: pa.Table) -> None:
        """Takes parts in (`STORED`), their messages counted from where their directions stood."""
        pushed = self._reassembler.push(table)
        told, acked = pushed.acknowledgements, pushed.acknowledgements["acked_sequence_number"].to_pylist()
        for sender, number in zip(senders_of(told), acked, strict=True):
            incoming, base = self._bases[sender]
            if number is not None:
                incoming.reach(base + number + 1)
        if pushed.rejected.num_rows:
            self._reject(pushed.rejected)
        numbers: list[Any] = pushed.messages["message_sequence_number"].to_pylist()
        real = [
            number + self._bases[sender][1] for sender, number in zip(senders_of(pushed.messages), numbers, strict=True)
        ]
        self.messages.append(
            replace_columns(pushed.messages, MESSAGES, {"message_sequence_number": real}).select(MESSAGES.names)
        )

    def push_stored(self, table: pa.Table) -> None:
        """Takes in what was read back. Each part was compared with its own digest when it came; now the whole is."""
        _, base = self._bases[table["conversation_id"][0].as_py(), table["is_initiator"][0].as_py()]
        at = STORED_FRAGMENTS.get_field_index("message_sequence_number")
        table = table.set_column(at, STORED_FRAGMENTS.field(at), pc.subtract(table[at], base))
        self.push(
            table.set_column(
                _DIGEST, STORED_FRAGMENTS.field(_DIGEST), pa.nulls(table.num_rows, STORED_FRAGMENTS.field(_DIGEST).type)
            )
        )

    def forget(self, incoming: InboundDirection, number: int) -> None:
        """Notes that the parts of a message have gone."""
        incoming.drop(number)
        self.forgotten.append((incoming.key, number))

    def _reject(self, rejected: pa.Table) -> None:
        places = {(*part.sender, part.sequence, part.fragment): part for part in self._parts}
        columns: list[list[Any]] = [column_values(rejected[name]) for name in (*_PLACE, "reason")]
        for conversation_id, side, sequence, fragment, reason in zip(*columns, strict=True):
            incoming, base = self._bases[conversation_id, side]
            number = sequence + base
            part = places.get((conversation_id, side, number, fragment))
            if part is not None:
                self.rejected[id(part)] = (part, reason)
            if reason == "corrupt_message" and (incoming.key, number) not in self.forgotten:
                self.forget(incoming, number)


def senders_of(table: pa.Table) -> Iterator[Key]:
    """The sides of conversations that have sent the rows of a table, row by row."""
    return zip(column_values(table["conversation_id"]), column_values(table["is_initiator"]), strict=True)


def table_of(parts: Sequence[OpenedFragment]) -> pa.Table:
    """Parts as a push takes them.

    Args:
        parts: The parts.

    Returns:
        The rows (`STORED`), the messages counted from where their directions stand.

    Examples:
        >>> table_of([]).num_rows
        0
    """
    return fragments_table([_values(part, part.sequence - part.incoming.next) for part in parts])


def stored_table(parts: Sequence[OpenedFragment]) -> pa.Table:
    """Parts as the ledger keeps them.

    Args:
        parts: The parts.

    Returns:
        The rows (`STORED`).

    Examples:
        >>> stored_table([]).num_rows
        0
    """
    return fragments_table([_values(part, part.sequence) for part in parts])


def _values(part: OpenedFragment, sequence: int) -> tuple[Any, ...]:
    """A row of `STORED`, with the number that its message shall have."""
    place = (*part.sender, sequence, part.fragment, part.count)
    return (*place, part.body, part.message_digest, part.fragment_digest, *part.kind)


_READ_BYTES: Final = 8 << 20
"""About so much is read back at a time, as much as comes at a time (N12)."""
TOO_FAR: Final = "limit_exceeded"
"""Why a fragment is refused for which there is no room, or whose message is too far ahead."""
_CONFLICT: Final = "conflict"


@dataclass(frozen=True, slots=True)
class AssemblyResult:
    """What came of opened fragments.

    Attributes:
        messages: The messages whose turn it is (`MESSAGES`).
        kept: The fragments that are to be stored.
        rejected: The fragments that were refused, and why.
        forgotten: The messages whose whole does not match, by endpoint and number: all their fragments have gone (P23).
        broken: The endpoints in ER for which a message has come whole of which nothing was kept.
    """

    messages: pa.Table
    kept: list[OpenedFragment]
    rejected: list[tuple[OpenedFragment, str]]
    forgotten: list[tuple[Key, int]]
    broken: list[Key]


class Assembler:
    """Puts parts together.

    Args:
        ledger: Where the fragments are that came before.
        max_pending_bytes: What may wait for one dialog, and about how much of what has waited may become whole at once (P26).
        max_message_bytes: The largest message.
        max_sequence_distance: How far ahead of the first message that is missing one may be.
    """

    __slots__ = ("_ledger", "_max_message_bytes", "_max_pending_bytes", "_max_sequence_distance")

    def __init__(
        self, ledger: DialogStorage, *, max_pending_bytes: int, max_message_bytes: int, max_sequence_distance: int
    ) -> None:
        self._ledger: Final = ledger
        self._max_pending_bytes: Final = max_pending_bytes
        self._max_message_bytes: Final = max_message_bytes
        self._max_sequence_distance: Final = max_sequence_distance

    def push(self, parts: Sequence[OpenedFragment]) -> AssemblyResult:
        """Takes parts in, none of which is there; what they come to is noted in their directions.

        An error of the application is taken as soon as it comes, whatever is missing before it: its sender has dropped that (B13).
        """
        first = self._push(parts)
        if not any(part.is_error for part in parts):
            return first
        bad = {id(part) for part, reason in first.rejected if reason != TOO_FAR}
        errors = [part for part in parts if part.is_error and id(part) not in bad]
        over = {part.incoming: part.sequence for part in errors if part.sequence > part.incoming.next}
        if not over:
            return first
        ends = [part for part in parts if over.get(part.incoming) == part.sequence and id(part) not in bad]
        for incoming, sequence in over.items():
            incoming.skip(sequence)
        second = self._push(ends)
        taken = {id(part) for part in ends}
        return AssemblyResult(
            pa.concat_tables([first.messages, second.messages]),
            [part for part in first.kept if part.incoming not in over] + second.kept,
            [each for each in first.rejected if id(each[0]) not in taken] + second.rejected,
            first.forgotten + second.forgotten,
            first.broken + second.broken,
        )

    def _push(self, parts: Sequence[OpenedFragment]) -> AssemblyResult:
        refused = self._refused(parts)
        taken = [part for part in parts if id(part) not in refused] if refused else parts
        one = ReassemblyPush(self._reassembler(), taken)
        one.push(table_of(taken))
        refused |= one.rejected
        kept = self._keep(taken, refused)
        directions = dict.fromkeys(part.incoming for part in taken if part.incoming.early)
        for incoming in directions:
            self._complete(incoming, one)
        if directions:
            gone = {*one.forgotten}
            kept = [
                part
                for part in kept
                if part.sequence >= part.incoming.next and (part.incoming.key, part.sequence) not in gone
            ]
        rejected = [*(refused | one.rejected).values()]
        return AssemblyResult(pa.concat_tables(one.messages), kept, rejected, one.forgotten, one.broken)

    def _reassembler(self) -> Reassembler:
        return Reassembler(
            max_pending_bytes=None,
            max_pending_messages=None,
            max_message_bytes=self._max_message_bytes,
            max_sequence_distance=self._max_sequence_distance,
        )

    def _refused(self, parts: Sequence[OpenedFragment]) -> Rejected:
        """What contradicts that which is there; and the parts with which more would become whole than may at once."""
        refused: Rejected = {}
        openings: dict[InboundDirection, list[OpenedFragment]] = {}
        for part in parts:
            incoming = part.incoming
            if not incoming.early:
                continue
            if incoming.contradicts(part):
                refused[id(part)] = (part, _CONFLICT)
            elif part.sequence == incoming.next:
                openings.setdefault(incoming, []).append(part)
        whole = 0
        for incoming, opening in openings.items():
            there = incoming.early.get(incoming.next)
            if len(opening) + (0 if there is None else there.fragments) < opening[0].count:
                continue
            if whole and whole + incoming.body_bytes > self._max_pending_bytes:
                refused |= {id(part): (part, TOO_FAR) for part in opening}
            else:
                whole += incoming.body_bytes
        return refused

    def _keep(self, parts: Sequence[OpenedFragment], refused: Rejected) -> list[OpenedFragment]:
        """Notes what is incomplete or early, and gives it; what there is no room for is refused."""
        kept: list[OpenedFragment] = []
        most, message_most = self._max_pending_bytes, self._max_message_bytes
        for part in parts:
            incoming = part.incoming
            if part.sequence < incoming.next or id(part) in refused:
                continue
            if incoming.has_room(part, most=most, message_most=message_most):
                place = (part.sequence, part.fragment)
                incoming.note(place, count=part.count, digest=part.message_digest, size=len(part.body))
                kept.append(part)
            else:
                refused[id(part)] = (part, TOO_FAR)
        return kept

    def _complete(self, incoming: InboundDirection, one: ReassemblyPush) -> None:
        """Reads back what is whole now; the parts of it that have just come are there."""
        end = incoming.end
        place = (incoming.next, 0)
        while place < (end, 0):
            table = self._ledger.read_stored(incoming.key, place, end, most_bytes=_READ_BYTES)
            if not table.num_rows:
                break
            last = table.num_rows - 1
            place = (table["message_sequence_number"][last].as_py(), table["fragment_number"][last].as_py() + 1)
            one.push_stored(table)
        if incoming.next < incoming.end:
            self._make_do(incoming, one)

    def _make_do(self, incoming: InboundDirection, one: ReassemblyPush) -> None:
        """Goes on without what could not be read back: of a conversation that is over nothing is kept."""
        (endpoint,) = self._ledger.endpoints([incoming.key])
        if endpoint is not None and endpoint.state is ConversationState.CD:
            incoming.reach(incoming.end)  # nobody takes it any more, and so it counts as taken (N29)
        elif endpoint is not None and endpoint.state is ConversationState.ER:
            one.broken.append(incoming.key)
        else:
            one.forget(incoming, incoming.next)  # what is kept is not what came: it goes again


class DirectionLoader:
    """Knows of directions what is there, as long as there is room for that.

    Args:
        ledger: Where the fragments are.
        most: What it may take in memory to know what is there of all directions, about, in bytes; those that a batch is for stay in any case.
    """

    __slots__ = ("_ledger", "_most", "_weighed", "_weight")

    def __init__(self, ledger: DialogStorage, *, most: int) -> None:
        self._ledger: Final = ledger
        self._most: Final = most
        # Those of which anything waits, those first that nothing has come for the longest.
        self._weighed: Final[dict[Key, tuple[Dialog, int]]] = {}
        self._weight = 0

    def load(self, dialogs: Mapping[Key, Dialog], *, begun: Mapping[Key, Dialog]) -> None:
        """Has the directions of dialogs in memory.

        Args:
            dialogs: The dialogs.
            begun: Those that begin with this batch.
        """
        missing = {key: dialog for key, dialog in dialogs.items() if dialog.incoming is None}
        known = [key for key in missing if key not in begun]
        found = {key: InboundDirection(key, 0) for key in missing}
        if known:
            for key, row in zip(known, self._ledger.endpoints(known), strict=True):
                found[key].next = 0 if row is None else row.receive_sequence
            for key, place, count, digest, size in self._ledger.list_stored(known):
                if place[0] >= found[key].next:
                    found[key].note(place, count=count, digest=digest, size=size)
        for key, dialog in missing.items():
            dialog.incoming = found[key]

    def weigh(self, dialogs: Mapping[Key, Dialog]) -> None:
        """Notes what directions take by now. Where all take too much, those leave that nothing has come for the longest.

        Args:
            dialogs: The dialogs that something has come for.
        """
        for key, dialog in dialogs.items():
            self._lift(key)
            if dialog.incoming is not None and (weight := dialog.incoming.weight):
                self._weighed[key] = (dialog, weight)
                self._weight += weight
        while self._weight > self._most and (first := next(iter(self._weighed))) not in dialogs:
            self.unload([self._weighed[first][0]])

    def unload(self, dialogs: Iterable[Dialog]) -> None:
        """Forgets the directions of dialogs."""
        for dialog in dialogs:
            self._lift(dialog.key)
            dialog.incoming = None

    def _lift(self, key: Key) -> None:
        _, weight = self._weighed.pop(key, (None, 0))
        self._weight -= weight
