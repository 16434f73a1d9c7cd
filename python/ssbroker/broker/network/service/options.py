"""How an instance is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ssbroker import options, schemas
from ssbroker.broker.network.connections.limits import EndpointLimits
from ssbroker.broker.network.connections.reach import Reach
from ssbroker.broker.network.connections.trust import Trust
from ssbroker.catalog import Catalog
from ssbroker.exceptions import OptionError
from ssbroker.protocol.adjacent.batch import BYTES_MAX
from ssbroker.protocol.settings import FRAGMENT_BYTES_LEAST, Settings

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
    settings: Settings = field(default_factory=Settings)
    close_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not self.host:
            raise OptionError("host: expected an address or a name; got none")
        options.whole(self.port, name="port", least=0, most=_PORT_MAX)
        options.flag(self.allow_unencrypted, name="allow_unencrypted")
        Catalog(schemas.ROUTES.empty_table(), addresses=options.texts(self.addresses, name="addresses"))
        Reach(self.dial_only)
        if self.trust is not None:
            _check_kind(self.trust, Trust, name="trust")
        _check_kind(self.limits, EndpointLimits, name="limits")
        _check_kind(self.settings, Settings, name="settings")
        if self.trust is None and not self.allow_unencrypted:
            raise OptionError("trust: expected certificates, or allow_unencrypted=True to do without them")
        if self.trust is not None and self.allow_unencrypted:
            raise OptionError("trust and allow_unencrypted: expected one of them, got both")
        options.whole(
            self.settings.max_fragment_bytes,
            name="settings.max_fragment_bytes",
            least=FRAGMENT_BYTES_LEAST,
            most=BYTES_MAX,
        )
        options.seconds(self.close_timeout, name="close_timeout")


def _check_kind(value: object, kind: type, *, name: str) -> None:
    if not isinstance(value, kind):
        raise OptionError(f"{name}: expected {kind.__name__}, got {value!r:.80}")
