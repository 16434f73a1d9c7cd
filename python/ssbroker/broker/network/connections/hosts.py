"""Hosts that are given as numbers, and addresses with them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from ssbroker.wording import host_and_port


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is given as.

    Args:
        host: A name or an address, which may name its zone (`fe80::1%eth0`).

    Returns:
        The address without its zone, an IPv4 one that is mapped into IPv6 as itself; None for a name.

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
    """The address of a socket's other end.

    Args:
        name: As the operating system has it.

    Returns:
        As routes have it.

    Examples:
        >>> address_of(("127.0.0.1", 4022)), address_of(("::1", 4022, 0, 0))
        ('TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    match name:
        case (str(host), int(port), *_):
            return f"TCP://{host_and_port(host, port)}"
        case _:
            return ""
