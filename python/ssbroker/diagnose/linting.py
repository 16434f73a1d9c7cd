"""All checks over a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final

from ssbroker import moment, options
from ssbroker.catalog import Catalog
from ssbroker.diagnose import check_fleet, check_identity, check_routes
from ssbroker.diagnose.codes import CODES
from ssbroker.diagnose.collecting import without_collector
from ssbroker.diagnose.findings import Finding, Findings
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.setting import Setting
from ssbroker.exceptions import OptionError

EXPIRES_WITHIN: Final = timedelta(days=30)
_CHECKS: Final[tuple[Callable[[Setting], Iterator[Finding]], ...]] = (
    check_routes.dead_routes,
    check_routes.expiring_routes,
    check_routes.wildcards,
    check_routes.own_addresses,
    check_routes.mirrors,
    check_routes.forwarding,
    check_routes.dynamic_routing,
    check_identity.broker_ids,
    check_identity.stale_ids,
    check_identity.delivery_off,
    check_identity.near_names,
    check_fleet.circles,
    check_fleet.unknown_hops,
    check_fleet.services,
)


@without_collector
def lint(
    fleet: Fleet | Catalog,
    *,
    at: datetime | None = None,
    expires_within: timedelta = EXPIRES_WITHIN,
    ignore: Sequence[str] | AbstractSet[str] = (),
) -> Findings:
    """Finds what is wrong with the routing tables, databases and services of a fleet.

    That a route is never taken, or shadowed, is the router's own answer: no conversation over the names and ids in play takes it.

    Args:
        fleet: The instances, or one.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        expires_within: What expires within this time is reported beforehand.
        ignore: Codes that are not reported.

    Returns:
        The findings, the worst first.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is no datetime, `expires_within` is no time from now on, or a code is none.

    Examples:
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import lint
        >>> import pyarrow as pa
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["LOCAL"], "mirror_address": [None]}
        >>> [str(finding) for finding in lint(Catalog(pa.table(routes)))]
        ['SSB008 error: instance/Sales/route "Orders": goes to LOCAL, and no database here has "//Orders"']
    """
    within: object = expires_within
    if not isinstance(within, timedelta) or within < timedelta(0):
        raise OptionError(f"expires_within: expected a timedelta of 0 or more, got {expires_within!r}")
    unknown = sorted(
        {*options.texts([*ignore] if isinstance(ignore, AbstractSet) else ignore, name="ignore")} - CODES.keys()
    )
    if unknown:
        raise OptionError(f"ignore: {unknown[0]!r} is no code; expected one of {', '.join(CODES)}")
    now = moment.as_utc(at)
    try:
        until = now + expires_within
    except OverflowError:
        until = datetime.max.replace(tzinfo=now.tzinfo)
    setting = Setting(fleet=Fleet.of(fleet), now=now, until=until)
    return Findings([finding for check in _CHECKS for finding in check(setting) if finding.code not in ignore])
