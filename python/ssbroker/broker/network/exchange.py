"""Exchanges messages between the databases of an instance and other instances."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery import OutgoingConversation
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.network import outbound
from ssbroker.broker.network.database_dialogs import LOCAL, DatabaseDialogs, DialogsByDatabase
from ssbroker.broker.network.dialer import route_addresses
from ssbroker.broker.network.inbound import FirstRowCheck, InboundProcessor, InboundRouter, Inbox
from ssbroker.broker.network.interfaces import Peer
from ssbroker.broker.network.mirrors import UNKNOWN
from ssbroker.broker.network.outbound import ConversationsInTransit, OutboundSender, StatusWriter
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.config import SECOND, ProtocolSettings
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.storage import Key

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import ForwardingService, KeyExchange, MirrorResolver, NetworkEndpoint


FLUSH_EVERY: Final = 10 * SECOND
LOOK_EVERY: Final = SECOND // 20
"""How soon is seen what other processes have committed (N16)."""
LOOK_SHARE: Final = 20
"""How many times longer than a look the wait for the next one is, at least."""
OWN_MOST: Final = 100
"""How many addresses are learnt to be this instance's own by dialling them; neighbours may choose these too (N34)."""
BUSY_WAIT: Final = SECOND // 10
"""When what could not be written is tried again."""


class MessageExchange:
    """What a serving instance has between its databases and its connections.

    Everything belongs to one thread but `carry`, which may be called from any. `turn` does all that is due.

    Args:
        instance: The instance.
        background: Its background work, which routes conversations and asks for routes.
        reception: What connections tell, with the connections.
        settings: How the protocol is set up.
        keys: Who settles the keys of dialogs.
        forwards: Who passes on what is for others; None where nobody does.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.
        wake: Has `turn` called soon.
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        reception: EndpointEvents,
        *,
        settings: ProtocolSettings,
        keys: KeyExchange,
        forwards: ForwardingService | None,
        mirrors: MirrorResolver | None,
        wake: Callable[[], None],
    ) -> None:
        self._instance: Final = instance
        self._background: Final = background
        self._forwards: Final = forwards
        self._mirrors: Final = mirrors
        self._wake: Final = wake
        self._reception: Final = reception
        self._settings: Final = settings
        self._picture: object = None
        self._flushed = self._looked = 0
        self._own_addresses: Final[set[str]] = set()
        self._opened: Final[dict[str, None]] = {}
        self._others_first = False
        self._look_wait = LOOK_EVERY
        closed: set[str] = set()
        self._inbox: Final = reception.inbox
        principal = (lambda address, *_: address) if mirrors is None else mirrors.principal
        self._carrying: Final = ConversationsInTransit(principal=principal)
        self._noting: Final = StatusWriter(self._carrying, clock=self._now)
        self._machines: Final = DialogsByDatabase(
            instance, background, settings=settings, keys=keys, closed=closed, mirrors=mirrors
        )
        self._dispatch: Final = InboundRouter(
            instance, background, machines=self._machines.all, machine=self._machines.named, forwards=forwards
        )
        self._arriving: Final = InboundProcessor(
            self._machines, self._dispatch, FirstRowCheck(keys, self._dispatch), self._carrying, events=instance.events
        )
        itself = Peer(instance.instance_id, instance.name, None, LOCAL, uuid.UUID(int=0), False)
        self._departing: Final = OutboundSender(
            instance,
            reception.endpoint,
            self._machines,
            closed=closed,
            closes=self._closes,
            loop_back=lambda rows: self._inbox.put(itself, rows),
        )

    def carry(self, conversations: Sequence[OutgoingConversation]) -> Mapping[int, TransmissionStatus]:
        """See `Transport`."""
        hindered = self._carrying.add(conversations, now=self._now())
        self._wake()
        return hindered

    def more(self, database: DatabaseContext, endpoint_ids: Collection[int]) -> list[int]:
        """See `Transport`."""
        left = self._carrying.more(database.database_id, endpoint_ids)
        if len(left) < len(endpoint_ids) and not self._departing.rests:  # else a turn follows
            self._wake()
        return left

    def turn(self) -> int:
        """Does all that is due: what was told, what arrived, what is to be sent.

        Returns:
            When it is to be called again, in microseconds since 1970, if nobody wakes it before.
        """
        now = self._now()
        while self._reception.told:
            self._reception.told.popleft()(self)
        self._follow_the_catalog()
        if not 0 <= now - self._looked < self._look_wait:
            self._look(now)
            # Where looking takes long, it is done less often.
            self._looked = now
            self._look_wait = max(LOOK_EVERY, LOOK_SHARE * (self._now() - now))
        left = self._arriving.take(self._inbox.take(), now=now)
        self._inbox.put_back(left)
        self._take_conversations()
        moments = [self._noting.write(now=now)]
        self._others_first ^= bool(self._opened)  # in turn, so that nobody is kept out by what the other has to send
        if self._others_first:
            self._pass_on()
        moments += self._departing.send_all(now=now)
        self._pass_on()
        moments += [hook.run_due(now=self._now()) for hook in (self._forwards, self._mirrors) if hook is not None]
        if not 0 <= now - self._flushed < FLUSH_EVERY:
            self._flushed = now
            self._flush(now)
        if left:
            moments.append(now + BUSY_WAIT)
        elif not self._inbox.is_empty or self._reception.told or (self._carrying.has_new and not self._departing.rests):
            moments.append(now)
        return min([now + LOOK_EVERY, *(each for each in moments if each is not None)])

    def opens(self, address: str) -> None:
        """An address takes something again.

        Args:
            address: The address.
        """
        self._departing.opens(address)
        self._opened[address] = None

    def broke(self, address: str, why: str) -> None:
        """An address cannot be reached, or the connection to it broke.

        Args:
            address: The address.
            why: What dialling it, or the connection, said.
        """
        self._carrying.failed(address, why)
        self._departing.broke(address)
        if self._forwards is not None:
            self._forwards.connection_failed(address, why)
        if self._mirrors is not None:
            self._mirrors.connection_failed(address)
        self._noting.changed([address])

    def stands(self, address: str, peer: Peer) -> None:
        """An address has answered.

        Args:
            address: The address.
            peer: Who is there.
        """
        self._carrying.why.pop(address, None)
        if self._forwards is not None:
            self._forwards.connected(address, peer)
        self.opens(address)
        if self._mirrors is not None:
            self._mirrors.connected(address)
        self._noting.changed([address])

    def own_address_reached(self, address: str) -> None:
        """An address is this instance's (R41).

        Args:
            address: The address.
        """
        if len(self._own_addresses) < OWN_MOST:  # each has all find their ways again
            self._own_addresses.add(address)
            self._background.catalog.add_addresses([address])

    def settled(self, addresses: Collection[str]) -> None:
        """`Mirrors.way` may have another answer.

        Args:
            addresses: For which addresses.
        """
        self._departing.settled()
        if self._forwards is not None:
            self._forwards.mirrors_changed()
        self._noting.changed(addresses)

    def finish(self) -> None:
        """Takes all that has arrived, and acknowledges it without waiting for a message that could carry that."""
        self._departing.hurry()
        self.turn()
        while not self._inbox.is_empty and not self._arriving.take(self._inbox.take(), now=self._now()):
            pass
        now = self._now() + self._settings.acknowledgement_wait
        for machine in self._machines.all():
            self._departing.send(machine, now=now)

    def close(self) -> None:
        """Gives back what it holds of the files."""
        self._machines.close()

    def _follow_the_catalog(self) -> None:
        """Has all find their ways again when the catalog has changed."""
        picture = self._background.routes.snapshot
        if picture is not self._picture or self._machines.is_due:
            if self._picture is not None:
                self._carrying.forget()
            self._reception.endpoint.set_routed_addresses(route_addresses(self._background.catalog.catalog().routes))
            self._machines.renew()
            for machine in self._machines.all():
                machine.reroute()
            if self._forwards is not None:
                self._forwards.reroute(self._dispatch.decisions)
            self._picture = picture  # where something failed before, all of it is done in the next turn

    def _look(self, now: int) -> None:
        """Takes up what was committed, by whichever process (N16)."""
        for machine in self._machines.all():
            try:
                sent = partial(self._carrying.sent_of, machine.database.database_id)
                found = self._machines.waiting_anew(machine, sent)
            except SsbrokerError as error:
                log_failure(machine.database, "what waits could not be looked for", error)
                continue
            if found:
                self._carrying.add(found, now=now)

    def _take_conversations(self) -> None:
        """Has machines send what was committed, as far as its keys are settled."""
        for database_id, conversations in self._carrying.take().items():
            machine = self._machines.numbered(database_id)
            if machine is not None:
                ready = [key for key, outgoing in conversations.items() if self._may_leave(machine, key, outgoing)]
                machine.dialogs.notify_queued(ready)

    def _may_leave(self, machine: DatabaseDialogs, key: Key, outgoing: OutgoingConversation) -> bool:
        database = machine.database
        try:
            waits = machine.settle_keys(outgoing.sender)
        except SsbrokerError as error:
            log_failure(database, "the keys of a conversation could not be settled", error)
            waits = outbound.without_keys(str(error))
        self._carrying.waits(database.database_id, key, waits)
        if waits is not None:
            self._noting.changed()
        return waits is None

    def _closes(self, address: str) -> None:
        """An address takes no more, so that what is forwarded does not take the room for which the instance's own waits."""
        if self._forwards is not None:
            self._forwards.outbox_full(address)

    def _pass_on(self) -> None:
        """Has what is forwarded go to addresses that take something again."""
        if self._forwards is not None:
            for address in self._opened:
                self._forwards.outbox_drained(address)
        self._opened.clear()

    def _flush(self, now: int) -> None:
        self._instance.events.log_suppressed(now=now)
        self._carrying.keep(now=now)
        self._machines.is_due |= self._machines.has_failed
        for machine in self._machines.all():
            try:
                machine.flush(now=now)
            except SsbrokerError as error:
                log_failure(machine.database, "what is idle could not be put aside", error)

    def _now(self) -> int:
        return epoch_microseconds(self._instance.clock())


class EndpointEvents:
    """Implements `seam.Receiver`: it takes notes, and wakes the exchange.

    Args:
        wake: Has the exchange look soon.

    Attributes:
        endpoint: The connections; set before they begin.
        mirrors: Who knows the roles of the databases; None where nobody does.
        inbox: What has arrived.
        told: What the exchange is to do, in order.
    """

    endpoint: NetworkEndpoint

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self.mirrors: MirrorResolver | None = None
        self.inbox: Final = Inbox(pause=self._pause, resume=self._resume)
        self.told: Final[deque[Callable[[MessageExchange], None]]] = deque()

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        """See `Receiver`."""
        self.inbox.put(peer, rows)
        self._wake()

    def outbox_drained(self, address: str) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.opens(address))

    def connection_failed(self, address: str, why: str) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.broke(address, why))

    def connected(self, address: str, peer: Peer) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.stands(address, peer))

    def own_address_reached(self, address: str) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.own_address_reached(address))

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """See `Receiver`."""
        if self.mirrors is None:
            return [UNKNOWN] * len(broker_instances)
        return self.mirrors.mirroring_roles(broker_instances)

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """See `Receiver`."""
        mirrors = self.mirrors
        if mirrors is not None:
            self.tell(lambda _: mirrors.role_received(address, broker_instance, role, number))

    def tell(self, what: Callable[[MessageExchange], None]) -> None:
        """Has the exchange do something in its thread, soon.

        Args:
            what: Is called with the exchange.
        """
        self.told.append(what)
        self._wake()

    def _pause(self) -> None:
        self.endpoint.pause()

    def _resume(self) -> None:
        self.endpoint.resume()
