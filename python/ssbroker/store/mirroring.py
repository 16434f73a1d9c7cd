"""The role of a database in a mirrored pair (N25): it stands in the file, and travels with it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ssbroker.store.sqlite import Connection

Role = Literal["principal", "mirror"]


class MirroringRole(NamedTuple):
    """What a database is in its pair."""

    role: Role
    """`principal`, unless it was told otherwise."""
    number: int
    """How often the role has changed hands, as far as the database knows (N24)."""


def of(connection: Connection) -> MirroringRole:
    """The role of the database and its number."""
    return MirroringRole(*connection.execute("SELECT mirroring_role, mirroring_number FROM ssb_database").get)


def write(connection: Connection, mirroring: MirroringRole) -> None:
    """Writes both. Whoever keeps a picture of the objects has to be told that it is another one."""
    connection.execute("UPDATE ssb_database SET mirroring_role = ?, mirroring_number = ?", mirroring)
