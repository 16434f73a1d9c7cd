"""Which services each database of a fleet reaches, and routing loops."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker._arguments import string_list, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import fleet
from ssbroker.diagnose.all_decisions import (
    Behaviour,
    Origin,
    PossibleDecision,
    RouteLookup,
    Target,
    may_begin_with_address,
)
from ssbroker.diagnose.fleet import MSDB, Fleet, without_garbage_collection
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
        instance: The instance where it ends; None for a loop.
        database: The database that accepted or refused the message.
        address: The address that it was sent to, if `ELSEWHERE`, or cannot be sent to because an endpoint is not started.
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
    """The possible next instances, and the broker id that a conversation without one is bound to."""


Arrival = tuple[str, str | None]
"""An instance at which a message arrives, and the instance from which it came, if it has a route back there; otherwise None."""


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

    `behaviours` contains the `Behaviour` of each instance for which it has already been computed. With `ignores_states`, all endpoints are
    regarded as started and all queues as enabled.
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
        """Every transition by its number."""
        self._numbers: Final[dict[Transition, int]] = {}
        self._arrival_transitions: Final[dict[int, Transition]] = {}
        self._transition_numbers: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._arrivals: Final[defaultdict[bool, defaultdict[Target, dict[str, int]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._ends: Final[defaultdict[MessageKey, dict[Arrival, Ends]]] = defaultdict(dict)

    def at(self, instance: str) -> Behaviour:
        """Returns the behaviour of an instance; computed on first access."""
        if instance not in self._behaviours:
            catalog = self.fleet[instance]
            rows = fleet.read(catalog, self._normalized)
            self._behaviours[instance] = Behaviour(catalog, rows=rows, **self._options)
        return self._behaviours[instance]

    @cached_property
    def behaviours(self) -> dict[str, Behaviour]:
        """The behaviour of every instance."""
        return {instance: self.at(instance) for instance in self.fleet}

    @cached_property
    def ids(self) -> dict[str, Ids]:
        """Every broker id with which a conversation for each known service name can arrive, including None."""
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
        """The broker ids of the databases that have each service; None if unknown."""
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
        """Routes all known names of an instance in one batch, with the given ids; returns the number of the transition for each."""
        behaviour = self.at(instance)
        routed = behaviour.route_known_names(origin, ids, addressed_names=self._addressed_names)
        self._transition_number(instance, len(behaviour.decision_sets) - 1)
        numbers = self._transition_numbers[instance]
        return ((class_, numbers[number]) for class_, number in routed)

    def prepare_arrivals(self, *, is_initiator: bool = True) -> None:
        """Routes in one batch for each instance all messages that can arrive and are not like unknown ones."""
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
        return self.transitions[self.transition_of(instance, (database, is_initiator), service, broker)]

    def transition_of(self, instance: str, origin: Origin, service: str, broker: bytes | None) -> int:
        """Returns the number of the transition for one lookup."""
        return self._transition_number(instance, self.at(instance).number(origin, service, broker))

    def arriving(self, instance: str, key: MessageKey) -> Transition:
        """Returns what can happen to a message that arrives at an instance."""
        service, broker, is_initiator = key
        number = self._arrivals[is_initiator].get((service, broker), _NO_ARRIVALS).get(instance)
        if number is None:
            number = self.transition_of(instance, (None, is_initiator), service, broker)
        if number not in self._arrival_transitions:
            transition = self.transitions[number]
            ends = frozenset(map(_after_arrival, transition.ends))
            self._arrival_transitions[number] = (
                transition if ends == transition.ends else transition._replace(ends=ends)
            )
        return self._arrival_transitions[number]

    def ends(self, instance: str, lookup: RouteLookup) -> Ends:
        """Returns every possible end of a conversation, over all tie breaks."""
        key = MessageKey(*lookup[1:])
        return self.ends_at(self.ends_after(self.transition(instance, lookup), key, sender=instance), key)

    @cached_property
    def not_accepting(self) -> dict[str, dict[tuple[str, str], RoutingEnd]]:
        """For each service, the instances and databases that have it without a contract or with a disabled queue, and how a message ends."""
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
        """The instances whose endpoint is known not to be started."""
        if self._ignores_states:
            return frozenset()
        endpoints = {instance: catalog.details.endpoint for instance, catalog in self.fleet.items()}
        return frozenset(
            instance for instance, endpoint in endpoints.items() if endpoint is not None and endpoint.state != "STARTED"
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
        """Returns every possible end after a transition at an instance, the sender; None if no route leads back to the sender."""
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
        """Returns where a decision on a message from an instance, the sender, leads: to an end, or to the next instance."""
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
        # The mirror may be the principal.
        if next_instance in self._not_started and decision.mirror is None:
            return RoutingEnd("DELAYED", instance, address=decision.next_hop, reason=NEXT_ENDPOINT_NOT_STARTED)
        if next_instance is None:
            return RoutingEnd("ELSEWHERE", instance, address=decision.next_hop)
        # Only the sender binds the broker id of the route; a forwarder cannot change a signed header.
        return next_instance, decision.broker if decision.outcome == "REMOTE" else None

    def _transition_number(self, instance: str, number: int) -> int:
        """Returns the number of the transition of a set of decisions."""
        numbers, decision_sets = self._transition_numbers[instance], self.at(instance).decision_sets
        while len(numbers) <= number:
            found = dict.fromkeys(self._end_or_hop(instance, decision) for decision in decision_sets[len(numbers)])
            ends = frozenset(each for each in found if isinstance(each, RoutingEnd))
            transition = Transition(ends, tuple(each for each in found if not isinstance(each, RoutingEnd)))
            numbers.append(self._numbers.setdefault(transition, len(self.transitions)))
            if numbers[-1] == len(self.transitions):
                self.transitions.append(transition)
        return numbers[number]

    def _solve(self, key: MessageKey, start: Arrival) -> None:
        """Computes the ends for all arrivals reachable from `start`: backwards from certain ends, then for cycles."""
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
        """Computes the ends of arrivals where messages are forwarded from those of the next arrivals."""
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
    """Returns the header after a route: a conversation without a broker id is bound to that of the first route."""
    return key if key.broker or not broker_id else key._replace(broker=broker_id)


def _after_arrival(end: RoutingEnd) -> RoutingEnd:
    """Returns the end of a message from another instance: nothing waits here for a route; the sender sends it again."""
    return end._replace(outcome="DROPPED") if end.outcome == "DELAYED" else end


def _sorted(ids: Mapping[str, set[bytes | None]]) -> dict[str, Ids]:
    return {service: tuple(sorted(found, key=lambda broker: broker or b"")) for service, found in ids.items()}


_NO_ARRIVALS: Final[dict[str, int]] = {}


def _solve_cycles(
    cyclic: dict[Arrival, Continuation], senders: Mapping[Arrival, Sequence[Arrival]], ends: dict[Arrival, Ends]
) -> None:
    """Computes the ends of arrivals that can reach a cycle: the union of the ends of their continuations, and LOOP."""
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


pc: Any = pyarrow.compute  # its stubs are incomplete
_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
REACHABILITY: Final = pa.schema(
    [
        pa.field("instance", _NAMES, nullable=False),
        pa.field("database", _NAMES, nullable=False),
        pa.field("service", _NAMES, nullable=False),
        pa.field("outcome", _NAMES, nullable=False),
        pa.field("at_instance", _NAMES),
        pa.field("target_database", _NAMES),
        pa.field("next_hop_address", _NAMES),
        pa.field("reason", _NAMES),
        pa.field("certain", pa.bool_(), nullable=False),
    ]
)
"""The schema of `reachability`: one row per possible outcome of a conversation; `certain` is true if it is the only one."""
_SERVICES_IN_A_BATCH: Final = 256
_END_FIELDS: Final = ("outcome", "instance", "database", "address", "reason")
_NO_ID: Final[tuple[bytes | None, ...]] = (None,)


class Start(NamedTuple):
    """A database in which conversations start."""

    instance: str
    database: str


@without_garbage_collection
def reachability(
    fleet: Fleet | Catalog,
    *,
    services: Iterable[str] | None = None,
    at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> pa.Table:
    """Returns the possible outcomes of a conversation from every database of a fleet to every service, over all tie breaks.

    The conversations name no broker id. `msdb` is included only if it has services.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        services: The service names; None for all that databases have or routes name.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime without a time zone is UTC.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        One row per possible outcome, with the columns of `REACHABILITY`. Outcomes are `DELIVERED`, `REFUSED` (by a service without a
        contract), `DELAYED` (also by an endpoint that is not started or a disabled queue), `DROPPED`, `ELSEWHERE` (sent to an address that no instance of the fleet has) and `LOOP`.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime, or `services` is not a sequence of strings.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import Fleet, reachability
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> matrix = reachability(Catalog(pa.table(routes)))
        >>> matrix.select(["database", "service", "outcome", "next_hop_address"]).to_pylist()
        [{'database': 'Sales', 'service': '//Orders', 'outcome': 'ELSEWHERE', 'next_hop_address': 'TCP://orders:4022'}]
    """
    whole_fleet = Fleet.of(fleet)
    names = None if services is None else string_list(_as_list(services), name="services")
    graph = RoutingGraph(whole_fleet, now=utc_datetime(at, name="at"), pending_request=pending_request)
    return matrix(graph, sorted(all_services(graph)) if names is None else list(dict.fromkeys(names)))


def _as_list(values: object) -> object:
    """Returns an iterable as a list; a string stays one, so that it is refused."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def matrix(graph: RoutingGraph, services: list[str]) -> pa.Table:
    """Returns the reachability table of some services."""
    reach = ReachabilitySets(graph)
    parts = []
    for first in range(0, len(services), _SERVICES_IN_A_BATCH):
        codes = array("i")
        for service in services[first : first + _SERVICES_IN_A_BATCH]:
            codes.extend(reach.codes(service))
        parts.append((first, codes))
    build = _TableBuilder(reach, services)
    return pa.Table.from_batches([build(codes, first) for first, codes in parts], schema=REACHABILITY)


class ReachabilitySets:
    """The possible ends of conversations from every start to a service; equal sets of ends share a number.

    With `is_initiator`, conversations start there, usually without a broker id. Otherwise they are replies of a target, usually with
    the id of a database that has the service.
    """

    def __init__(self, graph: RoutingGraph, *, is_initiator: bool = True) -> None:
        self.graph: Final = graph
        self._is_initiator: Final = is_initiator
        self.starts: Final = all_starts(graph)
        self.ends: Final[list[Ends]] = []
        """Every set of ends by its number."""
        self._codes: dict[Ends, int] = {}
        self._ids: Final = dict.fromkeys(graph.ids, _NO_ID) if is_initiator else graph.host_ids
        self._numbered_targets: defaultdict[Target, list[tuple[int, int]]] = defaultdict(list)
        self._default_transitions: list[int] = []
        for number, (instance, database) in enumerate(self.starts):
            for class_, transition in graph.route_known_names(instance, (database, is_initiator), self._ids):
                self._numbered_targets[class_].append((number, transition))
            self._default_transitions.append(self._transition(number, graph.at(instance).unknown_name, None))
        graph.prepare_arrivals(is_initiator=is_initiator)
        self._fixed_ends: dict[int, int] = {}

    def codes(self, service: str, broker: bytes | None = None) -> list[int]:
        """Returns the number of the set of ends for each start, in order."""
        if broker in self._ids.get(service, ()):
            transitions = self._default_transitions.copy()
            for number, transition in self._numbered_targets[service, broker]:
                transitions[number] = transition
        else:
            transitions = [self._transition(number, service, broker) for number in range(len(self.starts))]
        known = _EndsByTransition(self, MessageKey(service, broker, self._is_initiator))
        codes = list(map(known.__getitem__, transitions))
        if known.returns:
            for number, transition in enumerate(transitions):
                instance = self.starts[number].instance
                if instance in known.returns.get(transition, ()):
                    codes[number] = self.end(transition, known.key, sender=instance)
        self.graph.clear_ends()
        if self._is_initiator and service in self.graph.not_accepting:
            key = MessageKey(service, broker, is_initiator=True)
            refined = {code: self._code(self.graph.ends_at(self.ends[code], key)) for code in set(codes)}
            codes = [refined[code] for code in codes]
        return codes

    def end(self, transition: int, key: MessageKey, *, sender: str | None = None) -> int:
        """Returns the number of the set of ends after a transition."""
        solved = self._fixed_ends.get(transition)
        if solved is not None:
            return solved
        reached_transition = self.graph.transitions[transition]
        if reached_transition.hops:
            return self._code(self.graph.ends_after(reached_transition, key, sender=sender))
        self._fixed_ends[transition] = self._code(reached_transition.ends)
        return self._fixed_ends[transition]

    def _transition(self, number: int, service: str, broker: bytes | None) -> int:
        instance, database = self.starts[number]
        return self.graph.transition_of(instance, (database, self._is_initiator), service, broker)

    def _code(self, ends: Ends) -> int:
        code = self._codes.setdefault(ends, len(self._codes))
        if code == len(self.ends):
            self.ends.append(ends)
        return code


class _EndsByTransition(dict[int, int]):
    """Maps each transition to the number of the set of its ends, for one service and broker id.

    Values are computed on first access. `returns` has the instances that a route leads back to; for these the ends differ.
    """

    def __init__(self, reach: ReachabilitySets, key: MessageKey) -> None:
        super().__init__()
        self._reach = reach
        self.key: Final = key
        self.returns: Final[dict[int, set[str]]] = {}

    def __missing__(self, transition: int) -> int:
        self[transition] = code = self._reach.end(transition, self.key)
        if returns := self._reach.graph.returns(self._reach.graph.transitions[transition], self.key):
            self.returns[transition] = returns
        return code


def all_starts(graph: RoutingGraph) -> list[Start]:
    """Returns every database in which conversations can start."""
    roles = graph.fleet.roles
    return [
        Start(instance, database)
        for instance, behaviour in graph.behaviours.items()
        for database, row in behaviour.tables.databases.items()
        if (database != "msdb" or behaviour.tables.services.get("msdb"))
        # No conversation starts in a secondary replica.
        and (row.enabled or roles.get(instance) != "secondary")
    ]


def all_services(graph: RoutingGraph) -> set[str]:
    """Returns every service name that a database has or a route names."""
    return set(graph.ids)


class _TableBuilder:
    """Builds rows from the numbers of sets."""

    def __init__(self, reach: ReachabilitySets, services: list[str]) -> None:
        numbers: dict[RoutingEnd, int] = {}
        lists = [[numbers.setdefault(end, len(numbers)) for end in sorted(ends, key=str)] for ends in reach.ends]
        self._lists: Any = pa.array(lists, pa.list_(pa.int32()))
        self._ends = [_dictionary(getattr(end, name) for end in numbers) for name in _END_FIELDS]
        self._start_columns = [_dictionary(getattr(start, name) for start in reach.starts) for name in Start._fields]
        self._services = pa.array(services, pa.string())
        self._starts = len(reach.starts)

    def __call__(self, codes: array[int], first: int) -> pa.RecordBatch:
        """Returns the rows of some services, from number `first` on; `codes` has one entry per service and start."""
        ends_of_cells = self._lists.take(pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)]))
        cell_indices = pc.list_parent_indices(ends_of_cells)
        service = pc.divide(cell_indices, max(1, self._starts))
        start = pc.subtract(cell_indices, pc.multiply(service, self._starts))
        end = pc.list_flatten(ends_of_cells)
        columns = [column.take(start) for column in self._start_columns]
        numbers = pc.cast(pc.add(service, first), pa.int32())
        columns.append(pa.DictionaryArray.from_arrays(numbers, self._services))
        columns += [column.take(end) for column in self._ends]
        columns.append(pc.equal(pc.list_value_length(ends_of_cells).take(cell_indices), 1))
        return pa.RecordBatch.from_arrays(columns, schema=REACHABILITY)


def _dictionary(values: Iterable[str | None]) -> pa.DictionaryArray[Any, Any]:
    return pa.array(list(values), pa.string()).dictionary_encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A group of instances that each forward a message to the next one, and the last one to the first.

    Of two instances, the one that would send the message back drops it; among more, it circulates until its hop limit or lifetime is
    reached.

    Attributes:
        instances: The instances in order; the last one forwards to the first.
        services: The service names that are forwarded; None represents every name that no instance of the fleet knows.
        broker_instances: The broker id of the message for each of `services`; None for messages without one.
    """

    instances: tuple[str, ...]
    services: tuple[str | None, ...]
    broker_instances: tuple[bytes | None, ...]

    def __str__(self) -> str:
        return " -> ".join((*self.instances, self.instances[0]))


@without_garbage_collection
def loops(
    fleet: Fleet | Catalog, *, at: datetime | None = None, pending_request: PendingRequest = "continue"
) -> tuple[Loop, ...]:
    """Finds the groups of instances that forward messages to each other in a loop, and one loop of each.

    All messages that can arrive at an instance are considered: every service name that a route or a database has, with every known
    broker id and without one, and an unknown service name.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime without a time zone is UTC.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        The loops, each with all service names that are forwarded in it.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import Fleet, loops
        >>> def forwarder(to, *, address):
        ...     routes = {"database": ["msdb"], "name": ["All"], "remote_service_name": pa.nulls(1, pa.string()),
        ...               "broker_instance": pa.nulls(1), "lifetime": pa.nulls(1), "address": [to], "mirror_address": pa.nulls(1)}
        ...     return Catalog(pa.table(routes), addresses=[address], message_forwarding=True)
        >>> fleet = Fleet({"A": forwarder("TCP://b", address="TCP://a"), "B": forwarder("TCP://a", address="TCP://b")})
        >>> [str(loop) for loop in loops(fleet)]
        ['A -> B -> A']
    """
    graph = RoutingGraph(
        Fleet.of(fleet), now=utc_datetime(at, name="at"), pending_request=pending_request, ignores_states=True
    )
    return find_loops(graph)


def find_loops(graph: RoutingGraph) -> tuple[Loop, ...]:
    """Returns the loops of a routing graph."""
    graph.prepare_arrivals()
    found: defaultdict[tuple[str, ...], list[tuple[str | None, bytes | None]]] = defaultdict(list)
    unknown = _unknown_name(graph)
    knowing, name_readers = _entry_instances(graph)
    for service, broker in _message_keys(graph, unknown):
        entries = graph.fleet if service == unknown else (*knowing.get(service, ()), *name_readers)
        hops = _forwarding_graph(graph, MessageKey(service, broker, is_initiator=True), entries)
        for cycle in cycles(hops):
            found[_rotated(cycle)].append((None if service == unknown else service, broker))
    return tuple(
        Loop(
            instances=instances,
            services=tuple(service for service, _ in keys),
            broker_instances=tuple(broker for _, broker in keys),
        )
        for instances, keys in sorted(found.items())
    )


def _forwarding_graph(graph: RoutingGraph, key: MessageKey, entries: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns the instances that forward a message which arrives at one of `entries`, and their next hops."""
    forwarding: dict[str, tuple[str, ...]] = {}
    pending = list(entries)
    while pending:
        instance = pending.pop()
        if instance not in forwarding and (hops := graph.arriving(instance, key).hops):
            forwarding[instance] = tuple(sorted(next_instance for next_instance, _ in hops))
            pending += forwarding[instance]
    return {
        instance: tuple(next_instance for next_instance in following if next_instance in forwarding)
        for instance, following in forwarding.items()
    }


def _entry_instances(graph: RoutingGraph) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the instances whose `msdb` knows each service name, and the instances that may take an address from any name (`reads_names`).

    A cycle that contains none of these is also a cycle of the unknown name.
    """
    knowing: defaultdict[str, list[str]] = defaultdict(list)
    for instance, behaviour in graph.behaviours.items():
        for service in behaviour.known_names[MSDB]:
            knowing[service].append(instance)
    return knowing, [instance for instance, behaviour in graph.behaviours.items() if behaviour.reads_names(MSDB)]


def _message_keys(graph: RoutingGraph, unknown: str) -> Iterable[tuple[str, bytes | None]]:
    yield unknown, None
    for service, ids in sorted(graph.ids.items()):
        for broker in ids:
            yield service, broker


def _unknown_name(graph: RoutingGraph) -> str:
    known = {
        name for behaviour in graph.behaviours.values() for names in behaviour.known_names.values() for name in names
    }
    name = "any other service"
    while name in known:
        name += "."
    return name


def _rotated(cycle: list[str]) -> tuple[str, ...]:
    """Rotates a cycle to start at its first instance by name."""
    first = cycle.index(min(cycle))
    return (*cycle[first:], *cycle[:first])


def cycles(graph: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Yields a shortest cycle through the first node of each strongly connected component that has one."""
    for part in _cyclic_components(graph):
        inside = set(part)
        first = min(part)
        previous: dict[str, str] = {}
        pending = [first]
        for node in pending:  # breadth first: grows during iteration
            for following in graph[node]:
                if following == first:
                    cycle = [node]
                    while cycle[-1] != first:
                        cycle.append(previous[cycle[-1]])
                    yield cycle[::-1]
                    break
                if following in inside and following not in previous:
                    previous[following] = node
                    pending.append(following)
            else:
                continue
            break


def _cyclic_components(graph: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Yields the strongly connected components that contain a cycle; Tarjan's algorithm without recursion."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root, following in graph.items():
        if root in number:
            continue
        path = [(root, iter(following))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, ahead = path[-1]
            for each in ahead:
                if each not in number:
                    number[each] = low[each] = len(number)
                    stack.append(each)
                    on_stack.add(each)
                    path.append((each, iter(graph[each])))
                    break
                if each in on_stack:
                    low[node] = min(low[node], number[each])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    part = stack[stack.index(node) :]
                    del stack[-len(part) :]
                    on_stack.difference_update(part)
                    if len(part) > 1 or node in graph[node]:
                        yield part
