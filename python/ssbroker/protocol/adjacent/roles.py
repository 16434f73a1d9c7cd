"""ROLE_ASKED and ROLE_TOLD: what a database of a mirrored pair is (N23)."""

from __future__ import annotations

import struct
from typing import Final

from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.mirroring import MirroringRole

GUID_BYTES: Final = 16
NUMBER_MAX: Final = 2**63 - 1

_TOLD: Final = struct.Struct(">16sBQ")
_CODES: Final[dict[MirroringRole, int]] = {"unknown": 0, "principal": 1, "mirror": 2}
_ROLES: Final = {code: role for role, code in _CODES.items()}


def packed(broker_instance: bytes, role: MirroringRole, number: int) -> bytes:
    """The body of ROLE_TOLD.

    Args:
        broker_instance: The database's broker id.
        role: What it is.
        number: The role's number.

    Returns:
        25 bytes.

    Raises:
        ProtocolError: They are no such things.

    Examples:
        >>> packed(bytes(16), "mirror", 3)[16:].hex()
        '020000000000000003'
    """
    if len(broker_instance) != GUID_BYTES or role not in _CODES or not 0 <= number <= NUMBER_MAX:
        raise ProtocolError(f"ROLE_TOLD: expected a broker id, a role and its number; got {role!r:.20}, {number!r:.40}")
    return _TOLD.pack(broker_instance, _CODES[role], number)


def unpacked(body: bytes) -> tuple[bytes, MirroringRole, int]:
    """What a ROLE_TOLD says.

    Args:
        body: Its body, 25 bytes.

    Returns:
        The database's broker id, what it is, and the role's number.

    Raises:
        PeerError: There is no such role or number.

    Examples:
        >>> unpacked(packed(bytes(16), "principal", 2))[1:]
        ('principal', 2)
    """
    broker_instance, code, number = _TOLD.unpack(body)
    role = _ROLES.get(code)
    if role is None or number > NUMBER_MAX:
        raise PeerError(f"ROLE_TOLD: expected a role from 0 to {max(_ROLES)} and its number; got {code}, {number}")
    return broker_instance, role, number
