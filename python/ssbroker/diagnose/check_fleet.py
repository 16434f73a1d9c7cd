"""Findings about the ways between instances, and about services."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ssbroker.diagnose.circling import circling
from ssbroker.diagnose.findings import Finding
from ssbroker.diagnose.reaching import Reach, Start, all_services
from ssbroker.diagnose.setting import Setting, about, about_route, name, route_in_full
from ssbroker.diagnose.tables import BROKER_CONFIGURATION, LOCAL, MSDB, TRANSPORT
from ssbroker.diagnose.ways import Fate
from ssbroker.wording import bracketed, literal

_NAMED_MAX = 3


def circles(setting: Setting) -> Iterator[Finding]:
    """Loops between instances."""
    for loop in circling(setting.ways):
        services = [service for service in loop.services if service is not None]
        others = ["every service that no route names"] if None in loop.services else []
        told = [name(service) for service in dict.fromkeys(services)]
        shown = [*others, *told[:_NAMED_MAX], *(["..."] if len(told) > _NAMED_MAX else [])]
        yield about(
            "SSB020",
            f"loop {loop}",
            f"is taken by {', '.join(shown)}",
            f"In the msdb of one of them, let the route end: to LOCAL, or drop it. The shortest cut is {loop.instances[-1]}.",
            related=list(_routes_between(setting, loop.instances)),
        )


def _routes_between(setting: Setting, instances: tuple[str, ...]) -> Iterator[str]:
    for instance, following in zip(instances, (*instances[1:], instances[0]), strict=True):
        for route in setting.rows[instance].routes:
            if route.database == MSDB and setting.is_live(route) and setting.fleet.at(route.address) == following:
                yield route_in_full(instance, route)


def unknown_hops(setting: Setting) -> Iterator[Finding]:
    """Addresses that no instance of the fleet has; only where there is more than one."""
    if len(setting.fleet) == 1:
        return
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if not setting.is_live(route) or route.address in (LOCAL, TRANSPORT):
                continue
            if setting.fleet.at(route.address, seen_from=instance) is None:
                yield about_route(
                    "SSB022",
                    instance,
                    route,
                    f"goes to {route.address}, which no instance here has",
                    "Add the instance's catalog with its addresses, or correct the route.",
                )


def services(setting: Setting) -> Iterator[Finding]:
    """Services that nothing reaches, and targets that cannot answer."""
    reach = Reach(setting.ways)
    places = _Places(reach)
    reached: set[tuple[int, str]] = set()
    every: list[dict[int, str]] = [{} for _ in reach.starts]
    targets: dict[int, dict[int, str]] = {}
    for service in sorted(all_services(setting.ways)):
        codes = reach.codes(service)
        reached.update((target, service) for code in set(codes) for target in places[code])
        if service == BROKER_CONFIGURATION:
            continue  # what asks it is the instance itself, in the database that needs a route
        for number, (code, taken) in enumerate(zip(codes, every, strict=True)):
            for target in places[code]:
                if target not in taken and target != number:
                    taken[target] = service
                    targets[number] = taken
    yield from _unreached(setting, {(*reach.starts[number], service) for number, service in reached})
    yield from _ways_back(setting, targets)


class _Places(dict[int, tuple[int, ...]]):
    """The starts that are also where it is delivered, for each set of ends, worked out when it is first asked for."""

    def __init__(self, reach: Reach) -> None:
        super().__init__()
        self._fates = reach.fates
        self._numbers = {start: number for number, start in enumerate(reach.starts)}

    def __missing__(self, code: int) -> tuple[int, ...]:
        delivered = (fate for fate in self._fates[code] if fate.outcome == "DELIVERED")
        places = (Start(str(fate.instance), str(fate.database)) for fate in delivered)
        self[code] = found = tuple(self._numbers[place] for place in places if place in self._numbers)
        return found


def _unreached(setting: Setting, reached: set[tuple[str, str, str]]) -> Iterator[Finding]:
    for instance, rows in setting.rows.items():
        for database, names in rows.services.items():
            if not rows.databases[database].enabled:
                continue  # said already, of the database
            for service in names:
                if (instance, database, service) in reached or _from_outside(setting, instance, database, service):
                    continue
                yield about(
                    "SSB019",
                    f"service {name(service)}",
                    "is the target of no conversation",
                    f"If it is to be one: USE <database>; CREATE ROUTE <name> WITH SERVICE_NAME = {literal(service)}, ADDRESS = N'<address>';",
                    instance=instance,
                    database=database,
                )


def _from_outside(setting: Setting, instance: str, database: str, service: str) -> bool:
    """Whether it is reached by what arrives from instances that are not looked at; in a fleet of several, all are."""
    if len(setting.fleet) > 1:
        return False
    answers = setting.ways.at(instance).arriving(service)
    return any(answer.target_database == database for answer in answers)


def _ways_back(setting: Setting, targets: dict[int, dict[int, str]]) -> Iterator[Finding]:
    """What the targets of each database send back to it, to each of its services that may have begun a conversation."""
    reach = Reach(setting.ways, is_initiator=False)
    initiators: list[tuple[int, str]] = []
    missing: defaultdict[int, list[int]] = defaultdict(list)
    for number, taken in targets.items():
        home = reach.starts[number]
        rows = setting.rows[home.instance]
        sure_end = {Fate("DELIVERED", *home)}
        for service in rows.services.get(home.database, ()):
            codes = reach.codes(service, rows.databases[home.database].broker)
            sure = {code for code in set(codes) if reach.fates[code] == sure_end}
            for target in taken:
                if codes[target] not in sure:
                    missing[target].append(len(initiators))
            initiators.append((number, service))
    told = [f"{'/'.join(reach.starts[number])}/service {name(service)}" for number, service in initiators]
    for target, numbers in sorted(missing.items()):
        first, service = initiators[numbers[0]]
        yield _no_way_back(
            setting,
            reach.starts[target],
            reach.starts[first],
            service=service,
            taken=targets[first][target],
            related=list(map(told.__getitem__, numbers)),
        )


def _no_way_back(
    setting: Setting, target: Start, initiator: Start, *, service: str, taken: str, related: list[str]
) -> Finding:
    others = len(related) - 1
    more = f", nor to {others} other service{'' if others == 1 else 's'} that may have begun one" if others else ""
    likewise = f" Likewise for {'the' if others == 1 else 'each'} other service." if others else ""
    address = next(iter(setting.fleet[initiator.instance].addresses), "TCP://<host>:4022")
    return about(
        "SSB017",
        f"database {name(target.database)}",
        f"takes conversations for {name(taken)} from {'/'.join(initiator)}, and has no sure way back to {name(service)}{more}",
        f"In {target.instance}: USE {bracketed(target.database)}; CREATE ROUTE <name> WITH SERVICE_NAME = {literal(service)}, "
        f"ADDRESS = N'{'LOCAL' if initiator.instance == target.instance else address}';{likewise}",
        instance=target.instance,
        database=target.database,
        related=related,
    )
