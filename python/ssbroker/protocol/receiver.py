"""Receives envelopes: verifies, decrypts, classifies, reassembles, acknowledges."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.protocol.ack_ranges import AckRange, unpack_ack_ranges
from ssbroker.protocol.config import Integrity
from ssbroker.protocol.dialog import Dialog, InboundDirection, OpenedFragment, make_dialog, make_inbound_cipher
from ssbroker.protocol.envelope import NO_ROWS, NULL_GUID, SEQUENCE_MAX, EnvelopeRow, Protection, table_to_rows
from ssbroker.protocol.events import (
    AcknowledgementStep,
    CorruptedMessage,
    EventLog,
    MessageUndeliverable,
    RemoteMessageAcknowledgement,
)
from ssbroker.protocol.reassembly import (
    CONFLICT,
    LIMIT_EXCEEDED,
    Assembler,
    AssemblyResult,
    DirectionLoader,
    sender_keys,
    stored_fragment_table,
)
from ssbroker.protocol.storage import (
    MESSAGES,
    NO_FRAGMENTS,
    NO_MESSAGES,
    BatchChanges,
    DialogEndpoint,
    DialogStorage,
    EndpointKey,
    ExchangedKeys,
    MessageKind,
    MessageRun,
    Refusal,
    SessionKeys,
)
from ssbroker.security import SecuredDirection

_ANSWERED_ELSEWHERE: Final = 8495
ENDPOINT_GONE: Final = 8462
_MALFORMED: Final = 11271
_BAD_SIGNATURE: Final = 11230
_NOT_SEALED: Final = 11231
_NO_CONVERSATION: Final = 11209
_CLOSED: Final = 11212
_WRONG_SERVICE: Final = 11222
_WRONG_BROKER: Final = 11220
_OTHER_COPY: Final = 11224

Acknowledgements: TypeAlias = dict[EndpointKey, list[tuple[int, list[AckRange]]]]
"""The acknowledgements for each endpoint: the last number received in order, and the ranges beyond it."""


@dataclass(frozen=True, slots=True)
class ErrorNotice:
    """An error of the broker that is sent to a peer (P11); it is not stored, because the peer retries.

    Attributes:
        dialog: The endpoint that reports it; None if there is none.
        row: The fragment that it answers, if that did not come from the endpoint's peer.
        code: The Service Broker error number, negative.
        text: The description.
    """

    dialog: Dialog | None
    row: EnvelopeRow | None
    code: int
    text: str


@dataclass(slots=True)
class OpenedBatch:
    """The verified content of a batch.

    Attributes:
        peer: The peer that delivered the batch.
        messages: The verified fragments with their dialogs.
        acknowledgements: The acknowledgements for each endpoint, in order of arrival.
        errors: The errors of remote brokers.
        created: The dialogs that this batch creates.
        bound: The rows of endpoints that this batch binds to their peers.
        notices: The errors to send back.
    """

    peer: bytes | None
    messages: list[tuple[Dialog, EnvelopeRow, bytes]] = field(default_factory=list)
    acknowledgements: Acknowledgements = field(default_factory=dict)
    errors: dict[EndpointKey, bytes] = field(default_factory=dict)
    created: dict[EndpointKey, Dialog] = field(default_factory=dict)
    bound: dict[EndpointKey, DialogEndpoint] = field(default_factory=dict)
    notices: list[ErrorNotice] = field(default_factory=list)

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs of its messages."""
        return [dialog for dialog, _, _ in self.messages]


class RowOpener:
    """Verifies and decrypts the rows of a batch.

    Args:
        dialogs: The existing endpoints that the batch is for.
        session_keys: Keys of conversations that this batch creates or answers for the first time, by conversation id.
        integrity: The protection required of secured dialogs (P22).
        peer: The peer that delivered the batch.
        now: The current time.
        log: Receives the events of damaged and misdirected rows.
    """

    def __init__(
        self,
        dialogs: Mapping[EndpointKey, Dialog],
        *,
        session_keys: SessionKeys,
        integrity: Integrity,
        peer: bytes | None,
        now: int,
        log: EventLog,
    ) -> None:
        self._dialogs = dialogs
        self._session_keys = session_keys
        self._integrity = integrity
        self._peer = peer
        self._now = now
        self._log = log
        self._opened = OpenedBatch(peer)
        self._peer_keys: dict[EndpointKey, tuple[ExchangedKeys, SecuredDirection]] = {}

    def open(self, rows: list[EnvelopeRow]) -> OpenedBatch:
        """Opens a batch; damaged, forged and misdirected rows are omitted and logged."""
        for row in rows:
            self._open_row(row)
        return self._opened

    def _open_row(self, row: EnvelopeRow) -> None:
        key = (row.conversation_id, not row.is_initiator)
        dialog = self._dialogs.get(key) or self._opened.created.get(key)
        is_new = dialog is None
        if dialog is None:
            dialog = self._new_dialog(row)
            if dialog is None:
                return
        body = self._verify(row, dialog)
        if body is None:
            return
        if self._is_misdirected(row, dialog):
            return
        if is_new:
            self._opened.created[key] = dialog
        else:
            self._bind(row, dialog)
        if row.acked_ahead is not None:
            self._add_acknowledgement(row, key, unpack_ack_ranges(row.acked_ahead))
        if row.is_sequenced:
            self._opened.messages.append((dialog, row, body))
        elif row.message_type is not None:
            self._opened.errors[key] = body

    def _new_dialog(self, row: EnvelopeRow) -> Dialog | None:
        """Returns the target endpoint that the first fragment of a conversation creates; None if it creates none."""
        if not row.is_initiator:
            # The key of a deleted conversation is gone, so only an unsecured sender can be notified.
            if row.security == Protection.PLAIN and row.is_sequenced and row.has_valid_digest:
                self._opened.notices.append(
                    ErrorNotice(None, row, -ENDPOINT_GONE, "the remote endpoint of the conversation no longer exists")
                )
            self._undeliverable(row, _NO_CONVERSATION, "the conversation id does not match an active conversation")
            return None
        if not row.is_sequenced:
            self._undeliverable(row, _NO_CONVERSATION, "the conversation id does not match an active conversation")
            return None
        session_keys = self._session_keys.get(row.conversation_id)
        keys = ExchangedKeys(session_keys) if isinstance(session_keys, bytes) else session_keys
        if keys is not None and keys.valid_for not in (None, (True, row.from_service, row.to_service)):
            keys = None  # the keys were proven for another service or direction
        # An error as the first message creates no endpoint, so no key of its own could be sent back.
        own_key = None if keys is None or row.is_error else keys.session_key
        peer_key = None if keys is None else keys.far_session_key
        return make_dialog(
            DialogEndpoint(
                conversation_id=row.conversation_id,
                is_initiator=False,
                service_name=row.to_service,
                broker_instance=row.to_broker or NULL_GUID,
                far_service_name=row.from_service,
                far_broker_instance=row.from_broker,
                service_contract_name=row.contract,
                priority=row.priority,
                lifetime=row.lifetime,
                session_key=own_key or peer_key,
                far_session_key=None if own_key is None else peer_key,
                far_certificate=None if keys is None else keys.far_certificate,
                is_bound=True,
                far_peer=self._peer if keys is None else None,
            )
        )

    def _verify(self, row: EnvelopeRow, dialog: Dialog) -> bytes | None:
        """Returns the verified body; None, after logging, if the row is damaged or forged (P21, P22)."""
        if not row.is_well_formed:
            return self._corrupted(row, _MALFORMED, "the header is inconsistent")
        cipher = self._cipher_for(row, dialog)
        if cipher is None:
            if row.security != Protection.PLAIN:
                return self._corrupted(row, _BAD_SIGNATURE, "there is no key for the conversation")
            return row.body if row.has_valid_digest else self._corrupted(row, _BAD_SIGNATURE, "the header is damaged")
        if row.security == Protection.SIGNED and self._integrity == "compat":
            return row.body if row.has_valid_digest else self._corrupted(row, _BAD_SIGNATURE, "the header is damaged")
        if row.security != Protection.SEALED:
            return self._corrupted(row, _NOT_SEALED, "the conversation is secured and the fragment is not sealed")
        header = row.header
        if not cipher.verify_header(row.signature_input(header), row.header_signature):
            return self._corrupted(row, _BAD_SIGNATURE, "the header is damaged or forged")
        if row.is_sequenced:
            bound = row.to_broker is not None
            part = cipher.open(row.body, sequence=row.sequence, fragment=row.fragment, is_bound=bound, header=header)
        else:
            part = cipher.open_notice(row.body, header=header) if row.message_type is not None else b""
        if part is None:
            return self._corrupted(row, _BAD_SIGNATURE, "the fragment is damaged or forged")
        if not dialog.endpoint.is_bound:
            dialog.inbound_cipher = cipher  # verified, whether the batch is committed or not
        return part

    def _cipher_for(self, row: EnvelopeRow, dialog: Dialog) -> SecuredDirection | None:
        """Returns the cipher that opens a row; the peer's first answer may bring the peer's own key."""
        endpoint = dialog.endpoint
        session_keys = self._session_keys.get(endpoint.conversation_id)
        is_settled = endpoint.is_bound and row.from_broker == endpoint.far_broker_instance
        is_answer = endpoint.is_initiator and not is_settled and dialog.inbound_cipher is not None
        if not is_answer or not isinstance(session_keys, ExchangedKeys):
            return dialog.inbound_cipher
        if session_keys.valid_for not in (None, (False, endpoint.far_service_name, endpoint.service_name)):
            return dialog.inbound_cipher  # the keys were proven for another service or direction
        if dialog.key not in self._peer_keys:
            self._peer_keys[dialog.key] = (session_keys, make_inbound_cipher(dialog.key, session_keys.far_session_key))
        return self._peer_keys[dialog.key][1]

    def _is_misdirected(self, row: EnvelopeRow, dialog: Dialog) -> bool:
        """Returns whether a row must be dropped, and logs the reason: its broker id, services, contract or peer do not match the conversation, or its lifetime has expired."""
        endpoint = self._opened.bound.get(dialog.key, dialog.endpoint)
        if row.to_broker is not None and row.to_broker != endpoint.broker_instance:
            self._undeliverable(row, _WRONG_BROKER, "the broker id does not match")
        elif (row.to_service, row.from_service, row.contract) != (
            endpoint.service_name,
            endpoint.far_service_name,
            endpoint.service_contract_name,
        ):
            self._undeliverable(row, _WRONG_SERVICE, "services or contract do not match the conversation")
        elif endpoint.far_broker_instance is not None and row.from_broker != endpoint.far_broker_instance:
            self._undeliverable(row, _OTHER_COPY, "another copy of the service has already answered this conversation")
            if endpoint.is_initiator and (row.is_sequenced or row.acked_ahead is not None):
                text = "another copy of the service has already answered this conversation"
                self._opened.notices.append(ErrorNotice(dialog, row, -_ANSWERED_ELSEWHERE, text))
        elif endpoint.is_bound and endpoint.far_peer is not None and self._peer != endpoint.far_peer:
            self._undeliverable(row, _OTHER_COPY, "the conversation is bound to another certificate")
        elif endpoint.lifetime is not None and endpoint.lifetime <= self._now:
            self._undeliverable(row, _CLOSED, "the lifetime of the conversation has expired")
        else:
            return False
        return True

    def _bind(self, row: EnvelopeRow, dialog: Dialog) -> None:
        """Binds an endpoint to the broker id and peer of the first answer (R8, P25)."""
        endpoint = dialog.endpoint
        if (
            endpoint.is_bound
            or endpoint.key in self._opened.bound
            or not (row.is_sequenced or row.acked_ahead is not None)
        ):
            return
        bound = replace(endpoint, far_broker_instance=row.from_broker, is_bound=True)
        if endpoint.session_key is None:
            bound = replace(bound, far_peer=self._peer)  # a secured dialog is bound by its key
        elif endpoint.key in self._peer_keys:
            answer, _ = self._peer_keys[endpoint.key]
            bound = replace(bound, far_session_key=answer.far_session_key, far_certificate=answer.far_certificate)
        self._opened.bound[endpoint.key] = bound

    def _add_acknowledgement(self, row: EnvelopeRow, key: EndpointKey, runs: list[AckRange] | None) -> None:
        acked = -1 if row.acked is None else row.acked
        self._opened.acknowledgements.setdefault(key, []).append((acked, runs or []))

    def _corrupted(self, row: EnvelopeRow, error: int, text: str) -> bytes | None:
        sender, place = (row.conversation_id, row.is_initiator), (row.sequence, row.fragment)
        self._log.emit(_corrupted_event(sender, place, row.from_service, error, text, now=self._now, peer=self._peer))
        return None

    def _undeliverable(self, row: EnvelopeRow, error: int, text: str) -> None:
        self._log.emit(
            MessageUndeliverable(
                at=self._now,
                conversation_id=uuid.UUID(bytes=row.conversation_id),
                is_sequenced=row.is_sequenced,
                message_sequence_number=row.sequence,
                fragment_number=row.fragment,
                acked_sequence_number=row.acked,
                peer=self._peer,
                error=error,
                text=text,
            )
        )


def _corrupted_event(
    sender: EndpointKey,
    place: tuple[int, int],
    from_service: str,
    error: int,
    text: str,
    *,
    now: int,
    peer: bytes | None,
) -> CorruptedMessage:
    """Returns the event of a damaged or forged fragment; `place` is the number of its message, and its own."""
    conversation_id, is_initiator = sender
    return CorruptedMessage(
        at=now,
        conversation_id=uuid.UUID(bytes=conversation_id),
        is_initiator=is_initiator,
        message_sequence_number=place[0],
        fragment_number=place[1],
        from_service_name=from_service,
        peer=peer,
        error=error,
        text=text,
    )


class FastInboundRun(NamedTuple):
    """Consecutive messages of one conversation."""

    dialog: Dialog
    incoming: InboundDirection
    run: MessageRun
    body_bytes: int
    is_bound: bool
    """Whether the messages name their target broker."""
    acked: list[int]
    """The sequence numbers that they acknowledge; -1 for none yet."""


@dataclass(frozen=True, slots=True)
class FastInbound:
    """The part of a batch that takes the fast path.

    Attributes:
        rest: The other rows (`envelope.ENVELOPE`).
        runs: The runs.
        messages: Their messages (`storage.MESSAGES`), one run after another.
    """

    rest: pa.Table
    runs: list[FastInboundRun] = field(default_factory=list)
    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)

    @property
    def dialogs(self) -> list[Dialog]:
        """The receiving dialogs."""
        return [each.dialog for each in self.runs]


class _FoundRun(NamedTuple):
    """A run as the native code returns it."""

    conversation_id: bytes
    is_initiator: bool
    from_broker: bytes | None
    to_broker: bytes | None
    names: list[str]
    first: int
    rows: int
    body_bytes: int
    max_body_bytes: int
    acked: list[int]

    @property
    def key(self) -> EndpointKey:
        """The receiving endpoint."""
        return (self.conversation_id, not self.is_initiator)


class FastInboundFinder:
    """Finds the messages of a batch that can take the fast path."""

    __slots__ = ("_max_message_bytes", "_storage")

    def __init__(self, storage: DialogStorage, *, max_message_bytes: int) -> None:
        self._storage: Final = storage
        self._max_message_bytes: Final = max_message_bytes

    def find(
        self,
        table: pa.Table,
        known: Mapping[EndpointKey, Dialog],
        *,
        peer: bytes | None,
        session_keys: SessionKeys,
        now: int,
    ) -> FastInbound:
        """Splits a batch into runs for the fast path and other rows, without changing state.

        A run takes the fast path if its dialog is in memory, has no keys, is bound to the peer, has nothing pending and expects these
        messages next, and if all of them are valid.
        """
        found, run_of_row = _core.incoming_runs(table)
        taken: list[FastInboundRun | None] = []
        for candidate in map(_FoundRun._make, found):
            dialog = None if candidate.conversation_id in session_keys else known.get(candidate.key)
            taken.append(None if dialog is None else self._match(candidate, dialog, peer, now))
        runs = [run for run in taken if run is not None]
        if not runs:
            return FastInbound(table)
        if len(runs) == 1 and runs[0].run.rows == table.num_rows:
            rest, messages = NO_ROWS, _messages(table)
        else:
            rest, messages = _split_taken_runs(table, run_of_row, [run is not None for run in taken])
        contracts = [each.dialog.endpoint.service_contract_name for each in runs]
        kinds = {
            MessageKind(contract, not each.run.key[1], each.run.message_type_name)
            for contract, each in zip(contracts, runs, strict=True)
        }
        if not self._storage.accept_any_body(kinds):
            of_rows = [contract for contract, each in zip(contracts, runs, strict=True) for _ in range(each.run.rows)]
            if self._storage.validate(messages, of_rows):
                return FastInbound(table)
        return FastInbound(rest, runs, messages)

    def _match(self, found: _FoundRun, dialog: Dialog, peer: bytes | None, now: int) -> FastInboundRun | None:
        endpoint, incoming = dialog.endpoint, dialog.incoming
        to_service, from_service = endpoint.service_name, endpoint.far_service_name
        is_expected = (
            dialog.inbound_cipher is None
            and endpoint.is_bound
            and endpoint.far_broker_instance == found.from_broker
            and found.to_broker in (None, endpoint.broker_instance)
            and found.names[:-1] == [from_service, to_service, endpoint.service_contract_name]
            and endpoint.far_peer in (None, peer)
            and (endpoint.lifetime is None or endpoint.lifetime > now)
            and found.max_body_bytes <= self._max_message_bytes
            and found.first + found.rows - 1 <= SEQUENCE_MAX
        )
        if not is_expected or incoming is None or incoming.pending or incoming.next != found.first:
            return None
        run = MessageRun(found.key, found.first, found.rows, found.names[-1])
        return FastInboundRun(dialog, incoming, run, found.body_bytes, found.to_broker is not None, found.acked)


def _split_taken_runs(
    table: pa.Table, run_of_row: pa.Int32Array, is_taken_run: list[bool]
) -> tuple[pa.Table, pa.Table]:
    """Returns the rows outside the taken runs, in order, and the messages of the taken runs, one run after another."""
    number = -1
    numbers = [number]  # -1 marks rows that belong to no run
    for is_taken in is_taken_run:
        number += is_taken
        numbers.append(number if is_taken else -1)
    places: Any = pc.add(run_of_row, 1)
    ranks: Any = pa.array(numbers, pa.int32()).take(places)
    order: Any = pc.array_sort_indices(ranks)  # a stable sort
    left: int = pc.sum(pc.equal(ranks, pa.scalar(-1, pa.int32()))).as_py()
    rest = table.take(order[:left]) if left else table.schema.empty_table()
    return rest, _messages(table).take(order[left:])


def _messages(table: pa.Table) -> pa.Table:
    """Returns whole messages among rows of `ENVELOPE` as `MESSAGES`."""
    return pa.Table.from_arrays([table[name] for name in MESSAGES.names], schema=MESSAGES)


_DIGEST_BYTES: Final = 16
_CORRUPT: Final = ("corrupt_fragment", "corrupt_message")
_REJECTION_TEXTS: Final = {
    LIMIT_EXCEEDED: "the fragment exceeds a limit of this instance: its message is larger than max_message_bytes, or too far ahead of the "
    "next expected one, or too much is waiting (max_pending_bytes)",
    CONFLICT: "the fragment contradicts an earlier fragment of its message",
}


@dataclass(slots=True)
class DueAcknowledgement:
    """What a batch makes a dialog acknowledge.

    Attributes:
        fragments: How many fragments were received.
        bytes: How many bytes were received.
        is_immediate: Whether the sender waits for the acknowledgement, or sent something again (P18).
    """

    fragments: int = 0
    bytes: int = 0
    is_immediate: bool = False


@dataclass(slots=True)
class ReceivedBatch:
    """The result of receiving a batch.

    Attributes:
        messages: The messages to enqueue (`storage.MESSAGES`).
        stored: The fragments to store (`storage.STORED_FRAGMENTS`).
        received: The new receive sequence number of each endpoint.
        dropped: Messages whose stored fragments do not match their digest.
        due_acknowledgements: What to acknowledge for each endpoint.
        notices: The errors to send back.
        dialogs_to_reload: Dialogs whose receive state has to be reloaded, because a message was refused.
        refusals: The reason of the refusal, by endpoint.
    """

    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)
    stored: pa.Table = field(default_factory=lambda: NO_FRAGMENTS)
    received: dict[EndpointKey, int] = field(default_factory=dict)
    dropped: list[tuple[EndpointKey, int]] = field(default_factory=list)
    due_acknowledgements: dict[EndpointKey, DueAcknowledgement] = field(default_factory=dict)
    notices: list[ErrorNotice] = field(default_factory=list)
    dialogs_to_reload: list[Dialog] = field(default_factory=list)
    refusals: dict[EndpointKey, Refusal] = field(default_factory=dict)

    def add_fast(self, fast: FastInbound) -> None:
        """Adds the fast path's messages before the others, and advances the receive state of their dialogs."""
        if not fast.runs:
            return
        self.messages = (
            pa.concat_tables([fast.messages, self.messages.cast(MESSAGES)]) if self.messages.num_rows else fast.messages
        )
        for each in fast.runs:
            number = each.run.first + each.run.rows
            each.incoming.advance_to(number)
            self.received[each.run.key] = number
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
        """Receives fragments from a peer and updates the receive state of their dialogs; `DirectionLoader.unload` reverts that."""
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
                result.received.setdefault(key, incoming.next)
        self._loader.account(dialogs)
        return result

    def _with_digests(
        self, fresh: Sequence[tuple[Dialog, EnvelopeRow, bytes]], now: int, peer: bytes | None
    ) -> list[OpenedFragment]:
        """Returns fragments with digests instead of signatures; a secured message must have a signature (P21)."""
        parts: list[OpenedFragment] = []
        secured: dict[EndpointKey, list[tuple[OpenedFragment, EnvelopeRow]]] = {}
        for dialog, row, body in fresh:
            incoming, message_type = dialog.incoming, row.message_type
            # Both are set: the state is loaded, and the row is a verified message.
            if incoming is None or message_type is None:
                continue
            kind = (message_type, row.message_id, row.is_end, row.is_error)
            digests = (row.message_signature, row.fragment_signature)
            part = OpenedFragment(incoming, row.sequence, row.fragment, row.count, body, *digests, kind)
            if dialog.inbound_cipher is not None:
                signatures = digests if row.security == Protection.SIGNED and row.count > 1 else digests[:1]
                if any(signature is None or len(signature) != _DIGEST_BYTES for signature in signatures):
                    self._emit_corrupted(dialog, part, "a signature is missing", now, peer)
                    continue
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
                owed.is_immediate = True
            elif reason in _CORRUPT:
                self._emit_corrupted(dialog, part, "the content does not match its signature", now, peer)
            else:
                self._emit_undeliverable(dialog, part, reason, now, peer)
        result.dropped += assembled.dropped

    def _release(self, assembled: AssemblyResult, dialogs: Mapping[EndpointKey, Dialog], result: ReceivedBatch) -> None:
        """Sets the messages and fragments of the result; after a refused message, everything else of its dialog is omitted."""
        messages = assembled.messages
        stopped: dict[EndpointKey, int] = {}
        if messages.num_rows:
            of_each = [dialogs[conversation_id, not side] for conversation_id, side in sender_keys(messages)]
            refusals = self._storage.validate(messages, [dialog.endpoint.service_contract_name for dialog in of_each])
            if refusals:
                messages = self._stop_at_refusals(messages, of_each, refusals, result, stopped)
        result.messages = messages
        result.stored = stored_fragment_table([part for part in assembled.to_store if part.incoming.key not in stopped])
        for key, sequence in stopped.items():
            result.received[key] = sequence

    @staticmethod
    def _reply_to_broken(
        assembled: AssemblyResult, dialogs: Mapping[EndpointKey, Dialog], result: ReceivedBatch
    ) -> None:
        """Notifies the sender of every message that arrives for a broken conversation."""
        for dialog in [dialogs[key] for key in assembled.broken]:
            result.received[dialog.key] = 0 if dialog.incoming is None else dialog.incoming.next
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
        self._log.emit(_corrupted_event(part.sender, place, service, _BAD_SIGNATURE, text, now=now, peer=peer))


def _new_fragments(
    opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]], owed_of: dict[EndpointKey, DueAcknowledgement]
) -> Iterator[tuple[Dialog, EnvelopeRow, bytes]]:
    """Yields fragments that have not arrived before, and records what to acknowledge for all of them."""
    seen: set[tuple[EndpointKey, int, int]] = set()
    for item in opened:
        dialog, row, body = item
        incoming = dialog.incoming
        if incoming is None:  # always loaded by the caller
            continue
        owed = owed_of.setdefault(dialog.key, DueAcknowledgement())
        place = (dialog.key, row.sequence, row.fragment)
        if row.sequence < incoming.next or (row.sequence, row.fragment) in incoming.ranges or place in seen:
            owed.is_immediate = True
            continue
        owed.is_immediate |= row.to_broker is None
        seen.add(place)
        owed.fragments += 1
        owed.bytes += len(body)
        yield item


def _decrypt_digests(dialog: Dialog, rows: Sequence[tuple[OpenedFragment, EnvelopeRow]]) -> None:
    """Decrypts the signatures of a secured dialog into digests; a sealed fragment needs none, because its seal is verified."""
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


_ACKNOWLEDGED_UNSENT: Final = 28010
_STEPS: Final = {
    (True, True): AcknowledgementStep.MESSAGE_WITH_ACK_SENT,
    (True, False): AcknowledgementStep.ACK_SENT,
    (False, True): AcknowledgementStep.MESSAGE_WITH_ACK_RECEIVED,
    (False, False): AcknowledgementStep.ACK_RECEIVED,
}


def emit_acknowledgements(log: EventLog, table: pa.Table, *, is_sent: bool, now: int) -> None:
    """Emits an event for each acknowledgement in a batch, if anything subscribes to them."""
    if not log.wants(RemoteMessageAcknowledgement):
        return
    for row in table_to_rows(table):
        if row.acked_ahead is not None:
            log.emit(
                RemoteMessageAcknowledgement(
                    at=now,
                    conversation_id=uuid.UUID(bytes=row.conversation_id),
                    step=_STEPS[is_sent, row.is_sequenced],
                    acked_sequence_number=row.acked,
                    carrier_sequence_number=row.sequence if row.is_sequenced else None,
                    carrier_fragment_number=row.fragment if row.is_sequenced else None,
                    priority=row.priority,
                )
            )


def false_acknowledgement_event(
    key: EndpointKey, acked: int, now: int, *, peer: bytes | None = None
) -> MessageUndeliverable:
    """Returns the event of an acknowledgement that names unsent messages; `acked` is -1 for no message."""
    return MessageUndeliverable(
        at=now,
        conversation_id=uuid.UUID(bytes=key[0]),
        is_sequenced=False,
        acked_sequence_number=None if acked < 0 else acked,
        peer=peer,
        error=_ACKNOWLEDGED_UNSENT,
        text="the peer acknowledged messages that were not sent",
    )


def undeliverable_event(key: EndpointKey, why: Refusal, now: int, *, peer: bytes | None = None) -> MessageUndeliverable:
    """Returns the event of a first message that its service refuses."""
    conversation = uuid.UUID(bytes=key[0])
    return MessageUndeliverable(at=now, conversation_id=conversation, peer=peer, error=-why.code, text=why.description)


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """The changes of a batch.

    Attributes:
        changes: The changes to write.
        opened: The verified content, apart from the fast path.
        fast: The part that takes the fast path.
        received: The result of reassembly.
        acknowledged: The acknowledgements, limited to what was sent.
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
    """Plans the changes of received batches."""

    __slots__ = ("_log", "_receiver", "_storage")

    def __init__(self, storage: DialogStorage, receiver: BatchReceiver, log: EventLog) -> None:
        self._storage = storage
        self._receiver = receiver
        self._log = log

    def plan(
        self, opened: OpenedBatch, fast: FastInbound, known: Mapping[EndpointKey, Dialog], now: int
    ) -> ReceivePlan:
        """Plans a batch; the receive state of its dialogs is changed already."""
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
        """Lets the services of new conversations admit them; the messages of refused conversations are removed."""
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
        """Returns the acknowledgements, limited to what was sent; false ones are logged."""
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
        created = [key for key in opened.created if not (key in refused and received.received.get(key) == 0)]
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
            received={key: number for key, number in received.received.items() if key not in discarded},
            dropped=tuple(received.dropped),
            acknowledged={key: acked for key, acked in reached.items() if acked > known[key].transmission.acked},
            errors={key: body for key, body in opened.errors.items() if key in known},
            refusals={key: why for key, why in received.refusals.items() if key not in discarded},
            lost_by_peer=tuple(key for key, each in acknowledged.items() if _has_lost_messages(known[key], each)),
            runs=tuple(each.run for each in fast.runs),
        )


def _has_lost_messages(dialog: Dialog, acknowledgements: list[tuple[int, list[AckRange]]]) -> bool:
    """Returns whether the peer has lost messages that it acknowledged before; False if an error has ended the dialog."""
    forgets = dialog.transmission.shows_data_loss
    return not dialog.ended_with_error and any(forgets(*acknowledgement) for acknowledgement in acknowledgements)
