"""The next times at which an expiring route changes a decision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, get_args

from ssbroker._arguments import check_option, integer_argument, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.catalog_rows import read_tables
from ssbroker.diagnose.compare import Comparison, compare
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.problems import qualified_route
from ssbroker.router import PendingRequest

_LIMIT: Final = 5
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """A time at which routes expire, and the decisions that change then.

    Attributes:
        moment: The time of expiry.
        routes: The routes that expire, as `instance/database/route ID "NAME"`.
        comparison: How routing changes at that moment, for every kind of conversation.
    """

    moment: datetime
    routes: tuple[str, ...]
    comparison: Comparison


def expiries(
    fleet: Fleet | Catalog,
    *,
    at: datetime | None = None,
    limit: int = _LIMIT,
    pending_request: PendingRequest = "continue",
) -> tuple[Expiry, ...]:
    """Finds the next times at which an expiring route changes a routing decision; other expiries are skipped.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        at: The time from which to look; None for the current time. A datetime must have a time zone.
        limit: The maximum number of times to return, from 0 to 2**31 - 1.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        The times with their changes, in chronological order.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime with a time zone, `limit` is not an integer from 0 to 2**31 - 1, or `pending_request` is unknown.

    Examples:
        >>> from datetime import datetime, UTC
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import expiries
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [datetime(2027, 3, 1, tzinfo=UTC)], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> (expiry,) = expiries(Catalog(pa.table(routes)), at=datetime(2027, 1, 1, tzinfo=UTC))
        >>> expiry.moment.isoformat(), expiry.routes, expiry.comparison.table["after"].to_pylist()
        ('2027-03-01T00:00:00+00:00', ('instance/Sales/route 65536 "Orders"',), ['DELAYED (no_route)'])
    """
    whole_fleet, now = Fleet.of(fleet), utc_datetime(at, name="at")
    limit = integer_argument(limit, name="limit", minimum=0, maximum=2**31 - 1)
    check_option("pending_request", pending_request, get_args(PendingRequest))
    return tuple(islice(_changing_expiries(whole_fleet, now, pending_request), limit))


def _changing_expiries(fleet: Fleet, now: datetime, pending_request: PendingRequest) -> Iterator[Expiry]:
    expiring: defaultdict[datetime, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for instance, catalog in fleet.items():
        for route in read_tables(catalog).routes:
            if route.lifetime is not None and route.is_live(now):
                expiring[route.lifetime][instance].append(qualified_route(instance, route))
    for time, instances in sorted(expiring.items()):
        affected = Fleet({instance: fleet[instance] for instance in instances})
        comparison = compare(affected, affected, at=time, before_at=time - _TICK, pending_request=pending_request)
        if comparison:
            yield Expiry(
                moment=time,
                routes=tuple(route for routes in instances.values() for route in routes),
                comparison=comparison,
            )
