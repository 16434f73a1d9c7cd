"""From every database to every service: all outcomes, under any tie break."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker import moment, options
from ssbroker.catalog import Catalog
from ssbroker.diagnose.collecting import without_collector
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.questions import Class
from ssbroker.diagnose.ways import Fate, Fates, Key, Ways
from ssbroker.routing import PendingRequest

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
    asked = None if services is None else options.texts(_listed(services), name="services")
    ways = Ways(whole, now=moment.as_utc(at), pending_request=pending_request)
    return matrix(ways, sorted(all_services(ways)) if asked is None else list(dict.fromkeys(asked)))


def _listed(values: object) -> object:
    """What may be walked through once as a list; a lone text, which has letters, stays one."""
    return list(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def matrix(ways: Ways, services: list[str]) -> pa.Table:
    """The matrix of a fleet for some services."""
    reach = Reach(ways)
    parts = []
    for first in range(0, len(services), _SERVICES_IN_A_BATCH):
        codes = array("i")
        for service in services[first : first + _SERVICES_IN_A_BATCH]:
            codes.extend(reach.codes(service))
        parts.append((first, codes))
    build = _Builder(reach, services)
    return pa.Table.from_batches([build(codes, first) for first, codes in parts], schema=REACHABILITY)


class Reach:
    """The ends of conversations from every start, a service at a time; sets of ends are numbered, so that equal ones are worked out once.

    Args:
        ways: All ways through the fleet.
        is_initiator: Whether the conversations begin there, mostly without a broker id, or are what a target sends back, mostly with
            that of a database that has the service.
    """

    def __init__(self, ways: Ways, *, is_initiator: bool = True) -> None:
        self.ways: Final = ways
        self._is_initiator: Final = is_initiator
        self.starts: Final = all_starts(ways)
        self.fates: Final[list[Fates]] = []
        """Every set of ends, by its number."""
        self._codes: dict[Fates, int] = {}
        self._ids: Final = dict.fromkeys(ways.ids, _NO_ID) if is_initiator else ways.ids_of_hosts
        self._placed: defaultdict[Class, list[tuple[int, int]]] = defaultdict(list)
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
        known = _Ends(self, Key(service, broker, self._is_initiator))
        codes = list(map(known.__getitem__, moves))
        self.ways.forget()
        return codes

    def end(self, move: int, key: Key) -> int:
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

    def __init__(self, reach: Reach, key: Key) -> None:
        super().__init__()
        self._reach = reach
        self._key = key

    def __missing__(self, move: int) -> int:
        self[move] = code = self._reach.end(move, self._key)
        return code


def all_starts(ways: Ways) -> list[Start]:
    """Every database in which conversations may begin."""
    return [
        Start(instance, database)
        for instance, behaviour in ways.behaviours.items()
        for database in behaviour.tables.databases
        if database != "msdb" or behaviour.tables.services.get("msdb")
    ]


def all_services(ways: Ways) -> set[str]:
    """Every name that a database has a service of, or a route is for."""
    return set(ways.ids)


class _Builder:
    """From numbers to rows."""

    def __init__(self, reach: Reach, services: list[str]) -> None:
        numbers: dict[Fate, int] = {}
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
