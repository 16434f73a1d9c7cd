"""Exchanges session keys of dialogs, with the certificates of users."""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import InputError
from ssbroker.security.certificates import fingerprint, raise_input_error, read_certificate, read_key, to_der
from ssbroker.security.keys import KEY_BYTES, new_master_key, open_with_key, seal_with_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import padding, rsa


RSA_BITS_MIN: Final = 2048
"""How long a key has to be at least (fact 180)."""
CERTIFICATE_BYTES_MAX: Final = 32 * 1024
_BITS_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class CertificateDescription:
    """What a certificate says of itself.

    Attributes:
        subject: Whose it is.
        issuer: Who signed it.
        serial_number: Its number with the issuer, in hexadecimal digits.
        begins: From when on it holds.
        ends: Until when.
        bits: The length of its key.
    """

    subject: str
    issuer: str
    serial_number: str
    not_before: datetime
    not_after: datetime
    bits: int


class DialogCertificate:
    """A certificate that session keys are exchanged under.

    Args:
        certificate: In PEM or DER.
        key: Its private key in PEM or DER, not encrypted; None where that is another's.

    Raises:
        InputError: It is none, its key is not RSA or too short, or the private key is another's.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> DialogCertificate(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """

    __slots__ = ("_key", "_public", "der", "description", "fingerprint")

    def __init__(self, certificate: bytes, key: bytes | None = None) -> None:
        found = read_certificate(certificate)
        self.der = to_der(certificate)
        self.fingerprint = fingerprint(self.der)
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415 - imported only where it is needed

        with raise_input_error(
            "expected a certificate whose key is RSA, as dialog security needs it; it cannot be read"
        ):
            public = found.public_key()
        if not isinstance(public, rsa.RSAPublicKey):
            raise InputError(
                "expected a certificate whose key is RSA, as dialog security needs it; it is another kind's"
            )
        if public.key_size < RSA_BITS_MIN or public.key_size % _BITS_STEP:
            raise InputError(
                f"expected a key of at least {RSA_BITS_MIN} bits, a multiple of {_BITS_STEP}; it has {public.key_size}"
            )
        if len(self.der) > CERTIFICATE_BYTES_MAX:
            raise InputError(f"expected a certificate of at most {CERTIFICATE_BYTES_MAX} bytes; it has {len(self.der)}")
        self._public: rsa.RSAPublicKey = public
        with raise_input_error("expected a certificate whose key seals something; it seals nothing"):
            self.wrap(b"")
        with raise_input_error("expected a certificate; whose it is, or when it holds, cannot be read"):
            described = CertificateDescription(
                found.subject.rfc4514_string(),
                found.issuer.rfc4514_string(),
                f"{found.serial_number:x}",
                found.not_valid_before_utc,
                found.not_valid_after_utc,
                public.key_size,
            )
        self.description: Final = described
        self._key: rsa.RSAPrivateKey | None = None if key is None else self._own(key)

    def _own(self, key: bytes) -> rsa.RSAPrivateKey:
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415 - imported only where it is needed

        private = read_key(key)
        if not isinstance(private, rsa.RSAPrivateKey) or private.public_key() != self._public:
            raise InputError("expected the private key of the certificate; it is another one's")
        return private

    @property
    def thumbprint(self) -> bytes:
        """By what SQL Server knows it: SHA-1, for which nothing is believed here."""
        return hashlib.sha1(self.der, usedforsecurity=False).digest()

    @property
    def has_key(self) -> bool:
        """Whether the private key is here."""
        return self._key is not None

    def is_valid(self, now: datetime) -> bool:
        """Whether it holds at a moment.

        Args:
            now: The moment.

        Returns:
            Whether it has begun and not ended.
        """
        return self.description.not_before <= now < self.description.not_after

    def wrap(self, key: bytes) -> bytes:
        """Seals a key for whoever has the private key, by RSA-OAEP with SHA-256.

        Args:
            key: The key.

        Returns:
            As many bytes as the RSA key has.
        """
        return self._public.encrypt(key, _oaep())

    def unwrap(self, data: bytes) -> bytes | None:
        """Opens what `wrapped` made.

        Args:
            data: The sealed key.

        Returns:
            The key; None where it was made for another, or changed.

        Raises:
            InputError: The private key is not here.
        """
        try:
            return self._private().decrypt(data, _oaep())
        except ValueError:
            return None

    def sign(self, data: bytes) -> bytes:
        """Signs by RSA-PSS with SHA-256.

        Args:
            data: What is signed.

        Returns:
            The signature.

        Raises:
            InputError: The private key is not here.
        """
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where it is needed

        return self._private().sign(data, _pss(), hashes.SHA256())

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether a signature is this certificate's.

        Args:
            data: What is said to be signed.
            signature: The signature.

        Returns:
            Whether it is.
        """
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - imported only where it is needed
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - the same

        try:
            self._public.verify(signature, data, _pss(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True

    def _private(self) -> rsa.RSAPrivateKey:
        if self._key is None:
            raise InputError("expected a certificate whose private key is here")
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
"""How long a key exchange key is used, in microseconds."""
BLOB_RENEWAL_AGE: Final = 600 * SECOND
"""After how long a blob is made anew while nobody has answered, in microseconds."""
BLOB_AGE_MAX: Final = 25 * 60 * SECOND
"""How old a blob may be when it arrives. With `FARTHEST` it is as long as a closed endpoint stays against replays (B14)."""
CLOCK_SKEW_MAX: Final = 5 * 60 * SECOND
"""How far a blob may come from the future: by so much the clocks may differ."""

_VERSION: Final = 1
_ANONYMOUS, _FULL = 0, 1
_FIXED: Final = struct.Struct(">BBq32s32sqHH")
_LENGTH: Final = struct.Struct(">I")
_NOBODY: Final = bytes(32)
_SEALED_BYTES: Final = 12 + KEY_BYTES + 16
_SIGNED: Final = b"ssbroker key exchange key 1\0"
_BOUND: Final = b"ssbroker session key 1\0"
_CACHED_MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class Direction:
    """What a session key is for: it opens in no other conversation, no other direction, between no other services.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether it is the initiator who sends.
        from_service_name: The sender.
        to_service_name: The receiver.
    """

    conversation_id: bytes
    is_initiator: bool
    from_service_name: str
    to_service_name: str

    @property
    def as_bytes(self) -> bytes:
        """Other bytes for any other direction."""
        names = (self.from_service_name.encode(), self.to_service_name.encode())
        told = b"".join(_LENGTH.pack(len(name)) + name for name in names)
        return self.conversation_id + (b"\1" if self.is_initiator else b"\0") + told


@dataclass(frozen=True, slots=True)
class KeyExchangeBlob:
    """What rides in the column `key_exchange`, taken apart and not yet believed.

    Attributes:
        made_at: When it was made, in microseconds since 1970.
        to_certificate: For whom, as a fingerprint.
        from_certificate: By whom, as a fingerprint; None for anonymous security.
        key_made_at: When its key exchange key was made.
        wrapped_key: The key exchange key under the receiver's certificate.
        signature: The sender's, of the key exchange key; empty for anonymous security.
        sealed_key: The session key under the key exchange key.
    """

    created_at: int
    to_certificate: bytes
    from_certificate: bytes | None
    key_created_at: int
    wrapped_key: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    sealed_key: bytes = field(repr=False)

    @property
    def signed(self) -> bytes:
        """What the signature is of."""
        return _signed(self.to_certificate, self.from_certificate, self.key_created_at, self.wrapped_key)

    @property
    def header(self) -> bytes:
        """All but the keys."""
        kind = _ANONYMOUS if self.from_certificate is None else _FULL
        return _FIXED.pack(
            _VERSION,
            kind,
            self.created_at,
            self.to_certificate,
            self.from_certificate or _NOBODY,
            self.key_created_at,
            len(self.wrapped_key),
            len(self.signature),
        )

    @property
    def as_bytes(self) -> bytes:
        """As it rides."""
        return self.header + self.wrapped_key + self.signature + self.sealed_key


def parse_blob(data: bytes) -> KeyExchangeBlob | None:
    """Takes a blob apart.

    Args:
        data: What came.

    Returns:
        The blob; None where it is none of this version.

    Examples:
        >>> parse_blob(b"something") is None
        True
    """
    if len(data) < _FIXED.size:
        return None
    version, kind, made_at, to, by, key_made_at, wrapped, signature = _FIXED.unpack_from(data)
    sizes = len(data) == _FIXED.size + wrapped + signature + _SEALED_BYTES
    anonymous = by == _NOBODY and not signature
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
    made_at: int
    wrapped: bytes = field(repr=False)
    signature: bytes = field(repr=False)


class KeyOffers:
    """Makes blobs. A key exchange key is used for an hour and one pair of certificates, so RSA is not paid for each dialog."""

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
        """Makes a blob.

        Args:
            session_key: What it is to carry.
            direction: What that is for.
            receiver: The receiver's certificate.
            sender: The sender's, with its private key; None for anonymous security.
            now: The moment, in microseconds since 1970.

        Returns:
            What rides in the column `key_exchange`.
        """
        pair = (receiver.fingerprint, None if sender is None else sender.fingerprint)
        found = self._keys.get(pair)
        if found is None or not found.made_at <= now < found.made_at + KEY_LIFETIME:
            found = self._keys[pair] = _made(receiver, sender, now)
        blob = KeyExchangeBlob(now, *pair, found.made_at, found.wrapped, found.signature, b"")
        sealed = seal_with_key(found.key, session_key, purpose=_BOUND + blob.header + direction.as_bytes)
        return blob.as_bytes + sealed


class KeyOpenings:
    """Opens blobs. Key exchange keys are remembered, the bad ones too, so that RSA is paid once for each."""

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
        """The session key that a blob carries.

        Args:
            blob: The blob.
            direction: What its key has to be for.
            receiver: The receiver's certificate, with its private key.
            sender: The sender's; None for anonymous security.
            now: The moment.
            may_use_rsa: Is asked before RSA is paid for a key exchange key that is new; where it says no, nothing is remembered of that.

        Returns:
            The key; None where the blob is forged, changed, for something else, too old or new to be more than a replay, or not paid for.
        """
        is_fresh = now - BLOB_AGE_MAX < blob.created_at <= now + CLOCK_SKEW_MAX
        is_of_key = blob.key_created_at <= blob.created_at < blob.key_created_at + KEY_LIFETIME
        is_for_us = (blob.to_certificate, blob.from_certificate) == (
            receiver.fingerprint,
            None if sender is None else sender.fingerprint,
        )
        if not (is_fresh and is_of_key and is_for_us):
            return None
        key = self._exchange_key(blob, receiver, sender, may_use_rsa)
        if key is None:
            return None
        return open_with_key(key, blob.sealed_key, purpose=_BOUND + blob.header + direction.as_bytes)

    def _exchange_key(
        self, blob: KeyExchangeBlob, own: DialogCertificate, by: DialogCertificate | None, pays: Callable[[], bool]
    ) -> bytes | None:
        name = hashlib.sha256(blob.signed + blob.signature).digest()
        if name in self._keys:
            self._keys.move_to_end(name)
            return self._keys[name]
        if not pays():
            return None
        is_proven = by is None or by.verify(blob.signed, blob.signature)
        key = own.unwrap(blob.wrapped_key) if is_proven else None
        self._keys[name] = key if key is not None and len(key) == KEY_BYTES else None
        if len(self._keys) > _CACHED_MOST:
            self._keys.popitem(last=False)
        return self._keys[name]


def _made(to: DialogCertificate, by: DialogCertificate | None, now: int) -> _ExchangeKey:
    key = new_master_key()
    wrapped = to.wrap(key)
    told = _signed(to.fingerprint, None if by is None else by.fingerprint, now, wrapped)
    return _ExchangeKey(key, now, wrapped, b"" if by is None else by.sign(told))


def _signed(to: bytes, by: bytes | None, made_at: int, wrapped: bytes) -> bytes:
    kind = _ANONYMOUS if by is None else _FULL
    return _SIGNED + _FIXED.pack(_VERSION, kind, made_at, to, by or _NOBODY, made_at, len(wrapped), 0) + wrapped
