"""Settings of `ssbroker serve`, from a TOML file and command-line options."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, cast

from ssbroker.cli.log_format import LEVELS, Form
from ssbroker.exceptions import InputError, OptionError

LIMITS_OF_PROTOCOL: Final = ("max_message_bytes", "max_pending_bytes")
SECONDS_MAX: Final = 86_400
LIFETIME_MAX: Final = 2**31 - 1  # seconds, as CREATE ROUTE has it

Reader = Callable[[Any, str], Any]


def parse_text(value: Any, name: str) -> str:
    """A text that is not empty, and can be the name of a file.

    Raises:
        OptionError: It is none.

    Examples:
        >>> parse_text("shop", "name")
        'shop'
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise OptionError(f"{name}: expected a text, got {value!r:.80}")
    return value


def parse_level(value: Any, name: str) -> str:
    """A level of the log.

    Raises:
        OptionError: It is none.

    Examples:
        >>> parse_level("info", "log_level")
        'info'
    """
    if not isinstance(value, str) or value not in LEVELS:
        raise OptionError(f"{name}: expected one of {', '.join(LEVELS)}; got {value!r:.80}")
    return str(value)


def parse_form(value: Any, name: str) -> Form:
    """A form of the log.

    Raises:
        OptionError: It is none.

    Examples:
        >>> parse_form("json", "log")
        'json'
    """
    if value not in ("json", "text"):
        raise OptionError(f"{name}: expected json or text; got {value!r:.80}")
    return cast("Literal['json', 'text']", value)


def parse_addresses(value: Any, name: str) -> tuple[str, ...]:
    """The addresses by which others reach the instance.

    Raises:
        OptionError: One of them is none.

    Examples:
        >>> parse_addresses(["TCP://shop.example"], "addresses")
        ('TCP://shop.example',)
    """
    from ssbroker import schemas  # noqa: PLC0415 - the help comes quicker without
    from ssbroker.catalog.catalog import Catalog  # noqa: PLC0415 - the same

    found = parse_texts(value, name)
    with _named(name):
        Catalog(schemas.ROUTES.empty_table(), addresses=found)
    return found


def parse_dial_only(value: Any, name: str) -> tuple[str, ...]:
    """What may be dialled.

    Raises:
        OptionError: One of it is no network and no host.

    Examples:
        >>> parse_dial_only(["10.0.0.0/8", "*.example.com"], "dial_only")
        ('10.0.0.0/8', '*.example.com')
    """
    from ssbroker.broker.network.dialer import DialFilter  # noqa: PLC0415 - the help comes quicker without

    found = parse_texts(value, name)
    with _named(name):
        DialFilter(found)
    return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Has an error tell where the value stands, instead of what the library calls it."""
    try:
        yield
    except (InputError, OptionError) as error:
        raise OptionError(f"{name}: {str(error).partition(': ')[2]}") from error


def parse_limit(value: Any, name: str) -> int:
    """A limit of the endpoint or of the dialog protocol, by the last part of its name.

    Raises:
        OptionError: It is not what that limit can be.
    """
    from ssbroker.broker.network.connection import EndpointLimits  # noqa: PLC0415 - the help comes quicker without
    from ssbroker.protocol.config import ProtocolSettings as OfProtocol  # noqa: PLC0415 - the same

    key, most = name.rpartition(".")[2], whole(value, name)
    with _named(name):
        (OfProtocol if key in LIMITS_OF_PROTOCOL else EndpointLimits)(**cast("dict[str, Any]", {key: most}))
    return most


def parse_lifetime(value: Any, name: str) -> int:
    """The lifetime of routes, in seconds.

    Raises:
        OptionError: It is none.
    """
    if whole(value, name) > LIFETIME_MAX:
        raise OptionError(f"{name}: expected a whole number from 1 to {LIFETIME_MAX}, got {value!r:.80}")
    return int(value)


def parse_flag(value: Any, name: str) -> bool:
    """True or false.

    Raises:
        OptionError: It is neither.
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected true or false, got {value!r:.80}")
    return value


def parse_seconds(value: Any, name: str) -> float:
    """A number of seconds, at most a day.

    Raises:
        OptionError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise OptionError(f"{name}: expected a number of seconds from 0 to {SECONDS_MAX}, got {value!r:.80}")
    return float(value)


def whole(value: Any, name: str) -> int:
    """A whole number above 0.

    Raises:
        OptionError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}: expected a whole number above 0, got {value!r:.80}")
    return value


def parse_texts(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts that are not empty.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(value, list):
        raise OptionError(f"{name}: expected a list of texts, got {value!r:.80}")
    return tuple(parse_text(each, name) for each in value)


def parse_path(folder: Path) -> Reader:
    """Reads paths, which count from a folder."""
    return lambda value, name: folder / parse_text(value, name)


def parse_readable(folder: Path) -> Reader:
    """A file that is there at the start, though it is read later."""

    def path(value: Any, name: str) -> Path:
        file = folder / parse_text(value, name)
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{name}: {file}: cannot be read: {error.strerror or error}", value=str(file)) from error
        return file

    return path


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
    """The configuration service that is run along, as `ssbroker.broker.configuration_service` has it (N27)."""

    directory: Path | None = None
    table: str | None = None
    database: str = "msdb"
    asked_by: tuple[str, ...] = ()
    lifetime: int | None = None


@dataclass(frozen=True, slots=True)
class ServeSettings:
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
    def read(cls, file: Path) -> ServeSettings:
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
            "limits": lambda table, name: _said(table, dict.fromkeys(LIMITS, parse_limit), name=f"{name}."),
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
    path = parse_path(folder)

    def pinned(value: Any, name: str) -> dict[str, tuple[Path, ...]]:
        if not isinstance(value, dict):
            raise OptionError(f"{name}: expected a table of lists of files by principal, got {value!r:.80}")
        return {
            principal: tuple(folder / file for file in parse_texts(files, f"{name}.{principal}"))
            for principal, files in value.items()
        }

    return {"certificate": path, "key": path, "authority": path, "names": parse_texts, "pinned": pinned}


def _configuration(folder: Path) -> dict[str, Reader]:
    return {
        "directory": parse_readable(folder),
        "table": parse_text,
        "database": parse_text,
        "asked_by": parse_texts,
        "lifetime": parse_lifetime,
    }


_SETTINGS: Final[dict[str, Reader]] = {
    "listen": lambda value, name: Address.parse(parse_text(value, name), name=name, port=PORT),
    "addresses": parse_addresses,
    "dial_only": parse_dial_only,
    "monitor": lambda value, name: Address.parse(parse_text(value, name), name=name),
    "log": parse_form,
    "log_level": parse_level,
    "allow_unencrypted": parse_flag,
    "stop_after": parse_seconds,
}
