"""Which services each database of a fleet reaches."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker._arguments import string_list, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import Target
from ssbroker.diagnose.assumed_broker_ids import assumed_ids_of
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.garbage_collection import without_garbage_collection
from ssbroker.diagnose.routing_graph import Ends, MessageKey, RoutingEnd, RoutingGraph
from ssbroker.router import PendingRequest

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
"""The schema of `reachability`: one row per possible outcome of a conversation; `certain` is true if this is the only possible outcome."""
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
    """Returns the possible outcomes of a conversation from every database of a fleet to every service, whichever way ties are broken.

    The conversations name no broker id. `msdb` is included only if it has services.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        services: The service names; None means all services that databases contain or routes name.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        One row per possible outcome, with the columns of `REACHABILITY`. Outcomes are `DELIVERED`, `REFUSED` (by a service without a
        contract), `DELAYED` (also by an endpoint that is not started or a disabled queue), `DROPPED`, `ELSEWHERE` (sent to an
        address that no instance of the fleet has) and `LOOP`.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime with a time zone, `services` is not a sequence of strings, or `pending_request` is
            unknown.

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
    whole_fleet = assumed_ids_of(Fleet.of(fleet)).fleet
    names = None if services is None else string_list(_as_list(services), name="services")
    graph = RoutingGraph(whole_fleet, now=utc_datetime(at, name="at"), pending_request=pending_request)
    return matrix(graph, sorted(all_services(graph)) if names is None else list(dict.fromkeys(names)))


def _as_list(values: object) -> object:
    """Returns an iterable as a list; returns a string unchanged, so that it is refused."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def matrix(graph: RoutingGraph, services: list[str]) -> pa.Table:
    """Returns the reachability table of the services."""
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
    """The possible ends of conversations from every start to a service; equal sets of ends have the same index.

    With `is_initiator`, conversations begin at the starts, usually without a broker id. Otherwise, they are replies
    from targets, usually with the broker id of a database that has the service.
    """

    def __init__(self, graph: RoutingGraph, *, is_initiator: bool = True) -> None:
        self.graph: Final = graph
        self._is_initiator: Final = is_initiator
        self.starts: Final = all_starts(graph)
        self.ends: Final[list[Ends]] = []
        """Every set of ends, at its index."""
        self._codes: dict[Ends, int] = {}
        self._ids: Final = dict.fromkeys(graph.ids, _NO_ID) if is_initiator else graph.host_ids
        self._targets_with_starts: defaultdict[Target, list[tuple[int, int]]] = defaultdict(list)
        self._default_transitions: list[int] = []
        for index, (instance, database) in enumerate(self.starts):
            for class_, transition in graph.route_known_names(instance, (database, is_initiator), self._ids):
                self._targets_with_starts[class_].append((index, transition))
            self._default_transitions.append(self._transition(index, graph.at(instance).unknown_name, None))
        graph.prepare_arrivals(is_initiator=is_initiator)
        self._fixed_ends: dict[int, int] = {}

    def codes(self, service: str, broker: bytes | None = None) -> list[int]:
        """Returns, for each start in order, the index in `ends` of the set of possible ends."""
        if broker in self._ids.get(service, ()):
            transitions = self._default_transitions.copy()
            for index, transition in self._targets_with_starts[service, broker]:
                transitions[index] = transition
        else:
            transitions = [self._transition(index, service, broker) for index in range(len(self.starts))]
        known = _EndsByTransition(self, MessageKey(service, broker, self._is_initiator))
        codes = list(map(known.__getitem__, transitions))
        if known.returns:
            for index, transition in enumerate(transitions):
                instance = self.starts[index].instance
                if instance in known.returns.get(transition, ()):
                    codes[index] = self.end(transition, known.key, sender=instance)
        self.graph.clear_ends()
        if self._is_initiator and service in self.graph.not_accepting:
            key = MessageKey(service, broker, is_initiator=True)
            refined = {code: self._code(self.graph.ends_at(self.ends[code], key)) for code in set(codes)}
            codes = [refined[code] for code in codes]
        return codes

    def end(self, transition: int, key: MessageKey, *, sender: str | None = None) -> int:
        """Returns the index in `ends` of the set of possible ends after a transition."""
        solved = self._fixed_ends.get(transition)
        if solved is not None:
            return solved
        reached_transition = self.graph.transitions[transition]
        if reached_transition.hops:
            return self._code(self.graph.ends_after(reached_transition, key, sender=sender))
        self._fixed_ends[transition] = self._code(reached_transition.ends)
        return self._fixed_ends[transition]

    def _transition(self, start: int, service: str, broker: bytes | None) -> int:
        instance, database = self.starts[start]
        return self.graph.transition_index_of(instance, (database, self._is_initiator), service, broker)

    def _code(self, ends: Ends) -> int:
        code = self._codes.setdefault(ends, len(self._codes))
        if code == len(self.ends):
            self.ends.append(ends)
        return code


class _EndsByTransition(dict[int, int]):
    """Maps each transition to the index of its set of ends, for one service and broker id.

    Values are computed on first access. `returns` contains the instances to which a route leads back; for conversations
    from these instances, the ends differ.
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
        if (database != MSDB or behaviour.tables.services.get(MSDB))
        # No conversation starts in a secondary replica.
        and (row.enabled or roles.get(instance) != "secondary")
    ]


def all_services(graph: RoutingGraph) -> set[str]:
    """Returns every service name that a database has or a route names."""
    return set(graph.ids)


class _TableBuilder:
    """Builds rows of the reachability table from the indices of sets of ends."""

    def __init__(self, reach: ReachabilitySets, services: list[str]) -> None:
        indices: dict[RoutingEnd, int] = {}
        lists = [[indices.setdefault(end, len(indices)) for end in sorted(ends, key=str)] for ends in reach.ends]
        self._lists: Any = pa.array(lists, pa.list_(pa.int32()))
        self._ends = [_dictionary(getattr(end, name) for end in indices) for name in _END_FIELDS]
        self._start_columns = [_dictionary(getattr(start, name) for start in reach.starts) for name in Start._fields]
        self._services = pa.array(services, pa.string())
        self._starts = len(reach.starts)

    def __call__(self, codes: array[int], first: int) -> pa.RecordBatch:
        """Returns the rows of consecutive services, beginning at index `first`; `codes` contains one entry per service and start."""
        ends_of_cells = self._lists.take(pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)]))
        cell_indices = pc.list_parent_indices(ends_of_cells)
        service = pc.divide(cell_indices, max(1, self._starts))
        start = pc.subtract(cell_indices, pc.multiply(service, self._starts))
        end = pc.list_flatten(ends_of_cells)
        columns = [column.take(start) for column in self._start_columns]
        service_indices = pc.cast(pc.add(service, first), pa.int32())
        columns.append(pa.DictionaryArray.from_arrays(service_indices, self._services))
        columns += [column.take(end) for column in self._ends]
        columns.append(pc.equal(pc.list_value_length(ends_of_cells).take(cell_indices), 1))
        return pa.RecordBatch.from_arrays(columns, schema=REACHABILITY)


def _dictionary(values: Iterable[str | None]) -> pa.DictionaryArray[Any, Any]:
    return pa.array(list(values), pa.string()).dictionary_encode()
