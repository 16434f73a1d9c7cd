"""The read-only HTTP server of `ssbroker serve`: the live page, its data, metrics and health."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ssbroker._text import host_and_port
from ssbroker.broker import fork_safety
from ssbroker.broker.background_thread import wait_limit
from ssbroker.broker.context import InstanceContext
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.metrics import Metrics
from ssbroker.broker.network.limits import limit_by_open_files
from ssbroker.broker.network.listening_sockets import ACCEPT_BATCH, BACKLOG, log_loop_errors
from ssbroker.broker.overview import health_problems
from ssbroker.exceptions import EndpointError, InputError, OptionError, SsbrokerError, UnknownDatabaseError
from ssbroker.web.feed import Feed
from ssbroker.web.observer import Observer, explain_waiting

TOKEN_CHARACTERS_MIN: Final = 16
_REQUEST_TIMEOUT: Final = 5.0
_BUSY_CONNECTIONS: Final = 32
"""While at least this many connections are open, requests get the status 503."""
_CONNECTIONS_MAX: Final = 64
"""The maximum number of open connections. The number never exceeds a quarter of the process's open-file limit either."""
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_FILES: Final = {
    "/": ("ssbroker.web", "page/live.html", "text/html"),
    "/live.css": ("ssbroker.web", "page/live.css", "text/css"),
    "/live.js": ("ssbroker.web", "page/live.js", "text/javascript"),
    "/report.css": ("ssbroker.diagnose", "page/page.css", "text/css"),  # both pages share one style sheet
}
"""The files of the page, which contain no data, by path: package, file and media type."""
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",  # so that one deadline for the request is enough
}
_HEALTH: Final = "/health"
_LOGGER: Final = logging.getLogger("ssbroker.web")


class HttpServer:
    """Serves the live page, `/state`, `/events`, `/explain`, `/metrics` and `/health` of an instance, in a thread.

    Without a token, the server answers only requests whose `Host` is an address, `localhost`, or `host`. Otherwise, a page
    of a different site whose name resolves to this machine could read the data. With a token, requests for data must
    send the token; without it, `/health` reports only whether there are problems.

    Args:
        instance: An open instance.
        host: The address or host name to listen on.
        port: The port, at most 65535; 0 selects a free one.
        token: The token that requests for data must send as `Authorization: Bearer`; None only for a loopback address.
        request_timeout: The maximum number of seconds for a request to arrive; a response may make no progress for six times as long.

    Raises:
        OptionError: `token` is missing or too short.
        MissingDependencyError: The library `prometheus_client` is not installed.

    Examples:
        >>> import json
        >>> import tempfile
        >>> from urllib.request import urlopen
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     server = HttpServer(instance, "127.0.0.1", 0)
        ...     host, port = server.start()
        ...     state = json.load(urlopen(f"http://{host}:{port}/state"))
        ...     server.close()
        >>> state["instance"]
        'shop'
    """

    def __init__(
        self,
        instance: Instance,
        host: str,
        port: int,
        *,
        token: str | None = None,
        request_timeout: float = _REQUEST_TIMEOUT,
    ) -> None:
        check_token(host, token)
        self._host: Final = host
        self._port: Final = port
        self._context: Final = instance_context(instance)
        self._metrics: Final = Metrics(instance)
        observer = Observer(instance)
        self._feed: Final = Feed(observer, subscribe=instance.subscribe)
        self._deadlines: Final = _Deadlines(request_timeout)
        app = _Guard(
            _application(instance, self._metrics, observer, self._feed, token=token),
            host=host,
            token=token,
            progress=self._deadlines.extend,
        )
        self._config: Final = uvicorn.Config(
            app,
            http=_limited_protocol(self._deadlines, connections_max=limit_by_open_files(_CONNECTIONS_MAX)),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # failures are logged by the guard
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_BUSY_CONNECTIONS,
            backlog=ACCEPT_BATCH,
            timeout_graceful_shutdown=1,
            callback_notify=self._deadlines.end_overdue,
            timeout_notify=0,  # each second
        )
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None

    def start(self) -> tuple[str, int]:
        """Starts listening; returns the host and port on which the server listens.

        Raises:
            EndpointError: The server cannot listen on the address or port.
        """
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._listener = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            where = host_and_port(self._host, self._port)
            reason = str(error.strerror or error).partition(" (while attempting")[0]  # Python appends the address
            raise EndpointError(f"cannot listen on {where}: {reason}") from error
        fork_safety.close_after_fork(self)
        host, port, *_ = self._listener.getsockname()
        self._server = _Server(self._config, self._context)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name="ssbroker http", daemon=True
        )
        self._thread.start()
        return str(host), int(port)

    def close(self) -> None:
        """Stops listening, and ends the streams of open pages."""
        server, self._server = self._server, None
        if server is None or self._thread is None:
            return
        self._feed.close()
        server.should_exit = True
        self._thread.join(wait_limit())
        self._metrics.close()

    def descriptors(self) -> Iterable[int]:
        """Returns the descriptors of the listener and of the open connections, which a forked process closes."""
        listener = () if self._listener is None else (self._listener.fileno(),)
        return (*listener, *self._deadlines.descriptors())


class _Server(uvicorn.Server):
    """Limits the log lines about failures, and sets the backlog that the configuration could not set (see `ACCEPT_BATCH`)."""

    def __init__(self, config: uvicorn.Config, instance: InstanceContext) -> None:
        super().__init__(config)
        self._instance: Final = instance

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        instance = self._instance
        log_loop_errors(
            asyncio.get_running_loop(), name=instance.name, events=instance.events, clock=instance.microseconds
        )
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


def check_token(host: str, token: str | None) -> None:
    """Requires a token if other machines can reach the address, and checks its length and characters.

    Examples:
        >>> check_token("localhost", None)
        >>> check_token("0.0.0.0", None)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: other machines can reach 0.0.0.0, so a token is required: a file with at least 16 characters
    """
    if token is None and not is_loopback(host):
        raise OptionError(
            f"other machines can reach {host}, so a token is required: a file with at least {TOKEN_CHARACTERS_MIN} characters"
        )
    if token is not None and (len(token) < TOKEN_CHARACTERS_MIN or not _is_visible_ascii(token)):
        raise OptionError(
            f"the token must have at least {TOKEN_CHARACTERS_MIN} visible ASCII characters, and no spaces; it has {len(token)} characters"
        )


def _is_visible_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def is_loopback(host: str) -> bool:
    """Returns whether an address or host name is a loopback address.

    Examples:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "shop.example.com")]
        [True, True, True, False, False]
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _application(
    instance: Instance, metrics: Metrics, observer: Observer, feed: Feed, *, token: str | None
) -> Starlette:
    def get_metrics(_request: Request) -> Response:
        return Response(metrics.text(), headers={"Content-Type": _METRICS_TYPE})

    def get_health(request: Request) -> Response:
        return _health(instance, with_problems=token is None or _has_token(request.headers, token))

    def get_state(_request: Request) -> Response:
        return JSONResponse(observer.state())

    def get_explanation(request: Request) -> Response:
        database, service = request.query_params.get("database"), request.query_params.get("service")
        status = request.query_params.get("status")
        if database is None or service is None:
            return _error(400, "expected the parameters database and service")
        try:
            return JSONResponse(
                explain_waiting(instance, database=database, to_service_name=service, transmission_status=status)
            )
        except (InputError, UnknownDatabaseError) as error:
            return _error(404, str(error))

    async def get_events(request: Request) -> Response:
        if feed.is_full:
            return _error(503, "too many open pages; close one")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return _Stream(feed.messages(), media_type="text/event-stream")

    data: dict[str, Callable[[Request], Any]] = {
        "/metrics": get_metrics,
        _HEALTH: get_health,
        "/state": get_state,
        "/explain": get_explanation,
        "/events": get_events,
    }
    routes = [Route(path, function) for path, function in (data | dict.fromkeys(_PAGE_FILES, _get_file)).items()]
    found = ", ".join(sorted([*data, *_PAGE_FILES]))
    handlers: dict[Any, Any] = dict.fromkeys((SsbrokerError, OSError, ValueError, RuntimeError), _failure)
    handlers[404] = lambda _request, _raised: _error(404, f"not found; available: {found}")
    application = Starlette(routes=routes, exception_handlers=handlers)
    application.router.redirect_slashes = False
    return application


def _health(instance: Instance, *, with_problems: bool) -> Response:
    found = dict(health_problems(instance))
    content = {"status": "failing" if found else "ok"} | ({"problems": found} if with_problems else {})
    return JSONResponse(content, status_code=503 if found else 200)


async def _get_file(request: Request) -> Response:
    package, file, media_type = _PAGE_FILES[request.scope["path"]]
    return Response(_content(package, file), media_type=media_type)


def _failure(request: Request, error: Exception) -> Response:
    _LOGGER.warning("request for %s failed: %s", request.scope["path"], error)
    return _error(500, str(error))


class _Stream(StreamingResponse):
    """A response that closes its generator even if the client disconnects or an error occurs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(cast("AsyncGenerator[str]", self.body_iterator)):
            await super().__call__(scope, receive, send)


def _error(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status)


@cache
def _content(package: str, file: str) -> bytes:
    return (files(package) / file).read_bytes()


class _Guard:
    """Answers only permitted `GET` and `HEAD` requests, and adds the security headers to each response."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None, progress: Callable[[Any], None]) -> None:
        self._app: Final = app
        self._host: Final = host.lower()
        self._token: Final = token
        self._progress: Final = progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        self._progress(client)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)
            self._progress(client)

        request = Request(scope)
        app: ASGIApp = self._refusal(request) or self._app
        try:
            await app(scope, receive, send_guarded)
        except Exception:  # Starlette has answered with the status 500
            _LOGGER.exception("request for %s failed", request.scope["path"])

    def _refusal(self, request: Request) -> Response | None:
        """Returns the refusal of a request; None if it is allowed."""
        headers = request.headers
        if request.method not in ("GET", "HEAD"):
            response = _error(405, "only GET and HEAD are allowed")
            response.headers["Allow"] = "GET, HEAD"
            return response
        host = headers.get("host")  # browsers always send this header
        if self._token is None and host is not None and not self._is_own_name(host):
            return _error(421, f"{host!r:.80} is not a name of this server; use an address or localhost")
        if request.scope["path"] in _PAGE_FILES:
            return None
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return _error(403, "cross-site requests are not allowed")
        if request.scope["path"] == _HEALTH and "authorization" not in headers:  # probes send no token
            return None
        if self._token is not None and not _has_token(headers, self._token):
            response = _error(401, "expected the header Authorization: Bearer TOKEN")
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        return None

    def _is_own_name(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in ("localhost", self._host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # only a name that resolves to this machine is dangerous, not an address


def _has_token(headers: Mapping[str, str], token: str) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


class _Transport(Protocol):
    """The part of `asyncio.Transport` that deadlines need."""

    def abort(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class _Deadlines:
    """Ends connections whose request does not arrive, or whose response makes no progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._open: Final[dict[Any, tuple[_Transport, float]]] = {}

    def opened(self, transport: _Transport) -> None:
        """Starts the deadline for a request."""
        client = transport.get_extra_info("peername")
        if client is not None:  # the client has not disconnected yet
            self._open[tuple(client[:2])] = transport, time.monotonic() + self._seconds

    def extend(self, client: Any) -> None:
        """Restarts the deadline for the next part of a response; a stream sends a part at least every ten seconds."""
        found = self._open.get(tuple(client or ()))
        if found is not None:
            self._open[tuple(client)] = found[0], time.monotonic() + 6 * self._seconds

    def closed(self, transport: _Transport) -> None:
        """Removes the deadline of a closed connection."""
        for client, (each, _) in list(self._open.items()):
            if each is transport:
                del self._open[client]

    async def end_overdue(self) -> None:
        """Ends the connections whose deadline has passed."""
        now = time.monotonic()
        for transport, latest in list(self._open.values()):
            if latest < now:
                transport.abort()

    def descriptors(self) -> Iterable[int]:
        """Returns the descriptors of the open connections."""
        return [transport.get_extra_info("socket").fileno() for transport, _ in list(self._open.values())]


def _limited_protocol(deadlines: _Deadlines, *, connections_max: int) -> type[H11Protocol]:
    """Returns a protocol whose connections have deadlines and a maximum number, which uvicorn lacks."""

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            deadlines.opened(transport)
            if len(self.connections) > connections_max:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            deadlines.closed(self.transport)
            super().connection_lost(exc)

    return LimitedProtocol
