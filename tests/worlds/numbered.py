"""Catalogs with other routes, and catalogs whose decisions can be packed into numbers.

Those have no mirrors and no next hops in service names.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import Catalog


def numbered(catalog: Catalog) -> Catalog:
    """Returns the catalog without mirrors, and with addresses instead of TRANSPORT."""
    routes = catalog.routes
    compute: Any = pc  # its stubs are incomplete
    is_transport = compute.equal(compute.utf8_upper(routes["address"]), "TRANSPORT")
    address = compute.if_else(is_transport, "TCP://relay", routes["address"])
    changed: dict[str, Any] = {"address": address, "mirror_address": pa.nulls(routes.num_rows, pa.string())}
    for name, column in changed.items():
        routes = routes.set_column(routes.schema.get_field_index(name), routes.schema.field(name), column)
    return rerouted(catalog, routes)


def rerouted(catalog: Catalog, routes: pa.Table) -> Catalog:
    """Returns the catalog with other routes."""
    return Catalog(
        routes,
        catalog.databases,
        catalog.services,
        addresses=catalog.addresses,
        message_forwarding=catalog.message_forwarding,
        pending_requests=catalog.pending_requests,
    )


def hosts(count: int) -> Catalog:
    """Returns one route for each of several services: `//s0` to `TCP://host-000.example:4022`, and so on."""
    routes = {
        "name": [f"r{number}" for number in range(count)],
        "remote_service_name": [f"//s{number}" for number in range(count)],
        "broker_instance": pa.nulls(count, pa.binary(16)),
        "lifetime": pa.nulls(count, pa.timestamp("us")),
        "address": [f"TCP://host-{number:03}.example:4022" for number in range(count)],
        "mirror_address": pa.nulls(count, pa.string()),
    }
    return Catalog(pa.table(routes))
