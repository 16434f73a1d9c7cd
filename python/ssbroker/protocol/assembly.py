"""Reassembly of what arrives, between a durable state and the native reassembler.

What is incomplete or early waits in the ledger alone (P14); in memory stands which fragments are there. So each push has a reassembler
of its own, in which the numbers of a direction count from where it stands: it judges what has come, and gives what is whole. What was
kept of a message is read back once, when the last of it has come (N38).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from ssbroker.protocol.incoming import Incoming, Part
from ssbroker.protocol.ledger import Key, Ledger
from ssbroker.protocol.push import Push, Rejected, table_of
from ssbroker.protocol.states import State
from ssbroker.reassembler import Reassembler

_READ_BYTES: Final = 8 << 20
"""About so much is read back at a time, as much as comes at a time (N12)."""
TOO_FAR: Final = "limit_exceeded"
"""Why a fragment is refused for which there is no room, or whose message is too far ahead."""
_CONFLICT: Final = "conflict"


@dataclass(frozen=True, slots=True)
class Assembled:
    """What came of opened fragments.

    Attributes:
        messages: The messages whose turn it is (`MESSAGES`).
        kept: The fragments that are to be stored.
        rejected: The fragments that were refused, and why.
        forgotten: The messages whose whole does not match, by endpoint and number: all their fragments have gone (P23).
        broken: The endpoints in ER for which a message has come whole of which nothing was kept.
    """

    messages: pa.Table
    kept: list[Part]
    rejected: list[tuple[Part, str]]
    forgotten: list[tuple[Key, int]]
    broken: list[Key]


class Assembly:
    """Puts parts together.

    Args:
        ledger: Where the fragments are that came before.
        max_pending_bytes: What may wait for one dialog, and about how much of what has waited may become whole at once (P26).
        max_message_bytes: The largest message.
        max_sequence_distance: How far ahead of the first message that is missing one may be.
    """

    __slots__ = ("_ledger", "_max_message_bytes", "_max_pending_bytes", "_max_sequence_distance")

    def __init__(
        self, ledger: Ledger, *, max_pending_bytes: int, max_message_bytes: int, max_sequence_distance: int
    ) -> None:
        self._ledger: Final = ledger
        self._max_pending_bytes: Final = max_pending_bytes
        self._max_message_bytes: Final = max_message_bytes
        self._max_sequence_distance: Final = max_sequence_distance

    def push(self, parts: Sequence[Part]) -> Assembled:
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
        return Assembled(
            pa.concat_tables([first.messages, second.messages]),
            [part for part in first.kept if part.incoming not in over] + second.kept,
            [each for each in first.rejected if id(each[0]) not in taken] + second.rejected,
            first.forgotten + second.forgotten,
            first.broken + second.broken,
        )

    def _push(self, parts: Sequence[Part]) -> Assembled:
        refused = self._refused(parts)
        taken = [part for part in parts if id(part) not in refused] if refused else parts
        one = Push(self._reassembler(), taken)
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
        return Assembled(pa.concat_tables(one.messages), kept, rejected, one.forgotten, one.broken)

    def _reassembler(self) -> Reassembler:
        return Reassembler(
            max_pending_bytes=None,
            max_pending_messages=None,
            max_message_bytes=self._max_message_bytes,
            max_sequence_distance=self._max_sequence_distance,
        )

    def _refused(self, parts: Sequence[Part]) -> Rejected:
        """What contradicts that which is there; and the parts with which more would become whole than may at once."""
        refused: Rejected = {}
        openings: dict[Incoming, list[Part]] = {}
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

    def _keep(self, parts: Sequence[Part], refused: Rejected) -> list[Part]:
        """Notes what is incomplete or early, and gives it; what there is no room for is refused."""
        kept: list[Part] = []
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

    def _complete(self, incoming: Incoming, one: Push) -> None:
        """Reads back what is whole now; the parts of it that have just come are there."""
        end = incoming.end
        place = (incoming.next, 0)
        while place < (end, 0):
            table = self._ledger.stored(incoming.key, place, end, most_bytes=_READ_BYTES)
            if not table.num_rows:
                break
            last = table.num_rows - 1
            place = (table["message_sequence_number"][last].as_py(), table["fragment_number"][last].as_py() + 1)
            one.push_stored(table)
        if incoming.next < incoming.end:
            self._make_do(incoming, one)

    def _make_do(self, incoming: Incoming, one: Push) -> None:
        """Goes on without what could not be read back: of a conversation that is over nothing is kept."""
        (endpoint,) = self._ledger.endpoints([incoming.key])
        if endpoint is not None and endpoint.state is State.CD:
            incoming.reach(incoming.end)  # nobody takes it any more, and so it counts as taken (N29)
        elif endpoint is not None and endpoint.state is State.ER:
            one.broken.append(incoming.key)
        else:
            one.forget(incoming, incoming.next)  # what is kept is not what came: it goes again
