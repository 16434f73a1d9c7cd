"""Certificates: created ones can be verified and read back, and invalid ones are rejected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ssbroker.exceptions import InputError, OptionError
from ssbroker.security.certificates import (
    CertificateWithKey,
    Validity,
    can_sign,
    fingerprint,
    make_authority,
    make_certificate,
    read_certificate,
    read_key,
    to_der,
)

BEGINS = datetime(2026, 11, 21, tzinfo=UTC)
VALIDITY = Validity(BEGINS, BEGINS + timedelta(days=30))


@pytest.fixture(scope="module")
def authority() -> CertificateWithKey:
    return make_authority("Test authority", VALIDITY)


def test_an_issued_certificate_has_its_names_and_cannot_sign_others(authority: CertificateWithKey) -> None:
    shop = read_certificate(
        make_certificate(["shop.example.com", "127.0.0.1"], VALIDITY, authority=authority).certificate
    )
    shop.verify_directly_issued_by(read_certificate(authority.certificate))
    names = shop.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["shop.example.com"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert shop.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "shop.example.com"
    usage = shop.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not can_sign(shop.public_bytes(Encoding.DER))
    assert (shop.not_valid_before_utc, shop.not_valid_after_utc) == (VALIDITY.not_before, VALIDITY.not_after)


def test_an_authority_does_not_verify_certificates_of_another(authority: CertificateWithKey) -> None:
    """Even if both have the same name."""
    other = make_authority("Test authority", VALIDITY)
    shop = read_certificate(make_certificate(["shop"], VALIDITY, authority=authority).certificate)
    with pytest.raises(InvalidSignature):
        shop.verify_directly_issued_by(read_certificate(other.certificate))


def test_a_service_certificate_is_self_signed_with_rsa_2048() -> None:
    issued = make_certificate(["Orders"], VALIDITY, kind="RSA")
    key = read_key(issued.key)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.key_size == 2048
    found = read_certificate(issued.certificate)
    found.verify_directly_issued_by(found)
    assert found.public_key() == key.public_key()


def test_shorter_rsa_keys_are_rejected() -> None:
    with pytest.raises(OptionError, match="at least 2048 bits, got 1024"):
        make_certificate(["Orders"], VALIDITY, kind="RSA", bits=1024)


def test_the_fingerprint_is_independent_of_the_encoding(authority: CertificateWithKey) -> None:
    assert fingerprint(authority.certificate) == fingerprint(to_der(authority.certificate))
    assert fingerprint(authority.certificate) != fingerprint(make_authority("Test authority", VALIDITY).certificate)


def test_a_certificate_without_key_usage_may_sign(authority: CertificateWithKey) -> None:
    assert can_sign(authority.certificate)


def test_a_private_key_is_never_printed(authority: CertificateWithKey) -> None:
    assert b"PRIVATE" in authority.key
    assert "PRIVATE" not in repr(authority)


def test_an_encrypted_key_requires_its_password(authority: CertificateWithKey) -> None:
    sealed = read_key(authority.key).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open"))
    assert read_key(sealed, password=b"open").public_key() == read_key(authority.key).public_key()
    for password in (None, b"wrong"):
        with pytest.raises(InputError, match="the key cannot be read"):
            read_key(sealed, password=password)


@pytest.mark.parametrize(
    "data", [b"", b"text", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\x30\x03\x02\x01\x05"]
)
def test_invalid_certificates_are_rejected(data: bytes) -> None:
    with pytest.raises(InputError, match="expected a certificate in PEM or DER"):
        read_certificate(data)
    with pytest.raises(InputError, match="expected a private key"):
        read_key(data)


@pytest.mark.parametrize("names", [[], "shop", [""], ["x" * 65], ["shop", "käse"]])
def test_names_are_checked(names: list[str]) -> None:
    with pytest.raises(OptionError, match="name"):
        make_certificate(names, VALIDITY)


def test_a_certificate_must_end_after_it_starts() -> None:
    with pytest.raises(OptionError, match="not_after: expected a time after not_before"):
        Validity(BEGINS, BEGINS)
