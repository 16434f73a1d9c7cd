"""The next times at which an expiring route changes a decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import catalog_tables
from ssbroker.diagnose.compare import Comparison, compare
from ssbroker.diagnose.context import route_in_full
from ssbroker.diagnose.fleet import Fleet
from ssbroker.router import PendingRequest

_NEXT: Final = 5
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """A moment at which routes expire, and what that changes."""

    moment: datetime
    """From when on."""
    routes: tuple[str, ...]
    """The routes that expire then."""
    comparison: Comparison
    """What changes, over every class of conversations."""


def expiries(
    fleet: Fleet | Catalog,
    *,
    at: datetime | None = None,
    limit: int = _NEXT,
    pending_request: PendingRequest = "continue",
) -> tuple[Expiry, ...]:
    """The next moments at which an expiry changes what becomes of some conversation; expiries that change nothing are left out.

    Args:
        fleet: The instances, or one.
        at: From when on, None for the current time. Without a zone it is UTC.
        limit: How many moments at most.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        The moments, in order.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is no datetime.

    Examples:
        >>> from datetime import datetime, UTC
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import expiries
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [datetime(2027, 3, 1, tzinfo=UTC)], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> (expiry,) = expiries(Catalog(pa.table(routes)), at=datetime(2027, 1, 1))
        >>> expiry.moment.isoformat(), expiry.routes, expiry.comparison.table["after"].to_pylist()
        ('2027-03-01T00:00:00+00:00', ('instance/Sales/route 65536 "Orders"',), ['DELAYED (no_route)'])
    """
    whole, now = Fleet.of(fleet), utc_datetime(at)
    return tuple(islice(_changing(whole, now, pending_request), limit))


def _changing(fleet: Fleet, now: datetime, pending_request: PendingRequest) -> Iterator[Expiry]:
    expiring: defaultdict[datetime, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for instance, catalog in fleet.items():
        for route in catalog_tables.read(catalog).routes:
            if route.lifetime is not None and route.lifetime > now:
                expiring[route.lifetime][instance].append(route_in_full(instance, route))
    for when, instances in sorted(expiring.items()):
        part = Fleet({instance: fleet[instance] for instance in instances})
        compared = compare(part, part, at=when, before_at=when - _TICK, pending_request=pending_request)
        if compared:
            yield Expiry(
                moment=when,
                routes=tuple(route for routes in instances.values() for route in routes),
                comparison=compared,
            )
