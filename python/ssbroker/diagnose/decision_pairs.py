"""The decisions of two catalogs on the same conversations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._arrow import without_views
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import ANY_ADDRESS, Behaviour, PossibleDecision, RouteLookup, name_unknown_to
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.router import PendingRequest

COMPARED_COLUMNS: Final = (
    "outcome",
    "reason",
    "match_step",
    "route_id",
    "next_hop_address",
    "mirror_address",
    "target_database",
)
"""The columns of a decision that are compared. The broker id follows from these columns and from the broker id of the conversation."""


NO_DATABASE: Final = PossibleDecision("NONE", "no such database", None, None, None, None, None)
"""The decision of a catalog that does not contain the database in which the conversation starts."""


class DecisionPair(NamedTuple):
    """A class of conversations with the decision of each of two catalogs."""

    database: str | None
    """The database in which the conversations start; None if they arrive from another instance."""
    service: str | None
    """The service; None represents all services that neither catalog contains."""
    before: PossibleDecision
    after: PossibleDecision


def count_pairs(
    conversations: pa.RecordBatch, before: pa.RecordBatch, after: pa.RecordBatch, *, database: str | None
) -> Counter[DecisionPair]:
    """Counts conversations by pair of decisions; without a column `database`, all conversations start in the database `database`."""
    columns: dict[str, Any] = {"to_service_name": _dictionary_decoded(conversations.column("to_service_name"))}
    if "database" in conversations.schema.names:
        columns["database"] = _dictionary_decoded(conversations.column("database"))
    for which, decisions in (("before", before), ("after", after)):
        columns.update({f"{which} {name}": _dictionary_decoded(decisions.column(name)) for name in COMPARED_COLUMNS})
    table = pa.table(columns)
    grouped = table.group_by(list(columns)).aggregate([([], "count_all")])
    found: Counter[DecisionPair] = Counter()
    for row in grouped.to_pylist():
        found[pair({"database": database, **row})] += row["count_all"]
    return found


def pair(row: dict[str, Any]) -> DecisionPair:
    """Returns the pair of a row with the columns `before outcome`, `after outcome` and so on."""
    before, after = (
        PossibleDecision(*(row[f"{which} {name}"] for name in COMPARED_COLUMNS)) for which in ("before", "after")
    )
    return DecisionPair(row["database"], row["to_service_name"], before, after)


def _dictionary_decoded(column: Any) -> Any:
    words = without_views(column)
    return words.dictionary_decode() if pa.types.is_dictionary(words.type) else words


class ConversationClass(NamedTuple):
    """A class of equivalent conversations: each of the two catalogs decides the same way for all of them; the two decisions can differ."""

    database: str | None
    """The database in which the conversations start; None if they arrive from another instance."""
    service: str | None
    """The service; None represents all services that neither catalog contains."""
    broker: bytes | None
    """The broker id that the conversations name; empty if neither catalog contains the id."""
    is_initiator: bool
    before: tuple[PossibleDecision, ...]
    """Every possible decision of the catalog before the change."""
    after: tuple[PossibleDecision, ...]


def classes(
    before: Catalog, after: Catalog, *, moments: tuple[datetime, datetime], pending_request: PendingRequest
) -> Iterator[ConversationClass]:
    """Yields every class of conversations once, with the decisions of both catalogs, each at its own time.

    For conversations that start in a database that only one of the catalogs contains, the decision of the other catalog is `NO_DATABASE`.
    """
    both = [
        Behaviour(catalog, now=now, pending_request=pending_request, with_routes=True)
        for catalog, now in zip((before, after), moments, strict=True)
    ]
    unknown_name = name_unknown_to(both)
    unknown_broker = _unknown_broker(both)
    ids: defaultdict[str, set[bytes]] = defaultdict(set)
    own_ids: set[bytes] = set()
    for behaviour in both:
        own_ids |= {row.broker for row in behaviour.tables.databases.values() if row.broker is not None}
        for route in behaviour.tables.routes:
            if route.service is not None and route.broker is not None:
                ids[route.service].add(route.broker)
    for database in (None, *sorted(both[0].tables.databases.keys() | both[1].tables.databases.keys())):
        table = MSDB if database is None else database
        names = sorted(frozenset().union(*(behaviour.known_names.get(table, ()) for behaviour in both)))
        addressed_names = [ANY_ADDRESS] if any(behaviour.reads_names(table) for behaviour in both) else []
        lookups = [
            RouteLookup(database, name, broker, is_initiator)
            for name in (*names, *addressed_names, unknown_name)
            for broker in (None, unknown_broker, *sorted(ids[name] | own_ids))
            for is_initiator in ((True, False) if database is None and broker in own_ids else (True,))
        ]
        sides = [
            map(_distinct_decisions, behaviour.decisions_for(lookups))
            if table in behaviour.tables.databases
            else repeat((NO_DATABASE,))
            for behaviour in both
        ]
        for lookup, old, new in zip(lookups, *sides, strict=False):
            service = None if lookup.service == unknown_name else lookup.service
            broker = b"" if lookup.broker == unknown_broker else lookup.broker
            yield ConversationClass(database, service, broker, lookup.is_initiator, old, new)


def _distinct_decisions(decisions: tuple[PossibleDecision, ...]) -> tuple[PossibleDecision, ...]:
    return tuple(dict.fromkeys(each._replace(broker=None) for each in decisions))


def _unknown_broker(both: list[Behaviour]) -> bytes:
    """Returns a broker id that neither catalog contains; the `Behaviour.unknown_broker` of one catalog may be known to the other."""
    known = {route.broker for behaviour in both for route in behaviour.tables.routes}
    known |= {row.broker for behaviour in both for row in behaviour.tables.databases.values()}
    return next(
        broker
        for number in range(len(known) + 1)
        if (broker := (0xFFFF << 112 | number).to_bytes(16, "big")) not in known
    )
