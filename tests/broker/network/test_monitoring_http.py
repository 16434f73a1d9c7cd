"""The HTTP address at which a served instance reports metrics and health."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse

import pytest

from ssbroker.broker.network.monitoring import Monitor
from ssbroker.exceptions import EndpointError

DEADLINE = 60.0


class ReportRecorder:
    """Reports of a simulated instance."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        self.is_broken = False

    def metrics(self) -> bytes:
        if self.is_broken:
            raise OSError("the disk is gone")
        return b"ssbroker_up 1\n"

    def health(self) -> dict[str, str]:
        return self.problems


@pytest.fixture
def recorder() -> ReportRecorder:
    return ReportRecorder()


@pytest.fixture
def address(recorder: ReportRecorder) -> Iterator[tuple[str, int]]:
    monitor = Monitor("127.0.0.1", 0, metrics=recorder.metrics, health=recorder.health)
    yield monitor.start()
    monitor.close()
    monitor.close()


def get(address: tuple[str, int], path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(*address, timeout=DEADLINE)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def test_metrics(address: tuple[str, int]) -> None:
    response, body = get(address, "/metrics")
    assert (response.status, body) == (200, b"ssbroker_up 1\n")
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"


def test_health(address: tuple[str, int], recorder: ReportRecorder) -> None:
    response, body = get(address, "/health?verbose")
    assert (response.status, json.loads(body)) == (200, {"status": "ok", "problems": {}})
    recorder.problems["database Sales"] = "its file is missing"
    response, body = get(address, "/health")
    assert (response.status, json.loads(body)["problems"]) == (503, recorder.problems)


def test_other_paths_are_not_found(address: tuple[str, int]) -> None:
    assert get(address, "/")[0].status == 404
    assert get(address, "/../../etc/passwd")[0].status == 404
    assert get(address, "/metrics", "POST")[0].status == 501
    assert "Python" not in (get(address, "/health")[0].getheader("Server") or "")


def test_a_failing_report_is_an_error_response(address: tuple[str, int], recorder: ReportRecorder) -> None:
    recorder.is_broken = True
    assert get(address, "/metrics")[0].status == 500
    recorder.is_broken = False
    assert get(address, "/metrics")[0].status == 200


def test_a_silent_client_does_not_delay_others(address: tuple[str, int]) -> None:
    silent = [socket.create_connection(address, timeout=DEADLINE) for _ in range(8)]
    try:
        assert get(address, "/health")[0].status == 200
        for each in silent:
            assert each.recv(1) == b""  # after the request timeout
    finally:
        for each in silent:
            each.close()


@pytest.mark.threat("T13")
def test_a_slow_client_is_disconnected(address: tuple[str, int]) -> None:
    slow = [socket.create_connection(address, timeout=DEADLINE) for _ in range(16)]
    stopped = threading.Event()

    def send_slowly() -> None:
        while not stopped.wait(0.2):
            for each in slow:
                with suppress(OSError):
                    each.send(b"x")

    sender = threading.Thread(target=send_slowly)
    sender.start()
    try:
        with pytest.raises((HTTPException, OSError)):  # all connections are in use
            get(address, "/health")
        for each in slow:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
        assert get(address, "/health")[0].status == 200
    finally:
        stopped.set()
        sender.join()
        for each in slow:
            each.close()


def test_a_client_that_disconnects_early_is_not_logged(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        client = socket.create_connection(address, timeout=DEADLINE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        client.close()
    assert get(address, "/metrics")[0].status == 200
    assert [one for one in caplog.records if one.levelno >= logging.INFO] == []


def test_an_address_in_use_is_rejected(address: tuple[str, int], recorder: ReportRecorder) -> None:
    with pytest.raises(EndpointError, match=f"cannot listen on 127.0.0.1:{address[1]}: "):
        Monitor(*address, metrics=recorder.metrics, health=recorder.health).start()
    with pytest.raises(EndpointError, match="cannot listen on "):
        Monitor("127.0.0.1", 70000, metrics=recorder.metrics, health=recorder.health).start()


@pytest.mark.parametrize("path", ["/metrics", "/health", "/else"])
def test_head_equals_get_without_the_body(path: str) -> None:
    """Load balancers use HEAD."""
    monitor = Monitor("127.0.0.1", 0, metrics=lambda: b"one 1\n", health=lambda: {"endpoint": "none"})
    host, port = monitor.start()
    try:
        recorder = []
        for method in ("GET", "HEAD"):
            connection = HTTPConnection(host, port, timeout=60)
            connection.request(method, path)
            response = connection.getresponse()
            recorder.append((response.status, response.headers["Content-Length"], response.headers["Content-Type"]))
            assert bool(response.read()) == (method == "GET")
            connection.close()
    finally:
        monitor.close()
    assert recorder[0] == recorder[1]
