"""Summaries of decisions: counts by outcome, reason and destination."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ssbroker import _notebook as notebook
from ssbroker._arrow import Rows, as_table, missing_column_error, table_without_views
from ssbroker._text import count_of, quantity, terminal_safe
from ssbroker.exceptions import SchemaError

_COLUMNS: Final = ("outcome", "reason", "next_hop_address", "target_database")
_HEADER: Final = ("outcome", "reason", "to", "conversations", "share")
_LINES_MAX: Final = 20


@dataclass(frozen=True, repr=False)
class RoutingSummary:
    """Number of conversations for each outcome, reason and destination; `print` and notebooks show it as a table.

    Attributes:
        rows: Number of decisions.
        groups: A dict for each combination of `outcome`, `reason` and `to` (the next hop or the target database, or None), with the number
            of `conversations`; the most frequent first.

    Examples:
        >>> from ssbroker import Catalog, Router, schemas, summarize
        >>> decisions = Router(Catalog(schemas.ROUTES.empty_table())).route([{"database": "msdb", "to_service_name": "//Orders"}])
        >>> print(summarize(decisions))
        1 conversation
        outcome  reason    to  conversations   share
        DELAYED  no_route                  1  100.0%
    """

    rows: int
    groups: tuple[dict[str, Any], ...]

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                group["outcome"],
                group["reason"],
                terminal_safe(group["to"] or ""),
                f"{group['conversations']:,}",
                f"{group['conversations'] / self.rows:.1%}",
            )
            for group in self.groups[:_LINES_MAX]
        ]

    def __repr__(self) -> str:
        lines = [_HEADER, *self._cells()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADER))]
        is_number = (False, False, False, True, True)
        texts = (
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, is_number, strict=True)
            )
            for line in lines
        )
        rest = len(self.groups) - _LINES_MAX
        more = [f"and {quantity(rest, 'more line')}"] if rest > 0 else []
        return "\n".join([count_of(self.rows, "conversation"), *texts, *more])

    def _repr_html_(self) -> str:
        return notebook.section(count_of(self.rows, "conversation"), notebook.grid(_HEADER, self._cells()))


def summarize(decisions: Rows) -> RoutingSummary:
    """Counts decisions by outcome, reason and destination.

    Args:
        decisions: Decisions (`schemas.DECISIONS`), with or without the conversations, as a record batch, table, stream, DataFrame or list
            of dicts.

    Returns:
        The summary.

    Raises:
        SchemaError: `decisions` is not an Arrow object or a list of dicts, or a column is missing.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import summarize
        >>> rows = {"outcome": ["REMOTE"] * 3, "reason": ["matched"] * 3, "next_hop_address": ["TCP://a:4022"] * 3, "target_database": [None] * 3}
        >>> summarize(pa.table(rows)).groups
        ({'outcome': 'REMOTE', 'reason': 'matched', 'to': 'TCP://a:4022', 'conversations': 3},)
    """
    table = as_table(decisions, name="decisions")
    for name in _COLUMNS:
        if name not in table.column_names:
            error = SchemaError(
                f"{name}: the column is missing; expected the result of Router.route or Router.with_decisions",
                column=name,
                expected="text",
            )
            raise missing_column_error(error, table, expected=_COLUMNS)
    labels = table_without_views(table.select(list(_COLUMNS)))
    counted = (
        pa.table({name: _groupable(labels[name]) for name in _COLUMNS})
        .group_by(list(_COLUMNS))
        .aggregate([([], "count_all")])
        .to_pylist()
    )
    counts: Counter[tuple[str, ...]] = Counter()  # a dictionary may contain a label twice
    for row in counted:
        to = row["next_hop_address"] or row["target_database"]
        counts[row["outcome"], row["reason"], to] += row["count_all"]
    groups: list[dict[str, Any]] = [
        {"outcome": outcome, "reason": reason, "to": to, "conversations": count}
        for (outcome, reason, to), count in counts.items()
    ]
    groups.sort(key=lambda group: (-group["conversations"], group["outcome"], group["reason"], group["to"] or ""))
    return RoutingSummary(table.num_rows, tuple(groups))


def _groupable(labels: pa.ChunkedArray[Any]) -> Any:
    """Returns labels in a form that can be grouped: with one dictionary, or as text. Decoding dictionaries could exceed 2 GiB."""
    if pa.types.is_dictionary(labels.type):
        try:
            return labels.unify_dictionaries()
        except pa.ArrowInvalid:  # together they have more values than their index type can number
            return labels.cast(pa.large_string())
    return labels.cast(pa.string())
