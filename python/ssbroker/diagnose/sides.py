"""Two decisions on the same conversations, counted: what a comparison is made of, wherever the counting was done."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker.views import without_views

SIDE: Final = (
    "outcome",
    "reason",
    "match_step",
    "route_id",
    "next_hop_address",
    "mirror_address",
    "target_database",
)
"""The columns of a decision that are compared. The broker id follows from them and the conversation's own."""


class Side(NamedTuple):
    """What is decided with one catalog."""

    outcome: str
    reason: str
    match_step: int | None
    route_id: int | None
    next_hop: str | None
    mirror: str | None
    target_database: str | None

    def __str__(self) -> str:
        where = self.target_database if self.outcome == "LOCAL" else self.next_hop
        return f"{self.outcome} {where}" if where is not None else f"{self.outcome} ({self.reason})"


NOT_BEGUN: Final = Side("NONE", "no such database", None, None, None, None, None)
"""Stands for the decision with a catalog that lacks the database: no conversation is begun there."""


class Pair(NamedTuple):
    """Conversations that are alike, and what is decided with each of two catalogs."""

    database: str | None
    """Where they begin; None from outside."""
    service: str | None
    """None stands for every service that neither catalog knows."""
    before: Side
    after: Side


def counted(
    conversations: pa.RecordBatch, before: pa.RecordBatch, after: pa.RecordBatch, *, database: str | None
) -> Counter[Pair]:
    """How many conversations of a batch there are of each pair.

    Args:
        conversations: The columns `database`, which may be left out, and `to_service_name`.
        before: Their decisions with the one catalog.
        after: Their decisions with the other.
        database: Where they begin if there is no such column.

    Returns:
        The numbers.
    """
    columns: dict[str, Any] = {"to_service_name": _plain(conversations.column("to_service_name"))}
    if "database" in conversations.schema.names:
        columns["database"] = _plain(conversations.column("database"))
    for which, decisions in (("before", before), ("after", after)):
        columns.update({f"{which} {name}": _plain(decisions.column(name)) for name in SIDE})
    table = pa.table(columns)
    grouped = table.group_by(list(columns)).aggregate([([], "count_all")])
    found: Counter[Pair] = Counter()
    for row in grouped.to_pylist():
        found[pair({"database": database, **row})] += row["count_all"]
    return found


def pair(row: dict[str, Any]) -> Pair:
    """A pair from its columns: `before outcome`, `after outcome` and so on."""
    before, after = (Side(*(row[f"{which} {name}"] for name in SIDE)) for which in ("before", "after"))
    return Pair(row["database"], row["to_service_name"], before, after)


def _plain(column: Any) -> Any:
    words = without_views(column)
    return words.dictionary_decode() if pa.types.is_dictionary(words.type) else words
