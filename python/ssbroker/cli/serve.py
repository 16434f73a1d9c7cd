"""`ssbroker serve`: serves an instance in the foreground until a signal stops it."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ssbroker._text import host_and_port, one_line
from ssbroker._well_known import PORT
from ssbroker.cli import serve_config
from ssbroker.cli.options import FolderArgument
from ssbroker.cli.serve_config import HTTP_PORT, PROTOCOL_LIMITS, Address, ServeSettings, TlsSettings
from ssbroker.cli.serve_logging import LEVELS, start_logging, stop_logging
from ssbroker.exceptions import (
    EndpointError,
    InputError,
    MissingDependencyError,
    OptionError,
    SsbrokerError,
    StorageError,
    UnknownDatabaseError,
)

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.instance_server import Server


class SignalQueue:
    """Passes notifications from a signal handler to the thread that it interrupts.

    Unlike `threading.Event`, this cannot deadlock if the handler runs in the middle of a wait.

    Examples:
        >>> signals = SignalQueue()
        >>> signals.wait(0.0)
        False
        >>> signals.notify()
        >>> signals.wait(0.0), signals.wait(0.0)
        (True, False)
    """

    __slots__ = ("_signals",)

    def __init__(self) -> None:
        self._signals: Final[queue.SimpleQueue[None]] = queue.SimpleQueue()

    def notify(self) -> None:
        """Ends a wait; called by the handler."""
        self._signals.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits for a notification; returns whether there was one since the last wait."""
        try:
            self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        with suppress(queue.Empty):
            while True:
                self._signals.get_nowait()
        return True


@contextmanager
def stop_signals() -> Iterator[SignalQueue]:
    """Yields notifications of SIGTERM and SIGINT; the second signal ends the process immediately, which loses no committed data."""
    stop_requested = SignalQueue()

    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: Any) -> None:
        stop_requested.notify()
        for each in numbers:  # the second signal may differ from the first
            signal.signal(each, signal.SIG_DFL)

    try:
        before = {number: signal.signal(number, stop) for number in numbers}
    except ValueError:  # not the main thread, which is the only one that handles signals
        yield stop_requested
        return
    try:
        yield stop_requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reload_signals() -> Iterator[SignalQueue]:
    """Yields notifications of SIGHUP, if the system has this signal."""
    reload_requested = SignalQueue()
    with _on_hangup(lambda *_: reload_requested.notify()):
        yield reload_requested


@contextmanager
def hangup_ignored() -> Iterator[None]:
    """Ignores SIGHUP until it can be handled: the process is about to read its certificates anyway."""
    with _on_hangup(signal.SIG_IGN):
        yield


@contextmanager
def _on_hangup(handler: Any) -> Iterator[None]:
    number = getattr(signal, "SIGHUP", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


EXAMPLES = r"""Examples:

Let the instance stock connect with a certificate of the authority:

  ssbroker serve shop/ --listen 0.0.0.0:4022 --certificate shop.pem \
    --key shop.key --authority authority.pem --name stock

Create the instance and its objects from a script, unless they exist:

  ssbroker serve shop/ --ensure shop.sql --config serve.toml

Read the settings from a file, log JSON, and show the state, metrics and
health at http://localhost:9422:

  ssbroker serve shop/ --config serve.toml --log json --http
"""
_POLL_SECONDS: Final = 1.0
_EXIT_WRONG_SETTINGS: Final = 2
_EXIT_RETRYABLE: Final = 1
"""The exit status if a retry may succeed: the port is in use, another process serves the folder, or the disk is not available."""
_LOGGER: Final = logging.getLogger("ssbroker.serve")


@hangup_ignored()
def serve(
    *,
    folder: FolderArgument,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of settings; command-line options override it.")
    ] = None,
    ensure: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SCRIPT",
            help="T-SQL script that the instance must match. Before serving, ssbroker creates the instance if the folder holds none, and creates or alters what the script defines. Can be repeated.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help=f"Address to listen on; the default port is {PORT}. Default: 127.0.0.1:{PORT}.",
        ),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TCP://HOST:PORT", help="Another address by which other instances reach this one. Can be repeated."
        ),
    ] = None,
    dial_only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK|HOST",
            help="Network or host that this instance may connect to; others are refused even if a route names them. Can be repeated. Default: any.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate of the instance.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the private key of the certificate.")
    ] = None,
    authority: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate of the trusted authority.")
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name of an instance that may connect with a certificate of the authority. Can be repeated.",
        ),
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Let the instance NAME connect with the certificate in this PEM file. Can be repeated.",
        ),
    ] = None,
    allow_unencrypted: Annotated[
        bool,
        typer.Option(
            "--allow-unencrypted",
            help="Do not use TLS: anyone who can reach the port can connect and read the traffic.",
        ),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST[:PORT]]",
            help="Serve a status page, /metrics and /health over HTTP at this address. If the value is omitted: "
            f"127.0.0.1:{HTTP_PORT}. Default: no HTTP.",
        ),
    ] = None,
    http_token: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the bearer token that clients must send. Required if other machines can reach --http.",
        ),
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="json|text", help="Format of the log on standard error. Default: text.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="|".join(LEVELS), help="Minimum level to log. Default: info."),
    ] = None,
) -> None:
    """Serve an instance: exchange messages with other instances until SIGTERM or Ctrl-C.

    Other processes can use the instance at the same time; this process sends the messages that they commit.

    Exit status: 0 after a signal, 1 after an error that may be temporary, such as a port in use, 2 after any other error.
    """
    settings = ServeSettings() if config is None else ServeSettings.read(config)
    options: dict[str, Any] = {
        "ensure": tuple(ensure or ()),
        "listen": None if listen is None else Address.parse(listen, name="--listen", port=PORT),
        "addresses": serve_config.parse_addresses(address or [], "--address"),
        "dial_only": serve_config.parse_dial_only(dial_only or [], "--dial-only"),
        "allow_unencrypted": allow_unencrypted,
        "http": None if http is None else Address.parse(http, name="--http", port=HTTP_PORT),
        "http_token": http_token,
        "log": None if log is None else serve_config.parse_log_format(log, "--log"),
        "log_level": None if log_level is None else serve_config.parse_level(log_level, "--log-level"),
    }
    tls_options: dict[str, Any] = {
        "certificate": certificate,
        "key": key,
        "authority": authority,
        "names": tuple(serve_config.parse_string(each, "--name") for each in name or ()),
        "pinned": _parse_pins(pin or []),
    }
    tls = replace(settings.tls, **_without_unset(tls_options))
    try:
        run_server(folder, replace(settings, tls=tls, **_without_unset(options)))
    except OSError as error:  # includes StorageError and EndpointError
        typer.echo(f"ssbroker: {one_line(str(error))}", err=True)
        raise typer.Exit(_EXIT_RETRYABLE) from error


def run_server(folder: Path, settings: ServeSettings) -> None:
    """Serves an instance until a signal stops the process. With a JSON log, an error is logged and raised as `typer.Exit`."""
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - keeps --help fast
    from ssbroker.broker.scripts import read_script  # noqa: PLC0415 - the same
    from ssbroker.ddl import STRICT  # noqa: PLC0415 - the same

    with ExitStack() as stack:
        handler = start_logging(settings.log, settings.log_level)
        stack.callback(stop_logging, handler)
        stack.enter_context(_warnings_as_records())
        if settings.log == "json":
            stack.enter_context(_errors_as_records())
        http_token = _http_token(settings)
        scripts = [(file, read_script(file, STRICT)) for file in settings.ensure]
        options: dict[str, Any] = {
            "host": settings.listen.host,
            "port": settings.listen.port,
            "trust": _make_trust(settings.tls, is_unencrypted=settings.allow_unencrypted),
            "allow_unencrypted": settings.allow_unencrypted,
            "addresses": settings.addresses,
            "dial_only": settings.dial_only,
            "close_timeout": settings.shutdown_timeout,
            **_limit_options(settings.limits),
        }
        stop_requested = stack.enter_context(stop_signals())
        reload_requested = stack.enter_context(reload_signals())
        with _suggesting_ensure():
            instance = stack.enter_context(Instance.open(folder, create=bool(scripts)))
        for file, text in scripts:
            for change in instance.ensure(text, file=str(file)):
                _LOGGER.info("%s: %s", file, change)
        with _option_in_errors("--listen"):
            server = stack.enter_context(instance.serve(**options))
        if settings.configuration is not None:
            _install_configuration_service(instance, settings)
        http = _start_http(instance, settings, http_token, stack)
        listen = host_and_port(server.host, server.port)
        details: dict[str, Any] = {"instance": instance.name, "listen": listen, "http": http}
        _LOGGER.info("serving %s at %s", instance.name, listen, extra={"details": details})
        while not stop_requested.wait(_POLL_SECONDS):
            if reload_requested.wait(0.0):
                _reload(server)
        _LOGGER.info("stopping %s", instance.name, extra={"details": {"instance": instance.name}})


@contextmanager
def _suggesting_ensure() -> Iterator[None]:
    """Adds to the error about a folder without an instance that `--ensure` creates one."""
    from ssbroker.broker.instance_files import NO_INSTANCE  # noqa: PLC0415 - keeps --help fast

    try:
        yield
    except StorageError as error:
        if NO_INSTANCE in str(error):
            error.args = (f"{error}, or with --ensure SCRIPT",)
        raise


@contextmanager
def _option_in_errors(option: str) -> Iterator[None]:
    """In an error about an address on which the process cannot listen, names the option."""
    try:
        yield
    except EndpointError as error:
        raise EndpointError(f"{option}: {error}") from error


def _reload(server: Server) -> None:
    """Reloads the certificates; if the new ones are invalid, logs a warning and keeps the previous ones."""
    try:
        if server.reload_certificates():
            _LOGGER.info("certificates reloaded; new connections use them")
        else:
            _LOGGER.info("no certificates to reload")
    except (InputError, OptionError) as error:
        _LOGGER.warning("the reloaded certificates cannot be used: %s; the previous certificates remain in use", error)


def _start_http(instance: Instance, settings: ServeSettings, token: str | None, stack: ExitStack) -> str | None:
    """Starts the HTTP server; returns its address, or None without `--http`."""
    if settings.http is None:
        return None
    from ssbroker.web.server import HttpServer  # noqa: PLC0415 - optional

    server = HttpServer(instance, settings.http.host, settings.http.port, token=token)
    with _option_in_errors("--http"):
        address = server.start()
    stack.callback(server.close)
    return host_and_port(*address)


def _http_token(settings: ServeSettings) -> str | None:
    """Returns the token of the HTTP server; None without a token.

    Checks the token and the libraries of the server before the instance is opened.
    """
    if settings.http is None:
        if settings.http_token is not None:
            raise OptionError("--http-token requires --http")
        return None
    try:
        from ssbroker.web.server import check_token  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingDependencyError(
            "--http needs starlette and uvicorn: pip install 'ssbroker[http]'", name="starlette"
        ) from error
    token = None if settings.http_token is None else _read_token(settings.http_token)
    try:
        check_token(settings.http.host, token)
    except OptionError as error:
        raise OptionError(f"--http-token: {error}") from error
    return token


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not valid UTF-8"
        raise InputError(f"--http-token: {file}: cannot be read: {reason}", value=str(file)) from error


def _install_configuration_service(instance: Instance, settings: ServeSettings) -> None:
    from ssbroker.broker import configuration_service  # noqa: PLC0415 - optional

    service = settings.configuration
    if service is None:
        return
    if (service.directory is None) == (service.table is None):
        given = "neither" if service.directory is None else "both"
        raise OptionError(
            f"configuration: expected exactly one of directory (the path of a file) and table, got {given}"
        )
    database = _database(instance, service.database, "configuration.database")
    directory = (
        configuration_service.FileDirectory(service.directory)
        if service.directory is not None
        else configuration_service.TableDirectory(database, service.table or "")
    )
    lifetime = configuration_service.LIFETIME if service.lifetime is None else service.lifetime
    asked_by = [_database(instance, each, "configuration.asked_by") for each in service.asked_by] or None
    configuration_service.ConfigurationService(directory, lifetime=lifetime).install(database, asked_by=asked_by)


def _database(instance: Instance, name: str, setting: str) -> Database:
    try:
        return instance.database(name)
    except UnknownDatabaseError as error:
        raise OptionError(f"{setting}: {error}") from error


def _make_trust(tls: TlsSettings, *, is_unencrypted: bool) -> object:
    """Returns the trust settings; None without TLS."""
    if tls == TlsSettings():
        if is_unencrypted:
            return None
        raise OptionError(
            "specify who may connect: use --certificate and --key, together with --authority and --name, with --pin, or with all of these. "
            "To accept everyone without encryption, for tests on one machine, use --allow-unencrypted"
        )
    if is_unencrypted:
        raise OptionError("--allow-unencrypted and certificates cannot be used together: specify one of them")
    if tls.certificate is None or tls.key is None:
        raise OptionError("--certificate and --key: expected both, the certificate of the instance and its private key")
    if tls.authority is not None and not tls.names:
        raise OptionError("--authority requires --name, once for each instance that may connect")
    if tls.names and tls.authority is None:
        raise OptionError("--name requires --authority; without an authority, use --pin NAME=FILE")
    from ssbroker.broker.network.tls import Trust  # noqa: PLC0415 - keeps --help fast

    return Trust(
        certificate=tls.certificate, key=tls.key, authority=tls.authority, names=tls.names, pinned=dict(tls.pinned)
    )


def _limit_options(limits: Mapping[str, int]) -> dict[str, Any]:
    """Groups the limits into the arguments of `Instance.serve`."""
    from ssbroker.broker.network.limits import EndpointLimits  # noqa: PLC0415 - keeps --help fast
    from ssbroker.protocol.settings import ProtocolSettings  # noqa: PLC0415 - the same

    protocol_limits: dict[str, Any] = {name: limit for name, limit in limits.items() if name in PROTOCOL_LIMITS}
    endpoint_limits: dict[str, Any] = {name: limit for name, limit in limits.items() if name not in PROTOCOL_LIMITS}
    return {"limits": EndpointLimits(**endpoint_limits), "settings": ProtocolSettings(**protocol_limits)}


def _parse_pins(pins: list[str]) -> dict[str, tuple[Path, ...]]:
    found: dict[str, tuple[Path, ...]] = {}
    for pin in pins:
        principal, separator, file = pin.partition("=")
        if not separator or not principal or not file:
            raise OptionError(f"--pin: {pin!r:.80} is not valid; expected NAME=FILE")
        found[principal] = (*found.get(principal, ()), Path(file))
    return found


def _without_unset(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value}


@contextmanager
def _warnings_as_records() -> Iterator[None]:
    """Logs warnings of the library."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        _LOGGER.warning("%s", message)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _errors_as_records() -> Iterator[None]:
    """Logs the error that ends the process."""
    try:
        yield
    except (OSError, SsbrokerError) as error:
        _LOGGER.error("%s", one_line(str(error)))  # noqa: TRY400 - a traceback does not help the user
        raise typer.Exit(_EXIT_RETRYABLE if isinstance(error, OSError) else _EXIT_WRONG_SETTINGS) from error
