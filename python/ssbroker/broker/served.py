"""How an instance is served to other instances."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ssbroker.broker.delivery.pictures import Pictures
from ssbroker.broker.hosting import Hosting

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.service.serving import Server


class Served(Hosting):
    """The methods of an instance that are about other instances.

    Attributes:
        server: What serves it in this process; None while nothing does.
    """

    server: Server | None = None
    _pictures: Pictures

    @property
    @abstractmethod
    def _instance(self) -> Instance:
        """The instance that this is."""

    def serve(self, host: str = "127.0.0.1", port: int = 4022, **options: Any) -> Server:
        """Serves the instance to others: its endpoint listens, and conversations with other instances go, until the block ends (P3).

        Args:
            host: Where it listens; "0.0.0.0" or "::" are all addresses of the machine.
            port: The port; 0 takes any that is free.
            options: `trust`, or `allow_unencrypted=True`; and whatever else `ServeOptions` has.

        Returns:
            The server, for a `with` block; `port` says where it listens, `close` ends it.

        Raises:
            OptionError: An option is not what it can be.
            InvalidAddressError: One of `addresses` is no address.
            InputError: A certificate cannot be read.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     with instance.serve(port=0, allow_unencrypted=True) as server:
            ...         server.address.startswith("TCP://127.0.0.1:")
            True
        """
        from ssbroker.broker.network.service.options import ServeOptions  # noqa: PLC0415  # who does not serve needs none of it
        from ssbroker.broker.network.service.serving import Server  # noqa: PLC0415

        return Server(self._instance, ServeOptions(host=host, port=port, **options))

    def is_reached_at(self, addresses: Iterable[str] | None) -> None:
        """Notes addresses at which this instance itself answers (R41).

        Args:
            addresses: More of them; None is that it does not any more.
        """
        self._pictures.is_reached_at(addresses)
