"""Follows a conversation from instance to instance, and its acknowledgement back."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from ssbroker import _notebook as notebook
from ssbroker._arguments import optional_guid_bytes, utc_datetime
from ssbroker._text import did_you_mean, printable, quoted, restore_spaces, route_name, shortened_list
from ssbroker.advice import unknown_ids_text
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl.system_objects import SYSTEM_SERVICES
from ssbroker.diagnose.all_decisions import PossibleDecision, RouteLookup
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds, assumed_ids_of
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.known_addresses import LISTED_MAX, KnownAddresses
from ssbroker.diagnose.routing_graph import (
    ENDPOINT_NOT_STARTED,
    LOOP,
    NEXT_ENDPOINT_NOT_STARTED,
    QUEUE_DISABLED,
    SENT_BACK,
    Ends,
    MessageKey,
    Node,
    RoutingEnd,
    RoutingGraph,
)
from ssbroker.exceptions import OptionError, SchemaError, UnknownDatabaseError
from ssbroker.explain import Explanation
from ssbroker.router import PendingRequest, Router, find_unknown_broker_ids


def render(trace: Trace) -> str:
    """Returns the text of a trace."""
    return restore_spaces("\n".join(_lines(trace)))


def _lines(trace: Trace) -> Iterator[str]:
    yield f"{_location(trace)} {sending_verb(trace)} {quoted(trace.to_service_name)}."
    yield from _path(trace)
    for acknowledgement in trace.acknowledgements:
        yield ""
        yield f"{return_subject(acknowledgement, trace)} to {quoted(acknowledgement.to_service_name)} in {_location(trace)}."
        yield from _path(acknowledgement)
        if not acknowledgement.returned_to(trace):
            yield return_failure(acknowledgement, trace)
    if trace.assumed_ids:
        yield ""
        yield f"Assumed: {assumption_text(trace.assumed_ids)}. {unknown_ids_text(locations_text(trace.assumed_ids))}"
    if trace.delivered and trace.end != origin_of(trace):
        is_here = trace.end.instance == trace.instance
        more = "TRUSTWORTHY of the databases" if is_here else "the certificates of a dialog with encryption"
        yield ""
        unchecked = f"whether the target permits SEND, and {more}" if trace.is_initiator else more
        yield f"Not checked, because catalogs lack the information: {unchecked}."


def sending_verb(trace: Trace) -> str:
    """Returns what the sender of the message does with the service that receives it."""
    return "starts a conversation with" if trace.is_initiator else "sends a reply to"


def assumption_text(databases: Iterable[tuple[str, str]]) -> str:
    """Describes the assumption that databases have the broker id that a conversation names."""
    names = locations_text(databases)
    return f"{', '.join(shortened_list(names, LISTED_MAX))} {'have' if len(names) > 1 else 'has'} the broker id that the conversation names"


def locations_text(databases: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the names of databases, each after its instance."""
    return [printable(f"{instance}/{database}") for instance, database in databases]


def return_subject(acknowledgement: Trace, first: Trace) -> str:
    """Returns the subject and verb for what returns from the target; within an instance, no acknowledgement needs a route."""
    subject = "replies return" if acknowledgement.instance == first.instance else "the acknowledgement returns"
    if acknowledgement is first.acknowledgement:
        return subject.capitalize()
    return f"With another choice between equal routes, {subject} from {_location(acknowledgement)}"


def return_failure(acknowledgement: Trace, first: Trace) -> str:
    """Describes the consequences if the acknowledgement or replies do not arrive."""
    if acknowledgement.instance == first.instance:
        return "No reply arrives: replies wait at the target until the conversation times out."
    return "No acknowledgement arrives: the initiator resends the message about every minute until the conversation times out."


def _location(trace: Trace) -> str:
    return printable(f"{trace.instance}/{trace.database}")


def _path(trace: Trace) -> Iterator[str]:
    for number, hop in enumerate(trace.hops, start=1):
        yield f"  {number}. {printable(hop.instance)}, sys.routes of {quoted(hop.database or MSDB)}: {decision_text(hop)}"
    yield f"  => {end_text(trace.end)}"
    if trace.end.outcome == "ELSEWHERE":
        yield f"     {trace.advice}"
    others = [end for end in trace.possible if end != trace.end]
    for end in others:
        yield f"     or, with another choice between equal routes: {end_text(end)}"


def decision_text(hop: Hop) -> str:
    """Describes the decision of a hop, with the route and the step that found it."""
    decision = hop.decision
    outcome, reason = decision["outcome"], decision["reason"]
    text = outcome if outcome != "LOCAL" else f"LOCAL in {quoted(decision['target_database'])}"
    if decision["next_hop_address"] is not None:
        text += f" to {decision['next_hop_address']}"
    if decision["mirror_address"] is not None:
        text += f", mirror {decision['mirror_address']}"
    details = (
        [f"step {decision['match_step']}"] if decision["match_step"] else []
    )  # a reply with a known broker id has step 0
    route = _route(hop)
    if route is not None:
        details.append(route_name(route))
    if reason != "matched":
        details.append("reply, delivered by its broker id without routes" if reason == "reply" else reason)
    return f"{text} ({', '.join(details)})"


def _route(hop: Hop) -> dict[str, Any] | None:
    """Returns the route that was used, from the last routing table that was read; None if no route was used."""
    passes = hop.explanation.details["passes"]
    picked = [group["picked"] for group in passes[-1]["classes"] if group["picked"] is not None]
    return picked[-1] if picked and hop.decision["route_id"] == picked[-1]["route_id"] else None


def end_text(end: RoutingEnd) -> str:
    """Describes the end of a message's path.

    Examples:
        >>> restore_spaces(end_text(RoutingEnd("DELAYED", "NORTH", reason="no_route")))
        'DELAYED: waits in NORTH (no_route)'
    """
    instance = printable(end.instance or "")
    database = f"{instance}/{printable(end.database or '')}"
    if end.outcome == "DELIVERED":
        return f"DELIVERED to {database}"
    if end.outcome == "REFUSED":
        return f"REFUSED by {database}: the service has no contract, so it accepts no conversations; the conversation ends with error -8408"
    if end.outcome == "ELSEWHERE":
        return f"ELSEWHERE: sent to {end.address}, which is not a known address of any of the instances"
    if end.outcome == "LOOP":
        return "LOOP: circulates until its hop limit or lifetime is reached"
    if end.reason == QUEUE_DISABLED:
        return f"DELAYED: waits in the transmission queue of {database} ({QUEUE_DISABLED}): the queue of the service is disabled"
    text = f"{'DELAYED: waits in' if end.outcome == 'DELAYED' else 'DROPPED by'} {instance} ({end.reason})"
    explanations = {
        ENDPOINT_NOT_STARTED: f"its endpoint is not started, so it does not send to {end.address}",
        NEXT_ENDPOINT_NOT_STARTED: f"the endpoint of the instance at {end.address} is not started",
        SENT_BACK: "its route leads back to the instance that the message came from",
    }
    if end.reason in explanations:
        return f"{text}: {explanations[end.reason]}"
    return text if end.outcome == "DELAYED" else f"{text}: not acknowledged, so the sender resends it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """The routing of a message at one instance.

    Attributes:
        instance: The instance.
        database: The database in which the conversation starts; None if the message arrives from another instance.
        explanation: How the instance routed the message.
    """

    instance: str
    database: str | None
    explanation: Explanation

    @property
    def decision(self) -> dict[str, Any]:
        """The decision, by the column names of `schemas.DECISIONS`."""
        return self.explanation.decision


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Trace:
    """The path of a conversation through a fleet; `str()` returns it as text for an administrator.

    Attributes:
        instance: The instance that sends the message.
        database: The database that sends the message.
        to_service_name: The service that receives the message.
        is_initiator: Whether the message comes from the initiator; False if it comes from the target.
        hops: The instances on the path.
        end: What finally happens to the message.
        possible: Every end that the conversation can have, whichever way ties are broken.
        acknowledgement: The path of the acknowledgement; None if the message is not delivered or comes from the target, or if the
            initiator's database has no service.
        advice: What to do about an address that no instance has; None for other ends.
        other_acknowledgements: The paths of the acknowledgement from other targets that the message can reach,
            whichever way ties are broken.
        assumed_ids: The databases, each after its instance, that may accept the message only because they are assumed to
            have the broker id that the conversation names; the catalogs do not contain their ids.
    """

    instance: str
    database: str
    to_service_name: str
    is_initiator: bool
    hops: tuple[Hop, ...]
    end: RoutingEnd
    possible: tuple[RoutingEnd, ...]
    advice: str | None = None
    acknowledgement: Trace | None = None
    other_acknowledgements: tuple[Trace, ...] = ()
    assumed_ids: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<Trace of {self.to_service_name!r} from {self.instance}/{self.database}: {self.end.outcome}>"

    @property
    def delivered(self) -> bool:
        """Whether the message reaches a queue and its acknowledgement returns."""
        is_delivered = self.end.outcome == "DELIVERED"
        return is_delivered and (self.acknowledgement is None or self.acknowledgement.returned_to(self))

    @property
    def acknowledgements(self) -> tuple[Trace, ...]:
        """The paths of the acknowledgement from every target that the message can reach, starting with the target at `end`."""
        first = () if self.acknowledgement is None else (self.acknowledgement,)
        return (*first, *self.other_acknowledgements)

    @property
    def always_delivered(self) -> bool:
        """Whether the message reaches a queue and its acknowledgement returns, however ties are broken."""
        is_delivered = all(end.outcome == "DELIVERED" for end in self.possible)
        return is_delivered and all(path.possible == (origin_of(self),) for path in self.acknowledgements)

    def returned_to(self, first: Trace) -> bool:
        """Returns whether this trace, of an acknowledgement, ends where the trace of the acknowledged message starts.

        Args:
            first: The trace of the acknowledged message.
        """
        return (self.end.outcome, self.end.instance, self.end.database) == ("DELIVERED", first.instance, first.database)

    def to_dict(self) -> dict[str, Any]:
        """Returns the trace as values that JSON can represent."""
        return {
            "instance": self.instance,
            "database": self.database,
            "to_service_name": self.to_service_name,
            "is_initiator": self.is_initiator,
            "hops": [
                {"instance": hop.instance, "database": hop.database, "explanation": hop.explanation.to_dict()}
                for hop in self.hops
            ],
            "end": self.end._asdict(),
            "possible": [end._asdict() for end in self.possible],
            "advice": self.advice,
            "delivered": self.delivered,
            "acknowledgement": None if self.acknowledgement is None else self.acknowledgement.to_dict(),
            "other_acknowledgements": [each.to_dict() for each in self.other_acknowledgements],
            "assumed_ids": [{"instance": instance, "database": database} for instance, database in self.assumed_ids],
        }

    def __str__(self) -> str:
        return render(self)

    def _repr_html_(self) -> str:
        start, *lines = str(self).splitlines()
        hops = [hop for path in (self, *self.acknowledgements) for hop in path.hops]
        explanations = [
            notebook.collapsible(
                f"{hop.instance}: {restore_spaces(decision_text(hop))}", notebook.preformatted(str(hop.explanation))
            )
            for hop in hops
        ]
        return notebook.section(start, notebook.preformatted("\n".join(lines)), *explanations)


def origin_of(forward: Trace) -> RoutingEnd:
    """Returns the end at which the acknowledgement of a message has returned to its sender."""
    return RoutingEnd("DELIVERED", forward.instance, forward.database)


def trace(
    fleet: Fleet | Catalog,
    to_service_name: str,
    *,
    instance: str | None = None,
    database: str | None = None,
    from_service_name: str | None = None,
    to_broker_instance: uuid.UUID | str | bytes | None = None,
    conversation_id: uuid.UUID | str | bytes | None = None,
    is_initiator: bool = True,
    at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> Trace:
    """Follows a conversation hop by hop until it is delivered, delayed, dropped or in a loop, and its acknowledgement back.

    If the message is a reply (`is_initiator=False`), its acknowledgement is not followed: it takes the path of the messages from the
    initiator.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        to_service_name: The service that receives the message.
        instance: The instance that sends the message; optional if there is only one instance.
        database: The database that sends the message; optional if `msdb` is the only other database.
        from_service_name: The initiator service, to which the acknowledgement returns; None for the first service of the database by
            name.
        to_broker_instance: The broker id that the conversation names; None if it names no broker id.
        conversation_id: The id that decides among equal candidates (tie break `hash`); None picks the first candidate.
        is_initiator: Whether the message comes from the initiator; False if it comes from the target.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        The trace; `print` shows it as text.

    Raises:
        UnknownDatabaseError: The instance or database does not exist, or must be specified.
        SchemaError: `fleet` is neither a fleet nor a catalog, or `to_service_name` is not a str.
        InvalidGuidError: An id is not a valid GUID.
        OptionError: `at` is not a datetime with a time zone, `pending_request` is unknown, or the database does not have `from_service_name`,
            although its services are known.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import trace
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> found = trace(Catalog(pa.table(routes)), "//Orders")
        >>> found.end.outcome, found.end.address
        ('ELSEWHERE', 'TCP://orders:4022')
    """
    assumed = assumed_ids_of(Fleet.of(fleet))
    whole_fleet = assumed.fleet
    name: object = to_service_name
    if not isinstance(name, str):
        raise SchemaError(f"to_service_name: expected str, got {type(name).__name__}", column="to_service_name")
    now = utc_datetime(at, name="at")
    tracer = Tracer(
        RoutingGraph(whole_fleet, now=now, pending_request=pending_request),
        assumed=assumed,
        conversation_id=optional_guid_bytes(conversation_id, name="conversation_id"),
        pending_request=pending_request,
        now=now,
    )
    start_instance, start_database = resolve_database(whole_fleet, instance, database)
    broker = optional_guid_bytes(to_broker_instance, name="to_broker_instance")
    _check_service(whole_fleet[start_instance], start_instance, start_database, from_service_name)
    forward = tracer.follow(start_instance, RouteLookup(start_database, to_service_name, broker, is_initiator))
    return tracer.with_acknowledgements(forward, from_service_name) if is_initiator else forward


def _check_service(catalog: Catalog, instance: str, database: str, service: str | None) -> None:
    if service is None:
        return
    rows: list[dict[str, Any]] = catalog.services.select(["database", "name"]).to_pylist()
    names = sorted(row["name"] for row in rows if row["database"] == database)
    if names and service not in names and catalog.details.is_complete:
        shown = ", ".join(shortened_list(map(quoted, names), LISTED_MAX))
        raise OptionError(
            f"from_service_name: {instance}/{database} has no service {service!r:.80}; expected one of {shown}"
        )


def resolve_database(fleet: Fleet, instance: str | None, database: str | None) -> tuple[str, str]:
    """Returns the instance and database, with defaults if they are not specified.

    Raises:
        UnknownDatabaseError: The instance or database does not exist, or must be specified.
    """
    if instance is None:
        if len(fleet) != 1:
            hint = f"specify one of {', '.join(fleet)}" if fleet else "the fleet has no instances"
            raise UnknownDatabaseError(f"instance: {hint}")
        instance = next(iter(fleet))
    if instance not in fleet:
        raise UnknownDatabaseError(
            f"instance: unknown instance {instance!r:.80}; expected one of {', '.join(fleet)}{did_you_mean(instance, fleet)}",
            value=instance,
        )
    names = [str(found) for found in fleet[instance].databases["name"].to_pylist()]
    if database is None:
        database = fleet[instance].user_database
        if database is None:
            raise UnknownDatabaseError(
                f"database: specify one of the databases of {instance}: {', '.join(sorted(names))}"
            )
    if database not in names:
        raise UnknownDatabaseError(
            f"database: unknown database {database!r:.80} in {instance}; expected one of {', '.join(sorted(names))}{did_you_mean(database, names)}",
            value=database,
        )
    return instance, database


_IDS_MAX: Final = 100
"""The maximum number of conversation ids to try for one end; with many equal routes, the rarest ends may not be found."""


class Tracer:
    """Follows messages; the conversation id and the time are the same for all of them."""

    def __init__(
        self,
        graph: RoutingGraph,
        *,
        assumed: AssumedBrokerIds,
        conversation_id: bytes | None,
        pending_request: PendingRequest,
        now: datetime,
    ) -> None:
        self._graph = graph
        self._assumed = assumed
        self._latest: tuple[tuple[str, bytes | None], Tracer] | None = None
        self._addresses = KnownAddresses(graph.fleet)
        self._conversation_id = conversation_id
        self._pending_request: PendingRequest = pending_request
        self._now = now
        self._routers: dict[tuple[str, bool], Router] = {}

    def follow(self, instance: str, lookup: RouteLookup) -> Trace:
        """Follows one message."""
        return self._follow(instance, lookup, self._conversation_id)

    def follow_to(self, instance: str, lookup: RouteLookup, end: RoutingEnd) -> Trace:
        """Follows a message to one of its possible ends, with a conversation id that leads there.

        If no such id is found, the trace has no hops.
        """
        path = self.follow(instance, lookup)
        for number in range(_IDS_MAX):
            if path.end == end:
                return path
            path = self._follow(instance, lookup, number.to_bytes(16, "big"))
        return replace(path, end=end, hops=(), advice=None)

    def _tracer_for(self, lookup: RouteLookup) -> Tracer:
        """Returns the tracer of the fleet in which a database has the broker id that a conversation names; the latest one is kept."""
        key = lookup.service, lookup.broker
        if self._latest is None or self._latest[0] != key:
            fleet = self._assumed.for_conversation(*key)
            tracer = self
            if fleet is not self._assumed.fleet:
                tracer = Tracer(
                    self._graph.of_changed(fleet),
                    assumed=self._assumed,
                    conversation_id=self._conversation_id,
                    pending_request=self._pending_request,
                    now=self._now,
                )
                tracer._latest = key, tracer
            self._latest = key, tracer
        return self._latest[1]

    def _follow(self, instance: str, lookup: RouteLookup, conversation_id: bytes | None) -> Trace:
        tracer = self._tracer_for(lookup)
        if tracer is not self:
            return tracer._follow(instance, lookup, conversation_id)  # noqa: SLF001 - of the same class
        hops: list[Hop] = []
        seen: set[Node] = set()
        node: Node = (instance, lookup)
        end: RoutingEnd | None = None
        sender: str | None = None
        while end is None:
            seen.add(node)
            hop = self._hop(*node, conversation_id)
            hops.append(hop)
            following = self._graph.next_step(node[0], node[1], _possible_decision(hop.decision), sender=sender)
            if isinstance(following, RoutingEnd):
                end = self._graph.end_at(following, MessageKey(*lookup[1:]))
            elif following in seen:
                end = LOOP
            else:
                sender, node = node[0], following
        possible = self._graph.ends(instance, lookup)
        return Trace(
            instance=instance,
            database=lookup.database or MSDB,
            to_service_name=lookup.service,
            is_initiator=lookup.is_initiator,
            hops=tuple(hops),
            end=end,
            possible=tuple(sorted(possible, key=str)),
            advice=self._advice(end),
            assumed_ids=() if lookup.broker is None else self._assumed_ids(possible),
        )

    def _assumed_ids(self, possible: Ends) -> tuple[tuple[str, str], ...]:
        accepting = {(str(end.instance), str(end.database)) for end in possible if end.database is not None}
        return tuple(sorted(accepting & self._assumed.databases))

    def _advice(self, end: RoutingEnd) -> str | None:
        if end.outcome != "ELSEWHERE":
            return None
        address, instance = str(end.address), str(end.instance)
        if (listening := self._addresses.listening(address, seen_from=instance)) is not None:
            return f"{listening}: correct the port of the route."
        return self._addresses.advice(address, seen_from=instance)

    def with_acknowledgements(self, forward: Trace, from_service_name: str | None) -> Trace:
        """Returns the trace with the acknowledgement from every target that the message can reach."""
        rows = self._graph.at(forward.instance).tables
        service = from_service_name
        if service is None:
            service = min(set(rows.services.get(forward.database, ())) - SYSTEM_SERVICES.keys(), default=None)
        if service is None:
            return forward
        found = {
            end: replace(
                self.follow(str(end.instance), self.reply_lookup(forward, str(end.database), service)), assumed_ids=()
            )
            for end in (forward.end, *forward.possible)
            if end.outcome == "DELIVERED"
        }
        first = found.pop(forward.end, None)
        return replace(forward, acknowledgement=first, other_acknowledgements=tuple(found.values()))

    def reply_lookup(self, forward: Trace, database: str, service: str) -> RouteLookup:
        """Returns the lookup by which a database sends a reply to the service from which a message came."""
        broker = self._graph.at(forward.instance).tables.databases[forward.database].broker
        return RouteLookup(database, service, broker, is_initiator=False)

    def _hop(self, instance: str, lookup: RouteLookup, conversation_id: bytes | None) -> Hop:
        key = instance, conversation_id is None
        if key not in self._routers:
            self._routers[key] = Router(
                self._graph.fleet[instance],
                tie_break="first" if conversation_id is None else "hash",
                pending_request=self._pending_request,
            )
        explanation = self._routers[key].explain(
            lookup.service,
            to_broker_instance=lookup.broker,
            database=lookup.database,
            is_initiator=lookup.is_initiator,
            conversation_id=conversation_id,
            now=self._now,
        )
        _hide_assumed_ids(explanation.details, self._assumed.given[instance])
        return Hop(instance=instance, database=lookup.database, explanation=explanation)


def _hide_assumed_ids(details: dict[str, Any], catalog: Catalog) -> None:
    """Makes an explanation treat assumed broker ids as unknown, except those that match; `catalog` lacks the assumed ids."""
    unknown = find_unknown_broker_ids(catalog, details)
    details["unknown_broker_ids"] = unknown
    searches = [table[part] for table in details["passes"] for part in ("locate", "reply")]
    for search in filter(None, [*searches, details["located_if_local"]]):
        wanted = search.get("broker_instance") or details["conversation"]["to_broker_instance"]
        for database in search["databases"]:
            if database["name"] in unknown and database["broker_instance"] != wanted:
                database["broker_instance"] = None


def _possible_decision(decision: dict[str, Any]) -> PossibleDecision:
    broker = decision["broker_instance"]
    return PossibleDecision(
        outcome=decision["outcome"],
        reason=decision["reason"],
        match_step=decision["match_step"],
        route_id=decision["route_id"],
        next_hop=decision["next_hop_address"],
        mirror=decision["mirror_address"],
        target_database=decision["target_database"],
        broker=None if broker is None else broker.bytes,
    )
