"""The catalog and traffic of a whole instance, generated with numpy: every outcome, in realistic shares.

Six databases, one of them disabled. Of the routes, 60% have a network address, of which an eighth have a mirror; 25% are LOCAL to services
that one, three or no database has; 10% name one of several broker ids; 5% expire, half of them before `NOW`. `Shipping` takes next hops from
names, `Billing` has a wildcard, and messages for a tenth of the services of `Warehouse` are routed to an address of this instance. Of the
conversations, a fifth come from other instances, a third of these are replies; ids are text.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benches.columns import Column, column
from benches.workload import NOW, guid_text
from ssbroker import Catalog

DATABASES: Final = ("Sales", "Billing", "Warehouse", "Shipping", "Archive", "msdb")
OWN_ADDRESS: Final = "TCP://this.example:4022"
HOSTS_MAX: Final = 3000
SEED: Final = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """A catalog and what its conversations name."""

    catalog: Catalog
    routes: pa.Table
    database_ids: np.ndarray[Any, np.dtype[np.uint8]]


def _names(numbers: np.ndarray[Any, np.dtype[np.int64]], prefix: str = "//example.com/Service/") -> Column:
    join: Any = pc.binary_join_element_wise
    digits: Any = pc.utf8_lpad(pc.cast(column(numbers), pa.string()), 9, "0")
    return join(pa.scalar(prefix), digits, "")


@functools.lru_cache(maxsize=2)
def instance(count: int) -> Instance:
    """Returns an instance with `count` routes.

    Example:
        >>> instance(100).catalog.routes.num_rows
        100
    """
    rng = np.random.default_rng([SEED, count])
    kind = rng.random(count)
    is_local, by_id = (kind >= 0.60) & (kind < 0.85), (kind >= 0.85) & (kind < 0.95)
    # Three routes with different broker ids share a service.
    service = np.where(by_id, np.arange(count) // 3 * 3, np.arange(count))
    database = service % len(DATABASES)
    ids = rng.integers(0, 256, (count, 16), np.uint8)
    address = _names(rng.integers(0, min(count, HOSTS_MAX), count), "TCP://host")
    address = pc.if_else(column(is_local), "LOCAL", address)
    is_own = ~is_local & (database == 2) & (rng.random(count) < 0.1)
    address = pc.if_else(column(is_own), OWN_ADDRESS, address)
    named = _names(service)
    # The first routes of two databases are for all services.
    wildcard = np.zeros(count, np.bool_)
    wildcard[[1, 3]] = True
    address = pc.if_else(column(np.arange(count) == 3), "TRANSPORT", address)
    named = pc.if_else(column(wildcard), pa.scalar(None, pa.string()), named)
    now = np.datetime64(NOW.replace(tzinfo=None), "us")
    lifetime = now + np.where(rng.random(count) < 0.5, -1, 1) * np.timedelta64(1, "D")
    mirrored = (kind < 0.60) & (rng.random(count) < 0.125) & ~wildcard
    mirror = _names(rng.integers(0, HOSTS_MAX, count), "TCP://mirror")
    routes = pa.table(
        {
            "database": pa.array(DATABASES).take(column(database)),
            "name": _names(np.arange(count), "Route"),
            "route_id": column(np.arange(count).astype(np.int32)),
            "remote_service_name": named,
            "broker_instance": guid_text(ids, valid=by_id & ~wildcard),
            "lifetime": column(lifetime, null=(rng.random(count) >= 0.05) | wildcard).cast(
                pa.timestamp("us", tz="UTC")
            ),
            "address": address,
            "mirror_address": pc.if_else(column(mirrored), mirror, pa.scalar(None, pa.string())),
        }
    )
    database_ids = rng.integers(0, 256, (len(DATABASES), 16), np.uint8)
    databases = pa.table(
        {
            "name": list(DATABASES),
            "service_broker_guid": guid_text(database_ids),
            "is_broker_enabled": [name != "Archive" for name in DATABASES],
        }
    )
    copies = rng.integers(0, 3, count)
    hosted = [service[is_local & (copies > 0)], *(service[is_local & (copies == 2)] for _ in range(2))]
    services = pa.concat_tables(
        pa.table({"database": pa.array(DATABASES).take(column((names + 1 + turn) % 4)), "name": _names(names)})
        for turn, names in enumerate(hosted)
    )
    catalog = Catalog(routes, databases, services, addresses=(OWN_ADDRESS,), message_forwarding=True)
    return Instance(catalog=catalog, routes=routes, database_ids=database_ids)


def conversations(count: int, route_count: int) -> pa.Table:
    """Returns conversations for `instance(route_count)`.

    Example:
        >>> conversations(1000, 100).num_rows
        1000
    """
    found = instance(route_count)
    rng = np.random.default_rng([SEED, route_count, 1])
    rank = (np.minimum(rng.pareto(1.0, count) * 30, route_count - 1)).astype(np.int64) % route_count
    route = rng.permutation(route_count)[rank]
    outside = rng.random(count) < 0.2
    reply = outside & (rng.random(count) < 0.33)
    # Messages from other instances are for the routes of `msdb`.
    route = np.where(outside & ~reply, np.minimum(route // 6 * 6 + 5, route_count - 1), route)
    named = found.routes["remote_service_name"].combine_chunks().take(column(route))
    others = rng.random(count)
    named = pc.coalesce(named, _names(route, "tcp://carrier.example:4100/"))
    named = pc.if_else(column(others < 0.03), _names(rng.integers(0, 50, count), "//nobody.example/Service"), named)
    database = found.routes["database"].combine_chunks().take(column(route))
    ids = found.routes["broker_instance"].combine_chunks().take(column(route))
    replied = guid_text(found.database_ids[rng.integers(0, 4, count)])
    ids = pc.if_else(
        column(reply), replied, pc.if_else(column(rng.random(count) < 0.7), ids, pa.scalar(None, pa.string()))
    )
    return pa.table(
        {
            "conversation_id": guid_text(rng.integers(0, 256, (count, 16), np.uint8)),
            "database": pc.if_else(column(outside), pa.scalar(None, pa.string()), database),
            "to_service_name": named,
            "to_broker_instance": ids,
            "is_initiator": column(~reply),
        }
    )
