"""X.509 certificates made: authorities, those of instances, those of the owners of services."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ssbroker.exceptions import OptionError
from ssbroker.security.certificates import Certified, read_certificate, read_key, require_cryptography

if TYPE_CHECKING:
    from cryptography import x509

    from ssbroker.security.certificates import PrivateKey

KeyKind: TypeAlias = Literal["EC", "RSA"]
"""P-256 is quick, and enough for connections; dialogs need RSA (N19)."""

RSA_BITS_LEAST: Final = 2048
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

    begins: datetime
    ends: datetime

    def __post_init__(self) -> None:
        if self.ends <= self.begins:
            raise OptionError(f"a certificate has to end after it begins; got {self.begins} to {self.ends}")
        if self.begins.year < _YEAR_LEAST:
            raise OptionError(f"a certificate begins in the year {_YEAR_LEAST} or later; got {self.begins}")


def make_authority(name: str, validity: Validity) -> Certified:
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
        >>> from ssbroker.security.certificates import may_sign
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> may_sign(make_authority("Test", Validity(begins, begins + timedelta(days=1))).certificate)
        True
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read

    key = _new_key("EC", RSA_BITS_LEAST)
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
    authority: Certified | None = None,
    kind: KeyKind = "EC",
    bits: int = RSA_BITS_LEAST,
) -> Certified:
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
        >>> from ssbroker.security.certificates import fingerprint, may_sign
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> validity = Validity(begins, begins + timedelta(days=1))
        >>> authority = make_authority("Test", validity)
        >>> shop = make_certificate(["shop.example.com", "127.0.0.1"], validity, authority=authority)
        >>> may_sign(shop.certificate), len(fingerprint(shop.certificate))
        (False, 32)
    """
    require_cryptography()
    from cryptography import x509  # noqa: PLC0415 - imported only where certificates are made or read
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415 - the same

    if isinstance(names, str) or not names:
        raise OptionError(f"names: expected a list of at least one; got {names!r:.80}")
    if bits < RSA_BITS_LEAST:
        raise OptionError(f"bits: a key of RSA has at least {RSA_BITS_LEAST}; got {bits}")
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


def make_dialog_certificate(subject: str, validity: Validity) -> Certified:
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
        >>> from ssbroker.security.certificates import may_sign
        >>> begins = datetime(2026, 11, 21, tzinfo=UTC)
        >>> may_sign(make_dialog_certificate("Aufträge", Validity(begins, begins + timedelta(days=1))).certificate)
        False
    """
    require_cryptography()
    named = _named(subject)
    key = _new_key("RSA", RSA_BITS_LEAST)
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
        .not_valid_before(validity.begins)
        .not_valid_after(validity.ends)
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


def _signed(builder: x509.CertificateBuilder, key: PrivateKey, signer: PrivateKey) -> Certified:
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - the reason is above

    made = builder.sign(signer, hashes.SHA256())
    return Certified(
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
