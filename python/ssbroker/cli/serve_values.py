"""The values of the settings of `ssbroker serve`, each judged where its name is known (N28)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, cast

from ssbroker.cli.log_lines import LEVELS, Form
from ssbroker.exceptions import InputError, OptionError

LIMITS_OF_PROTOCOL: Final = ("max_message_bytes", "max_pending_bytes")
SECONDS_MAX: Final = 86_400
LIFETIME_MAX: Final = 2**31 - 1  # seconds, as CREATE ROUTE has it

Reader = Callable[[Any, str], Any]


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
    if not isinstance(value, str) or value not in LEVELS:
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


def addresses(value: Any, name: str) -> tuple[str, ...]:
    """The addresses by which others reach the instance.

    Raises:
        OptionError: One of them is none.

    Examples:
        >>> addresses(["TCP://shop.example"], "addresses")
        ('TCP://shop.example',)
    """
    from ssbroker import schemas  # noqa: PLC0415 - the help comes quicker without
    from ssbroker.catalog import Catalog  # noqa: PLC0415 - the same

    found = texts(value, name)
    with _named(name):
        Catalog(schemas.ROUTES.empty_table(), addresses=found)
    return found


def dial_only(value: Any, name: str) -> tuple[str, ...]:
    """What may be dialled.

    Raises:
        OptionError: One of it is no network and no host.

    Examples:
        >>> dial_only(["10.0.0.0/8", "*.example.com"], "dial_only")
        ('10.0.0.0/8', '*.example.com')
    """
    from ssbroker.broker.network.connections.reach import Reach  # noqa: PLC0415 - the help comes quicker without

    found = texts(value, name)
    with _named(name):
        Reach(found)
    return found


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Has an error tell where the value stands, instead of what the library calls it."""
    try:
        yield
    except (InputError, OptionError) as error:
        raise OptionError(f"{name}: {str(error).partition(': ')[2]}") from error


def limit(value: Any, name: str) -> int:
    """A limit of the endpoint or of the dialog protocol, by the last part of its name.

    Raises:
        OptionError: It is not what that limit can be.
    """
    from ssbroker.broker.network.connections.limits import EndpointLimits  # noqa: PLC0415 - the help comes quicker without
    from ssbroker.protocol.settings import Settings as OfProtocol  # noqa: PLC0415 - the same

    key, most = name.rpartition(".")[2], whole(value, name)
    with _named(name):
        (OfProtocol if key in LIMITS_OF_PROTOCOL else EndpointLimits)(**cast("dict[str, Any]", {key: most}))
    return most


def lifetime(value: Any, name: str) -> int:
    """The lifetime of routes, in seconds.

    Raises:
        OptionError: It is none.
    """
    if whole(value, name) > LIFETIME_MAX:
        raise OptionError(f"{name}: expected a whole number from 1 to {LIFETIME_MAX}, got {value!r:.80}")
    return int(value)


def flag(value: Any, name: str) -> bool:
    """True or false.

    Raises:
        OptionError: It is neither.
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected true or false, got {value!r:.80}")
    return value


def seconds(value: Any, name: str) -> float:
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


def texts(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts that are not empty.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(value, list):
        raise OptionError(f"{name}: expected a list of texts, got {value!r:.80}")
    return tuple(text(each, name) for each in value)


def path(folder: Path) -> Reader:
    """Reads paths, which count from a folder."""
    return lambda value, name: folder / text(value, name)


def readable(folder: Path) -> Reader:
    """A file that is there at the start, though it is read later."""

    def path(value: Any, name: str) -> Path:
        file = folder / text(value, name)
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{name}: {file}: cannot be read: {error.strerror or error}", value=str(file)) from error
        return file

    return path
