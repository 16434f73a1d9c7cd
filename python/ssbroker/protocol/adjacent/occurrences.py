"""What happens on a link, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import pyarrow as pa


class Role(IntEnum):
    """What a database is in a mirrored pair (N23)."""

    UNKNOWN = 0
    """Who was asked does not know: no claim."""
    PRINCIPAL = 1
    MIRROR = 2


class Reason(IntEnum):
    """Why a side says GOODBYE."""

    IDLE = 1
    """The connection carried nothing for a while (P2)."""
    SUPERSEDED = 2
    """The same two instances have another connection, and that one stays (N9)."""
    ITSELF = 3
    """The instance has dialled itself (N9)."""
    STOPPING = 4
    """The instance stops."""
    REFUSED = 5
    """The far side may not connect."""
    BROKEN = 6
    """The far side broke the protocol."""
    SILENT = 7
    """The far side did not answer (N10); told here only, since there is nobody to tell it to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What an instance says of itself in HELLO.

    Attributes:
        instance_id: Its id, 16 bytes.
        name: Its name, for people.
        number: The random number of its run, from 0 to 2**64 - 1, by which of two connections one is kept (N9).
        max_frame_bytes: The longest body of a frame that it takes.
    """

    instance_id: bytes
    name: str
    number: int
    max_frame_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """What the far side's HELLO said; none of it is proven.

    Attributes:
        instance_id: Its id, 16 bytes.
        name: Its name, for people.
        number: The random number of its run.
        max_frame_bytes: The longest body of a frame that it takes.
    """

    instance_id: bytes
    name: str
    number: int
    max_frame_bytes: int


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
        rows: A table of `batch.WIRE`.
    """

    rows: pa.Table


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
    role: Role
    number: int


@dataclass(frozen=True, slots=True)
class Left:
    """The far side has said GOODBYE, or no longer gives a sign: nothing more comes from it.

    Attributes:
        reason: Why.
        text: The same for people, in the words of the far side.
    """

    reason: Reason
    text: str = ""


Occurrence: TypeAlias = Greeted | Batch | RoleAsked | RoleTold | Left
