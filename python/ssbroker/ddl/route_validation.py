"""Validates CREATE ROUTE and ALTER ROUTE, with the error numbers of Service Broker."""

from __future__ import annotations

import re
from typing import Final

from ssbroker import _core
from ssbroker._text import shown, utf16_length
from ssbroker._well_known import CONFIGURATION_SERVICE, LIFETIME_SECONDS_MAX, PORT_MAX
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.statements import RouteClauses
from ssbroker.exceptions import InvalidAddressError, InvalidGuidError

AUTO_CREATED_LOCAL: Final = "AutoCreatedLocal"
"""The initial route of every database except master: any service, LOCAL, no expiry."""

_CHARACTERS_MAX: Final = 256
_PORT: Final = re.compile(r"tcp://.+:(\d+)/?", re.IGNORECASE | re.ASCII)
_BROKER_INSTANCE_CHARACTERS_MAX: Final = 128


def check(clauses: RouteClauses) -> bytes | None:
    """Refuses a route that CREATE ROUTE would refuse, with the error number if there is one; returns the broker id.

    `clauses` are all clauses of the resulting route; they include LIFETIME only if the statement sets it.
    """
    _check_texts(clauses)
    _check_combination(clauses)
    _check_addresses(clauses)
    if clauses.lifetime is not None and not 1 <= clauses.lifetime <= LIFETIME_SECONDS_MAX:
        raise RefusalError(f"LIFETIME = {clauses.lifetime} is outside the range 1 to {LIFETIME_SECONDS_MAX}", 9746)
    return None if clauses.broker_instance is None else _guid(clauses.broker_instance)


def _check_texts(clauses: RouteClauses) -> None:
    texts = {
        "SERVICE_NAME": clauses.service_name,
        "BROKER_INSTANCE": clauses.broker_instance,
        "ADDRESS": clauses.address,
        "MIRROR_ADDRESS": clauses.mirror_address,
    }
    for clause, text in texts.items():
        if text == "":
            hint = "specify an address" if clause == "ADDRESS" else "specify a value, or omit the clause"
            raise RefusalError(f"{clause} is empty; {hint}", 9659)
        limit = _BROKER_INSTANCE_CHARACTERS_MAX if clause == "BROKER_INSTANCE" else _CHARACTERS_MAX
        if text is not None and utf16_length(text) > limit:
            raise RefusalError(
                f"{clause} has more than {limit} characters", 8413 if clause == "BROKER_INSTANCE" else 9660
            )
    name = clauses.service_name
    if name is not None and (name.isspace() or "\0" in name):
        raise RefusalError(
            f"SERVICE_NAME {shown(name)} is not a valid service name; expected 1 to 256 characters, without NUL and not only white space",
            8412,
        )


def _check_combination(clauses: RouteClauses) -> None:
    if clauses.mirror_address is not None and (clauses.service_name is None or clauses.broker_instance is None):
        raise RefusalError("MIRROR_ADDRESS requires SERVICE_NAME and BROKER_INSTANCE", 9661)
    if clauses.broker_instance is not None and clauses.service_name is None:
        raise RefusalError("BROKER_INSTANCE requires SERVICE_NAME", 9662)
    if clauses.service_name == CONFIGURATION_SERVICE and clauses.broker_instance is not None:
        raise RefusalError(f"a route to {CONFIGURATION_SERVICE} cannot have BROKER_INSTANCE; omit this clause")


def _check_addresses(clauses: RouteClauses) -> None:
    if clauses.address is None:
        raise RefusalError("ADDRESS is required")
    address = _normalized(clauses.address, "ADDRESS")
    if clauses.mirror_address is not None:
        mirror = _normalized(clauses.mirror_address, "MIRROR_ADDRESS")
        for clause, normal in (("ADDRESS", address), ("MIRROR_ADDRESS", mirror)):
            if normal in ("LOCAL", "TRANSPORT"):
                raise RefusalError(f"{clause} is {normal}; a mirrored route requires network addresses", 9743)
        if address == mirror:
            raise RefusalError(
                f"ADDRESS and MIRROR_ADDRESS are the same, {address}; specify the address of the partner as MIRROR_ADDRESS",
                9747,
            )
    if address == "TRANSPORT" and clauses.service_name is not None:
        raise RefusalError(
            "a route with the address TRANSPORT cannot have SERVICE_NAME; create the route without this clause, or with another address",
            9745,
        )


def _normalized(address: str, clause: str) -> str:
    try:
        return _core.normalize_address(address)
    except InvalidAddressError as error:
        problem = _address_problem(address)
        reason = f"{clause} {shown(address)} is not a valid address{problem}; expected {error.expected}"
        raise RefusalError(reason, 9744) from None


def _address_problem(address: str) -> str:
    """Returns what is wrong with an address, for frequent mistakes."""
    if any(character.isspace() for character in address):
        return ": it contains white space"
    if "\\" in address:
        return ": a route cannot name an instance of SQL Server; specify the host and the port of its endpoint"
    port = _PORT.fullmatch(address)
    return "" if port is None or 1 <= int(port[1]) <= PORT_MAX else f": the port is outside the range 1 to {PORT_MAX}"


def _guid(text: str) -> bytes:
    try:
        return _core.parse_guid(text)
    except InvalidGuidError as error:
        raise RefusalError(f"BROKER_INSTANCE {shown(text)} is not a valid GUID; expected {error.expected}") from None
