"""Exchanges messages between the databases of an instance and other instances."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.background import Background
from ssbroker.broker.background_thread import wait_limit
from ssbroker.broker.commit_signals import OBJECTS_CHANNEL, TRANSMISSIONS_CHANNEL
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery import OutgoingConversation
from ssbroker.broker.delivery_schedule import SenderId
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus, keys_unavailable
from ssbroker.broker.network.addresses import route_addresses
from ssbroker.broker.network.conversations_in_transit import PAUSE_MAX, ConversationsInTransit, StatusWriter
from ssbroker.broker.network.database_dialogs import (
    FAILED_DATABASE_RETRY_INTERVAL,
    LOCAL,
    DatabaseDialogs,
    DialogRegistry,
    NextHop,
)
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.inbound import FirstRowCheck, InboundProcessor, InboundRouter
from ssbroker.broker.network.inbox import Inbox
from ssbroker.broker.network.interfaces import SEND_NOW_BYTES_MAX, Peer
from ssbroker.broker.network.mirrored_routes import MirroredRoutes
from ssbroker.broker.network.outbound import OutboundSender
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.settings import SECOND, ProtocolSettings
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason, MirroringRole, size_of
from ssbroker.store.write_lock import WriteLock

if TYPE_CHECKING:
    from ssbroker.broker.network.dialog_keys import DialogKeys
    from ssbroker.broker.network.interfaces import EndpointListener, NetworkEndpoint


FLUSH_INTERVAL: Final = 10 * SECOND
POLL_PAUSE_FACTOR: Final = 20
"""The time between the starts of two polls is this many times as long as a poll takes, up to `PAUSE_MAX`, but at least
the check interval. After an announcement, it is twice as long as a poll."""
OWN_ADDRESSES_MAX: Final = 100
"""The number of its own addresses that the instance learns by dialling them; peers can choose such addresses too."""
LOCKED_DATABASE_RETRY_INTERVAL: Final = SECOND // 10
"""The interval after which the next turn tries a batch again that a locked database has delayed, unless `LOCK_PAUSE` has not ended."""

RECEIVE_NOW_ROWS_MAX: Final = 16
"""The maximum number of rows that are written in the thread that receives them."""
RECEIVE_NOW_BYTES_MAX: Final = 64 << 10
"""The same limit as `RECEIVE_NOW_ROWS_MAX`, in bytes."""
YIELD_SECONDS: Final = 20e-6
"""How long a turn pauses after it has written 1 to `RECEIVE_NOW_ROWS_MAX` rows. The receiver that it has woken needs
the interpreter lock, which it would otherwise get only at the end of the turn."""
SEND_NOW_MESSAGES_MAX: Final = 16
"""The maximum number of messages that a thread sends itself after it has committed them. Their number times the mean
size of the rows that were sent last must also be at most `SEND_NOW_BYTES_MAX`. Otherwise, the next turn sends them."""
WAITING_DROPS_MAX: Final = 64
"""The maximum number of waiting frames with reasons for dropped rows."""
_LOGGER: Final = logging.getLogger("ssbroker.broker")
Result = TypeVar("Result")


class Wake(Protocol):
    """Schedules a call of `MessageExchange.turn`."""

    def __call__(self, at: int | None = None, /) -> None:
        """Schedules the call for a time, in microseconds since 1970, or earlier; None means immediately."""


class MessageExchange:
    """Exchanges messages between the databases of a serving instance and its connections.

    `send_waiting`, `send_more`, `forget`, `finish`, `close` and the methods of `EndpointListener` may be called from any thread; the rest belongs to the
    exchange's thread, which calls `turn`. The listener's methods leave all work on dialogs to this thread, except the writing of received rows.

    Args:
        instance: The instance.
        background: The background work of the instance.
        new_network_endpoint: Creates the network endpoint for a listener.
        settings: The settings of the protocol.
        keys: Agrees on the session keys of dialogs.
        forwarding_limit: Returns the maximum size, in bytes, of messages that are held for other instances.
        wake: Schedules a turn.

    Attributes:
        endpoint: The network endpoint.
        mirrors: The principals of mirrored routes.
        forwarding: Forwards messages for other instances.
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        *,
        new_network_endpoint: Callable[[EndpointListener], NetworkEndpoint],
        settings: ProtocolSettings,
        keys: DialogKeys,
        forwarding_limit: Callable[[], int],
        wake: Wake,
    ) -> None:
        self._instance: Final = instance
        self._commit_signals: Final = instance.msdb.commit_signals
        self._background: Final = background
        self._wake: Final = wake
        self._callbacks: Final[deque[Callable[[], None]]] = deque()
        self._drops: Final[deque[tuple[str, Mapping[EndpointKey, DropReason]]]] = deque(maxlen=WAITING_DROPS_MAX)
        self.endpoint: Final = new_network_endpoint(self)
        self._inbox: Final = Inbox(
            pause=self.endpoint.pause, resume=self.endpoint.resume, holds_large_messages=instance.background
        )
        self.mirrors: Final = MirroredRoutes(
            instance, self.endpoint, changed=lambda pair: self._post(partial(self._mirrors_changed, pair[:2]))
        )
        self.forwarding: Final = MessageForwarder(
            self.endpoint,
            resolve_mirror=self.mirrors.resolve,
            max_bytes=forwarding_limit,
            events=instance.events,
            clock=instance.microseconds,
        )
        self._settings: Final = settings
        self._snapshot: object = None
        self._flushed_at = self._polled_at = 0
        self._followed_from = self._followed_until = 0
        self._changes_seen = -1
        self._is_active = False
        self._own_addresses: Final[set[str]] = set()
        self._writable: Final[dict[str, None]] = {}
        self._forwards_first = False
        self._poll_duration = 0
        self._has_poll_failed = False
        self._announcements_seen = -1
        # Held by the thread that uses the dialogs. After an interrupt of that thread, this lock is free or still names it as the holder.
        self._guard: Final = WriteLock()
        self._is_finished = False
        closed: set[NextHop] = set()
        self._in_transit: Final = ConversationsInTransit(principal_address=self.mirrors.principal_address)
        self._status_writer: Final = StatusWriter(self._in_transit, clock=self._instance.microseconds)
        self._dialogs: Final = DialogRegistry(
            instance, background, settings=settings, keys=keys, closed=closed, mirrors=self.mirrors
        )
        self._router: Final = InboundRouter(
            instance,
            background,
            self._dialogs,
            forwards=self.forwarding,
            report_drops=self.endpoint.report_drops,
        )
        self._processor: Final = InboundProcessor(
            self._dialogs, self._router, FirstRowCheck(keys, self._router), self._in_transit, events=instance.events
        )
        this_instance = Peer(instance.instance_id, instance.name, None, LOCAL, uuid.UUID(int=0), False)
        self._sender: Final = OutboundSender(
            instance,
            self.endpoint,
            self._dialogs,
            closed=closed,
            # Stops forwarding to the address, so that this instance's own messages get the space.
            on_full=self.forwarding.outbox_full,
            loop_back=partial(self._inbox.put, this_instance),
        )

    def send_waiting(self, conversations: Sequence[OutgoingConversation]) -> Mapping[int, TransmissionStatus]:
        """See `broker.delivery.Transport`."""
        blocked = self._in_transit.add(conversations, now=self._instance.microseconds())
        self._wake()
        return blocked

    def send_more(self, database: DatabaseContext, endpoint_ids: Collection[int], *, messages: int) -> list[int]:
        """See `broker.delivery.Transport`. Sends a few messages in the caller's thread, unless the exchange is busy; the next turn sends the rest."""
        needs_turn = True
        try:
            others = self._in_transit.add_more(database.database_id, endpoint_ids)
            is_small = messages <= SEND_NOW_MESSAGES_MAX and messages * self._sender.row_bytes <= SEND_NOW_BYTES_MAX
            if len(others) == len(endpoint_ids) or self._sender.is_delaying:  # a turn follows when the delay ends
                needs_turn = False
            elif is_small:
                needs_turn = not self._send_now()
        finally:  # also after an interrupt
            if needs_turn:
                self._wake()
        return others

    def forget(self, sender: SenderId) -> None:
        """See `broker.delivery.Transport`."""
        self._in_transit.forget(sender)

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        """Writes a few messages of established dialogs in the caller's thread, unless it would have to wait; leaves all others to the next turn."""
        if not self._receive_now(peer, rows) and self._inbox.put(peer, rows):
            self._wake()

    def outbox_drained(self, address: str) -> None:
        """See `EndpointListener`."""
        self._post(partial(self._resume_sending, address))

    def connection_failed(self, address: str, why: str) -> None:
        """See `EndpointListener`."""
        self._post(partial(self._lose_connection, address, why))

    def connected(self, address: str, peer: Peer) -> None:
        """See `EndpointListener`."""
        self._post(partial(self._use_connection, address, peer))

    def own_address_reached(self, address: str) -> None:
        """See `EndpointListener`."""
        self._post(partial(self._add_own_address, address))

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """See `EndpointListener`."""
        return self.mirrors.mirroring_roles(broker_instances)

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """See `EndpointListener`."""
        self._post(partial(self.mirrors.role_received, address, broker_instance, role, number))

    def rows_dropped(self, address: str, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """See `EndpointListener`."""
        self._drops.append((address, reasons))
        self._wake()

    def _post(self, callback: Callable[[], None]) -> None:
        """Schedules a callback in the exchange's thread."""
        self._callbacks.append(callback)
        self._wake()

    def turn(self) -> int:
        """Processes everything that is due; returns when to call it again (in microseconds since 1970), unless woken earlier."""
        if self._is_finished:
            return self._instance.microseconds() + self._check_interval
        return self._turn() if self._guard.is_held_by_this_thread else self._exclusively(self._turn)

    def _exclusively(self, work: Callable[[], Result]) -> Result:
        """Calls a function when no other thread uses the dialogs."""
        thread = get_ident()
        try:
            self._guard.acquire(timeout=math.inf)
            return work()
        finally:
            if self._guard.holder == thread:
                self._guard.release()

    def _turn(self) -> int:
        now = self._instance.microseconds()
        while self._callbacks:
            self._callbacks.popleft()()
        while self._drops:
            self._rows_dropped(*self._drops.popleft(), now=now)
        self._follow_catalog(now)
        held_until = self._inbox.release_due(now)
        is_busy = not self._inbox.is_empty or self._in_transit.has_new
        if not is_busy:
            self._poll_if_due(now)
        batches = self._inbox.take()
        deferred = self._processor.process(batches, now=now)
        self._inbox.put_back(deferred)
        self._yield_to_receivers(sum(rows.num_rows for _, rows in batches))
        self._start_conversations()
        due_times = [held_until, self._status_writer.write(now=now)]
        self._forwards_first ^= bool(self._writable)  # alternate, so that neither sending nor forwarding starves
        if self._forwards_first:
            self._resume_forwarding()
        due_times += self._sender.send_all(now=now)
        self._resume_forwarding()
        due_times += [hook.run_due(now=self._instance.microseconds()) for hook in (self.forwarding, self.mirrors)]
        if not 0 <= now - self._flushed_at < FLUSH_INTERVAL:
            self._flushed_at = now
            self._flush(now)
        if is_busy:
            self._poll_if_due(now)
        if deferred:
            due_times.append(now + LOCKED_DATABASE_RETRY_INTERVAL)
        elif self._needs_turn:
            due_times.append(now)
        if self._is_poll_wanted or self._has_poll_failed:
            due_times.append(self._polled_at + self._poll_interval)
        due_times += [self._followed_until, self._flushed_at + FLUSH_INTERVAL]
        return min([now + self._longest_pause(), *(each for each in due_times if each is not None)])

    def _longest_pause(self) -> int:
        """Returns the longest time until the next turn.

        During traffic, this is the time until an acknowledgement of the next message becomes due, because the thread must wake by then.
        """
        is_active = self._is_active or self._sender.sent_rows > 0
        self._is_active = False
        return min(self._settings.acknowledgement_wait, self._check_interval) if is_active else self._check_interval

    def _resume_sending(self, address: str) -> None:
        """Resumes sending to an address whose buffer has space again."""
        self._sender.open(address)
        self._writable[address] = None

    def _lose_connection(self, address: str, why: str) -> None:
        """Handles an address that cannot be reached or whose connection broke."""
        self._in_transit.mark_unreachable(address, why)
        self._sender.retransmit(address)
        self.forwarding.connection_failed(address, why)
        self.mirrors.connection_failed(address)
        self._status_writer.mark_changed([address])

    def _use_connection(self, address: str, peer: Peer) -> None:
        """Handles an address that has been reached."""
        self._in_transit.mark_reachable(address)
        self.forwarding.connected(address, peer)
        self._resume_sending(address)
        self.mirrors.connected(address)
        self._status_writer.mark_changed([address])

    def _add_own_address(self, address: str) -> None:
        """Handles an address that turned out to belong to this instance (R41)."""
        if len(self._own_addresses) < OWN_ADDRESSES_MAX:  # each new address makes all dialogs route again
            self._own_addresses.add(address)
            self._background.catalog.add_addresses([address])
            self._followed_until = 0
        else:  # nothing else reroutes the messages that wait for this address
            self.forwarding.connection_failed(address, "it is an address of this instance")

    def _mirrors_changed(self, addresses: Collection[str]) -> None:
        """Handles a change to the principals of mirrored routes."""
        self._sender.open_mirrored()
        self.forwarding.mirrors_changed()
        self._status_writer.mark_changed(addresses)

    def finish(self) -> None:
        """Processes everything received, and acknowledges it without waiting for a message to carry the acknowledgement.

        A signal handler may close the server during a call that the exchange's thread waits for. Then nothing is
        processed, and the senders resend unacknowledged messages.
        """
        self._is_finished = True
        # The caller may be a subscriber, or a signal handler that has interrupted `_send_now`.
        if self._guard.is_held_by_this_thread:
            return
        thread = get_ident()
        try:
            if self._guard.acquire(timeout=wait_limit()):
                self._finish()
        finally:
            if self._guard.holder == thread:
                self._guard.release()

    def _finish(self) -> None:
        self._sender.cancel_delay()
        self._inbox.release_all()
        self._turn()
        while not self._inbox.is_empty and not self._processor.process(
            self._inbox.take(), now=self._instance.microseconds()
        ):
            pass
        now = self._instance.microseconds() + self._settings.acknowledgement_wait
        for dialogs in self._dialogs.all():
            self._sender.send(dialogs, now=now)

    def close(self) -> None:
        """Closes the file watches."""
        self._dialogs.close()

    @property
    def _check_interval(self) -> int:
        """The time between two checks for unannounced messages and changed objects of other processes; slow polls make it longer."""
        return int(self._commit_signals.check_interval * SECOND)

    @property
    def _poll_interval(self) -> int:
        """The time between the starts of two polls; the longer a poll takes, the less often it runs."""
        shortest = min(2 * self._poll_duration, PAUSE_MAX)
        if self._is_poll_wanted:
            return shortest
        interval = max(self._check_interval, min(POLL_PAUSE_FACTOR * self._poll_duration, PAUSE_MAX))
        return min(interval, max(shortest, FAILED_DATABASE_RETRY_INTERVAL)) if self._has_poll_failed else interval

    @property
    def _is_poll_wanted(self) -> bool:
        """Whether messages or changed objects were announced since the last poll."""
        return self._commit_signals.count(TRANSMISSIONS_CHANNEL) != self._announcements_seen

    def _receive_now(self, peer: Peer, rows: pa.Table) -> bool:
        """Writes a small batch immediately, in the calling thread; returns whether the rows were taken over.

        Does nothing if the batch is large, its dialogs are not loaded, other work (such as the inbox) comes first, or a
        database is locked. Rows that a lock still prevents from being written go to the inbox.
        """
        is_small = rows.num_rows <= RECEIVE_NOW_ROWS_MAX and size_of(rows) <= RECEIVE_NOW_BYTES_MAX
        if not is_small or not self._instance.background or not self._guard.try_acquire(get_ident()):
            return False
        try:
            now, all_dialogs = self._instance.microseconds(), self._dialogs.all()
            if (
                self._has_other_work(now)
                or any(each.database.file.write_lock.holder is not None for each in all_dialogs)
                or not self._router.are_for_loaded_dialogs(rows)
            ):
                return False
            deferred = self._processor.process([(peer, rows)], now=now, lock_timeout=0.0)
            self._inbox.put_back(deferred)
            self._is_active = True
            due_times = [each.engine.next_timeout() for each in all_dialogs]
            due_times.append(self.forwarding.run_due(now=now))
        finally:
            self._guard.release()
        self._schedule(due_times)
        return True

    def _send_now(self) -> bool:
        """Sends everything that is due, unless another thread uses the dialogs or other work comes first; returns whether nothing is left to do.

        The calling thread may be the main thread, where a signal handler may run at any point, and commit or close the server. If an
        exception interrupts the sending, all dialogs are dropped, and the next turn creates them from their databases, as after a restart.
        """
        thread = get_ident()
        if not self._instance.background or self._guard.is_held_by_this_thread:  # further up the stack
            return False
        try:
            now = self._instance.microseconds()
            if not self._guard.try_acquire(thread) or self._has_other_work(now):
                return False
            all_dialogs = self._dialogs.all()
            if any(each.database.file.is_locked_by_this_thread for each in all_dialogs):
                return False
            try:
                self._start_conversations()
                due_times = self._sender.send_all(now=now)
                due_times.append(self.mirrors.run_due(now=now))
                self._is_active = True
            except BaseException as error:
                self._announcements_seen = -1  # the next turn polls, and finds messages that were taken but not sent
                for dialogs in all_dialogs:
                    self._dialogs.drop(dialogs)
                if not isinstance(error, Exception):
                    raise
                _LOGGER.exception("committed messages could not be sent immediately; trying again")
                return False
        finally:
            if self._guard.holder == thread:
                self._guard.release()
        self._schedule(due_times)
        return True

    def _has_other_work(self, now: int) -> bool:
        """Returns whether a turn must come before anything can be received or sent at once."""
        is_busy = bool(self._callbacks or self._drops or self._writable)
        is_receiving = self._inbox.is_holding or not self._inbox.is_empty
        return self._is_finished or is_busy or is_receiving or not self._is_catalog_followed(now)

    @property
    def _needs_turn(self) -> bool:
        """Whether a turn must run immediately."""
        has_new = self._in_transit.has_new and not self._sender.is_delaying
        return bool(has_new or not self._inbox.is_empty or self._dialogs.needs_refresh or self._callbacks)

    def _schedule(self, due_times: Iterable[int | None]) -> None:
        """Schedules a turn for the earliest of the times, or immediately if something is left to do."""
        due = min((each for each in due_times if each is not None), default=None)
        if self._needs_turn or self._status_writer.is_due:
            self._wake()
        elif due is not None:
            self._wake(due)

    def _yield_to_receivers(self, rows: int) -> None:
        if 0 < rows <= RECEIVE_NOW_ROWS_MAX and self._instance.background:
            time.sleep(YIELD_SECONDS)

    def _follow_catalog(self, now: int) -> None:
        """Routes every dialog again if the catalog has changed."""
        if self._is_catalog_followed(now):
            return
        changes = self._commit_signals.count(OBJECTS_CHANNEL)
        snapshot = self._background.routes.snapshot
        if snapshot is not self._snapshot or self._dialogs.needs_refresh or self._dialogs.is_waiting_for_lock:
            if self._snapshot is not None:
                self._in_transit.clear()
            self.endpoint.set_routed_addresses(route_addresses(self._background.catalog.catalog().routes))
            self._dialogs.refresh()
            for dialogs in self._dialogs.all():
                dialogs.reroute()
            self.forwarding.reroute(self._router.decisions)
            self._snapshot = snapshot  # set at the end, so that after an error the next turn repeats all of this
        expiry = snapshot.valid_until
        until = now + self._check_interval
        if self._dialogs.is_waiting_for_lock:
            until = min(until, now + FAILED_DATABASE_RETRY_INTERVAL)
        self._followed_until = until if expiry is None else min(until, epoch_microseconds(expiry))
        self._followed_from, self._changes_seen = now, changes

    def _is_catalog_followed(self, now: int) -> bool:
        """Returns whether the catalog was read within the check interval, no route has expired since, and no process has reported a change."""
        is_recent = self._followed_from <= now < self._followed_until
        is_unchanged = self._commit_signals.count(OBJECTS_CHANNEL) == self._changes_seen
        return is_recent and is_unchanged and not self._dialogs.needs_refresh

    def _poll_if_due(self, now: int) -> None:
        """Collects the messages that any process has committed since the last poll."""
        if 0 <= now - self._polled_at < self._poll_interval:
            return
        self._announcements_seen = self._commit_signals.count(TRANSMISSIONS_CHANNEL)
        self._has_poll_failed = False
        started = self._instance.microseconds()
        for dialogs in self._dialogs.all():
            try:
                sent = partial(self._in_transit.sent_up_to, dialogs.database.database_id)
                found = self._dialogs.newly_waiting(dialogs, sent)
            except SsbrokerError as error:
                log_failure(dialogs.database, "waiting messages could not be read; trying again later", error)
                self._has_poll_failed = True
                continue
            if found:
                self._in_transit.add(found, now=now)
                self._followed_until = 0  # these messages may have been committed after the catalog changed
        self._polled_at, self._poll_duration = now, self._instance.microseconds() - started
        self._follow_catalog(now)

    def _start_conversations(self) -> None:
        """Starts sending newly committed messages whose keys are ready."""
        for database_id, conversations in self._in_transit.take().items():
            dialogs = self._dialogs.by_id(database_id)
            if dialogs is not None:
                ready = [key for key, outgoing in conversations.items() if self._may_send(dialogs, key, outgoing)]
                dialogs.engine.notify_queued(ready)

    def _may_send(self, dialogs: DatabaseDialogs, key: EndpointKey, outgoing: OutgoingConversation) -> bool:
        database = dialogs.database
        try:
            blocked_by = dialogs.prepare_keys(outgoing.sender)
        except SsbrokerError as error:
            log_failure(database, "the keys of a conversation could not be prepared; its messages wait", error)
            blocked_by = keys_unavailable(str(error))
        self._in_transit.set_blocked(database.database_id, key, blocked_by)
        if blocked_by is not None:
            self._status_writer.mark_changed()
        return blocked_by is None

    def _rows_dropped(self, address: str, reasons: Mapping[EndpointKey, DropReason], *, now: int) -> None:
        for dialogs in self._dialogs.all():
            self._in_transit.set_drop_reasons(dialogs.database.database_id, address, reasons, now=now)
        self._status_writer.mark_changed([address])

    def _resume_forwarding(self) -> None:
        """Resumes forwarding to addresses that have space again."""
        for address in self._writable:
            self.forwarding.outbox_drained(address)
        self._writable.clear()

    def _flush(self, now: int) -> None:
        self._instance.events.log_suppressed(now=now)
        self._in_transit.remove_idle(now=now)
        self._dialogs.needs_refresh |= self._dialogs.has_failed
        for dialogs in self._dialogs.all():
            try:
                dialogs.flush(now=now)
            except SsbrokerError as error:
                log_failure(
                    dialogs.database, "idle dialogs could not be written to the database; trying again later", error
                )
