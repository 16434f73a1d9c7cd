"""The dialogs of each database with other instances: next hops, keys, and the broker ids that first messages name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery import OutgoingConversation
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.dynamic_routing import REQUESTS_BURST, REQUESTS_PER_SECOND, missing_routes
from ssbroker.broker.live_routes import Decision, RouteQuery
from ssbroker.broker.lock_patience import LockPatience
from ssbroker.broker.network.dialog_keys import EXCHANGE_LOCK_TIMEOUT, DialogKeys, PendingKeyExchanges
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.inbound_writer import StalePlanError
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.exceptions import LockTimeoutError, SsbrokerError, StorageError
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import ENVELOPE, SenderKey, sender_runs
from ssbroker.protocol.settings import SECOND, ProtocolSettings
from ssbroker.protocol.storage import BatchChanges, EndpointKey, SessionKeys
from ssbroker.protocol.wire.frames import to_wire_rows
from ssbroker.store import conversation_endpoints, transmission_queue
from ssbroker.store.connection_pool import CommitWatch

if TYPE_CHECKING:
    from ssbroker.broker.network.mirrored_routes import MirroredRoutes
    from ssbroker.store.conversation_endpoints import ConversationEndpoint


class UnresolvedMirror(NamedTuple):
    """A mirrored route whose principal is unknown, as a next hop: messages for it wait until the principal is known."""

    address: str
    mirror_address: str
    broker_instance: bytes | None


NextHop: TypeAlias = str | UnresolvedMirror
"""Where rows of a dialog go next: an address, `LOCAL`, `NOWHERE`, or a mirrored route whose principal is unknown."""
LOCAL: Final = "LOCAL"
"""The next hop of messages for a database of this instance."""
NOWHERE: Final = "NOWHERE"
"""The next hop of messages without a route; it opens when the catalog changes."""


class DialogsByNextHop:
    """Groups the dialogs of one database by next hop: an address, or a mirrored route while its principal is unknown."""

    def __init__(self, dialogs: DialogEngine) -> None:
        self._dialogs: Final = dialogs
        self._keys: dict[Hashable, set[EndpointKey]] = {}

    def assign(self, key: EndpointKey, next_hop: NextHop) -> None:
        """Assigns a dialog to a next hop."""
        if self._dialogs.next_hop_of(key) != next_hop:
            self.forget([key])
            self._keys.setdefault(next_hop, set()).add(key)
            self._dialogs.assign(key, next_hop)

    def keys(self, next_hop: NextHop) -> set[EndpointKey]:
        """Returns the dialogs of a next hop."""
        return self._keys.get(next_hop, set())

    def unresolved_mirrors(self) -> list[UnresolvedMirror]:
        """Returns the mirrored routes that dialogs wait for."""
        return [each for each, keys in self._keys.items() if keys and isinstance(each, UnresolvedMirror)]

    def retransmit(self, next_hop: NextHop) -> None:
        """Retransmits everything in transit to a next hop."""
        self._dialogs.retransmit(self.keys(next_hop))

    def forget(self, keys: Iterable[EndpointKey]) -> None:
        """Removes dialogs whose next hop has to be determined again."""
        for key in keys:
            if (next_hop := self._dialogs.next_hop_of(key)) is not None:
                self._keys[next_hop].discard(key)
                self._dialogs.assign(key, None)

    def retain(self, is_kept: Callable[[EndpointKey], bool]) -> None:
        """Removes the dialogs that are no longer in memory."""
        self.forget([key for keys in self._keys.values() for key in keys if not is_kept(key)])
        self._keys = {next_hop: keys for next_hop, keys in self._keys.items() if keys}

    def clear(self) -> None:
        """Removes all dialogs."""
        self.retain(lambda _: False)


ROWS_MAX: Final = 1024
"""The approximate maximum number of rows that one call of `data_to_send` returns."""
BYTES_MAX: Final = 1 << 20
"""The approximate maximum number of body bytes that one call of `data_to_send` returns."""
FAILED_DATABASE_RETRY_INTERVAL: Final = SECOND
"""The interval after which a database that could not be used is tried again."""
_REMOTE: Final = "REMOTE"


@dataclass(frozen=True, slots=True)
class OutboundRows:
    """Rows for one next hop.

    Attributes:
        next_hop: An address, or `LOCAL`.
        rows: The rows (`wire.frames.WIRE`).
        keys: The sending endpoints.
    """

    next_hop: str
    rows: pa.Table
    keys: set[EndpointKey]


class DatabaseDialogs:
    """The dialogs of a database. For one thread at a time.

    Attributes:
        database: The database.
        engine: The protocol engine.
        storage: The durable state.
        next_hops: The next hops of the dialogs.
        key_exchanges: The key exchange blobs that remote endpoints have not confirmed yet.
    """

    def __init__(
        self,
        database: DatabaseContext,
        background: Background,
        *,
        settings: ProtocolSettings,
        keys: DialogKeys,
        closed: set[NextHop],
        mirrors: MirroredRoutes,
        lock_timeout: float | None = None,
    ) -> None:
        instance = database.instance
        self._background: Final = background
        self.database: Final = database
        self.storage: Final = SqliteDialogStorage(
            database, route_brokers=self._route_brokers, lock_timeout=lock_timeout
        )
        self._unbound: dict[EndpointKey, tuple[RouteQuery, bytes | None]] = {}
        # Used only for jitter, for each batch; the operating system's generator would be too slow.
        random = Random(instance.random.getrandbits(64))  # noqa: S311
        self.engine: Final = DialogEngine(
            self.storage, random=random.random, settings=settings, log=instance.events, closed_hops=closed
        )
        self.next_hops: Final = DialogsByNextHop(self.engine)
        self.key_exchanges: Final = PendingKeyExchanges(database, keys)
        self._mirrors: Final = mirrors
        self._closed: Final = closed
        self._decisions: dict[SenderKey, tuple[RouteQuery, Decision]] = {}
        self._limiter: Final = RateLimiter(burst=REQUESTS_BURST, per_second=REQUESTS_PER_SECOND)

    def prepare_keys(self, sender: ConversationEndpoint) -> TransmissionStatus | None:
        """Prepares the keys of an endpoint; returns the status that blocks its messages, if any."""
        waits = self.key_exchanges.prepare(sender)
        key = (sender.conversation_id, bool(sender.is_initiator))
        if waits is None and sender.session_key is None and self.key_exchanges.has_blob(key):
            self.engine.forget([key])  # the engine may have loaded the endpoint before it had a key
        return waits

    def receive(
        self,
        rows: pa.Table,
        *,
        peer: bytes | None,
        session_keys: SessionKeys,
        now: int,
        lock_timeout: float = EXCHANGE_LOCK_TIMEOUT,
    ) -> BatchChanges:
        """Receives rows and commits the result; waits up to `lock_timeout` seconds for other writers.

        Raises `StalePlanError` if other writers have changed the endpoints in the meantime: then receive the rows again.
        After an error, nothing has changed.
        """
        changes = self.engine.receive(rows.select(ENVELOPE.names), now=now, peer=peer, session_keys=session_keys)
        try:
            self.storage.commit(changes, lock_timeout=lock_timeout)
        except BaseException as error:
            self.engine.undo(changes)
            if isinstance(error, StalePlanError):
                self.engine.forget(error.keys)
                self.engine.notify_queued(error.keys)
            raise
        self.engine.confirm(changes, now=now)
        for endpoint in changes.bound:
            self.next_hops.forget([endpoint.key])
            self._unbound.pop(endpoint.key, None)
        self.key_exchanges.confirm((*changes.acknowledged, *(endpoint.key for endpoint in changes.bound)))
        return changes

    def without_route(self, keys: Iterable[EndpointKey]) -> set[EndpointKey]:
        """Returns those of the given endpoints whose last rows had no route."""
        held = self.next_hops.keys(NOWHERE)
        return held.intersection(keys) if held else set()

    def change_certificates(self, keys: Iterable[EndpointKey]) -> None:
        """Handles changed certificates of remote endpoints."""
        keys = list(keys)
        self.key_exchanges.discard(keys)
        self.engine.reload(keys)

    def data_to_send(self, *, now: int) -> list[OutboundRows] | None:
        """Returns the rows to send now, by next hop; omits rows that have no route. None if nothing is due."""
        rows = self.engine.data_to_send(now=now, max_rows=ROWS_MAX, max_bytes=BYTES_MAX)
        if rows is None:
            return None
        try:
            return self._assign_next_hops(rows, now=now)
        except BaseException:
            self.engine.return_unsent(rows, now=now)
            raise

    def _assign_next_hops(self, rows: pa.Table, *, now: int) -> list[OutboundRows]:
        """Returns rows of the engine by next hop, with their key exchange blobs; omits rows that have no route."""
        senders, are_plain = sender_runs(rows)
        next_hops = self._next_hops(rows, senders)
        blobs = (
            pa.nulls(rows.num_rows, pa.binary()) if are_plain else self.key_exchanges.key_exchange_column(rows, now=now)
        )
        wire_rows = to_wire_rows(rows, now=now, key_exchanges=blobs)
        next_hop, *others = {*next_hops.values()}
        if not others:
            return [] if next_hop is None else [OutboundRows(next_hop, wire_rows, {each[:2] for each in next_hops})]
        return [
            OutboundRows(next_hop, wire_rows.take(pa.array(numbers, pa.int64())), keys)
            for next_hop, (numbers, keys) in _group_by_hop(senders, next_hops).items()
        ]

    def reroute(self) -> None:
        """Routes every dialog again, because the catalog has changed."""
        self._decisions = {}
        self._reload_rerouted()
        self.key_exchanges.forget()
        self.next_hops.clear()

    def flush(self, *, now: int) -> None:
        """Writes idle dialogs to the database and frees their memory (P32); syncs commits that no later send has made durable."""
        self.storage.sync()
        self.engine.flush(now=now)
        self.storage.drop_read_ahead()
        self.database.instance.counters.objects_marked(self.engine.take_newly_dirty())
        # Includes replies to unknown conversations, which have a next hop but no endpoint here.
        self.next_hops.retain(self.engine.is_loaded)
        self.key_exchanges.retain(self.engine.is_loaded)
        self._decisions = {
            each: decision for each, decision in self._decisions.items() if self.engine.is_loaded(each[:2])
        }
        for unresolved in self.next_hops.unresolved_mirrors():  # keeps asking both addresses for their role
            self._mirrors.resolve(*unresolved)
        self._request_missing_routes(self._decisions.values())

    def _request_missing_routes(self, decided: Iterable[tuple[RouteQuery, Decision]]) -> None:
        """Requests missing routes that have not been requested recently.

        Delivery requests routes only for conversations with waiting messages, but dialogs that only have acknowledgements to send need routes too.
        """
        missing = [(query, decision) for query, decision in decided if decision.has_no_destination]
        if not missing:
            return
        now = self.database.now()
        may_begin = partial(self._limiter.take, "", now=epoch_microseconds(now))
        try:
            requests = missing_routes(self._background.routes.router(), self.database.name, missing, now=now)
            self._background.dynamic_routing.request(requests, lock_wait=EXCHANGE_LOCK_TIMEOUT, may_begin=may_begin)
        except SsbrokerError as error:
            log_failure(self.database, "missing routes could not be requested; the request is repeated later", error)

    def _route_brokers(self, senders: Sequence[ConversationEndpoint]) -> list[bytes | None]:
        """Returns the broker id that the route of each unbound initiator names; None if it names none, or leads to no other instance."""
        queries = [RouteQuery(each.conversation_id, True, each.far_service, None) for each in senders]
        found = self._remote_brokers(queries)
        keys = [(each.conversation_id, True) for each in senders]
        self._unbound.update(zip(keys, zip(queries, found, strict=True), strict=True))
        return found

    def _remote_brokers(self, queries: Sequence[RouteQuery]) -> list[bytes | None]:
        """Returns the broker id that the route of each query names; None if the route names none, or leads to no other instance."""
        decisions = self._background.routes.decisions(self.database.name, queries)
        return [each.broker_instance if each.outcome == _REMOTE else None for each in decisions]

    def _reload_rerouted(self) -> None:
        """Reloads the unbound initiators whose route names a different broker id than before."""
        self._unbound = {key: each for key, each in self._unbound.items() if self.engine.is_loaded(key)}
        if not self._unbound:
            return
        found = self._remote_brokers([query for query, _ in self._unbound.values()])
        known = self._unbound.items()
        self.engine.reload([key for (key, (_, broker)), now in zip(known, found, strict=True) if now != broker])

    def _next_hops(self, rows: pa.Table, senders: list[tuple[SenderKey, int]]) -> dict[SenderKey, str | None]:
        """Returns the address or `LOCAL` for each sender; None if it has to wait."""
        distinct = dict.fromkeys(sender for sender, _ in senders)
        new = [sender for sender in distinct if sender not in self._decisions]
        if new:
            starts = accumulate((number for _, number in senders), initial=0)
            place_of = {sender: place for place, (sender, _) in zip(starts, senders, strict=False)}
            services = rows["to_service_name"]
            queries = [
                # Until a conversation is bound, its messages name the broker id of the route. The query for that route
                # names no broker id.
                self._unbound[each[:2]][0]
                if each[:2] in self._unbound
                else RouteQuery(each[0], each[1], services[place_of[each]].as_py(), each[2])
                for each in new
            ]
            decided = list(zip(queries, self._background.routes.decisions(self.database.name, queries), strict=True))
            self._decisions.update(zip(new, decided, strict=True))
            self._request_missing_routes(each for each in decided if self.engine.is_loaded(each[0][:2]))
        return {sender: self._next_hop_for(sender) for sender in distinct}

    def _next_hop_for(self, sender: SenderKey) -> str | None:
        (_, decision), key = self._decisions[sender], sender[:2]
        if decision.is_local:
            return LOCAL
        address, mirror = decision.next_hop_address, decision.mirror_address
        if address is None:
            self._hold(key, NOWHERE)
            return None
        if mirror is not None:
            principal_address = self._mirrors.resolve(address, mirror, decision.broker_instance)
            if principal_address is None:
                self._hold(key, UnresolvedMirror(address, mirror, decision.broker_instance))
                return None
            address = principal_address
        self.next_hops.assign(key, address)
        return address

    def _hold(self, key: EndpointKey, next_hop: NextHop) -> None:
        """Holds a dialog whose next hop is closed; its last rows are sent again when the next hop opens."""
        self._closed.add(next_hop)
        self.next_hops.assign(key, next_hop)
        self.engine.retransmit([key])


def _group_by_hop(
    senders: list[tuple[SenderKey, int]], next_hops: Mapping[SenderKey, str | None]
) -> dict[str, tuple[list[int], set[EndpointKey]]]:
    """Returns the row numbers and the senders of each next hop."""
    found: dict[str, tuple[list[int], set[EndpointKey]]] = {}
    start = 0
    for sender, number in senders:
        if (next_hop := next_hops[sender]) is not None:
            numbers, keys = found.setdefault(next_hop, ([], set()))
            numbers.extend(range(start, start + number))
            keys.add(sender[:2])
        start += number
    return found


_LOGGER: Final = logging.getLogger("ssbroker.broker")


class DialogRegistry:
    """Creates the dialogs of each database, and replaces them when the database has changed. For one thread at a time.

    Attributes:
        needs_refresh: Whether `refresh` has work to do even without a catalog change.
        has_failed: Whether the file of a database could not be used; call `refresh` again later.
        is_waiting_for_lock: Whether a database was locked; call `refresh` again soon.
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        *,
        settings: ProtocolSettings,
        keys: DialogKeys,
        closed: set[NextHop],
        mirrors: MirroredRoutes,
    ) -> None:
        self._instance: Final = instance
        self._background: Final = background
        self._keys: Final = keys
        self._settings: Final = settings
        self._closed: Final = closed
        self._mirrors: Final = mirrors
        self._patience: Final = LockPatience()
        self.needs_refresh = True
        self.has_failed = False
        self.is_waiting_for_lock = False
        self._dialogs: dict[int, DatabaseDialogs] = {}
        self._versions: dict[int, tuple[bytes, bool]] = {}
        self._watches: dict[int, CommitWatch] = {}

    def all(self) -> list[DatabaseDialogs]:
        """Returns the dialogs of all databases that can send and receive."""
        return list(self._dialogs.values())

    def by_name(self, name: str) -> DatabaseDialogs | None:
        """Returns the dialogs of a database; None if the database cannot currently send or receive."""
        return next((each for each in self._dialogs.values() if each.database.name == name), None)

    def by_id(self, database_id: int) -> DatabaseDialogs | None:
        """Returns the dialogs of a database; None if the database cannot currently send or receive."""
        return self._dialogs.get(database_id)

    def drop(self, dialogs: DatabaseDialogs) -> None:
        """Drops the dialogs of a database; `refresh` creates new ones, and `newly_waiting` then returns all waiting conversations."""
        database_id = dialogs.database.database_id
        self._dialogs.pop(database_id, None)
        self.needs_refresh = True
        self._drop_watch(database_id)

    def refresh(self) -> None:
        """Creates missing dialogs, and drops the dialogs of databases that are gone, disabled or mirrors, or have a new broker id."""
        dialogs: dict[int, DatabaseDialogs] = {}
        versions: dict[int, tuple[bytes, bool]] = {}
        has_failed = is_waiting_for_lock = False
        self._patience.begin_round()
        for database in self._instance.databases:
            database_id = database.database_id
            try:
                version = _version(database)
                if version is None:
                    continue
                known = self._dialogs.get(database_id)
                if known is not None and known.database is database and self._versions.get(database_id) == version:
                    dialogs[database_id], versions[database_id] = known, version
                    continue
                settings = replace(self._settings, honor_priority=version[1])
                with self._patience.lock_timeout_for(database) as lock_timeout:
                    dialogs[database_id] = DatabaseDialogs(
                        database,
                        self._background,
                        settings=settings,
                        keys=self._keys,
                        closed=self._closed,
                        mirrors=self._mirrors,
                        lock_timeout=lock_timeout,
                    )
                versions[database_id] = version
            except StorageError as error:
                has_failed = True
                if isinstance(error, LockTimeoutError):
                    is_waiting_for_lock = True
                    if not self._patience.has_work_failed(database):
                        continue
                _LOGGER.warning(
                    "%s: cannot send or receive over the network; trying again later: %s", database.name, error
                )
        # Set at the end, so that an earlier error leads to another attempt.
        self._dialogs, self._versions = dialogs, versions
        self.needs_refresh, self.has_failed = False, has_failed
        self.is_waiting_for_lock = is_waiting_for_lock
        for database_id in self._watches.keys() - dialogs.keys():
            self._drop_watch(database_id)

    def newly_waiting(
        self, dialogs: DatabaseDialogs, sent: Callable[[], Mapping[int, tuple[bytes, int]]]
    ) -> list[OutgoingConversation]:
        """Returns the conversations with other instances that any process has committed messages to since the last call.

        `sent` returns, by endpoint id, the conversation handle and the next sequence number of the conversations in transit.
        """
        database = dialogs.database
        watch = self._watches.get(database.database_id)
        if watch is None:
            watch = self._watches[database.database_id] = database.file.watch()
        if not watch.has_changed():
            return []
        try:
            return self._waiting(database, sent)
        except BaseException:  # the next call reads what this one has not returned
            self._drop_watch(database.database_id)
            raise

    def _waiting(
        self, database: DatabaseContext, sent: Callable[[], Mapping[int, tuple[bytes, int]]]
    ) -> list[OutgoingConversation]:
        """Returns conversations with other instances that have waiting messages, except those without new messages according to `sent`."""
        with database.file.read() as connection:
            waiting = transmission_queue.waiting_endpoints(connection)
            in_transit = sent() if waiting else {}
            new = [endpoint_id for endpoint_id, number in waiting.items() if in_transit.get(endpoint_id) != number]
            senders = conversation_endpoints.by_ids(connection, new)
        if not senders:
            return []
        decisions = self._background.routes.decisions(database.name, senders)
        return [
            OutgoingConversation(database, sender, decision)
            for sender, decision in zip(senders, decisions, strict=True)
            if decision.next_hop_address is not None
        ]

    def _drop_watch(self, database_id: int) -> None:
        """Drops the watch of a file; the first check of a new watch reports a change."""
        if (watch := self._watches.pop(database_id, None)) is not None:
            watch.close()

    def close(self) -> None:
        """Closes the file watches."""
        self._dialogs = {}
        for watch in self._watches.values():
            watch.close()
        self._watches = {}


def _version(database: DatabaseContext) -> tuple[bytes, bool] | None:
    """Returns the broker id of a database and whether priorities apply, which identify its state; None if the database does not deliver."""
    broker = database.objects().broker
    return (broker.service_broker_guid, broker.is_honor_broker_priority_on) if broker.is_delivering else None
