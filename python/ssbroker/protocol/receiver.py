"""Receives envelopes: verifies, decrypts, classifies, reassembles, acknowledges."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.protocol.config import Integrity
from ssbroker.protocol.dialog import Dialog, InboundDirection, OpenedFragment, dialog_of, inbound_of
from ssbroker.protocol.envelope import (
    NULL_GUID,
    SEQUENCE_MAX,
    AckRange,
    EnvelopeRow,
    Protection,
    table_to_rows,
    unpack_ack_ranges,
)
from ssbroker.protocol.events import (
    AcknowledgementStep,
    CorruptedMessage,
    EventLog,
    MessageUndeliverable,
    RemoteMessageAcknowledgement,
)
from ssbroker.protocol.reassembly import Assembler, AssemblyResult, DirectionLoader, senders_of, stored_table
from ssbroker.protocol.storage import (
    MESSAGES,
    NO_FRAGMENTS,
    NO_MESSAGES,
    BatchChanges,
    DialogEndpoint,
    DialogStorage,
    ExchangedKeys,
    Key,
    MessageRun,
    Refusal,
    SessionKeys,
)
from ssbroker.security import SecuredDirection

_ANSWERED_ELSEWHERE: Final = 8495
GONE: Final = 8462
_MALFORMED: Final = 11271
_UNSIGNED: Final = 11230
_UNSECURED: Final = 11231
_UNKNOWN: Final = 11209
_CLOSED: Final = 11212
_NOT_THE_ENDPOINTS: Final = 11222
_NOT_HERE: Final = 11220
_ELSEWHERE: Final = 11224


@dataclass(frozen=True, slots=True)
class ErrorNotice:
    """An error of the broker that is to be sent (P11): not kept, since whoever it is for tries again.

    Attributes:
        dialog: The endpoint that says it; None where there is none.
        row: The fragment that it answers, where another than the endpoint's far side sent it.
        code: Service Broker's number, negative.
        text: What it means.
    """

    dialog: Dialog | None
    row: EnvelopeRow | None
    code: int
    text: str


@dataclass(slots=True)
class OpenedBatch:
    """What a batch holds.

    Attributes:
        peer: Who handed it over.
        messages: Fragments that were opened, with their dialogs.
        acknowledgements: What the far sides have, by endpoint, in the order of arrival.
        errors: Errors of far brokers.
        created: Dialogs that begin here with this batch.
        bound: Endpoints as they are now that the far side has answered.
        notices: What is answered.
    """

    peer: bytes | None
    messages: list[tuple[Dialog, EnvelopeRow, bytes]] = field(default_factory=list)
    acknowledgements: dict[Key, list[tuple[int, list[AckRange]]]] = field(default_factory=dict)
    errors: dict[Key, bytes] = field(default_factory=dict)
    created: dict[Key, Dialog] = field(default_factory=dict)
    bound: dict[Key, DialogEndpoint] = field(default_factory=dict)
    notices: list[ErrorNotice] = field(default_factory=list)

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs of its messages."""
        return [dialog for dialog, _, _ in self.messages]


class RowOpener:
    """Judges rows by what is known of their endpoints.

    Args:
        dialogs: The endpoints of the batch, as far as there are any.
        session_keys: Keys of conversations that begin with this batch, or are answered for the first time, by conversation id.
        integrity: What is demanded of secured dialogs (P22).
        peer: Who handed the batch over.
        now: The moment.
        log: Where damaged and misled rows are told of.
    """

    def __init__(
        self,
        dialogs: Mapping[Key, Dialog],
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
        self._answers: dict[Key, tuple[ExchangedKeys, SecuredDirection]] = {}

    def open(self, rows: list[EnvelopeRow]) -> OpenedBatch:
        """Opens a batch.

        Args:
            rows: The rows.

        Returns:
            What they hold; what is damaged, forged or misled is left out and told of.
        """
        for row in rows:
            self._take(row)
        return self._opened

    def _take(self, row: EnvelopeRow) -> None:
        key = (row.conversation_id, not row.is_initiator)
        dialog = self._dialogs.get(key) or self._opened.created.get(key)
        is_new = dialog is None
        if dialog is None:
            dialog = self._beginning(row)
            if dialog is None:
                return
        body = self._proven(row, dialog)
        if body is None:
            return
        if self._is_misled(row, dialog):
            return
        if is_new:
            self._opened.created[key] = dialog
        else:
            self._bind(row, dialog)
        if row.acked_ahead is not None:
            self._acknowledged(row, key, unpack_ack_ranges(row.acked_ahead))
        if row.is_sequenced:
            self._opened.messages.append((dialog, row, body))
        elif row.message_type is not None:
            self._opened.errors[key] = body

    def _beginning(self, row: EnvelopeRow) -> Dialog | None:
        """The endpoint that the first fragments of a conversation make at the target."""
        if not row.is_initiator:
            # Nobody has the key of a conversation that is gone, so only who needs no proof can be told.
            if row.security == Protection.PLAIN and row.is_sequenced and row.has_valid_digest:
                self._opened.notices.append(
                    ErrorNotice(None, row, -GONE, "the remote endpoint of the conversation no longer exists")
                )
            self._undeliverable(row, _UNKNOWN, "the conversation id does not match an active conversation")
            return None
        if not row.is_sequenced:
            self._undeliverable(row, _UNKNOWN, "the conversation id does not match an active conversation")
            return None
        given = self._session_keys.get(row.conversation_id)
        keys = ExchangedKeys(given) if isinstance(given, bytes) else given
        if keys is not None and keys.valid_for not in (None, (True, row.from_service, row.to_service)):
            keys = None  # whoever was proven to send something else is nobody here
        # Where the first that is heard of a conversation is its error, no endpoint is made, with which a key would go.
        own = None if keys is None or row.is_error else keys.session_key
        far = None if keys is None else keys.far_session_key
        return dialog_of(
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
                session_key=own or far,
                far_session_key=None if own is None else far,
                far_certificate=None if keys is None else keys.far_certificate,
                is_bound=True,
                far_peer=self._peer if keys is None else None,
            )
        )

    def _proven(self, row: EnvelopeRow, dialog: Dialog) -> bytes | None:
        """The part, if header and part are what the far side sent; else it is told of and dropped (P21, P22)."""
        if not row.is_well_formed:
            return self._corrupted(row, _MALFORMED, "the header contradicts itself")
        secured = self._inbound(row, dialog)
        if secured is None:
            if row.security != Protection.PLAIN:
                return self._corrupted(row, _UNSIGNED, "there is no key for the conversation")
            return row.body if row.has_valid_digest else self._corrupted(row, _UNSIGNED, "the header is damaged")
        if row.security == Protection.SIGNED and self._integrity == "compat":
            return row.body if row.has_valid_digest else self._corrupted(row, _UNSIGNED, "the header is damaged")
        if row.security != Protection.SEALED:
            return self._corrupted(row, _UNSECURED, "the conversation is secured and the fragment is not sealed")
        header = row.header
        if not secured.verify_header(row.signature_input(header), row.header_signature):
            return self._corrupted(row, _UNSIGNED, "the header is damaged or forged")
        if row.is_sequenced:
            bound = row.to_broker is not None
            part = secured.open(row.body, sequence=row.sequence, fragment=row.fragment, is_bound=bound, header=header)
        else:
            part = secured.open_notice(row.body, header=header) if row.message_type is not None else b""
        if part is None:
            return self._corrupted(row, _UNSIGNED, "the part is damaged or forged")
        if not dialog.endpoint.is_bound:
            dialog.inbound = secured  # proven now, whether the batch is committed or not
        return part

    def _inbound(self, row: EnvelopeRow, dialog: Dialog) -> SecuredDirection | None:
        """What opens a row: by the far side's own key, where that came with its first answer, or with that of another copy."""
        endpoint = dialog.endpoint
        given = self._session_keys.get(endpoint.conversation_id)
        is_settled = endpoint.is_bound and row.from_broker == endpoint.far_broker_instance
        is_answer = endpoint.is_initiator and not is_settled and dialog.inbound is not None
        if not is_answer or not isinstance(given, ExchangedKeys):
            return dialog.inbound
        if given.valid_for not in (None, (False, endpoint.far_service_name, endpoint.service_name)):
            return dialog.inbound  # the owner of another service, or of the other direction, answers for nobody here
        if dialog.key not in self._answers:
            self._answers[dialog.key] = (given, inbound_of(dialog.key, given.far_session_key))
        return self._answers[dialog.key][1]

    def _is_misled(self, row: EnvelopeRow, dialog: Dialog) -> bool:
        """Whether the row is for another copy of the service, from another one, or for nobody any more."""
        endpoint = self._opened.bound.get(dialog.key, dialog.endpoint)
        if row.to_broker is not None and row.to_broker != endpoint.broker_instance:
            self._undeliverable(row, _NOT_HERE, "the broker id is another one")
        elif (row.to_service, row.from_service, row.contract) != (
            endpoint.service_name,
            endpoint.far_service_name,
            endpoint.service_contract_name,
        ):
            self._undeliverable(row, _NOT_THE_ENDPOINTS, "services or contract are not those of the conversation")
        elif endpoint.far_broker_instance is not None and row.from_broker != endpoint.far_broker_instance:
            self._undeliverable(row, _ELSEWHERE, "another copy of the service has already answered this conversation")
            if endpoint.is_initiator and (row.is_sequenced or row.acked_ahead is not None):
                text = "another copy of the service has already answered this conversation"
                self._opened.notices.append(ErrorNotice(dialog, row, -_ANSWERED_ELSEWHERE, text))
        elif endpoint.is_bound and endpoint.far_peer is not None and self._peer != endpoint.far_peer:
            self._undeliverable(row, _ELSEWHERE, "the conversation is bound to another certificate")
        elif endpoint.lifetime is not None and endpoint.lifetime <= self._now:
            self._undeliverable(row, _CLOSED, "the lifetime of the conversation has expired")
        else:
            return False
        return True

    def _bind(self, row: EnvelopeRow, dialog: Dialog) -> None:
        """The first answer of the far side settles its broker id and its peer (R8, P25)."""
        endpoint = dialog.endpoint
        if (
            endpoint.is_bound
            or endpoint.key in self._opened.bound
            or not (row.is_sequenced or row.acked_ahead is not None)
        ):
            return
        bound = replace(endpoint, far_broker_instance=row.from_broker, is_bound=True)
        if endpoint.session_key is None:
            bound = replace(bound, far_peer=self._peer)  # N17: a secured dialog is bound by its key
        elif endpoint.key in self._answers:
            answer, _ = self._answers[endpoint.key]
            bound = replace(bound, far_session_key=answer.far_session_key, far_certificate=answer.far_certificate)
        self._opened.bound[endpoint.key] = bound

    def _acknowledged(self, row: EnvelopeRow, key: Key, runs: list[AckRange] | None) -> None:
        acked = -1 if row.acked is None else row.acked
        self._opened.acknowledgements.setdefault(key, []).append((acked, runs or []))

    def _corrupted(self, row: EnvelopeRow, error: int, text: str) -> bytes | None:
        self._log.emit(
            CorruptedMessage(
                at=self._now,
                conversation_id=uuid.UUID(bytes=row.conversation_id),
                is_initiator=row.is_initiator,
                message_sequence_number=row.sequence,
                fragment_number=row.fragment,
                from_service_name=row.from_service,
                peer=self._peer,
                error=error,
                text=text,
            )
        )
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


class FastInboundRun(NamedTuple):
    """Messages of one conversation, one number behind the other."""

    dialog: Dialog
    incoming: InboundDirection
    run: MessageRun
    body_bytes: int
    is_bound: bool
    """Whether they name the broker that they are for."""


@dataclass(frozen=True, slots=True)
class FastInbound:
    """What of a batch is plain.

    Attributes:
        runs: The runs.
        messages: Their messages (`ledger.MESSAGES`), run behind run.
        rest: The rows that are left (`envelope.ENVELOPE`).
    """

    rest: pa.Table
    runs: list[FastInboundRun] = field(default_factory=list)
    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs that they are for."""
        return [each.dialog for each in self.runs]


class _Found(NamedTuple):
    """A run as it was found."""

    conversation_id: bytes
    is_initiator: bool
    from_broker: bytes | None
    to_broker: bytes | None
    names: list[str]
    first: int
    rows: int
    body_bytes: int
    longest: int

    @property
    def key(self) -> Key:
        """The endpoint that it is for."""
        return (self.conversation_id, not self.is_initiator)


class FastInboundFinder:
    """Finds what is plain in batches.

    Args:
        ledger: What judges messages.
        max_message_bytes: The largest message.
    """

    __slots__ = ("_ledger", "_max_message_bytes")

    def __init__(self, ledger: DialogStorage, *, max_message_bytes: int) -> None:
        self._ledger: Final = ledger
        self._max_message_bytes: Final = max_message_bytes

    def take(
        self, table: pa.Table, known: Mapping[Key, Dialog], *, peer: bytes | None, session_keys: SessionKeys, now: int
    ) -> FastInbound:
        """Takes what is plain. Nothing is changed by it.

        Args:
            table: The rows (`envelope.ENVELOPE`).
            known: The dialogs in memory.
            peer: Who handed them over.
            session_keys: Keys that came with them, by conversation id.
            now: The moment.

        Returns:
            The runs whose dialogs are in memory, have no keys, are bound to where they come from, have nothing that waits, and expect just them;
            all of it is left where one of their messages cannot be taken.
        """
        found, of_rows = _core.incoming_runs(table)
        taken: list[FastInboundRun | None] = []
        for each in map(_Found._make, found):
            dialog = None if each.conversation_id in session_keys else known.get(each.key)
            taken.append(None if dialog is None else self._run(each, dialog, peer, now))
        runs = [run for run in taken if run is not None]
        if not runs:
            return FastInbound(table)
        rest, messages = _parted(table, of_rows, [run is not None for run in taken])
        contracts: list[str] = []
        for run in runs:
            contracts += [run.dialog.endpoint.service_contract_name] * run.run.rows
        if self._ledger.validate(messages, contracts):
            return FastInbound(table)
        return FastInbound(rest, runs, messages)

    def _run(self, found: _Found, dialog: Dialog, peer: bytes | None, now: int) -> FastInboundRun | None:
        endpoint, incoming = dialog.endpoint, dialog.incoming
        to_service, from_service = endpoint.service_name, endpoint.far_service_name
        is_expected = (
            dialog.inbound is None
            and endpoint.is_bound
            and endpoint.far_broker_instance == found.from_broker
            and found.to_broker in (None, endpoint.broker_instance)
            and found.names[:-1] == [from_service, to_service, endpoint.service_contract_name]
            and endpoint.far_peer in (None, peer)
            and (endpoint.lifetime is None or endpoint.lifetime > now)
            and found.longest <= self._max_message_bytes
            and found.first + found.rows - 1 <= SEQUENCE_MAX
        )
        if not is_expected or incoming is None or incoming.early or incoming.next != found.first:
            return None
        run = MessageRun(found.key, found.first, found.rows, found.names[-1])
        return FastInboundRun(dialog, incoming, run, found.body_bytes, found.to_broker is not None)


def _parted(table: pa.Table, of_rows: pa.Int32Array, are_taken: list[bool]) -> tuple[pa.Table, pa.Table]:
    """The rows that are in no run that is taken, in their order; and the messages of the others, run behind run."""
    number = -1
    numbers = [number]  # of rows in no run, which have -1
    for is_taken in are_taken:
        number += is_taken
        numbers.append(number if is_taken else -1)
    places: Any = pc.add(of_rows, 1)
    ranks: Any = pa.array(numbers, pa.int32()).take(places)
    order: Any = pc.array_sort_indices(ranks)  # a stable one
    left: int = pc.sum(pc.equal(ranks, pa.scalar(-1, pa.int32()))).as_py()
    rest = table.take(order[:left]) if left else table.schema.empty_table()
    columns = pa.Table.from_arrays([table[name] for name in MESSAGES.names], schema=MESSAGES)
    return rest, columns.take(order[left:])


_DIGEST_BYTES: Final = 16
_CORRUPT: Final = ("corrupt_fragment", "corrupt_message")


@dataclass(slots=True)
class DueAcknowledgement:
    """What a batch makes a dialog owe to its sender.

    Attributes:
        fragments: How many fragments were taken.
        bytes: And how many bytes.
        at_once: Whether the sender waits for the acknowledgement, or asks for it again (P18).
    """

    fragments: int = 0
    bytes: int = 0
    at_once: bool = False


@dataclass(slots=True)
class ReceivedBatch:
    """What came of a batch.

    Attributes:
        messages: The messages that enter their queues (`ledger.MESSAGES`).
        stored: The fragments that are kept (`ledger.STORED`).
        received: The new receive sequence of endpoints.
        dropped: Stored fragments of messages whose whole does not match.
        owed: What is owed to the senders.
        notices: What is answered to messages that cannot be taken.
        unloaded: Dialogs that have to be read back, since a message of theirs was refused.
        refused: Why, by endpoint.
    """

    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)
    stored: pa.Table = field(default_factory=lambda: NO_FRAGMENTS)
    received: dict[Key, int] = field(default_factory=dict)
    dropped: list[tuple[Key, int]] = field(default_factory=list)
    owed: dict[Key, DueAcknowledgement] = field(default_factory=dict)
    notices: list[ErrorNotice] = field(default_factory=list)
    unloaded: list[Dialog] = field(default_factory=list)
    refused: dict[Key, Refusal] = field(default_factory=dict)

    def join(self, plain: FastInbound) -> None:
        """Takes in what is plain, before what came of the others; the directions go on.

        Args:
            plain: What is plain, of other endpoints.
        """
        if not plain.runs:
            return
        self.messages = pa.concat_tables([plain.messages, self.messages.cast(MESSAGES)])
        for each in plain.runs:
            number = each.run.first + each.run.rows
            each.incoming.reach(number)
            self.received[each.run.key] = number
            self.owed[each.run.key] = DueAcknowledgement(each.run.rows, each.body_bytes, at_once=not each.is_bound)


class BatchReceiver:
    """Puts opened fragments together.

    Args:
        ledger: What judges messages.
        loading: Has the directions in memory.
        assembly: Puts their parts together.
        log: Where what is refused is told of.
    """

    __slots__ = ("_assembly", "_ledger", "_loading", "_log")

    def __init__(self, ledger: DialogStorage, loading: DirectionLoader, assembly: Assembler, log: EventLog) -> None:
        self._ledger = ledger
        self._loading = loading
        self._assembly = assembly
        self._log = log

    def take(
        self, opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]], *, begun: Mapping[Key, Dialog], now: int
    ) -> ReceivedBatch:
        """Takes fragments in.

        Args:
            opened: The fragments, with their dialogs.
            begun: Dialogs that begin with this batch.
            now: The moment.

        Returns:
            What came of them. The directions are changed; `Loading.unload` takes that back.
        """
        result = ReceivedBatch()
        dialogs = {dialog.key: dialog for dialog, _, _ in opened}
        self._loading.load(dialogs, begun=begun)
        before = {key: dialog.incoming.next for key, dialog in dialogs.items() if dialog.incoming is not None}
        parts = self._digested(list(_fresh(opened, result.owed)), now)
        if parts:
            assembled = self._assembly.push(parts)
            self._refused(assembled, dialogs, result, now)
            self._released(assembled, dialogs, result)
            self._answered(assembled, dialogs, result)
        for key, dialog in dialogs.items():
            incoming = dialog.incoming
            if incoming is not None and incoming.next != before[key]:
                result.received.setdefault(key, incoming.next)
        self._loading.weigh(dialogs)
        return result

    def _digested(self, fresh: Sequence[tuple[Dialog, EnvelopeRow, bytes]], now: int) -> list[OpenedFragment]:
        """The fragments with digests instead of signatures; in a secured dialog, the signature of the message has to be there (P21)."""
        parts: list[OpenedFragment] = []
        secured: dict[Key, list[tuple[OpenedFragment, EnvelopeRow]]] = {}
        for dialog, row, body in fresh:
            incoming, message_type = dialog.incoming, row.message_type
            if incoming is None or message_type is None:  # both are there: loaded, and proven to be a message
                continue
            kind = (message_type, row.message_id, row.is_end, row.is_error)
            digests = (row.message_signature, row.fragment_signature)
            part = OpenedFragment(incoming, row.sequence, row.fragment, row.count, body, *digests, kind)
            if dialog.inbound is not None:
                signatures = digests if row.security == Protection.SIGNED and row.count > 1 else digests[:1]
                if any(signature is None or len(signature) != _DIGEST_BYTES for signature in signatures):
                    self._corrupted(dialog, part, "a signature is missing", now)
                    continue
                secured.setdefault(dialog.key, []).append((part, row))
            parts.append(part)
        by_key = {dialog.key: dialog for dialog, _, _ in fresh} if secured else {}
        for key, rows in secured.items():
            _decrypt(by_key[key], rows)
        return parts

    def _refused(
        self, assembled: AssemblyResult, dialogs: Mapping[Key, Dialog], result: ReceivedBatch, now: int
    ) -> None:
        for part, reason in assembled.rejected:
            dialog = dialogs[part.incoming.key]
            owed = result.owed.setdefault(dialog.key, DueAcknowledgement())
            if reason == "duplicate":
                owed.at_once = True
            elif reason in _CORRUPT:
                self._corrupted(dialog, part, "the content does not match its signature", now)
            else:
                self._undelivered(dialog, part, reason, now)
        result.dropped += assembled.forgotten

    def _released(self, assembled: AssemblyResult, dialogs: Mapping[Key, Dialog], result: ReceivedBatch) -> None:
        """Messages and kept fragments; from a message on that cannot be taken, nothing of its dialog (B11)."""
        messages = assembled.messages
        stopped: dict[Key, int] = {}
        if messages.num_rows:
            of_each = [dialogs[conversation_id, not side] for conversation_id, side in senders_of(messages)]
            refusals = self._ledger.validate(messages, [dialog.endpoint.service_contract_name for dialog in of_each])
            if refusals:
                messages = self._stopped(messages, of_each, refusals, result, stopped)
        result.messages = messages
        result.stored = stored_table([part for part in assembled.kept if part.incoming.key not in stopped])
        for key, sequence in stopped.items():
            result.received[key] = sequence

    @staticmethod
    def _answered(assembled: AssemblyResult, dialogs: Mapping[Key, Dialog], result: ReceivedBatch) -> None:
        """Whoever has sent a broken conversation a message is told, as often as it comes (N31)."""
        for dialog in [dialogs[key] for key in assembled.broken]:
            result.received[dialog.key] = 0 if dialog.incoming is None else dialog.incoming.next
            result.unloaded.append(dialog)
            result.notices.append(
                ErrorNotice(dialog, None, -GONE, "the remote endpoint of the conversation accepts no more messages")
            )

    @staticmethod
    def _stopped(
        messages: pa.Table,
        dialogs: Sequence[Dialog],
        refusals: Mapping[int, Refusal],
        result: ReceivedBatch,
        stopped: dict[Key, int],
    ) -> pa.Table:
        sequences: list[Any] = messages["message_sequence_number"].to_pylist()
        stays: list[bool] = []
        for row, (dialog, sequence) in enumerate(zip(dialogs, sequences, strict=True)):
            key = dialog.key
            refusal = refusals.get(row)
            if refusal is not None and key not in stopped:
                stopped[key] = sequence
                result.unloaded.append(dialog)
                result.refused[key] = refusal
                result.notices.append(ErrorNotice(dialog, None, refusal.code, refusal.description))
            stays.append(key not in stopped)
        return messages.filter(pa.array(stays, pa.bool_()))

    def _undelivered(self, dialog: Dialog, part: OpenedFragment, reason: str, now: int) -> None:
        self._log.emit(
            MessageUndeliverable(
                at=now,
                conversation_id=uuid.UUID(bytes=dialog.endpoint.conversation_id),
                message_sequence_number=part.sequence,
                fragment_number=part.fragment,
                text=reason,
            )
        )

    def _corrupted(self, dialog: Dialog, part: OpenedFragment, text: str, now: int) -> None:
        endpoint = dialog.endpoint
        self._log.emit(
            CorruptedMessage(
                at=now,
                conversation_id=uuid.UUID(bytes=endpoint.conversation_id),
                is_initiator=not endpoint.is_initiator,
                message_sequence_number=part.sequence,
                fragment_number=part.fragment,
                from_service_name=endpoint.far_service_name,
                peer=endpoint.far_peer,
                text=text,
            )
        )


def _fresh(
    opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]], owed_of: dict[Key, DueAcknowledgement]
) -> Iterator[tuple[Dialog, EnvelopeRow, bytes]]:
    """What is not there already; what is owed for all of it is noted."""
    there: set[tuple[Key, int, int]] = set()
    for item in opened:
        dialog, row, body = item
        incoming = dialog.incoming
        if incoming is None:  # it is loaded
            continue
        owed = owed_of.setdefault(dialog.key, DueAcknowledgement())
        place = (dialog.key, row.sequence, row.fragment)
        if row.sequence < incoming.next or (row.sequence, row.fragment) in incoming.runs or place in there:
            owed.at_once = True
            continue
        owed.at_once |= row.to_broker is None
        there.add(place)
        owed.fragments += 1
        owed.bytes += len(body)
        yield item


def _decrypt(dialog: Dialog, rows: Sequence[tuple[OpenedFragment, EnvelopeRow]]) -> None:
    """Puts digests into the parts of a secured dialog. A sealed part needs no digest of its own: its seal has proven it."""
    secured = dialog.inbound
    if secured is None:
        return
    signatures = [row.message_signature or b"" for _, row in rows]
    digests = secured.message_digests([part.sequence for part, _ in rows], signatures)
    for (part, _), digest in zip(rows, digests, strict=True):
        part.message_digest = digest
        part.fragment_digest = None
    signed = [
        (part, row) for part, row in rows if row.security == Protection.SIGNED and row.fragment_signature is not None
    ]
    if signed:
        digests = secured.fragment_digests(
            [(part.sequence, part.fragment, part.count) for part, _ in signed],
            [row.message_signature or b"" for _, row in signed],
            [row.fragment_signature or b"" for _, row in signed],
        )
        for (part, _), digest in zip(signed, digests, strict=True):
            part.fragment_digest = digest


_BEYOND: Final = 28010
_STEPS: Final = {
    (True, True): AcknowledgementStep.MESSAGE_WITH_ACK_SENT,
    (True, False): AcknowledgementStep.ACK_SENT,
    (False, True): AcknowledgementStep.MESSAGE_WITH_ACK_RECEIVED,
    (False, False): AcknowledgementStep.ACK_RECEIVED,
}


def tell_acknowledgements(log: EventLog, table: pa.Table, *, is_sent: bool, now: int) -> None:
    """Tells of the acknowledgements in a batch, if anybody listens.

    Args:
        log: Who is told.
        table: The batch (`envelope.ENVELOPE`).
        is_sent: Whether it goes out.
        now: The moment.

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> tell_acknowledgements(EventLog(), ENVELOPE.empty_table(), is_sent=True, now=0)
    """
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


def false_acknowledgement(key: Key, acked: int, now: int, *, peer: bytes | None = None) -> MessageUndeliverable:
    """The event of an acknowledgement that names what was not sent.

    Args:
        key: The endpoint that it is for.
        acked: What it names, -1 for no message.
        now: The moment.
        peer: Who handed it over.

    Returns:
        The event.

    Examples:
        >>> false_acknowledgement((bytes(16), True), 7, 0).error
        28010
    """
    return MessageUndeliverable(
        at=now,
        conversation_id=uuid.UUID(bytes=key[0]),
        is_sequenced=False,
        acked_sequence_number=None if acked < 0 else acked,
        peer=peer,
        error=_BEYOND,
        text="the peer acknowledged messages that were not sent",
    )


def undeliverable(key: Key, why: Refusal, now: int, *, peer: bytes | None = None) -> MessageUndeliverable:
    """The event of a first message for a service that does not take it now.

    Args:
        key: The endpoint that it would make.
        why: Why.
        now: The moment.
        peer: Who handed it over.

    Returns:
        The event.

    Examples:
        >>> undeliverable((bytes(16), False), Refusal(-28013, "the broker of the database is disabled", notifies_sender=False), 0).error
        28013
    """
    conversation = uuid.UUID(bytes=key[0])
    return MessageUndeliverable(at=now, conversation_id=conversation, peer=peer, error=-why.code, text=why.description)


Acknowledged: TypeAlias = dict[Key, list[tuple[int, list[AckRange]]]]
"""What far sides have: for each endpoint, up to which number, and what beyond."""


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """What a batch changes.

    Attributes:
        effects: What has to be written.
        opened: What the batch held, but for what is plain.
        plain: What is plain.
        received: What came of its messages.
        acknowledged: What its acknowledgements are believed to say.
    """

    changes: BatchChanges
    opened: OpenedBatch
    plain: FastInbound
    received: ReceivedBatch
    acknowledged: Acknowledged

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs whose directions have gone on."""
        return [*self.plain.dialogs, *self.opened.dialogs]


class ReceivePlanner:
    """Makes plans.

    Args:
        ledger: Who admits conversations.
        receiving: What puts fragments together.
        log: Where false acknowledgements are told of.
    """

    __slots__ = ("_ledger", "_log", "_receiving")

    def __init__(self, ledger: DialogStorage, receiving: BatchReceiver, log: EventLog) -> None:
        self._ledger = ledger
        self._receiving = receiving
        self._log = log

    def plan(self, opened: OpenedBatch, plain: FastInbound, known: Mapping[Key, Dialog], now: int) -> ReceivePlan:
        """Plans a batch.

        Args:
            opened: What it holds, but for what is plain.
            plain: What is plain.
            known: The endpoints.
            now: The moment.

        Returns:
            The plan. The directions that are received have gone on already.
        """
        self._admit(opened, now)
        received = self._receiving.take(opened.messages, begun=opened.created, now=now)
        received.join(plain)
        acknowledged = self._acknowledged(opened, known, now)
        effects = self._effects(opened, plain, received, acknowledged, known, now)
        return ReceivePlan(effects, opened, plain, received, acknowledged)

    def _admit(self, opened: OpenedBatch, now: int) -> None:
        """Has the services of new conversations looked at; where one does not take its conversation, nothing of that is taken (B11)."""
        if not opened.created:
            return
        asked = list(opened.created.values())
        refused: set[Key] = set()
        for dialog, answer in zip(asked, self._ledger.admit([each.endpoint for each in asked]), strict=True):
            if isinstance(answer, Refusal):
                del opened.created[dialog.key]
                refused.add(dialog.key)
                if answer.notifies_sender:
                    dialog.answers_unmade()
                    opened.notices.append(ErrorNotice(dialog, None, answer.code, answer.description))
                else:
                    self._log.emit(undeliverable(dialog.key, answer, now, peer=opened.peer))
            else:
                dialog.endpoint = answer
        if refused:
            opened.messages = [message for message in opened.messages if message[0].key not in refused]

    def _acknowledged(self, opened: OpenedBatch, known: Mapping[Key, Dialog], now: int) -> Acknowledged:
        """The acknowledgements, as far as they name what was sent; the others are told of (fact 84)."""
        good: Acknowledged = {}
        for key, acknowledgements in opened.acknowledgements.items():
            dialog = known.get(key)
            for acknowledgement in acknowledgements:
                believed = (-1, []) if dialog is None else dialog.transmission.believed(*acknowledgement)
                if believed != acknowledgement:
                    self._log.emit(false_acknowledgement(key, acknowledgement[0], now, peer=opened.peer))
                if dialog is not None:
                    good.setdefault(key, []).append(believed)
        return good

    @staticmethod
    def _effects(
        opened: OpenedBatch,
        plain: FastInbound,
        received: ReceivedBatch,
        acknowledged: Acknowledged,
        known: Mapping[Key, Dialog],
        now: int,
    ) -> BatchChanges:
        refused = {dialog.key for dialog in received.unloaded}
        begun = [key for key in opened.created if not (key in refused and received.received.get(key) == 0)]
        gone = opened.created.keys() - begun
        for key in gone:
            opened.created[key].answers_unmade()
        reached = {key: max(acked for acked, _ in each) for key, each in acknowledged.items()}
        return BatchChanges(
            at=now,
            created=tuple(opened.created[key].endpoint for key in begun),
            bound=tuple(opened.bound.values()),
            messages=received.messages,
            stored=received.stored,
            received={key: number for key, number in received.received.items() if key not in gone},
            dropped=tuple(received.dropped),
            acknowledged={key: acked for key, acked in reached.items() if acked > known[key].transmission.acked},
            errors={key: body for key, body in opened.errors.items() if key in known},
            refusals={key: why for key, why in received.refused.items() if key not in gone},
            lost_by_peer=tuple(key for key, each in acknowledged.items() if _is_forgotten(known[key], each)),
            runs=tuple(each.run for each in plain.runs),
        )


def _is_forgotten(dialog: Dialog, acknowledgements: list[tuple[int, list[AckRange]]]) -> bool:
    """Whether the far side has lost what it had acknowledged; who has ended with an error has dropped it as well."""
    forgets = dialog.transmission.is_forgotten
    return not dialog.has_ended and any(forgets(*acknowledgement) for acknowledgement in acknowledgements)
