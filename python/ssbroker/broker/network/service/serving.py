"""An instance while it is served: its endpoint, its exchange, and the thread between them."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ssbroker import moment
from ssbroker.broker.network.carriage.forwarding import Forwarding
from ssbroker.broker.network.carriage.mirrors import MirroredRoutes
from ssbroker.broker.network.connections.credentials import Credentials
from ssbroker.broker.network.connections.endpoint import SocketEndpoint
from ssbroker.broker.network.connections.hosts import ip_of
from ssbroker.broker.network.connections.reach import Reach
from ssbroker.broker.network.connections.setup import Setup
from ssbroker.broker.network.exchange.exchange import Exchange
from ssbroker.broker.network.exchange.key_exchange import DialogKeys
from ssbroker.broker.network.exchange.reception import Reception
from ssbroker.broker.network.service.bulletin import Bulletin
from ssbroker.broker.network.service.options import ServeOptions
from ssbroker.broker.runner import Runner
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.exceptions import ProtocolError
from ssbroker.moment import EPOCH
from ssbroker.protocol.adjacent.hello import Own
from ssbroker.wording import host_and_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.seam import Endpoint

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_MEGABYTE: Final = 1 << 20


class Server:
    """Serves an instance from the beginning of a `with` block to its end; `Instance.serve` makes it.

    Args:
        instance: The instance.
        options: How it is served.
        connect: Makes the connections; left out, over TCP.

    Attributes:
        instance: The instance.
        host: Where it listens.
        port: The port.
        endpoint: The connections.
        mirrors: Which instances are the principals of mirrored routes.
        forwarding: What is passed on for others.
        exchange: What carries conversations.
        credentials: Certificates and keys; None without TLS.
    """

    def __init__(
        self,
        instance: Instance,
        options: ServeOptions,
        *,
        connect: Callable[[Reception], Endpoint] | None = None,
    ) -> None:
        self.instance: Final = instance
        self.options: Final = options
        self.host: str = options.host
        self.port: int = options.port
        self._lock: Final = ServeLock(instance.folder)
        self._runner: Final = Runner(self._run, clock=instance.clock, name=f"ssbroker {instance.name} exchange")
        self._is_open = self._has_begun = False
        self._bulletin: Bulletin | None = None
        self.credentials: Final = None if options.trust is None else Credentials(options.trust)
        reception = Reception(self._wake)
        self.endpoint: Endpoint = self._connect(reception) if connect is None else connect(reception)
        reception.endpoint = self.endpoint
        self.mirrors: Final = MirroredRoutes(
            instance, self.endpoint, changed=lambda pair: reception.tell(lambda exchange: exchange.settled(pair[:2]))
        )
        reception.mirrors = self.mirrors
        self.forwarding: Final = Forwarding(
            self.endpoint,
            way=self.mirrors.way,
            most=self._forward_size,
            events=instance.events,
            clock=self._now,
        )
        self.exchange: Final = Exchange(
            instance,
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
        runs = self._runner.is_alive or not self.instance.background
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
        self.instance.check()
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
        instance = self.instance
        instance.is_reached_at([*_addresses(self.host, self.port), *self.options.addresses])
        instance.server = self
        instance.worker.ways.tie_break = "round_robin"
        instance.worker.delivery.transport = self.exchange
        for database in instance.databases:
            instance.objects_changed(database)  # what waited for an endpoint goes
        look = (lambda: None) if self.credentials is None else self.credentials.look
        self._bulletin = Bulletin(instance, (self.host, self.port), look=look)
        self._bulletin.start()
        self._wake()

    def close(self) -> None:
        """Serves no more: what has arrived is taken and acknowledged, what is queued is written, connections end with a goodbye."""
        if not self._is_open or self.instance.is_inherited:  # what was forked has let go, and its parent serves on
            return
        self._is_open = False
        if self._bulletin is not None:
            self._bulletin.close()
        instance = self.instance
        instance.worker.delivery.transport = None
        instance.worker.ways.tie_break = "hash"
        self._runner.close()
        try:
            self.exchange.finish()
        finally:
            self.endpoint.close(self.options.close_timeout)
            self.exchange.close()
            instance.server = None
            instance.is_reached_at(None)
            self._lock.release()

    def _connect(self, reception: Reception) -> SocketEndpoint:
        instance, options = self.instance, self.options
        own = Own(
            instance_id=instance.instance_id,
            name=instance.name,
            number=instance.random.getrandbits(64),
        )
        setup = Setup(
            own=own,
            receiver=reception,
            credentials=self.credentials,
            limits=options.limits,
            events=instance.events,
            clock=self._now,
            random=instance.random,
            reach=Reach(options.dial_only),
        )
        return SocketEndpoint(setup, host=options.host, port=options.port)

    def _run(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.exchange.turn())

    def _wake(self) -> None:
        if self._is_open and self.instance.background:
            self._runner.wake()

    def _now(self) -> int:
        return moment.microseconds(self.instance.clock())

    def _forward_size(self) -> int:
        endpoint = self.instance.msdb.objects().endpoint
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
