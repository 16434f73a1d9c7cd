"""The address at which a served instance tells how it is doing (N28)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse

import pytest

from ssbroker.broker.network.service.monitor import Monitor
from ssbroker.exceptions import EndpointError

DEADLINE = 60.0


class Told:
    """What the instance would tell."""

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
def told() -> Told:
    return Told()


@pytest.fixture
def address(told: Told) -> Iterator[tuple[str, int]]:
    monitor = Monitor("127.0.0.1", 0, metrics=told.metrics, health=told.health)
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


def test_n28_metrics(address: tuple[str, int]) -> None:
    response, body = get(address, "/metrics")
    assert (response.status, body) == (200, b"ssbroker_up 1\n")
    assert response.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"


def test_n28_health(address: tuple[str, int], told: Told) -> None:
    response, body = get(address, "/health?verbose")
    assert (response.status, json.loads(body)) == (200, {"status": "ok", "problems": {}})
    told.problems["database Sales"] = "its file is not there"
    response, body = get(address, "/health")
    assert (response.status, json.loads(body)["problems"]) == (503, told.problems)


def test_n28_nothing_else_is_told(address: tuple[str, int]) -> None:
    assert get(address, "/")[0].status == 404
    assert get(address, "/../../etc/passwd")[0].status == 404
    assert get(address, "/metrics", "POST")[0].status == 501
    assert "Python" not in (get(address, "/health")[0].getheader("Server") or "")


def test_n28_what_cannot_be_told_is_an_error_and_no_end(address: tuple[str, int], told: Told) -> None:
    told.is_broken = True
    assert get(address, "/metrics")[0].status == 500
    told.is_broken = False
    assert get(address, "/metrics")[0].status == 200


def test_n28_who_says_nothing_keeps_nobody_waiting(address: tuple[str, int]) -> None:
    silent = [socket.create_connection(address, timeout=DEADLINE) for _ in range(8)]
    try:
        assert get(address, "/health")[0].status == 200
        for each in silent:
            assert each.recv(1) == b""  # after the time that there is to ask
    finally:
        for each in silent:
            each.close()


def test_n28_an_address_that_is_taken_is_refused(address: tuple[str, int], told: Told) -> None:
    with pytest.raises(EndpointError, match=f"127.0.0.1:{address[1]}: cannot be listened on"):
        Monitor(*address, metrics=told.metrics, health=told.health).start()
    with pytest.raises(EndpointError, match="cannot be listened on"):
        Monitor("127.0.0.1", 70000, metrics=told.metrics, health=told.health).start()
