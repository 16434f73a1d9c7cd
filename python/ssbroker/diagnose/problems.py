"""Problems that the checks find, before a remedy is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from ssbroker._text import quoted_name, restore_spaces, route_name, shortened_list
from ssbroker.diagnose.catalog_rows import MSDB, FleetRoute
from ssbroker.diagnose.findings import CODES, Finding, Severity, Subject
from ssbroker.diagnose.known_addresses import LISTED_MAX
from ssbroker.diagnose.remedies import Candidate, Candidates


class Concern(NamedTuple):
    """A conversation that must be delivered after a remedy."""

    instance: str
    database: str | None
    """The database in which the conversation starts; None if it arrives from another instance."""
    service: str

    @classmethod
    def of_table(cls, instance: str, table: str, service: str) -> Self:
        """Returns the conversation to which the routes of a database apply: the routes of msdb apply to messages from other instances."""
        return cls(instance, None if table == MSDB else table, service)


class Problem(NamedTuple):
    """A finding without a remedy, the possible remedies, and the conversations that must be delivered after a remedy."""

    finding: Finding
    """The finding; its `remedy` is the advice to give if no candidate is proven."""
    candidates: Iterable[Candidate] = ()
    concerns: Sequence[Concern] = ()


def route_problem(
    code: str,
    instance: str,
    route: FleetRoute,
    message: str,
    advice: str,
    *,
    services: Iterable[str] = (),
    related: Sequence[FleetRoute | str] = (),
    severity: Severity | None = None,
    candidates: Iterable[str | Candidate] = (),
    concerns: Sequence[Concern] | None = None,
) -> Problem:
    """Creates a problem with a route.

    The problem affects the service of the route and `services`. By default, it concerns conversations for the service of the route.
    """
    finding = Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=route.database,
        subject=Subject("route", route.name),
        route_id=route.route_id,
        services=(*services, *([] if route.service is None else [route.service])),
        message=restore_spaces(message),
        remedy=restore_spaces(advice),
        related=tuple(other if isinstance(other, str) else qualified_route(instance, other) for other in related),
    )
    if concerns is None:
        concerns = [] if route.service is None else [Concern.of_table(instance, route.database, route.service)]
    return Problem(finding, Candidates(instance, candidates), concerns)


def problem_about(
    code: str,
    subject: Subject,
    message: str,
    advice: str,
    *,
    instance: str | None = None,
    database: str | None = None,
    services: Iterable[str] = (),
    loop: tuple[str, ...] = (),
    related: Sequence[str] = (),
    severity: Severity | None = None,
    candidates: Iterable[str | Candidate] = (),
    concerns: Sequence[Concern] = (),
) -> Problem:
    """Creates a problem with an object other than a route. It affects `services`, and the object itself if this is a service."""
    finding = Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=database,
        subject=subject,
        services=(*services, *([subject.name] if subject.kind == "service" and subject.name is not None else [])),
        loop=loop,
        message=restore_spaces(message),
        remedy=restore_spaces(advice),
        related=tuple(related),
    )
    return Problem(finding, Candidates(instance or "", candidates), concerns)


def listed_names(names: Iterable[str]) -> list[str]:
    """Returns the first names in quotation marks, followed by `...` if there are more."""
    return shortened_list(map(quoted_name, names), LISTED_MAX)


def qualified_route(instance: str, route: FleetRoute) -> str:
    """Returns instance, database, id and name of a route."""
    return f"{instance}/{route.database}/{restore_spaces(route_name({'route_id': route.route_id, 'name': route.name}))}"
