"""What the vectorised rivals prepare from a routing table: for each key the one route that `tie_break="first"` takes.

With that tie break the route of a key does not depend on the conversation, so a rival looks up finished decisions. Decision
number 0 is the one for conversations that no named route fits.
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
"""The decision columns that a rival answers with; the two others are null for the tables it takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Winners:
    """Finished decisions, and the keys that lead to them.

    Attributes:
        decisions: One row for each decision, in the schema `DECISIONS`; its `broker_instance` is set in step 3 alone, elsewhere
            it is the conversation's own.
        pairs: `service`, `broker_instance`, `decision`: for a conversation with this service and this id (R11).
        names: `service`, `with_id`, `without_id`: the decisions for this service where an id is given that is in no pair, and
            where none is given (R12, R13, R15, R17).
    """

    decisions: pa.Table
    pairs: pa.Table
    names: pa.Table


def normal_address(address: str) -> str:
    """Write a network address in its normal form; the rivals take no LOCAL, no TRANSPORT and no IPv6."""
    match = _NETWORK.fullmatch(address)
    if match is None:
        raise ValueError(f"the rivals route to host names only, not to {address!r}")
    return f"TCP://{match[1].lower()}:{int(match[2] or 4022)}"


def winners(routes: pa.Table, now: datetime.datetime) -> Winners:
    """Find the winners among the live routes of one table."""
    if routes["mirror_address"].null_count < routes.num_rows:
        raise ValueError("the rivals do not know mirrors")
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
    """For each key the route with the lowest id; the routes stand in that order before and after."""
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
