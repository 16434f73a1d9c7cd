"""Which services each database reaches across a fleet, and routing loops."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker._arguments import string_list, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import catalog_tables
from ssbroker.diagnose.behaviour import Answer, Behaviour, Place, Question, TargetKey, may_hold_address
from ssbroker.diagnose.catalog_tables import MSDB
from ssbroker.diagnose.fleet import Fleet, without_collector
from ssbroker.router import PendingRequest

Ending = Literal["DELIVERED", "DELAYED", "DROPPED", "ELSEWHERE", "LOOP"]
"""What may become of a message: in a queue; waiting at its sender; discarded on the way; sent to an address that no instance of the fleet
has; going in circles until its lifetime or its hops are used up."""


class RoutingEnd(NamedTuple):
    """One way in which it may end."""

    outcome: Ending
    instance: str | None = None
    """Where; None for a loop, which is everywhere in its circle."""
    database: str | None = None
    """Which took it, where it is delivered."""
    address: str | None = None
    """Where it went, where that is none of the fleet's."""
    reason: str | None = None
    """The decision's."""


LOOP: Final = RoutingEnd("LOOP", reason="routing_loop")


Fates = frozenset[RoutingEnd]
Node = tuple[str, Question]
Ids = tuple[bytes | None, ...]


class Move(NamedTuple):
    """What an instance may do with any conversation of a class: end it, or hand it on."""

    ends: Fates
    hops: tuple[tuple[str, bytes | None], ...]
    """The instances that it may go to, and the broker id that a conversation without one is bound to."""


class MessageKey(NamedTuple):
    """What a message says that is passed from instance to instance: who forwards it cannot change a signed header."""

    service: str
    broker: bytes | None
    is_initiator: bool


class RoutingGraph:
    """All ways through a fleet.

    Args:
        fleet: The instances.
        now: The moment at which routes expire.
        pending_request: What a pending request for routing information does to step 4.
    """

    def __init__(self, fleet: Fleet, *, now: datetime, pending_request: PendingRequest = "continue") -> None:
        self.fleet: Final = fleet
        self._options: Final[dict[str, Any]] = {"now": now, "pending_request": pending_request}
        self._made: Final[dict[str, Behaviour]] = {}
        self._forms: Final[dict[str, str]] = {}
        self._addresses: Final = fleet.addresses
        self.moves: Final[list[Move]] = []
        """Every move by its number."""
        self._numbers: Final[dict[Move, int]] = {}
        self._moved: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._arrivals: Final[defaultdict[bool, defaultdict[TargetKey, dict[str, int]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._fates: Final[defaultdict[MessageKey, dict[str, Fates]]] = defaultdict(dict)

    def at(self, instance: str) -> Behaviour:
        """What an instance does, made when it is first asked for."""
        if instance not in self._made:
            catalog = self.fleet[instance]
            rows = catalog_tables.read(catalog, self._forms)
            self._made[instance] = Behaviour(catalog, rows=rows, **self._options)
        return self._made[instance]

    @cached_property
    def behaviours(self) -> dict[str, Behaviour]:
        """What every instance does."""
        return {instance: self.at(instance) for instance in self.fleet}

    @cached_property
    def ids(self) -> dict[str, Ids]:
        """Every broker id with which a conversation for each name of a route or a database may arrive, and none."""
        found: defaultdict[str, set[bytes | None]] = defaultdict(lambda: {None})
        for behaviour in self.behaviours.values():
            for route in behaviour.tables.routes:
                if route.service is not None:
                    found[route.service].add(route.broker)
        for service, ids in self.ids_of_hosts.items():
            found[service].update(ids)
        return _in_order(found)

    @cached_property
    def ids_of_hosts(self) -> dict[str, Ids]:
        """The broker ids of the databases that have each service, none where it is not known."""
        found: defaultdict[str, set[bytes | None]] = defaultdict(set)
        for behaviour in self.behaviours.values():
            databases = behaviour.tables.databases
            for service, hosts in behaviour.tables.hosts.items():
                found[service].update(databases[host].broker for host in hosts)
        return _in_order(found)

    @cached_property
    def _reading(self) -> list[str]:
        return sorted(filter(may_hold_address, self.ids))

    def learn(self, instance: str, place: Place, ids: Mapping[str, Ids]) -> Iterator[tuple[TargetKey, int]]:
        """Asks an instance in one go for all names in play there, each with some ids; the number of the move for each."""
        behaviour = self.at(instance)
        learnt = behaviour.learn(place, ids, reading=self._reading)
        self._move(instance, len(behaviour.answers) - 1)
        moved = self._moved[instance]
        return ((class_, moved[number]) for class_, number in learnt)

    def prepare(self, *, is_initiator: bool = True) -> None:
        """Asks every instance in one go for all that may arrive there and is not like everything else."""
        arrivals = self._arrivals[is_initiator]
        if arrivals:
            return
        ids = self.ids if is_initiator else self.ids_of_hosts
        for instance in self.fleet:
            for class_, move in self.learn(instance, (None, is_initiator), ids):
                arrivals[class_][instance] = move

    def move(self, instance: str, question: Question) -> Move:
        """What the instance may do with it."""
        database, service, broker, is_initiator = question
        if database is None:
            return self.arriving(instance, MessageKey(service, broker, is_initiator))
        return self.moves[self.numbered(instance, (database, is_initiator), service, broker)]

    def numbered(self, instance: str, place: Place, service: str, broker: bytes | None) -> int:
        """The number of the move for one question."""
        return self._move(instance, self.at(instance).number(place, service, broker))

    def arriving(self, instance: str, key: MessageKey) -> Move:
        """What the instance may do with what arrives there."""
        service, broker, is_initiator = key
        number = self._arrivals[is_initiator].get((service, broker), _NOWHERE).get(instance)
        if number is None:
            number = self.numbered(instance, (None, is_initiator), service, broker)
        return self.moves[number]

    def fates(self, instance: str, question: Question) -> Fates:
        """Every end that a conversation may come to, whichever way ties fall."""
        return self.joined(self.move(instance, question), MessageKey(*question[1:]))

    def joined(self, move: Move, key: MessageKey) -> Fates:
        """Every end that it may come to after a move."""
        if not move.hops:
            return move.ends
        behind = []
        for there, bound in move.hops:
            # Who begins a conversation binds it to the route's id; one that names an id keeps it.
            onward = key if key.broker or not bound else key._replace(broker=bound)
            fates = self._fates[onward]
            if there not in fates:
                self._solve(onward, there)
            behind.append(fates[there])
        return move.ends.union(*behind)

    def forget(self) -> None:
        """Gives back the memory of what was found; what instances answer is kept."""
        self._fates.clear()

    def onward(self, instance: str, question: Question, answer: Answer) -> RoutingEnd | Node:
        """Where one answer leads: to an end, or to the next instance."""
        onward = self._onward(instance, answer)
        if isinstance(onward, RoutingEnd):
            return onward
        there, bound = onward
        return there, Question(None, question.service, question.broker or bound, question.is_initiator)

    def _onward(self, instance: str, answer: Answer) -> RoutingEnd | tuple[str, bytes | None]:
        if answer.outcome == "LOCAL":
            return RoutingEnd("DELIVERED", instance, answer.target_database)
        if answer.next_hop is None:
            return RoutingEnd("DELAYED" if answer.outcome == "DELAYED" else "DROPPED", instance, reason=answer.reason)
        there = self._addresses.get(answer.next_hop)
        if there is None:
            return RoutingEnd("ELSEWHERE", instance, address=answer.next_hop)
        # Who begins it binds it to the route's id; who passes it on cannot change a signed header.
        return there, answer.broker if answer.outcome == "REMOTE" else None

    def _move(self, instance: str, number: int) -> int:
        """The number of the move that a set of answers leads to."""
        moved, answers = self._moved[instance], self.at(instance).answers
        while len(moved) <= number:
            found = dict.fromkeys(self._onward(instance, answer) for answer in answers[len(moved)])
            ends = frozenset(each for each in found if isinstance(each, RoutingEnd))
            move = Move(ends, tuple(each for each in found if not isinstance(each, RoutingEnd)))
            moved.append(self._numbers.setdefault(move, len(self.moves)))
            if moved[-1] == len(self.moves):
                self.moves.append(move)
        return moved[number]

    def _solve(self, key: MessageKey, start: str) -> None:
        """Ends for everything that can be reached from an instance: first what surely ends, from the ends back; the rest may go in circles."""
        fates = self._fates[key]
        moves: dict[str, Move] = {}
        waiting = [start]
        while waiting:
            instance = waiting.pop()
            if instance in moves or instance in fates:
                continue
            moves[instance] = move = self.arriving(instance, key)
            if move.hops:
                waiting += [there for there, _ in move.hops]
            else:
                fates[instance] = move.ends
        self._settle({instance: move for instance, move in moves.items() if move.hops}, fates)

    @staticmethod
    def _settle(moves: dict[str, Move], fates: dict[str, Fates]) -> None:
        """Ends for instances that pass it on."""
        callers: defaultdict[str, list[str]] = defaultdict(list)
        left: dict[str, int] = {}
        for instance, move in moves.items():
            inner = [there for there, _ in move.hops if there in moves]
            left[instance] = len(inner)
            for there in inner:
                callers[there].append(instance)
        settled = [instance for instance, count in left.items() if count == 0]
        for instance in settled:  # grows while it is walked
            fates[instance] = moves[instance].ends.union(*(fates[there] for there, _ in moves[instance].hops))
            for caller in callers[instance]:
                left[caller] -= 1
                if left[caller] == 0:
                    settled.append(caller)
        _circle({instance: moves[instance] for instance, count in left.items() if count > 0}, callers, fates)


def _in_order(ids: Mapping[str, set[bytes | None]]) -> dict[str, Ids]:
    return {service: tuple(sorted(found, key=lambda broker: broker or b"")) for service, found in ids.items()}


_NOWHERE: Final[dict[str, int]] = {}


def _circle(moves: dict[str, Move], callers: dict[str, list[str]], fates: dict[str, Fates]) -> None:
    """Each of these can come into a circle: what one may end in, all that lead to it may."""
    loop = frozenset((LOOP,))
    found = {
        instance: loop.union(move.ends, *(fates[there] for there, _ in move.hops if there not in moves))
        for instance, move in moves.items()
    }
    waiting = list(moves)
    while waiting:
        instance = waiting.pop()
        for caller in callers[instance]:
            if caller in moves and not found[instance] <= found[caller]:
                found[caller] |= found[instance]
                waiting.append(caller)
    fates.update(found)


pc: Any = pyarrow.compute  # its stubs know too little of it
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
"""One row for each outcome that a conversation from a database to a service may have; `certain` where it is the only one."""
_SERVICES_IN_A_BATCH: Final = 256
_OF_A_FATE: Final = ("outcome", "instance", "database", "address", "reason")
_NO_ID: Final[tuple[bytes | None, ...]] = (None,)


class Start(NamedTuple):
    """A database in which conversations begin."""

    instance: str
    database: str


@without_collector
def reachability(
    fleet: Fleet | Catalog,
    *,
    services: Iterable[str] | None = None,
    at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> pa.Table:
    """What may become of a conversation, from every database of a fleet to every service, whichever way ties fall.

    The conversation names no broker id. `msdb` is among the databases only where it has services.

    Args:
        fleet: The instances, or one.
        services: The names to ask for; all that databases have or routes name if left out.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        A row for each outcome, in the columns of `REACHABILITY`: `DELIVERED`, `DELAYED`, `DROPPED`, `ELSEWHERE` (an address that no
        instance of the fleet has), `LOOP`.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is no datetime, or `services` are no texts.

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
    whole = Fleet.of(fleet)
    asked = None if services is None else string_list(_listed(services), name="services")
    ways = RoutingGraph(whole, now=utc_datetime(at), pending_request=pending_request)
    return matrix(ways, sorted(all_services(ways)) if asked is None else list(dict.fromkeys(asked)))


def _listed(values: object) -> object:
    """What may be walked through once as a list; a lone text, which has letters, stays one."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def matrix(ways: RoutingGraph, services: list[str]) -> pa.Table:
    """The matrix of a fleet for some services."""
    reach = ReachabilitySets(ways)
    parts = []
    for first in range(0, len(services), _SERVICES_IN_A_BATCH):
        codes = array("i")
        for service in services[first : first + _SERVICES_IN_A_BATCH]:
            codes.extend(reach.codes(service))
        parts.append((first, codes))
    build = _Builder(reach, services)
    return pa.Table.from_batches([build(codes, first) for first, codes in parts], schema=REACHABILITY)


class ReachabilitySets:
    """The ends of conversations from every start, a service at a time; sets of ends are numbered, so that equal ones are worked out once.

    Args:
        ways: All ways through the fleet.
        is_initiator: Whether the conversations begin there, mostly without a broker id, or are what a target sends back, mostly with
            that of a database that has the service.
    """

    def __init__(self, ways: RoutingGraph, *, is_initiator: bool = True) -> None:
        self.ways: Final = ways
        self._is_initiator: Final = is_initiator
        self.starts: Final = all_starts(ways)
        self.fates: Final[list[Fates]] = []
        """Every set of ends, by its number."""
        self._codes: dict[Fates, int] = {}
        self._ids: Final = dict.fromkeys(ways.ids, _NO_ID) if is_initiator else ways.ids_of_hosts
        self._placed: defaultdict[TargetKey, list[tuple[int, int]]] = defaultdict(list)
        self._others: list[int] = []
        for number, (instance, database) in enumerate(self.starts):
            for class_, move in ways.learn(instance, (database, is_initiator), self._ids):
                self._placed[class_].append((number, move))
            self._others.append(self._asked(number, ways.at(instance).other, None))
        ways.prepare(is_initiator=is_initiator)
        self._settled: dict[int, int] = {}

    def codes(self, service: str, broker: bytes | None = None) -> list[int]:
        """The number of the set of ends, for each start in order."""
        if broker in self._ids.get(service, ()):
            moves = self._others.copy()
            for number, move in self._placed[service, broker]:
                moves[number] = move
        else:
            moves = [self._asked(number, service, broker) for number in range(len(self.starts))]
        known = _Ends(self, MessageKey(service, broker, self._is_initiator))
        codes = list(map(known.__getitem__, moves))
        self.ways.forget()
        return codes

    def end(self, move: int, key: MessageKey) -> int:
        """The number of the set of ends of a service."""
        settled = self._settled.get(move)
        if settled is not None:
            return settled
        made = self.ways.moves[move]
        if made.hops:
            return self._code(self.ways.joined(made, key))
        self._settled[move] = self._code(made.ends)
        return self._settled[move]

    def _asked(self, number: int, service: str, broker: bytes | None) -> int:
        instance, database = self.starts[number]
        return self.ways.numbered(instance, (database, self._is_initiator), service, broker)

    def _code(self, fates: Fates) -> int:
        code = self._codes.setdefault(fates, len(self._codes))
        if code == len(self.fates):
            self.fates.append(fates)
        return code


class _Ends(dict[int, int]):
    """The set of ends for each move, of one service, worked out when it is first asked for."""

    def __init__(self, reach: ReachabilitySets, key: MessageKey) -> None:
        super().__init__()
        self._reach = reach
        self._key = key

    def __missing__(self, move: int) -> int:
        self[move] = code = self._reach.end(move, self._key)
        return code


def all_starts(ways: RoutingGraph) -> list[Start]:
    """Every database in which conversations may begin."""
    return [
        Start(instance, database)
        for instance, behaviour in ways.behaviours.items()
        for database in behaviour.tables.databases
        if database != "msdb" or behaviour.tables.services.get("msdb")
    ]


def all_services(ways: RoutingGraph) -> set[str]:
    """Every name that a database has a service of, or a route is for."""
    return set(ways.ids)


class _Builder:
    """From numbers to rows."""

    def __init__(self, reach: ReachabilitySets, services: list[str]) -> None:
        numbers: dict[RoutingEnd, int] = {}
        lists = [[numbers.setdefault(fate, len(numbers)) for fate in sorted(fates, key=str)] for fates in reach.fates]
        self._lists: Any = pa.array(lists, pa.list_(pa.int32()))
        self._fates = [_encoded(getattr(fate, name) for fate in numbers) for name in _OF_A_FATE]
        self._places = [_encoded(getattr(start, name) for start in reach.starts) for name in Start._fields]
        self._services = pa.array(services, pa.string())
        self._starts = len(reach.starts)

    def __call__(self, codes: array[int], first: int) -> pa.RecordBatch:
        """The rows of some services, from `first` on: for each of them, a code for each start."""
        picked = self._lists.take(pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)]))
        cells = pc.list_parent_indices(picked)
        service = pc.divide(cells, max(1, self._starts))
        start = pc.subtract(cells, pc.multiply(service, self._starts))
        fate = pc.list_flatten(picked)
        columns = [column.take(start) for column in self._places]
        numbers = pc.cast(pc.add(service, first), pa.int32())
        columns.append(pa.DictionaryArray.from_arrays(numbers, self._services))
        columns += [column.take(fate) for column in self._fates]
        columns.append(pc.equal(pc.list_value_length(picked).take(cells), 1))
        return pa.RecordBatch.from_arrays(columns, schema=REACHABILITY)


def _encoded(values: Iterable[str | None]) -> pa.DictionaryArray[Any, Any]:
    return pa.array(list(values), pa.string()).dictionary_encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """Instances that pass a message on in a circle."""

    instances: tuple[str, ...]
    """In the order of the message's way; the last passes it to the first."""
    services: tuple[str | None, ...]
    """The names that go in this circle; None stands for every name that no instance of the fleet knows."""
    broker_instances: tuple[bytes | None, ...]
    """The broker id that the message names, for each of `services`."""

    def __str__(self) -> str:
        return " -> ".join((*self.instances, self.instances[0]))


@without_collector
def loops(
    fleet: Fleet | Catalog, *, at: datetime | None = None, pending_request: PendingRequest = "continue"
) -> tuple[Loop, ...]:
    """Every group of instances between which messages can go in circles, with one circle of it.

    All messages that can arrive anywhere are looked at: for each name that a route or a database has, with each broker id that a route
    or a database has, without one, and for a name that nothing knows.

    Args:
        fleet: The instances, or one.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        The loops, each with all services that go in it.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is no datetime.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import Fleet, loops
        >>> def passes_on(to, *, address):
        ...     routes = {"database": ["msdb"], "name": ["All"], "remote_service_name": pa.nulls(1, pa.string()),
        ...               "broker_instance": pa.nulls(1), "lifetime": pa.nulls(1), "address": [to], "mirror_address": pa.nulls(1)}
        ...     return Catalog(pa.table(routes), addresses=[address], message_forwarding=True)
        >>> fleet = Fleet({"A": passes_on("TCP://b", address="TCP://a"), "B": passes_on("TCP://a", address="TCP://b")})
        >>> [str(loop) for loop in loops(fleet)]
        ['A -> B -> A']
    """
    return circling(RoutingGraph(Fleet.of(fleet), now=utc_datetime(at), pending_request=pending_request))


def circling(ways: RoutingGraph) -> tuple[Loop, ...]:
    """The loops of a fleet whose ways are known."""
    ways.prepare()
    found: defaultdict[tuple[str, ...], list[tuple[str | None, bytes | None]]] = defaultdict(list)
    unknown = _unknown_name(ways)
    knowing, reading = _entries(ways)
    for service, broker in _keys(ways, unknown):
        entries = ways.fleet if service == unknown else (*knowing.get(service, ()), *reading)
        graph = _passing(ways, MessageKey(service, broker, is_initiator=True), entries)
        for circle in circles(graph):
            found[_turned(circle)].append((None if service == unknown else service, broker))
    return tuple(
        Loop(
            instances=instances,
            services=tuple(service for service, _ in keys),
            broker_instances=tuple(broker for _, broker in keys),
        )
        for instances, keys in sorted(found.items())
    )


def _passing(ways: RoutingGraph, key: MessageKey, entries: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The instances that pass on what arrives at some, or what those send them, and to which."""
    graph: dict[str, tuple[str, ...]] = {}
    waiting = list(entries)
    while waiting:
        instance = waiting.pop()
        if instance not in graph and (hops := ways.arriving(instance, key).hops):
            graph[instance] = tuple(sorted(there for there, _ in hops))
            waiting += graph[instance]
    return {instance: tuple(there for there in following if there in graph) for instance, following in graph.items()}


def _entries(ways: RoutingGraph) -> tuple[dict[str, list[str]], list[str]]:
    """The instances that know each name, and those that may read an address in any: only there a name's ways are its own.

    A circle in which none of them has part is also that of the name that nobody knows.
    """
    knowing: defaultdict[str, list[str]] = defaultdict(list)
    for instance, behaviour in ways.behaviours.items():
        for service in behaviour.in_play[MSDB]:
            knowing[service].append(instance)
    return knowing, [instance for instance, behaviour in ways.behaviours.items() if behaviour.asks_names(MSDB)]


def _keys(ways: RoutingGraph, unknown: str) -> Iterable[tuple[str, bytes | None]]:
    yield unknown, None
    for service, ids in sorted(ways.ids.items()):
        for broker in ids:
            yield service, broker


def _unknown_name(ways: RoutingGraph) -> str:
    taken = {name for behaviour in ways.behaviours.values() for names in behaviour.in_play.values() for name in names}
    name = "any other service"
    while name in taken:
        name += "."
    return name


def _turned(circle: list[str]) -> tuple[str, ...]:
    """A circle, from its first instance by name on."""
    first = circle.index(min(circle))
    return (*circle[first:], *circle[:first])


def circles(graph: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """The strongly connected parts of a graph that hold a circle, each as one circle of nodes in their order.

    Args:
        graph: What follows each node.

    Yields:
        A shortest circle through the first node of each part.
    """
    for part in _components(graph):
        inside = set(part)
        first = min(part)
        came: dict[str, str] = {}
        waiting = [first]
        for node in waiting:  # grows while it is walked: breadth first
            for following in graph[node]:
                if following == first:
                    circle = [node]
                    while circle[-1] != first:
                        circle.append(came[circle[-1]])
                    yield circle[::-1]
                    break
                if following in inside and following not in came:
                    came[following] = node
                    waiting.append(following)
            else:
                continue
            break


def _components(graph: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Tarjan's strongly connected parts, those with a circle only, without recursion."""
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
