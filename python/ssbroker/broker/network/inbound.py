"""Assigns inbound fragments to databases and dialogs, and checks the first of each direction."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds
from ssbroker._text import quoted, restore_spaces
from ssbroker.broker.background import Background
from ssbroker.broker.context import InstanceContext, log_failure
from ssbroker.broker.dynamic_routing import RouteRequest
from ssbroker.broker.network.database_dialogs import ASKS_AT_ONCE, ASKS_PER_SECOND, DatabaseDialogs, DialogsByDatabase
from ssbroker.broker.network.dialog_storage import StalePlan
from ssbroker.broker.network.interfaces import FirstRow, KeyExchange, RefusedDirection
from ssbroker.broker.network.limits import RateLimiter
from ssbroker.broker.network.outbound import ConversationsInTransit
from ssbroker.exceptions import LockTimeoutError, SsbrokerError, StorageError
from ssbroker.protocol.envelope import column_values
from ssbroker.protocol.events import EventLog, MessageUndeliverable
from ssbroker.protocol.storage import DialogEndpoint, ExchangedKeys, Key, SessionKeys
from ssbroker.schemas import CONVERSATIONS
from ssbroker.store import transmission_queue
from ssbroker.store.registry import MSDB_NAME

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import ForwardingService, Peer


Batch: TypeAlias = "tuple[Peer, pa.Table]"
"""Rows of `wire.frames.WIRE`, and who brought them."""

ROWS_MAX: Final = 4096
"""How many rows one turn of the exchange takes (N15), a batch as a whole; when so many wait, no connection is read."""
BYTES_MAX: Final = 8 << 20
"""The same in bytes."""
_RESUMED_AT: Final = 0.5
"""Connections are read again when so much of that is left."""


class Inbox:
    """Batches in the order of their arrival; the endpoint's thread puts them in, the exchange's takes them out.

    It holds what one turn takes. What is read beyond that only waits, and the longer it does, the more of it is sent again in vain (P17).

    Args:
        pause: Has no connection read.
        resume: Has them read again.
        rows_max: From how many rows on nothing is read.
        bytes_max: The same in bytes.

    Examples:
        >>> inbox = Inbox(pause=lambda: print("pause"), resume=lambda: print("resume"), rows_max=2)
        >>> inbox.put(None, pa.table({"number": [1, 2]}))
        pause
        >>> [rows.num_rows for _, rows in inbox.take()]
        resume
        [2]
    """

    def __init__(
        self,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._pause: Final = pause
        self._resume: Final = resume
        self._rows_max: Final = rows_max
        self._bytes_max: Final = bytes_max
        self._guard: Final = threading.RLock()
        self._batches: deque[tuple[Batch, int]] = deque()
        self._rows = self._bytes = 0
        self._is_paused = False

    @property
    def bytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._batches

    def put(self, peer: Peer, rows: pa.Table) -> None:
        """Puts a batch in.

        Args:
            peer: Who brought it.
            rows: The rows.
        """
        size = rows.nbytes
        with self._guard:
            self._batches.append(((peer, rows), size))
            self._rows += rows.num_rows
            self._bytes += size
            self._settle()

    def take(self) -> list[Batch]:
        """Takes out what fits into one turn: at least one batch, where there is any.

        Returns:
            The batches, in the order of their arrival.
        """
        taken: list[Batch] = []
        rows = size = 0
        with self._guard:
            while self._batches and rows < ROWS_MAX and size < BYTES_MAX:
                batch, its_size = self._batches.popleft()
                taken.append(batch)
                rows += batch[1].num_rows
                size += its_size
            self._rows -= rows
            self._bytes -= size
            self._settle()
        return taken

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Puts batches in again, before all others: they could not be taken now.

        Args:
            batches: In their order.
        """
        with self._guard:
            for batch in reversed(batches):
                size = batch[1].nbytes
                self._batches.appendleft((batch, size))
                self._rows += batch[1].num_rows
                self._bytes += size
            self._settle()

    def _settle(self) -> None:
        share = max(self._rows / self._rows_max, self._bytes / self._bytes_max)
        if not self._is_paused and share >= 1:
            self._is_paused = True
            self._pause()
        elif self._is_paused and share <= _RESUMED_AT:
            self._is_paused = False
            self._resume()


_ERRORS: Final = {
    "address_unusable": 9785,
    "forwarding_disabled": 9792,
    "no_route": 9750,
    "route_requested": 9770,
    "routing_loop": 28017,
    "sender_disabled": 9791,
    "service_not_found": 11210,
}
"""Service Broker's number for each `reason` for which what arrives is dropped (R26)."""
_NOT_MATCHED: Final = 9798
_ASKING_STEP: Final = 4
LOGGER: Final = logging.getLogger("ssbroker.broker")


@dataclass(frozen=True, slots=True)
class InboundRows:
    """Rows that one machine takes.

    Attributes:
        machine: The machine.
        rows: The rows (`wire.frames.WIRE`).
        keys: For each row, the endpoint that it is for.
        fresh: The endpoints among them that are not there yet.
    """

    machine: DatabaseDialogs
    rows: pa.Table
    keys: Sequence[Key]
    fresh: set[Key]


class InboundRouter:
    """Sorts arrivals by databases, hands on what is for other instances, and tells of what nobody takes.

    Args:
        instance: The instance.
        background: Its background work.
        machines: The machines of the databases that are enabled.
        machine: The machine of a database by its name; None where it cannot take anything now.
        forwards: Who passes on what is for others; None where nobody does.
    """

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        *,
        machines: Callable[[], Iterable[DatabaseDialogs]],
        machine: Callable[[str], DatabaseDialogs | None],
        forwards: ForwardingService | None,
    ) -> None:
        self._instance: Final = instance
        self._background: Final = background
        self._machines: Final = machines
        self._machine: Final = machine
        self._forwards: Final = forwards
        self._asks: Final = RateLimiter(burst=ASKS_AT_ONCE, per_second=ASKS_PER_SECOND)

    def sort(self, peer: Peer, rows: pa.Table) -> list[InboundRows]:
        """Sorts a batch.

        Args:
            peer: Who brought it.
            rows: The rows (`wire.frames.WIRE`).

        Returns:
            What is for databases of this instance.

        Raises:
            StorageError: A file cannot be read.
        """
        sides: list[Any] = rows["is_initiator"].to_pylist()
        conversations: list[Any] = column_values(rows["conversation_id"])
        keys: list[Key] = [(conversation, not side) for conversation, side in zip(conversations, sides, strict=True)]
        left = dict(zip(keys, column_values(rows["to_broker_instance"]), strict=True))
        homes = self._homes(left)
        fresh = {key for key in left if key not in homes}
        if fresh:
            self._route(peer, rows, keys, fresh, homes)
        return list(_parcels(rows, keys, homes, fresh))

    def decisions(self, rows: pa.Table) -> pa.Table:
        """What routing says of rows that come from outside.

        Args:
            rows: The rows.

        Returns:
            `schemas.DECISIONS`, a row for each.

        Raises:
            StorageError: A file cannot be read.
        """
        # Rows that came one by one are as many chunks, and each would be routed, and found again, by itself.
        return self._background.catalog.router().route(
            _conversations(rows).combine_chunks(), now=self._instance.clock()
        )

    def _homes(self, left: Mapping[Key, bytes | None]) -> dict[Key, DatabaseDialogs]:
        """Where the endpoints are that are here. What names another broker id than their databases have is for a copy, maybe elsewhere.

        Args:
            left: The endpoints, and the broker id by which each is named, if any.
        """
        homes: dict[Key, DatabaseDialogs] = {}
        machines = list(self._machines())

        def has(machine: DatabaseDialogs, keys: Iterable[Key]) -> None:
            for key in keys:
                if left[key] in (None, machine.ledger.broker_instance):
                    homes.setdefault(key, machine)

        for machine in machines:
            has(machine, (key for key in left if machine.dialogs.is_loaded(key)))
        for machine in machines:
            if unknown := [key for key in left if key not in homes]:
                with machine.database.file.read() as connection:
                    has(machine, transmission_queue.existing_sides(connection, unknown))
        return homes

    def _route(
        self, peer: Peer, rows: pa.Table, keys: Sequence[Key], fresh: set[Key], homes: dict[Key, DatabaseDialogs]
    ) -> None:
        """Routes what has no endpoint here as arrivals are routed: with msdb's table, or to the database that a reply names."""
        places = [place for place, key in enumerate(keys) if key in fresh]
        asked = rows if len(places) == len(keys) else rows.take(pa.array(places, pa.int64()))
        decisions = self.decisions(asked)
        outcomes: list[Any] = decisions["outcome"].to_pylist()
        databases: list[Any] = decisions["target_database"].to_pylist()
        forwarded: list[int] = []
        dropped: dict[Key, int] = {}
        for number, (place, outcome, database) in enumerate(zip(places, outcomes, databases, strict=True)):
            key = keys[place]
            if outcome == "LOCAL":
                machine = homes.get(key) or self._machine(database)
                if machine is not None:
                    homes[key] = machine
            elif outcome == "FORWARD" and self._forwards is not None:
                forwarded.append(number)
            else:
                dropped.setdefault(key, number)
        if forwarded and self._forwards is not None:
            chosen = pa.array(forwarded, pa.int64())
            self._forwards.forward(peer, asked.take(chosen), decisions.take(chosen))
        if dropped:
            self._ask_for_routes(peer, asked, decisions, dropped.values())
        for number in dropped.values():
            reason = decisions["reason"][number].as_py()
            error = _ERRORS.get(reason, _NOT_MATCHED)
            service = restore_spaces(quoted(asked["to_service_name"][number].as_py()))
            self.tell(
                asked,
                number,
                error=error,
                text=f"{reason}: nothing here takes what is for {service}, from {peer.address}",
                principal=peer.principal,
            )

    def _ask_for_routes(self, peer: Peer, rows: pa.Table, decisions: pa.Table, numbers: Iterable[int]) -> None:
        """What comes again finds the route that is asked for now (R14); neighbours without a principal are one."""
        now = epoch_microseconds(self._instance.clock())
        asks = {
            RouteRequest(MSDB_NAME, rows["to_service_name"][number].as_py(), rows["to_broker_instance"][number].as_py())
            for number in numbers
            if decisions["reason"][number].as_py() == "route_requested"
        }
        # Where another database has asked, the step was passed over; what that one is answered makes no route in msdb (R1).
        routing = self._background.dynamic_routing
        is_asking = routing.has_configuration_service(self._instance.msdb, now=now)
        pending = frozenset(self._background.catalog.catalog().pending_requests if is_asking else ())
        asks |= {
            RouteRequest(MSDB_NAME, service, rows["to_broker_instance"][number].as_py())
            for number in numbers
            if (service := rows["to_service_name"][number].as_py()) in pending
            and (decisions["match_step"][number].as_py() or 0) > _ASKING_STEP
        }
        if not asks:
            return
        may_begin = partial(self._asks.take, peer.principal or "", now=now)
        try:
            routing.request(sorted(asks, key=repr), may_begin=may_begin)
        except SsbrokerError as error:
            LOGGER.warning("missing routes could not be asked for, and are when the messages come again: %s", error)

    def tell(self, rows: pa.Table, number: int, *, error: int, text: str, principal: str | None) -> None:
        """Tells that nobody takes a row.

        Args:
            rows: Rows.
            number: Which one.
            error: Service Broker's number.
            text: Why.
            principal: Who has brought it; None where connections have no principals.
        """
        row: Mapping[str, Any] = rows.slice(number, 1).to_pylist()[0]
        self._instance.events.emit(
            MessageUndeliverable(
                at=epoch_microseconds(self._instance.clock()),
                conversation_id=uuid.UUID(bytes=row["conversation_id"]),
                is_sequenced=row["is_sequenced"],
                message_sequence_number=row["message_sequence_number"],
                fragment_number=row["fragment_number"],
                acked_sequence_number=row["acked_sequence_number"],
                peer=None if principal is None else principal.encode(),
                error=error,
                text=text,
            )
        )


def _conversations(rows: pa.Table) -> pa.Table:
    """What routing has to know of arrivals; that they come from outside is the null in `database`."""
    columns: list[Any] = [
        rows["conversation_id"],
        pa.nulls(rows.num_rows, pa.string()),
        rows["to_service_name"],
        rows["to_broker_instance"],
        rows["is_initiator"],
    ]
    return pa.Table.from_arrays(columns, schema=CONVERSATIONS)


def _parcels(
    rows: pa.Table, keys: Sequence[Key], homes: Mapping[Key, DatabaseDialogs], fresh: set[Key]
) -> Iterable[InboundRows]:
    by_machine: dict[int, tuple[DatabaseDialogs, list[int]]] = {}
    for place, key in enumerate(keys):
        machine = homes.get(key)
        if machine is not None:
            by_machine.setdefault(id(machine), (machine, []))[1].append(place)
    for machine, places in by_machine.values():
        if len(places) == len(keys):
            yield InboundRows(machine, rows, keys, fresh)
        else:
            yield InboundRows(
                machine, rows.take(pa.array(places, pa.int64())), [keys[place] for place in places], fresh
            )


_COLUMNS: Final = (
    "from_service_name",
    "from_broker_instance",
    "to_service_name",
    "to_broker_instance",
    "security",
    "key_exchange",
)


class FirstRowCheck:
    """Asks for the keys of what begins, and leaves out what may not.

    Args:
        keys: Who settles keys.
        dispatch: Who tells of what nobody takes.
    """

    def __init__(self, keys: KeyExchange, dispatch: InboundRouter) -> None:
        self._keys: Final = keys
        self._dispatch: Final = dispatch

    def start_round(self) -> None:
        """A turn of the exchange begins."""
        self._keys.start_round()

    def open(self, peer: Peer, parcel: InboundRows) -> tuple[pa.Table, SessionKeys]:
        """Opens what came with first rows.

        Args:
            peer: Who brought them.
            parcel: The rows.

        Returns:
            The rows that may be taken, and the keys of conversations that begin with them.
        """
        rows = parcel.rows
        asked, taken = self._asked(parcel)
        if not asked and not taken:
            return rows, {}
        self._renew(peer, parcel, taken)
        beginnings = _beginnings(peer, rows, asked)
        answers = self._keys.accept_directions(parcel.machine.database, beginnings)
        refused: set[Key] = set()
        keys: dict[bytes, ExchangedKeys] = {}
        for (key, place), one, answer in zip(asked.items(), beginnings, answers, strict=True):
            if isinstance(answer, RefusedDirection):
                refused.add(key)
                self._dispatch.tell(rows, place, error=answer.error, text=answer.text, principal=one.principal)
            elif answer.keys is not None:
                of = (one.is_initiator, one.from_service_name, one.to_service_name)
                keys[key[0]] = replace(answer.keys, valid_for=of)
        if refused:
            rows = rows.filter(pa.array([key not in refused for key in parcel.keys], pa.bool_()))
        return rows, keys

    def _renew(self, peer: Peer, parcel: InboundRows, taken: Mapping[DialogEndpoint, int]) -> None:
        """Looks whether the senders of conversations that were taken before have other certificates by now."""
        machine = parcel.machine
        came = _beginnings(peer, parcel.rows, {endpoint.key: place for endpoint, place in taken.items()})
        renewed = [
            endpoint.key
            for endpoint, one in zip(taken, came, strict=True)
            if self._keys.update_certificate(machine.database, endpoint, one)
        ]
        if renewed:
            machine.renewed(renewed)

    @staticmethod
    def _asked(parcel: InboundRows) -> tuple[dict[Key, int], dict[DialogEndpoint, int]]:
        """The directions to ask for, and the targets' endpoints that were taken before; with a row of each: one with a blob where there is any."""
        asked: dict[Key, int] = {}
        if parcel.fresh:
            for place, key in enumerate(parcel.keys):
                if key in parcel.fresh:
                    asked.setdefault(key, place)
        blobs = parcel.rows["key_exchange"]
        if blobs.null_count == len(blobs):
            return asked, {}
        with_blob: dict[Key, int] = {}
        for place, (key, blob) in enumerate(zip(parcel.keys, blobs.to_pylist(), strict=True)):
            if blob is not None:
                with_blob.setdefault(key, place)
        known = [key for key in with_blob if key not in parcel.fresh]
        senders = parcel.rows["from_broker_instance"]
        endpoints = [each for each in parcel.machine.ledger.endpoints(known) if each is not None]
        unanswered = {
            endpoint.key
            for endpoint in endpoints
            if endpoint.is_initiator
            and not (endpoint.is_bound and senders[with_blob[endpoint.key]].as_py() == endpoint.far_broker_instance)
        }
        for key, place in with_blob.items():
            if key in asked or key in unanswered:
                asked[key] = place
        return asked, {
            each: with_blob[each.key] for each in endpoints if each.far_certificate and not each.is_initiator
        }


def _beginnings(peer: Peer, rows: pa.Table, places: Mapping[Key, int]) -> list[FirstRow]:
    columns: dict[str, Any] = {name: rows[name] for name in _COLUMNS}
    return [
        FirstRow(
            conversation_id=key[0],
            is_initiator=not key[1],
            principal=peer.principal,
            **{name: column[place].as_py() for name, column in columns.items()},
        )
        for key, place in places.items()
    ]


STALE_MAX: Final = 10
"""How often a batch is planned again at once, when others are faster (N3)."""
CULPRITS_MOST: Final = 16
"""How many rows that nothing can be made of are looked for among those of one batch (N15)."""
_NOTHING_MADE: Final = 9736


class InboundProcessor:
    """Takes batches. For one thread.

    Args:
        machines: The machines.
        dispatch: Where rows go.
        beginnings: Whether what begins may.
        carrying: Who hears of acknowledgements.
        events: Where lines of the log are counted.
    """

    def __init__(
        self,
        machines: DialogsByDatabase,
        dispatch: InboundRouter,
        beginnings: FirstRowCheck,
        carrying: ConversationsInTransit,
        *,
        events: EventLog,
    ) -> None:
        self._machines: Final = machines
        self._dispatch: Final = dispatch
        self._beginnings: Final = beginnings
        self._carrying: Final = carrying
        self._events: Final = events

    def take(self, batches: Sequence[Batch], *, now: int) -> list[Batch]:
        """Takes batches. What fails for a reason that does not pass is dropped: its senders keep it, and send it again.

        Where nobody knows the reason, a row may be to blame that would have all others fail with it, as often as it comes: the batch is
        halved until it stands alone (N15).

        Args:
            batches: The batches.
            now: The moment.

        Returns:
            What could not be taken because others were writing to a file.
        """
        self._beginnings.start_round()
        left: list[Batch] = []
        for peer, joined in _joined(batches):
            parts, culprits = [joined], 0
            while parts:
                for rows, error in self._try(peer, parts.pop(), now, left):
                    if rows.num_rows > 1 and culprits < CULPRITS_MOST:
                        half = rows.num_rows // 2
                        parts += [rows.slice(half), rows.slice(0, half)]
                    else:
                        culprits += 1
                        self._drop(peer, rows, error, now)
        return left

    def _try(self, peer: Peer, rows: pa.Table, now: int, left: list[Batch]) -> list[tuple[pa.Table, Exception]]:
        """Takes rows; those that failed for a reason that nobody knows."""
        try:
            parcels = self._dispatch.sort(peer, rows)
        except StorageError as error:
            source = peer.principal or "somebody"
            if self._events.allows_line(
                "what came could not be looked at", level=logging.WARNING, source=source, now=now
            ):
                LOGGER.warning("what came from %s could not be looked at, and will come again: %s", peer.address, error)
            return []
        except Exception as error:  # noqa: BLE001 - the caller tells of it
            return [(rows, error)]
        failed: list[tuple[pa.Table, Exception]] = []
        for parcel in parcels:
            try:
                self._take(peer, parcel, now)
            except LockTimeoutError:
                left.append((peer, parcel.rows))
            except StorageError as error:
                log_failure(parcel.machine.database, "what came could not be taken, and will come again", error)
            except Exception as error:  # noqa: BLE001 - the caller tells of it
                failed.append((parcel.rows, error))
        return failed

    def _drop(self, peer: Peer, rows: pa.Table, error: Exception, now: int) -> None:
        """Tells of rows that cannot be taken."""
        source = peer.principal or "somebody"
        if self._events.allows_line(str(_NOTHING_MADE), level=logging.ERROR, source=source, now=now):
            text = "%d rows that came from %s, %s, were dropped, since taking them failed"
            LOGGER.error(text, rows.num_rows, peer.label, peer.address, exc_info=error)
        if rows.num_rows == 1:
            text = f"taking it failed: {type(error).__name__}, from {peer.address}"
            with suppress(Exception):  # it may be the telling that fails
                self._dispatch.tell(rows, 0, error=_NOTHING_MADE, text=text, principal=peer.principal)

    def _take(self, peer: Peer, parcel: InboundRows, now: int) -> None:
        rows, keys = self._beginnings.open(peer, parcel)
        machine = parcel.machine
        principal = None if peer.principal is None else peer.principal.encode()
        for _ in range(STALE_MAX):
            if not rows.num_rows:
                return
            taken = machine.take(rows, peer=principal, session_keys=keys, now=now)
            if not isinstance(taken, StalePlan):
                self._carrying.acknowledged(machine.database.database_id, taken.acknowledged, now=now)
                return
            if taken.is_whole:
                self._machines.drop(machine)
                return


def _joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Batches of one principal that follow each other, as one: they go into one transaction (N15)."""
    waiting: list[pa.Table] = []
    last: Peer | None = None
    for peer, rows in batches:
        if last is not None and (peer.principal, peer.address) != (last.principal, last.address):
            yield last, pa.concat_tables(waiting)
            waiting = []
        waiting.append(rows)
        last = peer
    if last is not None:
        yield last, pa.concat_tables(waiting)
