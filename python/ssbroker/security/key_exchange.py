"""Exchanges session keys of dialogs, using the certificates of users."""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import InputError
from ssbroker.security.certificates import (
    RSA_BITS_MIN,
    fingerprint,
    raise_input_error,
    read_certificate,
    read_key,
    to_der,
)
from ssbroker.security.keys import KEY_BYTES, new_master_key, open_with_key, seal_with_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import padding, rsa


CERTIFICATE_BYTES_MAX: Final = 32 * 1024
_RSA_BITS_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class CertificateDescription:
    """The properties of a certificate.

    Attributes:
        subject: The subject.
        issuer: The issuer.
        serial_number: The serial number, in hexadecimal digits.
        not_before: The start of the validity period.
        not_after: The end of the validity period.
        bits: The length of the key in bits.
    """

    subject: str
    issuer: str
    serial_number: str
    not_before: datetime
    not_after: datetime
    bits: int


class DialogCertificate:
    """A certificate for the exchange of session keys.

    Args:
        certificate: The certificate, in PEM or DER.
        key: The private key in PEM or DER, not encrypted; None for the certificate of a remote user.

    Raises:
        InputError: The certificate is invalid, its key is not RSA or too short, or the private key does not match.
        MissingDependencyError: The `cryptography` package is not installed.
    """

    __slots__ = ("_key", "_public", "der", "description", "fingerprint")

    def __init__(self, certificate: bytes, key: bytes | None = None) -> None:
        found = read_certificate(certificate)
        self.der = to_der(certificate)
        self.fingerprint = fingerprint(self.der)
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415 - imported only where it is needed

        with raise_input_error(
            "expected a certificate with an RSA key, which dialog security requires; the certificate cannot be read"
        ):
            public = found.public_key()
        if not isinstance(public, rsa.RSAPublicKey):
            raise InputError(
                f"expected a certificate with an RSA key, which dialog security requires, got {type(public).__name__}"
            )
        if public.key_size < RSA_BITS_MIN or public.key_size % _RSA_BITS_STEP:
            raise InputError(
                f"expected a key of at least {RSA_BITS_MIN} bits, a multiple of {_RSA_BITS_STEP}; got {public.key_size} bits"
            )
        if len(self.der) > CERTIFICATE_BYTES_MAX:
            raise InputError(
                f"expected a certificate of at most {CERTIFICATE_BYTES_MAX} bytes in DER, got {len(self.der)} bytes"
            )
        self._public: rsa.RSAPublicKey = public
        with raise_input_error("expected a certificate whose key can encrypt; encryption failed"):
            self.wrap(b"")
        with raise_input_error(
            "expected a certificate; its subject, issuer, serial number or validity period cannot be read"
        ):
            described = CertificateDescription(
                found.subject.rfc4514_string(),
                found.issuer.rfc4514_string(),
                f"{found.serial_number:x}",
                found.not_valid_before_utc,
                found.not_valid_after_utc,
                public.key_size,
            )
        self.description: Final = described
        self._key: rsa.RSAPrivateKey | None = None if key is None else self._load_key(key)

    def _load_key(self, key: bytes) -> rsa.RSAPrivateKey:
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415 - imported only where it is needed

        private = read_key(key)
        if not isinstance(private, rsa.RSAPrivateKey) or private.public_key() != self._public:
            raise InputError("expected the private key of the certificate, got the key of a different certificate")
        return private

    @property
    def thumbprint(self) -> bytes:
        """The SHA-1 thumbprint by which SQL Server identifies the certificate; not used for trust."""
        return hashlib.sha1(self.der, usedforsecurity=False).digest()

    @property
    def has_key(self) -> bool:
        """Whether the private key is available."""
        return self._key is not None

    def is_valid(self, now: datetime) -> bool:
        """Returns whether the certificate is valid at the given time."""
        return self.description.not_before <= now < self.description.not_after

    def wrap(self, key: bytes) -> bytes:
        """Encrypts a key with RSA-OAEP and SHA-256; only the owner of the private key can decrypt it."""
        return self._public.encrypt(key, _oaep())

    def unwrap(self, data: bytes) -> bytes | None:
        """Decrypts a wrapped key; returns None if it was wrapped for a different certificate, or modified.

        Raises:
            InputError: The private key is not available.
        """
        try:
            return self._require_key().decrypt(data, _oaep())
        except ValueError:
            return None

    def sign(self, data: bytes) -> bytes:
        """Signs data with RSA-PSS and SHA-256.

        Raises:
            InputError: The private key is not available.
        """
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where it is needed

        return self._require_key().sign(data, _pss(), hashes.SHA256())

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Returns whether this certificate's key signed the data."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - imported only where it is needed
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - the same

        try:
            self._public.verify(signature, data, _pss(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True

    def _require_key(self) -> rsa.RSAPrivateKey:
        if self._key is None:
            raise InputError("expected a certificate with its private key")
        return self._key

    def __repr__(self) -> str:
        return f"DialogCertificate({self.description.subject!r})"


def _oaep() -> padding.OAEP:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where it is needed
    from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415 - the same

    return padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


def _pss() -> padding.PSS:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where it is needed
    from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415 - the same

    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=hashes.SHA256.digest_size)


SECOND: Final = 1_000_000
KEY_LIFETIME: Final = 3600 * SECOND
"""The time for which a key exchange key is used, in microseconds."""
BLOB_RENEWAL_AGE: Final = 600 * SECOND
"""A blob without an answer is replaced after this time, in microseconds."""
BLOB_AGE_MAX: Final = 25 * 60 * SECOND
"""The maximum age of an arriving blob, in microseconds.

Together with `CLOCK_SKEW_MAX`, it equals the time for which closed endpoints are kept to detect replays.
"""
CLOCK_SKEW_MAX: Final = 5 * 60 * SECOND
"""How far in the future the creation time of a blob can be, in microseconds, to tolerate differences between clocks."""

_VERSION: Final = 1
_ANONYMOUS, _FULL = 0, 1
_FIXED: Final = struct.Struct(">BBq32s32sqHH")
_LENGTH: Final = struct.Struct(">I")
_ANONYMOUS_SENDER: Final = bytes(32)
_SEALED_BYTES: Final = 12 + KEY_BYTES + 16
_SIGNATURE_LABEL: Final = b"ssbroker key exchange key 1\0"
_SEAL_LABEL: Final = b"ssbroker session key 1\0"
_CACHED_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Direction:
    """The conversation, direction and services for which a session key is valid.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether the initiator is the sender.
        from_service_name: The sending service.
        to_service_name: The receiving service.
    """

    conversation_id: bytes
    is_initiator: bool
    from_service_name: str
    to_service_name: str

    @property
    def as_bytes(self) -> bytes:
        """Bytes that are unique to the direction."""
        names = (self.from_service_name.encode(), self.to_service_name.encode())
        encoded_names = b"".join(_LENGTH.pack(len(name)) + name for name in names)
        return self.conversation_id + (b"\1" if self.is_initiator else b"\0") + encoded_names


@dataclass(frozen=True, slots=True)
class KeyExchangeBlob:
    """The parsed but unverified content of the column `key_exchange` of `protocol.wire.frames.WIRE`.

    Attributes:
        created_at: When the blob was created, in microseconds since 1970.
        to_certificate: The fingerprint of the receiver's certificate.
        from_certificate: The fingerprint of the sender's certificate; None for anonymous security.
        key_created_at: When the key exchange key was created.
        wrapped_key: The key exchange key, encrypted with the receiver's certificate.
        signature: The sender's signature of the key exchange key; empty for anonymous security.
        sealed_key: The session key, sealed with the key exchange key.
    """

    created_at: int
    to_certificate: bytes
    from_certificate: bytes | None
    key_created_at: int
    wrapped_key: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    sealed_key: bytes = field(repr=False)

    @property
    def signature_input(self) -> bytes:
        """The signed bytes."""
        return _signature_input(self.to_certificate, self.from_certificate, self.key_created_at, self.wrapped_key)

    @property
    def header(self) -> bytes:
        """Everything except the keys and the signature."""
        kind = _ANONYMOUS if self.from_certificate is None else _FULL
        return _FIXED.pack(
            _VERSION,
            kind,
            self.created_at,
            self.to_certificate,
            self.from_certificate or _ANONYMOUS_SENDER,
            self.key_created_at,
            len(self.wrapped_key),
            len(self.signature),
        )

    @property
    def as_bytes(self) -> bytes:
        """The encoded blob."""
        return self.header + self.wrapped_key + self.signature + self.sealed_key


def parse_blob(data: bytes) -> KeyExchangeBlob | None:
    """Parses a blob; returns None if it is not a valid blob of this version."""
    if len(data) < _FIXED.size:
        return None
    version, kind, made_at, to, by, key_made_at, wrapped, signature = _FIXED.unpack_from(data)
    sizes = len(data) == _FIXED.size + wrapped + signature + _SEALED_BYTES
    anonymous = by == _ANONYMOUS_SENDER and not signature
    if version != _VERSION or kind not in (_ANONYMOUS, _FULL) or not sizes or (kind == _ANONYMOUS) != anonymous:
        return None
    ends = _FIXED.size + wrapped
    return KeyExchangeBlob(
        made_at,
        to,
        None if kind == _ANONYMOUS else by,
        key_made_at,
        data[_FIXED.size : ends],
        data[ends : ends + signature],
        data[ends + signature :],
    )


@dataclass(frozen=True, slots=True)
class _ExchangeKey:
    key: bytes = field(repr=False)
    created_at: int
    wrapped: bytes = field(repr=False)
    signature: bytes = field(repr=False)


class KeyOffers:
    """Creates key exchange blobs. For each pair of certificates, a key is used for an hour, to avoid RSA operations for each dialog."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[tuple[bytes, bytes | None], _ExchangeKey] = {}

    def make_blob(
        self,
        session_key: bytes,
        direction: Direction,
        *,
        receiver: DialogCertificate,
        sender: DialogCertificate | None,
        now: int,
    ) -> bytes:
        """Creates a blob for the column `key_exchange`.

        Args:
            session_key: The session key.
            direction: The direction for which the key is valid.
            receiver: The receiver's certificate.
            sender: The sender's certificate with its private key; None for anonymous security.
            now: The current time, in microseconds since 1970.
        """
        pair = (receiver.fingerprint, None if sender is None else sender.fingerprint)
        found = self._keys.get(pair)
        if found is None or not found.created_at <= now < found.created_at + KEY_LIFETIME:
            found = self._keys[pair] = _make_exchange_key(receiver, sender, now)
        blob = KeyExchangeBlob(now, *pair, found.created_at, found.wrapped, found.signature, b"")
        sealed = seal_with_key(found.key, session_key, purpose=_SEAL_LABEL + blob.header + direction.as_bytes)
        return blob.as_bytes + sealed


class KeyOpenings:
    """Opens key exchange blobs. Key exchange keys, including invalid ones, are cached, so that each key needs RSA operations only once."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, bytes | None] = OrderedDict()

    def open_blob(
        self,
        blob: KeyExchangeBlob,
        direction: Direction,
        *,
        receiver: DialogCertificate,
        sender: DialogCertificate | None,
        now: int,
        may_use_rsa: Callable[[], bool],
    ) -> bytes | None:
        """Returns the session key of a blob.

        Args:
            blob: The blob.
            direction: The direction for which the key must be valid.
            receiver: The receiver's certificate with its private key.
            sender: The sender's certificate; None for anonymous security.
            now: The current time.
            may_use_rsa: Called before the RSA operations for a new key exchange key; if it returns false, nothing is cached.

        Returns:
            The key; None if the blob is forged, modified, meant for a different direction, too old or from the future, or if `may_use_rsa`
            returned false.
        """
        is_fresh = now - BLOB_AGE_MAX < blob.created_at <= now + CLOCK_SKEW_MAX
        is_of_key = blob.key_created_at <= blob.created_at < blob.key_created_at + KEY_LIFETIME
        is_for_us = (blob.to_certificate, blob.from_certificate) == (
            receiver.fingerprint,
            None if sender is None else sender.fingerprint,
        )
        if not (is_fresh and is_of_key and is_for_us):
            return None
        key = self._open_exchange_key(blob, receiver, sender, may_use_rsa)
        if key is None:
            return None
        return open_with_key(key, blob.sealed_key, purpose=_SEAL_LABEL + blob.header + direction.as_bytes)

    def _open_exchange_key(
        self,
        blob: KeyExchangeBlob,
        receiver: DialogCertificate,
        sender: DialogCertificate | None,
        may_use_rsa: Callable[[], bool],
    ) -> bytes | None:
        digest = hashlib.sha256(blob.signature_input + blob.signature).digest()
        if digest in self._keys:
            self._keys.move_to_end(digest)
            return self._keys[digest]
        if not may_use_rsa():
            return None
        is_signed = sender is None or sender.verify(blob.signature_input, blob.signature)
        key = receiver.unwrap(blob.wrapped_key) if is_signed else None
        self._keys[digest] = key if key is not None and len(key) == KEY_BYTES else None
        if len(self._keys) > _CACHED_MAX:
            self._keys.popitem(last=False)
        return self._keys[digest]


def _make_exchange_key(receiver: DialogCertificate, sender: DialogCertificate | None, now: int) -> _ExchangeKey:
    key = new_master_key()
    wrapped = receiver.wrap(key)
    signed = _signature_input(receiver.fingerprint, None if sender is None else sender.fingerprint, now, wrapped)
    return _ExchangeKey(key, now, wrapped, b"" if sender is None else sender.sign(signed))


def _signature_input(to: bytes, by: bytes | None, made_at: int, wrapped: bytes) -> bytes:
    kind = _ANONYMOUS if by is None else _FULL
    return (
        _SIGNATURE_LABEL
        + _FIXED.pack(_VERSION, kind, made_at, to, by or _ANONYMOUS_SENDER, made_at, len(wrapped), 0)
        + wrapped
    )
