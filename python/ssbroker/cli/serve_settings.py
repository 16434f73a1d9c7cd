"""How an instance is served, as a file of TOML says it and the options of the command, which go before it (N28)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from ssbroker.cli import serve_values as values
from ssbroker.cli.log_lines import Form
from ssbroker.cli.serve_values import LIMITS_OF_PROTOCOL, Reader
from ssbroker.exceptions import InputError, OptionError

PORT: Final = 4022
"""Where an instance listens by convention (P3)."""
_PORT_MAX: Final = 65535
_HOST_CHARACTERS_MAX: Final = 253
_IPV6: Final = 6
LIMITS: Final = (
    "dials_at_once",
    "dials_per_second",
    "learnt_dials",
    "learnt_most",
    "principal_most",
    "unproven_most",
    *LIMITS_OF_PROTOCOL,
)
"""The limits that a file may set: those of the endpoint, and those of the dialog protocol."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, name: str, port: int | None = None) -> Address:
        """Reads `HOST:PORT`; an IPv6 address stands in brackets.

        Args:
            text: The text.
            name: What it is, for messages.
            port: The port where none is said; None demands one.

        Returns:
            The address.

        Raises:
            OptionError: It is none.

        Examples:
            >>> Address.parse("[::1]:4022", name="listen"), Address.parse("shop.example", name="listen", port=4022)
            (Address(host='::1', port=4022), Address(host='shop.example', port=4022))
        """
        host, separator, number = text.rpartition(":")
        if (not separator or text.endswith("]")) and port is not None:
            host, number = text, str(port)
        is_bracketed = host.startswith("[") and host.endswith("]")
        if is_bracketed:
            host = host[1:-1]
        is_port = number.isascii() and number.isdecimal() and int(number) <= _PORT_MAX
        if not is_port or not (_is_ipv6(host) if is_bracketed else _is_host(host)):
            raise OptionError(f"{name}: expected HOST:PORT, such as 127.0.0.1:{PORT}; got {text!r}")
        return cls(host, int(number))


@dataclass(frozen=True, slots=True)
class Tls:
    """Who the instance is and whom it believes, as `ssbroker.Trust` has it."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    names: tuple[str, ...] = ()
    pinned: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration service that is run along, as `ssbroker.broker.configuration` has it (N27)."""

    directory: Path | None = None
    table: str | None = None
    database: str = "msdb"
    asked_by: tuple[str, ...] = ()
    lifetime: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that is said of how to serve."""

    listen: Address = Address("127.0.0.1", PORT)
    addresses: tuple[str, ...] = ()
    dial_only: tuple[str, ...] = ()
    monitor: Address | None = None
    log: Form = "text"
    log_level: str = "info"
    allow_unencrypted: bool = False
    stop_after: float = 10.0
    tls: Tls = Tls()
    limits: Mapping[str, int] = field(default_factory=dict)
    configuration: Configuration | None = None

    @classmethod
    def read(cls, file: Path) -> Settings:
        """Reads a file; paths in it count from the folder that it stands in.

        Args:
            file: The file, in TOML.

        Returns:
            What it says, and what goes without saying.

        Raises:
            InputError: It cannot be read, is no TOML, or says something that is not known; or the directory cannot be read.
            OptionError: A value is not what was expected.
        """
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror or error}", value=str(file)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: is no TOML: {error}", value=str(file)) from error
        folder = file.parent
        tables = {
            "tls": lambda table, name: Tls(**_said(table, _tls(folder), name=f"{name}.")),
            "limits": lambda table, name: _said(table, dict.fromkeys(LIMITS, values.limit), name=f"{name}."),
            "configuration": lambda table, name: Configuration(**_said(table, _configuration(folder), name=f"{name}.")),
        }
        return replace(cls(), **_said(found, _SETTINGS | tables, name=f"{file}: "))


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == _IPV6
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    """Whether it is a name or an address of IPv4: what the system could at least look up."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return 0 < len(host) <= _HOST_CHARACTERS_MAX and ":" not in host and host.isprintable() and " " not in host


def _said(table: Any, readers: Mapping[str, Reader], *, name: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise OptionError(f"{name.removesuffix('.')}: expected a table, got {table!r:.80}")
    for key in table:
        if key not in readers:
            raise InputError(f"{name}{key}: is not known here; there are {', '.join(sorted(readers))}", value=key)
    return {key: readers[key](value, f"{name}{key}") for key, value in table.items()}


def _tls(folder: Path) -> dict[str, Reader]:
    path = values.path(folder)

    def pinned(value: Any, name: str) -> dict[str, tuple[Path, ...]]:
        if not isinstance(value, dict):
            raise OptionError(f"{name}: expected a table of lists of files by principal, got {value!r:.80}")
        return {
            principal: tuple(folder / file for file in values.texts(files, f"{name}.{principal}"))
            for principal, files in value.items()
        }

    return {"certificate": path, "key": path, "authority": path, "names": values.texts, "pinned": pinned}


def _configuration(folder: Path) -> dict[str, Reader]:
    return {
        "directory": values.readable(folder),
        "table": values.text,
        "database": values.text,
        "asked_by": values.texts,
        "lifetime": values.lifetime,
    }


_SETTINGS: Final[dict[str, Reader]] = {
    "listen": lambda value, name: Address.parse(values.text(value, name), name=name, port=PORT),
    "addresses": values.addresses,
    "dial_only": values.dial_only,
    "monitor": lambda value, name: Address.parse(values.text(value, name), name=name),
    "log": values.form,
    "log_level": values.level,
    "allow_unencrypted": values.flag,
    "stop_after": values.seconds,
}
