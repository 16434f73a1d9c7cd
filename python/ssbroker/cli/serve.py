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

from ssbroker._text import host_and_port
from ssbroker.cli import log_format, serve_config
from ssbroker.cli.errors import one_line
from ssbroker.cli.options import FolderArgument
from ssbroker.cli.serve_config import LIMITS_OF_PROTOCOL, PORT, Address, ServeSettings, Tls
from ssbroker.exceptions import InputError, OptionError, SsbrokerError, UnknownDatabaseError

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.server import Server


class SignalQueue:
    """What the handler of a signal tells, and what is waited for in the thread that it interrupts.

    An event will not do: its handler may come in the middle of the wait, and would wait for a lock of its own thread.

    Examples:
        >>> told = SignalQueue()
        >>> told.wait(0.0)
        False
        >>> told.tell()
        >>> told.wait(0.0), told.wait(0.0)
        (True, False)
    """

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: Final[queue.SimpleQueue[None]] = queue.SimpleQueue()

    def tell(self) -> None:
        """Ends a wait; called by the handler."""
        self._told.put(None)

    def wait(self, seconds: float) -> bool:
        """Waits until it is told; whether it was since the last wait."""
        try:
            self._told.get(timeout=seconds)
        except queue.Empty:
            return False
        with suppress(queue.Empty):
            while True:
                self._told.get_nowait()
        return True


@contextmanager
def told_to_stop() -> Iterator[SignalQueue]:
    """What SIGTERM and SIGINT tell; a second one ends the process at once, and what was committed is on the disk."""
    stopped = SignalQueue()

    numbers = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: Any) -> None:
        stopped.tell()
        for each in numbers:  # the second one may be another
            signal.signal(each, signal.SIG_DFL)

    try:
        before = {number: signal.signal(number, stop) for number in numbers}
    except ValueError:  # not the main thread: nobody can be told of signals
        yield stopped
        return
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def told_to_reload() -> Iterator[SignalQueue]:
    """What SIGHUP tells, where there is such a signal."""
    asked = SignalQueue()
    with _on_hangup(lambda *_: asked.tell()):
        yield asked


@contextmanager
def hangup_ignored() -> Iterator[None]:
    """SIGHUP ends nothing before it can be told: what it asks for is read at the start anyway."""
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


EXAMPLES = """[bold]Examples[/bold]

With certificates of an authority, for the instances that are named:

  ssbroker serve shop/ --listen 0.0.0.0:4022 --certificate shop.pem --key shop.key --authority authority.pem --name stock

All of that in a file, with logs and numbers for programs:

  ssbroker serve shop/ --config serve.toml --log json --monitor 127.0.0.1:9422
"""
_LOOK_SECONDS: Final = 1.0
_WRONG: Final = 2
_MAY_PASS: Final = 1
"""The exit status of a start that may succeed when it is repeated: a port in use, a folder that another process serves, a disk."""
LOGGER: Final = logging.getLogger("ssbroker.serve")


@hangup_ignored()
def serve(
    *,
    folder: FolderArgument,
    config: Annotated[Path | None, typer.Option(help="A file of TOML; the options here go before it.")] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help=f"Where to listen, at port {PORT} if none is said; 127.0.0.1 unless told otherwise.",
        ),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(metavar="TCP://HOST:PORT", help="A further address by which others reach this instance."),
    ] = None,
    dial_only: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK|HOST", help="What may be dialled, whatever routes say. May be repeated."),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="The instance's certificate, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    authority: Annotated[Path | None, typer.Option(help="The certificate of the authority that is believed.")] = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Whom the authority may vouch for. May be repeated.")
    ] = None,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A certificate that may connect, as whom. May be repeated."),
    ] = None,
    allow_unencrypted: Annotated[
        bool, typer.Option("--allow-unencrypted", help="No TLS: whoever reaches the port may talk.")
    ] = False,
    monitor: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to answer /metrics and /health.")
    ] = None,
    log: Annotated[str | None, typer.Option(metavar="json|text", help="How to log, on standard error.")] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="|".join(log_format.LEVELS), help="What to log at least; info unless told otherwise."),
    ] = None,
) -> None:
    """Serve an instance: exchange messages with other instances until SIGTERM or Ctrl-C.

    Other processes may use the instance meanwhile; what they commit goes out through this one. Exit status 1 if it cannot begin for a
    reason that may pass, such as a port in use; 2 if the settings are wrong.
    """
    settings = ServeSettings() if config is None else ServeSettings.read(config)
    said: dict[str, Any] = {
        "listen": None if listen is None else Address.parse(listen, name="--listen", port=PORT),
        "addresses": serve_config.parse_addresses(address or [], "--address"),
        "dial_only": serve_config.parse_dial_only(dial_only or [], "--dial-only"),
        "allow_unencrypted": allow_unencrypted,
        "monitor": None if monitor is None else Address.parse(monitor, name="--monitor"),
        "log": None if log is None else serve_config.parse_form(log, "--log"),
        "log_level": None if log_level is None else serve_config.parse_level(log_level, "--log-level"),
    }
    of_tls: dict[str, Any] = {
        "certificate": certificate,
        "key": key,
        "authority": authority,
        "names": tuple(serve_config.parse_text(each, "--name") for each in name or ()),
        "pinned": _pinned(pin or []),
    }
    tls = replace(settings.tls, **_given(of_tls))
    try:
        run(folder, replace(settings, tls=tls, **_given(said)))
    except OSError as error:  # errors of storage and of endpoints among them
        typer.echo(f"ssbroker: {one_line(str(error))}", err=True)
        raise typer.Exit(_MAY_PASS) from error


def run(folder: Path, settings: ServeSettings) -> None:
    """Serves until a signal asks for the end.

    Args:
        folder: The instance's folder.
        settings: How.

    Raises:
        OptionError: The settings do not fit each other.
        InputError: A file is not what it should be.
        StorageError: The instance cannot be opened, or another process serves it.
        EndpointError: An address cannot be listened on.
        typer.Exit: Any of these, where the log is JSON: it has been told.
    """
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - the help comes quicker without the broker

    with ExitStack() as stack:
        handler = log_format.write_log(settings.log, settings.log_level)
        stack.callback(log_format.end_log, handler)
        stack.enter_context(_warnings_as_records())
        if settings.log == "json":
            stack.enter_context(_failure_as_record())
        options: dict[str, Any] = {
            "host": settings.listen.host,
            "port": settings.listen.port,
            "trust": _trust(settings.tls, is_none=settings.allow_unencrypted),
            "allow_unencrypted": settings.allow_unencrypted,
            "addresses": settings.addresses,
            "dial_only": settings.dial_only,
            "close_timeout": settings.stop_after,
            **_limits(settings.limits),
        }
        stopped = stack.enter_context(told_to_stop())
        reload = stack.enter_context(told_to_reload())
        instance = stack.enter_context(Instance.open(folder))
        server = stack.enter_context(instance.serve(**options))
        if settings.configuration is not None:
            _configure(instance, settings)
        watched = _watched(instance, settings, stack)
        listens = host_and_port(server.host, server.port)
        words: dict[str, Any] = {"instance": instance.name, "listen": listens, "monitor": watched}
        LOGGER.info("serving %s at %s", instance.name, listens, extra={"said": words})
        while not stopped.wait(_LOOK_SECONDS):
            if reload.wait(0.0):
                _reload(server)
        LOGGER.info("stopping %s", instance.name, extra={"said": {"instance": instance.name}})


def _reload(server: Server) -> None:
    """Has certificates read again; what is wrong with them ends nothing."""
    try:
        if server.reload_certificates():
            LOGGER.info("the certificates were read again: new connections use them")
        else:
            LOGGER.info("there are no certificates to read again")
    except (InputError, OptionError) as error:
        LOGGER.warning("the certificates cannot be used: %s; those from before go on to be used", error)


def _watched(instance: Instance, settings: ServeSettings, stack: ExitStack) -> str | None:
    """Begins to answer those who watch; where."""
    if settings.monitor is None:
        return None
    from ssbroker.broker.network.monitoring import Metrics, Monitor, problems  # noqa: PLC0415 - needed only with a monitor

    metrics = Metrics(instance)
    stack.callback(metrics.close)
    where = settings.monitor
    monitor = Monitor(where.host, where.port, metrics=metrics.text, health=lambda: problems(instance))
    address = monitor.start()
    stack.callback(monitor.close)
    return host_and_port(*address)


def _configure(instance: Instance, settings: ServeSettings) -> None:
    """Runs the configuration service of the settings (N27)."""
    from ssbroker.broker import configuration_service  # noqa: PLC0415 - only who asks for it needs it

    said = settings.configuration
    if said is None:
        return
    if (said.directory is None) == (said.table is None):
        raise OptionError("configuration: expected a directory, which is a file, or a table, and one of them")
    database = _database(instance, said.database, "configuration.database")
    directory = (
        configuration_service.FileDirectory(said.directory)
        if said.directory is not None
        else configuration_service.TableDirectory(database, said.table or "")
    )
    lifetime = configuration_service.LIFETIME if said.lifetime is None else said.lifetime
    asked_by = [_database(instance, each, "configuration.asked_by") for each in said.asked_by] or None
    configuration_service.ConfigurationService(directory, lifetime=lifetime).install(database, asked_by=asked_by)


def _database(instance: Instance, name: str, setting: str) -> Database:
    try:
        return instance.database(name)
    except UnknownDatabaseError as error:
        raise OptionError(f"{setting}: {error}") from error


def _trust(tls: Tls, *, is_none: bool) -> object:
    """Whom the instance believes; None where that is not asked."""
    if tls == Tls():
        if is_none:
            return None
        raise OptionError(
            "who may connect: give --certificate, --key and --authority with --name, or --pin; "
            "or --allow-unencrypted, for a network that nobody else reaches"
        )
    if is_none:
        raise OptionError("--allow-unencrypted and certificates: expected one of them, got both")
    if tls.certificate is None or tls.key is None:
        raise OptionError("--certificate and --key: expected both, the instance's certificate and its private key")
    if tls.authority is not None and not tls.names:
        raise OptionError(
            "--authority: it vouches only for those who are named; give --name, once for each instance that may connect"
        )
    if tls.names and tls.authority is None:
        raise OptionError(
            "--name: it is one that an authority may vouch for; give --authority, or --pin NAME=FILE without one"
        )
    from ssbroker.broker.network.tls import Trust  # noqa: PLC0415 - the help comes quicker without the broker

    return Trust(
        certificate=tls.certificate, key=tls.key, authority=tls.authority, names=tls.names, pinned=dict(tls.pinned)
    )


def _limits(limits: Mapping[str, int]) -> dict[str, Any]:
    """The limits, as the endpoint and the protocol take them."""
    from ssbroker.broker.network.connection import EndpointLimits  # noqa: PLC0415 - the help comes quicker without
    from ssbroker.protocol import config as protocol  # noqa: PLC0415 - the same

    of_protocol: dict[str, Any] = {name: most for name, most in limits.items() if name in LIMITS_OF_PROTOCOL}
    of_endpoint: dict[str, Any] = {name: most for name, most in limits.items() if name not in LIMITS_OF_PROTOCOL}
    return {"limits": EndpointLimits(**of_endpoint), "settings": protocol.ProtocolSettings(**of_protocol)}


def _pinned(pins: list[str]) -> dict[str, tuple[Path, ...]]:
    found: dict[str, tuple[Path, ...]] = {}
    for pin in pins:
        principal, separator, file = pin.partition("=")
        if not separator or not principal or not file:
            raise OptionError(f"--pin: expected NAME=FILE, got {pin!r:.80}")
        found[principal] = (*found.get(principal, ()), Path(file))
    return found


def _given(said: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if value}


@contextmanager
def _warnings_as_records() -> Iterator[None]:
    """What the library warns of is a line of the log like all others."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        LOGGER.warning("%s", message)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _failure_as_record() -> Iterator[None]:
    """What ends the process is a line of the log like all others."""
    try:
        yield
    except (OSError, SsbrokerError) as error:
        LOGGER.error("%s", one_line(str(error)))  # noqa: TRY400 - where it was raised is of no use to whoever starts it
        raise typer.Exit(_MAY_PASS if isinstance(error, OSError) else _WRONG) from error
