"""Groups of instances that forward a message in a circle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import name_unknown_to
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.garbage_collection import without_garbage_collection
from ssbroker.diagnose.routing_graph import MessageKey, RoutingGraph
from ssbroker.router import PendingRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A group of instances, each of which forwards a message to the next, and the last to the first.

    In a loop of two instances, the instance that would send the message back drops it. In a larger loop, the message
    circulates until its hop limit or lifetime is reached.

    Attributes:
        instances: The instances in order; the last one forwards to the first.
        services: The service names that are forwarded; None represents every name that no instance of the fleet contains.
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
    """Finds the groups of instances that forward messages to each other in a loop, and returns one loop for each group.

    All messages that can arrive at an instance are considered: every service name in a route or a database, and an
    unknown service name, with every known broker id and without a broker id.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        The loops, each with all service names that are forwarded in it.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime with a time zone, or `pending_request` is unknown.

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
    unknown = name_unknown_to(graph.behaviours.values())
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
    """Returns, for a message that arrives at one of `entries`, the instances that forward it and their next hops."""
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
    """Returns, for each service name, the instances whose `msdb` knows it, and the instances that may take an address from any name (`reads_names`).

    A cycle that contains none of these instances is also a cycle for the unknown name.
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


def _rotated(cycle: list[str]) -> tuple[str, ...]:
    """Rotates a cycle to start at its first instance by name."""
    first = cycle.index(min(cycle))
    return (*cycle[first:], *cycle[:first])


def cycles(graph: Mapping[str, tuple[str, ...]]) -> Iterator[list[str]]:
    """Yields a shortest cycle through the first node of each strongly connected component that contains a cycle."""
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
    """Yields the strongly connected components that contain a cycle, with Tarjan's algorithm without recursion."""
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
