"""Refuses a change of objects, with Service Broker's error number where it has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ssbroker.exceptions import BrokerError
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Uses
from ssbroker.store.sqlite import Connection
from ssbroker.wording import count

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


def forget_conversations(connection: Connection, *, by: Uses, number: int, used: str) -> None:
    """Refuses to take away what open conversations use; those that are closed go with it (B36).

    Raises:
        BrokerError: Some are open.
    """
    open_ones = changes.open_conversations(connection, by=by, number=number)
    if open_ones:
        raise refusal(f"{used} is used by {count(open_ones, 'conversation')}: end them first, or clean them up")
    changes.forget_closed_conversations(connection, by=by, number=number)


def _shown(key: object) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)
