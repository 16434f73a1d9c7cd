"""`lint`: runs all checks, verifies the remedies, and adds the positions of statements in scripts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from ssbroker._arguments import string_list, utc_datetime
from ssbroker._text import printable, restore_spaces, shortened_list
from ssbroker.advice import HOW_TO_SPECIFY_ID
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl import ScriptNote
from ssbroker.diagnose import database_checks, route_checks, service_checks
from ssbroker.diagnose.assumed_broker_ids import assumed_ids_of
from ssbroker.diagnose.catalog_rows import EXPORT_MSDB, lacks_msdb, read_tables, without_system_services
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.findings import CODES, SEVERITIES, Finding, Findings, Subject
from ssbroker.diagnose.fleet import Fleet, how_to_specify_address
from ssbroker.diagnose.garbage_collection import without_garbage_collection
from ssbroker.diagnose.known_addresses import LISTED_MAX, KnownAddresses
from ssbroker.diagnose.problems import Problem
from ssbroker.diagnose.remedy_proofs import RemedyProver
from ssbroker.exceptions import OptionError

EXPIRES_WITHIN: Final = timedelta(days=30)
_CHECKS: Final[tuple[Callable[[CheckContext], Iterator[Problem]], ...]] = (
    route_checks.check_unused_routes,
    route_checks.check_expiring_routes,
    route_checks.check_wildcards,
    route_checks.check_own_addresses,
    route_checks.check_mirrors,
    route_checks.check_forwarding,
    route_checks.check_dynamic_routing,
    route_checks.check_stale_broker_ids,
    route_checks.check_similar_route_names,
    route_checks.check_next_hops,
    database_checks.check_broker_ids,
    database_checks.check_disabled_databases,
    database_checks.check_endpoints,
    database_checks.check_specified_ports,
    database_checks.check_queues,
    database_checks.check_conversations,
    database_checks.check_bindings,
    service_checks.check_similar_service_names,
    service_checks.check_loops,
    service_checks.check_services,
    service_checks.check_failovers,
    service_checks.check_own_services,
    service_checks.check_listening_msdb,
)


def problems(context: CheckContext) -> list[Problem]:
    """Returns all problems that the checks find."""
    return [problem for check in _CHECKS for problem in check(context)]


@without_garbage_collection
def lint(
    fleet: Fleet | Catalog,
    *,
    at: datetime | None = None,
    expires_within: timedelta = EXPIRES_WITHIN,
    ignore: Sequence[str] | AbstractSet[str] = (),
) -> Findings:
    """Finds problems in the routing tables, databases and services of a fleet.

    To determine whether a route is ever used, the router itself routes a conversation for every combination of the
    known service names and broker ids.

    A remedy in T-SQL is proven on a copy of the fleet before it is offered: the finding is gone, there is no new error,
    every conversation that was delivered still is, and the conversation that the finding concerns is delivered however
    ties are broken. If no remedy is proven, the finding contains general advice.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        expires_within: How long in advance to report an expiring route.
        ignore: Codes of findings to omit, such as `SSB006`.

    Returns:
        The findings, the most severe first.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime with a time zone, `expires_within` is not a non-negative timedelta, or `ignore` has an unknown code.

    Examples:
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import lint
        >>> import pyarrow as pa
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["LOCAL"], "mirror_address": [None]}
        >>> [str(finding) for finding in lint(Catalog(pa.table(routes)))]
        ['SSB008 error: instance/Sales/route "Orders": leads to LOCAL, but no database of this instance has "//Orders"']
    """
    within: object = expires_within
    if not isinstance(within, timedelta) or within < timedelta(0):
        raise OptionError(f"expires_within: expected a non-negative timedelta, got {expires_within!r}")
    unknown = sorted(
        {*string_list([*ignore] if isinstance(ignore, AbstractSet) else ignore, name="ignore")} - CODES.keys()
    )
    if unknown:
        names, verb = (
            ", ".join(map(repr, unknown)),
            "is not a finding code" if len(unknown) == 1 else "are not finding codes",
        )
        raise OptionError(f"ignore: {names} {verb}; expected one of {', '.join(CODES)}")
    now = utc_datetime(at, name="at")
    try:
        until = now + expires_within
    except OverflowError:
        until = datetime.max.replace(tzinfo=now.tzinfo)
    given = Fleet.of(fleet)
    checked = {instance: without_system_services(catalog) for instance, catalog in given.items()}
    is_same = all(catalog is given[instance] for instance, catalog in checked.items())
    assumed = assumed_ids_of(given if is_same else Fleet(checked))
    context = CheckContext(fleet=assumed.fleet, now=now, until=until, assumed=assumed.databases)
    found = problems(context)
    prover = RemedyProver(context, problems, found)
    found += _script_problems(given)
    wanted = [each for each in found if each.finding.code not in ignore]
    # The most severe first, so that they get remedies even if there are too many findings to check all.
    wanted.sort(key=lambda each: SEVERITIES.index(each.finding.severity))
    return Findings([_located(prover.finding(each), given) for each in wanted])


def not_checked(fleet: Fleet | Catalog) -> tuple[str, ...]:
    """Returns what `lint` does not check, because the source of a catalog does not contain it.

    Args:
        fleet: A fleet, or the catalog of a single instance.

    Returns:
        Descriptions of what is not checked, and for which instances. Routes to instances whose address is not known
        come first, followed by databases whose broker id is not known. Permissions, certificates, event notifications, and the authentication and encryption of endpoints
        are never checked.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> from ssbroker.diagnose import not_checked
        >>> not_checked(Catalog(schemas.ROUTES.empty_table()))[-1]
        'TRUSTWORTHY of databases'
    """
    whole = Fleet.of(fleet)
    routes = unchecked_routes(whole)
    return (*([] if routes is None else [routes]), *other_unchecked(whole))


def other_unchecked(fleet: Fleet) -> list[str]:
    """Returns the descriptions of `not_checked` without that of `unchecked_routes`."""
    missing: dict[str, list[str]] = {}
    for instance, catalog in fleet.items():
        details = catalog.details
        for subject, is_known in (
            (f"routes of msdb, for messages from other instances ({EXPORT_MSDB})", not lacks_msdb(catalog)),
            ("contracts and queues of services", bool(details.services)),
            (
                "the state of the endpoint",
                details.is_endpoint_known or (details.endpoint is not None and details.endpoint.state is not None),
            ),
            ("conversations that are left open", details.conversations is not None),
            ("users, certificates and remote service bindings", details.bindings is not None),
            # No catalog contains these.
            ("SEND permissions", False),
            ("certificates of the owners of services", False),
            ("event notifications", False),
            ("authentication and encryption of endpoints, and CONNECT permissions", False),
            ("TRUSTWORTHY of databases", False),
        ):
            if not is_known:
                missing.setdefault(subject, []).append(instance)
    subjects = [
        subject if len(instances) == len(fleet) else f"{subject} (of {', '.join(instances)})"
        for subject, instances in missing.items()
    ]
    without_ids = [
        restore_spaces(printable(f"{instance}/{database}"))
        for instance, catalog in fleet.items()
        for database in _databases_without_id(catalog)
    ]
    if without_ids:
        shown = ", ".join(shortened_list(without_ids, LISTED_MAX))
        hint = f"specify it {HOW_TO_SPECIFY_ID}"
        subjects.insert(0, f"conversations that name the broker id of {shown}, which is not known ({hint})")
    return subjects


def unchecked_routes(fleet: Fleet) -> str | None:
    """Returns the description of routes to instances whose address is not known; None if there are no such instances, or only one instance."""
    addresses = KnownAddresses(fleet)
    if len(fleet) == 1 or not addresses.unknown:
        return None
    shown = ", ".join(shortened_list(addresses.unknown, LISTED_MAX))
    hint = how_to_specify_address("TCP://host:port")
    if suggested := addresses.suggested({instance: read_tables(catalog) for instance, catalog in fleet.items()}):
        options = [f"--address {shlex.quote(f'{instance}={address}')}" for instance, address in suggested.items()]
        hint = f"the routes for their services suggest {' '.join(shortened_list(options, LISTED_MAX))}"
    if any(fleet[instance].addresses for instance in addresses.unknown):
        hint += "; loopback addresses do not show where other machines reach an instance; if all are on one machine, specify them"
    return f"whether routes lead to {shown}, whose address is not known ({hint})"


def _databases_without_id(catalog: Catalog) -> list[str]:
    """Returns the databases that have services, but no known broker id."""
    tables = read_tables(catalog)
    return [name for name in tables.services if tables.databases[name].broker is None]


_SCRIPT_CODES: Final = {
    "refused": "SSB101",
    "unknown": "SSB102",
    "not_executed": "SSB103",
    "empty": "SSB104",
    "unreadable": "SSB105",
    "restored": "SSB106",
    "offline": "SSB107",
}
_SCRIPT_REMEDIES: Final = {
    "refused": "Correct the statement, or add the script that creates what it needs.",
    "unknown": "Correct the statement.",
    "not_executed": "Add a missing GO, rewrite the statement so that its effect does not depend on the server, specify the values of sqlcmd variables with -v, or check a folder with "
    "exports of the instance's catalog views, or the folder of an ssbroker instance, instead of the script.",
    "empty": "Check that this is the right file",
    "unreadable": "Save the file as UTF-8.",
    "restored": "Add ENABLE_BROKER or NEW_BROKER to the statement, or ALTER DATABASE ... SET ENABLE_BROKER after it.",
    "offline": "Use ALTER DATABASE ... SET ONLINE, or omit the database.",
}


def _script_problems(fleet: Fleet) -> Iterator[Problem]:
    """Yields a finding for each statement that may make the catalog differ from its script."""
    for instance, catalog in fleet.items():
        for note in catalog.notes:
            if note.is_problem:
                yield Problem(_script_finding(instance, note))


def _script_finding(instance: str, note: ScriptNote) -> Finding:
    file, line = note.position
    code = _SCRIPT_CODES[note.kind]
    return Finding(
        code=code,
        severity=CODES[code].severity,
        instance=instance,
        database=None,
        subject=Subject("statement", f"line {line}" if file is None else f"{Path(file).name}:{line}"),
        message=": ".join(part for part in (note.subject, note.text) if part),
        remedy=_SCRIPT_REMEDIES[note.kind],
        file=file,
        line=line,
    )


def _located(finding: Finding, fleet: Fleet) -> Finding:
    """Adds to a finding the position of the statement that created its object, or else its database, if the catalog was loaded from scripts."""
    if finding.line is not None or finding.instance is None or finding.instance not in fleet:
        return finding
    catalog, database = fleet[finding.instance], finding.database or ""
    kind, name = finding.subject
    position = None
    if kind in ("route", "service", "queue", "binding", "endpoint"):
        position = catalog.position(kind, database=database, name=name or "")
    if position is None and database:
        position = catalog.position("database", database=database)
    return finding if position is None else replace(finding, file=position.file, line=position.line)
