"""Reads and issues X.509 certificates and private keys."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ssbroker.exceptions import InputError, MissingDependencyError, OptionError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class CertificateWithKey:
    """A certificate and its private key.

    Attributes:
        certificate: The certificate in PEM format.
        key: The private key in PEM format (PKCS #8), not encrypted.
    """

    certificate: bytes
    key: bytes = field(repr=False)


def require_cryptography() -> None:
    """Raises MissingDependencyError if the `cryptography` package is not installed."""
    try:
        import cryptography  # noqa: F401, PLC0415 - imported only where certificates are made or read
    except ImportError as error:
        raise MissingDependencyError("certificates need cryptography: pip install 'ssbroker[broker]'") from error


def read_certificate(data: bytes) -> x509.Certificate:
    """Reads a certificate in PEM or DER.

    Raises:
        InputError: The data is not a valid certificate.
        MissingDependencyError: The `cryptography` package is not installed.
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read

    load = x509.load_pem_x509_certificate if b"-----BEGIN" in data else x509.load_der_x509_certificate
    with raise_input_error(f"expected a certificate in PEM or DER, got {len(data)} bytes in a different format"):
        return load(data)


def validity_period(certificate: bytes) -> tuple[datetime, datetime]:
    """Returns the start and end of a certificate's validity in UTC; if the PEM contains several certificates, uses the first.

    Raises:
        InputError: The data is not a valid certificate, or its validity cannot be read.
        MissingDependencyError: The `cryptography` package is not installed.
    """
    found = read_certificate(certificate)
    with raise_input_error("expected a certificate; its validity period cannot be read"):
        return found.not_valid_before_utc, found.not_valid_after_utc


@contextmanager
def raise_input_error(reason: str) -> Iterator[None]:
    """Converts errors of the `cryptography` package to InputError; the package parses certificates lazily and raises various exceptions.

    Examples:
        >>> with raise_input_error("no certificate"):
        ...     int("x")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: no certificate
    """
    from cryptography import x509  # noqa: PLC0415 - the reason is above
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - the same

    try:
        yield
    except (
        KeyError,  # raised for unknown string types by cryptography 46.0.0
        ValueError,
        UnsupportedAlgorithm,
        x509.InvalidVersion,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise InputError(reason) from error


def read_key(data: bytes, *, password: bytes | None = None) -> PrivateKey:
    """Reads a private key in PEM or DER; `password` must be None if the key is not encrypted.

    Raises:
        InputError: The data is not a valid key of a supported kind, or the password is wrong, missing or not needed.
        MissingDependencyError: The `cryptography` package is not installed.
    """
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - the reason is above
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the same
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415 - the same

    load = serialization.load_pem_private_key if b"-----BEGIN" in data else serialization.load_der_private_key
    try:
        key = load(data, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # The library's error message may contain parts of the key file.
        raise InputError(
            "expected a private key in PEM or DER, and its password if it is encrypted; the key cannot be read"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise InputError(f"expected an RSA or elliptic-curve private key, got {type(key).__name__}")
    return key


def fingerprint(certificate: bytes) -> bytes:
    """Returns the SHA-256 digest of the DER form of a certificate in PEM or DER.

    Raises:
        InputError: The data is not a valid certificate.
    """
    return hashlib.sha256(to_der(certificate)).digest()


def to_der(certificate: bytes) -> bytes:
    """Converts a certificate in PEM or DER to DER.

    Raises:
        InputError: The data is not a valid certificate.
    """
    found = read_certificate(certificate)
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - the reason is above

    return found.public_bytes(Encoding.DER)


def read_all_der(data: bytes) -> list[bytes]:
    """Reads certificates in PEM, or one certificate in DER; returns the DER form of each.

    Raises:
        InputError: There is no certificate, or a certificate is truncated or invalid.
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - the reason is above
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - the same

    with raise_input_error(
        f"expected certificates in PEM, or one in DER, got {len(data)} bytes that are invalid or truncated"
    ):
        if b"-----BEGIN" not in data:
            return [x509.load_der_x509_certificate(data).public_bytes(Encoding.DER)]
        found = x509.load_pem_x509_certificates(data)
        if len(found) < data.count(b"-----BEGIN CERTIFICATE"):
            raise ValueError  # the library skips a truncated certificate
        return [each.public_bytes(Encoding.DER) for each in found]


def can_sign(certificate: bytes) -> bool:
    """Returns whether a certificate can sign others: it is marked as an authority, or has no basic constraints.

    Raises:
        InputError: The data is not a valid certificate, or its extensions cannot be read.
    """
    found = read_certificate(certificate)
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    with raise_input_error("expected a certificate; one of its extensions cannot be read"):
        try:
            return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            return True


KeyKind: TypeAlias = Literal["EC", "RSA"]
"""The kind of a key. EC (P-256) is fast, and sufficient for connections; dialogs need RSA."""

RSA_BITS_MIN: Final = 2048
"""The minimum length of an RSA key, in bits."""
_RSA_EXPONENT: Final = 65_537
_NAME_MAX: Final = 64
_YEAR_MIN: Final = 1950


@dataclass(frozen=True, slots=True)
class Validity:
    """The validity period of a certificate.

    Attributes:
        not_before: The start, in UTC.
        not_after: The end, in UTC.

    Raises:
        OptionError: The period does not end after it begins, or begins before 1950, which certificates cannot express.
    """

    not_before: datetime
    not_after: datetime

    def __post_init__(self) -> None:
        if self.not_after <= self.not_before:
            raise OptionError(f"not_after: expected a time after not_before ({self.not_before}), got {self.not_after}")
        if self.not_before.year < _YEAR_MIN:
            raise OptionError(f"not_before: expected a time in the year {_YEAR_MIN} or later, got {self.not_before}")


def make_authority(name: str, validity: Validity) -> CertificateWithKey:
    """Creates a certificate authority, which signs the certificates of instances.

    Args:
        name: The common name.
        validity: The validity period.

    Returns:
        The certificate and its key.

    Raises:
        OptionError: The name is empty or too long.
        MissingDependencyError: The `cryptography` package is not installed.
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read

    key = _new_key("EC", RSA_BITS_MIN)
    subject = _subject_name(name)
    builder = (
        _builder(subject, subject, key, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return _sign(builder, key, key)


def make_certificate(
    names: Sequence[str],
    validity: Validity,
    *,
    authority: CertificateWithKey | None = None,
    kind: KeyKind = "EC",
    bits: int = RSA_BITS_MIN,
) -> CertificateWithKey:
    """Creates a certificate for an instance or for the owner of a service; the certificate cannot sign others.

    Args:
        names: DNS names or IP addresses. The first is also the common name of the subject, and therefore the name of the principal.
        validity: The validity period.
        authority: The signing authority; None for a self-signed certificate.
        kind: The kind of the key.
        bits: The length of an RSA key, in bits.

    Returns:
        The certificate and its key.

    Raises:
        OptionError: There is no name, a name is empty or too long, or the key would be too short.
        InputError: The authority is invalid.
        MissingDependencyError: The `cryptography` package is not installed.

    Examples:
        >>> from datetime import UTC, timedelta
        >>> from ssbroker.security.certificates import can_sign, fingerprint
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> validity = Validity(begins, begins + timedelta(days=1))
        >>> authority = make_authority("Test", validity)
        >>> shop = make_certificate(["shop.example.com", "127.0.0.1"], validity, authority=authority)
        >>> can_sign(shop.certificate), len(fingerprint(shop.certificate))
        (False, 32)
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415 - the same

    if isinstance(names, str) or not names:
        raise OptionError(f"names: expected a list of at least one name, got {names!r:.80}")
    if bits < RSA_BITS_MIN:
        raise OptionError(f"bits: an RSA key must have at least {RSA_BITS_MIN} bits, got {bits}")
    subject = _subject_name(names[0])
    key = _new_key(kind, bits)
    if authority is None:
        issuer, signer = subject, key
    else:
        issuer, signer = read_certificate(authority.certificate).subject, read_key(authority.key)
    builder = (
        _leaf_builder(subject, issuer, key, validity)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([_alternative_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _sign(builder, key, signer)


def make_dialog_certificate(subject: str, validity: Validity) -> CertificateWithKey:
    """Creates a self-signed RSA certificate for the owner of a service; its subject is for display only.

    Raises:
        OptionError: The subject is empty or too long.
        MissingDependencyError: The `cryptography` package is not installed.
    """
    require_cryptography()
    name = _subject_name(subject)
    key = _new_key("RSA", RSA_BITS_MIN)
    return _sign(_leaf_builder(name, name, key, validity), key, key)


def _new_key(kind: KeyKind, bits: int) -> PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415 - the reason is above

    if kind == "EC":
        return ec.generate_private_key(ec.SECP256R1())
    if kind == "RSA":
        return rsa.generate_private_key(public_exponent=_RSA_EXPONENT, key_size=bits)
    raise OptionError(f'kind: expected "EC" or "RSA", got {kind!r:.80}')


def _subject_name(name: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    if not name or len(name) > _NAME_MAX:
        raise OptionError(f"name: expected 1 to {_NAME_MAX} characters, got {name!r:.80}")
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _alternative_name(name: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise OptionError(
            f"name: a DNS name can contain only ASCII characters, got {name!r:.80}; use its xn-- form"
        ) from error


def _builder(subject: x509.Name, issuer: x509.Name, key: PrivateKey, validity: Validity) -> x509.CertificateBuilder:
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.not_before)
        .not_valid_after(validity.not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _leaf_builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, validity: Validity
) -> x509.CertificateBuilder:
    """Returns a builder for a certificate that cannot sign others."""
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    return (
        _builder(subject, issuer, key, validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_encipherment=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, key: PrivateKey, signer: PrivateKey) -> CertificateWithKey:
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - the reason is above

    certificate = builder.sign(signer, hashes.SHA256())
    return CertificateWithKey(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


KEY_PASSWORD_BYTES_MAX: Final = 1023
"""The maximum length of a password in OpenSSL, in bytes."""


def key_to_der(data: bytes, *, password: str | None) -> bytes:
    """Converts a private key in PEM or DER to unencrypted DER (PKCS #8); `password` must be None if the key is not encrypted.

    Raises:
        InputError: The data is not a valid key, or the password is wrong, missing or not needed.
    """
    key = read_key(data, password=None if password is None else password.encode())
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - imported only where it is needed

    return key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_to_pem(key: bytes, *, password: str) -> bytes:
    """Converts an unencrypted private key in DER to PEM (PKCS #8), encrypted with a non-empty password.

    Raises:
        InputError: The data is not a valid key.
    """
    found = read_key(key)
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - imported only where it is needed

    encryption = serialization.BestAvailableEncryption(password.encode())
    return found.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def certificate_to_pem(certificate: bytes) -> bytes:
    """Converts a certificate in PEM or DER to PEM.

    Raises:
        InputError: The data is not a valid certificate.
    """
    found = read_certificate(certificate)
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - imported only where it is needed

    return found.public_bytes(Encoding.PEM)
