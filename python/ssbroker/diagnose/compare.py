"""Compares two catalogs or fleets over traffic or over every class of conversations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property, partial
from operator import add
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker._arguments import utc_datetime
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table, without_views
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import catalog_tables
from ssbroker.diagnose.behaviour import ConversationClass, DecisionPair, DecisionSide, classes, counted
from ssbroker.diagnose.catalog_tables import BROKER_CONFIGURATION, LOCAL, MSDB, RouteRow, Tables
from ssbroker.diagnose.context import name
from ssbroker.diagnose.fleet import Fleet
from ssbroker.exceptions import InputError, OptionError, SchemaError, renumber_row
from ssbroker.router import PendingRequest, Router, TieBreak

_FOR_ANY_SERVICE: Final = 5
_CREATED: Final = "database created"
_DROPPED: Final = "database dropped"


class Cause(NamedTuple):
    """Why a decision changes."""

    kind: str
    """Such as `route vanished`."""
    object: str
    """Such as `Sales/route "Orders"`."""


class _Difference(NamedTuple):
    cause: Cause
    table: str
    services: frozenset[str | None]


RouteKey = tuple[str, str, int]
"""Table, name, and the how many-eth of this name."""


class Differences:
    """All that differs between two catalogs of an instance, each at its moment."""

    def __init__(self, before: Catalog, after: Catalog, *, before_at: datetime, after_at: datetime) -> None:
        self.before: Final = catalog_tables.read(before)
        self.after: Final = catalog_tables.read(after)
        self._keys: Final = (_keyed(self.before), _keyed(self.after))
        self._by_id: Final = tuple({route.key: key for key, route in keyed.items()} for keyed in self._keys)
        self._routes: Final = dict(self._compare_routes(before_at, after_at))
        self._databases: Final = list(_compare_databases(self.before, self.after))
        self._one_sided: Final = {
            each.table: each.cause for each in self._databases if each.cause.kind in (_CREATED, _DROPPED)
        }
        self._instance: Final = list(_compare_instances(before, after))

    def route(self, pair: DecisionPair, which: Literal[0, 1]) -> RouteKey | None:
        """The route that is taken before (0) or after (1), as both catalogs know it: route ids may be dealt out anew."""
        side = (pair.before, pair.after)[which]
        if side.route_id is None:
            return None
        own = pair.database or MSDB
        by_id, keyed = self._by_id[which], self._keys[which]
        key = by_id.get((own, side.route_id))
        # Who comes back to its instance (R41) is told by what only a message from outside can come to.
        again = pair.database is not None and (
            side.outcome in ("FORWARD", "DROPPED")
            or key is None
            or (side.outcome == "LOCAL" and keyed[key].address != LOCAL)
            or not _is_found(keyed[key], pair.service, side.match_step)
        )
        return by_id.get((MSDB, side.route_id)) if again else key

    def cause(self, pair: DecisionPair, taken: list[RouteKey | None]) -> Cause:
        """The difference that changes the decision: that of a route that was or is taken, else the nearest that bears on it."""
        if pair.database in self._one_sided:
            return self._one_sided[pair.database]
        for key in taken:
            if key is not None and key in self._routes:
                return self._routes[key].cause
        near = [each for each in self._routes.values() if each.table in (pair.database or MSDB, MSDB)]
        near.sort(key=lambda each: each.table != (pair.database or MSDB))
        named = (each.cause for each in near if pair.service in each.services and pair.service is not None)
        hosted = (each.cause for each in self._databases if each.services & {pair.service, None})
        general = (each.cause for each in near if each.services & {None, BROKER_CONFIGURATION})
        for found in (named, hosted, general, self._instance):
            for cause in found:
                return cause
        return Cause("other", "")

    def _compare_routes(self, before_at: datetime, after_at: datetime) -> Iterator[tuple[RouteKey, _Difference]]:
        before, after = self._keys
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            kind = _route_change(old, new, before_at, after_at)
            if kind is not None:
                services = frozenset(route.service for route in (old, new) if route is not None)
                yield key, _Difference(Cause(kind, f"{key[0]}/route {name(key[1])}"), key[0], services)


def _is_found(route: RouteRow, service: str | None, step: int | None) -> bool:
    """Whether a step of the search may have found the route for a service: those that name it at 1 to 3, those that name none at 5."""
    return route.service == (None if step == _FOR_ANY_SERVICE else service)


def _route_change(old: RouteRow | None, new: RouteRow | None, before_at: datetime, after_at: datetime) -> str | None:
    was = old is not None and (old.lifetime is None or old.lifetime > before_at)
    now = new is not None and (new.lifetime is None or new.lifetime > after_at)
    if not was and not now:
        return None
    if new is None:
        return "route vanished"
    if old is None:
        return "route appeared"
    if was != now:
        return "route expired" if was else "route prolonged"
    said = [(route.service, route.broker, route.address, route.mirror) for route in (old, new)]
    return "route changed" if said[0] != said[1] else None


def _keyed(rows: Tables) -> dict[RouteKey, RouteRow]:
    """Routes by table and name, which SQL Server keeps unique; where rows do not, in the order of their ids."""
    found: dict[RouteKey, RouteRow] = {}
    for route in sorted(rows.routes, key=lambda route: route.route_id):
        number = 0
        while (route.database, route.name, number) in found:
            number += 1
        found[route.database, route.name, number] = route
    return found


def _compare_databases(before: Tables, after: Tables) -> Iterator[_Difference]:
    for database in sorted(before.databases.keys() | after.databases.keys()):
        had, has = set(before.services.get(database, ())), set(after.services.get(database, ()))
        for service in sorted(had ^ has):
            kind = "service dropped" if service in had else "service created"
            yield _Difference(Cause(kind, f"{database}/service {name(service)}"), database, frozenset((service,)))
        old, new = before.databases.get(database), after.databases.get(database)
        either: frozenset[str | None] = frozenset((*had, *has, None))
        if old is None or new is None:
            yield _Difference(Cause(_DROPPED if new is None else _CREATED, database), database, either)
        elif old.enabled != new.enabled:
            yield _Difference(
                Cause("delivery turned on" if new.enabled else "delivery turned off", database), database, either
            )
        elif old.broker != new.broker:
            yield _Difference(Cause("broker id changed", database), database, either)


def _compare_instances(before: Catalog, after: Catalog) -> Iterator[Cause]:
    if before.message_forwarding != after.message_forwarding:
        yield Cause("forwarding turned on" if after.message_forwarding else "forwarding turned off", "")
    if set(before.addresses) != set(after.addresses):
        yield Cause("own addresses changed", ", ".join(sorted(set(before.addresses) ^ set(after.addresses))))
    if set(before.pending_requests) != set(after.pending_requests):
        yield Cause(
            "pending requests changed", ", ".join(sorted(set(before.pending_requests) ^ set(after.pending_requests)))
        )


Kind = Literal["outcome", "database", "next_hop", "explanation"]
"""What changes; the first that applies. `explanation`: the same end, by another route, step or reason."""

_TEXT: Final = (
    "instance",
    "database",
    "service",
    "kind",
    "cause",
    "object",
    "before",
    "after",
    "route_before",
    "route_after",
)
_FIELDS: Final[list[pa.Field[Any]]] = [
    *(
        pa.field(name, pa.string(), nullable=name in {"database", "service", "route_before", "route_after"})
        for name in _TEXT
    ),
    pa.field("conversations", pa.int64()),
]
CHANGES: Final = pa.schema(_FIELDS)
"""A row for conversations that are alike and change; `conversations` is null where no traffic was given."""
_CAUSES: Final[list[pa.Field[Any]]] = [
    *(pa.field(name, pa.string(), nullable=False) for name in ("instance", "cause", "object", "kind")),
    pa.field("changes", pa.int64(), nullable=False),
    pa.field("conversations", pa.int64()),
]
CAUSES: Final = pa.schema(_CAUSES)
"""The changes by their cause, the greatest first."""
_LOAD: Final[list[pa.Field[Any]]] = [
    *(pa.field(name, pa.string(), nullable=False) for name in ("instance", "service", "copy")),
    pa.field("before", pa.int64(), nullable=False),
    pa.field("after", pa.int64(), nullable=False),
    pa.field("skew_before", pa.float64()),
    pa.field("skew_after", pa.float64()),
]
LOAD: Final = pa.schema(_LOAD)
"""How many conversations each copy of a service gets. The skew of a service is the load of its busiest copy over the mean: 1 is even."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Conversations that are alike, and what becomes of them before and after."""

    instance: str
    """Whose routing tables."""
    database: str | None
    """Where they begin; None from outside."""
    service: str | None
    """For which service; None for every one that neither catalog knows."""
    kind: Kind
    """What changes."""
    cause: str
    """Such as `route vanished`."""
    object: str
    """What is the cause, such as `Sales/route "Orders"`."""
    before: str
    """Where they went; several ways of a tie are separated by `|`."""
    after: str
    """Where they go."""
    route_before: str | None
    """By which route."""
    route_after: str | None
    """By which route now."""
    conversations: int | None
    """How many there were in the traffic; None where none was given."""


class Comparison:
    """All changes, and what they come from; `bool()` of it says whether there are any.

    Args:
        changes: The changes.
        conversations: How many were compared; None where none were given.
        load: How many conversations each copy of a service got, by instance, service and copy, before and after.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        *,
        conversations: int | None,
        load: dict[tuple[str, str, str], list[int]],
    ) -> None:
        self.changes: Final = tuple(sorted(changes, key=lambda change: -(change.conversations or 0)))
        self.conversations: Final = conversations
        self._load: Final = load

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def changed_conversations(self) -> int | None:
        """How many conversations change; None where none were given."""
        return None if self.conversations is None else sum(change.conversations or 0 for change in self.changes)

    @cached_property
    def table(self) -> pa.Table:
        """The changes, in the columns of `CHANGES`."""
        return pa.Table.from_pylist([asdict(change) for change in self.changes], schema=CHANGES)

    @cached_property
    def causes(self) -> pa.Table:
        """The changes by their cause, in the columns of `CAUSES`."""
        changes: Counter[tuple[str, str, str, str]] = Counter()
        conversations: Counter[tuple[str, str, str, str]] = Counter()
        for change in self.changes:
            key = change.instance, change.cause, change.object, change.kind
            changes[key] += 1
            conversations[key] += change.conversations or 0
        ordered = sorted(changes, key=lambda key: (-conversations[key], -changes[key], key))
        names = ("instance", "cause", "object", "kind")
        rows = [
            dict(zip(names, key, strict=True))
            | {"changes": changes[key], "conversations": None if self.conversations is None else conversations[key]}
            for key in ordered
        ]
        return pa.Table.from_pylist(rows, schema=CAUSES)

    @cached_property
    def load(self) -> pa.Table:
        """The load of each copy of a service that more than one copy gets, or that changes, in the columns of `LOAD`."""
        services: defaultdict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
        for (instance, service, copy), numbers in self._load.items():
            services[instance, service][copy] = numbers
        rows = []
        for (instance, service), copies in sorted(services.items()):
            if len(copies) == 1 and all(before == after for before, after in copies.values()):
                continue
            skews = [skew([numbers[side] for numbers in copies.values()]) for side in (0, 1)]
            rows += [
                {
                    "instance": instance,
                    "service": service,
                    "copy": copy,
                    "before": before,
                    "after": after,
                    "skew_before": skews[0],
                    "skew_after": skews[1],
                }
                for copy, (before, after) in sorted(copies.items())
            ]
        return pa.Table.from_pylist(rows, schema=LOAD)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        return {
            "conversations": self.conversations,
            "changed_conversations": self.changed_conversations,
            "causes": self.causes.to_pylist(),
            "changes": self.table.to_pylist(),
            "load": self.load.to_pylist(),
        }

    def __repr__(self) -> str:
        of = (
            ""
            if self.conversations is None
            else f", conversations={self.changed_conversations} of {self.conversations}"
        )
        return f"Comparison(changes={len(self.changes)}{of})"


def skew(loads: Sequence[int]) -> float | None:
    """The greatest of the loads over their mean, of those that have any.

    Examples:
        >>> skew([30, 10, 0]), skew([0])
        (1.5, None)
    """
    used = [load for load in loads if load]
    return max(used) * len(used) / sum(used) if used else None


def kind_of(before: DecisionSide, after: DecisionSide) -> Kind:
    """What differs between two decisions that do differ."""
    if before.outcome != after.outcome:
        return "outcome"
    if before.target_database != after.target_database:
        return "database"
    if (before.next_hop, before.mirror) != (after.next_hop, after.mirror):
        return "next_hop"
    return "explanation"


def cause_of(cause: Cause) -> dict[str, str]:
    """A cause as the fields of a change."""
    return {"cause": cause.kind, "object": cause.object}


pc: Any = pyarrow.compute  # its stubs know too little of it
INSTANCE: Final = "instance"
_BATCH_ROWS: Final = 1 << 18
_READ: Final = {"conversation_handle", *schemas.CONVERSATIONS.names}


class TrafficPart(NamedTuple):
    """Conversations of one instance."""

    instance: str
    """Whose."""
    batch: pa.RecordBatch
    """Their columns."""
    row_of: Callable[[int], int]
    """The row of the traffic that a row of the batch is."""


def parts(traffic: pa.Table, instances: Sequence[str]) -> Iterator[TrafficPart]:
    """The traffic of each instance, a batch at a time.

    Args:
        traffic: The conversations; where there are several instances, with a column `instance`.
        instances: The instances that there are.

    Yields:
        The parts.

    Raises:
        SchemaError: The column is missing, or names an instance that there is not.

    Examples:
        >>> traffic = pa.table({"instance": ["A", "B", "A"], "database": ["Sales", "Stores", "Billing"]})
        >>> [(part.instance, part.batch["database"].to_pylist(), part.row_of(0)) for part in parts(traffic, ["A", "B"])]
        [('A', ['Sales', 'Billing'], 0), ('B', ['Stores'], 1)]
    """
    if len(instances) > 1 and INSTANCE not in traffic.schema.names:
        raise SchemaError(
            f"conversations.{INSTANCE}: the column is missing; there are the instances {', '.join(instances)}",
            column=f"conversations.{INSTANCE}",
            expected="string",
        )
    first = 0
    for batch in traffic.to_batches(_BATCH_ROWS):
        if len(instances) == 1:
            yield TrafficPart(instances[0], batch, partial(add, first))
        else:
            yield from _by_instance(batch, instances, first)
        first += batch.num_rows


def _by_instance(batch: pa.RecordBatch, instances: Sequence[str], first: int) -> Iterator[TrafficPart]:
    named = without_views(batch.column(INSTANCE))
    for instance in pc.unique(named).to_pylist():
        if instance not in instances:
            row = first + pc.index(pc.is_null(named) if instance is None else pc.equal(named, instance), True).as_py()
            raise SchemaError(
                f"conversations.{INSTANCE}, row {row}: there is no instance {instance!r:.80}; expected one of {', '.join(instances)}",
                column=f"conversations.{INSTANCE}",
            )
        rows = pc.indices_nonzero(pc.equal(named, instance))
        columns = {
            # Of what is not read, only the name is looked at.
            name: without_views(column).take(rows) if name in _READ else pa.nulls(len(rows))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name != INSTANCE
        }
        yield TrafficPart(
            instance, pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), partial(_row, first, rows)
        )


def _row(first: int, rows: Any, row: int) -> int:
    return first + int(rows[row].as_py())


def compare(
    before: Fleet | Catalog,
    after: Fleet | Catalog,
    conversations: ArrowStreamExportable | ArrowArrayExportable | None = None,
    *,
    at: datetime | None = None,
    before_at: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> Comparison:
    """Tells which conversations change outcome, next hop, database or explanation, and by which difference of the two.

    Without traffic the answer is complete: one conversation of every class that either catalog can tell apart is looked at, with every
    way in which ties may fall. What is not among the changes does not change.

    Args:
        before: What stands now.
        after: What is to stand.
        conversations: Traffic to count over (`schemas.CONVERSATIONS`); of a fleet with a column `instance`.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        before_at: The moment for `before`, if another: with one catalog twice, what expiries change.
        tie_break: How one of several equals is picked, where there is traffic: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        The changes.

    Raises:
        SchemaError: What is compared is neither a fleet nor a catalog, or a column is missing or has a type that cannot be read.
        InputError: A value of the traffic is not what was expected.
        OptionError: An option is not one of those allowed, or a moment no datetime.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import compare
        >>> def routed(address):
        ...     return Catalog(pa.table({"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"],
        ...         "broker_instance": [None], "lifetime": [None], "address": [address], "mirror_address": [None]}))
        >>> compared = compare(routed("TCP://old"), routed("TCP://new"))
        >>> compared.causes.select(["cause", "object", "kind"]).to_pylist()
        [{'cause': 'route changed', 'object': 'Sales/route "Orders"', 'kind': 'next_hop'}]
    """
    after_at = utc_datetime(at)
    before_at = after_at if before_at is None else before_at
    if conversations is not None:
        comparer = Comparer(
            before, after, at=after_at, before_at=before_at, tie_break=tie_break, pending_request=pending_request
        )
        comparer.add(as_table(conversations, name="conversations"))
        return comparer.result()
    moments = utc_datetime(before_at), after_at
    changes = [
        change
        for instance, pair in _paired(before, after).items()
        for change in _complete(instance, *pair, moments=moments, pending_request=pending_request)
    ]
    return Comparison(changes, conversations=None, load={})


class Comparer:
    """Compares over traffic that comes in parts; only what is counted is kept.

    Args:
        before: What stands now.
        after: What is to stand.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        before_at: The moment for `before`, if another.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.

    Raises:
        SchemaError: What is compared is neither a fleet nor a catalog.
        OptionError: An option is not one of those allowed, or a moment no datetime.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> comparer = Comparer(Catalog(schemas.ROUTES.empty_table()), Catalog(schemas.ROUTES.empty_table()))
        >>> comparer.result()
        Comparison(changes=0, conversations=0 of 0)
    """

    def __init__(
        self,
        before: Fleet | Catalog,
        after: Fleet | Catalog,
        *,
        at: datetime | None = None,
        before_at: datetime | None = None,
        tie_break: TieBreak = "hash",
        pending_request: PendingRequest = "continue",
    ) -> None:
        if tie_break == "round_robin":
            raise OptionError(
                "tie_break: round_robin takes turns, so that even equal catalogs differ; expected hash or first"
            )
        self._pairs: Final = _paired(before, after)
        after_at = utc_datetime(at)
        self._moments: Final = (after_at if before_at is None else utc_datetime(before_at)), after_at
        self._routers: Final = {
            instance: [Router(catalog, tie_break=tie_break, pending_request=pending_request) for catalog in pair]
            for instance, pair in self._pairs.items()
        }
        self._counts: defaultdict[str, Counter[DecisionPair]] = defaultdict(Counter)

    def add(self, conversations: pa.Table) -> None:
        """Counts a part of the traffic.

        Raises:
            SchemaError: A column is missing or has a type that cannot be read.
            InputError: A value is not what was expected.
        """
        for instance, batch, row_of in parts(conversations, list(self._pairs)):
            try:
                decided = [
                    router.route(batch, now=now)
                    for router, now in zip(self._routers[instance], self._moments, strict=True)
                ]
            except InputError as error:
                raise renumber_row(error, row_of) from error
            database = self._pairs[instance][0].user_database
            self._counts[instance].update(counted(batch, *decided, database=database))

    def result(self) -> Comparison:
        """What was found so far."""
        return from_counts(self._pairs, self._counts, moments=self._moments)


def _paired(before: Fleet | Catalog, after: Fleet | Catalog) -> dict[str, tuple[Catalog, Catalog]]:
    fleets = Fleet.of(before), Fleet.of(after)
    names = dict.fromkeys((*fleets[0], *fleets[1]))
    return {name: (fleets[0].get(name, _EMPTY), fleets[1].get(name, _EMPTY)) for name in names}


_EMPTY: Final = Catalog(pa.Table.from_batches([], schemas.ROUTES))
"""Stands for an instance that only one of the fleets has."""


def from_counts(
    catalogs: dict[str, tuple[Catalog, Catalog]],
    counts: dict[str, Counter[DecisionPair]],
    *,
    moments: tuple[datetime, datetime],
) -> Comparison:
    """The comparison of counted pairs, wherever the counting was done.

    Args:
        catalogs: Before and after, of each instance.
        counts: How many conversations there are of each pair, of each instance.
        moments: The moments of both.

    Returns:
        The comparison.
    """
    changes: list[Change] = []
    load: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for instance, pairs in counts.items():
        differences = Differences(*catalogs[instance], before_at=moments[0], after_at=moments[1])
        for pair, number in pairs.items():
            for side, decided in enumerate((pair.before, pair.after)):
                load[instance, str(pair.service), str(decided)][side] += number
            routes = [differences.route(pair, 0), differences.route(pair, 1)]
            if _plain(pair.before, routes[0]) != _plain(pair.after, routes[1]):
                changes.append(_change_of_pair(instance, pair, routes, differences, conversations=number))
    total = sum(sum(pairs.values()) for pairs in counts.values())
    return Comparison(changes, conversations=total, load=dict(load))


def _change_of_pair(
    instance: str, pair: DecisionPair, routes: list[RouteKey | None], differences: Differences, *, conversations: int
) -> Change:
    return Change(
        instance=instance,
        database=pair.database,
        service=pair.service,
        kind=kind_of(pair.before, pair.after),
        **cause_of(differences.cause(pair, routes)),
        before=str(pair.before),
        after=str(pair.after),
        route_before=_told(routes[0]),
        route_after=_told(routes[1]),
        conversations=conversations,
    )


def _plain(side: DecisionSide, route: RouteKey | None) -> tuple[DecisionSide, RouteKey | None]:
    """A decision with its route as both catalogs know it."""
    return side._replace(route_id=None), route


def _told(route: RouteKey | None) -> str | None:
    return None if route is None else f"{route[0]}/route {name(route[1])}"


def _complete(
    instance: str,
    before: Catalog,
    after: Catalog,
    *,
    moments: tuple[datetime, datetime],
    pending_request: PendingRequest,
) -> Iterator[Change]:
    """The changes over every class of conversations."""
    differences = Differences(before, after, before_at=moments[0], after_at=moments[1])
    seen: set[tuple[Any, ...]] = set()
    for each in classes(before, after, moments=moments, pending_request=pending_request):
        change = _of_class(instance, each, differences)
        # Classes that differ in the broker id alone, and change alike, are told once.
        if (
            change is not None
            and (key := (change.database, change.service, change.before, change.after, change.object)) not in seen
        ):
            seen.add(key)
            yield change


def _of_class(instance: str, each: ConversationClass, differences: Differences) -> Change | None:
    ends: list[dict[tuple[DecisionSide, RouteKey | None], None]] = [{}, {}]
    example = DecisionPair(each.database, each.service, each.before[0], each.after[0])
    for side in each.before:
        ends[0][_plain(side, differences.route(example._replace(before=side), 0))] = None
    for side in each.after:
        ends[1][_plain(side, differences.route(example._replace(after=side), 1))] = None
    old, new = (set(found) for found in ends)
    if old == new:
        return None
    gone, come = [end for end in ends[0] if end not in new], [end for end in ends[1] if end not in old]
    routes = [route for _, route in (*gone, *come)]
    first = (gone or list(ends[0]))[0][0], (come or list(ends[1]))[0][0]
    texts = [" | ".join(dict.fromkeys(str(side) for side, _ in found)) for found in ends]
    told = [
        " | ".join(dict.fromkeys(text for _, route in found if (text := _told(route)) is not None)) for found in ends
    ]
    return Change(
        instance=instance,
        database=each.database,
        service=each.service,
        kind=kind_of(*first),
        **cause_of(differences.cause(example, routes)),
        before=texts[0],
        after=texts[1],
        route_before=told[0] or None,
        route_after=told[1] or None,
        conversations=None,
    )
