"""What to do so that a database of this instance takes a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ssbroker.wording import bracketed, quoted

_NAMED_MAX: Final = 3


class Advice(NamedTuple):
    """One thing to do."""

    sentence: str
    """In words."""
    command: str | None = None
    """In T-SQL; what the reader fills in stands in <angle brackets>."""


def taken(details: dict[str, Any], databases: list[dict[str, Any]], wanted: str | None) -> Iterator[Advice]:
    """What to do about databases that were looked at, and of which none takes the conversation.

    Args:
        details: What the native router told.
        databases: The databases.
        wanted: The broker id by which one is told; None if any with the service will do.

    Yields:
        The advice; none where none of them has the service.
    """
    yield from enabled_hosts(details, databases, wanted)
    others = [
        quoted(database["name"])
        for database in databases
        if database["has_service"] and wanted not in (None, database["broker_instance"])
    ]
    if others:
        yield Advice(
            f"The service is in {', '.join(others[:_NAMED_MAX])}, whose broker id is not {wanted}. A conversation keeps the id "
            "it was begun with, and NEW_BROKER or a restored copy changes a database's: end the conversation, or correct the route."
        )


def enabled_hosts(details: dict[str, Any], databases: list[dict[str, Any]], wanted: str | None) -> Iterator[Advice]:
    """How disabled databases that have the service come to take the conversation.

    Args:
        details: What the native router told.
        databases: Databases that were looked at.
        wanted: The broker id by which one is told; None if any with the service will do.

    Yields:
        The advice.
    """
    for database in databases:
        is_meant = database["has_service"] and wanted in (None, database["broker_instance"])
        if not is_meant or database["is_broker_enabled"]:
            continue
        if database["id_enabled_in"] is None:
            yield Advice(
                f"Enable message delivery in {quoted(database['name'])}, which has the service:",
                enable(database["name"]),
            )
        else:
            yield from enabled_elsewhere(details, database, wanted)


def enabled_elsewhere(details: dict[str, Any], database: dict[str, Any], wanted: str | None) -> Iterator[Advice]:
    """How a database is enabled whose broker id is enabled in another one: ENABLE_BROKER fails there (I7).

    Args:
        details: What the native router told.
        database: The database.
        wanted: The broker id that it has to keep, if any.

    Yields:
        The advice.
    """
    name, other = database["name"], database["id_enabled_in"]
    why = f"Message delivery cannot be enabled in {quoted(name)}: its broker id is enabled in {quoted(other)}."
    if wanted is None:
        yield Advice(
            f"{why} If {quoted(name)} is the copy, give it an id of its own, which enables it and ends its conversations:",
            f"ALTER DATABASE {bracketed(name)} SET NEW_BROKER;",
        )
    # What began in the other one would wait there then (R34).
    if other != details["conversation"]["database"]:
        yield Advice(
            f"{why if wanted is not None else ''} If {quoted(other)} is the copy, disable it there first:".lstrip(),
            f"ALTER DATABASE {bracketed(other)} SET DISABLE_BROKER; {enable(name)}",
        )


def created(details: dict[str, Any], holder: dict[str, Any] | None) -> Iterator[Advice]:
    """How the service comes to be in a database.

    Args:
        details: What the native router told.
        holder: The database; None if it is for the reader to choose.

    Yields:
        The advice.
    """
    database = "<database>" if holder is None else bracketed(holder["name"])
    service = bracketed(details["conversation"]["to_service_name"])
    command = f"USE {database}; CREATE SERVICE {service} ON QUEUE <queue> (<contract>);"
    if holder is None or holder["is_broker_enabled"]:
        yield Advice("If the service belongs in this instance, create it in its database:", command)
    else:
        yield Advice(
            f"If the service belongs in this instance, create it in {quoted(holder['name'])} and enable message delivery there:",
            f"{command} {enable(holder['name'])}",
        )


def enable(database: str) -> str:
    """The command that enables message delivery.

    Args:
        database: Where.

    Returns:
        The command.
    """
    return f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;"
