"""Which conversations have messages under way to other instances, and what is in their way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker.broker.delivery.transport import Outgoing
from ssbroker.broker.dialogs.status import DELIVERED, Status
from ssbroker.broker.network.exchange import statuses
from ssbroker.protocol.ledger import Key
from ssbroker.protocol.retry import SECOND

if TYPE_CHECKING:
    from ssbroker.store.endpoints import Endpoint

QUIET: Final = 4 * SECOND
"""After so long without an acknowledgement `transmission_status` says that there is none."""
FORGOTTEN_AFTER: Final = 300 * SECOND
"""After so long without a word a conversation has nothing to send: the longest wait of P17 is much shorter."""

WHY_MOST: Final = 10_000
"""The addresses of which is known at once why they cannot be reached."""


@dataclass(slots=True)
class Carried:
    """A conversation that is carried.

    Attributes:
        outgoing: What delivery said of it last.
        since: When it was first carried, or last acknowledged.
        waits: Why its messages may not leave yet; None for nothing.
        said: What was written of it.
        seen: When delivery last told of it.
    """

    outgoing: Outgoing
    since: int
    waits: Status | None = None
    said: str = ""
    seen: int = 0


class Note(NamedTuple):
    """What is to be written of a conversation."""

    carried: Carried
    sender: Endpoint
    """The endpoint, with the status that it has."""
    says: str
    """The new one."""


class Carrying:
    """The conversations that are carried, by database and endpoint. For any number of threads.

    Args:
        principal: Which of the addresses of a mirrored route is the principal, as `hooks.Mirrors.principal`.

    Attributes:
        why: Why addresses cannot be reached; those that can be are not in it.
    """

    def __init__(self, *, principal: Callable[[str, str, bytes | None], str | None]) -> None:
        self._principal: Final = principal
        self._guard: Final = threading.RLock()
        self._carried: dict[tuple[int, Key], Carried] = {}
        self._new: dict[int, dict[Key, Outgoing]] = {}
        self._keys: dict[tuple[int, int], Key] = {}
        self.why: dict[str, str] = {}

    def add(self, conversations: Sequence[Outgoing], *, now: int) -> dict[int, Status]:
        """Takes conversations up, or notes that they have more to send.

        Args:
            conversations: The conversations.
            now: The moment.

        Returns:
            What is in the way of them, as far as something is.
        """
        hindered: dict[int, Status] = {}
        with self._guard:
            for each in conversations:
                sender = each.sender
                key = (sender.conversation_id, bool(sender.is_initiator))
                place = (each.database.database_id, key)
                self._new.setdefault(place[0], {})[key] = each
                carried = self._carried.get(place)
                if carried is None or carried.outgoing.sender.endpoint_id != sender.endpoint_id:
                    carried = self._carried[place] = Carried(each, now)
                carried.outgoing = each
                carried.seen = now
                self._keys[place[0], sender.endpoint_id] = key
                status = self._status(carried, now)
                carried.said = DELIVERED if status is None else str(status)
                if status is not None:
                    hindered[sender.endpoint_id] = status
        return hindered

    def more(self, database_id: int, endpoint_ids: Iterable[int]) -> list[int]:
        """Notes that conversations have more to send, as far as nothing is to be said or found out about them first.

        Args:
            database_id: The senders' database.
            endpoint_ids: The senders.

        Returns:
            The others.
        """
        left: list[int] = []
        with self._guard:
            new = self._new.setdefault(database_id, {})
            for endpoint_id in endpoint_ids:
                key = self._keys.get((database_id, endpoint_id))
                carried = None if key is None else self._carried.get((database_id, key))
                if key is None or carried is None or carried.said != DELIVERED:
                    left.append(endpoint_id)
                else:
                    new.setdefault(key, carried.outgoing)
        return left

    def take(self) -> dict[int, dict[Key, Outgoing]]:
        """Takes out what was added since the last time, by database."""
        with self._guard:
            new, self._new = self._new, {}
            return new

    @property
    def has_new(self) -> bool:
        """Whether something was added."""
        return bool(self._new)

    def sent_of(self, database_id: int) -> dict[int, tuple[bytes, int]]:
        """Up to which message the conversations of a database are carried: handle, and number of the next one, by endpoint."""
        with self._guard:
            return {
                each.outgoing.endpoint_id: (
                    each.outgoing.sender.conversation_handle,
                    each.outgoing.sender.send_sequence,
                )
                for (number, _), each in self._carried.items()
                if number == database_id
            }

    def waits(self, database_id: int, key: Key, status: Status | None) -> None:
        """Notes why the messages of a conversation may not leave, or that they may."""
        carried = self._carried.get((database_id, key))
        if status is None and (carried is None or carried.waits is None):
            return
        with self._guard:
            carried = self._carried.get((database_id, key))
            if carried is not None:
                carried.waits = status

    def acknowledged(self, database_id: int, keys: Iterable[Key], *, now: int) -> None:
        """Notes that conversations were acknowledged."""
        with self._guard:
            for key in keys:
                carried = self._carried.get((database_id, key))
                if carried is not None:
                    carried.since = now

    def keep(self, *, now: int) -> None:
        """Forgets the conversations that nobody has told of for long, and the addresses to which none goes any more."""
        with self._guard:
            for place, carried in list(self._carried.items()):
                if not 0 <= now - carried.seen < FORGOTTEN_AFTER:
                    del self._carried[place]
                    self._keys.pop((place[0], carried.outgoing.endpoint_id), None)
            decisions = [carried.outgoing.decision for carried in self._carried.values()]
            used = {address for each in decisions for address in (each.next_hop_address, each.mirror_address)}
            self.why = {address: why for address, why in self.why.items() if address in used}

    def failed(self, address: str, why: str) -> None:
        """Notes that an address cannot be reached; of those that neighbours have chosen, only the latest are known (N34)."""
        with self._guard:
            self.why.pop(address, None)
            self.why[address] = why
            while len(self.why) > WHY_MOST:
                del self.why[next(iter(self.why))]

    def forget(self) -> None:
        """Forgets all conversations: where they go is to be found out again, and delivery tells of those that wait."""
        with self._guard:
            self._carried.clear()
            self._keys.clear()

    def notes(self, addresses: Collection[str], *, most: int, now: int) -> list[Note]:
        """What is to be written of the conversations that go to addresses, now that something else is in their way, or nothing.

        Args:
            addresses: The addresses.
            most: Of how many conversations at most.
            now: The moment.

        Returns:
            The notes; they come again until `noted`.
        """
        with self._guard:
            return list(islice(self._notes(frozenset(addresses), now), most))

    def _notes(self, addresses: frozenset[str | None], now: int) -> Iterator[Note]:
        for carried in self._carried.values():
            decision = carried.outgoing.decision
            if carried.waits is None and addresses.isdisjoint((decision.next_hop_address, decision.mirror_address)):
                continue
            status = self._status(carried, carried.since)
            new = DELIVERED if status is None else str(status)
            # That nobody has answered yet is no news: where delivery has said so, it holds still.
            if carried.said != new and carried.said != str(self._status(carried, now)):
                yield Note(carried, carried.outgoing.sender._replace(transmission_status=carried.said), new)

    def noted(self, notes: Iterable[Note]) -> None:
        """Notes what has been written; where delivery has said something else meanwhile, that is looked at another time."""
        with self._guard:
            for carried, sender, says in notes:
                if carried.said == sender.transmission_status:
                    carried.said = says

    def _status(self, carried: Carried, now: int) -> Status | None:
        if carried.waits is not None:
            return carried.waits
        decision = carried.outgoing.decision
        address, mirror = decision.next_hop_address or "", decision.mirror_address
        if mirror is not None:
            principal = self._principal(address, mirror, decision.broker_instance)
            if principal is None:
                return statuses.held(address, mirror)
            address = principal
        if address in self.why:
            return statuses.unreachable(address, self.why[address])
        return statuses.unacknowledged(address) if carried.since + QUIET <= now else None
