"""`ssbroker certificates`: what `ssbroker serve` needs to begin with (P24, N8)."""

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
    fingerprint,
    make_authority,
    make_certificate,
    may_sign,
    read_certificate,
)
from tests.broker import shops
from tests.broker.shops import ORDERS, SHOP, STOCK
from tests.cli.conftest import Run
from tests.cli.served import DEADLINE, Served


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
    assert may_sign((folder / "authority.pem").read_bytes())
    assert not may_sign((folder / "shop.pem").read_bytes())
    TlsContexts.of(trust(folder, "shop", "stock"))


def test_keys_are_for_their_owner_alone(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    assert {stat.S_IMODE(key.stat().st_mode) for key in tmp_path.glob("*.key")} == {0o600}


def test_the_authority_that_is_there_signs_further_ones(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    before = fingerprint((tmp_path / "authority.pem").read_bytes())
    assert run("certificates", tmp_path, "--name", "stock", "--days", "7").status == 0
    assert fingerprint((tmp_path / "authority.pem").read_bytes()) == before
    TlsContexts.of(trust(tmp_path, "stock", "shop"))


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
def test_a_name_that_is_no_file_is_refused(tmp_path: Path, run: Run, name: str) -> None:
    result = run("certificates", tmp_path / "keys", "--name", name)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("name", ["a" * 65, "sh\N{LATIN SMALL LETTER O WITH DIAERESIS}p"])
def test_a_name_that_no_certificate_can_have_leaves_nothing_behind(tmp_path: Path, run: Run, name: str) -> None:
    """Not the authority either, nor the certificates of the names before it."""
    result = run("certificates", tmp_path / "keys", "--name", "stock", "--name", name)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "keys").exists()


def test_nothing_is_overwritten(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    before = (tmp_path / "shop.pem").read_bytes()
    result = run("certificates", tmp_path, "--name", "stock", "--name", "shop")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert (tmp_path / "shop.pem").read_bytes() == before
    assert not (tmp_path / "stock.pem").exists()


@pytest.mark.parametrize("name", ["shop", "authority"])
@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_a_private_key_is_never_overwritten(tmp_path: Path, run: Run, name: str, kind: str) -> None:
    """Not one whose certificate is gone either, nor what a link leads to."""
    folder, there = tmp_path / "keys", tmp_path / "elsewhere"
    folder.mkdir()
    key = folder / f"{name}.key"
    if kind == "file":
        key.write_text("precious")
    else:
        key.symlink_to(there)
    if kind == "link":
        there.write_text("precious")
    result = run("certificates", folder, "--name", "stock", "--name", "shop")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert f"{name}.key: is there already" in result.err
    assert [path.name for path in folder.iterdir()] == [key.name]
    assert there.exists() == (kind == "link")
    assert kind == "dangling" or key.read_text() == "precious"


def test_what_fails_midway_leaves_nothing_new(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what came in between stays: here another process makes a key of the same name."""

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).name == "stock.key":
            Path(path).write_text("another's")
        return system(path, flags, mode)

    system = os.open
    monkeypatch.setattr(os, "open", opened)
    result = run("certificates", tmp_path, "--name", "shop", "--name", "stock")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "stock.key: cannot be written: File exists" in result.err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("stock.key", "another's")]


def test_an_authority_without_its_key_is_refused(tmp_path: Path, run: Run) -> None:
    run("certificates", tmp_path, "--name", "shop")
    (tmp_path / "authority.key").unlink()
    result = run("certificates", tmp_path, "--name", "stock")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert "authority.key: cannot be read" in result.err


def test_no_certificate_holds_longer_than_its_authority(tmp_path: Path, run: Run) -> None:
    """Who makes one says until when it is believed, not what was asked for."""
    assert run("certificates", tmp_path, "--name", "shop", "--days", "30").status == 0
    result = run("certificates", tmp_path, "--name", "stock", "--days", "365")
    authority, made = (read_certificate((tmp_path / f"{name}.pem").read_bytes()) for name in ("authority", "stock"))
    assert made.not_valid_after_utc == authority.not_valid_after_utc
    assert f"until {authority.not_valid_after_utc:%Y-%m-%d}" in result.out


@pytest.mark.parametrize("flaw", ["has ended on", "it may sign no others", "it is another one's"])
def test_an_authority_that_nobody_would_believe_signs_nothing(tmp_path: Path, run: Run, flaw: str) -> None:
    now = datetime.now(UTC)
    over = Validity(now - timedelta(days=2), now - timedelta(days=1))
    holds = Validity(now - timedelta(days=2), now + timedelta(days=1))
    made = make_authority("old", over) if "ended" in flaw else make_authority("old", holds)
    if "sign" in flaw:
        made = make_certificate(["old"], holds)
    key = make_authority("old", holds).key if "another" in flaw else made.key
    (tmp_path / "authority.pem").write_bytes(made.certificate)
    (tmp_path / "authority.key").write_bytes(key)
    result = run("certificates", tmp_path, "--name", "shop")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert flaw in result.err
    assert not (tmp_path / "shop.pem").exists()


def test_an_address_is_nobodys_name(tmp_path: Path, run: Run) -> None:
    """It would stand in the certificate as an address, and who connects is known by a name of DNS."""
    result = run("certificates", tmp_path / "keys", "--name", "127.0.0.1")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "--name: expected the name of an instance" in result.err


@pytest.mark.rule("P24")
def test_two_processes_believe_each_other(tmp_path: Path, run: Run) -> None:
    keys = tmp_path / "keys"
    run("certificates", keys, "--name", "shop", "--name", "stock")
    for name, make in (("shop", shops.shop), ("stock", shops.stock)):
        with Instance.create(tmp_path / name, name=name, background=False) as instance:
            make(instance)

    def options(name: str, other: str) -> list[str]:
        files = {"--certificate": f"{name}.pem", "--key": f"{name}.key", "--authority": "authority.pem"}
        said = [part for option, file in files.items() for part in (option, str(keys / file))]
        return ["--listen", "127.0.0.1:0", "--name", other, *said]

    with (
        Served(tmp_path / "shop", *options("shop", "stock")) as near,
        Served(tmp_path / "stock", *options("stock", "shop")) as far,
        Instance.open(tmp_path / "shop", background=False) as shop,
        Instance.open(tmp_path / "stock") as stock,
    ):
        sales, orders = shop.database("Sales"), stock.database("Stock")
        sales.create_route("there", service_name=STOCK, address=f"TCP://{far.serving['listen']}")
        orders.create_route("back", service_name=SHOP, address=f"TCP://{near.serving['listen']}")
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
        with orders.transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"two chairs"]
        assert [near.stop(), far.stop()] == [0, 0]
