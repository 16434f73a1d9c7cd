"""Serves an instance: its endpoint, its exchange, and their threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ssbroker import schemas
from ssbroker._arguments import EPOCH, boolean, integer_argument, is_utf8_text, string_list, timeout_seconds
from ssbroker._text import host_and_port
from ssbroker._well_known import PORT, PORT_MAX
from ssbroker.broker import async_calls
from ssbroker.broker.background import Background
from ssbroker.broker.background_thread import LONGEST_WAIT, WorkerThread, wait_limit
from ssbroker.broker.commit_signals import TRANSMISSIONS_CHANNEL
from ssbroker.broker.context import InstanceContext
from ssbroker.broker.network.addresses import DialFilter, ip_of
from ssbroker.broker.network.dialog_keys import DialogKeys
from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.message_exchange import MessageExchange
from ssbroker.broker.network.socket_endpoint import SocketEndpoint
from ssbroker.broker.network.status_file import StatusFile
from ssbroker.broker.network.tls import TlsCredentials, Trust
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.broker.views import view
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, ProtocolError
from ssbroker.protocol.settings import FRAGMENT_BYTES_MIN, ProtocolSettings
from ssbroker.protocol.wire.frames import BYTES_MAX, OwnIdentity

if TYPE_CHECKING:
    from datetime import datetime

    from ssbroker.broker.network.interfaces import EndpointListener, NetworkEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `Instance.serve`.

    Attributes:
        host: The address or host name of this machine to listen on; "0.0.0.0" or "::" listen on all addresses.
        port: The port; 0 selects a free one.
        trust: The certificates of this instance and of trusted peers. Required unless `allow_unencrypted` is set.
        allow_unencrypted: Whether connections are neither encrypted nor authenticated: anyone who can reach the port can send.
        addresses: Additional addresses of this instance as peers know them, such as `TCP://shop.example.com:4022`.
        dial_only: The destinations that may be dialled: networks (`10.0.0.0/8`), addresses, host names, and all names below a domain
            (`*.example.com`). If empty, any destination that a route or a service name contains may be dialled.
        limits: The timeouts and size limits of connections.
        settings: The settings of the dialog protocol; `max_fragment_bytes` must be between 2,048, so that peers can receive the largest
            message, and 1,048,576, the largest fragment that fits into a frame.
        close_timeout: The maximum number of seconds that `close` waits for queued messages to be sent.

    Raises:
        OptionError: An option has an invalid value.
        InvalidAddressError: `addresses` contains an invalid address.

    Examples:
        >>> ServeOptions()
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: trust: expected a Trust with certificates; to serve without TLS, pass allow_unencrypted=True
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
        if not is_utf8_text(self.host) or not self.host:
            raise OptionError(f"host: expected an address or a host name, got {self.host!r:.80}")
        integer_argument(self.port, name="port", minimum=0, maximum=PORT_MAX)
        boolean(self.allow_unencrypted, name="allow_unencrypted")
        Catalog(schemas.ROUTES.empty_table(), addresses=string_list(self.addresses, name="addresses"))
        DialFilter(self.dial_only)
        if self.trust is not None:
            _check_kind(self.trust, Trust, name="trust")
        _check_kind(self.limits, EndpointLimits, name="limits")
        _check_kind(self.settings, ProtocolSettings, name="settings")
        if self.trust is None and not self.allow_unencrypted:
            raise OptionError(
                "trust: expected a Trust with certificates; to serve without TLS, pass allow_unencrypted=True"
            )
        if self.trust is not None and self.allow_unencrypted:
            raise OptionError("trust and allow_unencrypted: expected only one of them, got both")
        integer_argument(
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
    """Serves an instance over the network for the duration of a `with` block; returned by `Instance.serve`.

    Attributes:
        options: The options that were passed to `Instance.serve`.
        host: The address that the server listens on.
        port: The port that the server listens on.
        endpoint: The network connections.
        mirrors: Determines which address of each mirrored route is the principal.
        forwarding: The messages being forwarded for other instances.
        exchange: Passes messages between the databases and the network connections.
        credentials: The certificates and keys; None without TLS.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     with instance.serve(port=0, allow_unencrypted=True) as server:
        ...         server.is_alive, server.address == f"TCP://127.0.0.1:{server.port}"
        (True, True)
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        options: ServeOptions,
        *,
        new_network_endpoint: Callable[[EndpointListener], NetworkEndpoint] | None = None,
        on_change: Callable[[Server | None], object] = lambda _: None,
    ) -> None:
        self._instance: Final = instance
        self._background: Final = background
        self.options: Final = options
        self.host: str = options.host
        self.port: int = options.port
        self._lock: Final = ServeLock(instance.folder)
        self._worker: Final = WorkerThread(self._run, clock=instance.clock, name=f"ssbroker {instance.name} exchange")
        self._commit_signals: Final = instance.msdb.commit_signals
        self._is_open = self._has_started = False
        self._status_file: StatusFile | None = None
        self._commits: Final = (
            threading.Thread(target=self._follow_announcements, name=f"ssbroker {instance.name} commits", daemon=True)
            if instance.background and self._commit_signals.is_shared
            else None
        )
        self._on_change: Final = on_change
        self.credentials: Final = None if options.trust is None else TlsCredentials(options.trust)
        self.exchange: Final = MessageExchange(
            instance,
            background,
            new_network_endpoint=new_network_endpoint or self._new_network_endpoint,
            settings=options.settings,
            keys=DialogKeys(),
            forwarding_limit=self._forwarding_limit,
            wake=self._wake,
        )
        self.endpoint: NetworkEndpoint = self.exchange.endpoint
        self.mirrors: Final = self.exchange.mirrors
        self.forwarding: Final = self.exchange.forwarding

    @property
    def address(self) -> str:
        """The address that the server listens on, as `TCP://host:port`; the local host if it listens on all addresses."""
        return _addresses(self.host, self.port)[0]

    @property
    def is_alive(self) -> bool:
        """Whether the server accepts connections and its threads are running."""
        is_running = self._worker.is_alive or not self._instance.background
        return self._is_open and is_running and self.endpoint.is_alive

    def start(self) -> Self:
        """Starts serving; the `with` statement calls it.

        Returns:
            The server itself.

        Raises:
            StorageError: Another process serves the instance, or this process was forked from a process that has the instance open.
            EndpointError: The server cannot listen on the address or port.
            ProtocolError: The server was already started. It can be started only once, even if it was closed or failed to listen.
        """
        self._instance.databases_list.check()
        if self._is_open:
            raise ProtocolError("this server is already running")
        if self._has_started:
            raise ProtocolError("a server can be started only once; call Instance.serve again")
        self._lock.acquire()
        self._has_started = True
        try:
            self.host, self.port = self.endpoint.start()
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True
        try:
            self._attach()
        except BaseException:
            self.close()
            raise
        return self

    def __repr__(self) -> str:
        return f"<Server of {self._instance.name!r}, {f'at {self.address}' if self._is_open else 'not running'}>"

    def status(self) -> dict[str, Any] | None:
        """Returns the process, the address and the connections, as in the status file; None if the server is not running."""
        return None if self._status_file is None or not self._is_open else self._status_file.status()

    def reload_certificates(self) -> bool:
        """Reads the certificates and keys from their files again.

        New connections use the new files; existing connections are not affected. The server also reads the files again
        when one changes, unless the instance was opened with `background=False`.

        Returns:
            True if the files were read; False without TLS.

        Raises:
            InputError: A file cannot be read, or is invalid. The previous certificates and keys remain in use.
            OptionError: The files do not match each other. The previous certificates and keys remain in use.
        """
        if self.credentials is None:
            return False
        self.credentials.reload()
        return True

    def _attach(self) -> None:
        """Attaches the running endpoint to the instance."""
        instance, background = self._instance, self._background
        addresses = [*_addresses(self.host, self.port), *self.options.addresses]
        background.catalog.add_addresses(addresses)
        instance.row_sources["sys.dm_broker_connections"] = self.endpoint.view_rows
        instance.row_sources["sys.dm_broker_forwarded_messages"] = self.forwarding.view_rows
        self._on_change(self)
        background.routes.tie_break = "round_robin"
        background.delivery.transport = self.exchange
        for database in instance.databases:
            background.changed(database)  # send the messages that waited for an endpoint
        on_write = (lambda: None) if self.credentials is None else self.credentials.reload_if_changed
        self._status_file = StatusFile(
            instance,
            (self.host, self.port),
            addresses=addresses,
            connections=lambda: view(instance, "sys.dm_broker_connections", None).to_pylist(),
            forwarded_pending=lambda: self.forwarding.pending[0],
            on_write=on_write,
        )
        self._status_file.start()
        if self._commits is not None:
            self._commits.start()
        self._wake()

    def close(self) -> None:
        """Stops serving: stores and acknowledges received messages, sends queued messages, and closes the connections.

        Sending takes at most `close_timeout` seconds. In a signal handler or a subscriber that runs during a call of the broker, each wait
        for another thread takes at most a second. Closing a server that is not open does nothing.
        """
        # A forked child has already closed its copies of the sockets; the parent continues to serve.
        if not self._is_open or self._instance.databases_list.is_inherited:
            return
        self._is_open = False
        background = self._background
        background.delivery.transport = None
        background.routes.tie_break = "hash"
        with ExitStack() as stack:  # an error in one step, such as a missing file, does not prevent the other steps
            stack.callback(self._lock.release)
            stack.callback(self._on_change, None)
            stack.callback(background.catalog.add_addresses, None)
            for name in ("sys.dm_broker_connections", "sys.dm_broker_forwarded_messages"):
                stack.callback(self._instance.row_sources.pop, name, None)
            stack.callback(self.exchange.close)
            stack.callback(self.endpoint.close, self.options.close_timeout)
            stack.callback(self.exchange.finish)
            stack.callback(self._worker.close)
            stack.callback(self._stop_following)
            if self._status_file is not None:
                stack.callback(self._status_file.close)

    def _new_network_endpoint(self, listener: EndpointListener) -> SocketEndpoint:
        instance, options = self._instance, self.options
        own = OwnIdentity(
            instance_id=instance.instance_id,
            name=instance.name,
            run_number=instance.random.getrandbits(64),
        )
        context = EndpointContext(
            own=own,
            listener=listener,
            credentials=self.credentials,
            limits=options.limits,
            events=instance.events,
            clock=self._instance.microseconds,
            random=instance.random,
            dial_filter=DialFilter(options.dial_only),
        )
        return SocketEndpoint(context, host=options.host, port=options.port)

    def _stop_following(self) -> None:
        if self._commits is not None and self._commits.is_alive():
            self._commit_signals.notify([TRANSMISSIONS_CHANNEL])
            self._commits.join(wait_limit())

    def _follow_announcements(self) -> None:
        """Ensures that messages committed by other processes are sent at once, and that changes these processes make to objects are noticed."""
        signals = self._commit_signals
        seen = signals.count(TRANSMISSIONS_CHANNEL)
        self._wake()
        while self._is_open and not signals.is_closed:
            if signals.wait(TRANSMISSIONS_CHANNEL, seen=seen, timeout=LONGEST_WAIT):
                seen = signals.count(TRANSMISSIONS_CHANNEL)
                self._wake()

    def _run(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.exchange.turn())

    def _wake(self, at: int | None = None, /) -> None:
        if self._is_open and self._instance.background:
            self._worker.wake(None if at is None else EPOCH + timedelta(microseconds=at))

    def _forwarding_limit(self) -> int:
        endpoint = self._instance.msdb.objects().endpoint
        return 0 if endpoint is None else endpoint.message_forwarding_size * _MEGABYTE

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await async_calls.acquire(self.start, undo=Server.close)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await async_calls.leave(self.__exit__, exc_type, error, trace)


def _addresses(host: str, port: int) -> list[str]:
    """Returns the addresses of a listener; the first is the address to give to peers."""
    ip = ip_of(host)
    if ip is None:
        hosts = [host]
    elif ip.is_unspecified:
        hosts = [*_LOOPBACK]
    else:
        hosts = [ip.compressed, *(each for each in _LOOPBACK if ip.is_loopback and each != ip.compressed)]
    return [f"TCP://{host_and_port(each, port)}" for each in hosts]
