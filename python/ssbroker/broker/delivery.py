"""Delivers messages of the transmission queues within the instance, or hands them to the network, and retries."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Final, Protocol

from ssbroker.broker.commit_signals import TRANSMISSIONS_CHANNEL
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery_schedule import DeliverySchedule, SenderId
from ssbroker.broker.dialogs import transmission_status
from ssbroker.broker.dialogs.transmission_status import NO_PROBLEM, TransmissionStatus, route_refused
from ssbroker.broker.dynamic_routing import SHORT_LOCK_TIMEOUT, DynamicRouting, RouteRequest, missing_route
from ssbroker.broker.live_routes import Decision, LiveRoutes, explain
from ssbroker.broker.local_delivery import LocalDelivery, SenderUpdates
from ssbroker.broker.lock_patience import LockWait, delivery_lock_timeout, sender_wait
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.exceptions import LockTimeoutError, SsbrokerError
from ssbroker.explain import Explanation
from ssbroker.protocol.events import Classification, MessageClassify
from ssbroker.protocol.settings import SECOND
from ssbroker.store import conversation_endpoints, transmission_queue
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.write_lock import WriteLock

_LOGGER: Final = logging.getLogger("ssbroker.broker")


class Transport(Protocol):
    """Sends messages to other instances."""

    def send_waiting(self, conversations: Sequence[OutgoingConversation]) -> Mapping[int, TransmissionStatus]:
        """Sends the waiting messages of conversations soon, and removes them from the transmission queue once acknowledged.

        Called after each commit that sends on a conversation (unless `send_more` suffices), after changes that may
        affect the route, and at the retry intervals (P17) while messages wait. May be called from any thread, and does
        not block. Returns problems that are already known, by sender id.
        """

    def send_more(self, database: DatabaseContext, endpoint_ids: Collection[int], *, messages: int) -> Collection[int]:
        """Sends new messages of conversations that `send_waiting` is already sending, in the calling thread or soon after.

        Returns the conversations that need `send_waiting` instead. `messages` is the total number of new messages.
        """

    def forget(self, sender: SenderId) -> None:
        """Forgets that `send_waiting` is sending the conversation of a removed sender, whose id a new conversation has now."""


@dataclass(frozen=True, slots=True)
class OutgoingConversation:
    """A conversation with messages for another instance in the transmission queue.

    Attributes:
        database: The database of the sender.
        sender: The sending endpoint, as committed.
        decision: The routing decision, with the next hop and, for a mirrored route, the address of the mirror (R51).
    """

    database: DatabaseContext
    sender: ConversationEndpoint
    decision: Decision

    @property
    def endpoint_id(self) -> int:
        """The id of the sender."""
        return self.sender.endpoint_id


@dataclass(frozen=True, slots=True)
class DeliveryPlan:
    """What to do with conversations of a database."""

    local: dict[tuple[str, bytes | None], list[ConversationEndpoint]] = field(default_factory=dict)
    """Conversations to deliver within this instance, by the name and broker id of the target database."""
    outgoing: list[OutgoingConversation] = field(default_factory=list)
    """Conversations to send to other instances."""
    problems: dict[int, TransmissionStatus] = field(default_factory=dict)
    """Why the remaining conversations wait, by sender id."""
    route_requests: dict[RouteRequest, list[int]] = field(default_factory=dict)
    """The routes to request (R14), with the ids of the senders that need them."""


def plan_delivery(
    routes: LiveRoutes, database: DatabaseContext, senders: Sequence[ConversationEndpoint], *, has_transport: bool
) -> DeliveryPlan:
    """Routes conversations, and emits an event about each decision."""
    now = database.now()
    found = DeliveryPlan()
    explained: dict[tuple[str, bytes | None, int], Explanation] = {}
    router = routes.router()
    for sender, decision in zip(senders, routes.decisions(database.name, senders), strict=True):
        _emit_classify_event(database, sender, decision)
        if decision.is_local and decision.target_database is not None:
            found.local.setdefault((decision.target_database, decision.broker_instance), []).append(sender)
        elif decision.next_hop_address is not None and has_transport:
            found.outgoing.append(OutgoingConversation(database, sender, decision))
        else:
            destination = (sender.far_service, sender.far_broker_instance, sender.is_initiator)
            if destination not in explained:  # one for all its conversations: there was no route to choose
                explained[destination] = explain(router, database.name, sender, now=now)
            is_mirror = decision.reason == "sender_disabled" and database.objects().broker.mirroring_role == "mirror"
            why = (
                transmission_status.database_is_mirror(database.name)
                if is_mirror
                else transmission_status.routing_problem(explained[destination])
            )
            found.problems[sender.endpoint_id] = why or transmission_status.other_failure("the route has just changed")
            request = missing_route(explained[destination], sender.far_service, sender.far_broker_instance)
            if request is not None:
                found.route_requests.setdefault(request, []).append(sender.endpoint_id)
    return found


def _emit_classify_event(database: DatabaseContext, sender: ConversationEndpoint, decision: Decision) -> None:
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
            at=database.instance.microseconds(),
            database=database.name,
            conversation_id=uuid.UUID(bytes=sender.conversation_id),
            classification=classification,
            to_service_name=sender.far_service,
            to_broker_instance=None if decision.broker_instance is None else uuid.UUID(bytes=decision.broker_instance),
            next_hop_address=decision.next_hop_address,
            reason=decision.reason,
        )
    )


SCAN_EVERY: Final = 4 * SECOND
"""Microseconds between two scans of a transmission queue for messages that another process has left there."""


class Delivery:
    """Delivers waiting messages from the transmission queues of an instance. Thread-safe.

    Attributes:
        transport: Sends messages to other instances; None if this process does not serve the instance. A signal handler or another
            thread may change it during a call.
    """

    def __init__(
        self,
        instance: InstanceContext,
        schedule: DeliverySchedule,
        *,
        routes: LiveRoutes,
        dynamic_routing: DynamicRouting,
    ) -> None:
        self._instance: Final = instance
        self._schedule: Final = schedule
        self._routes: Final = routes
        self._dynamic_routing: Final = dynamic_routing
        self._last_scans: dict[int, int] = {}
        # No RLocks: if a signal handler interrupts a thread just after it gets the lock or before it releases it, a WriteLock still
        # names its holder.
        self._delivery_locks: Final[dict[int, WriteLock]] = {}
        self._updates: Final[dict[int, SenderUpdates]] = {}
        """For each database, what has to be written to it. Only the holder of its delivery lock uses it."""
        self._thread_state: Final = _ThreadState()
        self.transport: Transport | None = None

    def deliver_sent(self, database: DatabaseContext, endpoint_ids: Collection[int], *, messages: int) -> bool:
        """Delivers messages that a transaction has put into the transmission queue, `messages` in all; a failed delivery is scheduled for a retry and raises no error.

        Returns True if another thread must continue immediately: the calling thread is in a transaction of any database,
        so that delivery could deadlock; or another transaction holds the write lock of a target database or of this
        database, or another thread is delivering from it, because a commit must not wait for them.
        """
        transport = self.transport
        if transport is None:
            self._instance.msdb.commit_signals.notify([TRANSMISSIONS_CHANNEL])
        elif not self._instance.events.wants(MessageClassify):
            endpoint_ids = transport.send_more(database, endpoint_ids, messages=messages)
            if not endpoint_ids:
                return False
        now = self._instance.microseconds()
        self._schedule.add((SenderId(database.database_id, each) for each in endpoint_ids), at=now)
        if any(each.file.is_locked_by_this_thread for each in self._instance.databases):
            return True
        if self._thread_state.is_delivering:  # a subscriber sends while it handles an event about a delivery
            self._thread_state.pending.append(database)
            return False
        return self._deliver_with_follow_ups(
            database, now=now, lock_wait=SHORT_LOCK_TIMEOUT if self._instance.background else None
        )

    def forget(self, sender: SenderId) -> None:
        """Forgets a removed sender whose id a new conversation has now."""
        self._schedule.forget(sender)
        transport = self.transport
        if transport is not None:
            transport.forget(sender)

    def run_due(self, *, now: int, lock_wait: LockWait = None) -> None:
        """Delivers messages that are new, were left by other processes, or are due for a retry."""
        if self._thread_state.is_delivering:  # called by a subscriber during a delivery
            return
        databases = self._instance.databases
        self._keep_databases({each.database_id for each in databases})
        for database in databases:
            try:
                self._scan_if_due(database, now=now)
            except SsbrokerError as error:  # the other databases do not wait
                log_failure(
                    database,
                    "the transmission queue could not be scanned for waiting messages; trying again later",
                    error,
                )
            self._deliver_with_follow_ups(database, now=now, lock_wait=lock_wait)

    def next_time(self) -> int | None:
        """Returns the time at which a delivery is due, past or future; None if nothing waits."""
        return 0 if any(list(self._updates.values())) else self._schedule.next_time()

    def _keep_databases(self, database_ids: Collection[int]) -> None:
        """Forgets all databases except those with the given ids: the instance no longer contains them."""
        self._schedule.keep_databases(database_ids)
        for by_database in (
            self._last_scans,
            self._delivery_locks,
            self._updates,
        ):  # a thread that delivers still releases its lock
            for dropped in set(by_database).difference(database_ids):  # other threads may add databases
                by_database.pop(dropped, None)

    def _scan_if_due(self, database: DatabaseContext, *, now: int) -> None:
        """Every few seconds, finds messages left by processes that have ended; gives running processes time to deliver their messages."""
        before = self._last_scans.get(database.database_id)
        if before is not None and 0 <= now - before < SCAN_EVERY:
            return
        self._last_scans[database.database_id] = now
        with database.file.read() as connection:
            found = conversation_endpoints.deliverable_endpoints(connection)
        at = now if before is None else now + SCAN_EVERY
        self._schedule.add((SenderId(database.database_id, each) for each in found), at=at)

    def _deliver_with_follow_ups(self, database: DatabaseContext, *, now: int, lock_wait: LockWait) -> bool:
        """Delivers due messages of a database, and messages that subscribers send meanwhile; returns whether another thread must continue."""
        is_left = False
        state = self._thread_state
        state.is_delivering, state.pending = True, [database]
        try:
            while state.pending:
                is_left |= self._deliver_exclusively(state.pending.pop(0), now=now, lock_wait=lock_wait)
        finally:
            state.is_delivering = False
        return is_left

    def _deliver_exclusively(self, database: DatabaseContext, *, now: int, lock_wait: LockWait) -> bool:
        """Delivers in one thread at a time per database; a thread that had to wait then finds its own messages delivered."""
        thread = get_ident()
        delivery_lock = self._delivery_locks.setdefault(database.database_id, WriteLock())
        try:
            wait = delivery_lock_timeout(lock_wait)
            # After an interrupt before the release below, this thread still holds the lock.
            if delivery_lock.holder != thread and not delivery_lock.acquire(timeout=wait):
                return True
            updates = self._updates.setdefault(database.database_id, SenderUpdates(database))
            if not self._write_earlier_updates(database, updates, lock_wait=lock_wait):
                return True
            attempts = self._schedule.claim(database.database_id, now=now)
            deferred = (
                self._deliver_and_schedule_retries(database, attempts, updates, now=now, lock_wait=lock_wait)
                if attempts
                else set()
            )
        finally:
            if delivery_lock.holder == thread:
                delivery_lock.release()
        self._schedule.add((SenderId(database.database_id, each) for each in deferred), at=now)
        return bool(deferred or updates)

    def _write_earlier_updates(self, database: DatabaseContext, updates: SenderUpdates, *, lock_wait: LockWait) -> bool:
        """Writes the updates of earlier deliveries; returns False if the database is still locked."""
        try:
            return updates.write(lock_wait)
        except SsbrokerError as error:
            log_failure(database, "the result of a delivery could not be recorded; retrying later", error)
            return not isinstance(error, LockTimeoutError)

    def _deliver_and_schedule_retries(
        self,
        database: DatabaseContext,
        attempts: Mapping[int, int],
        updates: SenderUpdates,
        *,
        now: int,
        lock_wait: LockWait,
    ) -> Collection[int]:
        """Delivers messages and schedules retries; returns the senders deferred because of locks."""
        failed: Collection[int] = attempts
        in_transit: Collection[int] = ()
        deferred: Collection[int] = ()
        try:
            failed, in_transit, deferred = self._route_and_deliver(database, attempts, updates, lock_wait=lock_wait)
        except SsbrokerError as error:
            log_failure(database, "messages could not be delivered; retrying later", error)
        except Exception:
            _LOGGER.exception("%s: messages could not be delivered; retrying later", database.name)
        finally:
            for endpoint_id in (*failed, *in_transit):
                key, is_in_transit = SenderId(database.database_id, endpoint_id), endpoint_id in in_transit
                self._schedule.schedule_retry(key, attempt=attempts[endpoint_id], now=now, is_in_transit=is_in_transit)
        return deferred

    def _route_and_deliver(
        self, database: DatabaseContext, endpoint_ids: Iterable[int], updates: SenderUpdates, *, lock_wait: LockWait
    ) -> tuple[set[int], set[int], set[int]]:
        """Delivers messages; returns the senders to retry, the senders in transit to other instances, and the senders deferred because of locks."""
        senders = _senders(database, endpoint_ids)
        transport = self.transport
        has_transport = transport is not None or self._is_served_elsewhere()
        planned = plan_delivery(self._routes, database, list(senders.values()), has_transport=has_transport)
        transport_problems = (
            transport.send_waiting(planned.outgoing) if planned.outgoing and transport is not None else {}
        )
        local = LocalDelivery(database, updates, lock_wait=lock_wait)
        local.problems |= planned.problems
        refused, deferred = self._request_routes(planned, lock_wait=lock_wait)
        local.problems |= refused
        for (name, broker_instance), group in planned.local.items():
            target = self._instance.database(name)
            local.deliver(target, broker_instance, [each.endpoint_id for each in group])
        in_transit = {each.endpoint_id for each in planned.outgoing}
        statuses = {endpoint_id: str(why) for endpoint_id, why in {**local.problems, **transport_problems}.items()}
        if transport is not None:  # otherwise the serving process writes their status
            statuses = dict.fromkeys(in_transit, NO_PROBLEM) | statuses
        updates.add_statuses(senders, statuses)
        updates.write(sender_wait(lock_wait))
        return local.problems.keys() - deferred, in_transit, local.deferred | deferred

    def _is_served_elsewhere(self) -> bool:
        """Returns whether another process serves the instance; that process notices this process's commits by itself."""
        return ServeLock.is_held(self._instance.folder)

    def _request_routes(
        self, planned: DeliveryPlan, *, lock_wait: LockWait
    ) -> tuple[dict[int, TransmissionStatus], set[int]]:
        """Requests missing routes (R14); returns the statuses of requests that were refused, and the senders whose request is deferred because of locks."""
        if not planned.route_requests:
            return {}, set()
        try:
            refused, deferred = self._dynamic_routing.request(planned.route_requests, lock_wait=lock_wait)
        except SsbrokerError as error:
            _LOGGER.warning("missing routes could not be requested; retrying later: %s", error)
            return {}, set()
        statuses = {
            endpoint_id: route_refused(request.service_name, refusal)
            for request, refusal in refused.items()
            for endpoint_id in planned.route_requests[request]
        }
        return statuses, {endpoint_id for request in deferred for endpoint_id in planned.route_requests[request]}


class _ThreadState(threading.local):
    """The state of a delivering thread."""

    def __init__(self) -> None:
        self.is_delivering = False
        self.pending: list[DatabaseContext] = []
        """The databases from which the thread has sent during a delivery."""


def _senders(database: DatabaseContext, endpoint_ids: Iterable[int]) -> dict[int, ConversationEndpoint]:
    """Returns the endpoints with waiting messages; highest priority first if the database honours priorities."""
    with database.file.read() as connection:
        found = [
            endpoint
            for endpoint_id in endpoint_ids
            if transmission_queue.has_outgoing(connection, endpoint_id)
            and (endpoint := conversation_endpoints.by_id(connection, endpoint_id)) is not None
        ]
        if database.objects(connection).broker.is_honor_broker_priority_on:
            found.sort(key=lambda each: -each.priority)
    return {each.endpoint_id: each for each in found}


def write_statuses(
    database: DatabaseContext,
    senders: Mapping[int, ConversationEndpoint],
    statuses: Mapping[int, str],
    *,
    lock_timeout: float,
) -> bool:
    """Writes changed transmission statuses of senders; returns False if the database stays locked."""
    updates = SenderUpdates(database)
    updates.add_statuses(senders, statuses)
    return updates.write(lock_timeout)
