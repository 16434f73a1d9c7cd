"""What changes from one catalog to another, as objects and as Arrow tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, Literal

import pyarrow as pa

from ssbroker.diagnose.causes import Cause
from ssbroker.diagnose.sides import Side

Kind = Literal["outcome", "database", "next_hop", "explanation"]
"""What changes; the first that applies. `explanation`: the same end, by another route, step or reason."""

_TEXT: Final = (
    "instance",
    "database",
    "service",
    "kind",
    "cause",
    "object",
    "before",
    "after",
    "route_before",
    "route_after",
)
_FIELDS: Final[list[pa.Field[Any]]] = [
    *(
        pa.field(name, pa.string(), nullable=name in {"database", "service", "route_before", "route_after"})
        for name in _TEXT
    ),
    pa.field("conversations", pa.int64()),
]
CHANGES: Final = pa.schema(_FIELDS)
"""A row for conversations that are alike and change; `conversations` is null where no traffic was given."""
_CAUSES: Final[list[pa.Field[Any]]] = [
    *(pa.field(name, pa.string(), nullable=False) for name in ("instance", "cause", "object", "kind")),
    pa.field("changes", pa.int64(), nullable=False),
    pa.field("conversations", pa.int64()),
]
CAUSES: Final = pa.schema(_CAUSES)
"""The changes by their cause, the greatest first."""
_LOAD: Final[list[pa.Field[Any]]] = [
    *(pa.field(name, pa.string(), nullable=False) for name in ("instance", "service", "copy")),
    pa.field("before", pa.int64(), nullable=False),
    pa.field("after", pa.int64(), nullable=False),
    pa.field("skew_before", pa.float64()),
    pa.field("skew_after", pa.float64()),
]
LOAD: Final = pa.schema(_LOAD)
"""How many conversations each copy of a service gets. The skew of a service is the load of its busiest copy over the mean: 1 is even."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Conversations that are alike, and what becomes of them before and after."""

    instance: str
    """Whose routing tables."""
    database: str | None
    """Where they begin; None from outside."""
    service: str | None
    """For which service; None for every one that neither catalog knows."""
    kind: Kind
    """What changes."""
    cause: str
    """Such as `route vanished`."""
    object: str
    """What is the cause, such as `Sales/route "Orders"`."""
    before: str
    """Where they went; several ways of a tie are separated by `|`."""
    after: str
    """Where they go."""
    route_before: str | None
    """By which route."""
    route_after: str | None
    """By which route now."""
    conversations: int | None
    """How many there were in the traffic; None where none was given."""


class Comparison:
    """All changes, and what they come from; `bool()` of it says whether there are any.

    Args:
        changes: The changes.
        conversations: How many were compared; None where none were given.
        load: How many conversations each copy of a service got, by instance, service and copy, before and after.
    """

    def __init__(
        self,
        changes: Sequence[Change],
        *,
        conversations: int | None,
        load: dict[tuple[str, str, str], list[int]],
    ) -> None:
        self.changes: Final = tuple(sorted(changes, key=lambda change: -(change.conversations or 0)))
        self.conversations: Final = conversations
        self._load: Final = load

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def changed_conversations(self) -> int | None:
        """How many conversations change; None where none were given."""
        return None if self.conversations is None else sum(change.conversations or 0 for change in self.changes)

    @cached_property
    def table(self) -> pa.Table:
        """The changes, in the columns of `CHANGES`."""
        return pa.Table.from_pylist([asdict(change) for change in self.changes], schema=CHANGES)

    @cached_property
    def causes(self) -> pa.Table:
        """The changes by their cause, in the columns of `CAUSES`."""
        changes: Counter[tuple[str, str, str, str]] = Counter()
        conversations: Counter[tuple[str, str, str, str]] = Counter()
        for change in self.changes:
            key = change.instance, change.cause, change.object, change.kind
            changes[key] += 1
            conversations[key] += change.conversations or 0
        ordered = sorted(changes, key=lambda key: (-conversations[key], -changes[key], key))
        names = ("instance", "cause", "object", "kind")
        rows = [
            dict(zip(names, key, strict=True))
            | {"changes": changes[key], "conversations": None if self.conversations is None else conversations[key]}
            for key in ordered
        ]
        return pa.Table.from_pylist(rows, schema=CAUSES)

    @cached_property
    def load(self) -> pa.Table:
        """The load of each copy of a service that more than one copy gets, or that changes, in the columns of `LOAD`."""
        services: defaultdict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
        for (instance, service, copy), numbers in self._load.items():
            services[instance, service][copy] = numbers
        rows = []
        for (instance, service), copies in sorted(services.items()):
            if len(copies) == 1 and all(before == after for before, after in copies.values()):
                continue
            skews = [skew([numbers[side] for numbers in copies.values()]) for side in (0, 1)]
            rows += [
                {
                    "instance": instance,
                    "service": service,
                    "copy": copy,
                    "before": before,
                    "after": after,
                    "skew_before": skews[0],
                    "skew_after": skews[1],
                }
                for copy, (before, after) in sorted(copies.items())
            ]
        return pa.Table.from_pylist(rows, schema=LOAD)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        return {
            "conversations": self.conversations,
            "changed_conversations": self.changed_conversations,
            "causes": self.causes.to_pylist(),
            "changes": self.table.to_pylist(),
            "load": self.load.to_pylist(),
        }

    def __repr__(self) -> str:
        of = (
            ""
            if self.conversations is None
            else f", conversations={self.changed_conversations} of {self.conversations}"
        )
        return f"Comparison(changes={len(self.changes)}{of})"


def skew(loads: Sequence[int]) -> float | None:
    """The greatest of the loads over their mean, of those that have any.

    Examples:
        >>> skew([30, 10, 0]), skew([0])
        (1.5, None)
    """
    used = [load for load in loads if load]
    return max(used) * len(used) / sum(used) if used else None


def kind_of(before: Side, after: Side) -> Kind:
    """What differs between two decisions that do differ."""
    if before.outcome != after.outcome:
        return "outcome"
    if before.target_database != after.target_database:
        return "database"
    if (before.next_hop, before.mirror) != (after.next_hop, after.mirror):
        return "next_hop"
    return "explanation"


def cause_of(cause: Cause) -> dict[str, str]:
    """A cause as the fields of a change."""
    return {"cause": cause.kind, "object": cause.object}
