"""Computes every decision that a catalog can make, over all classes of conversations and all tie breaks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from operator import getitem
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker._well_known import CONFIGURATION_SERVICE
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.catalog_rows import LOCAL, MSDB, TRANSPORT, FleetRoute, Tables, dictionary_encoded, read_tables
from ssbroker.router import PendingRequest, Router

_OF_ROUTES: Final = ("match_step", "route_id")
_COLUMNS: Final = (
    "outcome",
    "reason",
    *_OF_ROUTES,
    "next_hop_address",
    "mirror_address",
    "target_database",
    "broker_instance",
)

Origin = tuple[str | None, bool]
"""The database in which a conversation started (None if it arrives from another instance), and whether the initiator sends."""
Target = tuple[str, bytes | None]
"""A service name and broker id; one pair represents all pairs that get the same decisions."""


class RouteLookup(NamedTuple):
    """A conversation without its id: the input of a routing decision."""

    database: str | None
    """The database in which the conversation started; None if it arrives from another instance."""
    service: str
    broker: bytes | None = None
    is_initiator: bool = True


class PossibleDecision(NamedTuple):
    """One possible routing decision."""

    outcome: str
    reason: str
    match_step: int | None
    route_id: int | None
    next_hop: str | None
    mirror: str | None
    target_database: str | None
    broker: bytes | None = None
    """Not set in comparisons, because it follows from the other fields and from the broker id of the conversation."""

    def __str__(self) -> str:
        where = self.target_database if self.outcome == "LOCAL" else self.next_hop
        return f"{self.outcome} {where}" if where is not None else f"{self.outcome} ({self.reason})"


def route_targets(router: Router, origin: Origin, classes: Sequence[Target], now: datetime) -> pa.RecordBatch:
    """Routes a conversation from `origin` to each target; returns decisions in the schema `schemas.DECISIONS`."""
    database, is_initiator = origin
    columns: dict[str, Any] = {
        "database": pa.repeat(pa.scalar(database, pa.string()), len(classes)),
        "to_service_name": pa.array([service for service, _ in classes], pa.string()),
        "to_broker_instance": pa.array([broker for _, broker in classes], pa.binary(16)),
        "is_initiator": pa.repeat(is_initiator, len(classes)),
    }
    return router.route(pa.RecordBatch.from_pydict(columns), now=now)


class DecisionSets:
    """Distinct sets of decisions, each stored once; most lookups in an instance get equal sets.

    Without `with_routes`, decisions contain no step and no route id.
    """

    def __init__(self, *, with_routes: bool) -> None:
        self.sets: Final[list[tuple[PossibleDecision, ...]]] = []
        """Every set, at its index."""
        self._indices: Final[dict[tuple[PossibleDecision, ...], int]] = {}
        self._columns: Final = [name for name in _COLUMNS if with_routes or name not in _OF_ROUTES]
        self._with_routes: Final = with_routes

    def index(self, decisions: tuple[PossibleDecision, ...]) -> int:
        """Returns the index of a set in `sets`; stores the set if it is new."""
        index = self._indices.setdefault(decisions, len(self.sets))
        if index == len(self.sets):
            self.sets.append(decisions)
        return index

    def indices(self, decisions: pa.RecordBatch, repeats: Sequence[int]) -> list[int]:
        """Returns the index of the decision set of each lookup; `repeats` is the number of consecutive rows for each lookup."""
        columns = [dictionary_encoded(decisions.column(name)) for name in self._columns]
        rows = list(zip(*(indices for indices, _ in columns), strict=True))
        single_decisions = _SingleDecisions(self, [words for _, words in columns], with_routes=self._with_routes)
        if len(rows) == len(repeats):
            return list(map(single_decisions.__getitem__, rows))
        found = []
        first = 0
        for repeat_count in repeats:
            if repeat_count == 1:
                found.append(single_decisions[rows[first]])
            else:
                each = (self.sets[single_decisions[row]][0] for row in rows[first : first + repeat_count])
                found.append(self.index(tuple(dict.fromkeys(each))))
            first += repeat_count
        return found


class _SingleDecisions(dict[tuple[int, ...], int]):
    """The indices of sets with a single decision, by the dictionary indices of the decision; computed on first access."""

    def __init__(self, decision_sets: DecisionSets, words: list[list[Any]], *, with_routes: bool) -> None:
        super().__init__()
        self._decision_sets = decision_sets
        self._words = words
        self._with_routes = with_routes

    def __missing__(self, row: tuple[int, ...]) -> int:
        outcome, reason, *rest = map(getitem, self._words, row)
        of_route = () if self._with_routes else (None, None)
        self[row] = index = self._decision_sets.index((PossibleDecision(outcome, reason, *of_route, *rest),))
        return index


pc: Any = pyarrow.compute  # its stubs are incomplete
BATCH_ROWS: Final = 1 << 16
_NO_COUNTS: Final[dict[bytes | None, int]] = {}


class Behaviour:
    """The routing decisions that an instance can make.

    `rows` are the tables of the catalog, if already read. Without `with_routes`, decisions contain no step and no route
    id, so that most service names share a set of decisions.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        now: datetime,
        pending_request: PendingRequest = "continue",
        rows: Tables | None = None,
        with_routes: bool = False,
    ) -> None:
        self.now: Final = now
        self.tables: Final = read_tables(catalog) if rows is None else rows
        self.own_addresses: Final = frozenset(catalog.addresses)
        self._inbound_router: Final = Router(catalog, tie_break="round_robin", pending_request=pending_request)
        live_routes = [route for route in self.tables.routes if route.is_live(now)]
        self._broker_counts: Final = _count_by_broker(live_routes)
        self._wildcard_counts: Final = Counter(
            route.database for route in live_routes if route.service is None and route.broker is None
        )
        self._transport_tables: Final = {
            route.database for route in live_routes if route.address == TRANSPORT and route.service is None
        }
        self._reentry_tables: Final = {
            route.database
            for route in live_routes
            if route.database != MSDB and (route.address in self.own_addresses or route.address == TRANSPORT)
        }
        # The instance's addresses matter only if a route leads back to the instance.
        self._has_reentry: Final = any(
            route.address in self.own_addresses or (route.address == TRANSPORT and self.own_addresses)
            for route in live_routes
        )
        self._local_router: Final = (
            Router(catalog.replace(addresses=()), tie_break="round_robin", pending_request=pending_request)
            if self._has_reentry
            else self._inbound_router
        )
        enabled = {name for name, row in self.tables.databases.items() if row.enabled}
        self._hosts: Final = {
            name: sum(database in enabled for database in where) for name, where in self.tables.hosts.items()
        }
        in_every_table = {*self._hosts, *catalog.pending_requests}
        self.known_names: Final[dict[str, frozenset[str]]] = {
            database: frozenset(
                in_every_table.union(*(self._broker_counts[table] for table in self._tables_read(database)))
            )
            for database in self.tables.databases
        }
        """The service names that each routing table distinguishes; all other names get the same decisions."""
        self._own_ids: Final = frozenset(row.broker for row in self.tables.databases.values() if row.broker)
        names = (f"any other service{'.' * dots}" for dots in count())
        self.unknown_name: Final = next(
            name for name in names if not any(name in each for each in self.known_names.values())
        )
        """A service name that the instance does not know."""
        ids = self._own_ids | {route.broker for route in self.tables.routes}
        new = (number.to_bytes(16, "big") for number in count(0xFFFE << 112))
        self.unknown_broker: Final = next(broker for broker in new if broker not in ids)
        """A broker id that the instance does not know."""
        self._decision_sets: Final = DecisionSets(with_routes=with_routes)
        self._indices_by_target: Final[defaultdict[Origin, dict[Target, int]]] = defaultdict(dict)

    @property
    def decision_sets(self) -> Sequence[tuple[PossibleDecision, ...]]:
        """The sets of decisions by index; for broker ids that the instance does not know, they contain `unknown_broker`."""
        return self._decision_sets.sets

    def from_database(
        self, database: str, service: str, broker: bytes | None = None, *, is_initiator: bool = True
    ) -> tuple[PossibleDecision, ...]:
        """Returns the possible decisions on a conversation that starts in a database of the instance."""
        return self.decisions_for([RouteLookup(database, service, broker, is_initiator)])[0]

    def arriving(
        self, service: str, broker: bytes | None = None, *, is_initiator: bool = True
    ) -> tuple[PossibleDecision, ...]:
        """Returns the possible decisions on a message from another instance."""
        return self.decisions_for([RouteLookup(None, service, broker, is_initiator)])[0]

    def decisions_for(self, lookups: Sequence[RouteLookup]) -> list[tuple[PossibleDecision, ...]]:
        """Returns every possible decision for each lookup; a single decision unless ties must be broken."""
        by_origin: defaultdict[Origin, dict[Target, None]] = defaultdict(dict)
        representatives = [self.class_of(lookup) for lookup in lookups]
        for database, service, broker, is_initiator in representatives:
            by_origin[database, is_initiator][service, broker] = None
        for origin, classes in by_origin.items():
            self._indices_of(origin, list(classes))
        found = []
        for lookup, (database, service, broker, is_initiator) in zip(lookups, representatives, strict=True):
            decisions = self.decision_sets[self._indices_by_target[database, is_initiator][service, broker]]
            found.append(_with_broker(decisions, broker, lookup.broker))
        return found

    def decision_set_index(self, origin: Origin, service: str, broker: bytes | None) -> int:
        """Returns the index of the set of decisions for one lookup in `decision_sets`."""
        class_ = self._class(origin, service, broker)
        known = self._indices_by_target[origin].get(class_)
        return self._indices_of(origin, [class_])[0] if known is None else known

    def route_known_names(
        self, origin: Origin, ids: Mapping[str, Collection[bytes | None]], *, addressed_names: Collection[str] = ()
    ) -> Iterator[tuple[Target, int]]:
        """Routes all known names in one batch; yields each name with each of its `ids`, and the index of the set of decisions.

        Names without ids are skipped. `addressed_names` are additional names that may begin with an address.
        """
        table = MSDB if origin[0] is None else origin[0]
        names = sorted(self.known_names[table])
        if self.reads_names(table):
            names += [name for name in addressed_names if name not in self.known_names[table]]
        first, *rest = (self._broker_counts[each] for each in self._tables_read(table))
        others = [(self.unknown_name, broker) for broker in (None, self.unknown_broker, *sorted(self._own_ids))]
        classes = {class_: index for index, class_ in enumerate(others)}
        targets: list[Target] = []
        places: list[int] = []
        for service in names:
            known = first.get(service, _NO_COUNTS)
            for more in rest:
                known = known | more.get(service, _NO_COUNTS)
            for broker in ids.get(service, ()):
                is_known = broker is None or broker in known or broker in self._own_ids
                targets.append((service, broker))
                representative = targets[-1] if is_known else (service, self.unknown_broker)
                places.append(classes.setdefault(representative, len(classes)))
        indices = self._route_classes(origin, list(classes))
        self._indices_by_target[origin].update(zip(others, indices, strict=False))
        return zip(targets, map(indices.__getitem__, places), strict=True)

    def first_picks(self, origin: Origin, classes: Sequence[Target]) -> set[int]:
        """Returns the ids of all routes that are picked for the targets, each of which represents a class.

        If the next hop is an address of this instance, the second routing of the conversation (R41) is not considered.
        """
        found: set[int] = set()
        for part, repeats in self._batches(origin, classes):
            decided = route_targets(self._local_router, origin, _repeat_targets(part, repeats), self.now)
            found.update(pc.unique(pc.drop_null(decided.column("route_id"))).to_pylist())
        return found

    def class_of(self, lookup: RouteLookup) -> RouteLookup:
        """Returns the lookup that represents all lookups with the same decisions."""
        database, service, broker, is_initiator = lookup
        return RouteLookup(database, *self._class((database, is_initiator), service, broker), is_initiator)

    def reads_names(self, table: str) -> bool:
        """Returns whether a routing table distinguishes unknown names, because the addresses at their start may be used."""
        return table in self._transport_tables or (table in self._reentry_tables and MSDB in self._transport_tables)

    def _class(self, origin: Origin, service: str, broker: bytes | None) -> Target:
        table = MSDB if origin[0] is None else origin[0]
        if service not in self.known_names[table] and not (self.reads_names(table) and may_begin_with_address(service)):
            service = self.unknown_name
        if broker is not None and broker not in self._own_ids:
            named = (self._broker_counts[each].get(service, _NO_COUNTS) for each in self._tables_read(table))
            if not any(broker in each for each in named):
                broker = self.unknown_broker
        return service, broker

    def _tables_read(self, database: str) -> tuple[str, ...]:
        """Returns the tables that may be read for conversations from a database."""
        return (database, MSDB) if database in self._reentry_tables else (database,)

    def _indices_of(self, origin: Origin, classes: Sequence[Target]) -> list[int]:
        """Returns the index of the decision set of each target, and caches it."""
        known = self._indices_by_target[origin]
        new = [each for each in dict.fromkeys(classes) if each not in known]
        if new:
            known.update(zip(new, self._route_classes(origin, new), strict=True))
        return [known[each] for each in classes]

    def _route_classes(self, origin: Origin, classes: Sequence[Target]) -> list[int]:
        """Routes a target of each class; returns the index of its decision set in `decision_sets`."""
        router = self._inbound_router if origin[0] is None else self._local_router
        indices: list[int] = []
        for part, repeats in self._batches(origin, classes):
            decided = route_targets(router, origin, _repeat_targets(part, repeats), self.now)
            indices += self._decision_sets.indices(decided, repeats)
        if self._has_reentry and origin[0] is not None:
            self._follow_reentry(origin, classes, indices)
        return indices

    def _follow_reentry(self, origin: Origin, classes: Sequence[Target], indices: list[int]) -> None:
        """Replaces decisions that lead back to this instance with the decisions for messages from another instance (R41)."""
        own_addresses = self.own_addresses
        reentering = {
            each
            for each in set(indices)
            if any(decision.next_hop in own_addresses for decision in self.decision_sets[each])
        }
        reentering_rows = [row for row, index in enumerate(indices) if index in reentering]
        outside = None, origin[1]
        arriving = [self._class(outside, *classes[row]) for row in reentering_rows]
        for row, target, inbound_index in zip(
            reentering_rows, arriving, self._indices_of(outside, arriving), strict=True
        ):
            found: dict[PossibleDecision, None] = {}
            for decision in self.decision_sets[indices[row]]:
                if decision.next_hop in own_addresses:
                    found.update(
                        dict.fromkeys(_with_broker(self.decision_sets[inbound_index], target[1], classes[row][1]))
                    )
                else:
                    found[decision] = None
            indices[row] = self._decision_sets.index(tuple(found))

    def _batches(self, origin: Origin, classes: Sequence[Target]) -> Iterator[tuple[Sequence[Target], list[int]]]:
        """Splits targets into batches, with the number of rows that each target needs."""
        table = MSDB if origin[0] is None else origin[0]
        named, hosts, wildcards = self._broker_counts[table], self._hosts, max(1, self._wildcard_counts[table])
        first = rows = 0
        repeats: list[int] = []
        for index, (service, broker) in enumerate(classes):
            # After this number of rows, round robin has returned every possible decision.
            by_id = named.get(service, _NO_COUNTS)
            if broker is not None:
                repeat_count = by_id.get(broker) or by_id.get(None) or wildcards
            else:
                routes = (by_id.get(None) or len(by_id) * max(by_id.values())) if by_id else wildcards
                repeat_count = routes * (hosts.get(service) or 1)
            repeats.append(repeat_count)
            rows += repeat_count
            if rows >= BATCH_ROWS:
                yield classes[first : index + 1], repeats
                first, rows, repeats = index + 1, 0, []
        if repeats:
            yield classes[first:], repeats


def _repeat_targets(classes: Sequence[Target], repeats: Sequence[int]) -> Sequence[Target]:
    if sum(repeats) == len(classes):
        return classes
    return [each for each, repeat_count in zip(classes, repeats, strict=True) for _ in range(repeat_count)]


def _with_broker(
    decisions: tuple[PossibleDecision, ...], representative: bytes | None, broker: bytes | None
) -> tuple[PossibleDecision, ...]:
    """Returns decisions with the broker id of the lookup instead of the id that represents it."""
    if representative == broker:
        return decisions
    return tuple(
        decision if decision.broker != representative else decision._replace(broker=broker) for decision in decisions
    )


def _count_by_broker(live_routes: Iterable[FleetRoute]) -> defaultdict[str, dict[str, dict[bytes | None, int]]]:
    """Counts the live routes of each table for each service and broker id."""
    named: defaultdict[str, dict[str, dict[bytes | None, int]]] = defaultdict(dict)
    for database, _, _, service, broker, *_ in live_routes:
        if service is None:
            continue
        by_id = named[database].get(service)
        if by_id is None:
            named[database][service] = {broker: 1}
        else:
            by_id[broker] = by_id.get(broker, 0) + 1
    return named


def may_begin_with_address(service: str) -> bool:
    """Returns whether a name may begin with an address: it contains a colon followed by a digit. The router decides."""
    return re.search(r":\d", service) is not None


ANY_NAME: Final = "any service"
ANY_ADDRESS: Final = "TCP://any.invalid:4022/any service"
"""A name that begins with an address, for routes to TRANSPORT."""
_NO_IDS: Final[set[bytes | None]] = set()


def used_routes_of(catalog: Catalog, behaviour: Behaviour) -> set[tuple[str, int]]:
    """Returns the routes that at least one conversation uses, by table and route id.

    Route requests may be pending or not, so both cases are routed. Routes of a disabled database are not included.
    """
    rows = behaviour.tables
    found = _used_routes(behaviour)
    if any(route.service == CONFIGURATION_SERVICE for route in rows.routes):
        names = {ANY_NAME, ANY_ADDRESS, *rows.hosts, *catalog.pending_requests}
        names |= {route.service for route in rows.routes if route.service is not None}
        waiting = catalog.replace(addresses=(), pending_requests=sorted(names))
        found |= _used_routes(Behaviour(waiting, now=behaviour.now, rows=rows))
    return found


def _used_routes(behaviour: Behaviour) -> set[tuple[str, int]]:
    return {
        (origin[0] or MSDB, route_id)
        for origin, classes in _all_targets(behaviour)
        for route_id in behaviour.first_picks(origin, classes)
    }


def _all_targets(behaviour: Behaviour) -> Iterator[tuple[Origin, list[Target]]]:
    """Yields, for each origin, one target for each class of targets that its routing table treats alike."""
    rows = behaviour.tables
    ids: defaultdict[tuple[str, str], set[bytes | None]] = defaultdict(set)
    for route in rows.routes:
        if route.service is not None and route.broker is not None:
            ids[route.database, route.service].add(route.broker)
    own_ids: set[bytes | None] = {database.broker for database in rows.databases.values()}
    always: set[bytes | None] = {None, behaviour.unknown_broker}
    transport_tables = {route.database for route in rows.routes if route.address == TRANSPORT}
    for table in rows.databases:
        names = [*sorted(behaviour.known_names[table]), ANY_NAME, *([ANY_ADDRESS] if table in transport_tables else [])]
        classes = [
            (name, broker)
            for name in names
            for broker in always.union(ids.get((table, name), _NO_IDS), own_ids if name in rows.hosts else _NO_IDS)
        ]
        yield (table, True), classes
        if table == MSDB:
            yield (None, True), classes


def used_routes_before(route: FleetRoute, rows: Tables, used: Collection[tuple[str, int]]) -> list[FleetRoute]:
    """Returns the routes in `used` with the database, service and broker id of `route`, in its address class or a preceding one (R22)."""
    return [
        other
        for other in rows.routes
        if other.key in used
        and (other.database, other.service, other.broker) == (route.database, route.service, route.broker)
        and _address_class(other) <= _address_class(route)
    ]


def _address_class(route: FleetRoute) -> int:
    if route.mirror is not None:
        return 0
    return {LOCAL: 1, TRANSPORT: 3}.get(route.address, 2)


def name_unknown_to(behaviours: Collection[Behaviour]) -> str:
    """Returns a service name that none of the catalogs contains."""
    name = "any other service"
    while any(name in names for behaviour in behaviours for names in behaviour.known_names.values()):
        name += "."
    return name


def used_route(
    routes: Mapping[tuple[str, int], FleetRoute],
    database: str | None,
    service: str | None,
    decision: PossibleDecision,
) -> FleetRoute | None:
    """Returns the route of a decision on a conversation from a database or another instance; None if the decision uses no route.

    `routes` are the routes of the instance by key. The route is in msdb if the next hop was the instance itself, so that
    the conversation was routed again as if it came from another instance. The decisions for which this function looks
    in msdb are possible only in this case.
    """
    if decision.route_id is None:
        return None
    found = routes.get((database or MSDB, decision.route_id))
    is_reentered = database is not None and (
        decision.outcome in ("FORWARD", "DROPPED")
        or found is None
        or (decision.outcome == "LOCAL" and found.address != LOCAL)
        or found.service != (None if decision.match_step == _ANY_SERVICE_STEP else service)
    )
    return routes.get((MSDB, decision.route_id)) if is_reentered else found


_ANY_SERVICE_STEP: Final = 5
