"""Compares two catalogs or fleets, for given traffic or for every class of conversations."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from operator import add
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker import _notebook as notebook
from ssbroker import schemas
from ssbroker._arguments import compared_times
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table, without_views
from ssbroker._text import quantity, quoted_name, shortened_list
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import PossibleDecision
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.change_causes import Cause, Differences, RouteKey
from ssbroker.diagnose.decision_pairs import ConversationClass, DecisionPair, classes, count_pairs
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.known_addresses import LISTED_MAX
from ssbroker.exceptions import InputError, OptionError, SchemaError, renumber_row
from ssbroker.router import PendingRequest, Router, TieBreak

Kind = Literal["outcome", "database", "next_hop", "explanation"]
"""What changes: the first kind that applies. `explanation` means the same result by another route, step or reason."""

_TEXT_COLUMNS: Final = (
    "instance",
    "database",
    "service",
    "broker_ids",
    "kind",
    "cause",
    "object",
    "before",
    "after",
    "route_before",
    "route_after",
)
_CHANGE_FIELDS: Final[list[pa.Field[Any]]] = [
    *(
        pa.field(
            name, pa.string(), nullable=name in {"database", "service", "broker_ids", "route_before", "route_after"}
        )
        for name in _TEXT_COLUMNS
    ),
    pa.field("conversations", pa.int64()),
]
CHANGES: Final = pa.schema(_CHANGE_FIELDS)
"""The schema of `Comparison.table`: one row per change; `conversations` is null without traffic."""
_CAUSE_FIELDS: Final[list[pa.Field[Any]]] = [
    *(pa.field(name, pa.string(), nullable=False) for name in ("instance", "cause", "object", "kind")),
    pa.field("changes", pa.int64(), nullable=False),
    pa.field("conversations", pa.int64()),
]
CAUSES: Final = pa.schema(_CAUSE_FIELDS)
"""The schema of `Comparison.causes`: the changes by cause, the most frequent first."""
_LOAD_FIELDS: Final[list[pa.Field[Any]]] = [
    *(pa.field(name, pa.string(), nullable=False) for name in ("instance", "service", "copy")),
    pa.field("before", pa.int64(), nullable=False),
    pa.field("after", pa.int64(), nullable=False),
    pa.field("skew_before", pa.float64()),
    pa.field("skew_after", pa.float64()),
]
LOAD: Final = pa.schema(_LOAD_FIELDS)
"""The schema of `Comparison.load`: the conversations of each copy of a service, where `copy` is its destination.

The skew is the load of the busiest copy divided by the mean load; 1 means an even load.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A class of conversations whose routing changes.

    Attributes:
        instance: The instance whose routing tables change.
        database: The database where the conversations start; None if they arrive from another instance.
        service: The target service; None represents every service that neither catalog contains.
        broker_ids: The broker ids that these conversations name. None if all conversations of this database and service change in the
            same way, or if traffic was compared.
        kind: What changes: `outcome`, `database`, `next_hop` or `explanation`.
        cause: The kind of cause, such as `route vanished`.
        object: The object of the cause, such as `Sales/route "Orders"`.
        before: Where the conversations are routed before the change; `|` separates the alternatives of a tie.
        after: Where the conversations are routed after the change.
        route_before: The route that is used before the change.
        route_after: The route that is used after the change.
        conversations: The number of conversations in the traffic; None without traffic.
    """

    instance: str
    database: str | None
    service: str | None
    broker_ids: str | None
    kind: Kind
    cause: str
    object: str
    before: str
    after: str
    route_before: str | None
    route_after: str | None
    conversations: int | None


class Comparison:
    """The changes between two catalogs or fleets, and their causes. As a bool, it is True if there are changes, or routes that expire earlier.

    Args:
        changes: The changes.
        conversations: The number of conversations compared; None without traffic.
        destinations: The number of conversations before and after, by instance, service and destination, such as
            `REMOTE TCP://orders:4022`.
        not_compared: Differences that are not compared, because they are not part of routing.
        earlier_expiries: Routes that both sides have, and that expire earlier after the change.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        *,
        conversations: int | None,
        destinations: dict[tuple[str, str, str], list[int]],
        not_compared: Sequence[str] = (),
        earlier_expiries: Sequence[str] = (),
    ) -> None:
        self.changes: Final = tuple(sorted(changes, key=_order))
        self.conversations: Final = conversations
        self.not_compared: Final = tuple(not_compared)
        """Differences that are not compared, because they are not part of routing, such as `the state of the endpoint`."""
        self.earlier_expiries: Final = tuple(earlier_expiries)
        """Routes that both sides have, and that expire earlier after the change, with both times."""
        self.destinations: Final = destinations
        """The number of conversations before and after, by instance, service and destination, such as `REMOTE TCP://orders:4022`."""

    def __bool__(self) -> bool:
        return bool(self.changes or self.earlier_expiries)

    @property
    def changed_conversations(self) -> int | None:
        """The number of conversations that change; None without traffic."""
        return None if self.conversations is None else sum(change.conversations or 0 for change in self.changes)

    @cached_property
    def table(self) -> pa.Table:
        """The changes, with the columns of `CHANGES`."""
        return pa.Table.from_pylist([asdict(change) for change in self.changes], schema=CHANGES)

    @cached_property
    def causes(self) -> pa.Table:
        """The changes grouped by cause, with the columns of `CAUSES`."""
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
        """The load of services that have several copies or whose load changes, with the columns of `LOAD`."""
        services: defaultdict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
        for (instance, service, destination), numbers in self.destinations.items():
            services[instance, service][destination] = numbers
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
        """Returns the comparison as a dict that `json.dumps` accepts: `conversations`, `changed_conversations`, `causes`, `changes`, `load`, `not_compared` and `earlier_expiries`."""
        return {
            "conversations": self.conversations,
            "changed_conversations": self.changed_conversations,
            "causes": self.causes.to_pylist(),
            "changes": self.table.to_pylist(),
            "load": self.load.to_pylist(),
            "not_compared": list(self.not_compared),
            "earlier_expiries": list(self.earlier_expiries),
        }

    def __repr__(self) -> str:
        suffix = (
            ""
            if self.conversations is None
            else f", conversations={self.changed_conversations} of {self.conversations}"
        )
        return f"Comparison(changes={len(self.changes)}{suffix})"

    def _repr_html_(self) -> str:
        notes = [notebook.preformatted(not_compared_text(self))] if self.not_compared else []
        notes += [notebook.preformatted(each) for each in self.earlier_expiries]
        if not self.changes:
            return notebook.section("No changes", *notes)
        title = quantity(len(self.changes), "change")
        if self.conversations is not None:
            title += f", of {self.changed_conversations:,} of {self.conversations:,} conversations"
        columns = ("instance", "database", "service", "before", "after", "cause", "object", "conversations")
        shown = columns if self.conversations is not None else columns[:-1]
        return notebook.section(title, notebook.table(self.table, columns=shown), *notes)


def _order(change: Change) -> tuple[int, bool, bool]:
    """Returns the sort key of a change: the most conversations first; then those that do not start in msdb, where few do; then other outcomes."""
    return -(change.conversations or 0), change.database == MSDB, change.kind != "outcome"


def traffic_text(comparison: Comparison, *, is_fleet: bool) -> str:
    """Returns how many conversations change; in a fleet, conversations may also end elsewhere because of a change at another instance."""
    where = " in the instance where they start" if is_fleet else ""
    return f"{comparison.changed_conversations:,} of {comparison.conversations:,} conversations change{where}"


def not_compared_text(comparison: Comparison) -> str:
    """Returns a sentence about differences that are not compared."""
    return f"Not compared, but different: {'; '.join(comparison.not_compared)}. Check these with lint and trace."


def skew(loads: Sequence[int]) -> float | None:
    """Returns the largest load divided by the mean of the nonzero loads; None if all loads are zero.

    Examples:
        >>> skew([30, 10, 0]), skew([0])
        (1.5, None)
    """
    used = [load for load in loads if load]
    return max(used) * len(used) / sum(used) if used else None


def change_kind(before: PossibleDecision, after: PossibleDecision) -> Kind:
    """Returns what differs between two different decisions."""
    if before.outcome != after.outcome:
        return "outcome"
    if before.target_database != after.target_database:
        return "database"
    if (before.next_hop, before.mirror) != (after.next_hop, after.mirror):
        return "next_hop"
    return "explanation"


def cause_fields(cause: Cause) -> dict[str, str]:
    """Returns a cause as the fields of a change."""
    return {"cause": cause.kind, "object": cause.object}


pc: Any = pyarrow.compute  # its stubs are incomplete
INSTANCE: Final = "instance"
_BATCH_ROWS: Final = 1 << 18
_USED_COLUMNS: Final = {"conversation_handle", *schemas.CONVERSATIONS.names}


class TrafficPart(NamedTuple):
    """Conversations of one instance."""

    instance: str
    batch: pa.RecordBatch
    row_of: Callable[[int], int]
    """Converts the index of a row in the batch to the index of the row in the traffic."""


def split_traffic(traffic: pa.Table, instances: Sequence[str]) -> Iterator[TrafficPart]:
    """Yields the traffic of each instance in batches; if there are several instances, the column `instance` states the instance of a row.

    Examples:
        >>> traffic = pa.table({"instance": ["A", "B", "A"], "database": ["Sales", "Stores", "Billing"]})
        >>> [(part.instance, part.batch["database"].to_pylist(), part.row_of(0)) for part in split_traffic(traffic, ["A", "B"])]
        [('A', ['Sales', 'Billing'], 0), ('B', ['Stores'], 1)]
    """
    if len(instances) > 1 and INSTANCE not in traffic.schema.names:
        raise SchemaError(
            f"conversations.{INSTANCE}: the column is missing; several instances are compared, so add a column {INSTANCE} "
            f"with the instance in which each conversation starts: {', '.join(shortened_list(instances, LISTED_MAX))}",
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
    instances_of_rows = without_views(batch.column(INSTANCE))
    for instance in pc.unique(instances_of_rows).to_pylist():
        if instance not in instances:
            row = (
                first
                + pc.index(
                    pc.is_null(instances_of_rows) if instance is None else pc.equal(instances_of_rows, instance), True
                ).as_py()
            )
            problem = "null is not allowed here" if instance is None else f"unknown instance {instance!r:.80}"
            raise SchemaError(
                f"conversations.{INSTANCE}, row {row}: {problem}; expected one of {', '.join(shortened_list(instances, LISTED_MAX))}",
                column=f"conversations.{INSTANCE}",
            )
        rows = pc.indices_nonzero(pc.equal(instances_of_rows, instance))
        columns = {
            # Only the names of unused columns are checked.
            name: without_views(column).take(rows) if name in _USED_COLUMNS else pa.nulls(len(rows))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name != INSTANCE
        }
        yield TrafficPart(
            instance,
            pa.RecordBatch.from_arrays(list(columns.values()), list(columns)),
            partial(_original_row, first, rows),
        )


def _original_row(first: int, rows: Any, row: int) -> int:
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
    """Returns which conversations change their outcome, database, next hop or explanation, and the cause of each change.

    Without traffic, the result is complete: it covers one conversation of every class that either catalog
    distinguishes, with every possible tie break; no other routing decision changes. The states of endpoints and queues,
    and the contracts of services, are not part of routing; `not_compared` of the result states whether they differ.

    Args:
        before: The current fleet or catalog.
        after: The proposed fleet or catalog.
        conversations: The traffic to compare and count (`schemas.CONVERSATIONS`); for several instances, with a column
            `instance`. None compares all classes of conversations.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        before_at: The time at which the route lifetimes of `before` are evaluated; None for `at`. Compare a catalog
            with itself at two times to see the effect of expiry.
        tie_break: How to choose among equal candidates, for traffic: `hash` or `first`.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        The changes.

    Raises:
        SchemaError: `before` or `after` is neither a fleet nor a catalog, or a column is missing or has an unsupported type.
        InputError: The traffic contains an invalid value.
        OptionError: An option is invalid, or a time is not a datetime with a time zone.

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
    moments = compared_times(at=at, before_at=before_at)
    if conversations is not None:
        comparer = Comparer(
            before, after, at=moments[1], before_at=moments[0], tie_break=tie_break, pending_request=pending_request
        )
        comparer.add(as_table(conversations, name="conversations"))
        return comparer.result()
    pairs = _paired_catalogs(before, after)
    changes = [
        change
        for instance, pair in pairs.items()
        for change in _compare_classes(instance, *pair, moments=moments, pending_request=pending_request)
    ]
    return Comparison(
        changes,
        conversations=None,
        destinations={},
        not_compared=_not_compared(pairs),
        earlier_expiries=list(_earlier_expiries(pairs, moments)),
    )


class Comparer:
    """Compares two fleets or catalogs for traffic that arrives in parts; keeps only counts in memory.

    Args:
        before: The current fleet or catalog.
        after: The proposed fleet or catalog.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        before_at: The time at which the route lifetimes of `before` are evaluated; None for `at`.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Raises:
        SchemaError: `before` or `after` is neither a fleet nor a catalog.
        OptionError: An option is invalid, or a time is not a datetime with a time zone.

    Examples:
        >>> from ssbroker.diagnose import Comparer
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
                "tie_break: 'round_robin' is not allowed, because even equal catalogs would differ; expected 'hash' or 'first'"
            )
        self._pairs: Final = _paired_catalogs(before, after)
        self._moments: Final = compared_times(at=at, before_at=before_at)
        self._routers: Final = {
            instance: [Router(catalog, tie_break=tie_break, pending_request=pending_request) for catalog in pair]
            for instance, pair in self._pairs.items()
        }
        self._counts: defaultdict[str, Counter[DecisionPair]] = defaultdict(Counter)

    def add(self, conversations: pa.Table) -> None:
        """Adds a part of the traffic.

        Args:
            conversations: Conversations (`schemas.CONVERSATIONS`); for several instances, with a column `instance`.

        Raises:
            SchemaError: A column is missing or has an unsupported type, or an instance is unknown.
            InputError: A value is invalid; the error names column, row and value.
        """
        for instance, batch, row_of in split_traffic(conversations, list(self._pairs)):
            try:
                decided = [
                    router.route(batch, now=now)
                    for router, now in zip(self._routers[instance], self._moments, strict=True)
                ]
            except InputError as error:
                raise renumber_row(error, row_of) from error
            database = self._pairs[instance][0].user_database
            self._counts[instance].update(count_pairs(batch, *decided, database=database))

    def result(self) -> Comparison:
        """Returns the comparison of the traffic so far."""
        return from_counts(self._pairs, self._counts, moments=self._moments)


def _paired_catalogs(before: Fleet | Catalog, after: Fleet | Catalog) -> dict[str, tuple[Catalog, Catalog]]:
    fleets = Fleet.of(before), Fleet.of(after)
    names = dict.fromkeys((*fleets[0], *fleets[1]))
    return {name: (fleets[0].get(name, _EMPTY), fleets[1].get(name, _EMPTY)) for name in names}


_EMPTY: Final = Catalog(pa.Table.from_batches([], schemas.ROUTES))
"""The catalog used for an instance that is missing from one of the fleets."""


def _not_compared(catalogs: dict[str, tuple[Catalog, Catalog]]) -> list[str]:
    """Returns the differences that are not part of routing, with the instances concerned."""
    different: defaultdict[str, list[str]] = defaultdict(list)
    for instance, (before, after) in catalogs.items():
        old, new = before.details, after.details
        endpoints = [_endpoint_state(catalog) for catalog in (before, after)]
        if None not in endpoints and endpoints[0] != endpoints[1]:
            different["the state of the endpoint"].append(instance)
        disabled = [{key for key, queue in each.queues.items() if not queue.is_enabled} for each in (old, new)]
        if old.queues and new.queues and disabled[0] != disabled[1]:
            different["the state of queues"].append(instance)
        refusing = [{key for key, one in each.services.items() if not one.accepts_conversations} for each in (old, new)]
        if old.services and new.services and refusing[0] != refusing[1]:
            different["whether services have a contract"].append(instance)
    return [f"{subject} (in {', '.join(instances)})" for subject, instances in different.items()]


_LOADED_APART: Final = timedelta(minutes=1)
"""A script with LIFETIME that is loaded twice has times of expiry that differ by less than this time."""


def _earlier_expiries(
    catalogs: dict[str, tuple[Catalog, Catalog]], moments: tuple[datetime, datetime]
) -> Iterator[str]:
    """Yields the live routes that both sides have, and that expire earlier after the change."""
    for instance, (before, after) in catalogs.items():
        if before is after or after.routes["lifetime"].null_count == after.routes.num_rows:
            continue
        differences = Differences(before, after, before_at=moments[0], after_at=moments[1])
        for key, old, new in differences.common_routes:
            if new.lifetime is None or not (old.is_live(moments[0]) and new.is_live(moments[1])):
                continue
            if old.lifetime is None or new.lifetime < old.lifetime - _LOADED_APART:
                was = "never" if old.lifetime is None else _time(old.lifetime)
                yield f"{instance}/{_route_label(key)} expires at {_time(new.lifetime)} instead of {was}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _endpoint_state(catalog: Catalog) -> str | None:
    """Returns the state of the endpoint: empty if there is no endpoint, None if unknown."""
    details = catalog.details
    if details.endpoint is not None:
        return details.endpoint.state
    return "" if details.is_endpoint_known or catalog.script is not None else None


def from_counts(
    catalogs: dict[str, tuple[Catalog, Catalog]],
    counts: dict[str, Counter[DecisionPair]],
    *,
    moments: tuple[datetime, datetime],
) -> Comparison:
    """Returns the comparison for the counted pairs of each instance; `moments` are the times for `before` and `after`."""
    changes: list[Change] = []
    destinations: defaultdict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for instance, pairs in counts.items():
        differences = Differences(*catalogs[instance], before_at=moments[0], after_at=moments[1])
        for pair, number in pairs.items():
            for side, decided in enumerate((pair.before, pair.after)):
                destinations[instance, str(pair.service), str(decided)][side] += number
            routes = [differences.route(pair, 0), differences.route(pair, 1)]
            if _comparable(pair.before, routes[0]) != _comparable(pair.after, routes[1]):
                changes.append(_change_of_pair(instance, pair, routes, differences, conversations=number))
    total = sum(sum(pairs.values()) for pairs in counts.values())
    return Comparison(
        changes,
        conversations=total,
        destinations=dict(destinations),
        not_compared=_not_compared(catalogs),
        earlier_expiries=list(_earlier_expiries(catalogs, moments)),
    )


def _change_of_pair(
    instance: str, pair: DecisionPair, routes: list[RouteKey | None], differences: Differences, *, conversations: int
) -> Change:
    return Change(
        instance=instance,
        database=pair.database,
        service=pair.service,
        broker_ids=None,
        kind=change_kind(pair.before, pair.after),
        **cause_fields(differences.cause(pair, routes)),
        before=_decision_text(pair.before),
        after=_decision_text(pair.after),
        route_before=_route_label(routes[0]),
        route_after=_route_label(routes[1]),
        conversations=conversations,
    )


def _comparable(side: PossibleDecision, route: RouteKey | None) -> tuple[PossibleDecision, RouteKey | None]:
    """Returns a decision with the key of its route instead of the route id."""
    return side._replace(route_id=None), route


def _decision_text(side: PossibleDecision) -> str:
    return str(side) if side.mirror is None else f"{side}, mirror {side.mirror}"


def _route_label(route: RouteKey | None) -> str | None:
    return None if route is None else f"{route[0]}/route {quoted_name(route[1])}"


_CLASSES_SHOWN_MAX: Final = 4


def _compare_classes(
    instance: str,
    before: Catalog,
    after: Catalog,
    *,
    moments: tuple[datetime, datetime],
    pending_request: PendingRequest,
) -> Iterator[Change]:
    """Yields the changes for every class of conversations."""
    differences = Differences(before, after, before_at=moments[0], after_at=moments[1])
    # Classes that differ only in the broker id, and change in the same way, are reported once.
    found: dict[tuple[Any, ...], tuple[Change, list[ConversationClass]]] = {}
    total: Counter[tuple[str | None, str | None]] = Counter()
    for each in classes(before, after, moments=moments, pending_request=pending_request):
        total[each.database, each.service] += 1
        change = _change_of_class(instance, each, differences)
        if change is not None:
            key = change.database, change.service, change.before, change.after, change.object
            found.setdefault(key, (change, []))[1].append(each)
    for key, (change, changed) in found.items():
        yield change if len(changed) == total[key[:2]] else replace(change, broker_ids=_broker_ids(changed))


def _broker_ids(changed: list[ConversationClass]) -> str:
    """Returns which broker ids the conversations of the classes name."""
    shown = [_broker_id(each) for each in changed[:_CLASSES_SHOWN_MAX]]
    omitted = len(changed) - len(shown)
    return ", ".join([*shown, f"{omitted:,} more"] if omitted else shown)


def _broker_id(each: ConversationClass) -> str:
    if each.broker is None:
        return "no broker id"
    if not each.broker:
        return "a different broker id"
    return f"broker id {uuid.UUID(bytes=each.broker)}{'' if each.is_initiator else ' (replies)'}"


def _change_of_class(instance: str, each: ConversationClass, differences: Differences) -> Change | None:
    ends: list[dict[tuple[PossibleDecision, RouteKey | None], None]] = [{}, {}]
    example = DecisionPair(each.database, each.service, each.before[0], each.after[0])
    for side in each.before:
        ends[0][_comparable(side, differences.route(example._replace(before=side), 0))] = None
    for side in each.after:
        ends[1][_comparable(side, differences.route(example._replace(after=side), 1))] = None
    old, new = (set(found) for found in ends)
    if old == new:
        return None
    removed, added = [end for end in ends[0] if end not in new], [end for end in ends[1] if end not in old]
    routes = [route for _, route in (*removed, *added)]
    first = (removed or list(ends[0]))[0][0], (added or list(ends[1]))[0][0]
    # Compared in any order, because the decisions of a tie have no order.
    texts = [" | ".join(sorted({_decision_text(side) for side, _ in found})) for found in ends]
    route_labels = [
        " | ".join(sorted({text for _, route in found if (text := _route_label(route)) is not None})) for found in ends
    ]
    return Change(
        instance=instance,
        database=each.database,
        service=each.service,
        broker_ids=None,
        kind=change_kind(*first),
        **cause_fields(differences.cause(example, routes)),
        before=texts[0],
        after=texts[1],
        route_before=route_labels[0] or None,
        route_after=route_labels[1] or None,
        conversations=None,
    )
