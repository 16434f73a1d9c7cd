"""The settings of `ssbroker serve` in a TOML file, and the parsing of their values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, cast

from ssbroker._well_known import LIFETIME_SECONDS_MAX, PORT, PORT_MAX
from ssbroker.cli.serve_logging import LEVELS, LogFormat
from ssbroker.exceptions import InputError, OptionError

PROTOCOL_LIMITS: Final = ("max_message_bytes", "max_pending_bytes")
STOP_SECONDS_MAX: Final = 86_400

Parser = Callable[[Any, str], Any]


def parse_string(value: Any, name: str) -> str:
    """Parses a non-empty string that can be a file name."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise OptionError(f"{name}: expected a non-empty string, got {value!r:.80}")
    return value


def parse_level(value: Any, name: str) -> str:
    """Parses a log level."""
    if not isinstance(value, str) or value not in LEVELS:
        raise OptionError(f"{name}: expected one of {', '.join(LEVELS)}, got {value!r:.80}")
    return str(value)


def parse_log_format(value: Any, name: str) -> LogFormat:
    """Parses a log format."""
    if value not in ("json", "text"):
        raise OptionError(f"{name}: expected 'json' or 'text', got {value!r:.80}")
    return cast("Literal['json', 'text']", value)


def parse_addresses(value: Any, name: str) -> tuple[str, ...]:
    """Parses the addresses by which other instances reach this one."""
    from ssbroker import schemas  # noqa: PLC0415 - keeps --help fast
    from ssbroker.catalog.catalog import Catalog  # noqa: PLC0415 - the same

    parsed = parse_strings(value, name)
    with _named_in_errors(name):
        Catalog(schemas.ROUTES.empty_table(), addresses=parsed)
    return parsed


def parse_dial_only(value: Any, name: str) -> tuple[str, ...]:
    """Parses the networks and hosts that the instance may connect to."""
    from ssbroker.broker.network.addresses import DialFilter  # noqa: PLC0415 - keeps --help fast

    parsed = parse_strings(value, name)
    with _named_in_errors(name):
        DialFilter(parsed)
    return parsed


@contextmanager
def _named_in_errors(name: str) -> Iterator[None]:
    """Replaces the name at the start of an error message with the name of the setting."""
    try:
        yield
    except (InputError, OptionError) as error:
        raise OptionError(f"{name}: {str(error).partition(': ')[2]}") from error


def parse_limit(value: Any, name: str) -> int:
    """Parses a limit of the endpoint or of the dialog protocol; the last part of the name selects the limit."""
    from ssbroker.broker.network.limits import EndpointLimits  # noqa: PLC0415 - keeps --help fast
    from ssbroker.protocol.settings import ProtocolSettings  # noqa: PLC0415 - the same

    key, limit = name.rpartition(".")[2], parse_positive_integer(value, name)
    with _named_in_errors(name):
        (ProtocolSettings if key in PROTOCOL_LIMITS else EndpointLimits)(**cast("dict[str, Any]", {key: limit}))
    return limit


def parse_lifetime(value: Any, name: str) -> int:
    """Parses the lifetime of routes in seconds."""
    if parse_positive_integer(value, name) > LIFETIME_SECONDS_MAX:
        raise OptionError(
            f"{name}: expected an integer number of seconds from 1 to {LIFETIME_SECONDS_MAX}, got {value!r:.80}"
        )
    return int(value)


def parse_boolean(value: Any, name: str) -> bool:
    """Parses a boolean."""
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected true or false, got {value!r:.80}")
    return value


def parse_seconds(value: Any, name: str) -> float:
    """Parses a number of seconds, at most a day."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= STOP_SECONDS_MAX:
        raise OptionError(f"{name}: expected a number of seconds from 0 to {STOP_SECONDS_MAX}, got {value!r:.80}")
    return float(value)


def parse_positive_integer(value: Any, name: str) -> int:
    """Parses a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name}: expected a positive integer, got {value!r:.80}")
    return value


def parse_strings(value: Any, name: str) -> tuple[str, ...]:
    """Parses a list of non-empty strings."""
    if not isinstance(value, list):
        raise OptionError(f"{name}: expected a list of strings, got {value!r:.80}")
    return tuple(parse_string(each, name) for each in value)


def path_parser(folder: Path) -> Parser:
    """Returns a parser of paths relative to a folder."""
    return lambda value, name: folder / parse_string(value, name)


def readable_file_parser(folder: Path) -> Parser:
    """Returns a parser of file paths that checks at the start that the files can be read, although they are used later."""

    def path(value: Any, name: str) -> Path:
        file = folder / parse_string(value, name)
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{name}: {file}: cannot be read: {error.strerror or error}", value=str(file)) from error
        return file

    return path


HTTP_PORT: Final = 9422
"""The default port of the HTTP server."""
_HOST_CHARACTERS_MAX: Final = 253
_IPV6: Final = 6
LIMITS: Final = (
    "dial_burst",
    "dials_per_second",
    "max_unrouted_dials",
    "max_unrouted_addresses",
    "max_connections_per_principal",
    "max_unauthenticated",
    *PROTOCOL_LIMITS,
)
"""The limits of the endpoint and of the dialog protocol that a settings file can set."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, name: str, port: int | None = None) -> Address:
        """Parses `HOST:PORT`; an IPv6 address is in brackets. `port` is the default port; None requires one.

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
        is_port = number.isascii() and number.isdecimal() and int(number) <= PORT_MAX
        if not is_port or not (_is_ipv6(host) if is_bracketed else _is_host(host)):
            raise OptionError(f"{name}: expected HOST:PORT, such as 127.0.0.1:{PORT}, got {text!r}")
        return cls(host, int(number))


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The arguments of `ssbroker.Trust`."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    names: tuple[str, ...] = ()
    pinned: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigurationServiceSettings:
    """The configuration service to run, as in `ssbroker.broker.configuration_service`."""

    directory: Path | None = None
    table: str | None = None
    database: str = "msdb"
    asked_by: tuple[str, ...] = ()
    lifetime: int | None = None


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of a server, with the defaults of the command."""

    ensure: tuple[Path, ...] = ()
    listen: Address = Address("127.0.0.1", PORT)
    addresses: tuple[str, ...] = ()
    dial_only: tuple[str, ...] = ()
    http: Address | None = None
    http_token: Path | None = None
    log: LogFormat = "text"
    log_level: str = "info"
    allow_unencrypted: bool = False
    shutdown_timeout: float = 10.0
    tls: TlsSettings = TlsSettings()
    limits: Mapping[str, int] = field(default_factory=dict)
    configuration: ConfigurationServiceSettings | None = None

    @classmethod
    def read(cls, file: Path) -> ServeSettings:
        """Reads a TOML file; paths in the file are relative to the folder of the file.

        Raises:
            InputError: The file cannot be read, is not valid TOML, or has an unknown setting; or the file that
                `configuration.directory` names cannot be read.
            OptionError: A value is not valid.
        """
        try:
            parsed = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror or error}", value=str(file)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: not valid TOML: {error}", value=str(file)) from error
        folder = file.parent
        tables = {
            "ensure": lambda value, name: tuple(folder / each for each in parse_strings(value, name)),
            "http_token": path_parser(folder),
            "tls": lambda table, name: TlsSettings(**_parse_table(table, _tls_parsers(folder), name=f"{name}.")),
            "limits": lambda table, name: _parse_table(table, dict.fromkeys(LIMITS, parse_limit), name=f"{name}."),
            "configuration": lambda table, name: ConfigurationServiceSettings(
                **_parse_table(table, _configuration_parsers(folder), name=f"{name}.")
            ),
        }
        return replace(cls(), **_parse_table(parsed, _PARSERS | tables, name=f"{file}: "))


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == _IPV6
    except ValueError:
        return False


def _is_host(host: str) -> bool:
    """Returns whether the system can look up the name or IPv4 address. A number alone is a port without a host."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    is_name = ":" not in host and host.isprintable() and " " not in host and not host.isdecimal()
    return is_name and 0 < len(host) <= _HOST_CHARACTERS_MAX


def _parse_table(table: Any, parsers: Mapping[str, Parser], *, name: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise OptionError(f"{name.removesuffix('.')}: expected a table, got {table!r:.80}")
    for key in table:
        if key not in parsers:
            raise InputError(f"{name}{key}: unknown setting; expected one of {', '.join(sorted(parsers))}", value=key)
    return {key: parsers[key](value, f"{name}{key}") for key, value in table.items()}


def _tls_parsers(folder: Path) -> dict[str, Parser]:
    path = path_parser(folder)

    def pinned(value: Any, name: str) -> dict[str, tuple[Path, ...]]:
        if not isinstance(value, dict):
            raise OptionError(f"{name}: expected a table with a list of files for each principal, got {value!r:.80}")
        return {
            principal: tuple(folder / file for file in parse_strings(files, f"{name}.{principal}"))
            for principal, files in value.items()
        }

    return {"certificate": path, "key": path, "authority": path, "names": parse_strings, "pinned": pinned}


def _configuration_parsers(folder: Path) -> dict[str, Parser]:
    return {
        "directory": readable_file_parser(folder),
        "table": parse_string,
        "database": parse_string,
        "asked_by": parse_strings,
        "lifetime": parse_lifetime,
    }


_PARSERS: Final[dict[str, Parser]] = {
    "listen": lambda value, name: Address.parse(parse_string(value, name), name=name, port=PORT),
    "addresses": parse_addresses,
    "dial_only": parse_dial_only,
    "http": lambda value, name: Address.parse(parse_string(value, name), name=name, port=HTTP_PORT),
    "log": parse_log_format,
    "log_level": parse_level,
    "allow_unencrypted": parse_boolean,
    "shutdown_timeout": parse_seconds,
}
