"""Follows one conversation from instance to instance, and its acknowledgement back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ssbroker._arguments import guid_bytes, utc_datetime
from ssbroker._text import printable, quoted, restore_spaces, route_name
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.behaviour import Answer, Question
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.reachability import LOOP, Node, RoutingEnd, RoutingGraph
from ssbroker.exceptions import SchemaError, UnknownDatabaseError
from ssbroker.explain import Explanation
from ssbroker.router import PendingRequest, Router, TieBreak


def render(trace: Trace) -> str:
    """The trace in lines."""
    return restore_spaces("\n".join(_lines(trace)))


def _lines(trace: Trace) -> Iterator[str]:
    yield f"{_place(trace)} begins a conversation for {quoted(trace.to_service_name)}."
    yield from _way(trace)
    back = trace.acknowledgement
    if back is not None:
        yield ""
        yield f"The acknowledgement goes back to {quoted(back.to_service_name)} in {_place(trace)}."
        yield from _way(back)
        if not back.returned_to(trace):
            yield "It does not come back: the initiator sends the message again, about every minute, until the conversation times out."


def _place(trace: Trace) -> str:
    return printable(f"{trace.instance}/{trace.database}")


def _way(trace: Trace) -> Iterator[str]:
    for number, hop in enumerate(trace.hops, start=1):
        yield f"  {number}. {printable(hop.instance)}, table of {quoted(hop.database or 'msdb')}: {_decided(hop)}"
    yield f"  => {ending(trace.end)}"
    others = [fate for fate in trace.possible if fate != trace.end]
    for fate in others:
        yield f"     or, where a tie falls another way: {ending(fate)}"


def _decided(hop: Hop) -> str:
    decision = hop.decision
    outcome, reason = decision["outcome"], decision["reason"]
    told = outcome if outcome != "LOCAL" else f"LOCAL in {quoted(decision['target_database'])}"
    if decision["next_hop_address"] is not None:
        told += f" to {decision['next_hop_address']}"
    how = [] if decision["match_step"] is None else [f"step {decision['match_step']}"]
    route = _route(hop)
    if route is not None:
        how.append(route_name(route))
    if reason != "matched":
        how.append(reason)
    return f"{told} ({', '.join(how)})"


def _route(hop: Hop) -> dict[str, Any] | None:
    """The route that was taken, by the last table that was read."""
    passes = hop.explanation.details["passes"]
    picked = [group["picked"] for group in passes[-1]["classes"] if group["picked"] is not None]
    return picked[-1] if picked and hop.decision["route_id"] == picked[-1]["route_id"] else None


def ending(fate: RoutingEnd) -> str:
    """What becomes of a message, in words.

    Examples:
        >>> restore_spaces(ending(RoutingEnd("DELAYED", "NORTH", reason="no_route")))
        'DELAYED: waits in NORTH (no_route)'
    """
    instance = printable(fate.instance or "")
    if fate.outcome == "DELIVERED":
        return f"DELIVERED to {instance}/{printable(fate.database or '')}"
    if fate.outcome == "DELAYED":
        return f"DELAYED: waits in {instance} ({fate.reason})"
    if fate.outcome == "DROPPED":
        return f"DROPPED by {instance} ({fate.reason}): not acknowledged, so the sender sends it again"
    if fate.outcome == "ELSEWHERE":
        return f"ELSEWHERE: leaves for {fate.address}, which no instance here has"
    return "LOOP: goes in circles until its hops or its lifetime are used up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """What one instance does with the message."""

    instance: str
    """The instance."""
    database: str | None
    """Where the message begins; None where it arrives."""
    explanation: Explanation
    """The whole way within the instance."""

    @property
    def decision(self) -> dict[str, Any]:
        """The columns of the decision."""
        return self.explanation.decision


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The way of one conversation; `str()` of it is what an administrator wants to read."""

    instance: str
    """Where it begins."""
    database: str
    """In which database."""
    to_service_name: str
    """For which service."""
    is_initiator: bool
    """False for what the target sends back."""
    hops: tuple[Hop, ...]
    """Every instance on the way."""
    end: RoutingEnd
    """What becomes of it."""
    possible: tuple[RoutingEnd, ...]
    """Everything that may become of such a conversation, whichever way ties fall."""
    acknowledgement: Trace | None = None
    """The way back from the database that took it; None where none did, or where nothing begins conversations."""

    @property
    def delivered(self) -> bool:
        """Whether the message comes into a queue, and its acknowledgement back."""
        there = self.end.outcome == "DELIVERED"
        return there and (self.acknowledgement is None or self.acknowledgement.returned_to(self))

    def returned_to(self, first: Trace) -> bool:
        """Whether this way, back, ends where the other began."""
        return (self.end.outcome, self.end.instance, self.end.database) == ("DELIVERED", first.instance, first.database)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
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
            "possible": [fate._asdict() for fate in self.possible],
            "delivered": self.delivered,
            "acknowledgement": None if self.acknowledgement is None else self.acknowledgement.to_dict(),
        }

    def __str__(self) -> str:
        return render(self)


def trace(
    fleet: Fleet | Catalog,
    to_service_name: str,
    *,
    instance: str | None = None,
    database: str | None = None,
    from_service_name: str | None = None,
    to_broker_instance: uuid.UUID | str | bytes | None = None,
    conversation_id: uuid.UUID | str | bytes | None = None,
    at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> Trace:
    """Follows a conversation hop by hop to delivery, delay, drop or loop, and the acknowledgement back.

    Args:
        fleet: The instances, or one.
        to_service_name: The service that the conversation is for.
        instance: Where it begins; may be left out where there is one instance.
        database: In which database; may be left out where the instance has one beside `msdb`.
        from_service_name: The service that begins it, to which the acknowledgement goes; the database's first by name if left out.
        to_broker_instance: The broker id that it names, if any.
        conversation_id: Picks among equals by `hash`; left out, the first candidate is taken.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        The trace; print it.

    Raises:
        UnknownDatabaseError: There is no such instance or database, or it has to be named.
        SchemaError: `fleet` is neither a fleet nor a catalog, or the name no text.
        InvalidGuidError: An id is no GUID.
        OptionError: `at` is no datetime.

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
    whole = Fleet.of(fleet)
    name: object = to_service_name
    if not isinstance(name, str):
        raise SchemaError(f"to_service_name: expected str, got {type(name).__name__}", column="to_service_name")
    now = utc_datetime(at)
    follower = Follower(
        RoutingGraph(whole, now=now, pending_request=pending_request),
        conversation_id=None if conversation_id is None else guid_bytes(conversation_id, name="conversation_id"),
        pending_request=pending_request,
        now=now,
    )
    begun_at, begun_in = place(whole, instance, database)
    broker = None if to_broker_instance is None else guid_bytes(to_broker_instance, name="to_broker_instance")
    there = follower.follow(begun_at, Question(begun_in, to_service_name, broker))
    back = follower.back(there, from_service_name)
    return Trace(**{field: getattr(there, field) for field in _WITHOUT_BACK}, acknowledgement=back)


_WITHOUT_BACK: Final = ("instance", "database", "to_service_name", "is_initiator", "hops", "end", "possible")


def place(fleet: Fleet, instance: str | None, database: str | None) -> tuple[str, str]:
    """The instance and the database that are meant.

    Raises:
        UnknownDatabaseError: There are none, or they have to be named.
    """
    if instance is None:
        if len(fleet) != 1:
            raise UnknownDatabaseError(f"instance: has to be named; the fleet has {', '.join(fleet) or 'none'}")
        instance = next(iter(fleet))
    if instance not in fleet:
        raise UnknownDatabaseError(
            f"instance: the fleet has no {instance!r:.80}; expected one of {', '.join(fleet)}", value=instance
        )
    names = [str(found) for found in fleet[instance].databases["name"].to_pylist()]
    if database is None:
        database = fleet[instance].user_database
        if database is None:
            raise UnknownDatabaseError(f"database: has to be named; {instance} has {', '.join(sorted(names))}")
    if database not in names:
        raise UnknownDatabaseError(
            f"database: {instance} has no {database!r:.80}; expected one of {', '.join(sorted(names))}", value=database
        )
    return instance, database


class Follower:
    """Follows messages of one conversation id at one moment."""

    def __init__(
        self, ways: RoutingGraph, *, conversation_id: bytes | None, pending_request: PendingRequest, now: datetime
    ) -> None:
        self._ways = ways
        self._conversation_id = conversation_id
        tie_break: TieBreak = "first" if conversation_id is None else "hash"
        self._options: dict[str, Any] = {"tie_break": tie_break, "pending_request": pending_request}
        self._now = now

    def follow(self, instance: str, question: Question) -> Trace:
        """The way of one message."""
        hops: list[Hop] = []
        seen: set[Node] = set()
        node: Node = (instance, question)
        end: RoutingEnd | None = None
        while end is None:
            seen.add(node)
            hop = self._hop(*node)
            hops.append(hop)
            onward = self._ways.onward(node[0], node[1], _answer(hop.decision))
            if isinstance(onward, RoutingEnd):
                end = onward
            elif onward in seen:
                end = LOOP
            else:
                node = onward
        possible = self._ways.fates(instance, question)
        return Trace(
            instance=instance,
            database=question.database or "msdb",
            to_service_name=question.service,
            is_initiator=question.is_initiator,
            hops=tuple(hops),
            end=end,
            possible=tuple(sorted(possible, key=str)),
        )

    def back(self, there: Trace, from_service_name: str | None) -> Trace | None:
        """The way of the acknowledgement, where the message was delivered."""
        if there.end.instance is None or there.end.database is None:
            return None
        rows = self._ways.at(there.instance).tables
        service = from_service_name
        if service is None:
            service = min(rows.services.get(there.database, ()), default=None)
        if service is None:
            return None
        broker = rows.databases[there.database].broker
        return self.follow(there.end.instance, Question(there.end.database, service, broker, is_initiator=False))

    def _hop(self, instance: str, question: Question) -> Hop:
        router = Router(self._ways.fleet[instance], **self._options)
        explanation = router.explain(
            question.service,
            to_broker_instance=question.broker,
            database=question.database,
            is_initiator=question.is_initiator,
            conversation_id=self._conversation_id,
            now=self._now,
        )
        return Hop(instance=instance, database=question.database, explanation=explanation)


def _answer(decision: dict[str, Any]) -> Answer:
    broker = decision["broker_instance"]
    return Answer(
        outcome=decision["outcome"],
        reason=decision["reason"],
        match_step=decision["match_step"],
        route_id=decision["route_id"],
        next_hop=decision["next_hop_address"],
        mirror=decision["mirror_address"],
        target_database=decision["target_database"],
        broker=None if broker is None else broker.bytes,
    )
