"""X.509 certificates and private keys as they come in files, and what is read from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from ssbroker.exceptions import InputError, MissingDependencyError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate and its private key.

    Attributes:
        certificate: The certificate in PEM.
        key: The private key in PEM (PKCS 8), not encrypted.
    """

    certificate: bytes
    key: bytes = field(repr=False)


def require_cryptography() -> None:
    """Says what is missing where the library is.

    Raises:
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> require_cryptography()
    """
    try:
        import cryptography  # noqa: F401, PLC0415 - imported only where certificates are made or read
    except ImportError as error:
        raise MissingDependencyError(
            "certificates need the library cryptography, which is not installed: pip install 'ssbroker[broker]'"
        ) from error


def read_certificate(data: bytes) -> x509.Certificate:
    """Reads one certificate.

    Args:
        data: In PEM or DER.

    Returns:
        The certificate.

    Raises:
        InputError: It is none.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> read_certificate(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read

    load = x509.load_pem_x509_certificate if b"-----BEGIN" in data else x509.load_der_x509_certificate
    with parsing(f"expected a certificate in PEM or DER; got {len(data)} bytes that are none"):
        return load(data)


def holds(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when a certificate holds, in UTC.

    Args:
        certificate: In PEM or DER; of several in PEM, the first.

    Returns:
        Its first and its last moment.

    Raises:
        InputError: It is none, or when it holds cannot be read.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> holds(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    found = read_certificate(certificate)
    with parsing("expected a certificate; when it holds cannot be read"):
        return found.not_valid_before_utc, found.not_valid_after_utc


@contextmanager
def parsing(reason: str) -> Iterator[None]:
    """Turns all that the library says of a certificate that it cannot read into one error: it reads each part of it when it is asked for.

    Args:
        reason: The words of the error.

    Raises:
        InputError: Something cannot be read.

    Examples:
        >>> with parsing("no certificate"):
        ...     int("x")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: no certificate
    """
    from cryptography import x509  # noqa: PLC0415 - the reason is above
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - the same

    try:
        yield
    except (
        KeyError,  # of a kind of text that it does not know: in cryptography 46.0.0
        ValueError,
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise InputError(reason) from error


def read_key(data: bytes, *, password: bytes | None = None) -> PrivateKey:
    """Reads the private key of a certificate.

    Args:
        data: In PEM or DER.
        password: What it is encrypted with; None where it is not.

    Returns:
        The key.

    Raises:
        InputError: It is none, of a kind that is not used here, or the password is not its own.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> read_key(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a private key in PEM or DER that its password opens; it cannot be read
    """
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - the reason is above
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the same
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415 - the same

    load = serialization.load_pem_private_key if b"-----BEGIN" in data else serialization.load_der_private_key
    try:
        key = load(data, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # What the library says may hold parts of the key's file.
        raise InputError("expected a private key in PEM or DER that its password opens; it cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise InputError("expected a private key of RSA or of an elliptic curve; it is another kind's")
    return key


def fingerprint(certificate: bytes) -> bytes:
    """What a certificate is known by.

    Args:
        certificate: In PEM or DER.

    Returns:
        SHA-256 of its DER form.

    Raises:
        InputError: It is none.

    Examples:
        >>> fingerprint(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    return hashlib.sha256(der(certificate)).digest()


def der(certificate: bytes) -> bytes:
    """A certificate in its binary form.

    Args:
        certificate: In PEM or DER.

    Returns:
        The DER form.

    Raises:
        InputError: It is none.

    Examples:
        >>> der(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    found = read_certificate(certificate)
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - the reason is above

    return found.public_bytes(Encoding.DER)


def all_der(data: bytes) -> list[bytes]:
    """All certificates of a file, in their binary form.

    Args:
        data: Certificates in PEM, one after the other, or one in DER.

    Returns:
        The DER form of each.

    Raises:
        InputError: There is none, or one of them is broken off or cannot be read.

    Examples:
        >>> all_der(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected certificates in PEM, or one in DER; got 9 bytes that are not, or not whole
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - the reason is above
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - the same

    with parsing(f"expected certificates in PEM, or one in DER; got {len(data)} bytes that are not, or not whole"):
        if b"-----BEGIN" not in data:
            return [x509.load_der_x509_certificate(data).public_bytes(Encoding.DER)]
        found = x509.load_pem_x509_certificates(data)
        if len(found) < data.count(b"-----BEGIN CERTIFICATE"):
            raise ValueError  # the library passes over one that is broken off
        return [each.public_bytes(Encoding.DER) for each in found]


def may_sign(certificate: bytes) -> bool:
    """Whether others would be believed because this certificate signed them.

    Args:
        certificate: In PEM or DER.

    Returns:
        Whether it is an authority's, or does not say that it is none.

    Raises:
        InputError: It is none, or its extensions cannot be read.

    Examples:
        >>> from datetime import UTC, datetime, timedelta
        >>> from ssbroker.security.issuing import Validity, make_certificate
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> may_sign(make_certificate(["shop"], Validity(begins, begins + timedelta(days=1))).certificate)
        False
    """
    found = read_certificate(certificate)
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    with parsing("expected a certificate; one of its extensions cannot be read"):
        try:
            return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            return True
