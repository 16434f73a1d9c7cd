"""What arrives, row by row: verified, opened and told apart, before anything is changed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ssbroker.protocol.acknowledgement import Run, unpacked
from ssbroker.protocol.dialog import Dialog, dialog_of, inbound_of
from ssbroker.protocol.envelope import ABSENT, Security
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.events import CorruptedMessage, MessageUndeliverable
from ssbroker.protocol.ledger import Endpoint, Exchanged, Key, SessionKeys
from ssbroker.protocol.rows import Row
from ssbroker.protocol.settings import Integrity
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
class Notice:
    """An error of the broker that is to be sent (P11): not kept, since whoever it is for tries again.

    Attributes:
        dialog: The endpoint that says it; None where there is none.
        row: The fragment that it answers, where another than the endpoint's far side sent it.
        code: Service Broker's number, negative.
        text: What it means.
    """

    dialog: Dialog | None
    row: Row | None
    code: int
    text: str


@dataclass(slots=True)
class Opened:
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
    messages: list[tuple[Dialog, Row, bytes]] = field(default_factory=list)
    acknowledgements: dict[Key, list[tuple[int, list[Run]]]] = field(default_factory=dict)
    errors: dict[Key, bytes] = field(default_factory=dict)
    created: dict[Key, Dialog] = field(default_factory=dict)
    bound: dict[Key, Endpoint] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs of its messages."""
        return [dialog for dialog, _, _ in self.messages]


class Opener:
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
        self._opened = Opened(peer)
        self._answers: dict[Key, tuple[Exchanged, SecuredDirection]] = {}

    def open(self, rows: list[Row]) -> Opened:
        """Opens a batch.

        Args:
            rows: The rows.

        Returns:
            What they hold; what is damaged, forged or misled is left out and told of.
        """
        for row in rows:
            self._take(row)
        return self._opened

    def _take(self, row: Row) -> None:
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
        if row.ahead is not None:
            self._acknowledged(row, key, unpacked(row.ahead))
        if row.is_sequenced:
            self._opened.messages.append((dialog, row, body))
        elif row.message_type is not None:
            self._opened.errors[key] = body

    def _beginning(self, row: Row) -> Dialog | None:
        """The endpoint that the first fragments of a conversation make at the target."""
        if not row.is_initiator:
            # Nobody has the key of a conversation that is gone, so only who needs no proof can be told.
            if row.security == Security.PLAIN and row.is_sequenced and row.is_digested:
                self._opened.notices.append(Notice(None, row, -GONE, "the far end of the conversation is gone"))
            self._undeliverable(row, _UNKNOWN, "the conversation is not one that goes on here")
            return None
        if not row.is_sequenced:
            self._undeliverable(row, _UNKNOWN, "the conversation is not one that goes on here")
            return None
        given = self._session_keys.get(row.conversation_id)
        keys = Exchanged(given) if isinstance(given, bytes) else given
        if keys is not None and keys.of not in (None, (True, row.from_service, row.to_service)):
            keys = None  # whoever was proven to send something else is nobody here
        # Where the first that is heard of a conversation is its error, no endpoint is made, with which a key would go.
        own = None if keys is None or row.is_error else keys.session_key
        far = None if keys is None else keys.far_session_key
        return dialog_of(
            Endpoint(
                conversation_id=row.conversation_id,
                is_initiator=False,
                service_name=row.to_service,
                broker_instance=row.to_broker or ABSENT,
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

    def _proven(self, row: Row, dialog: Dialog) -> bytes | None:
        """The part, if header and part are what the far side sent; else it is told of and dropped (P21, P22)."""
        if not row.is_well_formed:
            return self._corrupted(row, _MALFORMED, "the header contradicts itself")
        secured = self._inbound(row, dialog)
        if secured is None:
            if row.security != Security.PLAIN:
                return self._corrupted(row, _UNSIGNED, "there is no key for the conversation")
            return row.body if row.is_digested else self._corrupted(row, _UNSIGNED, "the header is damaged")
        if row.security == Security.SIGNED and self._integrity == "compat":
            return row.body if row.is_digested else self._corrupted(row, _UNSIGNED, "the header is damaged")
        if row.security != Security.SEALED:
            return self._corrupted(row, _UNSECURED, "the conversation is secured and the fragment is not sealed")
        header = row.header
        if not secured.is_signed(row.signed(header), row.signature):
            return self._corrupted(row, _UNSIGNED, "the header is damaged or forged")
        if row.is_sequenced:
            bound = row.to_broker is not None
            part = secured.opened(row.body, sequence=row.sequence, fragment=row.fragment, is_bound=bound, header=header)
        else:
            part = secured.opened_notice(row.body, header=header) if row.message_type is not None else b""
        if part is None:
            return self._corrupted(row, _UNSIGNED, "the part is damaged or forged")
        if not dialog.endpoint.is_bound:
            dialog.inbound = secured  # proven now, whether the batch is committed or not
        return part

    def _inbound(self, row: Row, dialog: Dialog) -> SecuredDirection | None:
        """What opens a row: by the far side's own key, where that came with its first answer, or with that of another copy."""
        endpoint = dialog.endpoint
        given = self._session_keys.get(endpoint.conversation_id)
        is_settled = endpoint.is_bound and row.from_broker == endpoint.far_broker_instance
        is_answer = endpoint.is_initiator and not is_settled and dialog.inbound is not None
        if not is_answer or not isinstance(given, Exchanged):
            return dialog.inbound
        if given.of not in (None, (False, endpoint.far_service_name, endpoint.service_name)):
            return dialog.inbound  # the owner of another service, or of the other direction, answers for nobody here
        if dialog.key not in self._answers:
            self._answers[dialog.key] = (given, inbound_of(dialog.key, given.far_session_key))
        return self._answers[dialog.key][1]

    def _is_misled(self, row: Row, dialog: Dialog) -> bool:
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
            self._undeliverable(row, _ELSEWHERE, "another copy of the service has answered this conversation already")
            if endpoint.is_initiator and (row.is_sequenced or row.ahead is not None):
                text = "another copy of the service has answered this conversation already"
                self._opened.notices.append(Notice(dialog, row, -_ANSWERED_ELSEWHERE, text))
        elif endpoint.is_bound and endpoint.far_peer is not None and self._peer != endpoint.far_peer:
            self._undeliverable(row, _ELSEWHERE, "the conversation is bound to another certificate")
        elif endpoint.lifetime is not None and endpoint.lifetime <= self._now:
            self._undeliverable(row, _CLOSED, "the lifetime of the conversation has passed")
        else:
            return False
        return True

    def _bind(self, row: Row, dialog: Dialog) -> None:
        """The first answer of the far side settles its broker id and its peer (R8, P25)."""
        endpoint = dialog.endpoint
        if endpoint.is_bound or endpoint.key in self._opened.bound or not (row.is_sequenced or row.ahead is not None):
            return
        bound = replace(endpoint, far_broker_instance=row.from_broker, is_bound=True)
        if endpoint.session_key is None:
            bound = replace(bound, far_peer=self._peer)  # N17: a secured dialog is bound by its key
        elif endpoint.key in self._answers:
            answer, _ = self._answers[endpoint.key]
            bound = replace(bound, far_session_key=answer.far_session_key, far_certificate=answer.far_certificate)
        self._opened.bound[endpoint.key] = bound

    def _acknowledged(self, row: Row, key: Key, runs: list[Run] | None) -> None:
        acked = -1 if row.acked is None else row.acked
        self._opened.acknowledgements.setdefault(key, []).append((acked, runs or []))

    def _corrupted(self, row: Row, error: int, text: str) -> bytes | None:
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

    def _undeliverable(self, row: Row, error: int, text: str) -> None:
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
