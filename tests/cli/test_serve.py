"""`ssbroker serve` in other processes."""

from __future__ import annotations

import json
import os
import re
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
from ssbroker.cli.serve import SignalQueue, stop_signals
from tests.broker import sample_databases
from tests.broker.network.recording_endpoints import Authority
from tests.broker.sample_databases import ORDERS, SHOP, STOCK
from tests.cli.conftest import Run
from tests.cli.serve_process import DEADLINE, ServeProcess

UNENCRYPTED = ("--listen", "127.0.0.1:0", "--allow-unencrypted")
WITH_HTTP = (*UNENCRYPTED, "--http", "127.0.0.1:0")
CERTIFICATE = ("--certificate", "x.pem", "--key", "x.key")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        sample_databases.shop(instance)
    return tmp_path / "shop"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def get(address: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection(address, timeout=DEADLINE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def create_remote_route(database: Database, service: str, address: str) -> None:
    """Creates a route to a service of another instance."""
    database.create_route(f"to {service}", service_name=service, address=address)


@pytest.mark.rule("P3")
def test_two_processes_exchange_messages_while_programs_use_their_folders(
    folder: Path, tmp_path: Path, stack: ExitStack
) -> None:
    """The serving process sends what other processes commit."""
    with Instance.create(tmp_path / "stock", name="stock", background=False) as instance:
        sample_databases.stock(instance)
    shop_process = stack.enter_context(ServeProcess(folder, *UNENCRYPTED))
    stock_process = stack.enter_context(ServeProcess(tmp_path / "stock", *UNENCRYPTED))
    shop = stack.enter_context(Instance.open(folder))
    stock = stack.enter_context(Instance.open(tmp_path / "stock"))
    create_remote_route(shop.database("Sales"), STOCK, f"TCP://{stock_process.serving['listen']}")
    create_remote_route(stock.database("Stock"), SHOP, f"TCP://{shop_process.serving['listen']}")
    with shop.database("Sales").transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
    with stock.database("Stock").transaction() as t:
        (row,) = t.receive(ORDERS, timeout=DEADLINE).to_pylist()
        t.send(row["conversation_handle"], b"done")
        t.end_conversation(row["conversation_handle"])
    assert row["message_body"] == b"two chairs"
    with shop.database("Sales").transaction() as t:
        assert t.receive(sample_databases.REPLIES, top=1, timeout=DEADLINE)["message_body"].to_pylist() == [b"done"]
    stopped = [each.stop() for each in (shop_process, stock_process)]
    assert stopped == [0, 0]


def test_sigterm_stops_cleanly_and_undelivered_messages_remain(folder: Path) -> None:
    with ServeProcess(folder, *UNENCRYPTED) as served, Instance.open(folder, background=False) as instance:
        sales = instance.database("Sales")
        create_remote_route(sales, STOCK, "TCP://127.0.0.1:1")
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
        assert served.stop() == 0
        assert served.wait_for_record("stopping")["instance"] == "shop"
        assert instance.view("sys.transmission_queue").num_rows == 1
    with ServeProcess(folder, *UNENCRYPTED) as again:
        assert again.stop(signal.SIGINT) == 0


def test_sighup_reloads_certificates_and_keeps_the_old_ones_if_invalid(folder: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    trust = authority.trust("shop", "bank")
    options = ("--certificate", trust.certificate, "--key", trust.key, "--authority", authority.file, "--name", "bank")
    with ServeProcess(folder, "--listen", "127.0.0.1:0", *map(str, options)) as served:
        served.process.send_signal(signal.SIGHUP)
        assert served.wait_for_record("certificates reloaded")
        trust.key.write_text("broken")
        served.process.send_signal(signal.SIGHUP)
        assert served.wait_for_record("the reloaded certificates cannot be used: ")["level"] == "warning"
        assert served.stop() == 0


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGHUP")
def test_sighup_during_the_start_is_ignored(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    os.mkfifo(config)  # blocks the process while it reads its settings
    served = ServeProcess(folder, *UNENCRYPTED, "--config", str(config))
    with config.open("w") as settings:
        served.process.send_signal(signal.SIGHUP)
        settings.write('log_level = "info"')
    with served:
        assert served.stop() == 0


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGHUP")
def test_sighup_ignored_by_the_parent_until_it_is_handled(folder: Path) -> None:
    """As the systemd unit does, because Python needs most of a second to start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        served = ServeProcess(folder, *UNENCRYPTED)
        served.process.send_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    with served:
        served.process.send_signal(signal.SIGHUP)
        assert served.wait_for_record("no certificates to reload")
        assert served.stop() == 0


def test_health_and_metrics(folder: Path) -> None:
    with ServeProcess(folder, *WITH_HTTP) as served:
        address = served.serving["http"]
        status, body = get(address, "/health")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        status, body = get(address, "/metrics")
        assert status == 200
        assert b'ssbroker_database_enabled{database="Sales"} 1.0' in body


def test_the_token_of_a_file_is_required(folder: Path, tmp_path: Path, run: Run) -> None:
    token = tmp_path / "token.txt"
    for content, message in (
        (None, "other machines can reach 0.0.0.0, so a token is required: a file with at least 16 characters"),
        ("short", "the token must have at least 16 visible ASCII characters, and no spaces; it has 5 characters"),
    ):
        options = () if content is None else ("--http-token", token)
        token.write_text(content or "")
        result = run("serve", folder, *UNENCRYPTED, "--http", "0.0.0.0:0", *options)
        assert (result.status, result.err) == (2, f"ssbroker: --http-token: {message}\n")
    assert run("serve", folder, *UNENCRYPTED, "--http-token", token).status == 2
    assert run("serve", folder, *UNENCRYPTED, "--http", "--http-token", tmp_path / "none").status == 2
    token.write_text("an-example-of-a-token\n")
    with ServeProcess(folder, *UNENCRYPTED, "--http", "0.0.0.0:0", "--http-token", str(token)) as served:
        address = served.serving["http"].replace("0.0.0.0", "127.0.0.1")
        assert get(address, "/state")[0] == 401
        assert get(address, "/health") == (200, b'{"status":"ok"}')
        assert served.stop() == 0


def test_http_without_its_libraries_says_what_to_install(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ssbroker.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("serve", folder, *UNENCRYPTED, "--http", "127.0.0.1:0")
    assert (result.status, result.err) == (
        2,
        "ssbroker: --http needs starlette and uvicorn: pip install 'ssbroker[http]'\n",
    )


def test_health_reports_missing_database(folder: Path) -> None:
    (folder / "Sales.sqlite").unlink()
    with ServeProcess(folder, *WITH_HTTP) as served:
        status, body = get(served.serving["http"], "/health")
        assert status == 503
        assert list(json.loads(body)["problems"]) == ["database Sales"]


def test_status_shows_the_serving_process(folder: Path, run: Run) -> None:
    assert json.loads(run("status", folder, "--json").out)["serving"] is None
    with ServeProcess(folder, *UNENCRYPTED) as served:
        found = json.loads(run("status", folder, "--json").out)["serving"]
        assert found["process"] == served.process.pid
        assert found["listens"] == served.serving["listen"]
        assert found["connections"] == []
        shown = " ".join(run("status", folder).out.split())
        assert f"Process {served.process.pid} serves the instance at {served.serving['listen']}" in shown
        served.stop()
        assert json.loads(run("status", folder, "--json").out)["serving"] is None


def test_one_process_serves_at_a_time(folder: Path, run: Run) -> None:
    with ServeProcess(folder, *UNENCRYPTED) as served:
        result = run("serve", folder, *UNENCRYPTED)
        assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)  # a retry may succeed
        assert str(served.process.pid) in result.err
        served.process.kill()
        served.process.wait(DEADLINE)
    with ServeProcess(folder, *UNENCRYPTED) as again:
        assert again.stop() == 0


@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_port_in_use_has_the_retryable_exit_status(folder: Path, run: Run, option: str) -> None:
    """The port may become free; systemd retries unless the status is 2."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run("serve", folder, *UNENCRYPTED, option, address)
    assert (result.status, result.out) == (1, "")
    assert re.fullmatch(rf"ssbroker: {option}: cannot listen on {address}: [^(]*in use", result.err.splitlines()[-1])


def test_options_override_the_settings_file(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(
        'listen = "127.0.0.1:1"\nallow_unencrypted = true\n[configuration]\ndirectory = "services.csv"\ndatabase = "Sales"'
    )
    (tmp_path / "services.csv").write_text(f"service_name,address\n{STOCK},LOCAL\n")
    with Instance.open(folder, background=False) as instance:
        instance.database("Sales").drop_route("AutoCreatedLocal")
        stock = sample_databases.stock(instance)
        with ServeProcess(folder, "--config", str(config), "--listen", "127.0.0.1:0") as served:
            assert not served.serving["listen"].endswith(":1")
            with instance.database("Sales").transaction() as t:
                t.send(t.begin_dialog(SHOP, STOCK), b"two chairs")
            with stock.transaction() as t:
                assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [b"two chairs"]
            assert served.stop() == 0


def test_missing_directory_is_reported_at_the_start(folder: Path, tmp_path: Path, run: Run) -> None:
    config = tmp_path / "serve.toml"
    config.write_text('allow_unencrypted = true\nlisten = "127.0.0.1:0"\n[configuration]\ndirectory = "no.csv"')
    result = run("serve", folder, "--config", config)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert f"configuration.directory: {tmp_path / 'no.csv'}: cannot be read: No such file" in result.err


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("dial_burst = 1000001", "dial_burst: expected an integer from 1 to 1000000, got 1000001"),
        (
            "max_message_bytes = 999998977",
            "max_message_bytes: expected an integer from 1 to 999998976, got 999998977",
        ),
    ],
)
def test_limits_in_a_settings_file(folder: Path, tmp_path: Path, run: Run, limit: str, message: str) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(f"[limits]\n{limit}\n")
    result = run("serve", folder, *UNENCRYPTED, "--config", config)
    assert (result.status, result.out) == (2, "")
    assert message in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (),
            "specify who may connect: use --certificate and --key, together with --authority and --name, with --pin, or with all of these",
        ),
        (("--certificate", "x.pem"), "--certificate and --key: expected both"),
        (("--certificate", "x.pem", "--key", "x.key"), "no peer can be authenticated"),
        (
            (*CERTIFICATE, "--authority", "a.pem"),
            "--authority requires --name, once for each instance that may connect",
        ),
        ((*CERTIFICATE, "--name", "stock"), "--name requires --authority; without an authority, use --pin"),
        (
            ("--certificate", "x.pem", "--allow-unencrypted"),
            "--allow-unencrypted and certificates cannot be used together: specify one of them",
        ),
        (("--pin", "stock"), "--pin: 'stock' is not valid; expected NAME=FILE"),
        (("--listen", "here", "--http", "[here]:1"), "--http: expected HOST:PORT"),
        (("--log", "xml"), "--log: expected 'json' or 'text'"),
        (("--log-level", "loud"), "--log-level: expected one of"),
        (("--config", "no.toml"), "no.toml: cannot be read"),
        (("--certificate", "x.pem", "--key", "x.key", "--pin", "stock=x.pem"), "x.pem: "),
    ],
)
def test_invalid_options_are_one_line(folder: Path, run: Run, options: tuple[str, ...], message: str) -> None:
    result = run("serve", folder, *options)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err


def test_scripts_create_what_is_missing_at_each_start(tmp_path: Path, run: Run) -> None:
    folder, script, settings = tmp_path / "new" / "shop", tmp_path / "shop.sql", tmp_path / "serve.toml"
    script.write_text("CREATE DATABASE Sales\nGO\nUSE Sales\nCREATE QUEUE Orders\n")
    settings.write_text('ensure = ["shop.sql"]\n')
    with ServeProcess(folder, *UNENCRYPTED, "--ensure", str(script)) as served:
        assert served.wait_for_record(f"{script}: created queue [dbo].[Orders] in Sales")
        assert served.serving["instance"] == "shop"
        assert served.stop() == 0
    with Instance.open(folder, background=False) as instance:
        instance.execute("USE Sales; ALTER QUEUE Orders WITH STATUS = OFF; CREATE QUEUE Other")
    script.write_text(script.read_text() + "CREATE QUEUE Replies\n")
    with ServeProcess(folder, *UNENCRYPTED, "--config", str(settings)) as served:
        assert [record["message"] for record in served.records[:-1]] == [
            f"{script}: created queue [dbo].[Replies] in Sales"
        ]
        assert served.stop() == 0
    with Instance.open(folder, background=False) as instance:
        queues = {row["name"]: row["is_receive_enabled"] for row in instance.view("sys.service_queues").to_pylist()}
    assert queues == {"Orders": False, "Other": True, "Replies": True}
    script.write_text("CREATE QUEU Orders\n")
    result = run("serve", tmp_path / "none", *UNENCRYPTED, "--ensure", script)
    assert (result.status, result.err.startswith(f"ssbroker: {script}:1: ")) == (2, True)


def test_folder_without_an_instance(tmp_path: Path, run: Run) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / str(uuid.UUID(int=7)), tmp_path / "empty"):
        result = run("serve", folder, *UNENCRYPTED)
        assert (result.status, result.err.count("\n")) == (1, 1)  # the disk may not be mounted yet
        assert result.err.startswith(f"ssbroker: {folder}: is not an instance folder")
        assert result.err.endswith(f"or `ssbroker sql {folder} --create SCRIPT`, or with --ensure SCRIPT\n")


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (UNENCRYPTED, 1, "is not an instance folder"),
        ((), 2, "specify who may connect: use --certificate"),
        (("--certificate", "x.pem", "--key", "x.key", "--pin", "stock=x.pem"), 2, "x.pem: "),
    ],
)
def test_failed_start_is_logged_as_json(
    tmp_path: Path, run: Run, options: tuple[str, ...], status: int, message: str
) -> None:
    if status == 2:  # these are checked after the instance is opened
        Instance.create(tmp_path / "here", name="here", background=False).close()
    result = run("serve", tmp_path / "here", "--log", "json", *options)
    (line,) = map(json.loads, result.err.splitlines())
    assert (result.status, result.out, line["level"], line["logger"]) == (status, "", "error", "ssbroker.serve")
    assert message in line["message"]


def test_help_states_the_default_listen_address(run: Run) -> None:
    help_text = " ".join(run("serve", "--help").out.replace("│", " ").split())
    assert "Address to listen on; the default port is 4022. Default: 127.0.0.1:4022." in help_text


def test_signal_at_any_step_of_the_wait() -> None:
    """A handler that waits for a lock of the thread that it interrupts would deadlock."""
    steps = 0
    while True:
        steps += 1
        signals, passed = SignalQueue(), 0

        def trace_step(frame: FrameType, event: str, _: object, signals: SignalQueue = signals, at: int = steps) -> Any:
            nonlocal passed
            if frame.f_code.co_name != "notify" and event == "line":
                passed += 1
                if passed == at:
                    signals.notify()
            return trace_step

        sys.settrace(trace_step)
        was_notified = signals.wait(0.01)
        sys.settrace(None)
        assert was_notified or signals.wait(0.0) == (passed >= steps)
        if passed < steps:
            return


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGINT"), ("SIGINT", "SIGTERM"), ("SIGTERM", "SIGTERM")])
def test_second_signal_ends_the_process_immediately(first: str, second: str) -> None:
    before = signal.getsignal(signal.Signals[second])
    with stop_signals() as stopped:
        signal.raise_signal(signal.Signals[first])
        assert stopped.wait(0.0)
        assert signal.getsignal(signal.Signals[second]) is signal.SIG_DFL
    assert signal.getsignal(signal.Signals[second]) is before
