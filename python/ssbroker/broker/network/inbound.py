"""Writes received rows to the databases: `InboundRouter` assigns rows, `FirstRowCheck` checks first rows, and `InboundProcessor` drives both."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._text import quoted, restore_spaces
from ssbroker.broker.background import Background
from ssbroker.broker.context import InstanceContext, log_failure
from ssbroker.broker.dynamic_routing import REQUESTS_BURST, REQUESTS_PER_SECOND, RouteRequest
from ssbroker.broker.network.conversations_in_transit import ConversationsInTransit
from ssbroker.broker.network.database_dialogs import DatabaseDialogs, DialogRegistry
from ssbroker.broker.network.dialog_keys import EXCHANGE_LOCK_TIMEOUT, DialogKeys, FirstRow, RefusedDirection
from ssbroker.broker.network.inbound_writer import StalePlanError
from ssbroker.broker.network.inbox import Batch
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.exceptions import LockTimeoutError, SsbrokerError, StorageError
from ssbroker.protocol.arrow_columns import column_values, concatenated
from ssbroker.protocol.envelope import receiver_keys
from ssbroker.protocol.events import RECEIVED_FROM, EventLog, MessageUndeliverable
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey, ExchangedKeys, SessionKeys
from ssbroker.protocol.wire.frames import DropReason
from ssbroker.schemas import CONVERSATIONS
from ssbroker.store import conversation_endpoints
from ssbroker.store.database_registry import MSDB_NAME

if TYPE_CHECKING:
    from ssbroker.broker.network.forwarding import MessageForwarder
    from ssbroker.broker.network.interfaces import Peer, PeerKey


_DROP_EXPLANATIONS: Final = {
    "address_unusable": (9785, "only the address TRANSPORT was found, and the service name contains no address"),
    "forwarding_disabled": (9792, "its route leads to another instance, and message forwarding is disabled"),
    "no_route": (9750, "no route of msdb leads to it"),
    "route_requested": (9770, "no route of msdb leads to it; one has been requested"),
    "routing_loop": (28017, "its route leads back to this instance"),
    "sender_disabled": (9791, "the broker of msdb is disabled"),
    "service_not_found": (11210, "no enabled database has it"),
}
"""Service Broker's error number and an explanation, for each `reason` to drop a received row (R26)."""
_REQUEST_STEP: Final = 4
_LOGGER: Final = logging.getLogger("ssbroker.broker")


@dataclass(frozen=True, slots=True)
class InboundRows:
    """Received rows for one database.

    Attributes:
        dialogs: The dialogs of the database.
        rows: The rows (`wire.frames.WIRE`).
        keys: The receiving endpoint of each row.
        new: The endpoints in `keys` that do not exist yet.
    """

    dialogs: DatabaseDialogs
    rows: pa.Table
    keys: Sequence[EndpointKey]
    new: set[EndpointKey]


class InboundRouter:
    """Splits received rows by database, passes rows for other instances to forwarding, and reports undeliverable rows."""

    def __init__(
        self,
        instance: InstanceContext,
        background: Background,
        dialogs: DialogRegistry,
        *,
        forwards: MessageForwarder,
        report_drops: Callable[[PeerKey, Mapping[EndpointKey, DropReason]], None],
    ) -> None:
        self.report_drops: Final = report_drops
        self._instance: Final = instance
        self._background: Final = background
        self._dialogs: Final = dialogs
        self._forwards: Final = forwards
        self._limiter: Final = RateLimiter(burst=REQUESTS_BURST, per_second=REQUESTS_PER_SECOND)

    def route(self, peer: Peer, rows: pa.Table) -> list[InboundRows]:
        """Returns the rows for databases of this instance; forwards all other rows, or drops and reports them."""
        keys = list(receiver_keys(rows))
        endpoints = dict(zip(keys, column_values(rows["to_broker_instance"]), strict=True))
        owners = self._owners(endpoints)
        new = {key for key in endpoints if key not in owners}
        if new:
            self._route_new(peer, rows, keys, new, owners)
        return list(_split(rows, keys, owners, new))

    def are_for_loaded_dialogs(self, rows: pa.Table) -> bool:
        """Returns whether rows are messages for endpoints in memory and contain no keys; a file is read only for rows that name a different broker id.

        False for a row that only acknowledges: it may remove many messages from the transmission queue, and no receiver waits for it.
        """
        if rows["key_exchange"].null_count < rows.num_rows or False in rows["is_sequenced"].to_pylist():
            return False
        loaded = [dialogs.engine.is_loaded for dialogs in self._dialogs.all()]
        return all(any(is_loaded(key) for is_loaded in loaded) for key in receiver_keys(rows))

    def decisions(self, rows: pa.Table) -> pa.Table:
        """Routes rows received from other instances; returns one row of `schemas.DECISIONS` for each."""
        # Combined into one chunk, because rows that were received one by one would otherwise be routed one by one.
        return self._background.catalog.router().route(
            _conversations(rows).combine_chunks(), now=self._instance.clock()
        )

    def _owners(self, endpoints: Mapping[EndpointKey, bytes | None]) -> dict[EndpointKey, DatabaseDialogs]:
        """Finds the databases that hold endpoints.

        A row that names a broker id other than that of the endpoint's database belongs to a copy of the database, perhaps in another instance.
        """
        owners: dict[EndpointKey, DatabaseDialogs] = {}
        all_dialogs = self._dialogs.all()

        def add(dialogs: DatabaseDialogs, keys: Iterable[EndpointKey]) -> None:
            for key in keys:
                if endpoints[key] in (None, dialogs.storage.broker_instance):
                    owners.setdefault(key, dialogs)

        for dialogs in all_dialogs:
            add(dialogs, (key for key in endpoints if dialogs.engine.is_loaded(key)))
        for dialogs in all_dialogs:
            if unknown := [key for key in endpoints if key not in owners]:
                with dialogs.database.file.read() as connection:
                    add(dialogs, conversation_endpoints.existing_sides(connection, unknown))
        return owners

    def _route_new(
        self,
        peer: Peer,
        rows: pa.Table,
        keys: Sequence[EndpointKey],
        new: set[EndpointKey],
        owners: dict[EndpointKey, DatabaseDialogs],
    ) -> None:
        """Routes rows that have no endpoint here: with the routes of msdb, or to the database that a reply names."""
        positions = [position for position, key in enumerate(keys) if key in new]
        unrouted = rows if len(positions) == len(keys) else rows.take(pa.array(positions, pa.int64()))
        decisions = self.decisions(unrouted)
        outcomes: list[Any] = decisions["outcome"].to_pylist()
        databases: list[Any] = decisions["target_database"].to_pylist()
        forwarded: list[int] = []
        dropped: dict[EndpointKey, int] = {}
        for number, (position, outcome, database) in enumerate(zip(positions, outcomes, databases, strict=True)):
            key = keys[position]
            if outcome == "LOCAL":
                dialogs = owners.get(key) or self._dialogs.by_name(database)
                if dialogs is not None:
                    owners[key] = dialogs
            elif outcome == "FORWARD":
                forwarded.append(number)
            else:
                dropped.setdefault(key, number)
        if forwarded:
            chosen = pa.array(forwarded, pa.int64())
            self._forwards.forward(peer, unrouted.take(chosen), decisions.take(chosen))
        if dropped:
            self._request_routes(peer, unrouted, decisions, dropped.values())
        reasons: dict[EndpointKey, DropReason] = {}
        for key, number in dropped.items():
            reason = decisions["reason"][number].as_py()
            reasons[_sender(key)] = (
                DropReason.FORWARDING_DISABLED if reason == "forwarding_disabled" else DropReason.NOT_ACCEPTED
            )
            error, why = _DROP_EXPLANATIONS[reason]
            if reason == "service_not_found" and (broker := unrouted["to_broker_instance"][number].as_py()) is not None:
                why = f"no enabled database with the service has the broker id {uuid.UUID(bytes=broker)}, which the message or its route names"
            service = restore_spaces(quoted(unrouted["to_service_name"][number].as_py()))
            self.report(
                unrouted,
                number,
                error=error,
                text=f"{reason}: the service {service}: {why}{RECEIVED_FROM}{peer.address}",
                principal=peer.principal,
            )
        if reasons:
            self.report_drops(peer.key, reasons)

    def _request_routes(self, peer: Peer, rows: pa.Table, decisions: pa.Table, numbers: Iterable[int]) -> None:
        """Requests missing routes, so that the retransmitted rows find them (R14).

        Peers without a principal share one rate limit.
        """
        now = self._instance.microseconds()
        requests = {
            RouteRequest(MSDB_NAME, rows["to_service_name"][number].as_py(), rows["to_broker_instance"][number].as_py())
            for number in numbers
            if decisions["reason"][number].as_py() == "route_requested"
        }
        # If another database has already requested the route, routing has skipped the request step, but the answer
        # creates no route in msdb (R1).
        routing = self._background.dynamic_routing
        is_asking = routing.has_configuration_service(self._instance.msdb, now=now)
        pending = frozenset(self._background.catalog.catalog().pending_requests if is_asking else ())
        requests |= {
            RouteRequest(MSDB_NAME, service, rows["to_broker_instance"][number].as_py())
            for number in numbers
            if (service := rows["to_service_name"][number].as_py()) in pending
            and (decisions["match_step"][number].as_py() or 0) > _REQUEST_STEP
        }
        if not requests:
            return
        may_begin = partial(self._limiter.take, peer.principal or "", now=now)
        try:
            routing.request(sorted(requests, key=repr), may_begin=may_begin)
        except SsbrokerError as error:
            _LOGGER.warning(
                "missing routes could not be requested; the request is repeated when the messages arrive again: %s",
                error,
            )

    def report(self, rows: pa.Table, number: int, *, error: int, text: str, principal: str | None) -> None:
        """Emits the event for a row that cannot be delivered."""
        row: Mapping[str, Any] = rows.slice(number, 1).to_pylist()[0]
        self._instance.events.emit(
            MessageUndeliverable(
                at=self._instance.microseconds(),
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


def _sender(receiver: EndpointKey) -> EndpointKey:
    """Returns the other endpoint of a conversation."""
    return receiver[0], not receiver[1]


def _conversations(rows: pa.Table) -> pa.Table:
    """Returns the routing input for received rows; a null `database` means that they come from another instance."""
    columns: list[Any] = [
        rows["conversation_id"],
        pa.nulls(rows.num_rows, pa.string()),
        rows["to_service_name"],
        rows["to_broker_instance"],
        rows["is_initiator"],
    ]
    return pa.Table.from_arrays(columns, schema=CONVERSATIONS)


def _split(
    rows: pa.Table, keys: Sequence[EndpointKey], owners: Mapping[EndpointKey, DatabaseDialogs], new: set[EndpointKey]
) -> Iterable[InboundRows]:
    by_database: dict[int, tuple[DatabaseDialogs, list[int]]] = {}
    for position, key in enumerate(keys):
        dialogs = owners.get(key)
        if dialogs is not None:
            by_database.setdefault(id(dialogs), (dialogs, []))[1].append(position)
    for dialogs, positions in by_database.values():
        if len(positions) == len(keys):
            yield InboundRows(dialogs, rows, keys, new)
        else:
            yield InboundRows(
                dialogs, rows.take(pa.array(positions, pa.int64())), [keys[position] for position in positions], new
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
    """Checks the first rows of each direction of a dialog: their keys, and whether the sender may send."""

    def __init__(self, keys: DialogKeys, router: InboundRouter) -> None:
        self._keys: Final = keys
        self._router: Final = router

    def start_round(self) -> None:
        """Resets the limits that apply to one turn of the exchange."""
        self._keys.start_round()

    def check(self, peer: Peer, part: InboundRows, *, lock_timeout: float) -> tuple[pa.Table, SessionKeys]:
        """Drops the rows of directions whose keys or sender were refused; returns the remaining rows, and the session keys that they contained.

        Waits up to `lock_timeout` seconds for the database if a sender has a new certificate.
        """
        rows = part.rows
        directions, established = self._directions_to_check(part)
        if not directions and not established:
            return rows, {}
        self._update_certificates(peer, part, established, lock_timeout=lock_timeout)
        first_rows = _first_rows(peer, rows, directions)
        answers = self._keys.accept_directions(part.dialogs.database, first_rows)
        refused: set[EndpointKey] = set()
        keys: dict[bytes, ExchangedKeys] = {}
        for (key, position), first_row, answer in zip(directions.items(), first_rows, answers, strict=True):
            if isinstance(answer, RefusedDirection):
                refused.add(key)
                self._router.report(rows, position, error=answer.error, text=answer.text, principal=first_row.principal)
            elif answer is not None:
                of = (first_row.is_initiator, first_row.from_service_name, first_row.to_service_name)
                keys[key[0]] = replace(answer, valid_for=of)
        if refused:
            rows = rows.filter(pa.array([key not in refused for key in part.keys], pa.bool_()))
        return rows, keys

    def _update_certificates(
        self, peer: Peer, part: InboundRows, taken: Mapping[DialogEndpoint, int], *, lock_timeout: float
    ) -> None:
        """Records new certificates of the senders of established conversations."""
        dialogs = part.dialogs
        first_rows = _first_rows(peer, part.rows, {endpoint.key: position for endpoint, position in taken.items()})
        renewed = [
            endpoint.key
            for endpoint, first_row in zip(taken, first_rows, strict=True)
            if self._keys.update_certificate(dialogs.database, endpoint, first_row, lock_timeout=lock_timeout)
        ]
        if renewed:
            dialogs.change_certificates(renewed)

    @staticmethod
    def _directions_to_check(part: InboundRows) -> tuple[dict[EndpointKey, int], dict[DialogEndpoint, int]]:
        """Returns the directions to check, and the established targets that sent a blob, each with one of its rows (if possible, with a blob)."""
        directions: dict[EndpointKey, int] = {}
        if part.new:
            for position, key in enumerate(part.keys):
                if key in part.new:
                    directions.setdefault(key, position)
        blobs = part.rows["key_exchange"]
        if blobs.null_count == len(blobs):
            return directions, {}
        with_blob: dict[EndpointKey, int] = {}
        for position, (key, blob) in enumerate(zip(part.keys, blobs.to_pylist(), strict=True)):
            if blob is not None:
                with_blob.setdefault(key, position)
        known = [key for key in with_blob if key not in part.new]
        senders = part.rows["from_broker_instance"]
        endpoints = [each for each in part.dialogs.storage.endpoints(known) if each is not None]
        unanswered = {
            endpoint.key
            for endpoint in endpoints
            if endpoint.is_initiator
            and not (endpoint.is_bound and senders[with_blob[endpoint.key]].as_py() == endpoint.far_broker_instance)
        }
        for key, position in with_blob.items():
            if key in directions or key in unanswered:
                directions[key] = position
        return directions, {
            each: with_blob[each.key] for each in endpoints if each.far_certificate and not each.is_initiator
        }


def _first_rows(peer: Peer, rows: pa.Table, positions: Mapping[EndpointKey, int]) -> list[FirstRow]:
    columns: dict[str, Any] = {name: rows[name] for name in _COLUMNS}
    return [
        FirstRow(
            conversation_id=key[0],
            is_initiator=not key[1],
            principal=peer.principal,
            **{name: column[position].as_py() for name, column in columns.items()},
        )
        for key, position in positions.items()
    ]


ATTEMPTS_MAX: Final = 10
"""The maximum number of times that a batch is planned again because other writers have changed its endpoints."""
FAILED_ROWS_MAX: Final = 16
"""The maximum number of failing rows that are isolated in one batch."""
LOCK_PAUSE: Final = SECOND // 4
"""After a wait for a locked database has ended without the lock, its rows are deferred for this time, in microseconds."""
_UNEXPECTED_ERROR: Final = 9736


class InboundProcessor:
    """Writes received batches to the databases. For one thread at a time."""

    def __init__(
        self,
        dialogs: DialogRegistry,
        router: InboundRouter,
        first_row_check: FirstRowCheck,
        in_transit: ConversationsInTransit,
        *,
        events: EventLog,
    ) -> None:
        self._dialogs: Final = dialogs
        self._router: Final = router
        self._first_row_check: Final = first_row_check
        self._in_transit: Final = in_transit
        self._events: Final = events
        self._waited_at: Final[dict[int, int]] = {}

    def process(
        self, batches: Sequence[Batch], *, now: int, lock_timeout: float = EXCHANGE_LOCK_TIMEOUT
    ) -> list[Batch]:
        """Processes batches; returns those that could not be written because their database is locked.

        Waits up to `lock_timeout` seconds for a locked database, and then not again for `LOCK_PAUSE`, so that other databases do not wait with
        it. Rows that fail for another reason are dropped; their senders retransmit them. After an unexpected error the batch is halved until
        the failing row is alone, so that one invalid row cannot block all others.
        """
        self._first_row_check.start_round()
        deferred: dict[DatabaseDialogs, list[Batch]] = {}
        for peer, joined in _join_batches(batches):
            remaining, isolated = [joined], 0
            while remaining:
                for rows, error in self._route_and_write(peer, remaining.pop(), now, lock_timeout, deferred):
                    if rows.num_rows > 1 and isolated < FAILED_ROWS_MAX:
                        half = rows.num_rows // 2
                        remaining += [rows.slice(half), rows.slice(0, half)]
                    else:
                        isolated += 1
                        self._drop(peer, rows, error, now)
        return [batch for batches in deferred.values() for batch in batches]

    def _route_and_write(
        self, peer: Peer, rows: pa.Table, now: int, lock_timeout: float, deferred: dict[DatabaseDialogs, list[Batch]]
    ) -> list[tuple[pa.Table, Exception]]:
        """Processes rows; adds those whose database is locked to `deferred`, and returns those that failed unexpectedly."""
        try:
            parts = self._router.route(peer, rows)
        except StorageError as error:
            source = peer.principal or "unknown peer"
            if self._events.allows_line(
                "received messages could not be checked", level=logging.WARNING, source=source, now=now
            ):
                _LOGGER.warning(
                    "messages from %s could not be checked; the peer will send them again: %s", peer.address, error
                )
            return []
        except Exception as error:  # noqa: BLE001 - the caller reports it
            return [(rows, error)]
        failed: list[tuple[pa.Table, Exception]] = []
        for part in parts:
            rows = part.rows
            database_id = part.dialogs.database.database_id
            # Later rows must not overtake deferred ones.
            if part.dialogs in deferred or 0 <= now - self._waited_at.get(database_id, -LOCK_PAUSE) < LOCK_PAUSE:
                deferred.setdefault(part.dialogs, []).append((peer, rows))
                continue
            try:
                rows, keys = self._first_row_check.check(peer, part, lock_timeout=lock_timeout)
                self._write(peer, part, rows, keys, now=now, lock_timeout=lock_timeout)
                self._waited_at.pop(database_id, None)
            except LockTimeoutError:
                deferred[part.dialogs] = [(peer, rows)]  # without the refused rows, which have been reported
                if lock_timeout:
                    self._waited_at[database_id] = now
            except StorageError as error:
                log_failure(
                    part.dialogs.database, "received messages could not be stored; the peer will send them again", error
                )
            except Exception as error:  # noqa: BLE001 - the caller reports it
                failed.append((rows, error))
        return failed

    def _drop(self, peer: Peer, rows: pa.Table, error: Exception, now: int) -> None:
        """Logs and reports rows that cannot be processed."""
        source = peer.principal or "unknown peer"
        if self._events.allows_line(str(_UNEXPECTED_ERROR), level=logging.ERROR, source=source, now=now):
            text = (
                "dropped %d rows from %s (%s) because of an unexpected error, which is a bug in ssbroker: report it with this "
                "traceback; the rows will be sent again"
            )
            _LOGGER.error(text, rows.num_rows, peer.label, peer.address, exc_info=error)
        if rows.num_rows == 1:
            text = f"unexpected error {type(error).__name__}{RECEIVED_FROM}{peer.address}"
            with suppress(Exception):  # emitting the event may be what fails
                self._router.report(rows, 0, error=_UNEXPECTED_ERROR, text=text, principal=peer.principal)

    def _write(
        self, peer: Peer, part: InboundRows, rows: pa.Table, keys: SessionKeys, *, now: int, lock_timeout: float
    ) -> None:
        """Writes the rows of a part that were not refused."""
        dialogs = part.dialogs
        principal = None if peer.principal is None else peer.principal.encode()
        for _ in range(ATTEMPTS_MAX):
            if not rows.num_rows:
                return
            try:
                changes = dialogs.receive(rows, peer=principal, session_keys=keys, now=now, lock_timeout=lock_timeout)
            except StalePlanError as error:
                if error.is_database_changed:
                    self._dialogs.drop(dialogs)
                    return
                continue
            self._in_transit.acknowledged(dialogs.database.database_id, changes.acknowledged, now=now)
            reasons = dict.fromkeys(dialogs.without_route(part.keys), DropReason.NO_RETURN_ROUTE)
            reasons |= dict.fromkeys(changes.too_large, DropReason.TOO_LARGE)
            if reasons:
                self._router.report_drops(peer.key, {_sender(key): reason for key, reason in reasons.items()})
            return
        name = dialogs.database.name
        if self._events.allows_line("conversations changed too often", level=logging.WARNING, source=name, now=now):
            _LOGGER.warning(
                "%s: %d rows were dropped, because other transactions changed their conversations %d times; the peer sends them again",
                name,
                rows.num_rows,
                ATTEMPTS_MAX,
            )


def _join_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Joins consecutive batches from one principal, to write them in one transaction."""
    for _, group in groupby(batches, key=lambda batch: (batch[0].principal, batch[0].address)):
        peers, tables = zip(*group, strict=True)
        yield peers[-1], concatenated(tables)
