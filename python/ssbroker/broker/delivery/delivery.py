"""Gets messages from SEND to the queue: hands over what waits in a transmission queue, and says why the rest stays (B9)."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ssbroker import moment
from ssbroker.broker.delivery.planning import Plan, plan
from ssbroker.broker.delivery.retries import Key, Retries
from ssbroker.broker.delivery.round import Round
from ssbroker.broker.delivery.transport import Transport
from ssbroker.broker.dialogs.status import DELIVERED, Status, route_refused
from ssbroker.broker.failing import told_failure
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.broker.work.own_work import own_work
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.events import MessageClassify
from ssbroker.protocol.retry import SECOND
from ssbroker.store import due, endpoints, transmission
from ssbroker.store.endpoints import Endpoint

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance

PATIENCE: Final = 0.1
"""The seconds for which a thread that has committed waits for others; after that, the instance's own thread delivers."""
SCAN_EVERY: Final = 4 * SECOND
"""After so many microseconds a transmission queue is looked through for what another process has left there."""
LOGGER: Final = logging.getLogger("ssbroker.broker")


class Delivery:
    """Delivers what waits in the transmission queues of an instance. For any number of threads.

    Attributes:
        transport: What carries messages to other instances; None where there is no endpoint.
    """

    def __init__(self, instance: Instance, retries: Retries) -> None:
        self._instance: Final = instance
        self._retries: Final = retries
        self._scanned: dict[int, int] = {}
        self._turns: Final[dict[int, threading.RLock]] = defaultdict(threading.RLock)
        self._thread: Final = _Thread()
        self.transport: Transport | None = None

    def sent(self, database: Database, endpoint_ids: Collection[int]) -> bool:
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
        now = moment.microseconds(self._instance.clock())
        self._retries.add((Key(database.database_id, each) for each in endpoint_ids), at=now)
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
                told_failure(database, "what waits could not be looked for", error)
            self._deliver(database, now=now, patience=None)

    def _scan(self, database: Database, *, now: int) -> None:
        """Finds what a process left that has ended. Another one that goes on delivers by itself, and is given the time for it."""
        before = self._scanned.get(database.database_id)
        if before is not None and 0 <= now - before < SCAN_EVERY:
            return
        self._scanned[database.database_id] = now
        with database.file.read() as connection:
            found = due.outbound(connection)
        at = now if before is None else now + SCAN_EVERY
        self._retries.add((Key(database.database_id, each) for each in found), at=at)

    def _deliver(self, database: Database, *, now: int, patience: float | None) -> bool:
        """Delivers what is due of a database, and what subscribers send meanwhile; whether somebody with more time has to go on."""
        is_left = False
        self._thread.left = [database]
        while self._thread.left:
            is_left |= self._take_turn(self._thread.left.pop(0), now=now, patience=patience)
        return is_left

    def _take_turn(self, database: Database, *, now: int, patience: float | None) -> bool:
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
        self._retries.add((Key(database.database_id, each) for each in later), at=now)
        return bool(later)

    def _try(
        self, database: Database, attempts: Mapping[int, int], *, now: int, patience: float | None
    ) -> Collection[int]:
        """Delivers what can be, and has the rest tried again; the senders that were left to somebody with more time."""
        failed: Collection[int] = attempts
        carried: Collection[int] = ()
        later: Collection[int] = ()
        try:
            failed, carried, later = self._round(database, attempts, patience=patience)
        except SsbrokerError as error:
            told_failure(database, "messages could not be delivered, and are tried again", error)
        except Exception:
            LOGGER.exception("%s: messages could not be delivered, and are tried again", database.name)
        finally:
            for endpoint_id in (*failed, *carried):
                key, is_carried = Key(database.database_id, endpoint_id), endpoint_id in carried
                self._retries.failed(key, attempt=attempts[endpoint_id], now=now, is_carried=is_carried)
        return later

    def _round(
        self, database: Database, endpoint_ids: Iterable[int], *, patience: float | None
    ) -> tuple[set[int], set[int], set[int]]:
        """Delivers what can be; the senders that are to be tried again, those that are carried, and those that were left."""
        senders = _senders(database, endpoint_ids)
        has_transport = self.transport is not None or self._is_served_elsewhere()
        planned = plan(self._instance.worker.ways, database, list(senders.values()), has_transport=has_transport)
        hindered = self.transport.carry(planned.outgoing) if planned.outgoing and self.transport is not None else {}
        deliveries = Round(database, patience=patience)
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

    def _ask(self, planned: Plan, *, patience: float | None) -> dict[int, Status]:
        """Asks for the routes that are missing (R14); what is said of those that were refused."""
        if not planned.asks:
            return {}
        try:
            refused = self._instance.worker.dynamic_routing.ask(planned.asks, patience=patience)
        except SsbrokerError as error:
            LOGGER.warning("missing routes could not be asked for, and are at the next try: %s", error)
            return {}
        return {
            endpoint_id: route_refused(ask.service_name, refusal)
            for ask, refusal in refused.items()
            for endpoint_id in planned.asks[ask]
        }


class _Thread(threading.local):
    """What a thread does now."""

    def __init__(self) -> None:
        self.is_delivering = False
        self.left: list[Database] = []
        """The databases from which it has sent meanwhile."""


def _senders(database: Database, endpoint_ids: Iterable[int]) -> dict[int, Endpoint]:
    """The endpoints that have messages waiting; the highest priority first where the database honours it (fact 150)."""
    with database.file.read() as connection:
        found = [
            endpoint
            for endpoint_id in endpoint_ids
            if transmission.is_waiting(connection, endpoint_id)
            and (endpoint := endpoints.by_id(connection, endpoint_id)) is not None
        ]
        if database.objects(connection).broker.is_honor_broker_priority_on:
            found.sort(key=lambda each: -each.priority)
    return {each.endpoint_id: each for each in found}


def note(
    database: Database, senders: Mapping[int, Endpoint], says: Mapping[int, str], *, lock_timeout: float | None = None
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
    with own_work(database, lock_timeout=lock_timeout) as work:
        for endpoint_id, status in new.items():
            if endpoints.as_now(work.connection, senders[endpoint_id]) is not None:
                endpoints.set_status(work.connection, endpoint_id, status)
