"""Mirroring role of a database, which is stored in its file."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ssbroker.store.sqlite import Connection

Role = Literal["principal", "mirror"]


class MirroringRole(NamedTuple):
    """Role of a database in a mirrored pair."""

    role: Role
    """`principal` unless changed."""
    number: int
    """Number of failovers that the database knows of."""


def write(connection: Connection, mirroring: MirroringRole) -> None:
    """Updates role and number; cached snapshots of the objects must be invalidated by the caller."""
    connection.execute("UPDATE ssb_database SET mirroring_role = ?, mirroring_number = ?", mirroring)
