"""The Sankey diagram of the HTML report: conversations by service, outcome and destination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table
from ssbroker._notebook import escaped
from ssbroker.exceptions import InputError, SchemaError

NODES_MAX: Final = 14
"""The maximum number of nodes of services, and of destinations; if there are more names, the last node stands for the rest."""
_WIDTH: Final = 1160
_NODE_WIDTH: Final = 12
_COLUMNS: Final = (320, 574, 828)
"""The left edges of the columns of services, outcomes and destinations."""
_GAP: Final = 12
_HEIGHT_MIN: Final = 14
"""The minimum height of a node, so that its label fits."""
_SCALE: Final = 300
"""The height of all conversations together."""
_LABEL_CHARACTERS_MAX: Final = 34
_REQUIRED: Final = ("to_service_name", "outcome", "next_hop_address", "target_database")
TRAFFIC_COLUMNS: Final = (*_REQUIRED, "reason")
"""The columns by which decisions are counted, including the service."""
COUNT: Final = "conversations"
"""The column with the number of equal conversations."""
NO_TRAFFIC: Final = pa.table({name: pa.array([], pa.string()) for name in TRAFFIC_COLUMNS})


class Flow(NamedTuple):
    """Conversations with the same service, outcome and destination."""

    service: str
    outcome: str
    destination: str
    """An address, a database, or, for delayed and dropped messages, the reason."""


def count_traffic(traffic: ArrowStreamExportable | ArrowArrayExportable) -> pa.Table:
    """Returns the distinct combinations of service and decision, with their frequencies in the column `conversations`.

    If there is already such a column, each row counts as that many conversations.
    """
    table = as_table(traffic, name="traffic")
    for name in _REQUIRED:
        if name not in table.column_names:
            raise SchemaError(
                f"traffic.{name}: the column is missing; expected the columns {', '.join(_REQUIRED)}, as Router.with_decisions "
                "returns them",
                column=f"traffic.{name}",
            )
    columns = {name: _decoded(table[name]) for name in _REQUIRED}
    columns["reason"] = (
        _decoded(table["reason"]) if "reason" in table.column_names else pa.nulls(table.num_rows, pa.string())
    )
    if COUNT in table.column_names:
        columns[COUNT] = table[COUNT].cast(pa.int64())
    else:
        columns[COUNT] = pa.repeat(pa.scalar(1, pa.int64()), table.num_rows)
    names = [name for name in columns if name != COUNT]
    return pa.table(columns).group_by(names).aggregate([(COUNT, "sum")]).rename_columns([*names, COUNT])


def traffic_flows(traffic: ArrowStreamExportable | ArrowArrayExportable) -> Counter[Flow]:
    """Counts conversations with decisions by flow."""
    flows: Counter[Flow] = Counter()
    for row in count_traffic(traffic).to_pylist():
        if row["outcome"] not in _OUTCOMES:
            raise InputError(
                f"traffic.outcome: {row['outcome']!r:.80} is not an outcome; expected one of {', '.join(_OUTCOMES)}",
                column="traffic.outcome",
                value=f"{row['outcome']:.80}" if row["outcome"] is not None else None,
                expected=", ".join(_OUTCOMES),
            )
        destination = row["target_database"] if row["outcome"] == "LOCAL" else row["next_hop_address"]
        flow = Flow(str(row["to_service_name"]), row["outcome"], str(destination or row["reason"] or ""))
        flows[flow] += row[COUNT] or 0
    return flows


def _decoded(column: Any) -> Any:
    """Returns strings without dictionaries and views."""
    return column.cast(pa.string())


def compared_flows(destinations: Mapping[tuple[str, str, str], list[int]]) -> tuple[Counter[Flow], Counter[Flow]]:
    """Returns the flows before and after a change, from `Comparison.destinations`."""
    sides: tuple[Counter[Flow], Counter[Flow]] = (Counter(), Counter())
    for (_, service, text), numbers in destinations.items():
        outcome, _, destination = text.partition(" ")
        if outcome not in _WITH_DESTINATION:
            destination = destination.removeprefix("(").removesuffix(")")  # the reason
        for flows, number in zip(sides, numbers, strict=True):
            if number:
                flows[Flow(service, outcome, destination)] += number
    return sides


def changed_services(before: Counter[Flow], after: Counter[Flow]) -> set[str]:
    """Returns the services for which the number of conversations with any outcome and destination has changed."""
    return {flow.service for flow in before.keys() | after.keys() if before[flow] != after[flow]}


class _Node(NamedTuple):
    name: str
    number: int
    top: float
    height: float


def sankey(flows: Mapping[Flow, int], *, title: str, first: Collection[str] = ()) -> str:
    """Returns a Sankey diagram as SVG; services in `first` come before the others."""
    total = sum(flows.values())
    if not total:
        return "<p>No conversations.</p>"
    services = _largest(((flow.service, count) for flow, count in flows.items()), first, "services")
    places = _largest(((_place(flow), count) for flow, count in flows.items()), (), "destinations")
    merged: Counter[Flow] = Counter()
    for flow, count in flows.items():
        merged[Flow(services[flow.service], flow.outcome, places[_place(flow)])] += count
    order = list(dict.fromkeys(services.values()))
    columns = [
        _stack(((flow.service, count) for flow, count in merged.items()), total, order),
        _stack(((flow.outcome, count) for flow, count in merged.items()), total, _OUTCOMES),
        _stack(
            ((flow.destination, count) for flow, count in merged.items()), total, list(dict.fromkeys(places.values()))
        ),
    ]
    height = max(node.top + node.height for column in columns for node in column.values()) + _GAP
    parts = [
        f'<svg class="sankey" role="img" aria-label="{escaped(title)}" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">'
    ]
    parts += _ribbons(merged, columns, first)
    for column, left, side in zip(columns, _COLUMNS, ("start", "middle", "end"), strict=True):
        for node in column.values():
            parts.append(_box(node, left, side, total=total, is_first=side == "start" and node.name in first))
    return "".join([*parts, "</svg>"])


_WITH_DESTINATION: Final = ("LOCAL", "REMOTE", "FORWARD")
_OUTCOMES: Final = (*_WITH_DESTINATION, "DELAYED", "DROPPED", "NONE")


def _place(flow: Flow) -> str:
    if flow.outcome == "LOCAL":
        return f"database {flow.destination}"
    return (
        flow.destination.removeprefix("TCP://")
        if flow.outcome in ("REMOTE", "FORWARD")
        else f"{flow.outcome.lower()}: {flow.destination}"
    )


def _largest(counts: Iterable[tuple[str, int]], first: Collection[str], noun: str) -> dict[str, str]:
    """Returns the node of each name, in order: the name itself, or a shared node for names with few conversations."""
    sums: Counter[str] = Counter()
    for name, count in counts:
        sums[name] += count
    ordered = sorted(sums, key=lambda name: (name not in first, -sums[name], name))
    kept = ordered if len(ordered) <= NODES_MAX else ordered[: NODES_MAX - 1]
    rest = f"{len(ordered) - len(kept):,} more {noun}"
    return {name: name if number < len(kept) else rest for number, name in enumerate(ordered)}


def _stack(counts: Iterable[tuple[str, int]], total: int, order: Iterable[str]) -> dict[str, _Node]:
    sums: Counter[str] = Counter()
    for name, count in counts:
        sums[name] += count
    found: dict[str, _Node] = {}
    top = float(_GAP)
    for name in order:
        if name in sums:
            height = max(_HEIGHT_MIN, sums[name] / total * _SCALE)
            found[name] = _Node(name, sums[name], top, height)
            top += height + _GAP
    return found


def _ribbons(flows: Mapping[Flow, int], columns: list[dict[str, _Node]], first: Collection[str]) -> Iterable[str]:
    """Yields the bands between neighbouring columns; the bands on each side of a node share its height."""
    for left, right in ((0, 1), (1, 2)):
        bands: Counter[tuple[str, str, str, bool]] = Counter()
        for flow, count in flows.items():
            bands[flow[left], flow[right], flow.outcome, left == 0 and flow.service in first] += count
        used: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        orders = [list(columns[number]) for number in (left, right)]
        for source, target, outcome, is_first in sorted(
            bands, key=lambda band: (orders[0].index(band[0]), orders[1].index(band[1]))
        ):
            count = bands[source, target, outcome, is_first]
            sides = []
            for column, name, taken in ((left, source, used[0]), (right, target, used[1])):
                node = columns[column][name]
                start = node.top + node.height * taken[name] / node.number
                taken[name] += count
                sides.append((start, node.top + node.height * taken[name] / node.number))
            (a, b), (c, d) = sides
            x, y = _COLUMNS[left] + _NODE_WIDTH, _COLUMNS[right]
            middle = (x + y) / 2
            yield (
                f'<path class="band {outcome.lower()}{" changed" if is_first else ""}" d="M{x} {a:.1f} C{middle} {a:.1f} {middle} {c:.1f} {y} {c:.1f} '
                f'L{y} {d:.1f} C{middle} {d:.1f} {middle} {b:.1f} {x} {b:.1f} Z">'
                f"<title>{escaped(source)} to {escaped(target)}: {count:,}</title></path>"
            )


def _box(node: _Node, left: int, side: str, *, total: int, is_first: bool) -> str:
    name = node.name
    label = name if len(name) <= _LABEL_CHARACTERS_MAX else f"…{name[-(_LABEL_CHARACTERS_MAX - 1) :]}"
    x, anchor = {
        "start": (left - 8, "end"),
        "middle": (left + _NODE_WIDTH + 6, "start"),
        "end": (left + _NODE_WIDTH + 8, "start"),
    }[side]
    middle = node.top + node.height / 2 + 4
    share = f"{node.number:,} ({node.number / total:.0%})"
    kind = node.name.lower() if side == "middle" else ""
    return (
        f'<g class="node {kind}{" changed" if is_first else ""}"><title>{escaped(name)}: {share}</title>'
        f'<rect x="{left}" y="{node.top:.1f}" width="{_NODE_WIDTH}" height="{node.height:.1f}"/>'
        f'<text x="{x}" y="{middle:.1f}" text-anchor="{anchor}">{escaped(label)}<tspan class="count" dx="6">{node.number:,}</tspan></text></g>'
    )
