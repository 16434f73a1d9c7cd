"""The work table of transmission objects (P32): what dialogs had under way when they were last busy."""

from __future__ import annotations

from collections.abc import Iterable

from ssbroker.store.sqlite import Connection


def write(connection: Connection, rows: Iterable[tuple[int, bytes]]) -> None:
    """Writes objects over what is there; each the endpoint and the object."""
    connection.executemany("INSERT OR REPLACE INTO ssb_transmission_objects VALUES (?, ?)", rows)


def read(connection: Connection, endpoint_id: int) -> bytes | None:
    """The object of an endpoint; None where there is none."""
    row = connection.execute(
        "SELECT packed FROM ssb_transmission_objects WHERE endpoint_id = ?", (endpoint_id,)
    ).fetchone()
    return None if row is None else row[0]


def is_empty(connection: Connection) -> bool:
    """Whether there is none at all."""
    return connection.execute("SELECT 1 FROM ssb_transmission_objects LIMIT 1").fetchone() is None


def clear(connection: Connection) -> None:
    """Removes all: they are of use only to the process that wrote them."""
    connection.execute("DELETE FROM ssb_transmission_objects")
