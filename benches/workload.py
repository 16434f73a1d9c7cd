"""Random routing tables and conversations, generated with numpy. Benchmarks and tests share them.

Of the routes, half name a broker id, 45% only a service, and 5% are wildcards. The wildcards share a few addresses, so that they are merged
to a few candidates (R21). A service has one to four broker ids; a fifth of these services also have a route without an id; a quarter of the
services without ids have two routes. Half of the conversations name a broker id; services follow Zipf's law over shuffled ranks; 5% are for
services without a route.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benches.columns import Column, column, fixed, strings

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

NOW: Final = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
"""The time at which the conversations are routed; `expiring` routes expire before or after it."""

BLOCK_ROWS: Final = 65_536
"""Conversations are generated in blocks of this size, each with its own seed, so the first rows do not depend on the count."""

WILDCARD_ADDRESSES: Final = 4
HOSTS_MAX: Final = 5000
FIRST_ROUTE_ID: Final = 65_536

_COMPANIES: Final = ("adatum", "contoso", "fabrikam", "litware", "northwind", "tailspin", "wingtip")
_AREAS: Final = ("Apac", "Emea", "Latam", "North", "South")
_NOUNS: Final = ("Audit", "Claim", "Order", "Stock", "Intake", "Refund", "Ledger")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """The services, and the broker ids of each service `s`: `ids[starts[s]:starts[s] + counts[s]]`."""

    names: Column
    known: int
    starts: Ints
    counts: Ints
    ids: Bytes
    name_only: Ints
    wildcards: int


def routes(count: int, *, seed: int = 1, database: str | None = None, expiring: float = 0.0) -> pa.Table:
    """Returns a routing table in `schemas.ROUTES`; without the column `database` unless it is given.

    Args:
        count: The number of routes; at least 20.
        seed: The random seed.
        database: The database of the routes; None omits the column.
        expiring: The share of routes with a lifetime; half of these have expired at `NOW`.

    Returns:
        The routes in random order, which is not that of their ids.

    Example:
        >>> routes(100).num_rows
        100
    """
    plan = _plan(count, seed)
    rng = np.random.default_rng([seed, 1])
    with_id = len(plan.ids)
    order = rng.permutation(count)
    service = np.concatenate([np.repeat(np.arange(len(plan.counts)), plan.counts), plan.name_only])
    named = order < with_id + len(plan.name_only)
    service = np.where(named, service[np.where(named, order, 0)], 0)
    ids = plan.ids[np.minimum(order, with_id - 1)]
    now = np.datetime64(NOW.replace(tzinfo=None), "us")
    lifetime = now + np.where(rng.random(count) < 0.5, -1, 1) * np.timedelta64(1, "D")
    columns = {
        "name": _join("Route", _digits(np.arange(count))),
        "route_id": column((FIRST_ROUTE_ID + rng.permutation(count)).astype(np.int32)),
        "remote_service_name": plan.names.take(column(service, null=~named)),
        "broker_instance": fixed(ids, valid=order < with_id),
        "lifetime": column(lifetime, null=rng.random(count) >= expiring).cast(pa.timestamp("us", tz="UTC")),
        "address": _addresses(rng, count, wildcard=~named),
        "mirror_address": pa.nulls(count, pa.string()),
    }
    if database is not None:
        columns = {"database": _constant(database, count), **columns}
    return pa.table(columns)


def conversations(
    count: int,
    route_count: int,
    *,
    seed: int = 1,
    database: str | None = None,
    outside: float = 0.0,
    text_guids: bool = False,
    zipf: float = 1.0,
    chunk_rows: int = BLOCK_ROWS,
) -> pa.Table:
    """Returns conversations for the table `routes(route_count, seed=seed)`.

    Args:
        count: The number of conversations.
        route_count: The number of routes.
        seed: The seed of the routing table.
        database: The database in which they started; None omits the column.
        outside: The share of conversations from outside, with a null `database`, which must be given; half of these are replies.
        text_guids: Whether ids are text of 36 characters instead of 16 bytes.
        zipf: The exponent of Zipf's law for services; 0 for a uniform distribution.
        chunk_rows: The number of rows per chunk.

    Returns:
        The conversations in chunks.

    Example:
        >>> conversations(1000, 100).column_names
        ['conversation_id', 'to_service_name', 'to_broker_instance']
    """
    plan = _plan(route_count, seed)
    weights = 1.0 / np.arange(1, plan.known + 1) ** zipf
    edges = np.cumsum(weights) / weights.sum()
    by_rank = np.random.default_rng([seed, 2]).permutation(plan.known)
    batches = []
    for number, start in enumerate(range(0, count, BLOCK_ROWS)):
        rng = np.random.default_rng([seed, 3, number])
        block = _block(rng, plan, edges, by_rank, text_guids=text_guids)
        if database is not None:
            block |= _origin(rng, database, outside)
        batches.append(pa.record_batch(block).slice(0, min(BLOCK_ROWS, count - start)))
    table = pa.Table.from_batches(batches)
    return table if chunk_rows == BLOCK_ROWS else pa.Table.from_batches(table.combine_chunks().to_batches(chunk_rows))


def guid_text(data: Bytes, *, valid: Flags | None = None) -> Column:
    """Converts an array of shape (rows, 16) to a column of GUIDs as text of 36 characters; null where not `valid`."""
    hexadecimal = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.full((len(data), 36), ord("-"), np.uint8)
    at = np.delete(np.arange(36), [8, 13, 18, 23])
    text[:, at[0::2]] = hexadecimal[data >> 4]
    text[:, at[1::2]] = hexadecimal[data & 15]
    valid = np.ones(len(data), np.bool_) if valid is None else valid
    return strings(text[valid], np.cumsum(valid * 36), valid=valid)


@functools.lru_cache(maxsize=2)
def _plan(count: int, seed: int) -> _Plan:
    if count < 20:
        raise ValueError("a table needs at least 20 routes")
    rng = np.random.default_rng([seed, 0])
    with_id, name_only = count // 2, count * 45 // 100
    sizes = rng.integers(1, 5, with_id)
    with_ids = int(np.searchsorted(np.cumsum(sizes), with_id)) + 1
    sizes = sizes[:with_ids]
    sizes[-1] -= sizes.sum() - with_id
    both = with_ids // 5
    alone = np.repeat(np.arange(with_ids, with_ids + name_only), np.where(np.arange(name_only) % 4 == 0, 2, 1))
    alone = alone[: name_only - both]
    known = int(alone[-1]) + 1
    counts = np.zeros(known, np.int64)
    counts[:with_ids] = sizes
    pool = rng.integers(0, 256, (max(4, with_id // 4), 16), np.uint8)
    return _Plan(
        names=_service_names(rng.permutation(known + max(20, known // 20))),
        known=known,
        starts=np.concatenate([[0], np.cumsum(counts)[:-1]]),
        counts=counts,
        ids=pool[rng.integers(0, len(pool), with_id)],
        name_only=np.concatenate([np.arange(both), alone]),
        wildcards=count - with_id - name_only,
    )


def _block(
    rng: np.random.Generator, plan: _Plan, edges: npt.NDArray[np.float64], by_rank: Ints, *, text_guids: bool
) -> dict[str, Column]:
    rows = BLOCK_ROWS
    known = by_rank[np.minimum(np.searchsorted(edges, rng.random(rows)), plan.known - 1)]
    unknown = rng.integers(plan.known, len(plan.names), rows)
    is_known = rng.random(rows) >= 0.05
    count, start = plan.counts[known], plan.starts[known]
    own = (start + (rng.random(rows) * count).astype(np.int64)) % len(plan.ids)
    other = rng.integers(0, len(plan.ids), rows)
    ids = plan.ids[np.where(is_known & (count > 0) & (rng.random(rows) < 0.9), own, other)]
    write = guid_text if text_guids else fixed
    return {
        "conversation_id": write(rng.integers(0, 256, (rows, 16), np.uint8)),
        "to_service_name": plan.names.take(column(np.where(is_known, known, unknown))),
        "to_broker_instance": write(ids, valid=rng.random(rows) < 0.5),
    }


def _origin(rng: np.random.Generator, database: str, outside: float) -> dict[str, Column]:
    is_from_outside = rng.random(BLOCK_ROWS) < outside
    is_reply = is_from_outside & (rng.random(BLOCK_ROWS) < 0.5)
    names = pa.array([database]).take(column(np.zeros(BLOCK_ROWS, np.int64), null=is_from_outside))
    return {"database": names, "is_initiator": column(~is_reply)}


def _service_names(numbers: Ints) -> Column:
    """Returns distinct names such as `//northwind.example/Emea/Order0012345`, of 30 to 40 bytes."""
    company = _pick(_COMPANIES, numbers % len(_COMPANIES))
    area = _pick(_AREAS, numbers // 7 % len(_AREAS))
    noun = _pick(_NOUNS, numbers // 35 % len(_NOUNS))
    return _join("//", company, ".example/", area, "/", noun, _digits(numbers))


def _addresses(rng: np.random.Generator, count: int, *, wildcard: Flags) -> Column:
    """Returns addresses of up to 5000 hosts in three spellings; wildcards have only a few."""
    host = rng.integers(0, min(count, HOSTS_MAX), count)
    name = _join(_pick(("sb", "SB"), rng.integers(0, 2, count)), _digits(host), ".example")
    scheme = _pick(("TCP://", "tcp://"), rng.integers(0, 2, count))
    port = _pick((":4022", "", ":4022/"), rng.integers(0, 3, count))
    hub = _join("TCP://hub", _digits(host % WILDCARD_ADDRESSES), ".example:4023")
    return pc.if_else(column(wildcard), hub, _join(scheme, name, port))


def _digits(numbers: Ints) -> Column:
    return pc.utf8_lpad(pc.cast(column(numbers), pa.string()), 7, "0")


def _pick(values: Sequence[str], at: Ints) -> Column:
    return pa.array(values).take(column(at))


def _constant(value: str, count: int) -> Column:
    return _pick([value], np.zeros(count, np.int64))


def _join(*parts: str | Column) -> Column:
    join: Any = pc.binary_join_element_wise
    return join(*parts, "")
