"""The decisions that vectorized rivals prepare from a routing table: for each key, that of the route chosen by `tie_break="first"`.

With this tie break the route depends only on the key, so rivals look up precomputed decisions. Decision 0 is for conversations that no
route with a service name matches.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benches.columns import Column, column

_NETWORK: Final = re.compile(r"tcp://([a-z0-9._-]+)(?::([0-9]+))?/?", re.IGNORECASE)

DECISIONS: Final = pa.schema(
    [
        pa.field("outcome", pa.dictionary(pa.int8(), pa.string())),
        pa.field("match_step", pa.int8()),
        pa.field("route_id", pa.int32()),
        pa.field("next_hop_address", pa.dictionary(pa.int32(), pa.string())),
        pa.field("broker_instance", pa.binary(16)),
        pa.field("reason", pa.dictionary(pa.int8(), pa.string())),
    ]
)
"""The decision columns that a rival returns; the other two are null for the supported tables."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Winners:
    """Finished decisions, and the keys that lead to them.

    Attributes:
        decisions: One row per decision, in the schema `DECISIONS`; `broker_instance` is set only for step 3, otherwise it is that of
            the conversation.
        pairs: `service`, `broker_instance`, `decision`: for a conversation with this service and this id (R11).
        names: `service`, `with_id`, `without_id`: the decisions for this service if the conversation names an id that is in no pair,
            and if it names none (R12, R13, R15, R17).
    """

    decisions: pa.Table
    pairs: pa.Table
    names: pa.Table


def normal_address(address: str) -> str:
    """Normalizes a network address; rivals do not support LOCAL, TRANSPORT and IPv6."""
    match = _NETWORK.fullmatch(address)
    if match is None:
        raise ValueError(f"rivals route only to host names, not to {address!r}")
    return f"TCP://{match[1].lower()}:{int(match[2] or 4022)}"


def winners(routes: pa.Table, now: datetime.datetime) -> Winners:
    """Finds the chosen routes among the live routes of one table."""
    if routes["mirror_address"].null_count < routes.num_rows:
        raise ValueError("rivals do not support mirrors")
    fields: list[Any] = [pc.field(name) for name in ("lifetime", "remote_service_name", "broker_instance")]
    lifetime, service, broker = fields
    is_live = lifetime.is_null() | (lifetime > pa.scalar(now, pa.timestamp("us", tz="UTC")))
    routes = routes.filter(is_live).sort_by("route_id")
    wild = routes.filter(service.is_null() & broker.is_null()).slice(0, 1)
    pairs = _first(routes.filter(service.is_valid() & broker.is_valid()), "remote_service_name", "broker_instance")
    plain = _first(routes.filter(service.is_valid() & broker.is_null()), "remote_service_name")
    others = _first(pairs, "remote_service_name")
    others = others.filter(
        pc.invert(pc.is_in(others["remote_service_name"], plain["remote_service_name"].combine_chunks()))
    )
    by_step = [_decisions(wild, 5) if wild.num_rows else _no_route()]
    by_step += [_decisions(found, step) for found, step in ((pairs, 1), (plain, 2), (others, 3))]
    ends = np.cumsum([part.num_rows for part in by_step])
    numbers = [np.arange(start, end, dtype=np.int32) for start, end in itertools.pairwise(ends)]
    return Winners(
        decisions=pa.concat_tables(by_step).unify_dictionaries().combine_chunks(),
        pairs=pa.table(
            {
                "service": pairs["remote_service_name"],
                "broker_instance": pairs["broker_instance"],
                "decision": numbers[0],
            }
        ).combine_chunks(),
        names=pa.table(
            {
                "service": pa.chunked_array(
                    [*plain["remote_service_name"].chunks, *others["remote_service_name"].chunks]
                ),
                "with_id": np.concatenate([numbers[1], np.zeros_like(numbers[2])]),
                "without_id": np.concatenate([numbers[1], numbers[2]]),
            }
        ).combine_chunks(),
    )


def _first(routes: pa.Table, *keys: str) -> pa.Table:
    """Returns the route with the lowest id for each key; the routes are sorted by id."""
    number = pa.array(np.arange(routes.num_rows))
    first = (
        routes.append_column("number", number).group_by(list(keys), use_threads=False).aggregate([("number", "min")])
    )
    return routes.take(first["number_min"].sort())


def _decisions(routes: pa.Table, step: int) -> pa.Table:
    count = routes.num_rows
    address: Column = routes["address"].combine_chunks().dictionary_encode()
    normal = pa.array([normal_address(text) for text in address.dictionary.to_pylist()], pa.string())
    return _table(
        outcome=_repeat("REMOTE", count),
        match_step=pa.repeat(pa.scalar(step, pa.int8()), count),
        route_id=routes["route_id"],
        next_hop_address=pc.take(normal, address.indices).dictionary_encode(),
        broker_instance=routes["broker_instance"] if step == 3 else pa.nulls(count, pa.binary(16)),
        reason=_repeat("matched", count),
    )


def _no_route() -> pa.Table:
    return _table(
        outcome=_repeat("DELAYED", 1),
        match_step=pa.array([7], pa.int8()),
        route_id=pa.nulls(1, pa.int32()),
        next_hop_address=pa.array([None], pa.string()).dictionary_encode(),
        broker_instance=pa.nulls(1, pa.binary(16)),
        reason=_repeat("no_route", 1),
    )


def _repeat(value: str, count: int) -> Column:
    return pa.DictionaryArray.from_arrays(column(np.zeros(count, np.int8)), [value])


def _table(**columns: Column) -> pa.Table:
    return pa.table(columns, schema=DECISIONS)
