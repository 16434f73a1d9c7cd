"""What an explanation advises is tried before it is told, on that part of a catalog by which the conversation is decided."""

from __future__ import annotations

import uuid
from datetime import datetime
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core, schemas
from ssbroker.catalog import Catalog
from ssbroker.near_misses import BROKER_CONFIGURATION, mended, needs_forwarding

STUCK: Final = ("DELAYED", "DROPPED")
"""The outcomes of a conversation that is not on its way."""

_MSDB: Final = "msdb"
_BY_NEAR_ROUTES: Final = ("address_unusable", "forwarding_disabled", "no_route", "service_not_found")
_BY_LOCAL: Final = ("forwarding_disabled", "no_route", "routing_loop")


def tried(catalog: Catalog, details: dict[str, Any], now_us: int) -> dict[str, Any]:
    """What would become of a conversation that waits or is dropped.

    Args:
        catalog: The catalog.
        details: What the native router told of the conversation.
        now_us: The moment at which routes expire, in microseconds since 1970.

    Returns:
        `near_routes`, the ids of the routes of the last table that set it on its way once what is near the conversation is made equal to it;
        `if_local`, where it would be looked for if that table had a route to LOCAL; None where it is on its way, or that is no question.
    """
    trial, reason = _Trial(catalog, details, now_us), details["decision"]["reason"]
    stuck = details["decision"]["outcome"] in STUCK
    return {
        "near_routes": trial.near_routes() if stuck and reason in _BY_NEAR_ROUTES else [],
        "if_local": trial.if_local() if stuck and reason in _BY_LOCAL else None,
    }


class _Trial:
    def __init__(self, catalog: Catalog, details: dict[str, Any], now_us: int) -> None:
        self._catalog: Final = catalog
        self._details: Final = details
        self._now_us: Final = now_us
        self._asked: Final[dict[str, Any]] = details["conversation"]
        self._table: Final[dict[str, Any]] = details["passes"][-1]

    def near_routes(self) -> list[int]:
        found: dict[int, bool] = {}
        for step in self._table["steps"]:
            for near in (rejected["route"] for rejected in step["rejected"]):
                if near["route_id"] not in found:
                    found[near["route_id"]] = self._leads_on(near)
        return [route_id for route_id, leads_on in found.items() if leads_on]

    def if_local(self) -> dict[str, Any] | None:
        nothing = dict.fromkeys(("broker_instance", "lifetime", "mirror_address"))
        local = {"route_id": 1, "name": "R", "remote_service_name": self._asked["to_service_name"], "address": "LOCAL"}
        # What came back to this instance is asked as one from outside: its own table has no part in it any more. A reply would read none.
        database = self._asked["database"] if self._table["origin"] == "begun_here" else None
        told = self._told(self._row(nothing | local), database=database, is_initiator=True, forwarding=False)
        located: dict[str, Any] | None = told["passes"][-1]["locate"]
        return located

    def _leads_on(self, near: dict[str, Any]) -> bool:
        changed = mended(self._details, near)
        if changed == near:
            return False
        others: Any = self._routes
        same = pc.and_(
            pc.equal(others["database"], self._table["database"]), pc.equal(others["route_id"], near["route_id"])
        )
        told = self._told(
            pa.concat_tables([others.filter(pc.invert(same)), self._row(changed)]),
            database=self._asked["database"],
            is_initiator=self._asked["is_initiator"],
            forwarding=self._details["message_forwarding"] or needs_forwarding(self._details, self._table, near),
        )
        # Where the dynamic routing service can be asked, it makes the route.
        return told["decision"]["outcome"] not in STUCK or told["decision"]["reason"] == "route_requested"

    @cached_property
    def _routes(self) -> pa.Table:
        """The routes that have a say in it: those for every service, for this one, and for the dynamic routing service."""
        every: Any = self._catalog.native.routes()
        names, databases = every["remote_service_name"], every["database"]
        services = pa.array([self._asked["to_service_name"], BROKER_CONFIGURATION], names.type)
        tables = pa.array({_MSDB, self._asked["database"] or _MSDB}, databases.type)
        has_say = pc.or_(pc.is_null(names), pc.is_in(names, value_set=services))
        return pa.Table.from_batches([every.filter(pc.and_(has_say, pc.is_in(databases, value_set=tables)))])

    @cached_property
    def _services(self) -> pa.RecordBatch:
        every: Any = self._catalog.native.services()
        found: pa.RecordBatch = every.filter(pc.equal(every["name"], self._asked["to_service_name"]))
        return found

    def _row(self, route: dict[str, Any]) -> pa.Table:
        broker, lifetime = route["broker_instance"], route["lifetime"]
        row = route | {
            "database": self._table["database"],
            "broker_instance": None if broker is None else uuid.UUID(broker).bytes,
            "lifetime": None if lifetime is None else datetime.fromisoformat(lifetime),
        }
        return pa.Table.from_pylist([row], schema=schemas.ROUTES)

    def _told(self, routes: pa.Table, *, database: str | None, is_initiator: bool, forwarding: bool) -> dict[str, Any]:
        """What the native router tells of the conversation by these routes."""
        part = Catalog(
            routes,
            self._catalog.native.databases(),
            self._services,
            addresses=self._catalog.addresses,
            message_forwarding=forwarding,
            pending_requests=self._catalog.pending_requests,
        )
        router = _core.Router(
            part.native, tie_break=self._details["tie_break"], pending_request=self._details["pending_request"]
        )
        ids = [self._asked[name] for name in ("to_broker_instance", "conversation_id")]
        broker, conversation = (None if told is None else uuid.UUID(told).bytes for told in ids)
        return router.explain(
            self._asked["to_service_name"], broker, database, is_initiator, conversation, self._now_us
        )
