"""Certificates that no library can parse completely come from others, so they are rejected without harm."""

from __future__ import annotations

import random
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ssbroker.broker.network.tls import PROTOCOL, TlsChannel, TlsContexts, TlsCredentials, Trust
from ssbroker.exceptions import InputError, PeerError
from ssbroker.security.certificates import (
    Validity,
    can_sign,
    make_authority,
    make_certificate,
    read_certificate,
    read_key,
    to_der,
)
from ssbroker.security.key_exchange import DialogCertificate
from tests.security.shared_certificates import certified

NOW = datetime.now(UTC)
VALIDITY = Validity(NOW - timedelta(days=1), NOW + timedelta(days=1))
NAMES, BASIC = x509.ObjectIdentifier("2.5.29.17"), x509.ObjectIdentifier("2.5.29.19")


def malformed(public: rsa.RSAPublicKey | None = None, *extensions: tuple[x509.ObjectIdentifier, bytes]) -> bytes:
    """Returns a certificate with that key and with extensions of these bytes."""
    signer = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "malformed")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public or signer.public_key())
        .serial_number(1)
        .not_valid_before(VALIDITY.not_before)
        .not_valid_after(VALIDITY.not_after)
    )
    for identifier, value in extensions:
        builder = builder.add_extension(x509.UnrecognizedExtension(identifier, value), critical=False)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_certificate_is_reported_as_such(seed: int) -> None:
    rng = random.Random(seed)
    whole = to_der(certified("Ann").certificate)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for read in (can_sign, DialogCertificate):
            with suppress(InputError):
                read(bytes(data))


@pytest.mark.parametrize(("bits", "end"), [(2048, 2), (32768, 1)], ids=["even", "too long"])
def test_a_key_that_cannot_encrypt_is_rejected_on_import(bits: int, end: int) -> None:
    with pytest.raises(InputError, match="encryption failed"):
        DialogCertificate(malformed(rsa.RSAPublicNumbers(65537, (1 << (bits - 1)) + end).public_key()))


def test_an_unreadable_pinned_file_leaves_the_previous_certificates(tmp_path: Path) -> None:
    own, stock = (make_certificate([name], VALIDITY) for name in ("shop", "stock"))
    (tmp_path / "shop.pem").write_bytes(own.certificate)
    (tmp_path / "shop.key").write_bytes(own.key)
    pinned = tmp_path / "stock.pem"
    pinned.write_bytes(stock.certificate)
    credentials = TlsCredentials(
        Trust(certificate=tmp_path / "shop.pem", key=tmp_path / "shop.key", pinned={"stock": [pinned]})
    )
    before = credentials.contexts
    no_characters = to_der(stock.certificate).replace(b"stock", b"st\xf6ck", 1)
    for data, said in (
        (malformed(None, (BASIC, b"\4\2ab")), "one of its extensions cannot be read"),
        (no_characters, "OpenSSL cannot read it"),
    ):
        pinned.write_bytes(data)
        credentials.reload_if_changed()
        credentials.reload_if_changed()
        assert credentials.contexts is before
        with pytest.raises(InputError, match=rf"stock\.pem: .* {said}"):
            credentials.reload()


def test_names_with_invalid_characters_match_nobody(tmp_path: Path) -> None:
    authority = make_authority("Test", VALIDITY)
    own = make_certificate(["shop"], VALIDITY, authority=authority)
    for name, data in (("authority.pem", authority.certificate), ("shop.pem", own.certificate), ("shop.key", own.key)):
        (tmp_path / name).write_bytes(data)
    trust = Trust(
        certificate=tmp_path / "shop.pem",
        key=tmp_path / "shop.key",
        authority=tmp_path / "authority.pem",
        names=["st\ufffd\ufffd"],
    )
    key = ec.generate_private_key(ec.SECP256R1())
    signed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(read_certificate(authority.certificate).subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(VALIDITY.not_before)
        .not_valid_after(VALIDITY.not_after)
        .add_extension(x509.UnrecognizedExtension(NAMES, b"\x30\x06\x82\x04st\xff\xfe"), critical=False)
        .sign(read_key(authority.key), SHA256())
    )
    far = tmp_path / "far.pem"
    far.write_bytes(
        signed.public_bytes(Encoding.PEM) + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL])
    context.load_cert_chain(far)
    to_far, from_far = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(to_far, from_far)
    near = TlsChannel(TlsContexts.load(trust), is_accept=True)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    near.received(from_far.read())
    to_far.write(near.data_to_send())
    tls.do_handshake()
    with pytest.raises(PeerError, match="has no DNS name"):
        near.received(from_far.read())
