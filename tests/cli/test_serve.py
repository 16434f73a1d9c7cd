"""`ssbroker serve` in processes of its own (P3, N16, N28)."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ssbroker import Instance
from ssbroker.broker.database import Database
from ssbroker.cli.serve import SignalQueue, told_to_stop
from tests.broker import shops
from tests.broker.network.parties import Authority
from tests.broker.shops import ORDERS, SHOP, STOCK
from tests.cli.conftest import Run
from tests.cli.served import DEADLINE, Served

PLAIN = ("--listen", "127.0.0.1:0", "--allow-unencrypted")
WATCHED = (*PLAIN, "--monitor", "127.0.0.1:0")
OWN = ("--certificate", "x.pem", "--key", "x.key")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        shops.shop(instance)
    return tmp_path / "shop"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def told(address: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(address, timeout=DEADLINE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def lead(database: Database, service: str, address: str) -> None:
    """Makes the route to a service of another instance."""
    database.create_route(f"to {service}", service_name=service, address=address)


@pytest.mark.rule("P3")
def test_two_processes_talk_while_programs_use_their_folders(folder: Path, tmp_path: Path, stack: ExitStack) -> None:
    """What other processes commit goes out through the one that serves."""
    with Instance.create(tmp_path / "stock", name="stock", background=False) as instance:
        shops.stock(instance)
    near = stack.enter_context(Served(folder, *PLAIN))
    far = stack.enter_context(Served(tmp_path / "stock", *PLAIN))
    shop = stack.enter_context(Instance.open(folder))
    stock = stack.enter_context(Instance.open(tmp_path / "stock"))
    lead(shop.database("Sales"), STOCK, f"TCP://{far.serving['listen']}")
    lead(stock.database("Stock"), SHOP, f"TCP://{near.serving['listen']}")
    with shop.database("Sales").transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
    with stock.database("Stock").transaction() as t:
        (row,) = t.receive(ORDERS, timeout=DEADLINE).to_pylist()
        t.send(row["conversation_handle"], b"done")
        t.end_conversation(row["conversation_handle"])
    assert row["message_body"] == b"two chairs"
    with shop.database("Sales").transaction() as t:
        assert t.receive(shops.REPLIES, top=1, timeout=DEADLINE)["message_body"].to_pylist() == [b"done"]
    stopped = [each.stop() for each in (near, far)]
    assert stopped == [0, 0]


def test_sigterm_ends_it_cleanly_and_what_was_sent_waits(folder: Path) -> None:
    with Served(folder, *PLAIN) as served, Instance.open(folder, background=False) as instance:
        sales = instance.database("Sales")
        lead(sales, STOCK, "TCP://127.0.0.1:1")
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
        assert served.stop() == 0
        assert served.record("stopping")["instance"] == "shop"
        assert instance.view("sys.transmission_queue").num_rows == 1
    with Served(folder, *PLAIN) as again:
        assert again.stop(signal.SIGINT) == 0


def test_sighup_has_certificates_read_again_and_broken_ones_end_nothing(folder: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    trust = authority.trust("shop", "bank")
    options = ("--certificate", trust.certificate, "--key", trust.key, "--authority", authority.file, "--name", "bank")
    with Served(folder, "--listen", "127.0.0.1:0", *map(str, options)) as served:
        served.process.send_signal(signal.SIGHUP)
        assert served.record("the certificates were read again")
        trust.key.write_text("broken")
        served.process.send_signal(signal.SIGHUP)
        assert served.record("the certificates cannot be used: ")["level"] == "warning"
        assert served.stop() == 0


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGHUP")
def test_sighup_ends_nothing_while_the_process_starts(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    os.mkfifo(config)  # so that it stands still where it begins to read its settings
    served = Served(folder, *PLAIN, "--config", str(config))
    with config.open("w") as settings:
        served.process.send_signal(signal.SIGHUP)
        settings.write('log_level = "info"')
    with served:
        assert served.stop() == 0


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGHUP")
def test_who_starts_it_may_have_sighup_ignored_until_it_is_handled(folder: Path) -> None:
    """As the unit of systemd does: Python takes most of a second before anything here could."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        served = Served(folder, *PLAIN)
        served.process.send_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    with served:
        served.process.send_signal(signal.SIGHUP)
        assert served.record("there are no certificates to read again")
        assert served.stop() == 0


def test_it_tells_programs_how_it_is_doing(folder: Path) -> None:
    with Served(folder, *WATCHED) as served:
        monitor = served.serving["monitor"]
        status, body = told(monitor, "/health")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        status, body = told(monitor, "/metrics")
        assert status == 200
        assert b'ssbroker_database_enabled{database="Sales"} 1.0' in body


def test_health_names_the_database_that_is_gone(folder: Path) -> None:
    (folder / "Sales.sqlite").unlink()
    with Served(folder, *WATCHED) as served:
        status, body = told(served.serving["monitor"], "/health")
        assert status == 503
        assert list(json.loads(body)["problems"]) == ["database Sales"]


def test_status_says_who_serves(folder: Path, run: Run) -> None:
    assert json.loads(run("status", folder, "--json").out)["serving"] is None
    with Served(folder, *PLAIN) as served:
        found = json.loads(run("status", folder, "--json").out)["serving"]
        assert found["process"] == served.process.pid
        assert found["listens"] == served.serving["listen"]
        assert found["connections"] == []
        shown = " ".join(run("status", folder).out.split())
        assert f"Process {served.process.pid} serves the instance at {served.serving['listen']}" in shown
        served.stop()
        assert json.loads(run("status", folder, "--json").out)["serving"] is None


def test_one_process_serves_at_a_time(folder: Path, run: Run) -> None:
    with Served(folder, *PLAIN) as served:
        result = run("serve", folder, *PLAIN)
        assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)  # it may end, and then this one can
        assert str(served.process.pid) in result.err
        served.process.kill()
        served.process.wait(DEADLINE)
    with Served(folder, *PLAIN) as again:
        assert again.stop() == 0


@pytest.mark.parametrize("option", ["--listen", "--monitor"])
def test_a_port_in_use_is_no_wrong_setting(folder: Path, run: Run, option: str) -> None:
    """Whoever has it may go, so a start is worth repeating: systemd does where the status is not 2."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        result = run("serve", folder, *PLAIN, option, f"127.0.0.1:{other.getsockname()[1]}")
    assert (result.status, result.out) == (1, "")
    assert result.err.splitlines()[-1].startswith("ssbroker: 127.0.0.1:")
    assert "cannot be listened on" in result.err


def test_a_file_says_how_and_options_go_before_it(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        'listen = "127.0.0.1:1"\nallow_unencrypted = true\n[configuration]\ndirectory = "services.csv"\ndatabase = "Sales"'
    )
    (tmp_path / "services.csv").write_text(f"service_name,address\n{STOCK},LOCAL\n")
    with Instance.open(folder, background=False) as instance:
        instance.database("Sales").drop_route("AutoCreatedLocal")
        stock = shops.stock(instance)
        with Served(folder, "--config", str(config), "--listen", "127.0.0.1:0") as served:
            assert not served.serving["listen"].endswith(":1")
            with instance.database("Sales").transaction() as t:
                t.send(t.begin_dialog(SHOP, STOCK), b"two chairs")
            with stock.transaction() as t:
                assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"two chairs"]
            assert served.stop() == 0


def test_a_directory_that_is_not_there_is_told_at_the_start(folder: Path, tmp_path: Path, run: Run) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('allow_unencrypted = true\nlisten = "127.0.0.1:0"\n[configuration]\ndirectory = "no.csv"')
    result = run("serve", folder, "--config", config)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert f"configuration.directory: {tmp_path / 'no.csv'}: cannot be read: No such file" in result.err


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("dials_at_once = 1000001", "dials_at_once: expected a whole number from 1 to 1000000; got 1000001"),
        (
            "max_message_bytes = 999998977",
            "max_message_bytes: expected a whole number from 1 to 999998976; got 999998977",
        ),
    ],
)
def test_the_limits_of_a_file_are_those_of_the_endpoint_and_of_the_protocol(
    folder: Path, tmp_path: Path, run: Run, limit: str, said: str
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f"[limits]\n{limit}\n")
    result = run("serve", folder, *PLAIN, "--config", config)
    assert (result.status, result.out) == (2, "")
    assert said in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "who may connect: give --certificate, --key and --authority with --name, or --pin"),
        (("--certificate", "x.pem"), "--certificate and --key: expected both"),
        (("--certificate", "x.pem", "--key", "x.key"), "nobody could connect"),
        ((*OWN, "--authority", "a.pem"), "--authority: it vouches only for those who are named; give --name"),
        ((*OWN, "--name", "stock"), "--name: it is one that an authority may vouch for; give --authority"),
        (("--certificate", "x.pem", "--allow-unencrypted"), "expected one of them, got both"),
        (("--pin", "stock"), "--pin: expected NAME=FILE, got 'stock'"),
        (("--listen", "here", "--monitor", "here"), "--monitor: expected HOST:PORT"),
        (("--log", "xml"), "--log: expected json or text"),
        (("--log-level", "loud"), "--log-level: expected one of"),
        (("--config", "no.toml"), "no.toml: cannot be read"),
        (("--certificate", "x.pem", "--key", "x.key", "--pin", "stock=x.pem"), "x.pem: "),
    ],
)
def test_what_is_wrong_is_one_line(folder: Path, run: Run, options: tuple[str, ...], said: str) -> None:
    result = run("serve", folder, *options)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err


def test_what_is_no_instance_is_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / str(uuid.UUID(int=7)), tmp_path / "empty"):
        result = run("serve", folder, *PLAIN)
        assert (result.status, result.err.count("\n")) == (1, 1)  # its disk may not be there yet
        assert result.err.startswith(f"ssbroker: {folder}: is not the folder of an instance")


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (PLAIN, 1, "is not the folder of an instance"),
        ((), 2, "who may connect: give --certificate"),
        (("--certificate", "x.pem", "--key", "x.key", "--pin", "stock=x.pem"), 2, "x.pem: "),
    ],
)
def test_a_start_that_fails_is_a_line_of_json_where_the_log_is(
    tmp_path: Path, run: Run, options: tuple[str, ...], status: int, said: str
) -> None:
    if status == 2:  # these are looked at with the instance
        Instance.create(tmp_path / "here", name="here", background=False).close()
    result = run("serve", tmp_path / "here", "--log", "json", *options)
    (line,) = map(json.loads, result.err.splitlines())
    assert (result.status, result.out, line["level"], line["logger"]) == (status, "", "error", "ssbroker.serve")
    assert said in line["message"]


def test_the_help_says_where_it_listens_if_nothing_is_said(run: Run) -> None:
    told = " ".join(run("serve", "--help").out.replace("│", " ").split())
    assert "Where to listen, at port 4022 if none is said; 127.0.0.1 unless told otherwise." in told


def test_a_signal_may_come_at_any_step_of_the_wait_for_it() -> None:
    """A handler that waits for a lock of the thread that it interrupts waits for ever: so SIGTERM ended nothing, once in some 30 times."""
    steps = 0
    while True:
        steps += 1
        told, passed = SignalQueue(), 0

        def tells(frame: FrameType, event: str, _: object, told: SignalQueue = told, at: int = steps) -> Any:
            nonlocal passed
            if frame.f_code.co_name != "tell" and event == "line":
                passed += 1
                if passed == at:
                    told.tell()
            return tells

        sys.settrace(tells)
        was_told = told.wait(0.01)
        sys.settrace(None)
        assert was_told or told.wait(0.0) == (passed >= steps)
        if passed < steps:
            return


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGINT"), ("SIGINT", "SIGTERM"), ("SIGTERM", "SIGTERM")])
def test_a_second_signal_ends_it_at_once_whichever_it_is(first: str, second: str) -> None:
    before = signal.getsignal(signal.Signals[second])
    with told_to_stop() as stopped:
        signal.raise_signal(signal.Signals[first])
        assert stopped.wait(0.0)
        assert signal.getsignal(signal.Signals[second]) is signal.SIG_DFL
    assert signal.getsignal(signal.Signals[second]) is before
