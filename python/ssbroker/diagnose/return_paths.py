"""Whether the acknowledgements and replies of targets return to the databases that start conversations."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from ssbroker._text import restore_spaces
from ssbroker.ddl.system_objects import SYSTEM_SERVICES
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.known_addresses import KnownAddresses
from ssbroker.diagnose.problems import listed_names
from ssbroker.diagnose.reachability import ReachabilitySets, Start
from ssbroker.diagnose.routing_graph import Ends, RoutingEnd, RoutingGraph
from ssbroker.diagnose.trace import end_text

_SERVICES_OF_MSDB: Final = frozenset(
    {
        "ExternalMailService",
        "InternalMailService",
        "SQL/Notifications/ProcessWMIEventProviderNotification/v1.0",
        "syspolicy_event_listener",
    }
)
"""The services of Database Mail, WMI alerts and policy-based management in msdb."""


class ReturnPath(NamedTuple):
    """The path from every start to a service that may have started a conversation."""

    service: str
    codes: Sequence[int]
    """The index of the set of possible ends of a reply, for each start from which the reply may come."""
    certain: frozenset[int]
    """The indices of the sets with which a reply returns, whichever way ties are broken."""


class ReturnPaths:
    """The paths of acknowledgements and replies in a fleet."""

    def __init__(self, graph: RoutingGraph) -> None:
        self.reach: Final = ReachabilitySets(graph, is_initiator=False)
        self._graph = graph
        self._addresses = KnownAddresses(graph.fleet)
        self._indices = {start: index for index, start in enumerate(self.reach.starts)}
        self._kept: dict[Start, tuple[ReturnPath, ...]] = {}

    def to(self, start: Start) -> tuple[ReturnPath, ...]:
        """Returns the return path to each service of a database."""
        if start not in self._kept:
            self._kept[start] = tuple(self._paths_to(start))
        return self._kept[start]

    def _paths_to(self, start: Start) -> Iterator[ReturnPath]:
        tables = self._graph.at(start.instance).tables
        origin = RoutingEnd("DELIVERED", *start)
        # An unknown address may belong to the initiator's instance if the address of that instance is not known.
        may_have = partial(self._addresses.may_have, start.instance)
        for service in tables.services.get(start.database, ()):
            if service in SYSTEM_SERVICES or (start.database == MSDB and service in _SERVICES_OF_MSDB):
                continue  # they start no conversations with services of other instances
            codes = array("i", self.reach.codes(service, tables.databases[start.database].broker))
            certain = (
                code
                for code in set(codes)
                if all(
                    end == origin or (end.outcome == "ELSEWHERE" and may_have(str(end.address)))
                    for end in self.reach.ends[code]
                )
            )
            yield ReturnPath(service, codes, frozenset(certain))

    def failures(self, start: Start, ends: Ends) -> dict[str, Ends]:
        """Returns the services of a database to which the targets of its conversation cannot reply in every case, each with the ends of replies."""
        places = {Start(str(end.instance), str(end.database)) for end in ends if end.outcome == "DELIVERED"}
        targets = [self._indices[place] for place in places if place in self._indices]
        failing: dict[str, Ends] = {}
        for service, codes, certain in self.to(start):
            uncertain = {codes[target] for target in targets} - certain
            if uncertain:
                failing[service] = frozenset().union(*(self.reach.ends[code] for code in uncertain))
        return failing


def return_path_text(failures: Mapping[str, Ends]) -> str:
    """Describes return paths that fail."""
    return f"return path to {', '.join(listed_names(sorted(failures)))}: {ends_text(frozenset().union(*failures.values()))}"


def ends_text(ends: Ends) -> str:
    """Describes the possible ends of a path, separated by a vertical bar."""
    return " | ".join(sorted(restore_spaces(end_text(end)) for end in ends))
