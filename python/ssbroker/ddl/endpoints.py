"""CREATE and ALTER ENDPOINT: their grammar, and the addresses that a listener has."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from typing import Final

from ssbroker.ddl.cursor import Cursor
from ssbroker.ddl.statements import AlterEndpoint, CreateEndpoint, EndpointSettings, Skipped, Statement

PORT_MAX: Final = 65_535
_STATES: Final = ("STARTED", "STOPPED", "DISABLED")


def addresses(port: int | None, ip: str | None) -> tuple[str, ...]:
    """The addresses of a listener.

    A script names the port and may name an IP address; it does not know the host it will run on. So a listener on all
    addresses is known by those of the loopback alone, and further names come from an `addresses` annotation.

    Example:
        >>> addresses(4022, "10.0.0.5")
        ('TCP://10.0.0.5:4022',)
        >>> addresses(4022, "ALL")
        ('TCP://localhost:4022', 'TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    if port is None:
        return ()
    hosts = ["localhost", "127.0.0.1", "[::1]"]
    if ip not in (None, "ALL"):
        parsed = ip_address(str(ip))
        hosts = [f"[{parsed.compressed}]" if isinstance(parsed, IPv6Address) else str(parsed)]
    return tuple(f"TCP://{host}:{port}" for host in hosts)


def create(cursor: Cursor, name: str) -> Statement:
    """CREATE ENDPOINT after the name."""
    protocol, kind, settings = _endpoint(cursor)
    if kind is None or protocol is None:
        cursor.fail("AS TCP (...) and FOR were expected")
    if kind != "SERVICE_BROKER":
        return Skipped()
    if settings.port is None:
        cursor.fail("AS TCP (LISTENER_PORT = ...) was expected")
    return CreateEndpoint(name, settings)


def alter(cursor: Cursor, name: str) -> Statement:
    """ALTER ENDPOINT after the name."""
    _, kind, settings = _endpoint(cursor)
    if kind not in (None, "SERVICE_BROKER"):
        return Skipped()
    return AlterEndpoint(name, settings, kind is not None)


def _endpoint(cursor: Cursor) -> tuple[str | None, str | None, EndpointSettings]:
    """The protocol, the kind after FOR, and the settings."""
    protocol = kind = None
    if cursor.accept("AUTHORIZATION"):
        cursor.name()
    settings = EndpointSettings(state=_state(cursor))
    if cursor.accept("AS"):
        protocol = cursor.take().key
        if protocol == "TCP":
            port, ip = _listener(cursor)
            settings = replace(settings, port=port, ip=ip)
        else:
            _parenthesised(cursor)
    if cursor.accept("FOR"):
        if cursor.token.kind != "word":
            cursor.fail("what the endpoint is for was expected, such as SERVICE_BROKER")
        kind = cursor.take().key
        if kind == "SERVICE_BROKER":
            settings = _broker(cursor, settings) if cursor.key == "(" else settings
            if protocol not in (None, "TCP"):
                cursor.fail("SERVICE_BROKER needs AS TCP")
        elif cursor.key == "(":
            _parenthesised(cursor)
    return protocol, kind, settings


def _state(cursor: Cursor) -> str | None:
    state = None
    while cursor.key in ("STATE", "AFFINITY"):
        key = cursor.take().key
        cursor.expect("=")
        if key == "STATE":
            if cursor.key not in _STATES:
                cursor.fail("STARTED, STOPPED or DISABLED was expected")
            state = cursor.key
        cursor.take()
        cursor.accept(",")
    return state


def _listener(cursor: Cursor) -> tuple[int | None, str | None]:
    port = ip = None
    seen: set[str] = set()
    cursor.expect("(")
    while True:
        key = _option(cursor, ("LISTENER_PORT", "LISTENER_IP"), seen)
        if key == "LISTENER_PORT":
            port = cursor.integer()
            if not 1 <= port <= PORT_MAX:
                raise cursor.error(f"LISTENER_PORT = {port} is no port")
        else:
            ip = "ALL" if cursor.accept("ALL") else _ip(cursor)
        if not cursor.accept(","):
            cursor.expect(")")
            return port, ip


def _ip(cursor: Cursor) -> str:
    cursor.expect("(")
    text = ""
    while not cursor.done and cursor.key != ")":
        text += cursor.take().text
    cursor.expect(")")
    try:
        return ip_address(text).compressed
    except ValueError:
        raise cursor.error(f"LISTENER_IP = ({text}) is no IP address") from None


def _broker(cursor: Cursor, settings: EndpointSettings) -> EndpointSettings:
    seen: set[str] = set()
    cursor.expect("(")
    while not cursor.accept(")"):
        key = _option(cursor, ("AUTHENTICATION", "ENCRYPTION", "MESSAGE_FORWARDING", "MESSAGE_FORWARD_SIZE"), seen)
        if key == "MESSAGE_FORWARDING":
            if cursor.key not in ("ENABLED", "DISABLED"):
                cursor.fail("ENABLED or DISABLED was expected")
            settings = replace(settings, forwarding=cursor.take().key == "ENABLED")
        elif key == "MESSAGE_FORWARD_SIZE":
            settings = replace(settings, forward_size=cursor.integer())
        else:
            while not cursor.done and cursor.key not in (",", ")"):
                cursor.take()
        if cursor.key != ")":
            cursor.expect(",")
    return settings


def _option(cursor: Cursor, keys: tuple[str, ...], seen: set[str]) -> str:
    key = cursor.once(keys, seen)
    cursor.expect("=")
    return key


def _parenthesised(cursor: Cursor) -> None:
    cursor.expect("(")
    depth = 1
    while depth:
        if cursor.done:
            cursor.fail("the parentheses do not match")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
