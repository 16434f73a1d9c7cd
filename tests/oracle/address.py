"""R6: syntax and equality of addresses."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

LOCAL = "LOCAL"
TRANSPORT = "TRANSPORT"
DEFAULT_PORT = 4022

_LABEL = r"[A-Za-z0-9_-]+"
_HOST = rf"(?P<host>{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])"
_SCHEME = r"[Tt][Cc][Pp]://"
_PORT = r"(?P<port>0*[0-9]{1,5})"
_ADDRESS = re.compile(rf"{_SCHEME}{_HOST}(?::{_PORT})?/?")
_SERVICE_NAME = re.compile(rf"(?:{_SCHEME})?{_HOST}:{_PORT}(?:/.*)?", re.DOTALL)


class InvalidAddressError(ValueError):
    """The text is not an address."""


@lru_cache(maxsize=4096)
def normal_address(text: str) -> str:
    """R6: returns the normal form of an address; equal addresses have equal normal forms."""
    if text.isascii() and text.upper() in (LOCAL, TRANSPORT):
        return text.upper()
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise InvalidAddressError(text)
    return _written(match, text)


@lru_cache(maxsize=4096)
def address_in_service_name(name: str) -> str | None:
    """R23:

    returns the address at the start of a service name, `[TCP://]host:port[/anything]`; None if there is none.
    """
    match = _SERVICE_NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return _written(match, name)
    except InvalidAddressError:
        return None


def _written(match: re.Match[str], text: str) -> str:
    port = DEFAULT_PORT if match["port"] is None else int(match["port"])
    if not 1 <= port <= 65535:
        raise InvalidAddressError(text)
    return f"TCP://{_host(match['host'], text)}:{port}"


def _host(host: str, text: str) -> str:
    if not host.startswith("["):
        return host.lower()
    try:
        address = ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        raise InvalidAddressError(text) from None
    if address.ipv4_mapped is not None:
        # RFC 5952, section 5: the canonical form of a mapped address ends in dotted decimals.
        return f"[::ffff:{address.ipv4_mapped}]"
    return f"[{address.compressed}]"
