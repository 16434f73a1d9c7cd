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
    with raise_input_error(f"expected a certificate in PEM or DER; got {len(data)} bytes that are none"):
        return load(data)


def validity_period(certificate: bytes) -> tuple[datetime, datetime]:
    """From when until when a certificate holds, in UTC.

    Args:
        certificate: In PEM or DER; of several in PEM, the first.

    Returns:
        Its first and its last moment.

    Raises:
        InputError: It is none, or when it holds cannot be read.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> validity_period(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    found = read_certificate(certificate)
    with raise_input_error("expected a certificate; when it holds cannot be read"):
        return found.not_valid_before_utc, found.not_valid_after_utc


@contextmanager
def raise_input_error(reason: str) -> Iterator[None]:
    """Turns all that the library says of a certificate that it cannot read into one error: it reads each part of it when it is asked for.

    Args:
        reason: The words of the error.

    Raises:
        InputError: Something cannot be read.

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
    return hashlib.sha256(to_der(certificate)).digest()


def to_der(certificate: bytes) -> bytes:
    """A certificate in its binary form.

    Args:
        certificate: In PEM or DER.

    Returns:
        The DER form.

    Raises:
        InputError: It is none.

    Examples:
        >>> to_der(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    found = read_certificate(certificate)
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - the reason is above

    return found.public_bytes(Encoding.DER)


def read_all_der(data: bytes) -> list[bytes]:
    """All certificates of a file, in their binary form.

    Args:
        data: Certificates in PEM, one after the other, or one in DER.

    Returns:
        The DER form of each.

    Raises:
        InputError: There is none, or one of them is broken off or cannot be read.

    Examples:
        >>> read_all_der(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected certificates in PEM, or one in DER; got 9 bytes that are not, or not whole
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - the reason is above
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - the same

    with raise_input_error(
        f"expected certificates in PEM, or one in DER; got {len(data)} bytes that are not, or not whole"
    ):
        if b"-----BEGIN" not in data:
            return [x509.load_der_x509_certificate(data).public_bytes(Encoding.DER)]
        found = x509.load_pem_x509_certificates(data)
        if len(found) < data.count(b"-----BEGIN CERTIFICATE"):
            raise ValueError  # the library passes over one that is broken off
        return [each.public_bytes(Encoding.DER) for each in found]


def can_sign(certificate: bytes) -> bool:
    """Whether others would be believed because this certificate signed them.

    Args:
        certificate: In PEM or DER.

    Returns:
        Whether it is an authority's, or does not say that it is none.

    Raises:
        InputError: It is none, or its extensions cannot be read.

    Examples:
        >>> from datetime import UTC, datetime, timedelta
        >>> from ssbroker.security.certificates import Validity, make_certificate
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> can_sign(make_certificate(["shop"], Validity(begins, begins + timedelta(days=1))).certificate)
        False
    """
    found = read_certificate(certificate)
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    with raise_input_error("expected a certificate; one of its extensions cannot be read"):
        try:
            return found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except x509.ExtensionNotFound:
            return True


KeyKind: TypeAlias = Literal["EC", "RSA"]
"""P-256 is quick, and enough for connections; dialogs need RSA (N19)."""

RSA_BITS_MIN: Final = 2048
_RSA_EXPONENT: Final = 65_537
_NAME_LONGEST: Final = 64
_YEAR_LEAST: Final = 1950


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when a certificate holds.

    Attributes:
        begins: The first moment, in UTC.
        ends: The last one.

    Raises:
        OptionError: It ends before it begins, or begins before the year 1950, which certificates do not know.
    """

    not_before: datetime
    not_after: datetime

    def __post_init__(self) -> None:
        if self.not_after <= self.not_before:
            raise OptionError(f"a certificate has to end after it begins; got {self.not_before} to {self.not_after}")
        if self.not_before.year < _YEAR_LEAST:
            raise OptionError(f"a certificate begins in the year {_YEAR_LEAST} or later; got {self.not_before}")


def make_authority(name: str, validity: Validity) -> CertificateWithKey:
    """Makes a certificate authority: a certificate that signs those of instances.

    Args:
        name: What it is called.
        validity: How long it holds.

    Returns:
        Its certificate and key.

    Raises:
        OptionError: The name is empty or too long.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> from datetime import UTC, timedelta
        >>> from ssbroker.security.certificates import can_sign
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> can_sign(make_authority("Test", Validity(begins, begins + timedelta(days=1))).certificate)
        True
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read

    key = _new_key("EC", RSA_BITS_MIN)
    subject = _named(name)
    builder = (
        _builder(subject, subject, key, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key, key)


def make_certificate(
    names: Sequence[str],
    validity: Validity,
    *,
    authority: CertificateWithKey | None = None,
    kind: KeyKind = "EC",
    bits: int = RSA_BITS_MIN,
) -> CertificateWithKey:
    """Makes a certificate for an instance or for the owner of a service, which cannot sign others.

    Args:
        names: Its names; the first is the subject's too, and the principal's (N8). What is an IP address becomes one.
        validity: How long it holds.
        authority: Who signs it; None has it sign itself.
        kind: The kind of its key.
        bits: How long a key of RSA is.

    Returns:
        The certificate and its key.

    Raises:
        OptionError: There is no name, one is empty or too long, or the key would be too short.
        InputError: The authority is none.
        MissingDependencyError: The library `cryptography` is not installed.

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
        raise OptionError(f"names: expected a list of at least one; got {names!r:.80}")
    if bits < RSA_BITS_MIN:
        raise OptionError(f"bits: a key of RSA has at least {RSA_BITS_MIN}; got {bits}")
    subject = _named(names[0])
    key = _new_key(kind, bits)
    if authority is None:
        issuer, signer = subject, key
    else:
        issuer, signer = read_certificate(authority.certificate).subject, read_key(authority.key)
    builder = (
        _leaf(subject, issuer, key, validity)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    return _signed(builder, key, signer)


def make_dialog_certificate(subject: str, validity: Validity) -> CertificateWithKey:
    """Makes a certificate that signs itself, for the owner of a service (N19): known by itself, so its subject is for people alone.

    Args:
        subject: Whose it is, in any letters.
        validity: How long it holds.

    Returns:
        The certificate and its key, of RSA.

    Raises:
        OptionError: The subject is empty or too long.
        MissingDependencyError: The library `cryptography` is not installed.

    Examples:
        >>> from datetime import UTC, timedelta
        >>> from ssbroker.security.certificates import can_sign
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> can_sign(make_dialog_certificate("Aufträge", Validity(begins, begins + timedelta(days=1))).certificate)
        False
    """
    require_cryptography()
    named = _named(subject)
    key = _new_key("RSA", RSA_BITS_MIN)
    return _signed(_leaf(named, named, key, validity), key, key)


def _new_key(kind: KeyKind, bits: int) -> PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415 - the reason is above

    if kind == "EC":
        return ec.generate_private_key(ec.SECP256R1())
    if kind == "RSA":
        return rsa.generate_private_key(public_exponent=_RSA_EXPONENT, key_size=bits)
    raise OptionError(f'kind: expected "EC" or "RSA"; got {kind!r:.80}')


def _named(name: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    if not name or len(name) > _NAME_LONGEST:
        raise OptionError(f"name: expected 1 to {_NAME_LONGEST} characters; got {name!r:.80}")
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise OptionError(f"name: a name of DNS has only characters of ASCII; got {name!r:.80}") from error


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


def _leaf(subject: x509.Name, issuer: x509.Name, key: PrivateKey, validity: Validity) -> x509.CertificateBuilder:
    """What cannot sign others."""
    from cryptography import x509  # noqa: PLC0415 - the reason is above

    return (
        _builder(subject, issuer, key, validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _signed(builder: x509.CertificateBuilder, key: PrivateKey, signer: PrivateKey) -> CertificateWithKey:
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - the reason is above

    made = builder.sign(signer, hashes.SHA256())
    return CertificateWithKey(
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


KEY_PASSWORD_BYTES_MAX: Final = 1023
"""OpenSSL encrypts no key under a longer password."""


def key_to_der(data: bytes, *, password: str | None) -> bytes:
    """A private key as it is kept.

    Args:
        data: In PEM or DER.
        password: What it is encrypted with; None where it is not.

    Returns:
        The key in DER (PKCS 8), not encrypted.

    Raises:
        InputError: It is none, or the password is not its own.

    Examples:
        >>> key_to_der(b"something", password=None)
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a private key in PEM or DER that its password opens; it cannot be read
    """
    key = read_key(data, password=None if password is None else password.encode())
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - imported only where it is needed

    return key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_to_pem(key: bytes, *, password: str) -> bytes:
    """A private key as it goes into a file.

    Args:
        key: In DER, not encrypted.
        password: What it is encrypted with, not empty.

    Returns:
        The key in PEM (PKCS 8), encrypted.

    Raises:
        InputError: It is none.

    Examples:
        >>> key_to_pem(b"something", password="long")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a private key in PEM or DER that its password opens; it cannot be read
    """
    found = read_key(key)
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - imported only where it is needed

    encryption = serialization.BestAvailableEncryption(password.encode())
    return found.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def certificate_to_pem(certificate: bytes) -> bytes:
    """A certificate as it goes into a file.

    Args:
        certificate: In PEM or DER.

    Returns:
        The certificate in PEM.

    Raises:
        InputError: It is none.

    Examples:
        >>> certificate_to_pem(b"something")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: expected a certificate in PEM or DER; got 9 bytes that are none
    """
    found = read_certificate(certificate)
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - imported only where it is needed

    return found.public_bytes(Encoding.PEM)
