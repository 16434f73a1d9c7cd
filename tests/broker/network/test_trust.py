"""Only trusted peers may connect; both sides report the reason for a rejection (P24)."""

from __future__ import annotations

import hashlib
import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.tls import PROTOCOL, TlsContexts, Trust
from ssbroker.exceptions import InputError, OptionError
from ssbroker.protocol.events import ConnectionStep
from ssbroker.security.certificates import Validity, read_key
from tests.broker.network.recording_endpoints import HOST, Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered

HOW_TO_ACCEPT = "to accept this peer, use the options authority and names, or the option pinned"
NO_RETRY = EndpointLimits(dial_wait=3600_000_000, max_dial_wait=3600_000_000)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def bank_trust(authority: Authority) -> Trust:
    return authority.trust("bank", "shop")


def changed(trust: Trust, part: str, file: Path) -> Trust:
    """Replaces one file of a Trust."""
    parts: dict[str, Any] = {part: file}
    return replace(trust, **parts)


def rejected_connection(shop_trust: Trust | None, bank_trust: Trust | None) -> tuple[str, str]:
    """Makes a shop dial a bank; asserts that the connection fails and returns the event texts of both."""
    with (
        RecordingEndpoint("shop", trust=shop_trust, limits=NO_RETRY) as shop,
        RecordingEndpoint("bank", trust=bank_trust, limits=NO_RETRY) as bank,
    ):
        shop.endpoint.send(bank.address, numbered(3))
        shop.wait_for(lambda: shop.failed_connections)
        bank.wait_for(lambda: bank.steps(ConnectionStep.RECEIVE_IO_ERROR))
        assert bank.numbers() == []
        assert shop.connected_to == bank.connected_to == []
        (at_shop,) = shop.steps(ConnectionStep.CONNECT_FAILED)
        (at_bank,) = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)
        assert at_shop.address == bank.address
        assert at_bank.address.startswith(f"TCP://{HOST}:")
        assert at_shop.error
        assert at_bank.error
        assert shop.failed_connections == [(bank.address, at_shop.text)]
        return at_shop.text, at_bank.text


def test_a_name_that_is_not_allowed_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    at_thief, at_bank = rejected_connection(authority.trust("thief", "bank"), bank_trust)
    assert at_bank == f"the peer's certificate is valid, but thief is not allowed to connect; {HOW_TO_ACCEPT}"
    # The bank tells a stranger nothing; this end concludes it from when the connection ended.
    assert at_thief.endswith(
        " after the TLS handshake: it does not let this instance connect, or has too many connections; its log shows the reason"
    )


def test_a_dialer_rejects_a_name_that_is_not_allowed(authority: Authority, bank_trust: Trust) -> None:
    at_shop, _ = rejected_connection(authority.trust("shop", "another bank"), bank_trust)
    assert at_shop == f"the peer's certificate is valid, but bank is not allowed to connect; {HOW_TO_ACCEPT}"


def test_only_the_first_name_counts(authority: Authority, bank_trust: Trust) -> None:
    certificate, key = authority.certify("thief", "shop")
    rejected_connection(Trust(certificate=certificate, key=key, authority=authority.file, names=["bank"]), bank_trust)


def test_a_certificate_without_a_name_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    """An IP address is not a name."""
    certificate, key = authority.certify("127.0.0.1")
    _, at_bank = rejected_connection(
        Trust(certificate=certificate, key=key, authority=authority.file, names=["bank"]), bank_trust
    )
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.read_text())).hexdigest()
    assert at_bank == (
        "the peer's certificate is valid, but is not pinned and has no DNS name; to accept this peer, use the option pinned with its certificate, "
        f"whose SHA-256 fingerprint is {fingerprint}"
    )


def test_the_certificate_of_another_authority_is_rejected(
    authority: Authority, bank_trust: Trust, tmp_path: Path
) -> None:
    """Even if the authority and the certificate have the same names."""
    certificate, key = Authority(tmp_path / "other").certify("shop")
    _, at_bank = rejected_connection(
        Trust(certificate=certificate, key=key, authority=authority.file, names=["bank"]), bank_trust
    )
    assert at_bank.startswith("the peer's certificate is not trusted: ")


def test_an_expired_certificate_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    ended = datetime.now(UTC) - timedelta(minutes=1)
    certificate, key = authority.certify("shop", validity=Validity(ended - timedelta(days=1), ended))
    _, at_bank = rejected_connection(
        Trust(certificate=certificate, key=key, authority=authority.file, names=["bank"]), bank_trust
    )
    assert at_bank == "the peer's certificate is not trusted: certificate has expired"


def test_the_event_names_the_own_certificate_as_the_cause(authority: Authority, bank_trust: Trust) -> None:
    """The operator who has to renew the certificate reads this text."""
    ended = datetime.now(UTC) - timedelta(minutes=1)
    certificate, key = authority.certify("bank", validity=Validity(ended - timedelta(days=1), ended))
    _, at_bank = rejected_connection(
        authority.trust("shop", "bank"), replace(bank_trust, certificate=certificate, key=key)
    )
    assert at_bank == "the peer rejects the certificate of this instance: certificate expired"


def test_an_unpinned_certificate_is_rejected_whatever_its_names(authority: Authority) -> None:
    shop, thief, bank = (authority.certify(name, "shop", signs_itself=True) for name in ("shop", "thief", "bank"))
    bank_trust = Trust(certificate=bank[0], key=bank[1], pinned={"shop": [shop[0]]})
    _, at_bank = rejected_connection(Trust(certificate=thief[0], key=thief[1], pinned={"bank": [bank[0]]}), bank_trust)
    assert at_bank.startswith("the peer's certificate is not trusted: ")


def test_another_certificate_of_the_same_authority_is_not_pinned(authority: Authority) -> None:
    """Another certificate of the authority that signed a pinned one is not trusted."""
    shop, thief, bank = (authority.certify(name) for name in ("shop", "thief", "bank"))
    bank_trust = Trust(certificate=bank[0], key=bank[1], pinned={"shop": [shop[0]]})
    rejected_connection(Trust(certificate=thief[0], key=thief[1], pinned={"bank": [bank[0]]}), bank_trust)


@pytest.mark.threat("T15")
def test_a_peer_without_tls_is_rejected_if_tls_is_required(bank_trust: Trust) -> None:
    at_shop, at_bank = rejected_connection(None, bank_trust)
    assert at_bank == "the peer does not use TLS, which is required"
    assert at_shop.endswith(" before it answered: it may require TLS")


@pytest.mark.threat("T15")
def test_tls_is_not_downgraded(authority: Authority) -> None:
    at_shop, _ = rejected_connection(authority.trust("shop", "bank"), None)
    assert at_shop == "the peer does not use TLS" or "closed" in at_shop or "broke" in at_shop


def tls_result(address: str, context: ssl.SSLContext) -> str:
    """Connects with TLS; returns the error or how the connection ended."""
    host, _, port = address.removeprefix("TCP://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        try:
            with context.wrap_socket(plain) as secured:
                return "closed" if not secured.recv(1) else "accepted"
        except (ssl.SSLError, ConnectionError) as error:
            return str(error)


def client_context(trust: Trust, *, with_certificate: bool = True) -> ssl.SSLContext:
    """Returns a TLS client context that verifies nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL])
    if with_certificate:
        context.load_cert_chain(trust.certificate, trust.key)
    return context


@pytest.mark.threat("T15")
def test_an_older_tls_version_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    old = client_context(authority.trust("shop", "bank"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with RecordingEndpoint("bank", trust=bank_trust) as bank:
        assert "PROTOCOL_VERSION" in tls_result(bank.address, old).upper().replace(" ", "_")
        bank.wait_for(lambda: bank.steps(ConnectionStep.RECEIVE_IO_ERROR))
        assert "unsupported protocol" in bank.events[-1].text


def test_a_peer_without_a_certificate_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    context = client_context(authority.trust("shop", "bank"), with_certificate=False)
    with RecordingEndpoint("bank", trust=bank_trust) as bank:
        assert tls_result(bank.address, context) != "accepted"
        bank.wait_for(lambda: bank.steps(ConnectionStep.RECEIVE_IO_ERROR))
        assert "certificate" in bank.events[-1].text


@pytest.mark.threat("T15")
def test_another_protocol_inside_tls_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    context = client_context(authority.trust("shop", "bank"))
    context.set_alpn_protocols(["h2"])
    with RecordingEndpoint("bank", trust=bank_trust) as bank:
        assert tls_result(bank.address, context) != "accepted"
        bank.wait_for(lambda: bank.steps(ConnectionStep.RECEIVE_IO_ERROR))
        assert "does not offer the protocol ssbroker/1" in bank.events[-1].text


@pytest.mark.threat("T14")
def test_a_peer_that_claims_another_instance_id_gets_nothing_for_it(authority: Authority) -> None:
    """The thief may connect under its own name; rows for the bank do not use its connection."""
    with (
        RecordingEndpoint("shop", trust=authority.trust("shop", "bank", "thief")) as shop,
        RecordingEndpoint("bank", trust=authority.trust("bank", "shop")) as bank,
        RecordingEndpoint("thief", trust=authority.trust("thief", "shop"), instance_id=b"bank............") as thief,
    ):
        assert bank.instance_id == thief.instance_id
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        thief.endpoint.send(shop.address, numbered(1))
        shop.wait_for(shop.numbers)
        assert shop.batches[0][0].principal == "thief"
        for number in range(1, 10):
            shop.endpoint.send(bank.address, numbered(1, first=number))
        bank.wait_for(lambda: bank.numbers() == list(range(10)))
        assert thief.numbers() == []
        assert len(shop.connections()) == 2


def test_a_pinned_authority_certificate_is_rejected(
    authority: Authority,
) -> None:
    other = Authority(authority.folder / "other")
    trust = replace(authority.trust("shop", "bank"), pinned={"bank": [other.file]})
    with pytest.raises(
        OptionError, match="can sign other certificates, which is not allowed together with an authority"
    ):
        TlsContexts.load(trust)


def test_a_pinned_file_may_contain_old_and_new_certificates(authority: Authority) -> None:
    bank, old, new = (authority.certify(name, signs_itself=True) for name in ("bank", "old", "new"))
    both = authority.folder / "both.pem"
    both.write_bytes(b"the old one\n" + old[0].read_bytes() + b"the new one\n" + new[0].read_bytes())
    with RecordingEndpoint(
        "bank", trust=Trust(certificate=bank[0], key=bank[1], pinned={"shop": [both]})
    ) as bank_endpoint:
        for count, (certificate, key) in enumerate((old, new), start=1):
            trust = Trust(certificate=certificate, key=key, pinned={"bank": [bank[0]]})
            with RecordingEndpoint("shop", trust=trust, limits=NO_RETRY) as shop:
                shop.endpoint.send(bank_endpoint.address, numbered(1))
                bank_endpoint.wait_for(
                    lambda: (
                        len(bank_endpoint.numbers()) == count  # noqa: B023 - called immediately
                        or bank_endpoint.steps(ConnectionStep.RECEIVE_IO_ERROR)
                    )
                )
        assert [peer.principal for peer, _ in bank_endpoint.batches] == ["shop", "shop"]


def test_each_certificate_of_a_pinned_file_must_be_valid(authority: Authority) -> None:
    (old, key), (new, _) = (authority.certify(name, signs_itself=True) for name in ("old", "new"))
    both = authority.folder / "both.pem"
    trust = Trust(certificate=old, key=key, pinned={"shop": [both]})
    for broken in (new.read_bytes()[:200], b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        both.write_bytes(old.read_bytes() + broken)
        with pytest.raises(InputError, match=r"both\.pem: expected certificates in PEM, or one in DER"):
            TlsContexts.load(trust)


def test_a_certificate_may_have_only_one_name(authority: Authority) -> None:
    certificate, key = authority.certify("shop")
    trust = Trust(certificate=certificate, key=key, pinned={"bank": [certificate], "shop": [certificate]})
    with pytest.raises(OptionError, match="pinned for two principals, bank and shop"):
        TlsContexts.load(trust)


@pytest.mark.parametrize("part", ["certificate", "key", "authority"])
def test_a_missing_file_is_named(authority: Authority, bank_trust: Trust, part: str) -> None:
    missing = authority.folder / "missing.pem"
    with pytest.raises(InputError, match=r"missing\.pem: .*cannot be read: No such file"):
        TlsContexts.load(changed(bank_trust, part, missing))
    with pytest.raises(InputError, match=r"missing\.pem: the certificate of shop cannot be read"):
        TlsContexts.load(replace(bank_trust, pinned={"shop": [missing]}))


@pytest.mark.parametrize("part", ["certificate", "key", "authority"])
def test_an_invalid_file_is_named(authority: Authority, bank_trust: Trust, part: str) -> None:
    text = authority.folder / "text.pem"
    text.write_text("text")
    with pytest.raises(InputError, match=r"text\.pem"):
        TlsContexts.load(changed(bank_trust, part, text))


def test_a_key_of_another_certificate_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    _, key = authority.certify("other")
    with pytest.raises(
        InputError, match=r"other\.key: the private key does not belong to the certificate .*bank\.pem$"
    ):
        TlsContexts.load(replace(bank_trust, key=key))


def test_a_key_of_another_kind_is_rejected(authority: Authority, bank_trust: Trust) -> None:
    other = rsa.generate_private_key(65_537, 2_048)
    bank_trust.key.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InputError, match=r"bank\.key: the private key does not belong to the certificate .*bank\.pem$"):
        TlsContexts.load(bank_trust)


def test_swapped_files_are_named(bank_trust: Trust) -> None:
    certificate, key = bank_trust.certificate, bank_trust.key
    for part, message in {
        "certificate": rf"^{key}: expected a certificate in PEM format; the file contains none$",
        "key": rf"^{certificate}: expected a private key in PEM format; the file contains none$",
    }.items():
        wrong = key if part == "certificate" else certificate
        with pytest.raises(InputError, match=message):
            TlsContexts.load(changed(bank_trust, part, wrong))
    with pytest.raises(InputError, match=rf"^{key}: expected a certificate"):
        TlsContexts.load(replace(bank_trust, certificate=key, key=certificate))


@pytest.mark.parametrize("part", ["certificate", "key"])
def test_damaged_pem_is_rejected(bank_trust: Trust, part: str) -> None:
    file: Path = getattr(bank_trust, part)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], "MIIB", *lines[2:]]) + "\n")
    with pytest.raises(InputError, match="expected a certificate in PEM format and its private key"):
        TlsContexts.load(bank_trust)


def test_an_encrypted_key_is_rejected_without_a_password_prompt(authority: Authority, bank_trust: Trust) -> None:
    sealed = read_key(bank_trust.key.read_bytes()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open")
    )
    bank_trust.key.write_bytes(sealed)
    with pytest.raises(OptionError, match="the private key is encrypted"):
        TlsContexts.load(bank_trust)


def test_a_key_is_never_printed(bank_trust: Trust) -> None:
    assert str(bank_trust.key) not in repr(bank_trust)
