"""How an instance is served, as a file of TOML says it and the options of the command, which go before it (N28)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from ssbroker.cli.log_lines import LEVELS, Form
from ssbroker.exceptions import InputError, OptionError

PORT: Final = 4022
"""Where an instance listens by convention (P3)."""
_PORT_MAX: Final = 65535
LIMITS_OF_PROTOCOL: Final = ("max_message_bytes", "max_pending_bytes")
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
        if not host or not is_port or (":" in host and not is_bracketed):
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
            "tls": lambda table, name: Tls(**_said(table, _tls(folder), name=name)),
            "limits": lambda table, name: _said(table, dict.fromkeys(LIMITS, _whole), name=name),
            "configuration": lambda table, name: Configuration(**_said(table, _configuration(folder), name=name)),
        }
        return replace(cls(), **_said(found, _SETTINGS | tables, name=f"{file}: "))


Reader = Callable[[Any, str], Any]


def _said(table: Any, readers: Mapping[str, Reader], *, name: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise OptionError(f"{name.removesuffix('.')}: expected a table, got {table!r:.80}")
    for key in table:
        if key not in readers:
            raise InputError(f"{name}{key}: is not known here; there are {', '.join(sorted(readers))}", value=key)
    return {
        key: readers[key](value, f"{name}{key}" + ("." if isinstance(value, dict) else ""))
        for key, value in table.items()
    }


def text(value: Any, name: str) -> str:
    """A text that is not empty, and can be the name of a file.

    Raises:
        OptionError: It is none.

    Examples:
        >>> text("shop", "name")
        'shop'
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise OptionError(f"{name}: expected a text, got {value!r:.80}")
    return value


def level(value: Any, name: str) -> str:
    """A level of the log.

    Raises:
        OptionError: It is none.

    Examples:
        >>> level("info", "log_level")
        'info'
    """
    if value not in LEVELS:
        raise OptionError(f"{name}: expected one of {', '.join(LEVELS)}; got {value!r:.80}")
    return str(value)


def form(value: Any, name: str) -> Form:
    """A form of the log.

    Raises:
        OptionError: It is none.

    Examples:
        >>> form("json", "log")
        'json'
    """
    if value not in ("json", "text"):
        raise OptionError(f"{name}: expected json or text; got {value!r:.80}")
    return cast("Literal['json', 'text']", value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected true or false, got {value!r:.80}")
    return value


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise OptionError(f"{name}: expected a number of seconds, got {value!r:.80}")
    return float(value)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}: expected a whole number above 0, got {value!r:.80}")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise OptionError(f"{name}: expected a list of texts, got {value!r:.80}")
    return tuple(text(each, name) for each in value)


def _path(folder: Path) -> Reader:
    return lambda value, name: folder / text(value, name)


def _readable(folder: Path) -> Reader:
    """A file that is there at the start, though it is read later."""

    def path(value: Any, name: str) -> Path:
        file = folder / text(value, name)
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{name}: {file}: cannot be read: {error.strerror or error}", value=str(file)) from error
        return file

    return path


def _tls(folder: Path) -> dict[str, Reader]:
    path = _path(folder)

    def pinned(value: Any, name: str) -> dict[str, tuple[Path, ...]]:
        if not isinstance(value, dict):
            raise OptionError(f"{name}: expected a table of lists of files by principal, got {value!r:.80}")
        return {
            principal: tuple(folder / file for file in _texts(files, f"{name}{principal}"))
            for principal, files in value.items()
        }

    return {"certificate": path, "key": path, "authority": path, "names": _texts, "pinned": pinned}


def _configuration(folder: Path) -> dict[str, Reader]:
    return {"directory": _readable(folder), "table": text, "database": text, "asked_by": _texts, "lifetime": _whole}


_SETTINGS: Final[dict[str, Reader]] = {
    "listen": lambda value, name: Address.parse(text(value, name), name=name, port=PORT),
    "addresses": _texts,
    "dial_only": _texts,
    "monitor": lambda value, name: Address.parse(text(value, name), name=name),
    "log": form,
    "log_level": level,
    "allow_unencrypted": _flag,
    "stop_after": _seconds,
}
