"""Determines which conversations of a fleet, and which acknowledgements, end elsewhere after a change, over all hops."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._arguments import compared_times
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.assumed_broker_ids import assumed_ids_of
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.garbage_collection import without_garbage_collection
from ssbroker.diagnose.reachability import ReachabilitySets, Start
from ssbroker.diagnose.return_paths import ReturnPaths, ends_text, return_path_text
from ssbroker.diagnose.routing_graph import Ends, RoutingGraph
from ssbroker.router import PendingRequest

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field(name, pa.string(), nullable=name == "broker_id")
    for name in ("effect", "instance", "database", "service", "broker_id", "before", "after")
]
REACHABILITY_CHANGES: Final = pa.schema(_FIELDS)
"""The schema of `reachability_changes`: one row per database, service and broker id whose conversations or replies end elsewhere."""
_EFFECTS: Final = ("lost", "unacknowledged", "arrives", "acknowledged", "other")


@without_garbage_collection
def reachability_changes(
    before: Fleet | Catalog,
    after: Fleet | Catalog,
    *,
    at: datetime | None = None,
    before_at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> pa.Table:
    """Returns which conversations end elsewhere or lose their acknowledgements after a change, from every database to every service that both fleets know.

    Unlike `compare`, which shows the decisions of each instance, this function follows the messages through all
    instances to their end. It takes the states of endpoints and queues, and the contracts of services, into account.

    Args:
        before: The current fleet, or the catalog of a single instance.
        after: The proposed fleet or catalog.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        before_at: The time at which the route lifetimes of `before` are evaluated; None for `at`.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        One row per change, with the columns of `REACHABILITY_CHANGES`. `effect` is `lost` if the messages were always
        delivered and no longer are, and `arrives` in the opposite case. Otherwise, `effect` is `unacknowledged` if a
        service of the database always received acknowledgements and replies and no longer does, `acknowledged` in the
        opposite case, and `other` for other changes. `broker_id` is the broker id that the conversations name; null if
        conversations without a broker id change in the same way. `before` and `after` are the possible ends, separated
        by `|`, followed by the return path if acknowledgements do not return. Rows are in the order `lost`,
        `unacknowledged`, `arrives`, `acknowledged`, `other`. Databases that exist in only one of the fleets are omitted.

    Raises:
        SchemaError: `before` or `after` is neither a fleet nor a catalog.
        OptionError: A time is not a datetime with a time zone, or `pending_request` is unknown.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import reachability_changes
        >>> def routed(address):
        ...     return Catalog(pa.table({"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"],
        ...         "broker_instance": [None], "lifetime": [None], "address": [address], "mirror_address": [None]}))
        >>> changes = reachability_changes(routed("TCP://old"), routed("LOCAL"))
        >>> changes.select(["effect", "service", "after"]).to_pylist()
        [{'effect': 'other', 'service': '//Orders', 'after': 'DELAYED: waits in instance (service_not_found)'}]
    """
    graphs = [
        RoutingGraph(assumed_ids_of(Fleet.of(fleet)).fleet, now=now, pending_request=pending_request)
        for fleet, now in zip((before, after), compared_times(at=at, before_at=before_at), strict=True)
    ]
    rows = sorted(_changes(*map(ReachabilitySets, graphs)), key=_order)
    return pa.Table.from_pylist(rows, schema=REACHABILITY_CHANGES)


def _order(row: dict[str, Any]) -> tuple[int, bool]:
    """Returns the sort key of a row; conversations that a service without a contract refused before come last, because nobody starts them."""
    return _EFFECTS.index(row["effect"]), row["before"].startswith("REFUSED")


def _changes(before: ReachabilitySets, after: ReachabilitySets) -> Iterator[dict[str, Any]]:
    positions = {start: position for position, start in enumerate(after.starts)}
    starts = [(start, number, positions[start]) for number, start in enumerate(before.starts) if start in positions]
    returns = ReturnPaths(before.graph), ReturnPaths(after.graph)
    changed_targets = {start: _changed_targets(start, *returns, starts) for start, _, _ in starts}
    ids = [reach.graph.ids for reach in (before, after)]
    for service in sorted({**ids[0], **ids[1]}):
        brokers = {broker for each in ids for broker in each.get(service, ()) if broker is not None}
        without_id: dict[int, tuple[Ends, Ends]] = {}
        for broker in (None, *sorted(brokers)):
            codes = before.codes(service, broker), after.codes(service, broker)
            for start, number, position in starts:
                ends = before.ends[codes[0][number]], after.ends[codes[1][position]]
                if broker is None:
                    without_id[number] = ends
                elif ends == without_id[number]:
                    continue
                changed = changed_targets[start]
                if ends[0] == ends[1] and not (changed and any(end[1:3] in changed for end in ends[0])):
                    continue
                sides = _sides(start, ends, returns)
                if sides[0] != sides[1]:
                    yield {
                        "effect": _effect(*sides),
                        "instance": start.instance,
                        "database": start.database,
                        "service": service,
                        "broker_id": None if broker is None else str(uuid.UUID(bytes=broker)),
                        "before": _text(sides[0]),
                        "after": _text(sides[1]),
                    }


def _changed_targets(
    start: Start, before: ReturnPaths, after: ReturnPaths, starts: list[tuple[Start, int, int]]
) -> set[tuple[str | None, ...]]:
    """Returns the databases whose replies to a database end elsewhere."""
    new_paths = {path.service: path for path in after.to(start)}
    changed: set[tuple[str | None, ...]] = set()
    for old in before.to(start):
        new = new_paths.get(old.service)
        if new is None:
            continue
        pairs = [(old.codes[number], new.codes[position]) for _, number, position in starts]
        different = {
            (code, new_code)
            for code, new_code in set(pairs)
            if before.reach.ends[code] != after.reach.ends[new_code]
            or (code in old.certain) != (new_code in new.certain)
        }
        if different:
            changed.update(tuple(place) for (place, _, _), pair in zip(starts, pairs, strict=True) if pair in different)
    return changed


class _Side(NamedTuple):
    """What can happen to a conversation in one of the fleets."""

    ends: Ends
    failures: dict[str, Ends]
    """The services to which the targets cannot reply in every case, each with the ends of the replies."""


def _sides(start: Start, ends: tuple[Ends, Ends], returns: tuple[ReturnPaths, ReturnPaths]) -> tuple[_Side, _Side]:
    """Returns both sides, without the services that only one of the fleets has."""
    failures = [each.failures(start, found) for each, found in zip(returns, ends, strict=True)]
    common = set.intersection(*({path.service for path in each.to(start)} for each in returns))
    old, new = (
        _Side(found, {service: each for service, each in failing.items() if service in common})
        for found, failing in zip(ends, failures, strict=True)
    )
    return old, new


def _effect(before: _Side, after: _Side) -> str:
    is_delivered = [all(end.outcome == "DELIVERED" for end in side.ends) for side in (before, after)]
    if is_delivered[0] != is_delivered[1]:
        return "lost" if is_delivered[0] else "arrives"
    if after.failures.keys() - before.failures.keys():
        return "unacknowledged"
    return "acknowledged" if before.failures.keys() - after.failures.keys() else "other"


def _text(side: _Side) -> str:
    text = ends_text(side.ends)
    return f"{text}; {return_path_text(side.failures)}" if side.failures else text
