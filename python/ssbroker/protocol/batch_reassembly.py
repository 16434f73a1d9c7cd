"""Reassembles the fragments of a batch, which may belong to several dialogs, from durable state and new arrivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.arrow_columns import column_values, replace_columns
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import sender_keys
from ssbroker.protocol.inbound_direction import InboundDirection, OpenedFragment
from ssbroker.protocol.storage import MESSAGES, STORED_FRAGMENTS, DialogStorage, EndpointKey, fragments_table
from ssbroker.reassembly import Reassembler

Rejected: TypeAlias = dict[int, tuple[OpenedFragment, str]]
"""Rejected fragments and the reasons, by the `id` of the fragment object."""

_DIGEST: Final = STORED_FRAGMENTS.get_field_index("fragment_signature")
_POSITION: Final = ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")


class ReassemblyPush:
    """One run of the reassembler over fragments of several dialogs.

    Args:
        reassembler: A reassembler without state from earlier runs.
        parts: The fragments that have arrived.

    Attributes:
        messages: The messages that are complete and next in order.
        rejected: The rejected fragments.
        dropped: The endpoint and number of each message whose fragments were all discarded.
        broken: The endpoints in the state ER (error) that got a complete message whose fragments were not kept.
    """

    __slots__ = ("_bases", "_parts", "_reassembler", "broken", "dropped", "messages", "rejected")

    def __init__(self, reassembler: Reassembler, parts: Sequence[OpenedFragment]) -> None:
        self._reassembler: Final = reassembler
        self._parts: Final = parts
        self._bases: Final = {part.sender: (part.incoming, part.incoming.next) for part in parts}
        self.messages: Final[list[pa.Table]] = []
        self.rejected: Final[Rejected] = {}
        self.dropped: Final[list[tuple[EndpointKey, int]]] = []
        self.broken: Final[list[EndpointKey]] = []

    def push(self, table: pa.Table) -> None:
        """Adds fragments (`STORED_FRAGMENTS`), with message numbers relative to the next expected number."""
        pushed = self._reassembler.push(table)
        acknowledgements, acked = pushed.acknowledgements, pushed.acknowledgements["acked_sequence_number"].to_pylist()
        for sender, number in zip(sender_keys(acknowledgements), acked, strict=True):
            incoming, base = self._bases[sender]
            if number is not None:
                incoming.advance_to(base + number + 1)
        if pushed.rejected.num_rows:
            self._reject(pushed.rejected)
        numbers: list[Any] = pushed.messages["message_sequence_number"].to_pylist()
        absolute = [
            number + self._bases[sender][1]
            for sender, number in zip(sender_keys(pushed.messages), numbers, strict=True)
        ]
        self.messages.append(
            replace_columns(pushed.messages, MESSAGES, {"message_sequence_number": absolute}).select(MESSAGES.names)
        )

    def push_stored(self, table: pa.Table) -> None:
        """Adds stored fragments. Each fragment was compared with its digest on arrival; now only the whole message is checked."""
        _, base = self._bases[table["conversation_id"][0].as_py(), table["is_initiator"][0].as_py()]
        at = STORED_FRAGMENTS.get_field_index("message_sequence_number")
        table = table.set_column(at, STORED_FRAGMENTS.field(at), pc.subtract(table[at], base))
        self.push(
            table.set_column(
                _DIGEST, STORED_FRAGMENTS.field(_DIGEST), pa.nulls(table.num_rows, STORED_FRAGMENTS.field(_DIGEST).type)
            )
        )

    def drop(self, incoming: InboundDirection, number: int) -> None:
        """Records that the fragments of a message were discarded."""
        incoming.drop_message(number)
        self.dropped.append((incoming.key, number))

    def _reject(self, rejected: pa.Table) -> None:
        places = {(*part.sender, part.sequence, part.fragment): part for part in self._parts}
        columns: list[list[Any]] = [column_values(rejected[name]) for name in (*_POSITION, "reason")]
        for conversation_id, side, sequence, fragment, reason in zip(*columns, strict=True):
            incoming, base = self._bases[conversation_id, side]
            number = sequence + base
            part = places.get((conversation_id, side, number, fragment))
            if part is not None:
                self.rejected[id(part)] = (part, reason)
            if reason == "corrupt_message" and (incoming.key, number) not in self.dropped:
                self.drop(incoming, number)


def fragment_table(parts: Sequence[OpenedFragment]) -> pa.Table:
    """Returns fragments as `STORED_FRAGMENTS` rows, with message numbers relative to the next expected number."""
    return fragments_table([_row_values(part, part.sequence - part.incoming.next) for part in parts])


def stored_fragment_table(parts: Sequence[OpenedFragment]) -> pa.Table:
    """Returns fragments as `STORED_FRAGMENTS` rows to be stored."""
    return fragments_table([_row_values(part, part.sequence) for part in parts])


def _row_values(part: OpenedFragment, sequence: int) -> tuple[Any, ...]:
    """Returns the values of a `STORED_FRAGMENTS` row with the given message number."""
    place = (*part.sender, sequence, part.fragment, part.count)
    return (*place, part.body, part.message_digest, part.fragment_digest, *part.kind)


_READ_BYTES: Final = 8 << 20
"""The approximate number of bytes of stored fragments that are read back at a time."""
TOO_LARGE: Final = "too_large"
"""The reason for refusing a fragment that makes its message larger than the limit."""
LIMIT_EXCEEDED: Final = "limit_exceeded"
"""The reason for refusing a fragment for which there is no room, or whose message is too far ahead of the next expected one."""
CONFLICT: Final = "conflict"
"""The reason for refusing a fragment that contradicts an earlier fragment of its message."""


@dataclass(frozen=True, slots=True)
class AssemblyResult:
    """The result of adding fragments.

    Attributes:
        messages: The messages that are complete and next in order (`MESSAGES`).
        to_store: The fragments to store.
        rejected: The refused fragments and the reasons.
        dropped: The messages that do not match their digest, by endpoint and number; their fragments were discarded (P23).
        broken: The endpoints in the state ER (error) that got a complete message whose fragments were not kept.
    """

    messages: pa.Table
    to_store: list[OpenedFragment]
    rejected: list[tuple[OpenedFragment, str]]
    dropped: list[tuple[EndpointKey, int]]
    broken: list[EndpointKey]


class Assembler:
    """Reassembles fragments into messages.

    Args:
        storage: Holds the fragments that arrived earlier.
        max_pending_bytes: The number of bytes that may wait for one dialog besides its next message; about as many are reassembled at a time (P26).
        max_message_bytes: The size of the largest message.
        max_sequence_distance: How far a message may be ahead of the next expected message.
    """

    __slots__ = ("_max_message_bytes", "_max_pending_bytes", "_max_sequence_distance", "_storage")

    def __init__(
        self, storage: DialogStorage, *, max_pending_bytes: int, max_message_bytes: int, max_sequence_distance: int
    ) -> None:
        self._storage: Final = storage
        self._max_pending_bytes: Final = max_pending_bytes
        self._max_message_bytes: Final = max_message_bytes
        self._max_sequence_distance: Final = max_sequence_distance

    def push(self, parts: Sequence[OpenedFragment]) -> AssemblyResult:
        """Adds fragments that have not arrived before, and updates the receive state of their dialogs.

        An application error is accepted regardless of missing earlier messages, because the sender has dropped those messages.
        """
        first = self._push(parts)
        if not any(part.is_error for part in parts):
            return first
        invalid_ids = {id(part) for part, reason in first.rejected if reason not in (LIMIT_EXCEEDED, TOO_LARGE)}
        errors = [part for part in parts if part.is_error and id(part) not in invalid_ids]
        skipped_to = {part.incoming: part.sequence for part in errors if part.sequence > part.incoming.next}
        if not skipped_to:
            return first
        ending = [
            part for part in parts if skipped_to.get(part.incoming) == part.sequence and id(part) not in invalid_ids
        ]
        for incoming, sequence in skipped_to.items():
            incoming.skip_to(sequence)
        second = self._push(ending)
        ending_ids = {id(part) for part in ending}
        return AssemblyResult(
            pa.concat_tables([first.messages, second.messages]),
            [part for part in first.to_store if part.incoming not in skipped_to] + second.to_store,
            [each for each in first.rejected if id(each[0]) not in ending_ids] + second.rejected,
            first.dropped + second.dropped,
            first.broken + second.broken,
        )

    def _push(self, parts: Sequence[OpenedFragment]) -> AssemblyResult:
        refused = self._find_refused(parts)
        accepted = [part for part in parts if id(part) not in refused] if refused else parts
        push = ReassemblyPush(self._reassembler(), accepted)
        push.push(fragment_table(accepted))
        refused |= push.rejected
        to_store = self._hold(accepted, refused)
        directions = dict.fromkeys(part.incoming for part in accepted if part.incoming.pending)
        for incoming in directions:
            self._load_complete(incoming, push)
        if directions:
            dropped = {*push.dropped}
            to_store = [
                part
                for part in to_store
                if part.sequence >= part.incoming.next and (part.incoming.key, part.sequence) not in dropped
            ]
        rejected = self._with_too_large([*(refused | push.rejected).values()])
        return AssemblyResult(pa.concat_tables(push.messages), to_store, rejected, push.dropped, push.broken)

    def _with_too_large(self, rejected: list[tuple[OpenedFragment, str]]) -> list[tuple[OpenedFragment, str]]:
        """Returns the refused fragments, with a specific reason for fragments that make a message larger than the limit."""
        sizes: Counter[tuple[InboundDirection, int]] = Counter()
        for part, reason in rejected:
            if reason == LIMIT_EXCEEDED:
                sizes[part.incoming, part.sequence] += len(part.body)
        for (incoming, sequence), size in sizes.items():
            held = incoming.pending.get(sequence)
            sizes[incoming, sequence] = size + (0 if held is None else held.body_bytes)
        return [
            (part, TOO_LARGE if sizes[part.incoming, part.sequence] > self._max_message_bytes else reason)
            if reason == LIMIT_EXCEEDED
            else (part, reason)
            for part, reason in rejected
        ]

    def _reassembler(self) -> Reassembler:
        return Reassembler(
            max_pending_bytes=None,
            max_pending_messages=None,
            max_message_bytes=self._max_message_bytes,
            max_sequence_distance=self._max_sequence_distance,
        )

    def _find_refused(self, parts: Sequence[OpenedFragment]) -> Rejected:
        """Rejects fragments that contradict earlier fragments, or that would complete more bytes than the limit for one reassembly."""
        refused: Rejected = {}
        openings: dict[InboundDirection, list[OpenedFragment]] = {}
        for part in parts:
            incoming = part.incoming
            if not incoming.pending:
                continue
            if incoming.conflicts_with(part):
                refused[id(part)] = (part, CONFLICT)
            elif part.sequence == incoming.next:
                openings.setdefault(incoming, []).append(part)
        completed_bytes = 0
        for incoming, opening in openings.items():
            pending = incoming.pending.get(incoming.next)
            if len(opening) + (0 if pending is None else pending.fragments) < opening[0].count:
                continue
            if completed_bytes and completed_bytes + incoming.pending_bytes > self._max_pending_bytes:
                refused |= {id(part): (part, LIMIT_EXCEEDED) for part in opening}
            else:
                completed_bytes += incoming.pending_bytes
        return refused

    def _hold(self, parts: Sequence[OpenedFragment], refused: Rejected) -> list[OpenedFragment]:
        """Records and returns the fragments that must wait; refuses fragments for which there is no room."""
        to_store: list[OpenedFragment] = []
        max_bytes, max_message_bytes = self._max_pending_bytes, self._max_message_bytes
        for part in parts:
            incoming = part.incoming
            if part.sequence < incoming.next or id(part) in refused:
                continue
            if incoming.has_room(part, max_bytes=max_bytes, max_message_bytes=max_message_bytes):
                position = (part.sequence, part.fragment)
                incoming.add(position, count=part.count, digest=part.message_digest, size=len(part.body))
                to_store.append(part)
            else:
                refused[id(part)] = (part, LIMIT_EXCEEDED)
        return to_store

    def _load_complete(self, incoming: InboundDirection, push: ReassemblyPush) -> None:
        """Reads back the stored fragments of messages that are now complete."""
        end = incoming.complete_until
        place = (incoming.next, 0)
        while place < (end, 0):
            table = self._storage.read_stored(incoming.key, place, end, most_bytes=_READ_BYTES)
            if not table.num_rows:
                break
            last = table.num_rows - 1
            place = (table["message_sequence_number"][last].as_py(), table["fragment_number"][last].as_py() + 1)
            push.push_stored(table)
        if incoming.next < incoming.complete_until:
            self._handle_missing(incoming, push)

    def _handle_missing(self, incoming: InboundDirection, push: ReassemblyPush) -> None:
        """Continues without fragments that could not be read back; fragments are not kept for a conversation that has ended."""
        (endpoint,) = self._storage.endpoints([incoming.key])
        if endpoint is not None and endpoint.state is ConversationState.CD:
            incoming.advance_to(
                incoming.complete_until
            )  # the message would be dropped anyway, so it counts as received
        elif endpoint is not None and endpoint.state is ConversationState.ER:
            push.broken.append(incoming.key)
        else:
            push.drop(incoming, incoming.next)  # the stored fragments are incomplete: the peer sends them again


class DirectionLoader:
    """Loads the receive state of dialogs, and unloads it when it takes too much memory.

    Args:
        storage: Holds the fragments.
        max_bytes: The approximate memory limit for all receive states; the receive states of the current batch always stay.
    """

    __slots__ = ("_max_bytes", "_sizes", "_storage", "_total_bytes")

    def __init__(self, storage: DialogStorage, *, max_bytes: int) -> None:
        self._storage: Final = storage
        self._max_bytes: Final = max_bytes
        # Dialogs with pending fragments, least recently used first.
        self._sizes: Final[dict[EndpointKey, tuple[Dialog, int]]] = {}
        self._total_bytes = 0

    def load(self, dialogs: Mapping[EndpointKey, Dialog], *, new_dialogs: Mapping[EndpointKey, Dialog]) -> None:
        """Loads the receive state of dialogs; `new_dialogs` have no stored fragments."""
        missing = {key: dialog for key, dialog in dialogs.items() if dialog.incoming is None}
        known = [key for key in missing if key not in new_dialogs]
        found = {key: InboundDirection(key, 0) for key in missing}
        if known:
            for key, row in zip(known, self._storage.endpoints(known), strict=True):
                found[key].next = 0 if row is None else row.receive_sequence
            for key, place, count, digest, size in self._storage.list_stored(known):
                if place[0] >= found[key].next:
                    found[key].add(place, count=count, digest=digest, size=size)
        for key, dialog in missing.items():
            dialog.incoming = found[key]

    def account(self, dialogs: Mapping[EndpointKey, Dialog]) -> None:
        """Updates the memory use of dialogs, and unloads the least recently used dialogs if the total exceeds the limit."""
        for key, dialog in dialogs.items():
            self._remove(key)
            if dialog.incoming is not None and (weight := dialog.incoming.memory_bytes):
                self._sizes[key] = (dialog, weight)
                self._total_bytes += weight
        while self._total_bytes > self._max_bytes and (first := next(iter(self._sizes))) not in dialogs:
            self.unload([self._sizes[first][0]])

    def unload(self, dialogs: Iterable[Dialog]) -> None:
        """Unloads the receive state of dialogs."""
        for dialog in dialogs:
            self._remove(dialog.key)
            dialog.incoming = None

    def _remove(self, key: EndpointKey) -> None:
        _, weight = self._sizes.pop(key, (None, 0))
        self._total_bytes -= weight
