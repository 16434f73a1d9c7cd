"""What happens on a link, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.adjacent.hello import Far
from ssbroker.protocol.mirroring import MirroringRole


@dataclass(frozen=True, slots=True)
class Greeted:
    """The far side has said HELLO: from now on it may send.

    Attributes:
        far: Who it says that it is.
        is_self: Whether that is this instance (N9); the link says GOODBYE by itself.
    """

    far: Far
    is_self: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows have arrived, valid as a batch of the wire; what they say is the dialog layer's to judge.

    Attributes:
        rows: A table of `batch.WIRE`, 1 to 1,024 rows.
        bytes: How many bytes they took on the wire, and at most take in memory.
    """

    rows: pa.Table
    bytes: int


@dataclass(frozen=True, slots=True)
class RoleAsked:
    """The far side asks what the database with a broker id is (N23).

    Attributes:
        broker_instance: The broker id.
    """

    broker_instance: bytes


@dataclass(frozen=True, slots=True)
class RoleTold:
    """The far side answers that.

    Attributes:
        broker_instance: The broker id.
        role: What the database is.
        number: The role's number, which grows with each failover (N24).
    """

    broker_instance: bytes
    role: MirroringRole
    number: int


@dataclass(frozen=True, slots=True)
class Left:
    """The far side has said GOODBYE, or no longer gives a sign: nothing more comes from it.

    Attributes:
        reason: Why.
        text: The same for people.
    """

    reason: Reason
    text: str = ""


Occurrence: TypeAlias = Greeted | Batch | RoleAsked | RoleTold | Left
