"""Proves remedies: each is applied to a copy of the fleet, and offered only if something improves and nothing gets worse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

from ssbroker.diagnose.all_decisions import RouteLookup
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds
from ssbroker.diagnose.catalog_rows import MSDB, TRANSPORT
from ssbroker.diagnose.check_context import CheckContext
from ssbroker.diagnose.findings import Finding, Subject
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.problems import Concern, Problem
from ssbroker.diagnose.remedies import Candidate, Step
from ssbroker.diagnose.route_checks import addresses_in
from ssbroker.diagnose.routing_graph import RoutingEnd
from ssbroker.diagnose.scripts_on_copies import ScriptOnCopies
from ssbroker.exceptions import SsbrokerError

Check = Callable[[CheckContext], Sequence[Problem]]
_Key = tuple[str, str | None, str | None, Subject]
WORK_MAX: Final = 20_000
"""The maximum number of routes and services to examine in copies, over all remedies; for larger fleets, fewer remedies are proven."""
_TRIALS_MAX: Final = 16
"""The maximum number of combinations to try for one finding."""
_STEPS_MAX: Final = 3
"""The maximum number of findings whose remedies may be combined."""
UNPROVEN: Final = (
    "Not computed: the fleet has too many routes and findings to check the remedy of each. Correct the findings above first, or run lint "
    "with only the instances that this finding names."
)


class Conversations:
    """Determines which conversations of a fleet are delivered however ties are broken."""

    def __init__(self, context: CheckContext) -> None:
        self._context: Final = context
        self._graph: Final = context.graph
        self._replies: dict[tuple[str, str, str, str], bool] = {}
        self._shared: Final[dict[str, dict[Concern, set[str]]]] = {}
        self._hosted: Final = {
            service for tables in context.tables.values() for names in tables.services.values() for service in names
        }

    def is_delivered(self, concern: Concern, *, must_be_named: bool = False) -> bool:
        """Returns whether a conversation is delivered and acknowledged in all outcomes, or leaves the fleet for an unknown target.

        With `must_be_named`, the conversation may leave the fleet only by a route for its service.
        """
        instance, database, service = concern
        if instance not in self._graph.fleet or (
            database is not None and database not in self._context.tables[instance].databases
        ):
            return False
        return all(
            (
                end.outcome == "ELSEWHERE"
                and service not in self._hosted
                and not (must_be_named and self._leaves_unnamed(concern, end))
            )
            # The service only starts conversations. It receives only replies, which take the same path.
            or end.outcome == "REFUSED"
            or (end.outcome == "DELIVERED" and self._returns(instance, database, end))
            for end in self._graph.ends(instance, RouteLookup(database, service))
        )

    @cached_property
    def delivered(self) -> frozenset[Concern]:
        """All delivered conversations: from each database and from other instances, to each service that a route or a database names."""
        starts = [
            (instance, database)
            for instance, tables in self._context.tables.items()
            for database in (None, *tables.databases)
            if database != MSDB
        ]
        replies = [(service, broker) for service, ids in self._graph.host_ids.items() for broker in ids]
        for instance, database in starts:
            # Routing one message at a time would take several times as long.
            lookups = [RouteLookup(database, service) for service in self._graph.ids]
            lookups += [RouteLookup(database, service, broker, is_initiator=False) for service, broker in replies]
            self._graph.at(instance).decisions_for(lookups)
        concerns = (Concern(*start, service) for start in starts for service in self._graph.ids)
        return frozenset(each for each in concerns if self.is_delivered(each))

    def reached(self, instance: str, database: str | None, service: str) -> set[str]:
        """Returns the instances to which a conversation may be delivered."""
        ends = self._graph.ends(instance, RouteLookup(database, service))
        return {str(end.instance) for end in ends if end.outcome == "DELIVERED"}

    def shared(self, instance: str) -> dict[Concern, set[str]]:
        """Returns the conversations that start in or pass through an instance and whose load several instances share, with these instances."""
        if instance not in self._shared:
            starts = [Concern(instance, database, "") for database in (None, *self._context.tables[instance].databases)]
            each = (start._replace(service=service) for start in starts for service in self._graph.ids)
            self._shared[instance] = {start: reached for start in each if len(reached := self.reached(*start)) > 1}
        return self._shared[instance]

    def _leaves_unnamed(self, concern: Concern, end: RoutingEnd) -> bool:
        """Returns whether only a route for all services leads a conversation out of the fleet."""
        service = concern.service
        tables = {MSDB, concern.database} if end.instance == concern.instance else {MSDB}
        routes = [
            route
            for route in self._context.tables[str(end.instance)].routes
            if route.database in tables and self._context.is_live(route)
        ]
        if any(route.service == service and end.address in (route.address, route.mirror) for route in routes):
            return False
        uses_name = any(route.address == TRANSPORT and route.service in (None, service) for route in routes)
        return not uses_name or addresses_in([service]).get(service) != end.address

    def _returns(self, instance: str, database: str | None, end: RoutingEnd) -> bool:
        if database is None or (instance, database) == (end.instance, end.database):
            return True
        key = str(end.instance), str(end.database), instance, database
        if key not in self._replies:
            tables = self._context.tables[instance]
            back = RoutingEnd("DELIVERED", instance, database)
            broker = tables.databases[database].broker
            self._replies[key] = all(
                self._graph.ends(key[0], RouteLookup(key[1], service, broker, is_initiator=False)) == {back}
                for service in tables.services.get(database, ())
            )
        return self._replies[key]


class RemedyProver:
    """Proves the remedies of the problems of one fleet."""

    def __init__(self, context: CheckContext, check: Check, problems: Sequence[Problem]) -> None:
        self._context: Final = context
        self._check: Final = check
        self._conversations: Final = Conversations(context)
        self._errors: Final = {_key(each.finding) for each in problems if each.finding.severity == "error"}
        self._copies: dict[str, ScriptOnCopies | None] = {}
        self._tried: dict[Candidate, tuple[Conversations, Sequence[Problem]] | None] = {}
        size = sum(len(each.routes) + len(each.hosts) for each in context.tables.values())
        self._trials_left = WORK_MAX // max(1, size)
        self._proves_any: Final = self._trials_left > 0

    def finding(self, problem: Problem) -> Finding:
        """Returns the finding with a proven remedy, or with general advice."""
        if not self._proves_any or next(iter(problem.candidates), None) is None:
            return problem.finding
        if self._trials_left <= 0:
            return replace(problem.finding, remedy=UNPROVEN)
        steps = self._first_proven(problem)
        if steps is None:
            return problem.finding
        return replace(
            problem.finding,
            remedy=remedy_text(steps, fleet=self._context.fleet),
            scripts=tuple((instance, script) for instance, script in steps),
        )

    def _first_proven(self, problem: Problem) -> Candidate | None:
        """Returns the first proven candidate; otherwise, the first proven combination with remedies of other errors; None if no tried candidate is proven."""
        tried = 0
        extended: list[Iterator[Candidate]] = []
        for candidate in chain(problem.candidates, chain.from_iterable(extended)):  # the list grows during iteration
            if tried >= _TRIALS_MAX or self._trials_left <= 0:
                return None
            tried += 1
            after = self._state_after(candidate)
            if after is None:
                continue
            conversations, problems = after
            remaining = {_key(each.finding) for each in problems}
            if _key(problem.finding) in remaining:
                continue
            errors = {_key(each.finding) for each in problems if each.finding.severity == "error"}
            if errors <= self._errors and all(
                conversations.is_delivered(each, must_be_named=True) for each in problem.concerns
            ):
                if self._keeps_deliveries(conversations) and self._keeps_load_sharing(conversations, candidate):
                    return candidate
            elif len(candidate) < _STEPS_MAX:
                # The fault is gone, but another fault of the same conversation remains or appears.
                extended.append(self._extended(candidate, problem, problems))
        return None

    def _extended(self, candidate: Candidate, problem: Problem, left: Sequence[Problem]) -> Iterator[Candidate]:
        """Yields a candidate combined with the possible remedies of each error that it causes or that concerns the same conversations."""
        services = {concern.service for concern in problem.concerns}
        for instance, database, _ in problem.concerns:
            services.update(
                self._context.tables[instance].services.get(database or "", ())
            )  # to these services, the conversation is acknowledged
        for other in left:
            if other.finding.severity == "error" and (
                _key(other.finding) not in self._errors
                or any(concern.service in services for concern in other.concerns)
            ):
                for more in other.candidates:
                    yield (*candidate, *more)

    def _keeps_deliveries(self, conversations: Conversations) -> bool:
        return all(map(conversations.is_delivered, self._conversations.delivered))

    def _keeps_load_sharing(self, conversations: Conversations, candidate: Candidate) -> bool:
        """Returns whether conversations that share the load of several instances still reach each of them."""
        return all(
            reached <= conversations.reached(*start)
            for instance in {step.instance for step in candidate}
            for start, reached in self._conversations.shared(instance).items()
        )

    def _state_after(self, candidate: Candidate) -> tuple[Conversations, Sequence[Problem]] | None:
        """Returns the conversations and problems of the fleet after a candidate; None if a statement is refused."""
        if candidate not in self._tried:
            self._trials_left -= 1
            self._tried[candidate] = self._evaluate_candidate(candidate)
        return self._tried[candidate]

    def _evaluate_candidate(self, candidate: Candidate) -> tuple[Conversations, Sequence[Problem]] | None:
        scripts: dict[str, list[str]] = {}
        for instance, script in candidate:
            scripts.setdefault(instance, []).append(script)
        instances = dict(self._context.fleet)
        try:
            for instance, each in scripts.items():
                if instance not in self._copies:
                    self._copies[instance] = ScriptOnCopies(instances[instance], now=self._context.now)
                run = self._copies[instance]
                if run is None:
                    return None
                instances[instance] = run("\n".join(each))
            fleet = AssumedBrokerIds(Fleet(instances)).fleet
        except SsbrokerError:
            self._copies.setdefault(instance, None)
            return None
        context = CheckContext(
            fleet=fleet,
            now=self._context.now,
            until=self._context.until,
            assumed=self._context.assumed,
            base=self._context,
            changed=frozenset(scripts),
        )
        return Conversations(context), self._check(context)


def _key(finding: Finding) -> _Key:
    # Route ids differ in a copy.
    return finding.code, finding.instance, finding.database, finding.subject


def remedy_text(steps: Sequence[Step], *, fleet: Fleet) -> str:
    """Returns the text of proven scripts; in a fleet of several instances, each is preceded by the name of its instance."""
    return " ".join(
        f"In {instance}: {script}" if len(fleet) > 1 else script for instance, script in scripts_by_instance(steps)
    )


def scripts_by_instance(steps: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yields the instances in the order in which their scripts must be executed, each with the statements to execute there."""
    for instance, group in groupby(steps, key=itemgetter(0)):
        parts: list[str] = []
        database = ""
        for _, script in group:
            used = script[: script.index(";") + 1] if script.startswith("USE ") else ""
            parts.append(script.removeprefix(f"{used} ") if used and used == database else script)
            database = used or database
        yield instance, " ".join(parts)
