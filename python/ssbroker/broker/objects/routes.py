"""Routes: what may be made, changed and dropped, as CREATE ROUTE and ALTER ROUTE have it (facts 39 to 53)."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Final

from ssbroker import moment
from ssbroker.broker.objects.names import check_object_name
from ssbroker.broker.objects.refusals import existing, refusal, refuse_taken
from ssbroker.ddl.routes import check
from ssbroker.ddl.source import RefusalError
from ssbroker.ddl.statements import Clauses
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects, Route
from ssbroker.store.sqlite import Connection

_TEXTS: Final = ("service_name", "broker_instance", "address", "mirror_address")


def create_route(connection: Connection, objects: Objects, *, name: str, clauses: Clauses, now: datetime) -> None:
    """Makes a route; its lifetime counts from `now`."""
    check_object_name(name)
    refuse_taken(objects.routes, name, kind="route")
    changes.create_route(connection, values={"name": name, **_values(clauses, None, now)})


def alter_route(connection: Connection, objects: Objects, *, name: str, clauses: Clauses, now: datetime) -> None:
    """Changes what is named of a route; the rest stays (fact 40)."""
    route = existing(objects.routes, name, kind="route")
    said = {field: value for field in _TEXTS if (value := getattr(clauses, field)) is not None}
    whole = Clauses(**{**_texts(route), **said}, lifetime=clauses.lifetime)
    changes.alter(connection, "ssb_routes", route.route_id, _values(whole, route.lifetime, now))


def annotate(
    connection: Connection, objects: Objects, *, name: str, lifetime: int | None, route_id: int | None
) -> None:
    """Gives a route an exact moment of expiry and an id, where they are said; `objects` sees the route, be it new."""
    number = objects.routes[name].route_id
    if route_id is not None and route_id != number and changes.has_route(connection, route_id=route_id):
        raise refusal(f"the database has a route with the id {route_id}")
    said: dict[str, Value] = {"lifetime": lifetime, "route_id": route_id}
    changes.alter(connection, "ssb_routes", number, {key: value for key, value in said.items() if value is not None})


def drop_route(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a route; what it led waits in the transmission queue until another leads it (fact 41)."""
    changes.drop(connection, "ssb_routes", existing(objects.routes, name, kind="route").route_id)


def _values(clauses: Clauses, lifetime: int | None, now: datetime) -> dict[str, Value]:
    try:
        guid = check(clauses)
        if clauses.lifetime is not None:
            lifetime = moment.microseconds(now + timedelta(seconds=clauses.lifetime))
    except RefusalError as refused:
        raise refusal(refused.reason, refused.number) from None
    except OverflowError:
        raise refusal(f"LIFETIME = {clauses.lifetime} reaches beyond the year 9999", 9746) from None
    return {
        "remote_service_name": clauses.service_name,
        "broker_instance": guid,
        "lifetime": lifetime,
        "address": clauses.address,
        "mirror_address": clauses.mirror_address,
    }


def _texts(route: Route) -> dict[str, str | None]:
    guid = route.broker_instance
    return {
        "service_name": route.remote_service_name,
        "broker_instance": None if guid is None else str(uuid.UUID(bytes=guid)),
        "address": route.address,
        "mirror_address": route.mirror_address,
    }
