"""`ssbroker certificates`, which creates what `ssbroker serve` needs."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.network.tls import TlsContexts, Trust
from ssbroker.security.certificates import (
    Validity,
    can_sign,
    fingerprint,
    make_authority,
    make_certificate,
    read_certificate,
)
from tests.broker import sample_databases
from tests.broker.sample_databases import ORDERS, SHOP, STOCK
from tests.cli.conftest import Run
from tests.cli.serve_process import DEADLINE, ServeProcess


def trust(folder: Path, name: str, *names: str) -> Trust:
    return Trust(
        certificate=folder / f"{name}.pem", key=folder / f"{name}.key", authority=folder / "authority.pem", names=names
    )


def test_each_name_gets_a_certificate_of_one_authority(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "keys"
    result = run("certificates", folder, "--name", "shop", "--name", "stock", "--name", "shop")
    assert (result.status, result.err, result.out.count("\n")) == (0, "", 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "authority.key",
        "authority.pem",
        "shop.key",
        "shop.pem",
        "stock.key",
        "stock.pem",
    ]
    assert can_sign((folder / "authority.pem").read_bytes())
    assert not can_sign((folder / "shop.pem").read_bytes())
    TlsContexts.load(trust(folder, "shop", "stock"))


def test_keys_are_readable_by_their_owner_only(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    assert {stat.S_IMODE(key.stat().st_mode) for key in tmp_path.glob("*.key")} == {0o600}


def test_existing_authority_signs_more_certificates(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    before = fingerprint((tmp_path / "authority.pem").read_bytes())
    assert run("certificates", tmp_path, "--name", "stock", "--days", "7").status == 0
    assert fingerprint((tmp_path / "authority.pem").read_bytes()) == before
    TlsContexts.load(trust(tmp_path, "stock", "shop"))


@pytest.mark.parametrize(
    "name",
    [
        "authority",
        "Authority",
        "",
        "../shop",
        "a/b",
        ".",
        "..",
        "a b",
        " ",
        "shop\n",
        "a\nb",
        "\t",
        "-x",
        "a..b",
        "a.",
        "*",
    ],
)
def test_invalid_names_are_refused(tmp_path: Path, run: Run, name: str) -> None:
    result = run("certificates", tmp_path / "keys", "--name", name)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("name", ["a" * 65, "sh\N{LATIN SMALL LETTER O WITH DIAERESIS}p"])
def test_name_that_a_certificate_cannot_have_creates_no_files(tmp_path: Path, run: Run, name: str) -> None:
    """Neither an authority nor certificates for the names before it."""
    result = run("certificates", tmp_path / "keys", "--name", "stock", "--name", name)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "keys").exists()


def test_existing_certificate_is_not_overwritten(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    before = (tmp_path / "shop.pem").read_bytes()
    result = run("certificates", tmp_path, "--name", "stock", "--name", "shop")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert (tmp_path / "shop.pem").read_bytes() == before
    assert not (tmp_path / "stock.pem").exists()


@pytest.mark.parametrize("name", ["shop", "authority"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_private_key_is_never_overwritten(tmp_path: Path, run: Run, name: str, kind: str) -> None:
    """Even if its certificate is missing, or the key is a link."""
    folder, link_target = tmp_path / "keys", tmp_path / "elsewhere"
    folder.mkdir()
    key = folder / f"{name}.key"
    if kind == "file":
        key.write_text("precious")
    else:
        key.symlink_to(link_target)
    if kind == "link":
        link_target.write_text("precious")
    result = run("certificates", folder, "--name", "stock", "--name", "shop")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"{name}.key: the file already exists" in result.err
    assert [path.name for path in folder.iterdir()] == [key.name]
    assert link_target.exists() == (kind == "link")
    assert kind == "dangling" or key.read_text() == "precious"


def test_failure_midway_removes_new_files(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that another process created in the meantime is kept."""

    def linked(source: Path, target: Path) -> None:
        if target.name == "stock.key":
            target.write_text("content of another process")
        link(source, target)

    link = os.link
    monkeypatch.setattr(os, "link", linked)
    result = run("certificates", tmp_path, "--name", "shop", "--name", "stock")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "stock.key: cannot be written: File exists" in result.err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("stock.key", "content of another process")
    ]


def test_authority_without_its_key_is_refused(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    (tmp_path / "authority.key").unlink()
    result = run("certificates", tmp_path, "--name", "stock")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert "authority.key: cannot be read" in result.err


def test_certificate_expires_no_later_than_its_authority(tmp_path: Path, run: Run) -> None:
    """Even if a longer validity is requested; the output shows the actual end."""
    assert run("certificates", tmp_path, "--name", "shop", "--days", "30").status == 0
    result = run("certificates", tmp_path, "--name", "stock", "--days", "365")
    authority, made = (read_certificate((tmp_path / f"{name}.pem").read_bytes()) for name in ("authority", "stock"))
    assert made.not_valid_after_utc == authority.not_valid_after_utc
    assert f"valid until {authority.not_valid_after_utc:%Y-%m-%d}" in result.out


@pytest.mark.parametrize(
    "flaw", ["the authority expired on", "it cannot sign other certificates", "not the private key of"]
)
def test_invalid_authority_signs_nothing(tmp_path: Path, run: Run, flaw: str) -> None:
    now = datetime.now(UTC)
    expired = Validity(now - timedelta(days=2), now - timedelta(days=1))
    valid = Validity(now - timedelta(days=2), now + timedelta(days=1))
    made = make_authority("old", expired) if "expired" in flaw else make_authority("old", valid)
    if "cannot sign" in flaw:
        made = make_certificate(["old"], valid)
    key = make_authority("old", valid).key if "private key" in flaw else made.key
    (tmp_path / "authority.pem").write_bytes(made.certificate)
    (tmp_path / "authority.key").write_bytes(key)
    result = run("certificates", tmp_path, "--name", "shop")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert flaw in result.err
    assert not (tmp_path / "shop.pem").exists()


def test_ip_address_is_not_a_name(tmp_path: Path, run: Run) -> None:
    """The certificate would name an address, but peers are identified by DNS name."""
    result = run("certificates", tmp_path / "keys", "--name", "127.0.0.1")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "--name: 127.0.0.1 is an IP address; expected the name of an instance" in result.err


@pytest.mark.rule("P24")
def test_certificates_work_between_two_processes(tmp_path: Path, run: Run) -> None:
    keys = tmp_path / "keys"
    run("certificates", keys, "--name", "shop", "--name", "stock")
    for name, make in (("shop", sample_databases.shop), ("stock", sample_databases.stock)):
        with Instance.create(tmp_path / name, name=name, background=False) as instance:
            make(instance)

    def options(name: str, other: str) -> list[str]:
        files = {"--certificate": f"{name}.pem", "--key": f"{name}.key", "--authority": "authority.pem"}
        tls = [part for option, file in files.items() for part in (option, str(keys / file))]
        return ["--listen", "127.0.0.1:0", "--name", other, *tls]

    with (
        ServeProcess(tmp_path / "shop", *options("shop", "stock")) as shop_process,
        ServeProcess(tmp_path / "stock", *options("stock", "shop")) as stock_process,
        Instance.open(tmp_path / "shop", background=False) as shop,
        Instance.open(tmp_path / "stock") as stock,
    ):
        sales, orders = shop.database("Sales"), stock.database("Stock")
        sales.create_route("there", service_name=STOCK, address=f"TCP://{stock_process.serving['listen']}")
        orders.create_route("back", service_name=SHOP, address=f"TCP://{shop_process.serving['listen']}")
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
        with orders.transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"two chairs"]
        assert [shop_process.stop(), stock_process.stop()] == [0, 0]
