"""Parses the addresses of instances, collects the addresses that routes name, and decides which may be dialled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

import pyarrow as pa

from ssbroker._arguments import string_list
from ssbroker._text import host_and_port
from ssbroker.exceptions import OptionError


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Returns a host as an IP address; None if it is a name.

    A zone is removed, and an IPv4 address mapped into IPv6 is returned as IPv4.

    Examples:
        >>> ip_of("::ffff:192.0.2.1"), ip_of("fe80::1%eth0"), ip_of("localhost")
        (IPv4Address('192.0.2.1'), IPv6Address('fe80::1'), None)
    """
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    return ip


def address_of(name: object) -> str:
    """Returns a socket's peer name as an address in the form that routes use.

    Examples:
        >>> address_of(("127.0.0.1", 4022)), address_of(("::1", 4022, 0, 0))
        ('TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    match name:
        case (str(host), int(port), *_):
            return f"TCP://{host_and_port(host, port)}"
        case _:
            return ""


def host_of(address: str) -> str:
    """Returns the host of a normalized address, an IPv6 address without brackets.

    Examples:
        >>> host_of("TCP://[::1]:4022"), host_of("TCP://shop.example.com:4022")
        ('::1', 'shop.example.com')
    """
    return address.removeprefix("TCP://").rpartition(":")[0].strip("[]")


def route_addresses(routes: pa.Table) -> Collection[str]:
    """Returns the normalized addresses that routes (`schemas.ROUTES`) name, including those of mirrors."""
    columns = [routes[name].unique().to_pylist() for name in ("address", "mirror_address")]
    return frozenset(address for column in columns for address in column if address is not None)


_Network: TypeAlias = IPv4Network | IPv6Network


class DialFilter:
    """The hosts and networks that may be dialled.

    Args:
        entries: Networks (`10.0.0.0/8`), addresses, host names, and all names below a domain (`*.example.com`). If
            empty, any host may be dialled.

    Raises:
        OptionError: An entry is invalid.

    Examples:
        >>> dial_filter = DialFilter(["10.0.0.0/8", "*.example.com"])
        >>> [dial_filter.permits_name(host) for host in ("shop.example.com", "example.com", "shop.example.org")]
        [True, False, False]
        >>> dial_filter.permits_ip("10.1.2.3"), dial_filter.permits_ip("192.0.2.1"), DialFilter([]).permits_ip("192.0.2.1")
        (True, False, True)
        >>> DialFilter(["10.0.0.1/8"])
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: dial_only: '10.0.0.1/8' is not a valid network: 10.0.0.1/8 has host bits set
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._names: Final[set[str]] = set()
        self._domains: Final[list[str]] = []
        self._networks: Final[list[_Network]] = []
        for entry in string_list(entries, name="dial_only"):
            self._add(entry)
        self._permits_everything: Final = not entries

    def _add(self, entry: str) -> None:
        network = _network(entry)
        if network is not None:
            self._networks.append(network)
        elif entry.startswith("*.") and _is_name(entry[2:]):
            self._domains.append(entry[1:].lower())
        elif _is_name(entry):
            self._names.add(entry.lower())
        else:
            raise OptionError(f"dial_only: expected a network, an address, a host name or *.DOMAIN, got {entry!r:.80}")

    def permits_name(self, host: str) -> bool:
        """Returns whether a lower-case host may be dialled, whatever its address is."""
        return self._permits_everything or host in self._names or any(host.endswith(domain) for domain in self._domains)

    def permits_ip(self, host: str) -> bool:
        """Returns whether an IP address may be dialled; False for a name, unless everything may be dialled."""
        if self._permits_everything:
            return True
        ip = ip_of(host)
        return ip is not None and any(ip in network for network in self._networks)

    def refuses(self, host: str) -> bool:
        """Returns whether it is known, before the name is looked up, that a lower-case host may not be dialled."""
        if self.permits_name(host):
            return False
        if ip_of(host) is None:
            return not self._networks
        return not self.permits_ip(host)


def _network(entry: str) -> _Network | None:
    try:
        return ip_network(entry)
    except ValueError as error:
        if "/" in entry:
            raise OptionError(f"dial_only: {entry!r:.80} is not a valid network: {error}") from error
        return None


def _is_name(entry: str) -> bool:
    return bool(entry) and all(part and part.replace("-", "").replace("_", "").isalnum() for part in entry.split("."))
