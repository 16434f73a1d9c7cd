"""Certificates are reloaded without a restart: new connections use them, existing ones continue, invalid files have no effect."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from ssbroker.broker.instance import Instance
from ssbroker.broker.network import tls
from ssbroker.broker.network.tls import PROTOCOL, TlsCredentials, Trust
from ssbroker.exceptions import InputError
from tests.broker.network.raw_sockets import raw_connection
from tests.broker.network.recording_endpoints import Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered


def presented_certificate(endpoint: RecordingEndpoint, trust: Trust) -> bytes | None:
    """Returns the certificate that an endpoint presents to a new connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(trust.certificate, trust.key)
    context.set_alpn_protocols([PROTOCOL])
    with raw_connection(endpoint.address) as opened, context.wrap_socket(opened) as secured:
        return secured.getpeercert(binary_form=True)


def test_new_connections_use_reloaded_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    bank_trust, shop_trust = authority.trust("bank", "shop"), authority.trust("shop", "bank")
    with RecordingEndpoint("bank", trust=bank_trust) as bank, RecordingEndpoint("shop", trust=shop_trust) as shop:
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        before = presented_certificate(bank, shop_trust)
        authority.certify("bank")
        assert presented_certificate(bank, shop_trust) == before
        assert bank.credentials is not None
        bank.credentials.reload()
        after = presented_certificate(bank, shop_trust)
        assert after not in (before, None)
        shop.endpoint.send(bank.address, numbered(1, first=1))
        bank.wait_for(lambda: bank.numbers() == [0, 1])
        assert shop.failed_connections == []
        bank_trust.key.write_text("broken")
        with pytest.raises(
            InputError, match=r"bank\.key: expected a private key in PEM format; the file contains none"
        ):
            bank.credentials.reload()
        assert presented_certificate(bank, shop_trust) == after


def test_the_principal_of_a_pinned_file_may_change(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = {name: authority.certify(name, signs_itself=True) for name in ("bank", "shop", "new")}
    pins = tmp_path / "pinned.pem"
    pins.write_bytes(files["shop"][0].read_bytes())
    trust = Trust(certificate=files["bank"][0], key=files["bank"][1], pinned={"the shop": [pins]})
    new = Trust(certificate=files["new"][0], key=files["new"][1], pinned={"the bank": [files["bank"][0]]})
    with RecordingEndpoint("bank", trust=trust) as bank, RecordingEndpoint("shop", trust=new) as shop:
        shop.endpoint.send(bank.address, numbered(1))
        shop.wait_for(lambda: shop.failed_connections)
        pins.write_bytes(files["new"][0].read_bytes())
        assert bank.credentials is not None
        bank.credentials.reload()
        shop.wait_for(lambda: not shop.endpoint.send(bank.address, numbered(1)).is_full)
        bank.wait_for(bank.numbers)
        assert bank.batches[0][0].principal == "the shop"


def test_a_certificate_that_the_authority_has_not_signed_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and when the files have changed. Peers that trust the same authority refuse it."""
    own, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    trust = own.trust("bank", "shop")
    credentials = TlsCredentials(trust)
    assert caplog.messages == []
    foreign = other.trust("bank", "shop")
    mixed = Trust(certificate=foreign.certificate, key=foreign.key, authority=trust.authority, names=["shop"])
    text = (
        f"{foreign.certificate}: the certificate is not signed by {trust.authority}: unable to get local issuer certificate; "
        "peers that trust only this authority refuse it"
    )
    TlsCredentials(mixed).reload()
    assert caplog.messages == [text]
    trust.certificate.write_bytes(foreign.certificate.read_bytes())
    trust.key.write_bytes(foreign.key.read_bytes())
    credentials.reload()
    assert [text.replace("other", "own", 1)] == caplog.messages[1:]
    pinned = Trust(certificate=foreign.certificate, key=foreign.key, pinned={"shop": [own.certify("shop")[0]]})
    TlsCredentials(pinned)
    assert len(caplog.messages) == 2, "there is no authority"


def test_changed_files_are_read_once_they_are_stable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trust = Authority(tmp_path).trust("bank", "shop")
    credentials = TlsCredentials(trust)
    first = credentials.contexts

    def levels_after_checks(times: int) -> list[str]:
        caplog.clear()
        for _ in range(times):
            credentials.reload_if_changed()
        return [record.levelname for record in caplog.records]

    with caplog.at_level(logging.INFO, "ssbroker.broker"):
        assert levels_after_checks(3) == []
        valid_key = trust.key.read_bytes()
        trust.key.write_bytes(valid_key + b"\n")
        assert levels_after_checks(1) == []
        trust.key.write_bytes(valid_key + b"\n\n")
        assert levels_after_checks(1) == []
        assert credentials.contexts is first
        assert levels_after_checks(3) == ["INFO"]
        second = credentials.contexts
        assert second is not first
        trust.key.unlink()
        assert levels_after_checks(5) == ["WARNING"]
        assert "bank.key: cannot be read" in caplog.text
        assert credentials.contexts is second
        trust.key.write_bytes(valid_key)
        assert levels_after_checks(5) == ["INFO"]


def test_unreadable_files_are_read_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that fails, for lack of permission or of file descriptors, does not count as a change of the file."""
    trust = Authority(tmp_path).trust("bank", "shop")
    credentials = TlsCredentials(trust)
    first = credentials.contexts
    trust.key.write_bytes(trust.key.read_bytes() + b"\n")
    read_bytes = Path.read_bytes
    reason = "Permission denied"

    def fail_for_key(path: Path) -> bytes:
        if path == trust.key:
            raise PermissionError(13, reason)
        return read_bytes(path)

    with caplog.at_level(logging.INFO, "ssbroker.broker"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", fail_for_key)
            for reason in ("Permission denied", "Too many open files"):  # noqa: B007 - `fail_for_key` raises it
                for _ in range(3):
                    credentials.reload_if_changed()
        assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
        assert credentials.contexts is first
        credentials.reload_if_changed()
        assert credentials.contexts is not first
        second = credentials.contexts
        credentials.reload_if_changed()
        assert credentials.contexts is second
        assert caplog.records[-1].levelname == "INFO"


def test_a_server_reloads_certificates_on_request(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    trust = authority.trust("bank", "shop")
    with Instance.create(tmp_path / "bank", name="bank", background=False) as instance:
        with instance.serve(port=0, trust=trust) as server:
            assert server.reload_certificates()
            trust.certificate.write_text("broken")
            with pytest.raises(InputError):
                server.reload_certificates()
        with instance.serve(port=0, allow_unencrypted=True) as server:
            assert not server.reload_certificates()


def test_a_file_that_is_removed_while_it_is_read_is_an_input_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal removes and copies the files; neither `ssbroker serve` nor the thread that looks for changes may end."""
    trust = Authority(tmp_path).trust("bank", "shop")
    credentials = TlsCredentials(trust)
    read = tls._read

    def read_and_remove(file: Path) -> bytes:
        content = read(file)
        if file == trust.key:
            file.unlink()
        return content

    monkeypatch.setattr(tls, "_read", read_and_remove)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        credentials.reload()
