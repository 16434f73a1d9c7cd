"""Serves an instance: its endpoint, its exchange, and their threads."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ssbroker import schemas
from ssbroker._arguments import EPOCH, boolean, epoch_microseconds, string_list, timeout_seconds, whole_number
from ssbroker._text import host_and_port
from ssbroker.broker.background import Background
from ssbroker.broker.context import InstanceContext
from ssbroker.broker.network.connection import EndpointLimits, ip_of
from ssbroker.broker.network.dialer import DialFilter, EndpointSetup
from ssbroker.broker.network.endpoint import SocketEndpoint
from ssbroker.broker.network.exchange import EndpointEvents, MessageExchange
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.key_exchange import DialogKeys
from ssbroker.broker.network.mirrors import MirroredRoutes
from ssbroker.broker.network.tls import TlsCredentials, Trust
from ssbroker.broker.process_locks import ServeLock
from ssbroker.broker.views import view
from ssbroker.broker.worker_thread import WorkerThread
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, ProtocolError, StorageError
from ssbroker.protocol.config import FRAGMENT_BYTES_MIN, ProtocolSettings
from ssbroker.protocol.wire.frames import BYTES_MAX, OwnIdentity

if TYPE_CHECKING:
    from datetime import datetime

    from ssbroker.broker.network.interfaces import NetworkEndpoint


FILE: Final = "serving.json"
EVERY_SECONDS: Final = 2.0
_COLUMNS: Final = (
    "remote_user_name",
    "principal_name",
    "state_desc",
    "is_accept",
    "connect_time",
    "last_activity_time",
    "is_receive_flow_controlled",
    "is_send_flow_controlled",
    "total_bytes_sent",
    "total_bytes_received",
    "total_fragments_sent",
    "total_fragments_received",
)
LOGGER: Final = logging.getLogger("ssbroker.broker")


class StatusFile:
    """Writes the file every two seconds, in a thread of its own, for as long as the instance is served.

    Args:
        instance: The instance.
        listens: The host and port that it listens on.
        connections: Returns the rows of `sys.dm_broker_connections`.
        forwarded_pending: Returns how many messages wait to be forwarded.
        look: Is called as often as the file is written.
    """

    def __init__(
        self,
        instance: InstanceContext,
        listens: tuple[str, int],
        *,
        connections: Callable[[], list[dict[str, Any]]] = list,
        forwarded_pending: Callable[[], int] = int,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._instance: Final = instance
        self._connections: Final = connections
        self._forwarded_pending: Final = forwarded_pending
        self._listens: Final = listens
        self._look: Final = look
        self._path: Final = instance.folder / FILE
        self._guard: Final = threading.RLock()
        self._is_over: Final = threading.Event()
        self._is_told = False  # that the file cannot be written, for as long as it cannot
        self._thread: Final = threading.Thread(target=self._run, name=f"ssbroker {instance.name} bulletin", daemon=True)

    def start(self) -> None:
        """Writes the file, and begins to write it again and again."""
        self.write()
        if self._instance.background:
            self._thread.start()

    def close(self) -> None:
        """Writes no more, and removes the file."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:  # who reads it looks whether the instance is served first
            LOGGER.warning("%s: cannot be removed: %s", self._path, error)

    def write(self) -> None:
        """Writes the file now. That it cannot be written is logged, once until it can, and no reason to serve nobody."""
        with self._guard:
            try:
                beside = self._path.with_suffix(".new")
                beside.write_text(json.dumps(self._said(), ensure_ascii=False), encoding="utf-8")
                beside.replace(self._path)
                self._is_told = False
            except (OSError, StorageError) as error:
                if not self._is_told:
                    self._is_told = True
                    LOGGER.warning(
                        "%s: cannot be written, so `ssbroker status` knows no connections: %s", self._path, error
                    )

    def _said(self) -> dict[str, Any]:
        return {
            "process": os.getpid(),
            "listens": host_and_port(*self._listens),
            "written_at": self._instance.clock().isoformat(timespec="seconds"),
            "connections": [_row(row) for row in self._connections()],
            "forwarded_pending": self._forwarded_pending(),
        }

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_SECONDS):
            self.write()
            self._look()


def read(folder: Path) -> dict[str, Any] | None:
    """What the serving process has told.

    Args:
        folder: The instance's folder.

    Returns:
        The content of the file, if the process has written it that serves the instance; else who that is, and nothing about it. None where no
        process does.

    Examples:
        >>> read(Path("no such folder"))
    """
    process = ServeLock.holder(folder)
    if process is None:
        return None
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if isinstance(found, dict) and process in (found.get("process"), 0):
        return found
    return {
        "process": process or None,
        "listens": None,
        "written_at": None,
        "connections": [],
        "forwarded_pending": 0,
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"connection_id": str(uuid.UUID(bytes=row["connection_id"]))}
    for name in _COLUMNS:
        value = row[name]
        said[name] = value.isoformat(timespec="seconds") if hasattr(value, "isoformat") else value
    return said


PORT: Final = 4022
"""Where a Service Broker endpoint listens by convention (P3)."""
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How an instance is served; what is not given is as the decisions have it.

    Attributes:
        host: Where it listens: an address or a name of this machine; "0.0.0.0" or "::" are all of its addresses.
        port: The port; 0 takes any that is free.
        trust: Who the instance is and whom it believes (N8). Without, `allow_unencrypted` has to say that there is no TLS.
        allow_unencrypted: Connections are neither encrypted nor authenticated: whoever reaches the port may talk.
        addresses: Further addresses by which others reach this instance, such as `TCP://shop.example.com:4022` (R41).
        dial_only: What may be dialled, whatever routes and names of services say: networks (`10.0.0.0/8`), addresses, names of hosts, and
            all names below a domain (`*.example.com`). Left out, everything (N34).
        limits: How long connections wait, and for how much.
        settings: How the dialog protocol is set up; `max_fragment_bytes` from 2,048, so that far sides
            take the largest message, to 1,048,576, which is what fits a frame (N7).
        close_timeout: The seconds that `close` takes at most to write what is queued.

    Raises:
        OptionError: One of them is not what it can be.
        InvalidAddressError: One of `addresses` is no address.

    Examples:
        >>> ServeOptions()
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: trust: expected certificates, or allow_unencrypted=True to do without them
        >>> ServeOptions(allow_unencrypted=True).port
        4022
    """

    host: str = "127.0.0.1"
    port: int = PORT
    trust: Trust | None = None
    allow_unencrypted: bool = False
    addresses: Sequence[str] = ()
    dial_only: Sequence[str] = ()
    limits: EndpointLimits = field(default_factory=EndpointLimits)
    settings: ProtocolSettings = field(default_factory=ProtocolSettings)
    close_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not self.host:
            raise OptionError("host: expected an address or a name; got none")
        whole_number(self.port, name="port", minimum=0, maximum=_PORT_MAX)
        boolean(self.allow_unencrypted, name="allow_unencrypted")
        Catalog(schemas.ROUTES.empty_table(), addresses=string_list(self.addresses, name="addresses"))
        DialFilter(self.dial_only)
        if self.trust is not None:
            _check_kind(self.trust, Trust, name="trust")
        _check_kind(self.limits, EndpointLimits, name="limits")
        _check_kind(self.settings, ProtocolSettings, name="settings")
        if self.trust is None and not self.allow_unencrypted:
            raise OptionError("trust: expected certificates, or allow_unencrypted=True to do without them")
        if self.trust is not None and self.allow_unencrypted:
            raise OptionError("trust and allow_unencrypted: expected one of them, got both")
        whole_number(
            self.settings.max_fragment_bytes,
            name="settings.max_fragment_bytes",
            minimum=FRAGMENT_BYTES_MIN,
            maximum=BYTES_MAX,
        )
        timeout_seconds(self.close_timeout, name="close_timeout")


def _check_kind(value: object, kind: type, *, name: str) -> None:
    if not isinstance(value, kind):
        raise OptionError(f"{name}: expected {kind.__name__}, got {value!r:.80}")


_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_MEGABYTE: Final = 1 << 20


class Server:
    """Serves an instance from the beginning of a `with` block to its end; `Instance.serve` makes it.

    Args:
        instance: The instance.
        background: Its background work.
        options: How it is served.
        connect: Makes the connections; left out, over TCP.
        changed: Called with this server once it listens, and with None once it has closed.

    Attributes:
        host: Where it listens.
        port: The port.
        endpoint: The connections.
        mirrors: Which instances are the principals of mirrored routes.
        forwarding: What is passed on for others.
        exchange: What carries conversations.
        credentials: Certificates and keys; None without TLS.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     with instance.serve(port=0, allow_unencrypted=True) as server:
        ...         server.is_alive
        True
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        options: ServeOptions,
        *,
        connect: Callable[[EndpointEvents], NetworkEndpoint] | None = None,
        changed: Callable[[Server | None], object] = lambda _: None,
    ) -> None:
        self._instance: Final = instance
        self._background: Final = background
        self.options: Final = options
        self.host: str = options.host
        self.port: int = options.port
        self._lock: Final = ServeLock(instance.folder)
        self._runner: Final = WorkerThread(self._run, clock=instance.clock, name=f"ssbroker {instance.name} exchange")
        self._is_open = self._has_begun = False
        self._bulletin: StatusFile | None = None
        self._changed: Final = changed
        self.credentials: Final = None if options.trust is None else TlsCredentials(options.trust)
        reception = EndpointEvents(self._wake)
        self.endpoint: NetworkEndpoint = self._connect(reception) if connect is None else connect(reception)
        reception.endpoint = self.endpoint
        self.mirrors: Final = MirroredRoutes(
            instance, self.endpoint, changed=lambda pair: reception.tell(lambda exchange: exchange.settled(pair[:2]))
        )
        reception.mirrors = self.mirrors
        self.forwarding: Final = MessageForwarder(
            self.endpoint,
            resolve_mirror=self.mirrors.resolve,
            max_bytes=self._forward_size,
            events=instance.events,
            clock=self._now,
        )
        self.exchange: Final = MessageExchange(
            instance,
            background,
            reception,
            settings=options.settings,
            keys=DialogKeys(),
            forwards=self.forwarding,
            mirrors=self.mirrors,
            wake=self._wake,
        )

    @property
    def address(self) -> str:
        """Where others reach it, on this machine or by the name that it listens on."""
        return _addresses(self.host, self.port)[0]

    @property
    def is_alive(self) -> bool:
        """Whether it serves, and its threads run."""
        runs = self._runner.is_alive or not self._instance.background
        return self._is_open and runs and self.endpoint.is_alive

    def start(self) -> Self:
        """Begins to serve.

        Returns:
            The server.

        Raises:
            StorageError: Another process serves the instance, or this one was forked from one that has it open.
            EndpointError: The port cannot be listened on.
            ProtocolError: It has begun before: it serves, has ended, or could not listen.
        """
        self._instance.databases_list.check()
        if self._is_open:
            raise ProtocolError("the instance is being served by this object already")
        if self._has_begun:
            raise ProtocolError("a server begins once; Instance.serve makes another")
        self._lock.acquire()
        self._has_begun = True
        try:
            self.host, self.port = self.endpoint.start()
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def reload_certificates(self) -> bool:
        """Reads certificates and keys again. New connections use them, and those that are there go on; so does the search for changes.

        Returns:
            Whether there are any: without TLS there are not.

        Raises:
            InputError: A file cannot be read, or is not what it should be. What was read before goes on to be used.
            OptionError: They do not fit each other; the same.
        """
        if self.credentials is None:
            return False
        self.credentials.reload()
        return True

    def _begin(self) -> None:
        """Has the instance use what listens by now."""
        instance, background = self._instance, self._background
        background.catalog.add_addresses([*_addresses(self.host, self.port), *self.options.addresses])
        instance.row_sources["sys.dm_broker_connections"] = self.endpoint.view_rows
        instance.row_sources["sys.dm_broker_forwarded_messages"] = self.forwarding.view_rows
        self._changed(self)
        background.routes.tie_break = "round_robin"
        background.delivery.transport = self.exchange
        for database in instance.databases:
            background.changed(database)  # what waited for an endpoint goes
        look = (lambda: None) if self.credentials is None else self.credentials.reload_if_changed
        self._bulletin = StatusFile(
            instance,
            (self.host, self.port),
            connections=lambda: view(instance, "sys.dm_broker_connections", None).to_pylist(),
            forwarded_pending=lambda: self.forwarding.pending[0],
            look=look,
        )
        self._bulletin.start()
        self._wake()

    def close(self) -> None:
        """Serves no more: what has arrived is taken and acknowledged, what is queued is written, connections end with a goodbye."""
        if (
            not self._is_open or self._instance.databases_list.is_inherited
        ):  # what was forked has let go, and its parent serves on
            return
        self._is_open = False
        if self._bulletin is not None:
            self._bulletin.close()
        background = self._background
        background.delivery.transport = None
        background.routes.tie_break = "hash"
        self._runner.close()
        try:
            self.exchange.finish()
        finally:
            self.endpoint.close(self.options.close_timeout)
            self.exchange.close()
            for name in ("sys.dm_broker_connections", "sys.dm_broker_forwarded_messages"):
                self._instance.row_sources.pop(name, None)
            background.catalog.add_addresses(None)
            self._changed(None)
            self._lock.release()

    def _connect(self, reception: EndpointEvents) -> SocketEndpoint:
        instance, options = self._instance, self.options
        own = OwnIdentity(
            instance_id=instance.instance_id,
            name=instance.name,
            run_number=instance.random.getrandbits(64),
        )
        setup = EndpointSetup(
            own=own,
            listener=reception,
            credentials=self.credentials,
            limits=options.limits,
            events=instance.events,
            clock=self._now,
            random=instance.random,
            dial_filter=DialFilter(options.dial_only),
        )
        return SocketEndpoint(setup, host=options.host, port=options.port)

    def _run(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.exchange.turn())

    def _wake(self) -> None:
        if self._is_open and self._instance.background:
            self._runner.wake()

    def _now(self) -> int:
        return epoch_microseconds(self._instance.clock())

    def _forward_size(self) -> int:
        endpoint = self._instance.msdb.objects().endpoint
        return 0 if endpoint is None else endpoint.message_forwarding_size * _MEGABYTE

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _addresses(host: str, port: int) -> list[str]:
    """The addresses of a listener, the one to tell others in front."""
    ip = ip_of(host)
    if ip is None:
        hosts = [host]
    elif ip.is_unspecified:
        hosts = [*_LOOPBACK]
    else:
        hosts = [ip.compressed, *(each for each in _LOOPBACK if ip.is_loopback and each != ip.compressed)]
    return [f"TCP://{host_and_port(each, port)}" for each in hosts]
