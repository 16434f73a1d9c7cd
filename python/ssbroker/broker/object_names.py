"""Finds objects by name, and parses, validates and formats the names of objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from ssbroker._text import most_similar
from ssbroker.ddl import refusal_texts
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.expressions import folded
from ssbroker.ddl.model import find_name
from ssbroker.ddl.statements import QueueName
from ssbroker.ddl.token_cursor import check_name
from ssbroker.exceptions import SchemaError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store.objects import DEFAULT_SCHEMA, Objects, Queue

Key = TypeVar("Key")
Found = TypeVar("Found")


def existing(objects: Mapping[Key, Found], key: Key, *, kind: str, database: str | None = None) -> Found:
    """Returns an object by its key, or raises error 15151, which names `database` if it is passed.

    Raises `SchemaError` if the key is not a name.
    """
    if not isinstance(key, str) and not (isinstance(key, tuple) and kind == "queue"):
        raise SchemaError(f"{kind}: expected str, got {type(key).__name__}", expected="str")
    found = objects.get(key)
    if found is None:
        name = _display_name(key)
        similar = most_similar(name, map(_display_name, objects))
        hint = "" if similar is None else f"; did you mean {similar!r}?"
        raise refusal(f"{refusal_texts.does_not_exist(kind, name, database)}{hint}", 15151)
    return found


def check_not_existing(objects: Mapping[Key, object], key: Key, *, kind: str, number: int | None = None) -> None:
    """Raises an error if an object with this key exists."""
    if key in objects:
        raise refusal(refusal_texts.already_exists(kind, _display_name(key)), number)


def _display_name(key: object) -> str:
    return ".".join(key) if isinstance(key, tuple) else str(key)


def check_object_name(name: str) -> None:
    """Raises an error if a name is not valid: empty (1038), or longer than 128 characters (103)."""
    given: object = name
    if not isinstance(given, str):
        raise refusal(f"{given!r:.80} is not a valid name; expected a string")
    try:
        check_name(name)
        name.encode()
    except RefusalError as refused:
        raise refusal(refused.reason, refused.number) from None
    except UnicodeEncodeError:
        raise refusal(f"the name {name!r} contains an unpaired surrogate, which is not a valid character") from None


_PART: Final = r"\[(?:[^\]]|\]\])+\]|[^.\[\]]+"
_NAME: Final = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<name>{_PART})")


def queue_key(name: object) -> tuple[str, str]:
    """Parses a queue name into schema and name; the default schema is `dbo`."""
    return _key(name, "queue name; expected a name such as Orders, dbo.Orders or [dbo].[Orders]")


def is_unquoted_name(name: str) -> bool:
    """Returns whether a name has neither schema nor brackets, so that it means the queue in `dbo` with exactly this name."""
    return _parse(name) == (DEFAULT_SCHEMA, name)


def procedure_key(name: object) -> tuple[str, str]:
    """Parses the name of an activation procedure into schema and name; the default schema is `dbo`."""
    return _key(name, "procedure name; expected a name such as handle, dbo.handle or [dbo].[handle]")


def bracketed_queue_name(schema: str, name: str) -> str:
    """Formats a queue name for T-SQL and `queue_key`."""
    return ".".join(f"[{part.replace(']', ']]')}]" for part in (schema, name))


def plain_queue_name(queue: Queue) -> str:
    """Returns the name of a queue as events show it: `schema.name`."""
    return f"{queue.schema_name}.{queue.name}"


def _key(name: object, expected: str) -> tuple[str, str]:
    key = _parse(name) if isinstance(name, str) else None
    if key is None:
        hint = ""
        if isinstance(name, str) and "." in name and "[" not in name and "]" not in name:
            hint = f". A dot separates the schema from the name; write [{name:.80}] for a name that contains dots"
        raise refusal(f"{name!r:.80} is not a valid {expected}{hint}", 208)
    return key


@lru_cache(maxsize=1024)
def _parse(name: str) -> tuple[str, str] | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    schema = found["schema"]
    return DEFAULT_SCHEMA if schema is None else _unquoted(schema), _unquoted(found["name"])


def _unquoted(part: str) -> str:
    return part[1:-1].replace("]]", "]") if part.startswith("[") else part


def similar_name(known: Iterable[str], name: str) -> str:
    """Returns the known name that equals a name in a script, if case is ignored; if there is none, or more than one, returns the name itself."""
    return find_name(name, known) or name


def similar_user(objects: Objects, name: str) -> str:
    """Returns the name of the user that a script refers to; the case may differ."""
    return similar_name(objects.security.principals, name)


def similar_queue(objects: Objects, queue: QueueName) -> tuple[str, str]:
    """Returns the schema and name of the queue that a script refers to; the case may differ."""
    key = (queue.schema, queue.name)
    if key in objects.queues:
        return key
    wanted = (folded(queue.schema), folded(queue.name))
    return next((other for other in objects.queues if (folded(other[0]), folded(other[1])) == wanted), key)


def check_not_similar(known: Iterable[str], name: str, *, kind: str, number: int | None = None) -> None:
    """Raises an error if there is an object with this name, or with a name that differs only in case."""
    found = find_name(name, known)
    if found is not None:
        if found == name:
            raise refusal(refusal_texts.already_exists(kind, found), number)
        raise refusal(f"{refusal_texts.already_exists(kind, found)}, and {name!r} differs from it only in case", number)
