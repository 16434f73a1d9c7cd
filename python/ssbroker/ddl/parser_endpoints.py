"""Parses statements about endpoints."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Final

from ssbroker._well_known import PORT_MAX
from ssbroker.ddl.statements import AlterEndpoint, CreateEndpoint, EndpointSettings, Skipped, Statement
from ssbroker.ddl.token_cursor import TokenCursor

_STATES: Final = ("STARTED", "STOPPED", "DISABLED")


def create_endpoint(cursor: TokenCursor, name: str) -> Statement:
    """Parses CREATE ENDPOINT after the name."""
    protocol, kind, settings = _endpoint_settings(cursor)
    if kind is None or protocol is None:
        cursor.fail("expected AS TCP (...) and FOR")
    if kind != "SERVICE_BROKER":
        return Skipped("CREATE ENDPOINT")
    if settings.port is None:
        cursor.fail("expected AS TCP (LISTENER_PORT = ...)")
    return CreateEndpoint(name, settings)


def alter_endpoint(cursor: TokenCursor, name: str) -> Statement:
    """Parses ALTER ENDPOINT after the name."""
    _, kind, settings = _endpoint_settings(cursor)
    if kind not in (None, "SERVICE_BROKER"):
        return Skipped("ALTER ENDPOINT")
    return AlterEndpoint(name, settings, kind is not None)


def _endpoint_settings(cursor: TokenCursor) -> tuple[str | None, str | None, EndpointSettings]:
    """Returns the protocol, the kind after FOR, and the settings."""
    protocol = kind = None
    if cursor.accept("AUTHORIZATION"):
        cursor.name()
    settings = EndpointSettings(state=_endpoint_state(cursor))
    if cursor.accept("AS"):
        protocol = cursor.take().key
        if protocol == "TCP":
            port, ip = _listener(cursor)
            settings = replace(settings, port=port, ip=ip)
        else:
            _skip_parentheses(cursor)
    if cursor.accept("FOR"):
        if cursor.token.kind != "word":
            cursor.fail("expected the purpose of the endpoint, such as SERVICE_BROKER")
        kind = cursor.take().key
        if kind == "SERVICE_BROKER":
            settings = _broker_options(cursor, settings) if cursor.key == "(" else settings
            if protocol not in (None, "TCP"):
                cursor.fail("SERVICE_BROKER requires AS TCP")
        elif cursor.key == "(":
            _skip_parentheses(cursor)
    return protocol, kind, settings


def _endpoint_state(cursor: TokenCursor) -> str | None:
    state = None
    while cursor.key in ("STATE", "AFFINITY"):
        key = cursor.take().key
        cursor.expect("=")
        if key == "STATE":
            if cursor.key not in _STATES:
                cursor.fail("expected STARTED, STOPPED or DISABLED")
            state = cursor.key
        cursor.take()
        cursor.accept(",")
    return state


def _listener(cursor: TokenCursor) -> tuple[int | None, str | None]:
    port = ip = None
    seen: set[str] = set()
    cursor.expect("(")
    while True:
        key = _endpoint_option(cursor, ("LISTENER_PORT", "LISTENER_IP"), seen)
        if key == "LISTENER_PORT":
            port = cursor.integer()
            if not 1 <= port <= PORT_MAX:
                raise cursor.error(f"LISTENER_PORT = {port} is not a valid port; expected 1 to {PORT_MAX}")
        else:
            ip = "ALL" if cursor.accept("ALL") else _ip(cursor)
        if not cursor.accept(","):
            cursor.expect(")")
            return port, ip


def _ip(cursor: TokenCursor) -> str:
    cursor.expect("(")
    text = ""
    while not cursor.at_end and cursor.key != ")":
        text += cursor.take().text
    cursor.expect(")")
    address, colon, mask = text.partition(":") if "." in text.partition(":")[0] else (text, "", "")
    try:
        if colon:
            ip_network(f"{address}/{mask}", strict=False)
        return ip_address(address).compressed
    except ValueError:
        what = "IP address with a subnet mask" if colon else "IP address"
        raise cursor.error(f"LISTENER_IP = ({text}) is not a valid {what}") from None


def _broker_options(cursor: TokenCursor, settings: EndpointSettings) -> EndpointSettings:
    seen: set[str] = set()
    cursor.expect("(")
    while not cursor.accept(")"):
        key = _endpoint_option(
            cursor, ("AUTHENTICATION", "ENCRYPTION", "MESSAGE_FORWARDING", "MESSAGE_FORWARD_SIZE"), seen
        )
        if key == "MESSAGE_FORWARDING":
            if cursor.key not in ("ENABLED", "DISABLED"):
                cursor.fail("expected ENABLED or DISABLED")
            settings = replace(settings, forwarding=cursor.take().key == "ENABLED")
        elif key == "MESSAGE_FORWARD_SIZE":
            settings = replace(settings, forward_size=cursor.integer())
        else:
            while not cursor.at_end and cursor.key not in (",", ")"):
                cursor.take()
        if cursor.key != ")":
            cursor.expect(",")
    return settings


def _endpoint_option(cursor: TokenCursor, keys: tuple[str, ...], seen: set[str]) -> str:
    key = cursor.unique_option(keys, seen)
    cursor.expect("=")
    return key


def _skip_parentheses(cursor: TokenCursor) -> None:
    cursor.expect("(")
    depth = 1
    while depth:
        if cursor.at_end:
            cursor.fail("unbalanced parentheses")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
