"""Private keys and certificates as they come from files, and as they go into them."""

from __future__ import annotations

from typing import Final

from ssbroker.security.certificates import read_certificate, read_key

KEY_PASSWORD_BYTES_MAX: Final = 1023
"""OpenSSL encrypts no key under a longer password."""


def plain_key(data: bytes, *, password: str | None) -> bytes:
    """A private key as it is kept.

    Args:
        data: In PEM or DER.
        password: What it is encrypted with; None where it is not.

    Returns:
        The key in DER (PKCS 8), not encrypted.

    Raises:
        InputError: It is none, or the password is not its own.

    Examples:
        >>> plain_key(b"something", password=None)
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a private key in PEM or DER that its password opens; it cannot be read
    """
    key = read_key(data, password=None if password is None else password.encode())
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - imported only where it is needed

    return key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_as_pem(key: bytes, *, password: str) -> bytes:
    """A private key as it goes into a file.

    Args:
        key: In DER, not encrypted.
        password: What it is encrypted with, not empty.

    Returns:
        The key in PEM (PKCS 8), encrypted.

    Raises:
        InputError: It is none.

    Examples:
        >>> key_as_pem(b"something", password="long")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a private key in PEM or DER that its password opens; it cannot be read
    """
    found = read_key(key)
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - imported only where it is needed

    encryption = serialization.BestAvailableEncryption(password.encode())
    return found.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def certificate_as_pem(certificate: bytes) -> bytes:
    """A certificate as it goes into a file.

    Args:
        certificate: In PEM or DER.

    Returns:
        The certificate in PEM.

    Raises:
        InputError: It is none.

    Examples:
        >>> certificate_as_pem(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    found = read_certificate(certificate)
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - imported only where it is needed

    return found.public_bytes(Encoding.PEM)
