"""Questions for roles, in both directions, on one link (N23)."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.adjacent import roles
from ssbroker.protocol.adjacent.frames import Kind
from ssbroker.protocol.adjacent.occurrences import RoleAsked, RoleTold
from ssbroker.protocol.mirroring import MirroringRole

WAITING_MAX: Final = 1_024
"""How many questions of the far side may wait for their answers to go."""


class Questions:
    """What was asked and is not answered. An answer that nobody asked for is refused, so that no claim comes unasked."""

    __slots__ = ("_asked", "_outgoing", "_owed", "_waiting")

    def __init__(self) -> None:
        self._asked: Counter[bytes] = Counter()
        self._owed: Counter[bytes] = Counter()
        self._waiting = 0
        self._outgoing: deque[tuple[Kind, bytes]] = deque()

    def ask(self, broker_instance: bytes) -> None:
        """Asks; a ProtocolError where it is no broker id."""
        if len(broker_instance) != roles.GUID_BYTES:
            raise ProtocolError(f"ROLE_ASKED: expected a broker id of {roles.GUID_BYTES} bytes")
        self._asked[broker_instance] += 1
        self._outgoing.append((Kind.ROLE_ASKED, broker_instance))

    def tell(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers; a ProtocolError where nobody has asked, or the answer is none."""
        body = roles.packed(broker_instance, role, number)
        if not self._owed[broker_instance]:
            raise ProtocolError("ROLE_TOLD: the far side has asked nothing of this database that is not answered")
        _less(self._owed, broker_instance)
        self._outgoing.append((Kind.ROLE_TOLD, body))

    def was_asked(self, body: bytes) -> RoleAsked:
        """The far side asks; a PeerError where it asks on and on without reading the answers."""
        if self._waiting == WAITING_MAX:
            raise PeerError(f"ROLE_ASKED: expected at most {WAITING_MAX} questions without reading the answers")
        self._waiting += 1
        self._owed[body] += 1
        return RoleAsked(body)

    def was_told(self, body: bytes) -> RoleTold:
        """The far side answers; a PeerError where it was not asked."""
        told = RoleTold(*roles.unpacked(body))
        if not self._asked[told.broker_instance]:
            raise PeerError("ROLE_TOLD: nobody has asked for the role of this database")
        _less(self._asked, told.broker_instance)
        return told

    def take(self) -> list[tuple[Kind, bytes]]:
        """What is to go."""
        taken = list(self._outgoing)
        self._outgoing.clear()
        self._waiting -= sum(kind is Kind.ROLE_TOLD for kind, _ in taken)
        return taken

    def clear(self) -> None:
        """Drops what is to go."""
        self._outgoing.clear()


def _less(counts: Counter[bytes], key: bytes) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
