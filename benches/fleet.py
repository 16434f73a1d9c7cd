"""A random fleet of any size: instances with routes to each other, some through hubs, some duplicated, some in loops."""

from __future__ import annotations

import random
import uuid
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker import Catalog
from ssbroker.diagnose import Fleet

HUBS: Final = 10


class FleetSize(NamedTuple):
    """The size of a fleet."""

    instances: int
    routes: int
    """The number of routes per instance."""
    services: int
    """The total number of services."""


SHORT: Final = FleetSize(50, 200, 500)
FULL: Final = FleetSize(1_000, 1_000, 10_000)
_NAMES: Final = ("database", "name", "remote_service_name", "broker_instance", "address")


def service(number: int) -> str:
    """Returns the name of a service."""
    return f"//fleet.example/Department{number % 97}/Service{number}"


def fleet(size: FleetSize, *, seed: int = 7) -> Fleet:
    """Returns a fleet. Half of the routes are for messages from outside; services are distributed round robin.

    Messages without a route go to one of ten hubs, which have routes to some services and pass the rest to the next hub, so there are loops.
    """
    source = random.Random(seed)
    return Fleet({f"I{number:04}": _instance(number, source, *size) for number in range(size.instances)})


def _instance(number: int, source: random.Random, instances: int, routes: int, services: int) -> Catalog:
    rows: list[tuple[str, str, str | None, bytes | None, str]] = [("msdb", "Local", None, None, "LOCAL")]
    hub = number % HUBS
    if number >= HUBS:
        rows.append(("Work", "Hub", None, None, _address(hub)))
    else:
        rows.append(("msdb", "Next hub", None, None, _address((hub + 1) % HUBS)))
    for count in range(routes - len(rows)):
        wanted = source.randrange(services)
        to = wanted % instances
        if source.random() < 0.05:  # a second route, or a wrong one
            to = source.randrange(instances)
        broker = _broker(to).bytes if source.random() < 0.2 else None
        address = "LOCAL" if to == number else _address(to)
        rows.append((("Work", "msdb")[count % 2], f"R{count}", service(wanted), broker, address))
    columns: dict[str, Any] = {name: [row[place] for row in rows] for place, name in enumerate(_NAMES)}
    own = [service(each) for each in range(number, services, instances)]
    return Catalog(
        pa.table(
            columns
            | {
                "remote_service_name": pa.array(columns["remote_service_name"], pa.string()),
                "broker_instance": pa.array(columns["broker_instance"], pa.binary(16)),
                "lifetime": pa.nulls(len(rows), pa.timestamp("us", "UTC")),
                "mirror_address": pa.nulls(len(rows), pa.string()),
            }
        ),
        pa.table(
            {
                "name": ["Work"],
                "service_broker_guid": pa.array([_broker(number).bytes], pa.binary(16)),
                "is_broker_enabled": [True],
            }
        ),
        pa.table({"database": pa.array(["Work"] * len(own), pa.string()), "name": pa.array(own, pa.string())}),
        addresses=[_address(number)],
        message_forwarding=number < HUBS,
    )


def _address(number: int) -> str:
    return f"TCP://i{number:04}.fleet.example:4022"


def _broker(number: int) -> uuid.UUID:
    return uuid.UUID(int=0xF1EE7 << 64 | number)
