"""Verifies and decrypts the rows of a batch, and checks that they belong to their dialogs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from ssbroker.protocol.ack_ranges import AckRange, unpack_ack_ranges
from ssbroker.protocol.broker_errors import (
    ANSWERED_ELSEWHERE,
    ENDPOINT_GONE,
    LIFETIME_EXPIRED,
    NO_CONVERSATION,
    WRONG_BROKER,
    WRONG_SERVICE,
    error_text,
)
from ssbroker.protocol.dialog import Dialog, ErrorNotice, make_dialog, make_inbound_cipher
from ssbroker.protocol.envelope import NULL_GUID, EnvelopeRow, Protection
from ssbroker.protocol.events import EventLog, MessageUndeliverable
from ssbroker.protocol.row_events import BAD_SIGNATURE, corrupted_event
from ssbroker.protocol.settings import Integrity
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey, ExchangedKeys, SessionKeys
from ssbroker.security import SecuredDirection

_MALFORMED: Final = 11271
_NOT_SEALED: Final = 11231
_CLOSED: Final = 11212
_OTHER_COPY: Final = 11224
Acknowledgements: TypeAlias = dict[EndpointKey, list[tuple[int, list[AckRange]]]]
"""The acknowledgements for each endpoint: the last number received in order, and the ranges beyond it."""


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
        """The dialogs of the batch's messages."""
        return [dialog for dialog, _, _ in self.messages]


class RowOpener:
    """Verifies and decrypts the rows of a batch.

    Args:
        dialogs: The existing endpoints that the batch is for.
        session_keys: Keys of conversations that this batch creates or answers for the first time, by conversation id.
        integrity: The protection required of secured dialogs (P22).
        peer: The peer that delivered the batch.
        now: The current time, in microseconds since 1970.
        log: Receives events about damaged, forged and misdirected rows.
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
        """Returns the target endpoint that a row creates, as the first fragment of a conversation; None if the row creates no endpoint."""
        if not row.is_initiator:
            # The key of a deleted conversation is gone, so only an unsecured sender can be notified.
            if row.security == Protection.PLAIN and row.is_sequenced and row.has_valid_digest:
                self._opened.notices.append(ErrorNotice(None, row, -ENDPOINT_GONE, error_text(ENDPOINT_GONE)))
            self._undeliverable(row, NO_CONVERSATION, error_text(NO_CONVERSATION))
            return None
        if not row.is_sequenced:
            self._undeliverable(row, NO_CONVERSATION, error_text(NO_CONVERSATION))
            return None
        session_keys = self._session_keys.get(row.conversation_id)
        keys = ExchangedKeys(session_keys) if isinstance(session_keys, bytes) else session_keys
        if keys is not None and keys.valid_for not in (None, (True, row.from_service, row.to_service)):
            keys = None  # the keys were proven for another service or direction
        # An error as the first message creates no endpoint, so the endpoint's own key could not be sent back.
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
                return self._corrupted(row, BAD_SIGNATURE, "there is no key for the conversation")
            return row.body if row.has_valid_digest else self._corrupted(row, BAD_SIGNATURE, "the header is damaged")
        if row.security == Protection.SIGNED and self._integrity == "compat":
            return row.body if row.has_valid_digest else self._corrupted(row, BAD_SIGNATURE, "the header is damaged")
        if row.security != Protection.SEALED:
            return self._corrupted(row, _NOT_SEALED, "the conversation is secured, but the fragment is not sealed")
        header = row.header
        if not cipher.verify_header(row.signature_input(header), row.header_signature):
            return self._corrupted(row, BAD_SIGNATURE, "the header is damaged or forged")
        if row.is_sequenced:
            bound = row.to_broker is not None
            part = cipher.open(row.body, sequence=row.sequence, fragment=row.fragment, is_bound=bound, header=header)
        else:
            part = cipher.open_notice(row.body, header=header) if row.message_type is not None else b""
        if part is None:
            return self._corrupted(row, BAD_SIGNATURE, "the fragment is damaged or forged")
        if not dialog.endpoint.is_bound:
            dialog.inbound_cipher = cipher  # the key is verified, whether the batch is committed or not
        return part

    def _cipher_for(self, row: EnvelopeRow, dialog: Dialog) -> SecuredDirection | None:
        """Returns the cipher that opens a row; None if no key is known. The peer's first answer may contain the peer's own key."""
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
        """Returns whether a row must be dropped; if so, logs the reason.

        A row is dropped if its broker id, services, contract or peer do not match the conversation, or the lifetime of the conversation
        has expired.
        """
        endpoint = self._opened.bound.get(dialog.key, dialog.endpoint)
        if row.to_broker is not None and row.to_broker != endpoint.broker_instance:
            self._undeliverable(row, WRONG_BROKER, error_text(WRONG_BROKER))
        elif (row.to_service, row.from_service, row.contract) != (
            endpoint.service_name,
            endpoint.far_service_name,
            endpoint.service_contract_name,
        ):
            self._undeliverable(row, WRONG_SERVICE, error_text(WRONG_SERVICE))
        elif endpoint.far_broker_instance is not None and row.from_broker != endpoint.far_broker_instance:
            self._undeliverable(row, _OTHER_COPY, error_text(_OTHER_COPY))
            if endpoint.is_initiator and (row.is_sequenced or row.acked_ahead is not None):
                notice = ErrorNotice(dialog, row, -ANSWERED_ELSEWHERE, error_text(ANSWERED_ELSEWHERE))
                self._opened.notices.append(notice)
        elif endpoint.is_bound and endpoint.far_peer is not None and self._peer != endpoint.far_peer:
            self._undeliverable(row, _OTHER_COPY, "the conversation is bound to a different certificate")
        elif endpoint.lifetime is not None and endpoint.lifetime <= self._now:
            self._undeliverable(row, _CLOSED, error_text(LIFETIME_EXPIRED))
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
        self._log.emit(corrupted_event(sender, place, row.from_service, error, text, now=self._now, peer=self._peer))
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
