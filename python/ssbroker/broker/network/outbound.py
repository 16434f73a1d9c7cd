"""Sends the fragments of dialogs, and writes their `transmission_status`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker import delivery
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery import OutgoingConversation
from ssbroker.broker.dialogs.transmission_status import DELIVERED, TransmissionStatus
from ssbroker.broker.network.database_dialogs import (
    LOCAL,
    MIRRORED,
    PATIENCE,
    DatabaseDialogs,
    DialogsByDatabase,
    OutboundRows,
)
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.config import SECOND
from ssbroker.protocol.storage import Key

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import NetworkEndpoint
    from ssbroker.store.endpoints import ConversationEndpoint


TIMES: Final = 3
"""How many times as long as it took to send is waited before anything is sent again: a quarter of the time goes into sending at most."""
LONGEST: Final = 0.015
"""The longest wait, in seconds."""
SHORTEST: Final = 0.001
"""A shorter wait gathers nothing."""


class SendDelay:
    """Lets what is to be sent gather: what each batch costs beside its messages is paid less often, the more there is to send.

    What comes a while after the last batch goes at once.

    Args:
        clock: The seconds of a clock that only grows.

    Examples:
        >>> seconds = iter([0.0, 2.0, 2.0, 9.0])
        >>> rest = SendDelay(clock=lambda: next(seconds))
        >>> with rest.after():
        ...     "two seconds"
        'two seconds'
        >>> round(rest.left, 3), rest.left
        (0.015, 0.0)
    """

    __slots__ = ("_clock", "_until")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._until = 0.0

    @property
    def left(self) -> float:
        """How many seconds are left of it. Any thread may ask."""
        return max(0.0, self._until - self._clock())

    @contextmanager
    def after(self) -> Iterator[None]:
        """Begins at the end of the block, which sends something."""
        begun = self._clock()
        yield
        ended = self._clock()
        wait = min(TIMES * (ended - begun), LONGEST)
        self._until = ended + wait if wait >= SHORTEST else 0.0

    def end(self) -> None:
        """Ends it."""
        self._until = 0.0


TURNS_MAX: Final = 8
"""How many batches of one machine go before others have their turn."""
WORTH_GATHERING: Final = 64
"""After so many rows it is worth to let those that follow gather."""
FAILED_WAIT: Final = SECOND
"""When a machine whose file could not be read is asked again."""


class OutboundSender:
    """Sends what is due. For one thread.

    Args:
        instance: The instance.
        endpoint: The connections.
        machines: The machines.
        closed: The gates that are closed.
        closes: Is told of an address that takes no more.
        loop_back: Takes what is for a database of this instance.
    """

    def __init__(
        self,
        instance: InstanceContext,
        endpoint: NetworkEndpoint,
        machines: DialogsByDatabase,
        *,
        closed: set[str],
        closes: Callable[[str], None],
        loop_back: Callable[[pa.Table], None],
    ) -> None:
        self._instance: Final = instance
        self._rest: Final = SendDelay()
        self._sent = 0
        self._endpoint: Final = endpoint
        self._machines: Final = machines
        self._closed: Final = closed
        self._closes: Final = closes
        self._loop_back: Final = loop_back

    @property
    def rests(self) -> bool:
        """Whether what is to be sent gathers, and goes by itself when that is over. Any thread may ask."""
        return self._rest.left > 0

    def hurry(self) -> None:
        """Has what gathers go in the next turn."""
        self._rest.end()

    def send_all(self, *, now: int) -> list[int | None]:
        """Sends what is due of all machines, unless what is to be sent gathers (B49).

        Args:
            now: The moment.

        Returns:
            When each has something to send again, as `send`; of what gathers, when it goes.
        """
        if not self.rests:
            self._sent = 0
            with self._rest.after():
                moments = [self.send(machine, now=now) for machine in self._machines.all()]
            # Who has more to send does, and without a thread of its own nobody would send later.
            if self._sent < WORTH_GATHERING or 0 in moments or not self._instance.background:
                self._rest.end()
            if not self.rests:
                return moments
        return [epoch_microseconds(self._instance.clock()) + int(self._rest.left * SECOND) + 1]

    def send(self, machine: DatabaseDialogs, *, now: int) -> int | None:
        """Sends what is due of a machine.

        Args:
            machine: The machine.
            now: The moment.

        Returns:
            When it has something to send again, if nothing happens before; 0 is at once, None is never.
        """
        try:
            for _ in range(TURNS_MAX):
                departures = machine.departures(now=now)
                if departures is None:
                    break
                for departure in departures:
                    self._sent += departure.rows.num_rows
                    self._send(machine, departure)
            return machine.dialogs.next_timeout()
        except SsbrokerError as error:
            log_failure(machine.database, "nothing can be sent for now", error)
            return now + FAILED_WAIT

    def opens(self, gate: str) -> None:
        """A gate takes something again."""
        if gate in self._closed:
            self._closed.discard(gate)
            for machine in self._machines.all():
                machine.gates.opens(gate)

    def broke(self, address: str) -> None:
        """What was under way to an address is lost: it goes again as soon as it can, not after the waits of P17."""
        for machine in self._machines.all():
            machine.gates.lost(address)
        self.opens(address)

    def settled(self) -> None:
        """Which of two mirrored addresses is the principal may be known now."""
        for gate in [gate for gate in self._closed if MIRRORED in gate]:
            self.opens(gate)

    def _send(self, machine: DatabaseDialogs, departure: OutboundRows) -> None:
        gate = departure.gate
        if gate == LOCAL:
            self._loop_back(departure.rows)
            return
        if self._is_idle_talk(machine, departure):
            return
        before, _ = self._endpoint.progress(gate)
        if self._endpoint.send(gate, departure.rows) > 0:
            return
        self._closed.add(gate)
        for each in self._machines.all():
            each.gates.closes(gate)
        self._closes(gate)
        taken, _ = self._endpoint.progress(gate)
        if taken == before:  # it goes as soon as there is room, not after the waits of P17
            machine.dialogs.retransmit(departure.keys)

    def _is_idle_talk(self, machine: DatabaseDialogs, departure: OutboundRows) -> bool:
        """Whether nobody here has a conversation of it, and it would go where nothing is begun: an answer to an address that a neighbour named (N34)."""
        gate = departure.gate
        if MIRRORED in gate or any(machine.dialogs.is_loaded(key) for key in departure.keys):
            return False
        return self._endpoint.refusal_reason(gate) is not None


def unreachable(address: str, why: str) -> TransmissionStatus:
    """There is no connection to where the messages go next.

    Args:
        address: Where that is.
        why: What dialling it, or the connection that broke, said.

    Returns:
        The status.

    Examples:
        >>> print(str(unreachable("TCP://bank:4022", "connection refused"))[:70])
        9754: TCP://bank:4022, where the message goes next, cannot be reached:
    """
    return TransmissionStatus(
        9754,
        f"{address}, where the message goes next, cannot be reached: {why}. It is dialled again by itself. If the address is wrong, "
        "ALTER ROUTE <name> WITH ADDRESS = N'TCP://<host>:<port>';",
    )


def unacknowledged(address: str) -> TransmissionStatus:
    """The messages went out, and nobody says that they arrived.

    Args:
        address: Where they went.

    Returns:
        The status.

    Examples:
        >>> print(str(unacknowledged("TCP://bank:4022"))[:55])
        9753: sent to TCP://bank:4022, and not acknowledged yet
    """
    return TransmissionStatus(
        9753,
        f"sent to {address}, and not acknowledged yet. It is sent again by itself. If this stays, look at the target's events "
        "(Message Undeliverable, Message Classify), at its route back to this instance's service, and at the forwarders between.",
    )


def without_keys(why: str) -> TransmissionStatus:
    """What secures the conversation cannot be read or written here.

    Args:
        why: What failed.

    Returns:
        The status.

    Examples:
        >>> print(str(without_keys("service_master.key: expected a key of 32 bytes; it has 2"))[:55])
        28050: the dialog is to be secured, and its keys cannot
    """
    return TransmissionStatus(
        28050, f"the dialog is to be secured, and its keys cannot be had: {why}. It is tried again by itself."
    )


def held(address: str, mirror_address: str) -> TransmissionStatus:
    """Neither of two mirrored addresses is known to be the principal (R54).

    Args:
        address: The one.
        mirror_address: The other.

    Returns:
        The status.

    Examples:
        >>> print(str(held("TCP://a:4022", "TCP://b:4022"))[:73])
        9787: neither TCP://a:4022 nor TCP://b:4022 says that it is the principal
    """
    return TransmissionStatus(
        9787,
        f"neither {address} nor {mirror_address} says that it is the principal of the mirrored database, so nothing is sent. Both are "
        "asked again by themselves.",
    )


QUIET: Final = 4 * SECOND
"""After so long without an acknowledgement `transmission_status` says that there is none."""
FORGOTTEN_AFTER: Final = 300 * SECOND
"""After so long without a word a conversation has nothing to send: the longest wait of P17 is much shorter."""

WHY_MOST: Final = 10_000
"""The addresses of which is known at once why they cannot be reached."""


@dataclass(slots=True)
class ConversationInTransit:
    """A conversation that is carried.

    Attributes:
        outgoing: What delivery said of it last.
        since: When it was first carried, or last acknowledged.
        waits: Why its messages may not leave yet; None for nothing.
        said: What was written of it.
        seen: When delivery last told of it.
    """

    outgoing: OutgoingConversation
    since: int
    waits: TransmissionStatus | None = None
    said: str = ""
    seen: int = 0


class StatusNote(NamedTuple):
    """What is to be written of a conversation."""

    carried: ConversationInTransit
    sender: ConversationEndpoint
    """The endpoint, with the status that it has."""
    says: str
    """The new one."""


class ConversationsInTransit:
    """The conversations that are carried, by database and endpoint. For any number of threads.

    Args:
        principal: Which of the addresses of a mirrored route is the principal, as `hooks.Mirrors.principal`.

    Attributes:
        why: Why addresses cannot be reached; those that can be are not in it.
    """

    def __init__(self, *, principal: Callable[[str, str, bytes | None], str | None]) -> None:
        self._principal: Final = principal
        self._guard: Final = threading.RLock()
        self._carried: dict[tuple[int, Key], ConversationInTransit] = {}
        self._new: dict[int, dict[Key, OutgoingConversation]] = {}
        self._keys: dict[tuple[int, int], Key] = {}
        self.why: dict[str, str] = {}

    def add(self, conversations: Sequence[OutgoingConversation], *, now: int) -> dict[int, TransmissionStatus]:
        """Takes conversations up, or notes that they have more to send.

        Args:
            conversations: The conversations.
            now: The moment.

        Returns:
            What is in the way of them, as far as something is.
        """
        hindered: dict[int, TransmissionStatus] = {}
        with self._guard:
            for each in conversations:
                sender = each.sender
                key = (sender.conversation_id, bool(sender.is_initiator))
                place = (each.database.database_id, key)
                self._new.setdefault(place[0], {})[key] = each
                carried = self._carried.get(place)
                if carried is None or carried.outgoing.sender.endpoint_id != sender.endpoint_id:
                    carried = self._carried[place] = ConversationInTransit(each, now)
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

    def take(self) -> dict[int, dict[Key, OutgoingConversation]]:
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

    def waits(self, database_id: int, key: Key, status: TransmissionStatus | None) -> None:
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

    def notes(self, addresses: Collection[str], *, most: int, now: int) -> list[StatusNote]:
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

    def _notes(self, addresses: frozenset[str | None], now: int) -> Iterator[StatusNote]:
        for carried in self._carried.values():
            decision = carried.outgoing.decision
            if carried.waits is None and addresses.isdisjoint((decision.next_hop_address, decision.mirror_address)):
                continue
            status = self._status(carried, carried.since)
            new = DELIVERED if status is None else str(status)
            # That nobody has answered yet is no news: where delivery has said so, it holds still.
            if carried.said != new and carried.said != str(self._status(carried, now)):
                yield StatusNote(carried, carried.outgoing.sender._replace(transmission_status=carried.said), new)

    def noted(self, notes: Iterable[StatusNote]) -> None:
        """Notes what has been written; where delivery has said something else meanwhile, that is looked at another time."""
        with self._guard:
            for carried, sender, says in notes:
                if carried.said == sender.transmission_status:
                    carried.said = says

    def _status(self, carried: ConversationInTransit, now: int) -> TransmissionStatus | None:
        if carried.waits is not None:
            return carried.waits
        decision = carried.outgoing.decision
        address, mirror = decision.next_hop_address or "", decision.mirror_address
        if mirror is not None:
            principal = self._principal(address, mirror, decision.broker_instance)
            if principal is None:
                return held(address, mirror)
            address = principal
        if address in self.why:
            return unreachable(address, self.why[address])
        return unacknowledged(address) if carried.since + QUIET <= now else None


NOTES_MOST: Final = 1000
"""How many conversations are written of at once; meanwhile nobody's messages go."""
SHARE: Final = 20
"""How many times longer than the writing the wait for the next time is, at least: a neighbour that comes and goes has it done again and again."""


class StatusWriter:
    """What is to be written. For one thread.

    Args:
        carrying: The conversations, and what is in their way.
        clock: The moment, in microseconds since 1970.
    """

    def __init__(self, carrying: ConversationsInTransit, *, clock: Callable[[], int]) -> None:
        self._carrying: Final = carrying
        self._clock: Final = clock
        self._addresses: Final[set[str]] = set()
        self._is_due = False
        self._wrote = self._wait = 0

    def changed(self, addresses: Iterable[str] = ()) -> None:
        """Something else may be in the way of conversations, or nothing.

        Args:
            addresses: Where they go; those whose messages may not leave yet count in any case.
        """
        self._addresses.update(addresses)
        self._is_due = True

    def write(self, *, now: int) -> int | None:
        """Writes what is to be said of them by now, unless the last time was too short ago.

        Args:
            now: The moment.

        Returns:
            When to call again; None where nothing is left.
        """
        if not self._is_due:
            return None
        if 0 <= now - self._wrote < self._wait:
            return self._wrote + self._wait
        notes = self._carrying.notes(self._addresses, most=NOTES_MOST, now=now)
        is_written = self._write(notes)
        self._wrote = self._clock()
        self._wait = SHARE * max(self._wrote - now, 0) if is_written else FAILED_WAIT
        self._is_due = not is_written or len(notes) == NOTES_MOST
        if not self._is_due:
            self._addresses.clear()
            return None
        return self._wrote + self._wait

    def _write(self, notes: list[StatusNote]) -> bool:
        """Writes notes, database by database; whether all could be."""
        by_database: dict[int, tuple[DatabaseContext, list[StatusNote]]] = {}
        for note in notes:
            database = note.carried.outgoing.database
            by_database.setdefault(database.database_id, (database, []))[1].append(note)
        is_written = True
        for database, its in by_database.values():
            senders = {each.sender.endpoint_id: each.sender for each in its}
            says = {each.sender.endpoint_id: each.says for each in its}
            try:
                delivery.write_statuses(database, senders, says, lock_timeout=PATIENCE)
            except SsbrokerError as error:
                log_failure(database, "why messages wait could not be written", error)
                is_written = False
            else:
                self._carrying.noted(its)
        return is_written
