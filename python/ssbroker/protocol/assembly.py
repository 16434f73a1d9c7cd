"""Reassembly of what arrives, between a durable state and the native reassembler.

The reassembler knows a direction from its number 0 on and never goes back, a dialog is read back from the middle and may be rolled
back. So each time that a direction is loaded it gets a name of its own in the reassembler, and its numbers count from where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ssbroker.protocol.columns import listed, replaced
from ssbroker.protocol.incoming import Incoming, Part, in_the_way
from ssbroker.protocol.ledger import MESSAGES, STORED
from ssbroker.reassembler import Reassembler

FORGOTTEN_MAX: Final = 1 << 16
"""After so many names that are not used any more the reassembler is made anew."""

KIND: Final = ("message_type_name", "message_id", "is_end_of_dialog", "is_conversation_error")
_IS_ERROR: Final = KIND.index("is_conversation_error")
TOO_FAR: Final = "limit_exceeded"
"""Why a fragment is refused for which there is no room, or whose message is too far ahead."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """What came of opened fragments.

    Attributes:
        messages: The messages whose turn it is (`MESSAGES`), with the name of the direction as the conversation.
        kept: The fragments that are to be stored.
        rejected: The fragments that were refused, and why.
        forgotten: The messages whose whole does not match, by direction and number: all their fragments have gone (P23).
        renamed: A part of each direction that goes on at an error of the application, by the name that it had (B13).
    """

    messages: pa.Table
    kept: list[Part]
    rejected: list[tuple[Part, str]]
    forgotten: set[tuple[bytes, int]]
    renamed: dict[bytes, Part] = field(default_factory=dict)


class Assembly:
    """The directions that are loaded.

    Args:
        max_pending_bytes: What incomplete and early messages may take in memory (P26).
        max_message_bytes: The largest message.
        max_sequence_distance: How far ahead of the first message that is missing one may be.
    """

    __slots__ = ("_forgotten", "_loaded", "_made", "_options", "_reassembler")

    def __init__(self, *, max_pending_bytes: int, max_message_bytes: int, max_sequence_distance: int) -> None:
        self._options = (max_pending_bytes, max_message_bytes, max_sequence_distance)
        self._made = 0
        self.renew()

    def renew(self) -> None:
        """Forgets everything; every direction has to be loaded again."""
        pending, message, distance = self._options
        self._reassembler = Reassembler(
            max_pending_bytes=pending, max_message_bytes=message, max_sequence_distance=distance
        )
        self._loaded: dict[Incoming, None] = {}
        self._forgotten = 0

    @property
    def is_worn(self) -> bool:
        """Whether it should be made anew."""
        return self._forgotten >= FORGOTTEN_MAX

    @property
    def max_pending_bytes(self) -> int:
        """What may be charged for all that is in memory; for directions of which no message has become whole, half of it."""
        return self._options[0]

    @property
    def pending_bytes(self) -> int:
        """What is charged for all that is in memory."""
        return self._reassembler.pending_bytes

    def load(self, receive_sequence: int) -> Incoming:
        """A direction that goes on at a number."""
        incoming = Incoming(self._name(), receive_sequence, receive_sequence)
        self._loaded[incoming] = None
        return incoming

    def unload(self, incoming: Incoming) -> None:
        """Forgets a direction."""
        if incoming.is_loaded:
            incoming.is_loaded = False
            del self._loaded[incoming]
            self._forget(incoming)

    def _forget(self, incoming: Incoming) -> None:
        for sequence in incoming.early:
            if sequence >= incoming.base:
                self._reassembler.forget(
                    incoming.name, is_initiator=True, message_sequence_number=sequence - incoming.base
                )
        self._forgotten += 1

    def push(self, parts: Sequence[Part]) -> Assembled:
        """Takes parts in, each place at most once; what they come to is noted in their directions. Others leave, where these need their room.

        An error of the application is taken as soon as it comes, whatever is missing before it: its sender has dropped that (B13).
        """
        most = self.max_pending_bytes
        for incoming in in_the_way(self._loaded, parts, pending_bytes=self.pending_bytes, max_pending_bytes=most):
            self.unload(incoming)
        first = self._push(parts)
        if not any(part.kind[_IS_ERROR] for part in parts):
            return first
        bad = {id(part) for part, reason in first.rejected if reason != TOO_FAR}
        errors = [part for part in parts if part.kind[_IS_ERROR] and id(part) not in bad]
        over = {part.incoming.name: part for part in errors if part.sequence > part.incoming.next}
        if not over:
            return first
        places = {name: (part.incoming, part.sequence) for name, part in over.items()}
        ends = [part for part in parts if (part.incoming, part.sequence) in places.values() and id(part) not in bad]
        for incoming, sequence in places.values():
            self._forget(incoming)
            incoming.skip(self._name(), sequence)
        second = self._push(ends)
        gone = [incoming for incoming, _ in places.values()]
        taken = {id(part) for part in ends}
        return Assembled(
            pa.concat_tables([first.messages, second.messages]),
            [part for part in first.kept if part.incoming not in gone] + second.kept,
            [each for each in first.rejected if id(each[0]) not in taken] + second.rejected,
            first.forgotten | second.forgotten,
            over,
        )

    def _name(self) -> bytes:
        self._made += 1
        return self._made.to_bytes(16)

    def _push(self, parts: Sequence[Part]) -> Assembled:
        pushed = self._reassembler.push(_table(parts))
        places = {(part.incoming.name, part.sequence - part.incoming.base, part.fragment): part for part in parts}
        reasons = _reasons(pushed.rejected)
        by_name = {part.incoming.name: part.incoming for part in parts}
        told = pushed.acknowledgements
        directions: list[Any] = listed(told["conversation_id"])
        for name, acked in zip(directions, told["acked_sequence_number"].to_pylist(), strict=True):
            incoming = by_name[name]
            incoming.reach(incoming.base + (-1 if acked is None else acked) + 1)
        rejected = [(places[place], reason) for place, reason in reasons if place in places]
        kept = self._keep(parts, {place for place, reason in reasons})
        forgotten: set[tuple[bytes, int]] = set()
        for (name, number, _), reason in reasons:
            if reason == "corrupt_message":
                incoming = by_name[name]
                incoming.drop(number + incoming.base)
                forgotten.add((name, number + incoming.base))
        return Assembled(_released(pushed.messages, by_name), kept, rejected, forgotten)

    @staticmethod
    def _keep(parts: Sequence[Part], refused: set[tuple[bytes, int, int]]) -> list[Part]:
        """Notes what is incomplete or early, and gives what of it is not stored yet."""
        kept: list[Part] = []
        for part in parts:
            incoming = part.incoming
            sequence = part.sequence
            if sequence < incoming.next or (
                refused and (incoming.name, sequence - incoming.base, part.fragment) in refused
            ):
                continue
            incoming.note(part)
            if not part.is_stored:
                kept.append(part)
        return kept


def _table(parts: Sequence[Part]) -> pa.Table:
    columns: list[list[Any]] = [
        [part.incoming.name for part in parts],
        [True] * len(parts),
        [part.sequence - part.incoming.base for part in parts],
        [part.fragment for part in parts],
        [part.count for part in parts],
        [part.body for part in parts],
        [part.message_digest for part in parts],
        [part.fragment_digest for part in parts],
        *map(list, zip(*(part.kind for part in parts), strict=True)),
    ]
    arrays: list[pa.Array[Any]] = []
    for each, values in zip(STORED, columns, strict=True):
        column: pa.Array[Any] = pa.array(values, each.type)
        arrays.append(column)
    return pa.Table.from_arrays(arrays, schema=STORED)


def _reasons(rejected: pa.Table) -> list[tuple[tuple[bytes, int, int], str]]:
    if not rejected.num_rows:
        return []
    names: tuple[str, ...] = ("conversation_id", "message_sequence_number", "fragment_number", "reason")
    return [((row[0], row[1], row[2]), row[3]) for row in zip(*(listed(rejected[name]) for name in names), strict=True)]


def _released(messages: pa.Table, by_name: dict[bytes, Incoming]) -> pa.Table:
    names: list[Any] = listed(messages["conversation_id"])
    numbers: list[Any] = messages["message_sequence_number"].to_pylist()
    real = [number + by_name[name].base for name, number in zip(names, numbers, strict=True)]
    return replaced(messages, MESSAGES, {"message_sequence_number": real}).select(MESSAGES.names)


def stored_table(rows: Sequence[tuple[bytes, bool, Part]]) -> pa.Table:
    """Parts as the ledger keeps them, with conversation and direction.

    Args:
        rows: Conversation, whether the sender is the initiator, and part.

    Returns:
        The rows (`STORED`).

    Examples:
        >>> stored_table([]).num_rows
        0
    """
    if not rows:
        return STORED.empty_table()
    parts = [part for _, _, part in rows]
    columns: dict[str, list[Any]] = {
        "conversation_id": [row[0] for row in rows],
        "is_initiator": [row[1] for row in rows],
        "message_sequence_number": [part.sequence for part in parts],
    }
    return replaced(_table(parts), STORED, columns)
