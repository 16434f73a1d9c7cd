"""To which database of the instance arrivals go (N14, R1, R2, R7)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import moment
from ssbroker.broker.asking.dynamic_routing import Ask
from ssbroker.broker.network.connections.buckets import Buckets
from ssbroker.broker.network.exchange.machine import Machine
from ssbroker.broker.network.exchange.seeking import ASKS_AT_ONCE, ASKS_PER_SECOND
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.columns import listed
from ssbroker.protocol.events import MessageUndeliverable
from ssbroker.protocol.ledger import Key
from ssbroker.schemas import CONVERSATIONS
from ssbroker.store import carrying
from ssbroker.store.registry import MSDB_NAME
from ssbroker.wording import quoted, soften

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.hooks import Forwards
    from ssbroker.broker.network.seam import Peer

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
class Parcel:
    """Rows that one machine takes.

    Attributes:
        machine: The machine.
        rows: The rows (`adjacent.batch.WIRE`).
        keys: For each row, the endpoint that it is for.
        fresh: The endpoints among them that are not there yet.
    """

    machine: Machine
    rows: pa.Table
    keys: Sequence[Key]
    fresh: set[Key]


class Dispatch:
    """Sorts arrivals by databases, hands on what is for other instances, and tells of what nobody takes.

    Args:
        instance: The instance.
        machines: The machines of the databases that are enabled.
        machine: The machine of a database by its name; None where it cannot take anything now.
        forwards: Who passes on what is for others; None where nobody does.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        machines: Callable[[], Iterable[Machine]],
        machine: Callable[[str], Machine | None],
        forwards: Forwards | None,
    ) -> None:
        self._instance: Final = instance
        self._machines: Final = machines
        self._machine: Final = machine
        self._forwards: Final = forwards
        self._asks: Final = Buckets(at_once=ASKS_AT_ONCE, per_second=ASKS_PER_SECOND)

    def sort(self, peer: Peer, rows: pa.Table) -> list[Parcel]:
        """Sorts a batch.

        Args:
            peer: Who brought it.
            rows: The rows (`adjacent.batch.WIRE`).

        Returns:
            What is for databases of this instance.

        Raises:
            StorageError: A file cannot be read.
        """
        sides: list[Any] = rows["is_initiator"].to_pylist()
        conversations: list[Any] = listed(rows["conversation_id"])
        keys: list[Key] = [(conversation, not side) for conversation, side in zip(conversations, sides, strict=True)]
        left = dict(zip(keys, listed(rows["to_broker_instance"]), strict=True))
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
        return self._instance.router().route(_conversations(rows).combine_chunks(), now=self._instance.clock())

    def _homes(self, left: Mapping[Key, bytes | None]) -> dict[Key, Machine]:
        """Where the endpoints are that are here. What names another broker id than their databases have is for a copy, maybe elsewhere.

        Args:
            left: The endpoints, and the broker id by which each is named, if any.
        """
        homes: dict[Key, Machine] = {}
        machines = list(self._machines())

        def has(machine: Machine, keys: Iterable[Key]) -> None:
            for key in keys:
                if left[key] in (None, machine.ledger.broker_instance):
                    homes.setdefault(key, machine)

        for machine in machines:
            has(machine, (key for key in left if machine.dialogs.knows(key)))
        for machine in machines:
            if unknown := [key for key in left if key not in homes]:
                with machine.database.file.read() as connection:
                    has(machine, carrying.known(connection, unknown))
        return homes

    def _route(
        self, peer: Peer, rows: pa.Table, keys: Sequence[Key], fresh: set[Key], homes: dict[Key, Machine]
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
            service = soften(quoted(asked["to_service_name"][number].as_py()))
            self.tell(
                asked,
                number,
                error=error,
                text=f"{reason}: nothing here takes what is for {service}, from {peer.address}",
                principal=peer.principal,
            )

    def _ask_for_routes(self, peer: Peer, rows: pa.Table, decisions: pa.Table, numbers: Iterable[int]) -> None:
        """What comes again finds the route that is asked for now (R14); neighbours without a principal are one."""
        now = moment.microseconds(self._instance.clock())
        asks = {
            Ask(MSDB_NAME, rows["to_service_name"][number].as_py(), rows["to_broker_instance"][number].as_py())
            for number in numbers
            if decisions["reason"][number].as_py() == "route_requested"
        }
        # Where another database has asked, the step was passed over; what that one is answered makes no route in msdb (R1).
        routing = self._instance.worker.dynamic_routing
        is_asking = routing.is_asking(self._instance.msdb, now=now)
        pending = frozenset(self._instance.catalog().pending_requests if is_asking else ())
        asks |= {
            Ask(MSDB_NAME, service, rows["to_broker_instance"][number].as_py())
            for number in numbers
            if (service := rows["to_service_name"][number].as_py()) in pending
            and (decisions["match_step"][number].as_py() or 0) > _ASKING_STEP
        }
        if not asks:
            return
        may_begin = partial(self._asks.take, peer.principal or "", now=now)
        try:
            routing.ask(sorted(asks, key=repr), may_begin=may_begin)
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
                at=moment.microseconds(self._instance.clock()),
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


def _parcels(rows: pa.Table, keys: Sequence[Key], homes: Mapping[Key, Machine], fresh: set[Key]) -> Iterable[Parcel]:
    by_machine: dict[int, tuple[Machine, list[int]]] = {}
    for place, key in enumerate(keys):
        machine = homes.get(key)
        if machine is not None:
            by_machine.setdefault(id(machine), (machine, []))[1].append(place)
    for machine, places in by_machine.values():
        if len(places) == len(keys):
            yield Parcel(machine, rows, keys, fresh)
        else:
            yield Parcel(machine, rows.take(pa.array(places, pa.int64())), [keys[place] for place in places], fresh)
