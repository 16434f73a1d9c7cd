"""Receives verified fragments: reassembles them, and plans the messages to enqueue, store and acknowledge."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ssbroker.protocol.ack_ranges import AckRange
from ssbroker.protocol.batch_reassembly import (
    CONFLICT,
    LIMIT_EXCEEDED,
    TOO_LARGE,
    Assembler,
    AssemblyResult,
    DirectionLoader,
    stored_fragment_table,
)
from ssbroker.protocol.broker_errors import ENDPOINT_GONE
from ssbroker.protocol.dialog import Dialog, ErrorNotice
from ssbroker.protocol.envelope import EnvelopeRow, Protection, receiver_keys
from ssbroker.protocol.events import EventLog, MessageUndeliverable
from ssbroker.protocol.inbound_direction import OpenedFragment
from ssbroker.protocol.inbound_fast_path import FastInbound
from ssbroker.protocol.row_events import (
    BAD_SIGNATURE,
    corrupted_event,
    false_acknowledgement_event,
    undeliverable_event,
)
from ssbroker.protocol.row_opener import Acknowledgements, OpenedBatch
from ssbroker.protocol.storage import (
    MESSAGES,
    NO_FRAGMENTS,
    NO_MESSAGES,
    BatchChanges,
    DialogStorage,
    EndpointKey,
    Refusal,
)

_DIGEST_BYTES: Final = 16
_CORRUPT: Final = ("corrupt_fragment", "corrupt_message")
_REJECTION_TEXTS: Final = {
    TOO_LARGE: "the message is larger than this instance accepts (max_message_bytes)",
    LIMIT_EXCEEDED: "the fragment exceeds a limit of this instance: its message is too far ahead of the next expected one, or too many "
    "bytes are waiting (max_pending_bytes)",
    CONFLICT: "the fragment contradicts an earlier fragment of its message",
}


@dataclass(slots=True)
class DueAcknowledgement:
    """The acknowledgement that a dialog owes because of a batch.

    Attributes:
        fragments: The number of fragments received.
        bytes: The number of bytes received.
        is_immediate: Whether the sender waits for the acknowledgement, or has retransmitted fragments (P18).
        has_duplicates: Whether fragments had arrived before.
    """

    fragments: int = 0
    bytes: int = 0
    is_immediate: bool = False
    has_duplicates: bool = False

    def add_duplicate(self) -> None:
        """Adds a fragment that had arrived before."""
        self.is_immediate = self.has_duplicates = True


@dataclass(slots=True)
class ReceivedBatch:
    """The result of receiving a batch.

    Attributes:
        messages: The messages to enqueue (`storage.MESSAGES`).
        stored: The fragments to store (`storage.STORED_FRAGMENTS`).
        receive_sequences: The new receive sequence number of each endpoint.
        dropped: Messages whose stored fragments do not match the digest of the message, by endpoint and number.
        due_acknowledgements: The due acknowledgements, by endpoint.
        notices: The errors to send back.
        dialogs_to_reload: Dialogs whose receive state must be reloaded, because a message was refused.
        refusals: The refusals of messages, by endpoint.
        too_large: Endpoints with a message that is larger than the limit.
    """

    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)
    stored: pa.Table = field(default_factory=lambda: NO_FRAGMENTS)
    receive_sequences: dict[EndpointKey, int] = field(default_factory=dict)
    dropped: list[tuple[EndpointKey, int]] = field(default_factory=list)
    due_acknowledgements: dict[EndpointKey, DueAcknowledgement] = field(default_factory=dict)
    notices: list[ErrorNotice] = field(default_factory=list)
    dialogs_to_reload: list[Dialog] = field(default_factory=list)
    refusals: dict[EndpointKey, Refusal] = field(default_factory=dict)
    too_large: set[EndpointKey] = field(default_factory=set)

    def add_fast(self, fast: FastInbound) -> None:
        """Puts the messages of the fast path ahead of the other messages, and advances the receive state of the dialogs of the fast path."""
        if not fast.runs:
            return
        self.messages = (
            pa.concat_tables([fast.messages, self.messages.cast(MESSAGES)]) if self.messages.num_rows else fast.messages
        )
        for each in fast.runs:
            number = each.run.first + each.run.rows
            each.incoming.advance_to(number)
            self.receive_sequences[each.run.key] = number
            self.due_acknowledgements[each.run.key] = DueAcknowledgement(
                each.run.rows, each.body_bytes, is_immediate=not each.is_bound
            )


class BatchReceiver:
    """Reassembles verified fragments."""

    __slots__ = ("_assembler", "_loader", "_log", "_storage")

    def __init__(self, storage: DialogStorage, loader: DirectionLoader, assembler: Assembler, log: EventLog) -> None:
        self._storage = storage
        self._loader = loader
        self._assembler = assembler
        self._log = log

    def receive(
        self,
        opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]],
        *,
        new_dialogs: Mapping[EndpointKey, Dialog],
        now: int,
        peer: bytes | None,
    ) -> ReceivedBatch:
        """Receives fragments from a peer and updates the receive state of their dialogs; `DirectionLoader.unload` undoes the update."""
        result = ReceivedBatch()
        dialogs = {dialog.key: dialog for dialog, _, _ in opened}
        self._loader.load(dialogs, new_dialogs=new_dialogs)
        before = {key: dialog.incoming.next for key, dialog in dialogs.items() if dialog.incoming is not None}
        parts = self._with_digests(list(_new_fragments(opened, result.due_acknowledgements)), now, peer)
        if parts:
            assembled = self._assembler.push(parts)
            self._report_rejected(assembled, dialogs, result, now, peer)
            self._release(assembled, dialogs, result)
            self._reply_to_broken(assembled, dialogs, result)
        for key, dialog in dialogs.items():
            incoming = dialog.incoming
            if incoming is not None and incoming.next != before[key]:
                result.receive_sequences.setdefault(key, incoming.next)
        self._loader.account(dialogs)
        return result

    def _with_digests(
        self, fresh: Sequence[tuple[Dialog, EnvelopeRow, bytes]], now: int, peer: bytes | None
    ) -> list[OpenedFragment]:
        """Returns fragments with digests instead of signatures; reports messages without a signature and omits them (P21)."""
        parts: list[OpenedFragment] = []
        secured: dict[EndpointKey, list[tuple[OpenedFragment, EnvelopeRow]]] = {}
        for dialog, row, body in fresh:
            incoming, message_type = dialog.incoming, row.message_type
            # Neither is None: the state is loaded, and the row is a verified message.
            if incoming is None or message_type is None:
                continue
            kind = (message_type, row.message_id, row.is_end, row.is_error)
            signatures = (row.message_signature, row.fragment_signature)
            part = OpenedFragment(incoming, row.sequence, row.fragment, row.count, body, *signatures, kind)
            required = signatures if row.security == Protection.SIGNED and row.count > 1 else signatures[:1]
            if any(signature is None or len(signature) != _DIGEST_BYTES for signature in required):
                self._emit_corrupted(dialog, part, "a signature is missing", now, peer)
                continue
            if dialog.inbound_cipher is not None:
                secured.setdefault(dialog.key, []).append((part, row))
            parts.append(part)
        by_key = {dialog.key: dialog for dialog, _, _ in fresh} if secured else {}
        for key, rows in secured.items():
            _decrypt_digests(by_key[key], rows)
        return parts

    def _report_rejected(
        self,
        assembled: AssemblyResult,
        dialogs: Mapping[EndpointKey, Dialog],
        result: ReceivedBatch,
        now: int,
        peer: bytes | None,
    ) -> None:
        for part, reason in assembled.rejected:
            dialog = dialogs[part.incoming.key]
            owed = result.due_acknowledgements.setdefault(dialog.key, DueAcknowledgement())
            if reason == "duplicate":
                owed.add_duplicate()
            elif reason in _CORRUPT:
                self._emit_corrupted(dialog, part, "the content does not match its signature", now, peer)
            else:
                self._emit_undeliverable(dialog, part, reason, now, peer)
                if reason == TOO_LARGE:
                    result.too_large.add(dialog.key)
        result.dropped += assembled.dropped

    def _release(self, assembled: AssemblyResult, dialogs: Mapping[EndpointKey, Dialog], result: ReceivedBatch) -> None:
        """Sets the messages and stored fragments of the result; omits the first refused message of each dialog, and everything after it."""
        messages = assembled.messages
        stopped: dict[EndpointKey, int] = {}
        if messages.num_rows:
            of_each = [dialogs[key] for key in receiver_keys(messages)]
            refusals = self._storage.validate(messages, [dialog.endpoint.service_contract_name for dialog in of_each])
            if refusals:
                messages = self._stop_at_refusals(messages, of_each, refusals, result, stopped)
        result.messages = messages
        result.stored = stored_fragment_table([part for part in assembled.to_store if part.incoming.key not in stopped])
        for key, sequence in stopped.items():
            result.receive_sequences[key] = sequence

    @staticmethod
    def _reply_to_broken(
        assembled: AssemblyResult, dialogs: Mapping[EndpointKey, Dialog], result: ReceivedBatch
    ) -> None:
        """Sends an error to the sender of each message that arrives for a broken conversation."""
        for dialog in [dialogs[key] for key in assembled.broken]:
            result.receive_sequences[dialog.key] = 0 if dialog.incoming is None else dialog.incoming.next
            result.dialogs_to_reload.append(dialog)
            result.notices.append(
                ErrorNotice(
                    dialog, None, -ENDPOINT_GONE, "the remote endpoint of the conversation accepts no more messages"
                )
            )

    @staticmethod
    def _stop_at_refusals(
        messages: pa.Table,
        dialogs: Sequence[Dialog],
        refusals: Mapping[int, Refusal],
        result: ReceivedBatch,
        stopped: dict[EndpointKey, int],
    ) -> pa.Table:
        sequences: list[Any] = messages["message_sequence_number"].to_pylist()
        is_kept: list[bool] = []
        for row, (dialog, sequence) in enumerate(zip(dialogs, sequences, strict=True)):
            key = dialog.key
            refusal = refusals.get(row)
            if refusal is not None and key not in stopped:
                stopped[key] = sequence
                result.dialogs_to_reload.append(dialog)
                result.refusals[key] = refusal
                result.notices.append(ErrorNotice(dialog, None, refusal.code, refusal.description))
            is_kept.append(key not in stopped)
        return messages.filter(pa.array(is_kept, pa.bool_()))

    def _emit_undeliverable(
        self, dialog: Dialog, part: OpenedFragment, reason: str, now: int, peer: bytes | None
    ) -> None:
        self._log.emit(
            MessageUndeliverable(
                at=now,
                conversation_id=uuid.UUID(bytes=dialog.endpoint.conversation_id),
                message_sequence_number=part.sequence,
                fragment_number=part.fragment,
                peer=peer,
                text=_REJECTION_TEXTS.get(reason, reason),
            )
        )

    def _emit_corrupted(self, dialog: Dialog, part: OpenedFragment, text: str, now: int, peer: bytes | None) -> None:
        place, service = (part.sequence, part.fragment), dialog.endpoint.far_service_name
        self._log.emit(corrupted_event(part.sender, place, service, BAD_SIGNATURE, text, now=now, peer=peer))


def _new_fragments(
    opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]], owed_of: dict[EndpointKey, DueAcknowledgement]
) -> Iterator[tuple[Dialog, EnvelopeRow, bytes]]:
    """Yields fragments that have not arrived before, and records the acknowledgements owed for all fragments."""
    seen: set[tuple[EndpointKey, int, int]] = set()
    for item in opened:
        dialog, row, body = item
        incoming = dialog.incoming
        if incoming is None:  # always loaded by the caller
            continue
        owed = owed_of.setdefault(dialog.key, DueAcknowledgement())
        place = (dialog.key, row.sequence, row.fragment)
        if row.sequence < incoming.next or (row.sequence, row.fragment) in incoming.ranges or place in seen:
            owed.add_duplicate()
            continue
        owed.is_immediate |= row.to_broker is None
        seen.add(place)
        owed.fragments += 1
        owed.bytes += len(body)
        yield item


def _decrypt_digests(dialog: Dialog, rows: Sequence[tuple[OpenedFragment, EnvelopeRow]]) -> None:
    """Decrypts the signatures of a secured dialog into digests; a sealed fragment needs no fragment digest: its seal is verified."""
    cipher = dialog.inbound_cipher
    if cipher is None:
        return
    signatures = [row.message_signature or b"" for _, row in rows]
    digests = cipher.message_digests([part.sequence for part, _ in rows], signatures)
    for (part, _), digest in zip(rows, digests, strict=True):
        part.message_digest = digest
        part.fragment_digest = None
    signed = [
        (part, row) for part, row in rows if row.security == Protection.SIGNED and row.fragment_signature is not None
    ]
    if signed:
        digests = cipher.fragment_digests(
            [(part.sequence, part.fragment, part.count) for part, _ in signed],
            [row.message_signature or b"" for _, row in signed],
            [row.fragment_signature or b"" for _, row in signed],
        )
        for (part, _), digest in zip(signed, digests, strict=True):
            part.fragment_digest = digest


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """The changes that a batch causes.

    Attributes:
        changes: The changes to write.
        opened: The verified content that does not take the fast path.
        fast: The part of the batch that takes the fast path.
        received: The result of reassembly.
        acknowledged: The acknowledgements, limited to sent messages.
    """

    changes: BatchChanges
    opened: OpenedBatch
    fast: FastInbound
    received: ReceivedBatch
    acknowledged: Acknowledgements

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs whose receive state has changed."""
        return [*self.fast.dialogs, *self.opened.dialogs]


class ReceivePlanner:
    """Plans the changes that received batches cause."""

    __slots__ = ("_log", "_receiver", "_storage")

    def __init__(self, storage: DialogStorage, receiver: BatchReceiver, log: EventLog) -> None:
        self._storage = storage
        self._receiver = receiver
        self._log = log

    def plan(
        self, opened: OpenedBatch, fast: FastInbound, known: Mapping[EndpointKey, Dialog], now: int
    ) -> ReceivePlan:
        """Plans the changes that a batch causes; also changes the receive state of its dialogs."""
        self._admit(opened, now)
        received = self._receiver.receive(opened.messages, new_dialogs=opened.created, now=now, peer=opened.peer)
        received.add_fast(fast)
        for each in fast.runs:
            if each.acked:
                opened.acknowledgements[each.run.key] = [(acked, []) for acked in each.acked]
        acknowledged = self._valid_acknowledgements(opened, known, now)
        changes = self._changes(opened, fast, received, acknowledged, known, now)
        return ReceivePlan(changes, opened, fast, received, acknowledged)

    def _admit(self, opened: OpenedBatch, now: int) -> None:
        """Asks the services whether they admit new conversations; removes the messages of refused conversations."""
        if not opened.created:
            return
        candidates = list(opened.created.values())
        refused: set[EndpointKey] = set()
        for dialog, answer in zip(candidates, self._storage.admit([each.endpoint for each in candidates]), strict=True):
            if isinstance(answer, Refusal):
                del opened.created[dialog.key]
                refused.add(dialog.key)
                if answer.notifies_sender:
                    dialog.reply_with_peer_key()
                    opened.notices.append(ErrorNotice(dialog, None, answer.code, answer.description))
                else:
                    self._log.emit(undeliverable_event(dialog.key, answer, now, peer=opened.peer))
            else:
                dialog.endpoint = answer
        if refused:
            opened.messages = [message for message in opened.messages if message[0].key not in refused]

    def _valid_acknowledgements(
        self, opened: OpenedBatch, known: Mapping[EndpointKey, Dialog], now: int
    ) -> Acknowledgements:
        """Returns the acknowledgements, limited to sent messages; logs false acknowledgements."""
        valid: Acknowledgements = {}
        for key, acknowledgements in opened.acknowledgements.items():
            dialog = known.get(key)
            for acknowledgement in acknowledgements:
                clamped = (-1, []) if dialog is None else dialog.transmission.clamp_acknowledgement(*acknowledgement)
                if clamped != acknowledgement:
                    self._log.emit(false_acknowledgement_event(key, acknowledgement[0], now, peer=opened.peer))
                if dialog is not None:
                    valid.setdefault(key, []).append(clamped)
        return valid

    @staticmethod
    def _changes(
        opened: OpenedBatch,
        fast: FastInbound,
        received: ReceivedBatch,
        acknowledged: Acknowledgements,
        known: Mapping[EndpointKey, Dialog],
        now: int,
    ) -> BatchChanges:
        refused = {dialog.key for dialog in received.dialogs_to_reload}
        created = [key for key in opened.created if not (key in refused and received.receive_sequences.get(key) == 0)]
        discarded = opened.created.keys() - created
        for key in discarded:
            opened.created[key].reply_with_peer_key()
        reached = {key: max(acked for acked, _ in each) for key, each in acknowledged.items()}
        return BatchChanges(
            at=now,
            created=tuple(opened.created[key].endpoint for key in created),
            bound=tuple(opened.bound.values()),
            messages=received.messages,
            stored=received.stored,
            received={key: number for key, number in received.receive_sequences.items() if key not in discarded},
            dropped=tuple(received.dropped),
            acknowledged={key: acked for key, acked in reached.items() if acked > known[key].transmission.acked},
            errors={key: body for key, body in opened.errors.items() if key in known},
            refusals={key: why for key, why in received.refusals.items() if key not in discarded},
            lost_by_peer=tuple(key for key, each in acknowledged.items() if _has_lost_messages(known[key], each)),
            runs=tuple(each.run for each in fast.runs),
            too_large=frozenset(received.too_large),
            with_duplicates=frozenset(
                key for key, owed in received.due_acknowledgements.items() if owed.has_duplicates
            ),
        )


def _has_lost_messages(dialog: Dialog, acknowledgements: list[tuple[int, list[AckRange]]]) -> bool:
    """Returns whether the peer has lost messages that it had acknowledged; False if an error has ended the dialog."""
    forgets = dialog.transmission.shows_data_loss
    return not dialog.ended_with_error and any(forgets(*acknowledgement) for acknowledgement in acknowledgements)
