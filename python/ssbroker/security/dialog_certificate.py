"""The certificate of a user in a database, as dialog security uses it (N19): RSA, with the private key where that is the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ssbroker.exceptions import InputError
from ssbroker.security.certificates import der, fingerprint, parsing, read_certificate, read_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

BITS_LEAST: Final = 2048
"""How long a key has to be at least (fact 180)."""
BYTES_MOST: Final = 32 * 1024
_BITS_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class Described:
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
    begins: datetime
    ends: datetime
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

    __slots__ = ("_key", "_public", "der", "described", "fingerprint")

    def __init__(self, certificate: bytes, key: bytes | None = None) -> None:
        found = read_certificate(certificate)
        self.der = der(certificate)
        self.fingerprint = fingerprint(self.der)
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415 - imported only where it is needed

        with parsing("expected a certificate whose key is RSA, as dialog security needs it; it cannot be read"):
            public = found.public_key()
        if not isinstance(public, rsa.RSAPublicKey):
            raise InputError(
                "expected a certificate whose key is RSA, as dialog security needs it; it is another kind's"
            )
        if public.key_size < BITS_LEAST or public.key_size % _BITS_STEP:
            raise InputError(
                f"expected a key of at least {BITS_LEAST} bits, a multiple of {_BITS_STEP}; it has {public.key_size}"
            )
        if len(self.der) > BYTES_MOST:
            raise InputError(f"expected a certificate of at most {BYTES_MOST} bytes; it has {len(self.der)}")
        self._public: rsa.RSAPublicKey = public
        with parsing("expected a certificate whose key seals something; it seals nothing"):
            self.wrapped(b"")
        with parsing("expected a certificate; whose it is, or when it holds, cannot be read"):
            described = Described(
                found.subject.rfc4514_string(),
                found.issuer.rfc4514_string(),
                f"{found.serial_number:x}",
                found.not_valid_before_utc,
                found.not_valid_after_utc,
                public.key_size,
            )
        self.described: Final = described
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
        return self.described.begins <= now < self.described.ends

    def wrapped(self, key: bytes) -> bytes:
        """Seals a key for whoever has the private key, by RSA-OAEP with SHA-256.

        Args:
            key: The key.

        Returns:
            As many bytes as the RSA key has.
        """
        return self._public.encrypt(key, _oaep())

    def unwrapped(self, data: bytes) -> bytes | None:
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

    def signature(self, data: bytes) -> bytes:
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

    def has_signed(self, data: bytes, signature: bytes) -> bool:
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
        return f"DialogCertificate({self.described.subject!r})"


def _oaep() -> padding.OAEP:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where it is needed
    from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415 - the same

    return padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


def _pss() -> padding.PSS:
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - imported only where it is needed
    from cryptography.hazmat.primitives.asymmetric import padding  # noqa: PLC0415 - the same

    return padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=hashes.SHA256.digest_size)
