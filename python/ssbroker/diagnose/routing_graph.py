"""All paths that routing can take through a fleet, and how they end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from ssbroker.diagnose.all_decisions import (
    Behaviour,
    Origin,
    PossibleDecision,
    RouteLookup,
    Target,
    may_begin_with_address,
)
from ssbroker.diagnose.catalog_rows import read_tables
from ssbroker.diagnose.fleet import Fleet
from ssbroker.router import PendingRequest

Ending = Literal["DELIVERED", "REFUSED", "DELAYED", "DROPPED", "ELSEWHERE", "LOOP"]
"""What can happen to a message: delivered to a queue; refused by a service without a contract; delayed at its sender, or at the target
while the queue is disabled; dropped on the path; sent to an address outside the fleet; circulating until its hop limit or lifetime is
reached.
"""


class RoutingEnd(NamedTuple):
    """A possible end of a message's path.

    Attributes:
        outcome: `DELIVERED`, `REFUSED` (by a service without a contract), `DELAYED`, `DROPPED`, `ELSEWHERE` (sent to an address that no
            instance of the fleet has) or `LOOP`.
        instance: The instance at which the path ends; None for a loop.
        database: The database that accepted or refused the message.
        address: The address to which the message was sent, if `ELSEWHERE`, or to which it cannot be sent because an endpoint is not started.
        reason: The reason of the decision, if refused, delayed, dropped or a loop; `sent_back` if the instance drops the message because
            its route leads back to the instance that the message came from; `endpoint_not_started` or `next_endpoint_not_started` if
            the endpoint of the instance, or of the next one, is not started; `queue_disabled` if the queue of the service is disabled.
    """

    outcome: Ending
    instance: str | None = None
    database: str | None = None
    address: str | None = None
    reason: str | None = None


LOOP: Final = RoutingEnd("LOOP", reason="routing_loop")
NO_CONTRACT: Final = "no_contract"
"""The reason of a refusal."""
SENT_BACK: Final = "sent_back"
"""The reason of a drop by a forwarder whose route leads back to the instance that the message came from."""
QUEUE_DISABLED: Final = "queue_disabled"
"""The reason of a delay in the target database."""
ENDPOINT_NOT_STARTED: Final = "endpoint_not_started"
"""The reason of a delay or drop by an instance whose endpoint is not started."""
NEXT_ENDPOINT_NOT_STARTED: Final = "next_endpoint_not_started"
"""The reason of a delay or drop by an instance whose next hop has an endpoint that is not started."""
Ends = frozenset[RoutingEnd]
Node = tuple[str, RouteLookup]
Ids = tuple[bytes | None, ...]


class Transition(NamedTuple):
    """What can happen to a class of conversations at an instance: they end, or go to another instance."""

    ends: Ends
    hops: tuple[tuple[str, bytes | None], ...]
    """The possible next instances, each with the broker id to which a conversation without a broker id is bound."""


Arrival = tuple[str, str | None]
"""An instance at which a message arrives, and the instance from which it came if a route leads back there; otherwise None."""


class Continuation(NamedTuple):
    """What can happen to a message that has arrived: it ends, or goes on to other instances."""

    ends: Ends
    arrivals: tuple[Arrival, ...]


class MessageKey(NamedTuple):
    """The header fields that routing uses; a forwarder cannot change them, because the header is signed."""

    service: str
    broker: bytes | None
    is_initiator: bool


class RoutingGraph:
    """All routing paths through a fleet.

    `behaviours` contains the already computed `Behaviour` of instances. With `ignores_states`, all endpoints count as
    started and all queues as enabled.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        now: datetime,
        pending_request: PendingRequest = "continue",
        behaviours: Mapping[str, Behaviour] | None = None,
        ignores_states: bool = False,
    ) -> None:
        self.fleet: Final = fleet
        self._ignores_states: Final = ignores_states
        self._options: Final[dict[str, Any]] = {"now": now, "pending_request": pending_request}
        self._behaviours: Final[dict[str, Behaviour]] = dict(behaviours or {})
        self._normalized: Final[dict[str, str]] = {}
        self._instances_by_address: Final = fleet.addresses
        self.transitions: Final[list[Transition]] = []
        """Every transition, at its index."""
        self._indices: Final[dict[Transition, int]] = {}
        self._arrival_transitions: Final[dict[int, Transition]] = {}
        self._transition_indices: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._arrivals: Final[defaultdict[bool, defaultdict[Target, dict[str, int]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._ends: Final[defaultdict[MessageKey, dict[Arrival, Ends]]] = defaultdict(dict)

    def of_changed(self, fleet: Fleet) -> RoutingGraph:
        """Returns the graph of a fleet that shares some catalogs with this one; their computed behaviours are kept."""
        kept = {name: each for name, each in self._behaviours.items() if fleet[name] is self.fleet[name]}
        return RoutingGraph(fleet, behaviours=kept, ignores_states=self._ignores_states, **self._options)

    def at(self, instance: str) -> Behaviour:
        """Returns the behaviour of an instance; computed on first access."""
        if instance not in self._behaviours:
            catalog = self.fleet[instance]
            rows = read_tables(catalog, self._normalized)
            self._behaviours[instance] = Behaviour(catalog, rows=rows, **self._options)
        return self._behaviours[instance]

    @cached_property
    def behaviours(self) -> dict[str, Behaviour]:
        """The behaviour of every instance."""
        return {instance: self.at(instance) for instance in self.fleet}

    @cached_property
    def ids(self) -> dict[str, Ids]:
        """For each known service name, every broker id with which a conversation can arrive, including None."""
        found: defaultdict[str, set[bytes | None]] = defaultdict(lambda: {None})
        for behaviour in self.behaviours.values():
            for route in behaviour.tables.routes:
                if route.service is not None:
                    found[route.service].add(route.broker)
        for service, ids in self.host_ids.items():
            found[service].update(ids)
        return _sorted(found)

    @cached_property
    def host_ids(self) -> dict[str, Ids]:
        """For each service, the broker ids of the databases that have it; None for an unknown id."""
        found: defaultdict[str, set[bytes | None]] = defaultdict(set)
        for behaviour in self.behaviours.values():
            databases = behaviour.tables.databases
            for service, hosts in behaviour.tables.hosts.items():
                found[service].update(databases[host].broker for host in hosts)
        return _sorted(found)

    @cached_property
    def _addressed_names(self) -> list[str]:
        return sorted(filter(may_begin_with_address, self.ids))

    def route_known_names(self, instance: str, origin: Origin, ids: Mapping[str, Ids]) -> Iterator[tuple[Target, int]]:
        """Routes all known names of an instance in one batch, with the given ids; yields each target with the index of its transition."""
        behaviour = self.at(instance)
        routed = behaviour.route_known_names(origin, ids, addressed_names=self._addressed_names)
        self._transition_index(instance, len(behaviour.decision_sets) - 1)
        indices = self._transition_indices[instance]
        return ((class_, indices[decision_set]) for class_, decision_set in routed)

    def prepare_arrivals(self, *, is_initiator: bool = True) -> None:
        """Routes, in one batch for each instance, all messages that can arrive, except messages that are routed like unknown ones."""
        arrivals = self._arrivals[is_initiator]
        if arrivals:
            return
        ids = self.ids if is_initiator else self.host_ids
        for instance in self.fleet:
            for class_, transition in self.route_known_names(instance, (None, is_initiator), ids):
                arrivals[class_][instance] = transition

    def transition(self, instance: str, lookup: RouteLookup) -> Transition:
        """Returns what can happen to a conversation at an instance."""
        database, service, broker, is_initiator = lookup
        if database is None:
            return self.arriving(instance, MessageKey(service, broker, is_initiator))
        return self.transitions[self.transition_index_of(instance, (database, is_initiator), service, broker)]

    def transition_index_of(self, instance: str, origin: Origin, service: str, broker: bytes | None) -> int:
        """Returns the index of the transition for one lookup in `transitions`."""
        return self._transition_index(instance, self.at(instance).decision_set_index(origin, service, broker))

    def arriving(self, instance: str, key: MessageKey) -> Transition:
        """Returns what can happen to a message that arrives at an instance."""
        service, broker, is_initiator = key
        index = self._arrivals[is_initiator].get((service, broker), _NO_ARRIVALS).get(instance)
        if index is None:
            index = self.transition_index_of(instance, (None, is_initiator), service, broker)
        if index not in self._arrival_transitions:
            transition = self.transitions[index]
            ends = frozenset(map(_after_arrival, transition.ends))
            self._arrival_transitions[index] = transition if ends == transition.ends else transition._replace(ends=ends)
        return self._arrival_transitions[index]

    def ends(self, instance: str, lookup: RouteLookup) -> Ends:
        """Returns every end that a conversation can have, whichever way ties are broken."""
        key = MessageKey(*lookup[1:])
        return self.ends_at(self.ends_after(self.transition(instance, lookup), key, sender=instance), key)

    @cached_property
    def not_accepting(self) -> dict[str, dict[tuple[str, str], RoutingEnd]]:
        """For each service, the instances and databases in which it has no contract or a disabled queue, and how a message ends there."""
        found: defaultdict[str, dict[tuple[str, str], RoutingEnd]] = defaultdict(dict)
        for instance, catalog in self.fleet.items():
            details = catalog.details
            for (database, service), each in details.services.items():
                queue = details.queues.get((database, each.queue))
                if not each.accepts_conversations:
                    end = RoutingEnd("REFUSED", instance, database, reason=NO_CONTRACT)
                elif queue is not None and not queue.is_enabled and not self._ignores_states:
                    end = RoutingEnd("DELAYED", instance, database, reason=QUEUE_DISABLED)
                else:
                    continue
                found[service][instance, database] = end
        return dict(found)

    @cached_property
    def _not_started(self) -> frozenset[str]:
        """The instances whose endpoint is known not to be started, or not to exist."""
        if self._ignores_states:
            return frozenset()
        return frozenset(
            instance
            for instance, catalog in self.fleet.items()
            if (
                catalog.details.is_endpoint_known
                if catalog.details.endpoint is None
                else catalog.details.endpoint.state not in (None, "STARTED")
            )
        )

    def ends_at(self, ends: Ends, key: MessageKey) -> Ends:
        """Returns the ends, with each delivery to a service that does not accept the message replaced by what happens instead."""
        if not key.is_initiator or key.service not in self.not_accepting:
            return ends
        return frozenset(self.end_at(end, key) for end in ends)

    def end_at(self, end: RoutingEnd, key: MessageKey) -> RoutingEnd:
        """Returns the end, or what happens instead of a delivery if the service does not accept the message there."""
        if end.outcome != "DELIVERED" or not key.is_initiator:
            return end
        return self.not_accepting.get(key.service, {}).get((str(end.instance), str(end.database)), end)

    def ends_after(self, transition: Transition, key: MessageKey, *, sender: str | None) -> Ends:
        """Returns every possible end after a transition at the instance `sender`; None means that no route leads back to the sender."""
        if not transition.hops:
            return transition.ends
        ends_after_hops = []
        for next_instance, broker_id in transition.hops:
            bound = _bound(key, broker_id)
            arrival = self._arrival(next_instance, sender, bound)
            ends = self._ends[bound]
            if arrival not in ends:
                self._solve(bound, arrival)
            ends_after_hops.append(ends[arrival])
        return transition.ends.union(*ends_after_hops)

    def returns(self, transition: Transition, key: MessageKey) -> set[str]:
        """Returns the instances to which the next instances would send the message back."""
        return {
            following
            for next_instance, broker_id in transition.hops
            for following, _ in self.arriving(next_instance, _bound(key, broker_id)).hops
        }

    def _arrival(self, instance: str, sender: str | None, key: MessageKey) -> Arrival:
        hops = self.arriving(instance, key).hops
        return instance, sender if any(following == sender for following, _ in hops) else None

    def clear_ends(self) -> None:
        """Frees the memory of computed ends; the decisions of the instances are kept."""
        self._ends.clear()

    def next_step(
        self, instance: str, lookup: RouteLookup, decision: PossibleDecision, *, sender: str | None = None
    ) -> RoutingEnd | Node:
        """Returns where a decision for a message from the instance `sender` leads: to an end, or to the next instance."""
        following = self._end_or_hop(instance, decision)
        if isinstance(following, RoutingEnd):
            return following if lookup.database is not None else _after_arrival(following)
        next_instance, broker_id = following
        if next_instance == sender:
            return RoutingEnd("DROPPED", instance, reason=SENT_BACK)
        return next_instance, RouteLookup(None, lookup.service, lookup.broker or broker_id, lookup.is_initiator)

    def _end_or_hop(self, instance: str, decision: PossibleDecision) -> RoutingEnd | tuple[str, bytes | None]:
        if decision.outcome == "LOCAL":
            return RoutingEnd("DELIVERED", instance, decision.target_database)
        if decision.next_hop is None:
            return RoutingEnd(
                "DELAYED" if decision.outcome == "DELAYED" else "DROPPED", instance, reason=decision.reason
            )
        next_instance = self._instances_by_address.get(decision.next_hop)
        if instance in self._not_started:
            return RoutingEnd("DELAYED", instance, address=decision.next_hop, reason=ENDPOINT_NOT_STARTED)
        if next_instance in self._not_started:
            # The mirror is the principal, unless its endpoint is not started either. An unknown mirror may be started.
            mirror = None if decision.mirror is None else self._instances_by_address.get(decision.mirror)
            if decision.mirror is None or mirror in self._not_started:
                return RoutingEnd("DELAYED", instance, address=decision.next_hop, reason=NEXT_ENDPOINT_NOT_STARTED)
            next_instance = mirror or next_instance
        if next_instance is None:
            return RoutingEnd("ELSEWHERE", instance, address=decision.next_hop)
        # Only the sender binds the conversation to the broker id of the route; a forwarder cannot change a signed
        # header.
        return next_instance, decision.broker if decision.outcome == "REMOTE" else None

    def _transition_index(self, instance: str, decision_set: int) -> int:
        """Returns the index of the transition for a set of decisions, which is given by its index."""
        indices, decision_sets = self._transition_indices[instance], self.at(instance).decision_sets
        while len(indices) <= decision_set:
            found = dict.fromkeys(self._end_or_hop(instance, decision) for decision in decision_sets[len(indices)])
            ends = frozenset(each for each in found if isinstance(each, RoutingEnd))
            transition = Transition(ends, tuple(each for each in found if not isinstance(each, RoutingEnd)))
            indices.append(self._indices.setdefault(transition, len(self.transitions)))
            if indices[-1] == len(self.transitions):
                self.transitions.append(transition)
        return indices[decision_set]

    def _solve(self, key: MessageKey, start: Arrival) -> None:
        """Computes the ends of all arrivals that are reachable from `start`: first backwards from certain ends, then for cycles."""
        ends = self._ends[key]
        found: dict[Arrival, Continuation] = {}
        pending = [start]
        while pending:
            arrival = pending.pop()
            if arrival in found or arrival in ends:
                continue
            continuation = self._continuation(arrival, key)
            if continuation.arrivals:
                found[arrival] = continuation
                pending += continuation.arrivals
            else:
                ends[arrival] = continuation.ends
        self._propagate(found, ends)

    def _continuation(self, arrival: Arrival, key: MessageKey) -> Continuation:
        instance, sender = arrival
        ends, hops = self.arriving(instance, key)
        if sender is not None:
            ends |= {RoutingEnd("DROPPED", instance, reason=SENT_BACK)}
        following = dict.fromkeys(next_instance for next_instance, _ in hops if next_instance != sender)
        return Continuation(ends, tuple(self._arrival(next_instance, instance, key) for next_instance in following))

    @staticmethod
    def _propagate(found: dict[Arrival, Continuation], ends: dict[Arrival, Ends]) -> None:
        """Computes the ends of arrivals at forwarders from the ends of the next arrivals."""
        senders: defaultdict[Arrival, list[Arrival]] = defaultdict(list)
        unsolved: dict[Arrival, int] = {}
        for arrival, continuation in found.items():
            unsolved_arrivals = [following for following in continuation.arrivals if following in found]
            unsolved[arrival] = len(unsolved_arrivals)
            for following in unsolved_arrivals:
                senders[following].append(arrival)
        solved = [arrival for arrival, count in unsolved.items() if count == 0]
        for arrival in solved:  # grows during iteration
            ends[arrival] = found[arrival].ends.union(*(ends[following] for following in found[arrival].arrivals))
            for sender in senders[arrival]:
                unsolved[sender] -= 1
                if unsolved[sender] == 0:
                    solved.append(sender)
        _solve_cycles({arrival: found[arrival] for arrival, count in unsolved.items() if count > 0}, senders, ends)


def _bound(key: MessageKey, broker_id: bytes | None) -> MessageKey:
    """Returns the header after a route: a conversation without a broker id is bound to the broker id of the first route."""
    return key if key.broker or not broker_id else key._replace(broker=broker_id)


def _after_arrival(end: RoutingEnd) -> RoutingEnd:
    """Returns the end of a message from another instance: such a message does not wait for a route here; the sender sends it again."""
    return end._replace(outcome="DROPPED") if end.outcome == "DELAYED" else end


def _sorted(ids: Mapping[str, set[bytes | None]]) -> dict[str, Ids]:
    return {service: tuple(sorted(found, key=lambda broker: broker or b"")) for service, found in ids.items()}


_NO_ARRIVALS: Final[dict[str, int]] = {}


def _solve_cycles(
    cyclic: dict[Arrival, Continuation], senders: Mapping[Arrival, Sequence[Arrival]], ends: dict[Arrival, Ends]
) -> None:
    """Computes the ends of arrivals that can reach a cycle: LOOP, and all ends of their continuations."""
    loop = frozenset((LOOP,))
    found = {
        arrival: loop.union(
            continuation.ends, *(ends[following] for following in continuation.arrivals if following not in cyclic)
        )
        for arrival, continuation in cyclic.items()
    }
    pending = list(cyclic)
    while pending:
        arrival = pending.pop()
        for sender in senders.get(arrival, ()):
            if sender in cyclic and not found[arrival] <= found[sender]:
                found[sender] |= found[arrival]
                pending.append(sender)
    ends.update(found)
