"""The names of queues as people write them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ssbroker.broker.objects.refusals import refusal
from ssbroker.store.objects import DEFAULT_SCHEMA

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
