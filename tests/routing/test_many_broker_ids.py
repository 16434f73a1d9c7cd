"""A service that many databases have, each with its own broker id and route."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pyarrow as pa

from ssbroker import Catalog, Router

COUNT = 40_000
ADDRESSES = pa.array([f"TCP://store-{number}" for number in range(COUNT)])
NAMES = pa.array([f"//Store/{number}" for number in range(COUNT)])
ONE_NAME = pa.repeat("//Store", COUNT)
IDS = pa.array([uuid.UUID(int=number).bytes for number in range(COUNT)], pa.binary(16))


def compiled(service_names: Any) -> tuple[Router, float]:
    """Returns the router of a route for each id, and the processor time that compiling it takes."""
    catalog = Catalog(
        pa.table({"name": NAMES, "remote_service_name": service_names, "broker_instance": IDS, "address": ADDRESSES})
    )
    start = time.process_time()
    router = Router(catalog)
    return router, time.process_time() - start


def test_many_ids_of_one_service_compile_about_as_fast_as_many_services() -> None:
    _, many_services = compiled(NAMES)
    router, one_service = compiled(ONE_NAME)
    assert one_service < 10 * many_services + 0.1
    decisions = router.route(pa.table({"to_service_name": ONE_NAME, "to_broker_instance": IDS, "conversation_id": IDS}))
    assert decisions["next_hop_address"].cast(pa.string()).to_pylist() == [
        f"{each}:4022" for each in ADDRESSES.to_pylist()
    ]
