"""Validates names and arguments of object definitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, TypeVar

from ssbroker._arguments import boolean, is_utf8_text
from ssbroker._text import quantity
from ssbroker.ddl.lexer import RefusalError
from ssbroker.ddl.parser_base import check_name
from ssbroker.exceptions import BrokerError, OptionError
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import UsageColumn
from ssbroker.store.objects import DEFAULT_SCHEMA
from ssbroker.store.sqlite import Connection

Key = TypeVar("Key")
Found = TypeVar("Found")


def refusal(reason: str, number: int | None = None) -> BrokerError:
    """The error that refuses a call.

    Examples:
        >>> print(refusal("the queue is in use"), refusal("the database exists", 1801).number)
        the queue is in use 1801
    """
    return BrokerError(reason if number is None else f"{number}: {reason}", number=number)


def existing(objects: Mapping[Key, Found], key: Key, *, kind: str) -> Found:
    """The object of that name.

    Raises:
        BrokerError: There is none (15151).
    """
    try:
        found = objects.get(key)
    except TypeError:  # a list, say, which no key can be
        found = None
    if found is None:
        shown = _shown(key)
        near = [_shown(other) for other in objects if _shown(other).casefold() == shown.casefold()]
        hint = f"; {near[0]!r} differs in case" if near else ""
        raise refusal(f"{kind} {shown!r} does not exist{hint}", 15151)
    return found


def refuse_taken(objects: Mapping[Key, object], key: Key, *, kind: str, number: int | None = None) -> None:
    """Refuses a name that an object of this kind has.

    Raises:
        BrokerError: It does.
    """
    if key in objects:
        raise refusal(f"{kind} {_shown(key)!r} exists", number)


def forget_conversations(connection: Connection, *, by: UsageColumn, number: int, used: str) -> None:
    """Refuses to take away what open conversations use; those that are closed go with it (B36).

    Raises:
        BrokerError: Some are open.
    """
    open_ones = changes.count_open_conversations(connection, column=by, object_id=number)
    if open_ones:
        raise refusal(f"{used} is used by {quantity(open_ones, 'conversation')}: end them first, or clean them up")
    changes.remove_closed_conversations(connection, column=by, object_id=number)


def _shown(key: object) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)


def check_object_name(name: str) -> None:
    """Refuses what is no name of an object: an empty one (1038), or one of more than 128 characters (103).

    Raises:
        BrokerError: It is none.
    """
    given: object = name
    if not isinstance(given, str):
        raise refusal(f"{given!r:.80} is no name: expected text")
    try:
        check_name(name)
        name.encode()
    except RefusalError as refused:
        raise refusal(refused.reason, refused.number) from None
    except UnicodeEncodeError:
        raise refusal(f"the name {name!r} holds half a surrogate pair, which is no character") from None


_PART: Final = r"\[(?:[^\]]|\]\])+\]|[^.\[\]]+"
_NAME: Final = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<name>{_PART})")


def queue_key(name: object) -> tuple[str, str]:
    """The schema and the name of a queue; without a schema it is `dbo` (B20).

    Args:
        name: Such as `Orders`, `shop.Orders` or `[shop].[Orders.New]`.

    Returns:
        The schema, then the name.

    Raises:
        BrokerError: It is no name of a queue (208).

    Examples:
        >>> queue_key("Orders"), queue_key("shop.[Orders.New]")
        (('dbo', 'Orders'), ('shop', 'Orders.New'))
    """
    return _key(name, "a queue, such as Orders, dbo.Orders or [dbo].[Orders]")


def means_itself(name: str) -> bool:
    """Whether a name that is given without a schema and brackets means the queue of `dbo` that is called so.

    Args:
        name: The name.

    Returns:
        Whether it does; a dot, for one, parts schema and name.

    Examples:
        >>> means_itself("Orders"), means_itself("Orders.New")
        (True, False)
    """
    return _read(name) == (DEFAULT_SCHEMA, name)


def procedure_key(name: object) -> tuple[str, str]:
    """The schema and the name of what an ACTIVATION clause calls its readers; without a schema it is `dbo`.

    Args:
        name: Such as `handle`, `dbo.handle` or `[dbo].[handle.orders]`.

    Returns:
        The schema, then the name.

    Raises:
        BrokerError: It is no name of a procedure (208).

    Examples:
        >>> procedure_key("handle"), procedure_key("[dbo].[handle.orders]")
        (('dbo', 'handle'), ('dbo', 'handle.orders'))
    """
    return _key(name, "a procedure, such as handle, dbo.handle or [dbo].[handle]")


def queue_text(schema: str, name: str) -> str:
    """A queue as T-SQL writes it, which `queue_key` reads.

    Args:
        schema: Its schema.
        name: Its name.

    Returns:
        Both in brackets.

    Examples:
        >>> queue_text("dbo", "In]Box"), queue_key(queue_text("dbo", "In]Box"))
        ('[dbo].[In]]Box]', ('dbo', 'In]Box'))
    """
    return ".".join(f"[{part.replace(']', ']]')}]" for part in (schema, name))


def _key(name: object, expected: str) -> tuple[str, str]:
    key = _read(name) if isinstance(name, str) else None
    if key is None:
        raise refusal(f"{name!r:.80} is no name of {expected}", 208)
    return key


@lru_cache(maxsize=1024)
def _read(name: str) -> tuple[str, str] | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    schema = found["schema"]
    return DEFAULT_SCHEMA if schema is None else _plain(schema), _plain(found["name"])


def _plain(part: str) -> str:
    return part[1:-1].replace("]]", "]") if part.startswith("[") else part


def check_flags(**given: object) -> None:
    """Refuses what is neither True nor False, nor None, which says nothing.

    Raises:
        OptionError: One is something else.

    Examples:
        >>> check_flags(status=None, retention="OFF")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: retention: expected True or False; got 'OFF'
    """
    for name, value in given.items():
        if value is not None:
            boolean(value, name=name)


def check_numbers(**given: object) -> None:
    """Refuses what is no whole number, nor None; which numbers there may be is another question.

    Raises:
        OptionError: One is something else.

    Examples:
        >>> check_numbers(lifetime=1.5)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: lifetime: expected a whole number; got 1.5
    """
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise OptionError(f"{name}: expected a whole number; got {value!r:.80}")


def check_texts(**given: object) -> None:
    """Refuses what is no text, nor None.

    Raises:
        OptionError: One is something else; it is not shown, for it may be a password.

    Examples:
        >>> check_texts(address="LOCAL", service_name=b"//Orders")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: service_name: expected text that UTF-8 can write; got bytes
    """
    for name, value in given.items():
        if value is not None and not is_utf8_text(value):
            raise OptionError(f"{name}: expected text that UTF-8 can write; got {type(value).__name__}")


def check_bytes(**given: object) -> None:
    """Refuses what is no bytes, nor None.

    Raises:
        OptionError: One is something else; it is not shown, for it may be a key.

    Examples:
        >>> check_bytes(certificate=None, private_key="-----BEGIN PRIVATE KEY-----")
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: private_key: expected bytes, as a file is read in binary; got str
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, bytes):
            raise OptionError(f"{name}: expected bytes, as a file is read in binary; got {type(value).__name__}")
