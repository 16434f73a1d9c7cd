"""Two catalogs, or two fleets, held against each other: over traffic, or over every class of conversations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ssbroker import moment, schemas
from ssbroker.arrow_input import ArrowArrayExportable, ArrowStreamExportable, as_table
from ssbroker.catalog import Catalog
from ssbroker.diagnose.causes import Differences, RouteKey
from ssbroker.diagnose.classes import Class, classes
from ssbroker.diagnose.comparison import Change, Comparison, cause_of, kind_of
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.setting import name
from ssbroker.diagnose.sides import Pair, Side, counted
from ssbroker.diagnose.traffic import parts
from ssbroker.exceptions import InputError, OptionError, at_row_of
from ssbroker.routing import PendingRequest, Router, TieBreak


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
    after_at = moment.as_utc(at)
    before_at = after_at if before_at is None else before_at
    if conversations is not None:
        comparer = Comparer(
            before, after, at=after_at, before_at=before_at, tie_break=tie_break, pending_request=pending_request
        )
        comparer.add(as_table(conversations, name="conversations"))
        return comparer.result()
    moments = moment.as_utc(before_at), after_at
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
        after_at = moment.as_utc(at)
        self._moments: Final = (after_at if before_at is None else moment.as_utc(before_at)), after_at
        self._routers: Final = {
            instance: [Router(catalog, tie_break=tie_break, pending_request=pending_request) for catalog in pair]
            for instance, pair in self._pairs.items()
        }
        self._counts: defaultdict[str, Counter[Pair]] = defaultdict(Counter)

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
                raise at_row_of(error, row_of) from error
            database = self._pairs[instance][0].user_database
            self._counts[instance].update(counted(batch, *decided, database=database))

    def result(self) -> Comparison:
        """What was found so far."""
        return from_counts(self._pairs, self._counts, moments=self._moments)


def _paired(before: Fleet | Catalog, after: Fleet | Catalog) -> dict[str, tuple[Catalog, Catalog]]:
    fleets = Fleet.of(before), Fleet.of(after)
    names = dict.fromkeys((*fleets[0], *fleets[1]))
    return {name: (fleets[0].get(name, _EMPTY), fleets[1].get(name, _EMPTY)) for name in names}


_EMPTY: Final = Catalog(schemas.ROUTES.empty_table())
"""Stands for an instance that only one of the fleets has."""


def from_counts(
    catalogs: dict[str, tuple[Catalog, Catalog]],
    counts: dict[str, Counter[Pair]],
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
                changes.append(_change(instance, pair, routes, differences, conversations=number))
    total = sum(sum(pairs.values()) for pairs in counts.values())
    return Comparison(changes, conversations=total, load=dict(load))


def _change(
    instance: str, pair: Pair, routes: list[RouteKey | None], differences: Differences, *, conversations: int
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


def _plain(side: Side, route: RouteKey | None) -> tuple[Side, RouteKey | None]:
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


def _of_class(instance: str, each: Class, differences: Differences) -> Change | None:
    ends: list[dict[tuple[Side, RouteKey | None], None]] = [{}, {}]
    example = Pair(each.database, each.service, each.before[0], each.after[0])
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
