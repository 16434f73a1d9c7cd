"""An address at which an instance that is served tells how it is doing: `/metrics` and `/health` (N28)."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from ssbroker.broker import forks
from ssbroker.exceptions import EndpointError, SsbrokerError
from ssbroker.wording import host_and_port

_SECONDS_TO_ASK: Final = 5.0
_ANSWERS_AT_ONCE: Final = 16
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = "application/json"
LOGGER: Final = logging.getLogger("ssbroker.broker")


class Monitor:
    """Answers `GET` and `HEAD` of `/metrics` and `/health` in threads of its own. It is for a network that the operator trusts.

    Args:
        host: Where it listens.
        port: The port; 0 takes any that is free.
        metrics: Makes the text of `/metrics`.
        health: Tells what is wrong; an empty answer is healthy.

    Examples:
        >>> from urllib.request import urlopen
        >>> monitor = Monitor("127.0.0.1", 0, metrics=lambda: b"", health=dict)
        >>> host, port = monitor.start()
        >>> urlopen(f"http://{host}:{port}/health").read()
        b'{"status": "ok", "problems": {}}'
        >>> monitor.close()
    """

    def __init__(
        self, host: str, port: int, *, metrics: Callable[[], bytes], health: Callable[[], Mapping[str, str]]
    ) -> None:
        self._host: Final = host
        self._port: Final = port
        self._metrics: Final = metrics
        self._health: Final = health
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> tuple[str, int]:
        """Begins to listen.

        Returns:
            The host and port that it listens on.

        Raises:
            EndpointError: It cannot.
        """
        handler = type("_Answers", (_Handler,), {"metrics": self._metrics, "health": self._health})
        try:
            server = _Server((self._host, self._port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            where = host_and_port(self._host, self._port)
            raise EndpointError(f"{where}: cannot be listened on: {reason}") from error
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="ssbroker monitor", daemon=True)
        self._thread.start()
        host, port, *_ = server.server_address
        return str(host), int(port)

    def close(self) -> None:
        """Listens no more."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free: Final = threading.BoundedSemaphore(_ANSWERS_AT_ONCE)
        self._asking: Final[dict[Any, float]] = {}
        super().__init__(address, handler)
        forks.lets_go(self)

    def descriptors(self) -> Iterable[int]:
        """See `forks.Holder`."""
        return (self.fileno(), *(request.fileno() for request in list(self._asking)))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread; whoever comes while too many ask is not answered."""
        if self._free.acquire(blocking=False):
            self._asking[request] = time.monotonic()
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, in the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def has_asked(self, request: Any) -> None:
        """Takes note that a request has come."""
        self._asking.pop(request, None)

    def service_actions(self) -> None:
        """Hangs up on those that take too long to ask, however little they say at a time; called twice a second."""
        latest = time.monotonic() - _SECONDS_TO_ASK
        for request, since in list(self._asking.items()):
            if since < latest:
                with suppress(OSError):  # it is closed already
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asks may hang up whenever they like."""
        LOGGER.debug("%s: a request of %s broke off: %s", type(self).__name__, client_address, request)


class _Handler(BaseHTTPRequestHandler):
    metrics: ClassVar[Callable[[], bytes]]
    health: ClassVar[Callable[[], Mapping[str, str]]]
    server_version = "ssbroker"
    sys_version = ""
    timeout = _SECONDS_TO_ASK

    def do_GET(self) -> None:
        """Answers."""
        assert isinstance(self.server, _Server)  # noqa: S101 - who makes it
        self.server.has_asked(self.connection)
        self._answer(*self._answer_to(self.path.partition("?")[0]))

    def do_HEAD(self) -> None:
        """Answers without a body, as load balancers ask."""
        self.do_GET()

    def _answer_to(self, asked: str) -> tuple[HTTPStatus, str, bytes]:
        try:
            if asked == "/metrics":
                return HTTPStatus.OK, _TEXT, type(self).metrics()
            if asked == "/health":
                problems = dict(type(self).health())
                status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
                said: dict[str, Any] = {"status": "failing" if problems else "ok", "problems": problems}
                return status, _JSON, json.dumps(said, ensure_ascii=False).encode()
        except (SsbrokerError, OSError, ValueError, RuntimeError) as error:
            LOGGER.warning("%s could not be answered: %s", asked, error)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, f"{error}\n".encode(errors="replace")
        return HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics and /health\n"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server passes
        """Who asks, for those who debug."""
        LOGGER.debug("%s: %s", self.address_string(), format % args)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
