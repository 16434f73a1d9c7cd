"""The HTTP server of `ssbroker serve`: who may read what, and that it stays available."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Instance
from ssbroker.broker.overview import overview_of
from ssbroker.exceptions import EndpointError, OptionError
from ssbroker.protocol.events import ActivationEvent, ActivationStep, ConversationEvent, MessageClassify, QueueDisabled
from ssbroker.web import feed, observer, server
from ssbroker.web.server import HttpServer
from tests.web.shop import DEADLINE, HOSTILE, EventStream, create_shop, request

TOKEN = "an-example-of-a-token"
PAGE = ("/", "/live.css", "/live.js", "/report.css")
DATA = ("/state", "/metrics", "/health", "/events", "/explain?database=Sales&service=x")
Address = tuple[str, int]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with (
        create_shop(tmp_path_factory.mktemp("web") / "shop") as instance,
        instance.serve(port=0, allow_unencrypted=True),
    ):
        yield instance


@pytest.fixture
def serve(shop: Instance) -> Iterator[Callable[..., Address]]:
    """Starts a server with options, and returns its address."""
    started: list[HttpServer] = []

    def start(**options: Any) -> Address:
        started.append(HttpServer(shop, "127.0.0.1", 0, **options))
        return started[-1].start()

    yield start
    for each in started:
        each.close()
        each.close()


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    waiting = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waiting.wait(0.01)
    raise TimeoutError


def test_metrics_health_and_state(serve: Callable[..., Address], shop: Instance) -> None:
    address = serve()
    response, body = request(address, "/metrics")
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    assert b'ssbroker_queue_messages{database="Sales",queue="dbo.Intake",status="ready"} 4.0' in body
    response, body = request(address, "/health?verbose")
    assert (response.status, json.loads(body)) == (200, {"status": "ok", "problems": {}})
    response, body = request(address, "/state")
    assert response.getheader("Content-Type") == "application/json"
    state = json.loads(body)
    assert (state["instance"], state["serving"]["listens"]) == ("shop", f"127.0.0.1:{shop.server and shop.server.port}")


def test_health_without_the_token_is_only_a_status(
    serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probes of containers and load balancers send none."""
    address = serve(token=TOKEN)
    response, body = request(address, "/health")
    assert (response.status, json.loads(body)) == (200, {"status": "ok"})
    response, body = request(address, "/health", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (response.status, json.loads(body)) == (200, {"status": "ok", "problems": {}})
    assert request(address, "/health", headers={"Authorization": "Bearer another-token"})[0].status == 401
    monkeypatch.setattr(server, "health_problems", lambda _instance: {"database Sales": "its file is missing"})
    response, body = request(address, "/health")
    assert (response.status, json.loads(body)) == (503, {"status": "failing"})


def test_health_with_problems_is_503(serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "health_problems", lambda _instance: {"database Sales": "its file is missing"})
    response, body = request(serve(), "/health")
    assert (response.status, json.loads(body)["problems"]) == (503, {"database Sales": "its file is missing"})


def test_explanation_of_a_waiting_message(serve: Callable[..., Address]) -> None:
    address = serve()
    response, body = request(address, "/explain?database=Sales&service=//bank/Payments")
    assert (response.status, json.loads(body)["from_service_name"]) == (200, "//shop/Orders")
    assert request(address, "/explain?database=Sales")[0].status == 400
    response, body = request(address, "/explain?database=Sales&service=//none")
    assert (response.status, body) == (
        404,
        b"no undelivered messages for service '//none' in 'Sales'; they may have been delivered since\n",
    )
    assert request(address, "/explain?database=no&service=//none")[0].status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(serve: Callable[..., Address], method: str) -> None:
    address = serve()
    for path in ("/", "/state", "/nowhere"):
        response, _ = request(address, path, method=method)
        assert (response.status, response.getheader("Allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", [*PAGE, *DATA, "/nowhere"])
def test_head_equals_get_without_the_body(serve: Callable[..., Address], path: str) -> None:
    """Load balancers use HEAD."""
    address = serve()
    response, body = request(address, path, method="HEAD")
    assert body == b""
    if path != "/events":
        again, body = request(address, path)
        assert (again.status, again.getheader("Content-Type")) == (response.status, response.getheader("Content-Type"))
        assert body


def test_paths_outside_the_page_are_not_found(serve: Callable[..., Address]) -> None:
    address = serve()
    for path in ("/../../etc/passwd", "/live.html", "/page/live.css", "//", "/%2e%2e/pyproject.toml"):
        assert request(address, path)[0].status == 404
    assert b"/health, /live.css" in request(address, "/nowhere")[1]


@pytest.mark.parametrize("path", [*PAGE, "/state", "/nowhere"])
def test_every_response_forbids_scripts_and_frames_of_others(serve: Callable[..., Address], path: str) -> None:
    response, _ = request(serve(), path)
    policy = dict(
        part.strip().partition(" ")[::2] for part in (response.getheader("Content-Security-Policy") or "").split(";")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert (policy["frame-ancestors"], policy["require-trusted-types-for"]) == ("'none'", "'script'")
    assert response.getheader("X-Content-Type-Options") == "nosniff"
    assert response.getheader("Cross-Origin-Resource-Policy") == "same-origin"
    assert response.getheader("Cache-Control") == "no-store"
    assert response.getheader("Access-Control-Allow-Origin") is None
    assert response.getheader("Server") is None


@pytest.mark.parametrize(
    "host", ["shop.attacker.example", "localhost.attacker.example:80", "attacker.example:9422", "[", ""]
)
@pytest.mark.parametrize("path", ["/", "/state"])
def test_other_host_names_are_refused_without_a_token(serve: Callable[..., Address], path: str, host: str) -> None:
    """A web page can point its own name at this machine (DNS rebinding), and would then be of the same origin."""
    response, body = request(serve(), path, headers={"Host": host})
    assert (response.status, b"use an address or localhost" in body) == (421, True)


@pytest.mark.parametrize("host", ["localhost:9422", "LOCALHOST", "127.0.0.1", "[::1]:80", "192.0.2.7"])
def test_addresses_and_localhost_are_accepted(serve: Callable[..., Address], host: str) -> None:
    assert request(serve(), "/state", headers={"Host": host})[0].status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_sites_are_refused(serve: Callable[..., Address], site: str) -> None:
    """They could not read the response, but could keep all streams open."""
    address = serve()
    for path in DATA:
        assert request(address, path, headers={"Sec-Fetch-Site": site})[0].status == 403
    assert request(address, "/", headers={"Sec-Fetch-Site": site})[0].status == 200  # a link to the page


@pytest.mark.parametrize(
    "authorization",
    [None, "", TOKEN, "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xe4"],
)
def test_data_need_the_token(serve: Callable[..., Address], authorization: str | None) -> None:
    address = serve(token=TOKEN)
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in DATA:
        if (path, authorization) == ("/health", None):
            continue
        response, body = request(address, path, headers=headers)
        assert (response.status, response.getheader("WWW-Authenticate")) == (401, "Bearer")
        assert b"shop" not in body
    assert request(address, "/")[0].status == 200  # it has no data, and asks for the token


def test_data_with_the_token(serve: Callable[..., Address]) -> None:
    """With any host name: a page of another origin does not have the token."""
    headers = {"Authorization": f"bearer {TOKEN}", "Host": "shop.example.com:9422"}
    assert request(serve(token=TOKEN), "/state", headers=headers)[0].status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "shop.example.com", "2001:db8::1"])
def test_an_address_that_others_reach_requires_a_token(shop: Instance, host: str) -> None:
    with pytest.raises(OptionError, match=f"other machines can reach {host}, so a token is required"):
        HttpServer(shop, host, 0)


@pytest.mark.parametrize(
    "token", ["", "short", "fifteen letters", "a token with spaces in it", "ein-Schlüssel-für-alle"]
)
def test_weak_tokens_are_refused(shop: Instance, token: str) -> None:
    with pytest.raises(OptionError, match="at least 16 visible ASCII characters"):
        HttpServer(shop, "127.0.0.1", 0, token=token)


def test_a_failing_report_is_an_error_response(
    serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_instance: Instance) -> dict[str, str]:
        raise OSError("the disk is gone")

    address = serve()
    monkeypatch.setattr(server, "health_problems", fail)
    response, body = request(address, "/health")
    assert (response.status, body) == (500, b"the disk is gone\n")
    assert response.getheader("Content-Security-Policy")
    assert [record.getMessage() for record in caplog.records] == ["request for /health failed: the disk is gone"]
    monkeypatch.undo()
    assert request(address, "/health")[0].status == 200


def test_a_stream_has_the_history_states_and_events(serve: Callable[..., Address], shop: Instance) -> None:
    stream = EventStream(serve())
    assert stream.response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert stream.next("history")["queues"] == []
    state = stream.next("state")
    assert {row["to_service_name"] for row in state["transmission_queue"]} == {"//bank/Payments", f"//nobody/{HOSTILE}"}
    emit = server_events(shop)
    emit(QueueDisabled(at=0, database="Sales", queue=HOSTILE, error="x"))
    event = None
    while event is None:
        event = next((each for each in stream.next("log") if each["name"] == "Queue Disabled"), None)
    assert (event["text"], event["level"], event["database"]) == (f"queue: {HOSTILE}, error: x", "error", "Sales")
    stream.close()


def server_events(instance: Instance) -> Callable[[Any], None]:
    from ssbroker.broker.instance import instance_context  # noqa: PLC0415 - only here

    return instance_context(instance).events.emit


def test_nothing_is_read_or_subscribed_while_no_page_is_open(shop: Instance) -> None:
    http = HttpServer(shop, "127.0.0.1", 0)
    address = http.start()
    log = context_events(shop)
    before = len(log._subscribers)
    try:
        assert not http._feed.is_running
        stream = EventStream(address)
        stream.next("state")
        assert (http._feed.is_running, len(log._subscribers)) == (True, before + 1)
        stream.close()
        until(lambda: not http._feed.is_running)
        assert len(log._subscribers) == before
    finally:
        http.close()


def context_events(instance: Instance) -> Any:
    from ssbroker.broker.instance import instance_context  # noqa: PLC0415 - only here

    return instance_context(instance).events


def test_an_open_page_does_not_slow_messages(serve: Callable[..., Address], shop: Instance) -> None:
    """Subscribers to these events would make each SEND and each arriving message take the general path."""
    log = context_events(shop)
    stream = EventStream(serve())
    stream.next("state")
    assert not log.wants(ConversationEvent)
    assert not log.wants(MessageClassify)
    stream.close()


def test_a_state_that_takes_long_delays_no_other_request(
    serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, released = threading.Event(), threading.Event()

    def slow_overview(instance: Instance) -> dict[str, Any]:
        started.set()
        released.wait(2 * DEADLINE)
        return overview_of(instance)

    monkeypatch.setattr(observer, "overview_of", slow_overview)
    address = serve()
    streams = [EventStream(address)]
    assert started.wait(DEADLINE)
    try:
        streams.append(EventStream(address))
        assert request(address, "/live.css")[0].status == 200
    finally:
        released.set()
    for each in streams:
        each.next("state")
        each.close()


def test_many_events_are_bounded(serve: Callable[..., Address], shop: Instance) -> None:
    stream = EventStream(serve())
    stream.next("state")
    emit = server_events(shop)
    for number in range(5000):
        emit(ActivationEvent(at=number, database="Sales", queue="q", step=ActivationStep.STARTED))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["number"] < 5000:
        events += stream.next("log")
    assert len(events) < 5000
    assert [each["number"] for each in events] == sorted({each["number"] for each in events})
    stream.close()


def test_the_number_of_open_pages_is_limited(serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PAGES_MAX", 2)
    address = serve()
    streams = [EventStream(address) for _ in range(2)]
    for each in streams:
        each.next("state")
    response, body = request(address, "/events")
    assert (response.status, body) == (503, b"too many open pages; close one\n")
    assert request(address, "/health")[0].status == 200
    streams.pop().close()
    until(lambda: is_stream(address))
    streams.pop().close()


def is_stream(address: Address) -> bool:
    stream = EventStream(address)
    try:
        return stream.response.status == 200
    finally:
        stream.close()


def test_closing_the_server_ends_the_streams(shop: Instance) -> None:
    http = HttpServer(shop, "127.0.0.1", 0)
    stream = EventStream(http.start())
    stream.next("state")
    http.close()
    with pytest.raises(EOFError):
        while True:
            stream.next("state")
    stream.close()


@pytest.mark.threat("T13")
def test_slow_clients_are_disconnected(serve: Callable[..., Address]) -> None:
    address = serve(request_timeout=0.5)
    slow = [socket.create_connection(address, timeout=DEADLINE) for _ in range(40)]
    stopped = threading.Event()

    def send_slowly() -> None:
        while not stopped.wait(0.05):
            for each in slow:
                with suppress(OSError):
                    each.send(b"x")

    sender = threading.Thread(target=send_slowly)
    sender.start()
    try:
        for each in slow:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
        assert request(address, "/health")[0].status == 200
    finally:
        stopped.set()
        sender.join()
        for each in slow:
            each.close()


@pytest.mark.threat("T13")
def test_a_client_that_does_not_read_is_disconnected(
    serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_content", lambda _package, _file: b"x" * 50_000_000)
    address = serve(request_timeout=0.1)
    for seconds in (2.5, 10, 40):  # a busy machine takes longer
        received = 0
        with socket.create_connection(address, timeout=DEADLINE) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Event().wait(seconds)
            with suppress(ConnectionResetError):
                while part := silent.recv(1 << 20):
                    received += len(part)
        if received < 50_000_000:
            return
    pytest.fail("the client was not disconnected")


def test_a_request_that_is_not_http_is_refused(serve: Callable[..., Address]) -> None:
    address = serve()
    with socket.create_connection(address, timeout=DEADLINE) as client:
        client.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
        assert client.recv(1024).startswith(b"HTTP/1.1 400")
    assert request(address, "/health")[0].status == 200


def test_clients_that_disconnect_early_are_not_logged(
    serve: Callable[..., Address], caplog: pytest.LogCaptureFixture
) -> None:
    address = serve()
    for path in (b"/metrics", b"/events"):
        for _ in range(20):
            client = socket.create_connection(address, timeout=DEADLINE)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET " + path + b" HTTP/1.0\r\n\r\n")
            client.close()
    until(lambda: not is_busy(address))
    assert [one for one in caplog.records if one.levelno >= logging.INFO] == []


def is_busy(address: Address) -> bool:
    try:
        return request(address, "/health")[0].status != 200
    except (OSError, HTTPException):
        return True


def test_an_address_in_use_is_rejected(serve: Callable[..., Address], shop: Instance) -> None:
    _, port = serve()
    with pytest.raises(EndpointError, match=f"cannot listen on 127.0.0.1:{port}: [^(]*in use$"):
        HttpServer(shop, "127.0.0.1", port).start()
    with pytest.raises(EndpointError, match=r"^cannot listen on \[2001:db8::1\]:4022: "):
        HttpServer(shop, "2001:db8::1", 4022, token=TOKEN).start()  # no host has the documentation prefix


def test_the_page_names_no_other_server() -> None:
    """The policy would forbid it; this says so before a browser does."""
    folder = Path(server.__file__).parent / "page"
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert not {word for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(") if word in text}
