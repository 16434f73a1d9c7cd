"""Circles that messages may run in, found in the graph of all instances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from ssbroker import moment
from ssbroker.catalog import Catalog
from ssbroker.diagnose.collecting import without_collector
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.tables import MSDB
from ssbroker.diagnose.ways import Key, Ways
from ssbroker.routing import PendingRequest


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
    return circling(Ways(Fleet.of(fleet), now=moment.as_utc(at), pending_request=pending_request))


def circling(ways: Ways) -> tuple[Loop, ...]:
    """The loops of a fleet whose ways are known."""
    ways.prepare()
    found: defaultdict[tuple[str, ...], list[tuple[str | None, bytes | None]]] = defaultdict(list)
    unknown = _unknown_name(ways)
    knowing, reading = _entries(ways)
    for service, broker in _keys(ways, unknown):
        entries = ways.fleet if service == unknown else (*knowing.get(service, ()), *reading)
        graph = _passing(ways, Key(service, broker, is_initiator=True), entries)
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


def _passing(ways: Ways, key: Key, entries: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The instances that pass on what arrives at some, or what those send them, and to which."""
    graph: dict[str, tuple[str, ...]] = {}
    waiting = list(entries)
    while waiting:
        instance = waiting.pop()
        if instance not in graph and (hops := ways.arriving(instance, key).hops):
            graph[instance] = tuple(sorted(there for there, _ in hops))
            waiting += graph[instance]
    return {instance: tuple(there for there in following if there in graph) for instance, following in graph.items()}


def _entries(ways: Ways) -> tuple[dict[str, list[str]], list[str]]:
    """The instances that know each name, and those that may read an address in any: only there a name's ways are its own.

    A circle in which none of them has part is also that of the name that nobody knows.
    """
    knowing: defaultdict[str, list[str]] = defaultdict(list)
    for instance, behaviour in ways.behaviours.items():
        for service in behaviour.in_play[MSDB]:
            knowing[service].append(instance)
    return knowing, [instance for instance, behaviour in ways.behaviours.items() if behaviour.asks_names(MSDB)]


def _keys(ways: Ways, unknown: str) -> Iterable[tuple[str, bytes | None]]:
    yield unknown, None
    for service, ids in sorted(ways.ids.items()):
        for broker in ids:
            yield service, broker


def _unknown_name(ways: Ways) -> str:
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
