"""The checks of services: which conversations reach them, how replies return, and loops."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ssbroker._text import bracketed, quantity, quoted_name, restore_spaces
from ssbroker._well_known import CONFIGURATION_SERVICE
from ssbroker.advice import SimilarNames, broker_command
from ssbroker.diagnose.all_decisions import RouteLookup
from ssbroker.diagnose.catalog_rows import LOCAL, MSDB, TRANSPORT, FleetRoute
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.findings import Severity, Subject
from ssbroker.diagnose.problems import Concern, Problem, listed_names, problem_about, qualified_route
from ssbroker.diagnose.reachability import ReachabilitySets, Start, all_services
from ssbroker.diagnose.remedies import (
    Candidate,
    RouteDestination,
    Step,
    alter_route,
    broker_clause,
    drop_route,
    local_routes,
    new_route,
    service_clause,
)
from ssbroker.diagnose.return_paths import ReturnPaths
from ssbroker.diagnose.route_checks import SYSTEM_SERVICE_PREFIX, stale_routes
from ssbroker.diagnose.routing_graph import SENT_BACK, RoutingEnd
from ssbroker.diagnose.scripts_on_copies import UNKNOWN_ENDPOINT
from ssbroker.diagnose.similar_names import SimilarServices, difference
from ssbroker.diagnose.trace import end_text

_LOST: Final = ("no_route", "service_not_found", "address_unusable", SENT_BACK)
"""The reasons of drops that no other check reports."""


def check_loops(context: CheckContext) -> Iterator[Problem]:
    """Checks for loops between instances."""
    for loop in context.loops:
        services = list(dict.fromkeys(service for service in loop.services if service is not None))
        others = ["every service that no route names"] if None in loop.services else []
        is_pair = len(loop.instances) == 2  # noqa: PLR2004 - each of the two would send the messages back
        fate = "are dropped, because each instance would send them back to the other" if is_pair else "circulate"
        routes = list(_routes_between(context, loop.instances))
        yield problem_about(
            "SSB020",
            Subject("loop", str(loop)),
            f"messages for {', '.join([*others, *listed_names(services)])} {fate}",
            "In msdb of one of these instances, change the route to LOCAL or to the instance that has the service, or drop the route.",
            services=services,
            loop=loop.instances,
            related=[qualified_route(instance, route) for instance, route in routes],
            candidates=_loop_remedies(context, routes),
            concerns=[Concern(instance, None, service) for service in services for instance in loop.instances],
        )


def _routes_between(context: CheckContext, instances: tuple[str, ...]) -> Iterator[tuple[str, FleetRoute]]:
    for instance, following in zip(instances, (*instances[1:], instances[0]), strict=True):
        for route in context.tables[instance].routes:
            if route.database == MSDB and context.is_live(route) and context.fleet.at(route.address) == following:
                yield instance, route


def _loop_remedies(context: CheckContext, routes: list[tuple[str, FleetRoute]]) -> Iterator[Candidate]:
    for instance, route in routes:
        hosts = [] if route.service is None else context.hosts(route.service)
        for destination in context.destinations(hosts, seen_from=instance, besides=route.address):
            yield (Step(instance, alter_route(route, destination.clauses)),)
    for instance, route in routes:
        yield (Step(instance, alter_route(route, "ADDRESS = N'LOCAL'")),)
        yield (Step(instance, drop_route(route)),)


class _Reached(NamedTuple):
    """The results of following conversations to their ends."""

    accepted: dict[int, dict[int, str]]
    """For each start, the starts whose services it reaches, each with one of these services."""
    places: set[tuple[str, str, str]]
    """The instances, databases and services that at least one conversation reaches."""
    lost: dict[tuple[str, str, str], list[Start]]
    """The starts of dropped messages, by instance, reason and service."""
    refused: dict[tuple[str, str, str], list[Start]]
    """For each service without a contract, by instance and database: the starts in other instances whose routes lead to it."""
    ambiguous: dict[tuple[str, str], frozenset[str]]
    """The databases in any of which a conversation may end, by instance and service."""


def check_services(context: CheckContext) -> Iterator[Problem]:
    """Checks for services that no conversation reaches, messages that are dropped, and targets without a return route."""
    reach = ReachabilitySets(context.graph)
    reached = _reached(context, reach)
    yield from _unreachable_services(context, reached.places)
    numbers = {start: number for number, start in enumerate(reach.starts)}
    yield from _lost_messages(context, reached, numbers)
    yield from _refused_conversations(context, reached, numbers)
    yield from _ambiguous_services(reached.ambiguous)
    yield from _check_return_routes(context, reached.accepted)


def check_failovers(context: CheckContext) -> Iterator[Problem]:
    """Checks for messages that a secondary replica drops after a failover; each replica has its own msdb."""
    for replica, role in context.fleet.roles.items():
        if role == "secondary":
            after = context.after_failover(replica)
            reach = ReachabilitySets(after.graph)
            numbers = {start: number for number, start in enumerate(reach.starts)}
            for problem in _lost_messages(after, _reached(after, reach), numbers):
                finding = problem.finding
                if finding.instance == replica:
                    message = f"after a failover to this replica, {finding.message}"
                    # Before the failover, the conversations do not pass through this replica.
                    yield problem._replace(finding=replace(finding, message=message), concerns=())


def _reached(context: CheckContext, reach: ReachabilitySets) -> _Reached:
    targets_of = _TargetsByEnds(reach)
    places: set[tuple[int, str]] = set()
    accepted: list[dict[int, str]] = [{} for _ in reach.starts]
    targets: dict[int, dict[int, str]] = {}
    lost: defaultdict[tuple[str, str, str], list[Start]] = defaultdict(list)
    refused: defaultdict[tuple[str, str, str], list[Start]] = defaultdict(list)
    ambiguous = dict(_ambiguous_arrivals(context))
    intends = _Intentions(context)
    for service in sorted(all_services(context.graph)):
        codes = reach.codes(service)
        places.update((target, service) for code in set(codes) for target in targets_of[code])
        if service == CONFIGURATION_SERVICE or service.startswith(SYSTEM_SERVICE_PREFIX):
            continue  # the instance itself requests routes from this service, and has the system services
        for number, (code, used) in enumerate(zip(codes, accepted, strict=True)):
            for target in targets_of[code]:
                if target not in used and target != number:
                    used[target] = service
                    targets[number] = used
        for code in set(codes):
            ambiguous = dict(_ambiguities(reach.ends[code], service)) | ambiguous
        for start, end in _drops(reach, codes):
            if intends(start, service, str(end.instance), str(end.reason)):
                lost[str(end.instance), str(end.reason), service].append(start)
        for start, end in _refusals(reach, codes, service, intends):
            refused[str(end.instance), str(end.database), service].append(start)
    named = {(*reach.starts[number], service) for number, service in places}
    return _Reached(targets, named, dict(lost), dict(refused), ambiguous)


def _drops(reach: ReachabilitySets, codes: list[int]) -> Iterator[tuple[Start, RoutingEnd]]:
    """Yields the starts from which messages are dropped for a reason that no other check reports."""
    drops = {
        code: [end for end in reach.ends[code] if end.outcome == "DROPPED" and end.reason in _LOST]
        for code in set(codes)
    }
    if not any(drops.values()):
        return
    for number, code in enumerate(codes):
        for end in drops[code]:
            yield reach.starts[number], end


def _refusals(
    reach: ReachabilitySets, codes: list[int], service: str, intends: _Intentions
) -> Iterator[tuple[Start, RoutingEnd]]:
    """Yields the starts whose routes name the service and whose conversations another instance refuses."""
    refusals = {code: [end for end in reach.ends[code] if end.outcome == "REFUSED"] for code in set(codes)}
    if not any(refusals.values()):
        return
    for start, code in zip(reach.starts, codes, strict=True):
        for end in refusals[code]:
            if end.instance != start.instance and intends.names(start, service):
                yield start, end


def _ambiguous_arrivals(context: CheckContext) -> Iterator[tuple[tuple[str, str], frozenset[str]]]:
    """Yields the services for which messages from other instances reach several databases."""
    for instance, tables in context.tables.items():
        for service, hosts in tables.hosts.items():
            if len(hosts) > 1:
                arriving = {
                    RoutingEnd("DELIVERED", instance, decision.target_database)
                    for decision in context.graph.at(instance).arriving(service)
                    if decision.outcome == "LOCAL" and context.accepts(instance, str(decision.target_database), service)
                }
                yield from _ambiguities(arriving, service)


def _ambiguities(ends: Iterable[RoutingEnd], service: str) -> Iterator[tuple[tuple[str, str], frozenset[str]]]:
    databases: defaultdict[str, set[str]] = defaultdict(set)
    for end in ends:
        if end.outcome == "DELIVERED":
            databases[str(end.instance)].add(str(end.database))
    for instance, found in databases.items():
        if len(found) > 1:
            yield (instance, service), frozenset(found)


class _Intentions:
    """Determines whether the routes show that a database is meant to send to a service."""

    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._named = {
            (instance, route.database, route.service)
            for instance, tables in context.tables.items()
            for route in tables.routes
            if context.is_live(route) and route.service is not None and route.address not in (LOCAL, TRANSPORT)
        }
        self._in_loops = {
            (instance, service) for loop in context.loops for instance in loop.instances for service in loop.services
        }
        # Messages that are lost because of a stale id or a route to LOCAL are reported for that route.
        self._reported = {
            (instance, route.database, route.service) for instance, route, _, _ in stale_routes(context)
        } | {
            (instance, MSDB, route.service)
            for instance, tables in context.tables.items()
            for route in tables.routes
            if route.database == MSDB
            and context.is_live(route)
            and route.service is not None
            and route.address == LOCAL
        }

    def __call__(self, start: Start, service: str, dropped_by: str, reason: str) -> bool:
        """Returns whether a dropped conversation deserves a separate finding."""
        instance, database = start
        if instance == dropped_by or (instance, database, service) in self._reported:
            return False
        if reason == SENT_BACK and not self._in_loops.isdisjoint({(dropped_by, service), (dropped_by, None)}):
            return False
        if reason == "service_not_found" and (dropped_by, MSDB, service) in self._reported:
            return False
        return self.names(start, service)

    def names(self, start: Start, service: str) -> bool:
        """Returns whether a route of the database sends a service to the network."""
        return (*start, service) in self._named


class _TargetsByEnds(dict[int, tuple[int, ...]]):
    """The starts at which messages are delivered, by index of the set of ends; computed on first access."""

    def __init__(self, reach: ReachabilitySets) -> None:
        super().__init__()
        self._ends = reach.ends
        self._indices = {start: index for index, start in enumerate(reach.starts)}

    def __missing__(self, code: int) -> tuple[int, ...]:
        delivered = (end for end in self._ends[code] if end.outcome == "DELIVERED")
        places = (Start(str(end.instance), str(end.database)) for end in delivered)
        self[code] = found = tuple(self._indices[place] for place in places if place in self._indices)
        return found


def _unreachable_services(context: CheckContext, reached: set[tuple[str, str, str]]) -> Iterator[Problem]:
    for instance, tables in context.tables.items():
        for database, names in tables.services.items():
            if not tables.databases[database].enabled:
                continue  # reported for the database
            for service in names:
                if (
                    (instance, database, service) in reached
                    or not context.accepts(instance, database, service)
                    or _is_reached_from_outside(context, instance, database, service)
                ):
                    continue
                yield problem_about(
                    "SSB019",
                    Subject("service", service),
                    "no conversation reaches the service",
                    "If the service should receive conversations, create a route to it in the databases that start these conversations.",
                    instance=instance,
                    database=database,
                )


def _is_reached_from_outside(context: CheckContext, instance: str, database: str, service: str) -> bool:
    """Returns whether messages from unknown instances reach the service; a fleet of several instances counts as complete."""
    if len(context.fleet) > 1:
        return False
    decisions = context.graph.at(instance).arriving(service)
    return any(decision.target_database == database for decision in decisions)


def _lost_messages(context: CheckContext, reached: _Reached, numbers: dict[Start, int]) -> Iterator[Problem]:
    for (instance, reason, service), starts in reached.lost.items():
        # If the service in this instance starts conversations with the databases, the routes of the databases may be for
        # replies only, which need no route here.
        hosts = [Start(*place) for place in context.hosts(service) if place[0] == instance]
        for_answers = all(
            any(numbers[start] in reached.accepted.get(numbers.get(host, -1), {}) for host in hosts) for start in starts
        )
        ids = _other_ids(context, instance, service, starts) if reason == "service_not_found" else []
        where = {
            "no_route": "no route in msdb leads to the service",
            "service_not_found": "no enabled database of the instance has the service",
            "address_unusable": "the route takes the address from the service name, which contains no address",
            SENT_BACK: "the route leads back to the instance that the messages come from",
        }[reason]
        advice = "Create a route in msdb of this instance, or correct the routes that lead to this instance."
        similar = _similar_services_of(context, instance, service)
        if similar:
            where = f"no instance has the service; this instance has the similar service {quoted_name(similar[0])}"
            changes = [
                f"In {sender}: {alter_route(route, service_clause(similar[0]))}"
                for sender, route in _routes_to_instance(context, instance, service, starts)
            ]
            advice = " ".join(
                ["If this service is meant, correct the name in BEGIN DIALOG and in the routes.", *changes]
            )
        if ids:
            names = " or ".join(str(uuid.UUID(bytes=each)) for each in ids)
            where = f"no enabled database with the service has the broker id {names}, which the route names"
            advice = (
                "Change BROKER_INSTANCE of the route to the service_broker_guid of the database that should receive the messages, or "
                "the address to the address of the instance whose database has this id."
            )
        yield problem_about(
            "SSB024",
            Subject("service", service),
            f"messages from {'/'.join(starts[0])}{_and_others(len(starts))} are dropped, because {where}",
            advice,
            instance=instance,
            database=MSDB,
            related=["/".join(start) for start in starts],
            severity="warning" if for_answers else None,
            candidates=_drop_remedies(context, instance, service, starts),
            concerns=[Concern(start.instance, start.database, service) for start in starts],
        )


def _refused_conversations(context: CheckContext, reached: _Reached, numbers: dict[Start, int]) -> Iterator[Problem]:
    """Yields the services without a contract to which routes of other instances lead, unless the routes are for replies only."""
    named = {
        (instance, route.database, route.service)
        for instance, tables in context.tables.items()
        for route in tables.routes
        if context.is_live(route)
    }
    for (instance, database, service), starts in reached.refused.items():
        here = Start(instance, database)
        begun = [
            start
            for start in starts
            if numbers[start] not in reached.accepted.get(numbers[here], {})
            and not any(
                (*here, other) in named and context.accepts(*start, other)
                for other in context.tables[start.instance].services.get(start.database, ())
            )
        ]
        if begun:
            yield problem_about(
                "SSB030",
                Subject("service", service),
                f"has no contract, so it refuses the conversations that {'/'.join(begun[0])}{_and_others(len(begun))} can start with it",
                f"Add the contract that the senders name in BEGIN DIALOG, such as [DEFAULT]: USE {bracketed(database)}; ALTER SERVICE "
                f"{bracketed(service)} (ADD CONTRACT [DEFAULT]); or, if the service only starts conversations and the routes are for "
                "replies, ignore this code.",
                instance=instance,
                database=database,
                related=["/".join(start) for start in begun],
            )


def _other_ids(context: CheckContext, instance: str, service: str, starts: list[Start]) -> list[bytes]:
    """Returns the broker ids of the routes that messages take first, if the instance has the service in an enabled database with a different id."""
    tables = context.tables[instance]
    present = {
        tables.databases[host].broker for host in tables.hosts.get(service, ()) if tables.databases[host].enabled
    }
    named = {
        route.broker
        for start in starts
        for route in context.tables[start.instance].routes
        if route.database == start.database and route.service == service and context.is_live(route)
    }
    return sorted(each for each in named - present if each is not None) if present else []


def _and_others(number: int) -> str:
    return "" if number == 1 else f" and {quantity(number - 1, 'other database')}"


def _similar_services_of(context: CheckContext, instance: str, service: str) -> list[str]:
    """Returns the services of an instance with a name similar to `service`; none if any instance has `service`."""
    return [] if context.hosts(service) else SimilarNames(context.tables[instance].hosts).find(service)


def _routes_to_instance(
    context: CheckContext, instance: str, service: str, starts: list[Start]
) -> list[tuple[str, FleetRoute]]:
    """Returns the routes that name a service and lead from the databases in `starts` to an instance; each with the instance of its database."""
    return [
        (start.instance, route)
        for start in starts
        for route in context.tables[start.instance].routes
        if route.database == start.database
        and route.service == service
        and context.is_live(route)
        and context.fleet.at(route.address, seen_from=start.instance) == instance
    ]


def _drop_remedies(context: CheckContext, instance: str, service: str, starts: list[Start]) -> Iterator[Candidate]:
    """Yields remedies for messages that an instance drops: in its msdb, in its other databases, or in the routes that lead to it."""
    tables = context.tables[instance]
    here = tables.hosts.get(service, [])
    wildcards = [
        route for route in tables.routes if route.database == MSDB and route.service is None and context.is_live(route)
    ]
    if here and not wildcards:
        yield local_routes(instance, tables, MSDB, [None])
    if here:
        yield local_routes(instance, tables, MSDB, [service])
    for database in here:
        if not tables.databases[database].enabled and (instance, database) not in context.mirrored:
            yield (Step(instance, broker_command(database)),)
    others = [each for each in context.enabled_hosts(service) if each[0] != instance]
    senders = _routes_to_instance(context, instance, service, starts)
    yield from filter(None, _sender_remedies(context, instance, senders, here, others))
    for destination in context.destinations(others, seen_from=instance):
        step = Step(instance, new_route(tables, MSDB, service=service, reserved=set(), destination=destination))
        yield (step,)
        yield (step, Step(instance, _forwarding_on(context, instance)))


def _sender_remedies(
    context: CheckContext,
    dropping: str,
    senders: list[tuple[str, FleetRoute]],
    here: list[str],
    others: list[tuple[str, str]],
) -> Iterator[Candidate]:
    """Yields changes to the senders' routes that lead to the instance that drops messages.

    They give the routes the broker id of one of its databases, point them to another instance, or drop them.
    """
    for database in here:
        broker = context.broker_id(dropping, database)
        if broker is not None and context.tables[dropping].databases[database].enabled:
            yield tuple(
                Step(sender, alter_route(route, broker_clause(broker)))
                for sender, route in senders
                if route.broker is not None
            )
    for other in others:
        yield tuple(
            Step(sender, alter_route(route, destination.clauses))
            for sender, route in senders
            if (destination := context.destination(*other, seen_from=sender)) is not None
        )
    yield tuple(Step(sender, drop_route(route)) for sender, route in senders if route.mirror is None)


def _forwarding_on(context: CheckContext, instance: str) -> str:
    endpoint = context.fleet[instance].details.endpoint
    name = UNKNOWN_ENDPOINT if endpoint is None else endpoint.name
    return f"ALTER ENDPOINT {bracketed(name)} FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"


def _ambiguous_services(ambiguous: dict[tuple[str, str], frozenset[str]]) -> Iterator[Problem]:
    for (instance, service), databases in sorted(ambiguous.items()):
        yield problem_about(
            "SSB023",
            Subject("service", service),
            f"is in {' and '.join(map(quoted_name, sorted(databases)))}: a conversation that names no broker id goes to any of these databases",
            "If the databases are copies that share the load, ignore this code. Otherwise drop the service or disable the broker in the databases that "
            "should not receive messages, or name the broker id of the right database in the routes and in BEGIN DIALOG.",
            instance=instance,
            related=[f"{instance}/{database}" for database in sorted(databases)],
        )


def check_listening_msdb(context: CheckContext) -> Iterator[Problem]:
    """Checks for a single instance whose msdb has no route for arriving messages; in a fleet, other checks find the lost messages."""
    if len(context.fleet) > 1:
        return
    for instance, tables in context.tables.items():
        catalog = context.fleet[instance]
        if not catalog.addresses and not catalog.details.services:
            continue  # a table of routes only, which may not contain the routes of msdb
        lost = [
            service
            for service, hosts in tables.hosts.items()
            if service != CONFIGURATION_SERVICE
            and any(tables.databases[host].enabled and context.accepts(instance, host, service) for host in hosts)
            and any(decision.reason == "no_route" for decision in context.graph.at(instance).arriving(service))
        ]
        if not lost:
            continue
        yield problem_about(
            "SSB024",
            Subject("routes"),
            f"messages from other instances for {', '.join(listed_names(lost))} are dropped, because no route of msdb leads to "
            f"{'it' if len(lost) == 1 else 'them'}",
            "Create a route to LOCAL in msdb.",
            instance=instance,
            database=MSDB,
            services=lost,
            severity="warning",
            candidates=[local_routes(instance, tables, MSDB, each) for each in ([None], lost)],
            concerns=[Concern(instance, None, service) for service in lost],
        )


def check_own_services(context: CheckContext) -> Iterator[Problem]:
    """Checks for databases with several services that cannot reach each other, because AutoCreatedLocal was dropped or changed."""
    for instance, tables in context.tables.items():
        for database, names in tables.services.items():
            if len(names) < 2 or not tables.databases[database].enabled:  # noqa: PLR2004 - two services can talk to each other
                continue
            named = {route.service for route in tables.routes if route.database == database and context.is_live(route)}
            missed: dict[str, RoutingEnd] = {}
            for service in names:
                if service in named or service.startswith(SYSTEM_SERVICE_PREFIX) or service == CONFIGURATION_SERVICE:
                    continue
                if not context.accepts(instance, database, service):
                    continue
                decisions = context.graph.at(instance).from_database(database, service)
                wrong = [
                    decision
                    for decision in decisions
                    if decision.outcome != "LOCAL" and decision.reason not in ("route_requested", "sender_disabled")
                ]
                if wrong:
                    end = context.graph.next_step(instance, RouteLookup(database, service), wrong[0])
                    missed[service] = (
                        end
                        if isinstance(end, RoutingEnd)
                        else RoutingEnd("ELSEWHERE", instance, address=wrong[0].next_hop)
                    )
            if missed:
                yield _own_services(context, instance, database, missed)


def _own_services(context: CheckContext, instance: str, database: str, missed: dict[str, RoutingEnd]) -> Problem:
    tables = context.tables[instance]
    names = list(missed)
    end = next(iter(missed.values()))
    shown = ", ".join(listed_names(names))
    fate = (
        f"leave the instance to {end.address}"
        if end.outcome == "ELSEWHERE"
        else "are delayed, because no route leads to it"
    )
    if len(names) > 1:
        fate = fate.replace(" to it", " to them")
    return problem_about(
        "SSB025",
        Subject("database", database),
        f"conversations of its services with {shown}, which {'is' if len(names) == 1 else 'are'} in the same database, {fate}",
        "Create a route to LOCAL in the database.",
        instance=instance,
        database=database,
        services=names,
        related=[f"service {quoted_name(name)}" for name in names[:10]],
        candidates=[local_routes(instance, tables, database, each) for each in ([None], names)],
        concerns=[Concern(instance, database, service) for service in names],
    )


def _check_return_routes(context: CheckContext, targets: dict[int, dict[int, str]]) -> Iterator[Problem]:
    """Checks that the targets of each database can reach each of its services that may have started the conversation."""
    paths = ReturnPaths(context.graph)
    reach = paths.reach
    stale = {(instance, route.database, route.service): route for instance, route, _, _ in stale_routes(context)}
    initiators: list[tuple[int, str]] = []
    missing: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, used in targets.items():
        for service, codes, certain in paths.to(reach.starts[number]):
            for target in used:
                if codes[target] not in certain:
                    missing[target].append((len(initiators), codes[target]))
            initiators.append((number, service))
    shown_names = [f"{'/'.join(reach.starts[number])}/service {quoted_name(service)}" for number, service in initiators]
    for target, numbers in sorted(missing.items()):
        first, code = numbers[0]
        origin = reach.starts[initiators[first][0]]
        ends = sorted(reach.ends[code] - {RoutingEnd("DELIVERED", *origin)}, key=str)
        yield _no_return_route(
            context,
            reach.starts[target],
            [(reach.starts[initiators[number][0]], initiators[number][1]) for number, _ in numbers],
            ends={end for _, each in numbers for end in reach.ends[each]},
            end=ends[0],
            used={reach.starts[initiators[number][0]]: targets[initiators[number][0]][target] for number, _ in numbers},
            related=[shown_names[number] for number, _ in numbers],
            stale=_first_of(stale, reach.starts[target], [initiators[number][1] for number, _ in numbers]),
            severity="warning"
            if all(_may_be_no_initiator(context, paths, targets, *initiators[number], target) for number, _ in numbers)
            else None,
        )


def _may_be_no_initiator(
    context: CheckContext, paths: ReturnPaths, targets: dict[int, dict[int, str]], start: int, service: str, target: int
) -> bool:
    """Returns whether a service perhaps starts no conversations with a target.

    Another service of its database may start them, or the routes to the target may be for replies only.
    """
    initiator, other = paths.reach.starts[start], paths.reach.starts[target]
    if not context.accepts(*initiator, service):
        return False  # it can only start conversations
    is_answered = any(codes[target] in certain for _, codes, certain in paths.to(initiator))
    is_target = start in targets.get(target, ())
    return is_answered or (is_target and any(codes[start] in certain for _, codes, certain in paths.to(other)))


def _first_of(
    routes: Mapping[tuple[str, str, str | None], FleetRoute], target: Start, services: Iterable[str]
) -> FleetRoute | None:
    return next((routes[*target, service] for service in services if (*target, service) in routes), None)


def _no_return_route(
    context: CheckContext,
    target: Start,
    initiators: list[tuple[Start, str]],
    *,
    ends: set[RoutingEnd],
    end: RoutingEnd,
    used: dict[Start, str],
    related: list[str],
    stale: FleetRoute | None,
    severity: Severity | None,
) -> Problem:
    others = len(related) - 1
    others_text = f" or to {quantity(others, 'other service')} that may have started one" if others else ""
    origin, service = initiators[0]
    fate = restore_spaces(end_text(end)).partition(":")[0] if end.outcome == "LOOP" else restore_spaces(end_text(end))
    hostless = _routes_of_hostless_services(context, target)
    misspelled = _similar_route(hostless, service)
    if misspelled is not None:
        fate += f". The route {quoted_name(misspelled.name)} is for the similar service {quoted_name(misspelled.service or '')}, which no instance has"
    return problem_about(
        "SSB017",
        Subject("database", target.database),
        f"accepts conversations for {quoted_name(used[origin])} from {'/'.join(origin)}, but has no reliable return route to "
        f"{quoted_name(service)}{others_text}: {fate}",
        _return_advice(context, target, initiators[0], ends=ends, stale=stale),
        instance=target.instance,
        database=target.database,
        services=dict.fromkeys(name for _, name in initiators),
        related=related if stale is None else [*related, qualified_route(target.instance, stale)],
        severity=severity,
        candidates=() if stale else _return_candidates(context, target, initiators, ends, used, hostless),
        concerns=[Concern(start.instance, start.database, name) for start, name in used.items()],
    )


def _return_advice(
    context: CheckContext,
    target: Start,
    initiator: tuple[Start, str],
    *,
    ends: set[RoutingEnd],
    stale: FleetRoute | None,
) -> str:
    """Returns the advice for a missing return route; `stale` is a route of the target's database for an initiator's service."""
    if stale is not None:
        return f"This is a consequence of the broker id of the route {quoted_name(stale.name)} (SSB014): correct that route first."
    origin, service = initiator
    if mirrored := _mirrored_routes(context, target, service, origin):
        return (
            f"Change BROKER_INSTANCE of the mirrored route {quoted_name(mirrored[0].name)} to the service_broker_guid of "
            f"{quoted_name(origin.database)} in sys.databases of {origin.instance}."
        )
    must = f"Replies to {quoted_name(service)} must reach {'/'.join(origin)} in every case."
    if any(
        end.instance not in (None, origin.instance) and service in context.tables[end.instance].hosts for end in ends
    ):
        return (
            f"{must} Other instances have this service too: for each database that starts conversations, create a route in "
            f"{'/'.join(target)} with its broker id (service_broker_guid in sys.databases) as BROKER_INSTANCE. Keep the routes without "
            "BROKER_INSTANCE, which share the load of new conversations."
        )
    return (
        f"{must} Check the routes in {'/'.join(target)}, and in msdb of the instances between; in each direction, the address of the "
        "route must be an address of the next instance."
    )


def _routes_of_hostless_services(context: CheckContext, start: Start) -> dict[str, FleetRoute]:
    """Returns the first route of a database for each service that no instance has."""
    routes: dict[str, FleetRoute] = {}
    for route in context.tables[start.instance].routes:
        if route.database == start.database and route.service is not None and context.is_live(route):
            routes.setdefault(route.service, route)
    return {service: route for service, route in routes.items() if not context.hosts(service)}


def _similar_route(routes: Mapping[str, FleetRoute], service: str) -> FleetRoute | None:
    """Returns the first route whose service has a name similar to that of a service; `routes` are given by service."""
    similar = SimilarNames([service])
    return next((route for name, route in routes.items() if similar.find(name)), None)


def _return_candidates(
    context: CheckContext,
    target: Start,
    initiators: list[tuple[Start, str]],
    ends: set[RoutingEnd],
    used: dict[Start, str],
    hostless: Mapping[str, FleetRoute],
) -> Iterator[Candidate]:
    """Yields remedies: for routes of the target's database that are misspelled, missing or wrong, then for faults on the path."""
    misspelled = {
        route: service for _, service in initiators if (route := _similar_route(hostless, service)) is not None
    }
    if misspelled:
        yield tuple(
            Step(target.instance, alter_route(route, service_clause(service))) for route, service in misspelled.items()
        )
    created: list[Step] = []
    corrected: list[Step] = []
    replaced: list[Step] = []
    paths = {origin: _path(context, origin, used[origin], target.instance) for origin in used}
    reserved: set[str] = set()
    sharing = Counter(service for _, service in initiators)
    tables = context.tables[target.instance]
    for origin, service in initiators:
        path = paths[origin]
        destination = _way_back(context, path, origin, at=target.instance)
        here = target.instance
        named = _routes_to(context, target, service)
        routes = [route for route in named if route.mirror is None]
        led = {route: context.fleet.at(route.address, seen_from=here) for route in routes}
        wrong = [route for route, instance in led.items() if instance not in (origin.instance, *path[-2:-1])]
        if destination is None or any(context.may_lead_to_unknown(here, route) for route in wrong):
            return
        broker = context.broker_id(*origin)
        mirrored = _mirrored_routes(context, target, service, origin)
        if mirrored or sharing[service] > 1 or any(_is_copy(context, origin, service, led[route]) for route in wrong):
            # A mirrored route has a wrong broker id; routes to copies share the load of new conversations.
            if broker is None:
                return
            step = (
                alter_route(mirrored[0], broker_clause(broker))
                if mirrored
                else new_route(
                    tables,
                    target.database,
                    service=service,
                    reserved=reserved,
                    destination=destination._replace(broker=broker),
                )
            )
            for steps in (created, corrected, replaced):
                steps.append(Step(here, step))
            continue
        new = Step(
            here, new_route(tables, target.database, service=service, reserved=reserved, destination=destination)
        )
        dropped = [Step(here, drop_route(route)) for route in wrong]
        created.append(new)
        replaced += [*dropped, new]
        if not routes:
            corrected.append(new)
        elif len(wrong) == len(routes):
            corrected.append(Step(here, alter_route(wrong[0], destination.clauses)))
            corrected += dropped[1:]
        else:
            corrected += dropped
    on_path = list(dict.fromkeys(_path_steps(context, initiators, ends, paths)))
    yield from (tuple(own) for own in (corrected, created, replaced) if own)
    yield from ((step,) for step in on_path)
    yield from ((*own, *on_path) for own in (corrected, created) if own and on_path)


def _path(context: CheckContext, origin: Start, service: str, target: str) -> list[str]:
    """Returns the instances on a shortest path of conversations from their start to a target."""
    pending = [(origin.instance, RouteLookup(origin.database, service))]
    before: dict[str, str] = {}
    for instance, lookup in pending:  # grows during iteration
        if instance == target:
            break
        for following, broker in context.graph.transition(instance, lookup).hops:
            if following != origin.instance and before.setdefault(following, instance) == instance:
                pending.append((following, RouteLookup(None, service, lookup.broker or broker)))
    path = [target]
    while path[0] in before:
        path.insert(0, before[path[0]])
    return path


def _way_back(context: CheckContext, path: list[str], origin: Start, *, at: str) -> RouteDestination | None:
    """Returns the next destination of a reply: the forwarder from which the message came, or the database that sent it; None if the destination is not known."""
    before = path[path.index(at) - 1] if at in path[1:] else origin.instance
    if before == origin.instance:
        return context.destination(*origin, seen_from=at)
    address = context.address_of(before)
    return None if address is None else RouteDestination(address)


def _mirrored_routes(context: CheckContext, start: Start, service: str, host: Start) -> list[FleetRoute]:
    """Returns the mirrored routes of a database for a service by which the address or the mirror address leads to the instance of `host`."""
    return [
        route
        for route in _routes_to(context, start, service)
        if route.mirror is not None
        and host.instance
        in [context.fleet.at(each, seen_from=start.instance) for each in (route.address, route.mirror)]
    ]


def _is_copy(context: CheckContext, origin: Start, service: str, instance: str | None) -> bool:
    """Returns whether an instance also has a service of an initiator."""
    return any(place[0] == instance and place != origin for place in context.enabled_hosts(service))


def _routes_to(context: CheckContext, start: Start, service: str) -> list[FleetRoute]:
    """Returns the routes of a database for a service."""
    return [
        route
        for route in context.tables[start.instance].routes
        if route.database == start.database and route.service == service and context.is_live(route)
    ]


def _path_steps(
    context: CheckContext, initiators: list[tuple[Start, str]], ends: set[RoutingEnd], paths: dict[Start, list[str]]
) -> Iterator[Step]:
    """Yields statements for the instances that drop replies, and for the forwarders that do not send them back."""
    dropping = [(end.instance, end.reason) for end in ends if end.outcome == "DROPPED" and end.instance is not None]
    for instance, reason in dropping:
        if reason == "forwarding_disabled":
            yield Step(instance, _forwarding_on(context, instance))
    created: set[tuple[str, str, RouteDestination]] = set()
    reserved: defaultdict[str, set[str]] = defaultdict(set)
    for origin, service in initiators:
        broker = context.tables[origin.instance].databases[origin.database].broker
        reply = RouteLookup(None, service, broker, is_initiator=False)
        forwarders = reversed(paths[origin][1:-1])
        for instance in dict.fromkeys((*forwarders, *(instance for instance, _ in dropping))):
            destination = _way_back(context, paths[origin], origin, at=instance)
            if destination is None or context.graph.ends(instance, reply) == {RoutingEnd("DELIVERED", *origin)}:
                continue
            routes = _routes_to(context, Start(instance, MSDB), service)
            if not routes and (instance, service, destination) not in created:
                created.add((instance, service, destination))
                tables, names = context.tables[instance], reserved[instance]
                step = new_route(tables, MSDB, service=service, reserved=names, destination=destination)
                yield Step(instance, step)
            for route in routes:
                if route.address != destination.address and not context.may_lead_to_unknown(instance, route):
                    yield Step(instance, alter_route(route, destination.clauses))


def check_similar_service_names(context: CheckContext) -> Iterator[Problem]:
    """Checks for services whose names are similar."""
    for similar in SimilarServices(context.tables).groups.values():
        first, *others = sorted(similar)
        for service in others:
            instance, database = similar[service]
            place = "/".join(similar[first])
            yield problem_about(
                "SSB018",
                Subject("service", service),
                f"differs from {quoted_name(first)} in {place} only in {difference(service, first)}",
                "If both names are meant for the same service, drop one of the two services, and create it again under the other name; a service cannot be renamed.",
                instance=instance,
                database=database,
                services=[first],
                related=[f"{place}/service {quoted_name(first)}"],
            )
