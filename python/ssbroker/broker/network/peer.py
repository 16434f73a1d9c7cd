"""The instance at the other end of a connection."""

from __future__ import annotations

import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """Another instance, as seen over one connection.

    Attributes:
        instance_id: The instance id that it states.
        name: The name that it states.
        principal: The principal that its certificate proves; None if connections are not encrypted.
        address: The address that was dialled or that the connection came from: `TCP://host:port`.
        connection_id: The connection.
        is_accept: Whether the peer dialled this instance.
    """

    instance_id: bytes
    name: str
    principal: str | None
    address: str
    connection_id: uuid.UUID
    is_accept: bool

    @property
    def label(self) -> str:
        """Its name and principal, for messages."""
        return self.name if self.principal is None else f"{self.name}, {self.principal}"
