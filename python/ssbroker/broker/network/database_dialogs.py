"""The dialogs of one database with other instances: routes, keys, next hops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext, InstanceContext, log_failure
from ssbroker.broker.delivery import OutgoingConversation
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.dynamic_routing import RouteRequest
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage, StalePlan
from ssbroker.broker.network.interfaces import KeyExchange, KeyOffer, KeyWait
from ssbroker.broker.network.limits import RateLimiter
from ssbroker.broker.routes import Decision, database_missing_route, explain, needs_route_request
from ssbroker.exceptions import SsbrokerError, StorageError
from ssbroker.protocol.config import ProtocolSettings
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import ENVELOPE, Protection, SenderKey, column_values, sender_runs
from ssbroker.protocol.storage import BatchChanges, Key, SessionKeys
from ssbroker.protocol.wire.frames import to_wire_rows
from ssbroker.store import endpoints, transmission_queue
from ssbroker.store.file import FileWatch

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import MirrorResolver
    from ssbroker.store.endpoints import ConversationEndpoint


class DialogsByNextHop:
    """The gates through which the dialogs of one machine go; a gate is an address, or two of which one will be known.

    Args:
        dialogs: The machine.
        closed: The gates that are closed, for all machines; whoever owns it keeps it.
    """

    def __init__(self, dialogs: DialogEngine, closed: set[str]) -> None:
        self._dialogs: Final = dialogs
        self._closed: Final = closed
        self._gate_of: dict[Key, str] = {}
        self._keys: dict[str, set[Key]] = {}

    def lead(self, key: Key, gate: str) -> None:
        """Notes through which gate a dialog goes from now on.

        Args:
            key: The dialog's endpoint.
            gate: The gate.
        """
        before = self._gate_of.get(key)
        if before == gate:
            return
        if before is not None:
            self._keys[before].discard(key)
        self._gate_of[key] = gate
        self._keys.setdefault(gate, set()).add(key)
        if gate in self._closed:
            self._dialogs.hold([key])
        elif before is not None and before in self._closed:
            self._dialogs.release([key])

    def gate_of(self, key: Key) -> str | None:
        """Through which gate a dialog goes, as far as that is known."""
        return self._gate_of.get(key)

    def keys(self, gate: str) -> set[Key]:
        """The dialogs that go through a gate."""
        return self._keys.get(gate, set())

    def closes(self, gate: str) -> None:
        """Has the dialogs of a gate rest."""
        self._dialogs.hold(self.keys(gate))

    def opens(self, gate: str) -> None:
        """Has the dialogs of a gate send again."""
        self._dialogs.release(self.keys(gate))

    def lost(self, gate: str) -> None:
        """What has gone through a gate did not arrive."""
        self._dialogs.retransmit(self.keys(gate))

    def forget(self, keys: Iterable[Key]) -> None:
        """Forgets where dialogs go: it is to be found out again."""
        for key in keys:
            gate = self._gate_of.pop(key, None)
            if gate is not None:
                self._keys[gate].discard(key)
                if gate in self._closed:
                    self._dialogs.release([key])

    def keep(self, is_kept: Callable[[Key], bool]) -> None:
        """Forgets the dialogs that are not in memory any more."""
        self.forget([key for key in self._gate_of if not is_kept(key)])
        self._keys = {gate: keys for gate, keys in self._keys.items() if keys}

    def clear(self) -> None:
        """Forgets all."""
        self.forget(list(self._gate_of))
        self._keys = {}


class PendingKeyExchanges:
    """The blobs of the dialogs of one database. For one thread.

    A blob rides with every row of its endpoint, acknowledgements and errors as well, so that it is there with whichever arrives first,
    until the far side has shown that it has the key.

    Args:
        database: The database.
        keys: Who settles keys.
    """

    def __init__(self, database: DatabaseContext, keys: KeyExchange) -> None:
        self._database: Final = database
        self._keys: Final = keys
        self._offers: dict[Key, KeyOffer] = {}
        self._done: set[Key] = set()

    def settle(self, sender: ConversationEndpoint) -> TransmissionStatus | None:
        """Settles how the messages of an endpoint leave, unless that is settled.

        Args:
            sender: The endpoint, as committed.

        Returns:
            Why they have to wait; None where they may go.

        Raises:
            SsbrokerError: The keys cannot be read or written.
        """
        key = (sender.conversation_id, bool(sender.is_initiator))
        if key in self._done or key in self._offers:
            return None
        answer = self._keys.prepare_sending(self._database, sender)
        if isinstance(answer, KeyWait):
            return answer.status
        self._note(key, answer)
        return None

    def has_blob(self, key: Key) -> bool:
        """Whether something rides with what an endpoint sends."""
        offer = self._offers.get(key)
        return offer is not None and offer.key_exchange is not None

    def column(self, rows: pa.Table, *, now: int) -> pa.Array[Any]:
        """The blobs that ride with rows of which some are secured.

        Args:
            rows: The rows (`envelope.ENVELOPE`).
            now: The moment.

        Returns:
            The column `key_exchange`.

        Raises:
            SsbrokerError: The keys cannot be read.
        """
        levels: list[Any] = rows["security"].to_pylist()
        conversations: list[Any] = column_values(rows["conversation_id"])
        sides: list[Any] = rows["is_initiator"].to_pylist()
        senders: list[Key] = list(zip(conversations, sides, strict=True))
        secured = {sender for sender, level in zip(senders, levels, strict=True) if level != Protection.PLAIN}
        self._renew([sender for sender in secured if not self._is_current(sender, now)])
        blobs = {sender: offer.key_exchange for sender in secured if (offer := self._offers.get(sender)) is not None}
        return pa.array([blobs.get(sender) for sender in senders], pa.binary())

    def answered(self, keys: Iterable[Key]) -> None:
        """Notes that the far sides of endpoints have shown that they have the keys.

        Args:
            keys: The endpoints.
        """
        for key in keys:
            self._offers.pop(key, None)
            self._done.add(key)

    def anew(self, keys: Iterable[Key]) -> None:
        """Has what rides with endpoints made anew: their far sides have other certificates.

        Args:
            keys: The endpoints.
        """
        for key in keys:
            self._offers.pop(key, None)

    def forget(self) -> None:
        """Has all that is not answered settled again: the catalog has changed."""
        self._offers.clear()

    def keep(self, is_kept: Callable[[Key], bool]) -> None:
        """Forgets the endpoints that are not in memory any more.

        Args:
            is_kept: Whether an endpoint is.
        """
        self._offers = {key: offer for key, offer in self._offers.items() if is_kept(key)}
        self._done = {key for key in self._done if is_kept(key)}

    def _is_current(self, key: Key, now: int) -> bool:
        if key in self._done:
            return True
        offer = self._offers.get(key)
        return offer is not None and (offer.valid_until is None or now < offer.valid_until)

    def _renew(self, keys: list[Key]) -> None:
        if not keys:
            return
        with self._database.file.read() as connection:
            found = endpoints.by_sides(connection, keys)
        for key in keys:
            self._offers.pop(key, None)
            answer = KeyOffer() if key not in found else self._keys.prepare_sending(self._database, found[key])
            if isinstance(answer, KeyOffer):  # else it goes without, and the far side does not take it
                self._note(key, answer)

    def _note(self, key: Key, offer: KeyOffer) -> None:
        if offer == KeyOffer():
            self._done.add(key)
        else:
            self._offers[key] = offer


ASKS_AT_ONCE: Final = 32
"""The requests for routes that neighbours have begun at once, by naming services to which none leads (N26)."""
ASKS_PER_SECOND: Final = 4
"""And how many more in a second."""


class RouteQuery(NamedTuple):
    """A sender, as routing has to know it."""

    conversation_id: bytes
    is_initiator: bool
    far_service: str
    far_broker_instance: bytes | None


class RouteRequester:
    """Asks for what the dialogs of a database lack. Delivery asks for those with messages that wait; these may only have to acknowledge.

    Args:
        database: The database.
        background: The background work of the instance.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.
        patience: The seconds to wait for whoever writes to a file.
    """

    def __init__(
        self, database: DatabaseContext, background: Background, mirrors: MirrorResolver | None, *, patience: float
    ) -> None:
        self._database: Final = database
        self._background: Final = background
        self._patience: Final = patience
        self._mirrors: Final = mirrors
        self._asks: Final = RateLimiter(burst=ASKS_AT_ONCE, per_second=ASKS_PER_SECOND)

    def principals(self, ways: Iterable[Decision]) -> None:
        """Has both addresses of mirrored routes asked, for as long as something wants to go there (N23).

        Args:
            ways: The routes.
        """
        for address, mirror, broker in {
            (each.next_hop_address, each.mirror_address, each.broker_instance) for each in ways
        }:
            if self._mirrors is not None and address is not None and mirror is not None:
                self._mirrors.resolve(address, mirror, broker)

    def routes(self, decided: Iterable[tuple[RouteQuery, Decision]]) -> None:
        """Asks for routes that are missing, unless that was done lately.

        Args:
            decided: Senders, and where their rows go.
        """
        lost = {(each.far_service, each.far_broker_instance): (each, way) for each, way in decided if way.is_nowhere}
        if not lost:
            return
        now = self._database.now()
        may_begin = partial(self._asks.take, "", now=epoch_microseconds(now))
        try:
            router = self._background.routes.router()
            pending = frozenset(router.catalog.pending_requests)
            explained = {
                service: explain(router, self._database.name, one, now=now)
                for service, (one, way) in lost.items()
                if way.is_requested or one.far_service in pending
            }
            asks = [
                RouteRequest(database_missing_route(way), *service)
                for service, way in explained.items()
                if needs_route_request(way)
            ]
            self._background.dynamic_routing.request(asks, lock_timeout=self._patience, may_begin=may_begin)
        except SsbrokerError as error:
            log_failure(self._database, "missing routes could not be asked for, and are later", error)


ROWS_MAX: Final = 1024
"""About how many rows a machine gives at once."""
BYTES_MAX: Final = 1 << 20
"""And how many bytes of bodies."""
PATIENCE: Final = 0.25
"""The seconds to wait for whoever writes to a file: while the exchange waits, nobody's messages go."""
LOCAL: Final = "LOCAL"
"""The gate of what is for a database of this instance."""
NOWHERE: Final = "NOWHERE"
"""The gate of what has no way; it opens when the catalog changes."""
MIRRORED: Final = " or "
"""Stands between the two addresses of a gate behind which nobody knows the principal."""


@dataclass(frozen=True, slots=True)
class OutboundRows:
    """Rows that go one way.

    Attributes:
        gate: Where they go: an address, or `LOCAL`.
        rows: The rows (`wire.frames.WIRE`).
        keys: Who sends them.
    """

    gate: str
    rows: pa.Table
    keys: set[Key]


class DatabaseDialogs:
    """The dialogs of a database. For one thread.

    Args:
        database: The database.
        settings: How the protocol is set up.
        keys: Who settles keys.
        closed: The gates that are closed.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.

    Attributes:
        database: The database.
        dialogs: The machine of the protocol.
        ledger: What is durable.
        gates: Where the dialogs send.
        riders: What rides with rows until far sides have the keys (N19).

    Raises:
        StorageError: The file cannot be used.
    """

    def __init__(
        self,
        database: DatabaseContext,
        background: Background,
        *,
        settings: ProtocolSettings,
        keys: KeyExchange,
        closed: set[str],
        mirrors: MirrorResolver | None,
    ) -> None:
        instance = database.instance
        self._background: Final = background
        self.database: Final = database
        self.ledger: Final = SqliteDialogStorage(database)
        # Chance for jitter alone, drawn for each batch that goes: the operating system's would take longer than all the rest.
        chance = Random(instance.random.getrandbits(64))  # noqa: S311
        self.dialogs: Final = DialogEngine(self.ledger, random=chance.random, settings=settings, log=instance.events)
        self.gates: Final = DialogsByNextHop(self.dialogs, closed)
        self.riders: Final = PendingKeyExchanges(database, keys)
        self._mirrors: Final = mirrors
        self._closed: Final = closed
        self._decisions: dict[SenderKey, tuple[RouteQuery, Decision]] = {}
        self._seeking: Final = RouteRequester(database, background, mirrors, patience=PATIENCE)

    def settle_keys(self, sender: ConversationEndpoint) -> TransmissionStatus | None:
        """Settles how the messages of an endpoint leave, unless that is settled.

        Args:
            sender: The endpoint, as committed.

        Returns:
            Why they have to wait; None where they may go.

        Raises:
            SsbrokerError: The keys cannot be read or written.
        """
        waits = self.riders.settle(sender)
        key = (sender.conversation_id, bool(sender.is_initiator))
        if waits is None and sender.session_key is None and self.riders.has_blob(key):
            self.dialogs.forget([key])  # it may have been read before it had its key
        return waits

    def take(
        self, rows: pa.Table, *, peer: bytes | None, session_keys: SessionKeys, now: int
    ) -> BatchChanges | StalePlan:
        """Takes rows that have arrived, durably.

        Args:
            rows: The rows (`wire.frames.WIRE`).
            peer: Who brought them, as the certificate says.
            session_keys: Keys that came with them.
            now: The moment.

        Returns:
            What they came to; or why nothing was written, and they are to be taken again (N3).

        Raises:
            LockTimeoutError: Others were writing to the file.
            StorageError: The file cannot be written. Nothing has changed.
        """
        effects = self.dialogs.receive(rows.select(ENVELOPE.names), now=now, peer=peer, session_keys=session_keys)
        stale: StalePlan | None = None
        if not effects.is_empty:
            try:
                stale = self.ledger.commit(effects, lock_timeout=PATIENCE)
            except BaseException:
                self.dialogs.undo(effects)
                raise
        if stale is not None:
            self.dialogs.undo(effects)
            self.read_anew(stale.keys)
            return stale
        self.dialogs.confirm(effects, now=now)
        for endpoint in effects.bound:
            self.gates.forget([endpoint.key])
        self.riders.answered((*effects.acknowledged, *(endpoint.key for endpoint in effects.bound)))
        return effects

    def read_anew(self, keys: Iterable[Key]) -> None:
        """Forgets endpoints in memory: they are not what they were.

        Args:
            keys: The endpoints.
        """
        keys = list(keys)
        self.dialogs.forget(keys)
        self.dialogs.notify_queued(keys)

    def renewed(self, keys: Iterable[Key]) -> None:
        """Notes that the far sides of endpoints have other certificates than before.

        Args:
            keys: The endpoints.
        """
        keys = list(keys)
        self.riders.anew(keys)
        self.read_anew(keys)

    def departures(self, *, now: int) -> list[OutboundRows] | None:
        """What the dialogs send now.

        Args:
            now: The moment.

        Returns:
            The rows by where they go, without those that have no way; None where nothing is due.

        Raises:
            StorageError: The file cannot be read.
        """
        rows = self.dialogs.data_to_send(now=now, max_rows=ROWS_MAX, max_bytes=BYTES_MAX)
        if rows is None:
            return None
        senders, are_plain = sender_runs(rows)
        gates = self._gates(rows, senders)
        blobs = pa.nulls(rows.num_rows, pa.binary()) if are_plain else self.riders.column(rows, now=now)
        whole = to_wire_rows(rows, now=now, key_exchanges=blobs)
        if len({*gates.values()}) == 1:
            places: Mapping[str | None, list[int] | None] = dict.fromkeys(gates.values())
        else:
            places = _places(senders, gates)
        return [
            OutboundRows(
                gate,
                whole if numbers is None else whole.take(pa.array(numbers, pa.int64())),
                {(conversation, side) for (conversation, side, _), its in gates.items() if its == gate},
            )
            for gate, numbers in places.items()
            if gate is not None
        ]

    def reroute(self) -> None:
        """Has every dialog find its way again: the catalog has changed."""
        self._decisions = {}
        self.riders.forget()
        self.gates.clear()

    def flush(self, *, now: int) -> None:
        """Puts aside what has been idle (P32).

        Args:
            now: The moment.
        """
        self.dialogs.flush(now=now)
        self.ledger.let_go()
        self.database.instance.counters.objects_marked(self.dialogs.take_newly_dirty())
        # Of conversations that nobody here has, too: what answers them has a way, and no end here.
        self.gates.keep(self.dialogs.is_loaded)
        self.riders.keep(self.dialogs.is_loaded)
        self._decisions = {each: way for each, way in self._decisions.items() if self.dialogs.is_loaded(each[:2])}
        resting = [
            way for each, (_, way) in self._decisions.items() if MIRRORED in (self.gates.gate_of(each[:2]) or "")
        ]
        self._seeking.principals(resting)
        self._seeking.routes(self._decisions.values())

    def _gates(self, rows: pa.Table, senders: list[tuple[SenderKey, int]]) -> dict[SenderKey, str | None]:
        """Through which gate each sender goes; None for nowhere."""
        distinct = dict.fromkeys(sender for sender, _ in senders)
        new = [sender for sender in distinct if sender not in self._decisions]
        if new:
            starts = accumulate((number for _, number in senders), initial=0)
            place_of = {sender: place for place, (sender, _) in zip(starts, senders, strict=False)}
            services = rows["to_service_name"]
            asked = [RouteQuery(each[0], each[1], services[place_of[each]].as_py(), each[2]) for each in new]
            decided = list(zip(asked, self._background.routes.decisions(self.database.name, asked), strict=True))
            self._decisions.update(zip(new, decided, strict=True))
            self._seeking.routes(each for each in decided if self.dialogs.is_loaded(each[0][:2]))
        return {sender: self._gate(sender) for sender in distinct}

    def _gate(self, sender: SenderKey) -> str | None:
        (_, decision), key = self._decisions[sender], sender[:2]
        if decision.is_local:
            return LOCAL
        address, mirror = decision.next_hop_address, decision.mirror_address
        if address is None:
            self._rest(key, NOWHERE)
            return None
        if mirror is not None and self._mirrors is not None:
            found = self._mirrors.resolve(address, mirror, decision.broker_instance)
            if found is None:
                self._rest(key, address + MIRRORED + mirror)
                return None
            address = found
        self.gates.lead(key, address)
        return address

    def _rest(self, key: Key, gate: str) -> None:
        """Has a dialog rest behind a closed gate; what it has just given goes when that opens."""
        self._closed.add(gate)
        self.gates.lead(key, gate)
        self.dialogs.hold([key])  # it was let go to find that the gate is closed still
        self.dialogs.retransmit([key])


def _places(
    senders: list[tuple[SenderKey, int]], gates: Mapping[SenderKey, str | None]
) -> Mapping[str | None, list[int] | None]:
    places: dict[str | None, list[int]] = {}
    at = 0
    for sender, number in senders:
        places.setdefault(gates[sender], []).extend(range(at, at + number))
        at += number
    return places


LOGGER: Final = logging.getLogger("ssbroker.broker")


class DialogsByDatabase:
    """Makes machines, and makes them anew where a database has become another. For one thread.

    Args:
        instance: The instance.
        background: Its background work.
        settings: How the protocol is set up.
        keys: Who settles the keys of dialogs.
        closed: The gates that are closed.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.

    Attributes:
        is_due: Whether `renew` has something to do, whatever the catalog says.
        has_failed: Whether a database has no machine because its file could not be used; to be tried again some time.
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        *,
        settings: ProtocolSettings,
        keys: KeyExchange,
        closed: set[str],
        mirrors: MirrorResolver | None,
    ) -> None:
        self._instance: Final = instance
        self._background: Final = background
        self._keys: Final = keys
        self._settings: Final = settings
        self._closed: Final = closed
        self._mirrors: Final = mirrors
        self.is_due = True
        self.has_failed = False
        self._machines: dict[int, DatabaseDialogs] = {}
        self._marks: dict[int, tuple[bytes, bool]] = {}
        self._watches: dict[int, FileWatch] = {}

    def all(self) -> list[DatabaseDialogs]:
        """The machines, in the order of their databases."""
        return list(self._machines.values())

    def named(self, name: str) -> DatabaseDialogs | None:
        """The machine of a database, by its name; None where it cannot send or receive now."""
        return next((each for each in self._machines.values() if each.database.name == name), None)

    def numbered(self, database_id: int) -> DatabaseDialogs | None:
        """The same by its number."""
        return self._machines.get(database_id)

    def drop(self, machine: DatabaseDialogs) -> None:
        """Drops a machine whose database has become another; `renew` makes a new one."""
        self._machines.pop(machine.database.database_id, None)
        self.is_due = True

    def renew(self) -> None:
        """Makes the machines that are missing, and drops those whose database is gone, disabled, a mirror or another broker now."""
        before, self._machines = self._machines, {}
        self.is_due = self.has_failed = False
        for database in self._instance.databases:
            number = database.database_id
            try:
                mark = _mark(database)
                if mark is None:
                    continue
                known = before.get(number)
                if known is not None and known.database is database and self._marks.get(number) == mark:
                    self._machines[number] = known
                    continue
                settings = replace(self._settings, honor_priority=mark[1])
                self._machines[number] = DatabaseDialogs(
                    database,
                    self._background,
                    settings=settings,
                    keys=self._keys,
                    closed=self._closed,
                    mirrors=self._mirrors,
                )
                self._marks[number] = mark
            except StorageError as error:
                self.has_failed = True
                LOGGER.warning("%s: sends and receives nothing over the network for now: %s", database.name, error)
        for number in self._watches.keys() - self._machines.keys():
            self._watches.pop(number).close()

    def waiting_anew(
        self, machine: DatabaseDialogs, sent: Callable[[], Mapping[int, tuple[bytes, int]]]
    ) -> list[OutgoingConversation]:
        """What was committed to a database since the last look, by whomever, and goes to other instances (N16).

        Args:
            machine: The database's machine.
            sent: Tells up to which message conversations are carried: handle, and number of the next one, by endpoint.

        Returns:
            The conversations.

        Raises:
            StorageError: The file cannot be read.
        """
        database = machine.database
        watch = self._watches.get(database.database_id)
        if watch is None:
            watch = self._watches[database.database_id] = database.file.watch()
        if not watch.has_changed():
            return []
        with database.file.read() as connection:
            waiting = transmission_queue.waiting_endpoints(connection)
            carried = sent() if waiting else {}
            new = [endpoint_id for endpoint_id, number in waiting.items() if carried.get(endpoint_id) != number]
            senders = transmission_queue.endpoints_by_id(connection, new)
        if not senders:
            return []
        decisions = self._background.routes.decisions(database.name, senders)
        return [
            OutgoingConversation(database, sender, decision)
            for sender, decision in zip(senders, decisions, strict=True)
            if decision.next_hop_address is not None
        ]

    def close(self) -> None:
        """Gives back what it holds of the files."""
        self._machines = {}
        for watch in self._watches.values():
            watch.close()
        self._watches = {}


def _mark(database: DatabaseContext) -> tuple[bytes, bool] | None:
    """What makes a machine the one of its database: the broker id, and whether priorities count; None where it rests."""
    broker = database.objects().broker
    return (broker.service_broker_guid, broker.is_honor_broker_priority_on) if broker.is_delivering else None
