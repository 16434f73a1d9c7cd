"""The checks of databases, broker ids, queues, endpoints, conversations and bindings."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Final

from ssbroker._text import bracketed, enable_queue_command, quantity, quoted_name
from ssbroker.advice import broker_command
from ssbroker.diagnose.catalog_rows import LOCAL, TRANSPORT, FleetDatabase
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.findings import Finding, Subject
from ssbroker.diagnose.fleet import LOOPBACK
from ssbroker.diagnose.problems import Concern, Problem, listed_names, problem_about, qualified_route
from ssbroker.exceptions import DuplicateError

LEAKED_MIN: Final = 100
"""The minimum number of conversations in one state that is reported as left open."""
_LEFT_OPEN: Final = {
    "DISCONNECTED_INBOUND": "the other side has ended them, and this side has not: END CONVERSATION is missing in the program that reads the queue",
    "ERROR": "they have failed, and END CONVERSATION is missing in the program that reads the queue",
    "STARTED_OUTBOUND": "they were started, and nothing was sent: the program starts a dialog for each message and does not use it",
}


def check_broker_ids(context: CheckContext) -> Iterator[Problem]:
    """Checks for duplicate broker ids."""
    holders: defaultdict[bytes, list[tuple[str, FleetDatabase]]] = defaultdict(list)
    for instance, tables in context.tables.items():
        for database in tables.databases.values():
            # `master` and `model` have zeros, which are not a broker id.
            if (
                database.broker is not None
                and any(database.broker)
                and (instance, database.name) not in context.assumed
            ):
                holders[database.broker].append((instance, database))
    for broker, found in holders.items():
        by_instance: defaultdict[str, list[FleetDatabase]] = defaultdict(list)
        for instance, database in found:
            by_instance[instance].append(database)
        for instance, databases in by_instance.items():
            if len(databases) > 1:
                yield _twice_in_instance(instance, broker, databases)
        if len(by_instance) > 1 and not all((instance, row.name) in context.mirrored for instance, row in found):
            enabled = sum(any(database.enabled for database in databases) for databases in by_instance.values())
            half = _half_mirrored(context, broker, by_instance)
            pair = (
                "If the databases are a mirrored pair, correct the addresses of the mirrored route to name both instances. "
                if half
                else ""
            )
            same = " If the databases are a mirrored pair or replicas of an availability group, they must keep the id, and no action is needed."
            yield problem_about(
                "SSB012",
                Subject("broker id", str(uuid.UUID(bytes=broker))),
                f"is shared by databases in {len(by_instance)} instances: {', '.join(sorted(by_instance))}{half}",
                f"{pair}If one of the databases is a copy, disable its broker, or give the copy a new broker id when no other instance depends on its "
                f"conversations.{'' if half else same}",
                related=[f"{instance}/{database.name}" for instance, database in found],
                severity="error" if enabled > 1 else "warning",
            )


def _half_mirrored(context: CheckContext, broker: bytes, holders: Collection[str]) -> str:
    """Returns a text about a mirrored route with the broker id that leads to only one of the instances; empty if there is no such route."""
    for instance, tables in context.tables.items():
        for route in tables.routes:
            if route.mirror is None or route.broker != broker or not context.is_live(route):
                continue
            places = {
                address: context.fleet.at(address, seen_from=instance) for address in (route.address, route.mirror)
            }
            named = [place for place in places.values() if place in holders]
            others = [address for address, place in places.items() if place not in holders]
            if named and others:
                return (
                    f"; the mirrored route {qualified_route(instance, route)} leads to only one of these instances, {named[0]}, and to {others[0]}, which "
                    f"is {'not a known address of any of the instances' if places[others[0]] is None else f'{places[others[0]]}'}"
                )
    return ""


def _twice_in_instance(instance: str, broker: bytes, databases: list[FleetDatabase]) -> Problem:
    disabled = [database.name for database in databases if not database.enabled]
    copy = disabled[-1] if disabled else databases[-1].name
    new = broker_command(copy, "NEW_BROKER")
    return problem_about(
        "SSB013",
        Subject("broker id", str(uuid.UUID(bytes=broker))),
        f"is shared by {_names(databases)}",
        "If one of the databases is a copy, give the copy a new broker id before its broker is enabled; with the shared id, it cannot be enabled (error 9772).",
        instance=instance,
        database=copy,
        related=[f"{instance}/{database.name}" for database in databases],
        candidates=[new, f"{new} {broker_command(copy, 'DISABLE_BROKER')}"] if len(disabled) == 1 else [],
    )


def _names(databases: list[FleetDatabase]) -> str:
    return " and ".join(f"{quoted_name(row.name)} ({'enabled' if row.enabled else 'disabled'})" for row in databases)


def duplicate_enabled_id(error: DuplicateError, *, instance: str) -> Finding | None:
    """Returns the finding for a catalog that cannot be loaded because two enabled databases have the same broker id (I7), else None."""
    if error.column != "databases.service_broker_guid":
        return None
    return problem_about(
        "SSB013",
        Subject("broker id", str(error.value)),
        f"is shared by two enabled databases, so the catalog cannot be loaded and was not checked further: {error}",
        "SQL Server never enables both databases. Correct the source of the catalog: if one database is a copy, mark its broker as disabled, "
        "or enter the new broker id that it has on the server.",
        instance=instance,
        severity="error",
    ).finding


def check_disabled_databases(context: CheckContext) -> Iterator[Problem]:
    """Checks for disabled databases that have services."""
    for instance, tables in context.tables.items():
        for database, services in tables.services.items():
            if tables.databases[database].enabled or (instance, database) in context.mirrored:
                continue
            if database in context.fleet[instance].details.offline:  # offline databases are reported separately
                continue
            yield problem_about(
                "SSB021",
                Subject("database", database),
                f"message delivery is disabled, and the database has {quantity(len(services), 'service')}",
                "Enable the broker if the database is in use, and no other database has its broker id. A copy, a mirror or a secondary "
                "replica stays disabled.",
                instance=instance,
                database=database,
                related=[f"service {quoted_name(service)}" for service in services[:10]],
                candidates=[broker_command(database)],
            )


def check_endpoints(context: CheckContext) -> Iterator[Problem]:
    """Checks for endpoints that are stopped or missing although messages go to or come from other instances."""
    any_known = any(catalog.details.endpoint is not None for catalog in context.fleet.values())
    for instance, catalog in context.fleet.items():
        endpoint = catalog.details.endpoint
        if endpoint is not None and endpoint.state not in (None, "STARTED"):
            yield problem_about(
                "SSB026",
                Subject("endpoint", endpoint.name),
                f"is {endpoint.state}, so the instance neither sends to other instances nor receives from them",
                "Start the endpoint.",
                instance=instance,
                candidates=[f"ALTER ENDPOINT {bracketed(endpoint.name)} STATE = STARTED;"],
            )
        elif endpoint is None and (catalog.details.is_endpoint_known or any_known):
            peers = _peers(context, instance)
            if peers:
                yield problem_about(
                    "SSB026",
                    Subject("endpoint"),
                    f"{'the instance has' if catalog.details.is_endpoint_known else 'its script creates'} no Service Broker endpoint, but "
                    f"exchanges messages with {', '.join(peers)}",
                    "Create an endpoint with STATE = STARTED FOR SERVICE_BROKER, on the port that the routes of the other instances name.",
                    instance=instance,
                    severity=None if catalog.details.is_endpoint_known else "warning",
                )


def check_specified_ports(context: CheckContext) -> Iterator[Problem]:
    """Checks for specified addresses whose port differs from the port of the endpoint that the script creates.

    Such an endpoint has only loopback addresses.
    """
    for instance, catalog in context.fleet.items():
        ports = {address.rpartition(":")[2] for address in catalog.addresses if LOOPBACK.match(address)}
        specified = [address for address in context.addresses.of(instance) if address.rpartition(":")[2] not in ports]
        if catalog.details.endpoint is not None and len(ports) == 1 and specified:
            (port,) = ports
            yield problem_about(
                "SSB031",
                Subject("endpoint", catalog.details.endpoint.name),
                f"listens on port {port}, but the address of the instance is specified as {', '.join(specified)}",
                f"Correct the port of the specified address or of the endpoint. If a device maps the specified port to {port}, ignore this code.",
                instance=instance,
            )


def _peers(context: CheckContext, instance: str) -> list[str]:
    """Returns the instances or addresses to which an instance has routes, and the instances that have routes to it."""
    found: dict[str, None] = {}
    for other, tables in context.tables.items():
        for route in tables.routes:
            if not context.is_live(route) or route.address in (LOCAL, TRANSPORT):
                continue
            target = context.fleet.at(route.address, seen_from=other)
            if other == instance and target != instance:
                found[target or route.address] = None
            elif target == instance and other != instance:
                found[other] = None
    return list(found)


def check_queues(context: CheckContext) -> Iterator[Problem]:
    """Finds disabled queues that services use."""
    for instance, catalog in context.fleet.items():
        users: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for (database, service), details in catalog.details.services.items():
            users[database, details.queue].append(service)
        for (database, queue), state in catalog.details.queues.items():
            services = users[database, queue]
            if state.is_enabled or not services:
                continue
            yield problem_about(
                "SSB027",
                Subject("queue", f"{state.schema}.{state.name}"),
                f"is disabled: messages for {', '.join(listed_names(services))} wait in the transmission queue",
                "Find the message that cannot be processed, then enable the queue.",
                instance=instance,
                database=database,
                services=services,
                related=[f"service {quoted_name(service)}" for service in services[:10]],
                candidates=[enable_queue_command(database, state.schema, state.name)],
            )


def check_conversations(context: CheckContext) -> Iterator[Problem]:
    """Checks for conversations that are left open."""
    for instance, catalog in context.fleet.items():
        for each in catalog.details.conversations or ():
            if each.state in _LEFT_OPEN and each.count >= LEAKED_MIN:
                age = f", the oldest for {_age(each.oldest_seconds)}" if each.oldest_seconds is not None else ""
                yield problem_about(
                    "SSB028",
                    Subject("conversations", each.state),
                    f"{each.count:,} conversations are left open{age}: {_LEFT_OPEN[each.state]}",
                    "End each conversation when its EndDialog or Error message is received; end the remaining conversations with END CONVERSATION.",
                    instance=instance,
                    database=each.database,
                )


def _age(seconds: int) -> str:
    """Returns an age in its largest unit.

    Examples:
        >>> _age(59), _age(3600), _age(200_000)
        ('59 seconds', '1 hour', '2 days')
    """
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return quantity(seconds // size, unit)
    return quantity(max(1, seconds), "second")


def check_bindings(context: CheckContext) -> Iterator[Problem]:
    """Checks for remote service bindings whose user or certificate is missing."""
    for instance, catalog in context.fleet.items():
        for binding in catalog.details.bindings or ():
            if binding.has_user and binding.has_certificate:
                continue
            missing = (
                f"the user {quoted_name(binding.user)} owns no certificate"
                if binding.has_user
                else f"the database has no user {quoted_name(binding.user)}"
            )
            yield problem_about(
                "SSB029",
                Subject("binding", binding.name),
                f"{missing}, so dialogs with {quoted_name(binding.service)} cannot be secured",
                "Create the user, and for this user a certificate with the public key of the owner of the remote service: "
                "CREATE CERTIFICATE ... AUTHORIZATION ... FROM FILE.",
                instance=instance,
                database=binding.database,
                services=[binding.service],
                concerns=[Concern(instance, binding.database, binding.service)],
            )
