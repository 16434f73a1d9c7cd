"""Routing with so many databases that names without a route have no entry of their own in the decision table."""

from __future__ import annotations

import pyarrow as pa

from ssbroker import Catalog, Router
from tests.routing.conversations import NOW, conversations, routes

DATABASES = 40_000
SERVICES = 10
WITH_ROUTES = 10_000
"""The first databases, and these alone, have a route for all services."""


def test_unknown_services_use_the_routing_table_of_their_database() -> None:
    names = [f"D{number}" for number in range(DATABASES)]
    catalog = Catalog(
        routes(*({"database": name, "name": "All", "address": "TCP://all"} for name in names[:WITH_ROUTES])),
        pa.table({"name": names}),
        pa.table({"database": ["D0"] * SERVICES, "name": [f"//Service/{number}" for number in range(SERVICES)]}),
    )
    router = Router(catalog, tie_break="first")
    found = {}
    for number in range(500, DATABASES, 500):
        decisions = router.route(conversations(["//Nobody"], database=names[number]), now=NOW)
        found[number] = decisions["next_hop_address"].to_pylist()[0]
    assert found == {number: "TCP://all:4022" if number < WITH_ROUTES else None for number in found}
