"""Session keys of dialogs that leave the instance: who is believed, with which certificate, and what waits for one (N19, N20)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from ssbroker._arguments import epoch_microseconds
from ssbroker._text import quoted
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.network.database_dialogs import PATIENCE
from ssbroker.broker.network.interfaces import (
    AcceptedDirection,
    FirstRow,
    KeyDecision,
    KeyOffer,
    KeyWait,
    RefusedDirection,
)
from ssbroker.broker.network.limits import RateLimiter
from ssbroker.broker.principals import may_send
from ssbroker.exceptions import StorageError
from ssbroker.security import key_exchange, keys
from ssbroker.security.key_exchange import DialogCertificate, Direction, KeyExchangeBlob, KeyOffers, KeyOpenings
from ssbroker.store import security as stored
from ssbroker.store import transmission_queue
from ssbroker.store.objects import Objects, Service
from ssbroker.store.security import Binding, Certificate

if TYPE_CHECKING:
    from ssbroker.protocol.storage import DialogEndpoint
    from ssbroker.store.endpoints import ConversationEndpoint


_NO_SESSION_KEY: Final = 28050
_NO_CONTEXT: Final = 11229
_NOT_VALID: Final = 11230
NEW_AT_ONCE: Final = 32
"""The new key exchange keys of one neighbour for which RSA is paid at once (N19); honest senders have one for an hour and a pair of certificates."""
NEW_PER_SECOND: Final = 32
"""And how many more in a second."""
NEW_IN_A_TURN: Final = 128
"""For how many of all neighbours together it is paid in one turn of the exchange."""


class DialogKeys:
    """Implements `hooks.KeyExchanges` with the certificates of the databases. For one thread at a time."""

    def __init__(self) -> None:
        self._offers: Final = KeyOffers()
        self._openings: Final = KeyOpenings()
        self._buckets: Final = RateLimiter(burst=NEW_AT_ONCE, per_second=NEW_PER_SECOND)
        self._left = NEW_IN_A_TURN

    def start_round(self) -> None:
        """See `KeyExchanges`."""
        self._left = NEW_IN_A_TURN

    def prepare_sending(self, database: DatabaseContext, endpoint: ConversationEndpoint) -> KeyDecision:
        """See `KeyExchanges`."""
        objects = database.objects()
        service = objects.services_by_id.get(endpoint.service_id)
        if service is None:  # it went meanwhile, and the conversation with it
            return KeyOffer()
        if not endpoint.is_initiator:
            return self._answered(database, objects, service, endpoint)
        if endpoint.is_bound or (endpoint.session_key is None and not endpoint.is_encrypted):
            return KeyOffer()
        binding = objects.security.by_service.get(endpoint.far_service)
        if binding is None:
            return _wait(
                f"there is no remote service binding for {quoted(endpoint.far_service)}. Make one: CREATE REMOTE SERVICE BINDING <name> "
                f"TO SERVICE '{endpoint.far_service}' WITH USER = <user>; or begin the dialog WITH ENCRYPTION = OFF."
            )
        return self._offered(database, objects, service, endpoint, binding)

    def accept_directions(
        self, database: DatabaseContext, first_rows: Sequence[FirstRow]
    ) -> Sequence[AcceptedDirection | RefusedDirection]:
        """See `KeyExchanges`."""
        objects = database.objects()
        return [
            self._begun(database, objects, first_row)
            if first_row.is_initiator
            else self._answer(database, objects, first_row)
            for first_row in first_rows
        ]

    def update_certificate(self, database: DatabaseContext, endpoint: DialogEndpoint, first_row: FirstRow) -> bool:
        """See `KeyExchanges`."""
        objects = database.objects()
        service = objects.services.get(endpoint.service_name)
        blob = None if first_row.key_exchange is None else key_exchange.parse_blob(first_row.key_exchange)
        if service is None or blob is None or blob.from_certificate in (None, endpoint.far_certificate):
            return False
        opened = self._opened(database, objects, first_row, blob.as_bytes, service)
        if isinstance(opened, RefusedDirection):
            return False
        key, sender = opened
        is_own = endpoint.far_session_key is not None and compare_digest(key, endpoint.far_session_key)
        if sender is None or not is_own or not may_send(objects, service, sender.fingerprint):
            return False
        with database.file.write(lock_timeout=PATIENCE) as connection:
            stored.set_remote_certificate(connection, endpoint.key, sender.fingerprint)
        return True

    def _offered(
        self,
        database: DatabaseContext,
        objects: Objects,
        service: Service,
        endpoint: ConversationEndpoint,
        binding: Binding,
    ) -> KeyDecision:
        to = _chosen(database, objects, binding.remote_principal_id, needs_key=False)
        if to is None:
            return _wait(
                f"the user of the remote service binding {quoted(binding.name)} has no certificate that holds now. Take in that of the "
                "owner of the service: CREATE CERTIFICATE <name> AUTHORIZATION <user> FROM FILE = '<file>';"
            )
        by = None
        if not binding.is_anonymous_on:
            by = _chosen(database, objects, service.principal_id, needs_key=True)
            if by is None:
                return _wait(_own_certificate(database, objects, service))
        key = endpoint.session_key
        if key is None:
            with database.file.write(lock_timeout=PATIENCE) as connection:
                key = stored.set_session_key_if_missing(connection, endpoint.endpoint_id, keys.new_master_key())
        return KeyOffer() if key is None else self._blob(database, service, endpoint, key, to, by)

    def _answered(
        self, database: DatabaseContext, objects: Objects, service: Service, endpoint: ConversationEndpoint
    ) -> KeyDecision:
        """What a target answers with: a key of its own, where it knows who asked (fact 177)."""
        key, print_of_far = endpoint.session_key, endpoint.far_certificate
        if key is None or print_of_far is None or endpoint.far_session_key is None:
            return KeyOffer()
        far = objects.security.by_fingerprint.get(print_of_far)
        by = _chosen(database, objects, service.principal_id, needs_key=True)
        if by is None and not _has_been_heard(database, endpoint):
            return _wait(_own_certificate(database, objects, service))
        if by is None or far is None:
            # Most often the initiator has the key already, and says no more. If not, it shows who it is again, by a certificate that is here.
            return KeyOffer(valid_until=epoch_microseconds(database.now()) + key_exchange.BLOB_RENEWAL_AGE)
        to = database.credentials.certificate(objects.security, far)
        return self._blob(database, service, endpoint, key, to, by)

    def _blob(
        self,
        database: DatabaseContext,
        service: Service,
        endpoint: ConversationEndpoint,
        key: bytes,
        to: DialogCertificate,
        by: DialogCertificate | None,
    ) -> KeyOffer:
        now = epoch_microseconds(database.now())
        of = Direction(endpoint.conversation_id, bool(endpoint.is_initiator), service.name, endpoint.far_service)
        blob = self._offers.make_blob(key, of, receiver=to, sender=by, now=now)
        return KeyOffer(blob, now + key_exchange.BLOB_RENEWAL_AGE)

    def _begun(
        self, database: DatabaseContext, objects: Objects, first_row: FirstRow
    ) -> AcceptedDirection | RefusedDirection:
        """A conversation that begins here."""
        service = objects.services.get(first_row.to_service_name)
        if service is None:  # routing and the ledger say so
            return AcceptedDirection()
        if first_row.key_exchange is None:
            return AcceptedDirection()
        opened = self._opened(database, objects, first_row, first_row.key_exchange, service)
        if isinstance(opened, RefusedDirection):
            return opened
        key, sender = opened
        if sender is None:
            return AcceptedDirection(key)
        # Who will be refused has to understand it, and knows its own key only.
        answer_key = keys.new_master_key() if may_send(objects, service, sender.fingerprint) else None
        return AcceptedDirection(key, answer_key, sender.fingerprint)

    def _answer(
        self, database: DatabaseContext, objects: Objects, first_row: FirstRow
    ) -> AcceptedDirection | RefusedDirection:
        """The first answer to a conversation that began here: it has to come from whom the binding names."""
        service = objects.services.get(first_row.to_service_name)
        if first_row.key_exchange is None or service is None:
            return AcceptedDirection()
        opened = self._opened(database, objects, first_row, first_row.key_exchange, service)
        if isinstance(opened, RefusedDirection):
            return opened
        key, sender = opened
        binding = objects.security.by_service.get(first_row.from_service_name)
        if sender is None or binding is None or sender.principal_id != binding.remote_principal_id:
            return RefusedDirection(_NO_CONTEXT, "the answer is not by the user of the remote service binding")
        return AcceptedDirection(key, None, sender.fingerprint)

    def _opened(
        self, database: DatabaseContext, objects: Objects, first_row: FirstRow, data: bytes, service: Service
    ) -> tuple[bytes, Certificate | None] | RefusedDirection:
        """The key that a blob carries, and by whose certificate; None for anonymous security."""
        blob = key_exchange.parse_blob(data)
        if blob is None:
            return RefusedDirection(_NOT_VALID, "what should bring a session key is of another form")
        now = database.now()
        row = objects.security.by_fingerprint.get(blob.to_certificate)
        if row is None or row.principal_id != service.principal_id:
            return RefusedDirection(
                _NO_CONTEXT, "the session key is under a certificate that the owner of the service does not have"
            )
        try:
            own = database.credentials.certificate(objects.security, row)
        except StorageError as error:  # the key of the instance is no reason for others to wait
            return RefusedDirection(
                _NO_CONTEXT, f"the private key of certificate {quoted(row.name)} cannot be opened: {error}"
            )
        if not own.has_key:
            return RefusedDirection(
                _NO_CONTEXT,
                f"the private key of certificate {quoted(row.name)} is not here, or the master key not open",
            )
        sender, by = _sender(database, objects, blob)
        if blob.from_certificate is not None and by is None:
            return RefusedDirection(
                _NO_CONTEXT,
                f"the sender's certificate is not here; by SHA-256 it is {blob.from_certificate.hex()}. Take it in: CREATE CERTIFICATE "
                "<name> AUTHORIZATION <user> FROM FILE = '<file>';",
            )
        for held, each in ((row, own), (sender, by)):
            if held is not None and each is not None and not each.is_valid(now):
                begins, ends = each.description.not_before, each.description.not_after
                return RefusedDirection(
                    _NO_CONTEXT,
                    f"certificate {quoted(held.name)} holds from {begins:%Y-%m-%d %H:%M:%S} to {ends:%Y-%m-%d %H:%M:%S} UTC, and not at "
                    "this moment",
                )
        of = Direction(
            first_row.conversation_id, first_row.is_initiator, first_row.from_service_name, first_row.to_service_name
        )
        at = epoch_microseconds(now)
        pays = partial(self._pays, first_row.principal, at)
        key = self._openings.open_blob(blob, of, receiver=own, sender=by, now=at, may_use_rsa=pays)
        if key is None:
            return RefusedDirection(
                _NOT_VALID,
                "the session key is forged, for another conversation, too old (are the clocks the same?), or one of too many new ones",
            )
        return key, sender

    def _pays(self, principal: str | None, now: int) -> bool:
        """Whether RSA is paid for a key that this neighbour brings; those without a principal are one."""
        if not self._left or not self._buckets.take(principal or "", now=now):
            return False
        self._left -= 1
        return True


def _sender(
    database: DatabaseContext, objects: Objects, blob: KeyExchangeBlob
) -> tuple[Certificate | None, DialogCertificate | None]:
    found = None if blob.from_certificate is None else objects.security.by_fingerprint.get(blob.from_certificate)
    return found, None if found is None else database.credentials.certificate(objects.security, found)


def _has_been_heard(database: DatabaseContext, endpoint: ConversationEndpoint) -> bool:
    """Whether something that an endpoint sent is no longer waiting, so that its far side has most likely the key."""
    first = database.file.query(
        lambda connection: transmission_queue.first_waiting_sequence(connection, endpoint.endpoint_id)
    )
    return endpoint.send_sequence > 0 and first != 0


def _chosen(
    database: DatabaseContext, objects: Objects, principal_id: int, *, needs_key: bool
) -> DialogCertificate | None:
    """The certificate of a user that dialogs begin with: of those that hold, the one that ends last (fact 180)."""
    now: datetime = database.now()
    held = (
        database.credentials.certificate(objects.security, row)
        for row in objects.security.certificates_of(principal_id)
        if row.is_active_for_begin_dialog
    )
    usable = [one for one in held if one.is_valid(now) and (one.has_key or not needs_key)]
    return max(usable, key=lambda one: one.description.not_after, default=None)


def _own_certificate(database: DatabaseContext, objects: Objects, service: Service) -> str:
    held = [one for one in objects.security.certificates_of(service.principal_id) if one.private_key is not None]
    if held and database.credentials.master_key(objects.security) is None:
        return (
            "the master key is not open, so no private key is: OPEN MASTER KEY DECRYPTION BY PASSWORD = '<password>';"
        )
    owner = next(one.name for one in objects.security.principals.values() if one.principal_id == service.principal_id)
    return (
        f"{quoted(owner)}, the owner of {quoted(service.name)}, has no certificate with a private key that holds now. Make one: CREATE "
        f"CERTIFICATE <name> AUTHORIZATION [{owner}] WITH SUBJECT = '<name>'; or have the dialog secured without it: ALTER REMOTE SERVICE "
        "BINDING <name> WITH ANONYMOUS = ON;"
    )


def _wait(why: str) -> KeyWait:
    return KeyWait(TransmissionStatus(_NO_SESSION_KEY, f"the dialog is to be secured, and {why}"))
