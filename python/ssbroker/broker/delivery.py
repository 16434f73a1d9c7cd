"""Delivery: moves messages from a transmission queue into target queues of the same instance, and retries."""

from __future__ import annotations

import heapq
import logging
import threading
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.dialogs import transmission_status
from ssbroker.broker.dialogs.deliver import arrive, settle
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader, envelope_of
from ssbroker.broker.dialogs.transmission_status import DELIVERED, TransmissionStatus, route_refused
from ssbroker.broker.dynamic_routing import DynamicRouting, RouteRequest
from ssbroker.broker.failure_log import log_failure
from ssbroker.broker.process_locks import ServeLock
from ssbroker.broker.routes import Decision, LiveRoutes, database_missing_route, explain, needs_route_request
from ssbroker.broker.unit_of_work import Work, emit_undeliverable_event, instance_transaction
from ssbroker.broker.validation import queue_text
from ssbroker.exceptions import LockTimeoutError, SsbrokerError, StorageError
from ssbroker.explain import Explanation
from ssbroker.protocol.config import SECOND, Backoff
from ssbroker.protocol.errors import error_text
from ssbroker.protocol.events import Classification, MessageClassify
from ssbroker.store import endpoints, transmission_queue
from ssbroker.store.endpoints import ConversationEndpoint

MESSAGES_MAX: Final = 2_000
"""The messages that one transaction of the target takes at most."""
MESSAGES_MAX_EACH: Final = 500
"""Those of one conversation among them, so that a long one does not keep the others waiting."""
BYTES_MAX: Final = 8 << 20
"""After so many bytes of bodies a transaction takes no further message."""


@dataclass(frozen=True, slots=True)
class DeliveryBatch:
    """The first messages of a conversation that wait.

    Attributes:
        sender: Its sender, as it was when they were read.
        envelope: What they have in common.
        messages: The messages, in order.
        is_all: Whether no more waited.
    """

    sender: ConversationEndpoint
    envelope: MessageHeader
    messages: Sequence[DialogMessage]
    is_all: bool


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of a parcel.

    Attributes:
        parcel: The parcel.
        arrival: What its target made of it.
    """

    parcel: DeliveryBatch
    arrival: DeliveryOutcome

    @property
    def is_stuck(self) -> bool:
        """Whether messages of the parcel were not taken, and the sender keeps them."""
        above = self.parcel.messages[-1].message_sequence_number + 1
        return self.arrival.error is None and self.arrival.acknowledged < above


def pack(source: DatabaseContext, endpoint_ids: Iterable[int]) -> tuple[list[DeliveryBatch], list[int]]:
    """Reads what fits into one transaction of the target.

    Args:
        source: The senders' database.
        endpoint_ids: The senders, those to go first in front.

    Returns:
        The parcels, and the senders for which no room was left.
    """
    parcels: list[DeliveryBatch] = []
    ids = list(endpoint_ids)
    room, room_bytes = MESSAGES_MAX, BYTES_MAX
    with source.file.read() as connection:
        objects = source.objects(connection)
        for position, endpoint_id in enumerate(ids):
            if room <= 0 or room_bytes <= 0:
                return parcels, ids[position:]
            sender = endpoints.by_id(connection, endpoint_id)
            rows, is_all = transmission_queue.first_messages(
                connection, endpoint_id, limit=min(room, MESSAGES_MAX_EACH), bytes_max=room_bytes
            )
            if sender is None or not rows:
                continue
            parcels.append(DeliveryBatch(sender, envelope_of(objects, sender), [_message(row) for row in rows], is_all))
            room -= len(rows)
            room_bytes -= sum(len(row.message_body or b"") for row in rows)
    return parcels, []


def hand_back(
    database: DatabaseContext, parcels: Sequence[DeliveryBatch], *, lock_timeout: float | None = None
) -> list[DeliveryResult]:
    """Delivers parcels within their own database, in one transaction.

    Args:
        database: The database of sender and receiver.
        parcels: The parcels.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Returns:
        What became of each.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with instance_transaction(database, lock_timeout=lock_timeout) as work:
        delivered = [
            _taken(work, parcel, waits_here=False)
            for parcel in parcels
            if endpoints.reload(work.connection, parcel.sender) is not None
        ]
        _settle(work, delivered, broker_instance=work.broker_instance)
    return delivered


def put(
    target: DatabaseContext,
    parcels: Sequence[DeliveryBatch],
    *,
    broker_instance: bytes | None,
    lock_timeout: float | None = None,
) -> list[DeliveryResult]:
    """Puts parcels into the database that routing has found, durably.

    Args:
        target: The database.
        parcels: The parcels.
        broker_instance: The broker id that routing found.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Returns:
        What became of each; nothing where the database has been disabled or has got another id since (R31, R33).

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with instance_transaction(target, lock_timeout=lock_timeout) as work:
        if not work.objects.broker.is_delivering or work.broker_instance != broker_instance:
            return []
        return [_taken(work, parcel, waits_here=True) for parcel in parcels]


def acknowledge(source: DatabaseContext, delivered: Sequence[DeliveryResult], *, broker_instance: bytes) -> None:
    """Takes off the transmission queue what another database has durably (P16); without, it is sent again, and is a duplicate.

    Args:
        source: The senders' database.
        delivered: What `put` returned.
        broker_instance: The broker id of the database that took them.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with instance_transaction(source) as work:
        _settle(work, delivered, broker_instance=broker_instance)


def _settle(work: Work, delivered: Sequence[DeliveryResult], *, broker_instance: bytes) -> None:
    for each in delivered:
        sender = each.parcel.sender
        if endpoints.reload(work.connection, sender) is None:
            continue
        settle(work, sender.endpoint_id, each.arrival, broker_instance=broker_instance)
        if each.arrival.undelivered is None and sender.transmission_status != DELIVERED:
            endpoints.set_transmission_status(work.connection, sender.endpoint_id, DELIVERED)


def _taken(work: Work, parcel: DeliveryBatch, *, waits_here: bool) -> DeliveryResult:
    arrival = arrive(work, parcel.envelope, parcel.messages, waits_here=waits_here)
    if arrival.undelivered is not None:
        emit_undeliverable_event(
            work,
            parcel.envelope.conversation_id,
            number=parcel.messages[0].message_sequence_number,
            error=arrival.undelivered,
            text=arrival.reason,
        )
    return DeliveryResult(parcel, arrival)


def _message(row: transmission_queue.TransmissionRow) -> DialogMessage:
    return DialogMessage(
        row.message_sequence_number,
        row.message_type_name,
        row.message_body,
        is_conversation_error=bool(row.is_conversation_error),
        is_end_of_dialog=bool(row.is_end_of_dialog),
    )


_NOT_THE_NEXT: Final = 11217
_QUEUE_OFF: Final = 11219
LOGGER: Final = logging.getLogger("ssbroker.broker")


class DeliveryRound:
    """Hands over what waits, one transaction of a target after the other, and notes what was in the way.

    Args:
        source: The database whose messages wait.
        patience: The seconds to wait for the lock of a target; None is as long as always.

    Attributes:
        stays: Why messages stay, by the id of their sender.
        later: Senders whose target was busy for longer than `patience`: nothing is wrong, somebody with more time delivers.
    """

    def __init__(self, source: DatabaseContext, *, patience: float | None) -> None:
        self._source: Final = source
        self._patience: Final = patience
        self.stays: dict[int, TransmissionStatus] = {}
        self.later: set[int] = set()

    def deliver(self, target: DatabaseContext, broker_instance: bytes | None, endpoint_ids: Sequence[int]) -> None:
        """Delivers what conversations have waiting for one database, each in order.

        Args:
            target: The database; it may be the source.
            broker_instance: Its broker id, as routing found it.
            endpoint_ids: The senders, those to go first in front.

        Raises:
            LockTimeoutError: Others were writing to the source.
            StorageError: The source cannot be used.
        """
        left = list(endpoint_ids)
        while left:
            parcels, rest = pack(self._source, left)
            try:
                delivered = self._put(target, broker_instance, parcels)
            except LockTimeoutError:
                if self._patience is None:
                    self.stays |= dict.fromkeys(left, transmission_status.busy(target.name))
                else:
                    self.later |= set(left)
                return
            except StorageError as error:
                self.stays |= dict.fromkeys(left, transmission_status.unavailable(target.name, str(error)))
                return
            if target is not self._source and delivered and broker_instance is not None:
                acknowledge(self._source, delivered, broker_instance=broker_instance)
            left = rest + self._judge(target, parcels, delivered)

    def _put(
        self, target: DatabaseContext, broker_instance: bytes | None, parcels: Sequence[DeliveryBatch]
    ) -> list[DeliveryResult]:
        try:
            return self._put_all(target, broker_instance, parcels)
        except StorageError:
            raise
        except Exception:
            if len(parcels) == 1:
                raise
            LOGGER.exception(
                "%s: messages are delivered one conversation at a time, to find the one that fails", target
            )
        delivered = []
        for parcel in parcels:
            try:
                delivered += self._put_all(target, broker_instance, [parcel])
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001  # it was logged above; the others must not wait for this one
                self.stays[parcel.sender.endpoint_id] = transmission_status.unclassified(
                    f"{type(error).__name__}: {error}"
                )
        return delivered

    def _put_all(
        self, target: DatabaseContext, broker_instance: bytes | None, parcels: Sequence[DeliveryBatch]
    ) -> list[DeliveryResult]:
        if target is self._source:
            return hand_back(target, parcels, lock_timeout=self._patience)
        return put(target, parcels, broker_instance=broker_instance, lock_timeout=self._patience)

    def _judge(
        self, target: DatabaseContext, parcels: Sequence[DeliveryBatch], delivered: Sequence[DeliveryResult]
    ) -> list[int]:
        """Notes what stays; the senders that have more to deliver."""
        goes_on = []
        for each in delivered:
            endpoint_id = each.parcel.sender.endpoint_id
            if each.is_stuck:
                self.stays[endpoint_id] = _why(target, each)
            elif not each.parcel.is_all and each.arrival.error is None:
                goes_on.append(endpoint_id)
        done = {each.parcel.sender.endpoint_id for each in delivered}
        for parcel in parcels:
            endpoint_id = parcel.sender.endpoint_id
            if endpoint_id not in done:
                self.stays.setdefault(
                    endpoint_id, transmission_status.unclassified(f"{target.name!r} has just changed")
                )
        return goes_on


def _why(target: DatabaseContext, delivered: DeliveryResult) -> TransmissionStatus:
    """Why the target did not take a parcel."""
    number = delivered.arrival.undelivered
    if number is None:
        return transmission_status.undeliverable(_NOT_THE_NEXT, error_text(_NOT_THE_NEXT))
    if number == _QUEUE_OFF:
        objects = target.objects()
        service = objects.services.get(delivered.parcel.envelope.to_service_name)
        if service is not None:
            queue = objects.queues_by_id[service.queue_id]
            return transmission_status.queue_off(target.name, queue_text(queue.schema_name, queue.name))
    return transmission_status.undeliverable(number, delivered.arrival.reason)


@dataclass(frozen=True, slots=True)
class OutgoingConversation:
    """A conversation with messages in the transmission queue that are for another instance.

    Attributes:
        database: Its sender's database.
        sender: Its sender, as committed.
        decision: Where its messages go: the next hop, and of a mirrored route the mirror's address (R51).
    """

    database: DatabaseContext
    sender: ConversationEndpoint
    decision: Decision

    @property
    def endpoint_id(self) -> int:
        """The sender's number."""
        return self.sender.endpoint_id


class Transport(Protocol):
    """Carries messages to other instances and brings back what is acknowledged."""

    def carry(self, conversations: Sequence[OutgoingConversation]) -> Mapping[int, TransmissionStatus]:
        """Sends what waits of these conversations, now or soon, and takes it off the transmission queue once it is acknowledged.

        It is told of a conversation after each commit that sends in it, after every change that may concern its route, and again
        after the waits of P17 as long as messages wait. It may be called from any thread, and does not wait.

        Args:
            conversations: The conversations, those to go first in front.

        Returns:
            What is in the way of conversations, by their sender's number, as far as something is.
        """

    def more(self, database: DatabaseContext, endpoint_ids: Collection[int]) -> Collection[int]:
        """Tells that conversations have sent more: it spares those that are carried already what `carry` has to be told.

        Args:
            database: The senders' database.
            endpoint_ids: The senders.

        Returns:
            Those that are not carried, or of which there may be something to say.
        """


_SENDER_DISABLED: Final = "sender_disabled"


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What to do with some conversations of a database."""

    local: dict[tuple[str, bytes | None], list[ConversationEndpoint]] = field(default_factory=dict)
    """Those for each database of this instance, by its name and its broker id."""
    outgoing: list[OutgoingConversation] = field(default_factory=list)
    """Those for other instances."""
    stays: dict[int, TransmissionStatus] = field(default_factory=dict)
    """Why the others stay, by the id of the sender."""
    asks: dict[RouteRequest, list[int]] = field(default_factory=dict)
    """Those of them for which a route is to be asked for (R14)."""


def plan(
    routes: LiveRoutes, database: DatabaseContext, senders: Sequence[ConversationEndpoint], *, has_transport: bool
) -> DeliveryPlan:
    """Routes conversations (B10), and tells the subscribers what became of each.

    Args:
        routes: Where conversations go.
        database: The senders' database.
        senders: The senders.
        has_transport: Whether messages can leave the instance.

    Returns:
        What to do.
    """
    now = database.now()
    found = DeliveryPlan()
    explained: dict[tuple[str, bytes | None, int], Explanation] = {}
    router = routes.router()
    for sender, decision in zip(senders, routes.decisions(database.name, senders), strict=True):
        _tell(database, sender, decision)
        if decision.is_local and decision.target_database is not None:
            found.local.setdefault((decision.target_database, decision.broker_instance), []).append(sender)
        elif decision.next_hop_address is not None and has_transport:
            found.outgoing.append(OutgoingConversation(database, sender, decision))
        else:
            asked = (sender.far_service, sender.far_broker_instance, sender.is_initiator)
            if asked not in explained:  # the same for all of them: what stays has found nothing to pick from
                explained[asked] = explain(router, database.name, sender, now=now)
            is_mirror = decision.reason == _SENDER_DISABLED and database.objects().broker.mirroring_role == "mirror"
            why = (
                transmission_status.mirror_copy(database.name)
                if is_mirror
                else transmission_status.classified(explained[asked])
            )
            found.stays[sender.endpoint_id] = why or transmission_status.unclassified("its route has just changed")
            if needs_route_request(explained[asked]):
                ask = RouteRequest(
                    database_missing_route(explained[asked]), sender.far_service, sender.far_broker_instance
                )
                found.asks.setdefault(ask, []).append(sender.endpoint_id)
    return found


def _tell(database: DatabaseContext, sender: ConversationEndpoint, decision: Decision) -> None:
    log = database.instance.events
    if not log.wants(MessageClassify):
        return
    if decision.is_local:
        classification = Classification.LOCAL
    elif decision.next_hop_address is not None:
        classification = Classification.REMOTE
    else:
        classification = Classification.DELAYED
    log.emit(
        MessageClassify(
            at=epoch_microseconds(database.now()),
            database=database.name,
            conversation_id=uuid.UUID(bytes=sender.conversation_id),
            classification=classification,
            to_service_name=sender.far_service,
            to_broker_instance=None if decision.broker_instance is None else uuid.UUID(bytes=decision.broker_instance),
            next_hop_address=decision.next_hop_address,
            reason=decision.reason,
        )
    )


class SenderKey(NamedTuple):
    """A conversation's sender."""

    database_id: int
    endpoint_id: int


class _Try(NamedTuple):
    attempt: int
    """How often delivery has failed so far."""
    at: int
    """When it is tried next, in microseconds since 1970."""
    is_carried: bool = False
    """Whether its messages are on their way to another instance, so that those which come meanwhile need not wait."""


class Retries:
    """Keeps in memory what is to be delivered, and when; the messages themselves are in the files. For any number of threads.

    Who delivers takes conversations out with `claim`. What is committed in one of them meanwhile puts it in again, so that nothing
    is overlooked.

    Args:
        backoff: The waits.

    Examples:
        >>> retries = Retries(Backoff(random=lambda: 0.5))
        >>> retries.add([SenderKey(5, 1)], at=0)
        >>> retries.claim(5, now=0)
        {1: 0}
        >>> retries.failed(SenderKey(5, 1), attempt=0, now=0)
        >>> retries.next_moment() // 1_000_000
        4
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff: Final = backoff
        self._guard: Final = threading.RLock()
        self._tries: dict[SenderKey, _Try] = {}
        # For each database the moments and senders, the earliest first; one whose moment is not that of its try is past.
        self._order: dict[int, list[tuple[int, int]]] = {}
        self._latest = 0
        self._changes = 0
        self._seen: dict[int, int] = {}
        """For each database the changes that its last claim knew of."""
        self._tried: dict[int, set[int]] = {}
        """For each database the numbers that its last claim took out."""
        self._replaced: dict[int, set[int]] = {}
        """Of these, those that other conversations have since then."""

    def add(self, keys: Iterable[SenderKey], *, at: int) -> None:
        """Has conversations tried at a moment; those that have failed stay as they are, those that are carried do not wait.

        Args:
            keys: The conversations.
            at: The moment.
        """
        with self._guard:
            for key in keys:
                known = self._tries.get(key)
                if known is None or (known.is_carried and at < known.at):
                    self._put(key, _Try(0, at))

    def claim(self, database_id: int, *, now: int) -> dict[int, int]:
        """Takes out the conversations of a database whose moment has come; all of them where the clock was put back.

        Args:
            database_id: The database.
            now: The moment.

        Returns:
            The senders, and how often delivery has failed for each; in ascending order.
        """
        with self._guard:
            self._seen[database_id] = self._changes
            self._replaced.pop(database_id, None)
            # Threads have read the clock before their turn came; one that was put back by less prolongs a wait by that.
            if now + self._backoff.max_wait < self._latest:
                self._move(at=now)
                self._latest = now
            self._latest = max(self._latest, now)
            found: dict[int, int] = {}
            order = self._order.get(database_id, [])
            while order and order[0][0] <= now:
                at, endpoint_id = heapq.heappop(order)
                if self._is_current(SenderKey(database_id, endpoint_id), at):
                    found[endpoint_id] = self._tries.pop(SenderKey(database_id, endpoint_id)).attempt
            self._tried[database_id] = set(found)
            return dict(sorted(found.items()))

    def failed(self, key: SenderKey, *, attempt: int, now: int, is_carried: bool = False) -> None:
        """Has a conversation tried again after a longer wait than before; at once where something has changed since its claim.

        One that is gone since then is not tried again, nor does the one that has its number now wait for it.

        Args:
            key: The conversation.
            attempt: What `claim` said.
            now: The moment at which it failed.
            is_carried: Whether its messages are on their way to another instance.
        """
        with self._guard:
            if key.endpoint_id in self._replaced.get(key.database_id, ()):
                return
            is_changed = self._seen.get(key.database_id, self._changes) != self._changes
            at = now if is_changed else now + self._backoff.wait(attempt)
            self._put(key, _Try(attempt + 1, at, is_carried))

    def forget(self, key: SenderKey) -> None:
        """Forgets a conversation that is gone: another one has its number now.

        Args:
            key: The number.
        """
        with self._guard:
            self._tries.pop(key, None)
            if key.endpoint_id in self._tried.get(key.database_id, ()):
                self._replaced.setdefault(key.database_id, set()).add(key.endpoint_id)

    def keep_databases(self, database_ids: Iterable[int]) -> None:
        """Forgets the conversations of databases that are not in the instance any more.

        Args:
            database_ids: The databases that are.
        """
        kept = set(database_ids)
        with self._guard:
            if self._order.keys() <= kept:
                return
            self._tries = {key: each for key, each in self._tries.items() if key.database_id in kept}
            self._order = {number: each for number, each in self._order.items() if number in kept}
            self._seen = {number: each for number, each in self._seen.items() if number in kept}

    def hasten(self, *, now: int) -> None:
        """Has every conversation tried at once: something has changed that may have been in the way.

        Args:
            now: The moment.
        """
        with self._guard:
            self._changes += 1
            self._move(at=now)

    def next_moment(self) -> int | None:
        """When the next conversation is tried.

        Returns:
            The moment, past or future; None where nothing waits.
        """
        with self._guard:
            orders = list(self._order.items())  # the handler of a signal may add to them
            for database_id, order in orders:
                while order and not self._is_current(SenderKey(database_id, order[0][1]), order[0][0]):
                    heapq.heappop(order)
            return min((order[0][0] for _, order in orders if order), default=None)

    def _put(self, key: SenderKey, new: _Try) -> None:
        self._tries[key] = new
        heapq.heappush(self._order.setdefault(key.database_id, []), (new.at, key.endpoint_id))

    def _move(self, *, at: int) -> None:
        """Has everything that would be tried later tried at a moment."""
        before, self._tries, self._order = self._tries, {}, {}
        for key, each in before.items():
            self._put(key, each._replace(at=min(each.at, at)))

    def _is_current(self, key: SenderKey, at: int) -> bool:
        known = self._tries.get(key)
        return known is not None and known.at == at


PATIENCE: Final = 0.1
"""The seconds for which a thread that has committed waits for others; after that, the instance's own thread delivers."""
SCAN_EVERY: Final = 4 * SECOND
"""After so many microseconds a transmission queue is looked through for what another process has left there."""


class Delivery:
    """Delivers what waits in the transmission queues of an instance. For any number of threads.

    Attributes:
        transport: What carries messages to other instances; None where there is no endpoint.
    """

    def __init__(
        self, instance: InstanceContext, retries: Retries, *, routes: LiveRoutes, dynamic_routing: DynamicRouting
    ) -> None:
        self._instance: Final = instance
        self._retries: Final = retries
        self._routes: Final = routes
        self._dynamic_routing: Final = dynamic_routing
        self._scanned: dict[int, int] = {}
        self._turns: Final[dict[int, threading.RLock]] = defaultdict(threading.RLock)
        self._thread: Final = _ThreadState()
        self.transport: Transport | None = None

    def sent(self, database: DatabaseContext, endpoint_ids: Collection[int]) -> bool:
        """Delivers at once what a transaction has put into the transmission queue. What cannot be is tried again; nothing raises.

        Where the calling thread is in a transaction of some database, it would wait for itself; and whoever commits shall not wait
        for what a reader of the target does in its transaction. In both cases others deliver.

        Args:
            database: The senders' database.
            endpoint_ids: The senders.

        Returns:
            Whether others have to deliver, at once.
        """
        if self.transport is not None and not self._instance.events.wants(MessageClassify):
            endpoint_ids = self.transport.more(database, endpoint_ids)
            if not endpoint_ids:
                return False
        now = epoch_microseconds(self._instance.clock())
        self._retries.add((SenderKey(database.database_id, each) for each in endpoint_ids), at=now)
        if any(each.file.is_written_here for each in self._instance.databases):
            return True
        if self._thread.is_delivering:  # a subscriber sends, while it is told of a delivery
            self._thread.left.append(database)
            return False
        return self._deliver(database, now=now, patience=PATIENCE if self._instance.background else None)

    def run_due(self, *, now: int) -> None:
        """Delivers what is new, was left by others, or is to be tried again.

        Args:
            now: The moment.
        """
        if self._thread.is_delivering:  # a subscriber asks for what its caller does
            return
        databases = self._instance.databases
        self._retries.keep_databases(each.database_id for each in databases)
        for database in databases:
            try:
                self._scan(database, now=now)
            except SsbrokerError as error:  # the others do not wait for it
                log_failure(database, "what waits could not be looked for", error)
            self._deliver(database, now=now, patience=None)

    def _scan(self, database: DatabaseContext, *, now: int) -> None:
        """Finds what a process left that has ended. Another one that goes on delivers by itself, and is given the time for it."""
        before = self._scanned.get(database.database_id)
        if before is not None and 0 <= now - before < SCAN_EVERY:
            return
        self._scanned[database.database_id] = now
        with database.file.read() as connection:
            found = endpoints.deliverable_endpoints(connection)
        at = now if before is None else now + SCAN_EVERY
        self._retries.add((SenderKey(database.database_id, each) for each in found), at=at)

    def _deliver(self, database: DatabaseContext, *, now: int, patience: float | None) -> bool:
        """Delivers what is due of a database, and what subscribers send meanwhile; whether somebody with more time has to go on."""
        is_left = False
        self._thread.left = [database]
        while self._thread.left:
            is_left |= self._take_turn(self._thread.left.pop(0), now=now, patience=patience)
        return is_left

    def _take_turn(self, database: DatabaseContext, *, now: int, patience: float | None) -> bool:
        """One thread at a time. Whoever comes meanwhile finds its own messages delivered, with those of others."""
        turn = self._turns[database.database_id]
        if not turn.acquire(timeout=-1 if patience is None else patience):
            return True
        self._thread.is_delivering = True
        try:
            attempts = self._retries.claim(database.database_id, now=now)
            later = self._try(database, attempts, now=now, patience=patience) if attempts else set()
        finally:
            self._thread.is_delivering = False
            turn.release()
        self._retries.add((SenderKey(database.database_id, each) for each in later), at=now)
        return bool(later)

    def _try(
        self, database: DatabaseContext, attempts: Mapping[int, int], *, now: int, patience: float | None
    ) -> Collection[int]:
        """Delivers what can be, and has the rest tried again; the senders that were left to somebody with more time."""
        failed: Collection[int] = attempts
        carried: Collection[int] = ()
        later: Collection[int] = ()
        try:
            failed, carried, later = self._round(database, attempts, patience=patience)
        except SsbrokerError as error:
            log_failure(database, "messages could not be delivered, and are tried again", error)
        except Exception:
            LOGGER.exception("%s: messages could not be delivered, and are tried again", database.name)
        finally:
            for endpoint_id in (*failed, *carried):
                key, is_carried = SenderKey(database.database_id, endpoint_id), endpoint_id in carried
                self._retries.failed(key, attempt=attempts[endpoint_id], now=now, is_carried=is_carried)
        return later

    def _round(
        self, database: DatabaseContext, endpoint_ids: Iterable[int], *, patience: float | None
    ) -> tuple[set[int], set[int], set[int]]:
        """Delivers what can be; the senders that are to be tried again, those that are carried, and those that were left."""
        senders = _senders(database, endpoint_ids)
        has_transport = self.transport is not None or self._is_served_elsewhere()
        planned = plan(self._routes, database, list(senders.values()), has_transport=has_transport)
        hindered = self.transport.carry(planned.outgoing) if planned.outgoing and self.transport is not None else {}
        deliveries = DeliveryRound(database, patience=patience)
        deliveries.stays |= planned.stays
        deliveries.stays |= self._ask(planned, patience=patience)
        for (name, broker_instance), group in planned.local.items():
            target = self._instance.database(name)
            deliveries.deliver(target, broker_instance, [each.endpoint_id for each in group])
        carried = {each.endpoint_id for each in planned.outgoing}
        says = {endpoint_id: str(why) for endpoint_id, why in {**deliveries.stays, **hindered}.items()}
        if self.transport is not None:  # else the process that serves knows how they fare
            says = dict.fromkeys(carried, DELIVERED) | says
        note(database, senders, says)
        return {*deliveries.stays}, carried, deliveries.later

    def _is_served_elsewhere(self) -> bool:
        """Whether another process carries what is for other instances (N16); it sees what is committed here by itself."""
        return ServeLock.is_held(self._instance.folder)

    def _ask(self, planned: DeliveryPlan, *, patience: float | None) -> dict[int, TransmissionStatus]:
        """Asks for the routes that are missing (R14); what is said of those that were refused."""
        if not planned.asks:
            return {}
        try:
            refused = self._dynamic_routing.ask(planned.asks, patience=patience)
        except SsbrokerError as error:
            LOGGER.warning("missing routes could not be asked for, and are at the next try: %s", error)
            return {}
        return {
            endpoint_id: route_refused(ask.service_name, refusal)
            for ask, refusal in refused.items()
            for endpoint_id in planned.asks[ask]
        }


class _ThreadState(threading.local):
    """What a thread does now."""

    def __init__(self) -> None:
        self.is_delivering = False
        self.left: list[DatabaseContext] = []
        """The databases from which it has sent meanwhile."""


def _senders(database: DatabaseContext, endpoint_ids: Iterable[int]) -> dict[int, ConversationEndpoint]:
    """The endpoints that have messages waiting; the highest priority first where the database honours it (fact 150)."""
    with database.file.read() as connection:
        found = [
            endpoint
            for endpoint_id in endpoint_ids
            if transmission_queue.has_waiting(connection, endpoint_id)
            and (endpoint := endpoints.by_id(connection, endpoint_id)) is not None
        ]
        if database.objects(connection).broker.is_honor_broker_priority_on:
            found.sort(key=lambda each: -each.priority)
    return {each.endpoint_id: each for each in found}


def note(
    database: DatabaseContext,
    senders: Mapping[int, ConversationEndpoint],
    says: Mapping[int, str],
    *,
    lock_timeout: float | None = None,
) -> None:
    """Writes why messages stay, where that is not known yet.

    Args:
        database: The senders' database.
        senders: The senders as they were read, by their numbers.
        says: What to write.
        lock_timeout: The seconds to wait for the write lock; None is as long as always.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    new = {
        endpoint_id: status
        for endpoint_id, status in says.items()
        if senders[endpoint_id].transmission_status != status
    }
    if not new:
        return
    with instance_transaction(database, lock_timeout=lock_timeout) as work:
        for endpoint_id, status in new.items():
            if endpoints.reload(work.connection, senders[endpoint_id]) is not None:
                endpoints.set_transmission_status(work.connection, endpoint_id, status)
