"""Prepares and verifies the session keys of dialogs with other instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker._text import bracketed, quoted
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.exceptions import StorageError
from ssbroker.protocol.envelope import Protection, sender_keys
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey, ExchangedKeys
from ssbroker.security import key_exchange, keys
from ssbroker.security.key_exchange import DialogCertificate, Direction, KeyExchangeBlob, KeyOffers, KeyOpenings
from ssbroker.store import conversation_endpoints, transmission_queue
from ssbroker.store.objects import Objects, Service
from ssbroker.store.security import Binding, Certificate

if TYPE_CHECKING:
    from ssbroker.store.conversation_endpoints import ConversationEndpoint


EXCHANGE_LOCK_TIMEOUT: Final = 0.25
"""Seconds that the exchange waits for the write lock of a database; it sends nothing meanwhile."""
_MASTER_KEY_CLOSED: Final = "the master key is not open, so no private key can be decrypted: OPEN MASTER KEY DECRYPTION BY PASSWORD = '<password>';"
_NO_SESSION_KEY: Final = 28050
_NO_CONTEXT: Final = 11229
_NOT_VALID: Final = 11230
RSA_BURST: Final = 32
"""The number of new keys from one peer that may be decrypted with RSA in a burst; honest senders use one key an hour per pair of certificates."""
RSA_PER_SECOND: Final = 32
"""The number of new keys per second from one peer after the burst."""
RSA_PER_TURN: Final = 128
"""The number of new keys from all peers together in one turn of the exchange."""


@dataclass(frozen=True, slots=True)
class KeyOffer:
    """The key exchange blob that an endpoint's messages carry.

    Attributes:
        key_exchange: The blob. Rows, acknowledgements and errors carry it until the peer has the key; None for no blob.
            The target has the initiator's key once the initiator's endpoint is bound; the initiator has the target's key
            once it has acknowledged a row.
        valid_until: When the offer expires and must be requested again, in microseconds since 1970; None for never. An
            offer that has no blob because none could be created also expires.
    """

    key_exchange: bytes | None = field(default=None, repr=False)
    valid_until: int | None = None


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first received row of a direction whose key is not known.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether the sender is the initiator.
        from_service_name: The sending service.
        from_broker_instance: The broker id of the sending database.
        to_service_name: The receiving service.
        to_broker_instance: The broker id that the row names, if any.
        security: How the row is protected (`envelope.Protection`).
        key_exchange: The blob in the row; None if there is none.
        principal: The principal of the peer that sent the row; None if connections are not encrypted.
    """

    conversation_id: bytes
    is_initiator: bool
    from_service_name: str
    from_broker_instance: bytes
    to_service_name: str
    to_broker_instance: bytes | None
    security: int
    key_exchange: bytes | None = field(repr=False)
    principal: str | None


@dataclass(frozen=True, slots=True)
class RefusedDirection:
    """A direction that is refused: a Message Undeliverable event is emitted here; the unauthenticated sender gets no reply.

    Attributes:
        error: Service Broker's error number.
        text: The text of the error.
    """

    error: int
    text: str


class DialogKeys:
    """Agrees on the session keys of dialogs, using the certificates of the databases. For one thread at a time."""

    def __init__(self) -> None:
        self._offers: Final = KeyOffers()
        self._openings: Final = KeyOpenings()
        self._limiter: Final = RateLimiter(burst=RSA_BURST, per_second=RSA_PER_SECOND)
        self._rsa_left = RSA_PER_TURN

    def start_round(self) -> None:
        """Starts a round of the exchange, which resets the limit of RSA operations for new keys."""
        self._rsa_left = RSA_PER_TURN

    def prepare_sending(
        self, database: DatabaseContext, endpoint: ConversationEndpoint
    ) -> KeyOffer | TransmissionStatus:
        """Returns the key exchange data for an endpoint's messages, or the status of the messages if they must wait.

        On return, a new key is durable in the endpoint's row. Called before an endpoint's first message, after an offer
        expires or the catalog changes, until the peer has the key, and after each restart.
        """
        objects = database.objects()
        service = objects.services_by_id.get(endpoint.service_id)
        if service is None:  # dropped meanwhile, together with the conversation
            return KeyOffer()
        if not endpoint.is_initiator:
            return self._target_offer(database, objects, service, endpoint)
        if endpoint.is_bound or (endpoint.session_key is None and not endpoint.is_encrypted):
            return KeyOffer()
        binding = objects.security.by_service.get(endpoint.far_service)
        if binding is None:
            return _key_wait(
                f"there is no remote service binding for {quoted(endpoint.far_service)}. Create one: CREATE REMOTE SERVICE BINDING <name> "
                f"TO SERVICE '{endpoint.far_service}' WITH USER = <user>; or begin the dialog WITH ENCRYPTION = OFF."
            )
        return self._initiator_offer(database, objects, service, endpoint, binding)

    def accept_directions(
        self, database: DatabaseContext, first_rows: Sequence[FirstRow]
    ) -> Sequence[ExchangedKeys | RefusedDirection | None]:
        """Opens the blobs of first rows; returns, for each row in order, the keys of its direction, or None if the direction is not encrypted.

        Called for each direction in a batch that has no endpoint yet, and for each direction with a blob whose endpoint has not been answered.
        """
        objects = database.objects()
        return [
            self._accept_initiator(database, objects, first_row)
            if first_row.is_initiator
            else self._accept_reply(database, objects, first_row)
            for first_row in first_rows
        ]

    def update_certificate(
        self, database: DatabaseContext, endpoint: DialogEndpoint, first_row: FirstRow, *, lock_timeout: float
    ) -> bool:
        """Checks whether a blob for an existing conversation contains the same key, signed with a different certificate of the sender.

        If so, the new certificate is durable on return, and replies use it.

        Returns:
            Whether the certificate changed.

        Raises:
            LockTimeoutError: The database file stayed locked by another writer for `lock_timeout` seconds.
        """
        objects = database.objects()
        service = objects.services.get(endpoint.service_name)
        blob = None if first_row.key_exchange is None else key_exchange.parse_blob(first_row.key_exchange)
        if service is None or blob is None or blob.from_certificate in (None, endpoint.far_certificate):
            return False
        opened = self._open_blob(database, objects, first_row, blob.as_bytes, service)
        if isinstance(opened, RefusedDirection):
            return False
        key, sender = opened
        is_own = endpoint.far_session_key is not None and compare_digest(key, endpoint.far_session_key)
        if (
            sender is None
            or not is_own
            or not objects.security.may_send(service.service_id, sender.fingerprint, owner=service.principal_id)
        ):
            return False
        with database.file.write(lock_timeout=lock_timeout) as connection:
            conversation_endpoints.set_remote_certificate(connection, endpoint.key, sender.fingerprint)
        return True

    def _initiator_offer(
        self,
        database: DatabaseContext,
        objects: Objects,
        service: Service,
        endpoint: ConversationEndpoint,
        binding: Binding,
    ) -> KeyOffer | TransmissionStatus:
        receiver = _certificate_for(database, objects, binding.remote_principal_id, needs_key=False)
        if receiver is None:
            return _key_wait(
                f"the user of the remote service binding {quoted(binding.name)} has no valid certificate. Import the certificate of the "
                "owner of the service: CREATE CERTIFICATE <name> AUTHORIZATION <user> FROM FILE = '<file>';"
            )
        sender_certificate = None
        if not binding.is_anonymous_on:
            sender_certificate = _certificate_for(database, objects, service.principal_id, needs_key=True)
            if sender_certificate is None:
                return _key_wait(_own_certificate(database, objects, service))
        key = endpoint.session_key
        if key is None:
            with database.file.write(lock_timeout=EXCHANGE_LOCK_TIMEOUT) as connection:
                key = conversation_endpoints.set_session_key_if_missing(connection, endpoint, keys.new_master_key())
        return KeyOffer() if key is None else self._blob(database, service, endpoint, key, receiver, sender_certificate)

    def _target_offer(
        self, database: DatabaseContext, objects: Objects, service: Service, endpoint: ConversationEndpoint
    ) -> KeyOffer | TransmissionStatus:
        """Returns the offer of a target: a key of its own, if the initiator has identified itself with a certificate."""
        key, fingerprint = endpoint.session_key, endpoint.far_certificate
        if key is None or fingerprint is None or endpoint.far_session_key is None:
            return KeyOffer()
        peer_certificate = objects.security.by_fingerprint.get(fingerprint)
        sender_certificate = _certificate_for(database, objects, service.principal_id, needs_key=True)
        if sender_certificate is None and not _was_acknowledged(database, endpoint):
            return _key_wait(_own_certificate(database, objects, service))
        if sender_certificate is None or peer_certificate is None:
            # The initiator usually has the key already. If not, it identifies itself again, with a certificate that
            # this database has.
            return KeyOffer(valid_until=database.instance.microseconds() + key_exchange.BLOB_RENEWAL_AGE)
        receiver = database.key_encryption.certificate(objects.security, peer_certificate)
        return self._blob(database, service, endpoint, key, receiver, sender_certificate)

    def _blob(
        self,
        database: DatabaseContext,
        service: Service,
        endpoint: ConversationEndpoint,
        key: bytes,
        receiver: DialogCertificate,
        sender_certificate: DialogCertificate | None,
    ) -> KeyOffer:
        now = database.instance.microseconds()
        of = Direction(endpoint.conversation_id, bool(endpoint.is_initiator), service.name, endpoint.far_service)
        blob = self._offers.make_blob(key, of, receiver=receiver, sender=sender_certificate, now=now)
        return KeyOffer(blob, now + key_exchange.BLOB_RENEWAL_AGE)

    def _accept_initiator(
        self, database: DatabaseContext, objects: Objects, first_row: FirstRow
    ) -> ExchangedKeys | RefusedDirection | None:
        """Checks the first row that the initiator of a conversation has sent; returns the exchanged keys, or why the row is refused.

        Returns None if the row contains no key or is addressed to a service that does not exist.
        """
        service = objects.services.get(first_row.to_service_name)
        if service is None:  # routing and the storage report this
            return None
        if first_row.key_exchange is None:
            return None
        opened = self._open_blob(database, objects, first_row, first_row.key_exchange, service)
        if isinstance(opened, RefusedDirection):
            return opened
        key, sender = opened
        if sender is None:
            return ExchangedKeys(key)
        # A sender that will be refused must be able to decrypt the refusal, and knows only its own key.
        answer_key = (
            keys.new_master_key()
            if objects.security.may_send(service.service_id, sender.fingerprint, owner=service.principal_id)
            else None
        )
        return ExchangedKeys(key, answer_key, sender.fingerprint)

    def _accept_reply(
        self, database: DatabaseContext, objects: Objects, first_row: FirstRow
    ) -> ExchangedKeys | RefusedDirection | None:
        """Checks the first reply to a conversation that this instance started: the sender must be the user that the binding names.

        Returns None if the reply contains no key or is addressed to a service that does not exist.
        """
        service = objects.services.get(first_row.to_service_name)
        if first_row.key_exchange is None or service is None:
            return None
        opened = self._open_blob(database, objects, first_row, first_row.key_exchange, service)
        if isinstance(opened, RefusedDirection):
            return opened
        key, sender = opened
        binding = objects.security.by_service.get(first_row.from_service_name)
        if sender is None or binding is None or sender.principal_id != binding.remote_principal_id:
            return RefusedDirection(_NO_CONTEXT, "the reply was not sent by the user of the remote service binding")
        return ExchangedKeys(key, None, sender.fingerprint)

    def _open_blob(
        self, database: DatabaseContext, objects: Objects, first_row: FirstRow, data: bytes, service: Service
    ) -> tuple[bytes, Certificate | None] | RefusedDirection:
        """Returns the key in a blob, and the sender's certificate, which is None for anonymous security; or the refusal."""
        blob = key_exchange.parse_blob(data)
        if blob is None:
            return RefusedDirection(_NOT_VALID, "the key exchange blob is malformed")
        now = database.now()
        row = objects.security.by_fingerprint.get(blob.to_certificate)
        if row is None or row.principal_id != service.principal_id:
            return RefusedDirection(
                _NO_CONTEXT,
                "the session key is encrypted for a certificate that the owner of the service does not have",
            )
        try:
            own = database.key_encryption.certificate(objects.security, row)
        except StorageError as error:  # the instance's key must not block other conversations
            return RefusedDirection(
                _NO_CONTEXT, f"the private key of the certificate {quoted(row.name)} cannot be decrypted: {error}"
            )
        if not own.has_key:
            why = (
                f"the certificate {quoted(row.name)} has no private key here. Import the key: ALTER CERTIFICATE "
                f"{bracketed(row.name)} WITH PRIVATE KEY (FILE = '<file>', DECRYPTION BY PASSWORD = '<password>');"
                if row.private_key is None
                else _MASTER_KEY_CLOSED
            )
            return RefusedDirection(_NO_CONTEXT, why)
        sender, sender_certificate = _sender(database, objects, blob)
        if blob.from_certificate is not None and sender_certificate is None:
            return RefusedDirection(
                _NO_CONTEXT,
                f"the sender's certificate is unknown; its SHA-256 fingerprint is {blob.from_certificate.hex()}. Import it: CREATE CERTIFICATE "
                "<name> AUTHORIZATION <user> FROM FILE = '<file>';",
            )
        for stored_certificate, certificate in ((row, own), (sender, sender_certificate)):
            if stored_certificate is not None and certificate is not None and not certificate.is_valid(now):
                begins, ends = certificate.description.not_before, certificate.description.not_after
                return RefusedDirection(
                    _NO_CONTEXT,
                    f"the certificate {quoted(stored_certificate.name)} is not valid now: it is valid from {begins:%Y-%m-%d %H:%M:%S} to "
                    f"{ends:%Y-%m-%d %H:%M:%S} UTC",
                )
        of = Direction(
            first_row.conversation_id, first_row.is_initiator, first_row.from_service_name, first_row.to_service_name
        )
        at = epoch_microseconds(now)
        may_use_rsa = partial(self._may_use_rsa, first_row.principal, at)
        key = self._openings.open_blob(
            blob, of, receiver=own, sender=sender_certificate, now=at, may_use_rsa=may_use_rsa
        )
        if key is None:
            return RefusedDirection(
                _NOT_VALID,
                "the session key is forged, belongs to another conversation, is too old (compare the clocks), or exceeds the limit for new keys",
            )
        return key, sender

    def _may_use_rsa(self, principal: str | None, now: int) -> bool:
        """Returns whether RSA may be used for a new key of this peer; peers without a principal share one limit."""
        if not self._rsa_left or not self._limiter.take(principal or "", now=now):
            return False
        self._rsa_left -= 1
        return True


def _sender(
    database: DatabaseContext, objects: Objects, blob: KeyExchangeBlob
) -> tuple[Certificate | None, DialogCertificate | None]:
    found = None if blob.from_certificate is None else objects.security.by_fingerprint.get(blob.from_certificate)
    return found, None if found is None else database.key_encryption.certificate(objects.security, found)


def _was_acknowledged(database: DatabaseContext, endpoint: ConversationEndpoint) -> bool:
    """Returns whether the remote endpoint has acknowledged a message, so that it most likely has the key."""
    first = database.file.query(
        lambda connection: transmission_queue.first_waiting_sequence(connection, endpoint.endpoint_id)
    )
    return endpoint.send_sequence > 0 and first != 0


def _certificate_for(
    database: DatabaseContext, objects: Objects, principal_id: int, *, needs_key: bool
) -> DialogCertificate | None:
    """Returns the certificate with which a user starts dialogs: the valid certificate that expires last; None if there is no valid one."""
    now: datetime = database.now()
    certificates = (
        database.key_encryption.certificate(objects.security, row)
        for row in objects.security.certificates_of(principal_id)
        if row.is_active_for_begin_dialog
    )
    usable = [each for each in certificates if each.is_valid(now) and (each.has_key or not needs_key)]
    return max(usable, key=lambda each: each.description.not_after, default=None)


def _own_certificate(database: DatabaseContext, objects: Objects, service: Service) -> str:
    with_key = [each for each in objects.security.certificates_of(service.principal_id) if each.private_key is not None]
    if with_key and database.key_encryption.master_key(objects.security) is None:
        return _MASTER_KEY_CLOSED
    owner = objects.security.principal_names[service.principal_id]
    return (
        f"{quoted(owner)}, the owner of {quoted(service.name)}, has no valid certificate with a private key. Create one: CREATE "
        f"CERTIFICATE <name> AUTHORIZATION [{owner}] WITH SUBJECT = '<name>'; or secure the dialog without it: ALTER REMOTE SERVICE "
        "BINDING <name> WITH ANONYMOUS = ON;"
    )


def _key_wait(why: str) -> TransmissionStatus:
    return TransmissionStatus(_NO_SESSION_KEY, f"the dialog cannot be secured: {why}")


class PendingKeyExchanges:
    """The key exchange blobs of one database's dialogs. For one thread at a time.

    Every row of an endpoint carries its blob, acknowledgements and errors included, until the remote endpoint has shown that it has the key:
    any row may be the first to arrive.
    """

    def __init__(self, database: DatabaseContext, keys: DialogKeys) -> None:
        self._database: Final = database
        self._keys: Final = keys
        self._offers: dict[EndpointKey, KeyOffer] = {}
        self._confirmed: set[EndpointKey] = set()

    def prepare(self, sender: ConversationEndpoint) -> TransmissionStatus | None:
        """Prepares the keys of an endpoint; returns the status that blocks its messages, if any."""
        key = (sender.conversation_id, bool(sender.is_initiator))
        if key in self._confirmed or key in self._offers:
            return None
        answer = self._keys.prepare_sending(self._database, sender)
        if isinstance(answer, TransmissionStatus):
            return answer
        self._store(key, answer)
        return None

    def has_blob(self, key: EndpointKey) -> bool:
        """Returns whether the rows of an endpoint carry a blob."""
        offer = self._offers.get(key)
        return offer is not None and offer.key_exchange is not None

    def key_exchange_column(self, rows: pa.Table, *, now: int) -> pa.Array[Any]:
        """Returns the column `key_exchange` for rows, some of which are secured."""
        levels: list[Any] = rows["security"].to_pylist()
        senders = list(sender_keys(rows))
        secured = {sender for sender, level in zip(senders, levels, strict=True) if level != Protection.PLAIN}
        self._renew([sender for sender in secured if not self._is_current(sender, now)])
        blobs = {sender: offer.key_exchange for sender in secured if (offer := self._offers.get(sender)) is not None}
        return pa.array([blobs.get(sender) for sender in senders], pa.binary())

    def confirm(self, keys: Iterable[EndpointKey]) -> None:
        """Records that remote endpoints have shown that they have the keys."""
        for key in keys:
            self._offers.pop(key, None)
            self._confirmed.add(key)

    def discard(self, keys: Iterable[EndpointKey]) -> None:
        """Discards blobs, because the certificates of the remote endpoints have changed."""
        for key in keys:
            self._offers.pop(key, None)

    def forget(self) -> None:
        """Discards all unconfirmed blobs, because the catalog has changed."""
        self._offers.clear()

    def retain(self, is_kept: Callable[[EndpointKey], bool]) -> None:
        """Removes the endpoints that are no longer in memory."""
        self._offers = {key: offer for key, offer in self._offers.items() if is_kept(key)}
        self._confirmed = {key for key in self._confirmed if is_kept(key)}

    def _is_current(self, key: EndpointKey, now: int) -> bool:
        if key in self._confirmed:
            return True
        offer = self._offers.get(key)
        return offer is not None and (offer.valid_until is None or now < offer.valid_until)

    def _renew(self, keys: list[EndpointKey]) -> None:
        if not keys:
            return
        with self._database.file.read() as connection:
            found = conversation_endpoints.by_sides(connection, keys)
        for key in keys:
            self._offers.pop(key, None)
            answer = KeyOffer() if key not in found else self._keys.prepare_sending(self._database, found[key])
            if isinstance(answer, KeyOffer):  # without a blob the remote endpoint rejects the row
                self._store(key, answer)

    def _store(self, key: EndpointKey, offer: KeyOffer) -> None:
        if offer == KeyOffer():
            self._confirmed.add(key)
        else:
            self._offers[key] = offer
