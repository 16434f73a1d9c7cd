"""Details of several conversations, as the native router returns them."""

from __future__ import annotations

from typing import Any, Final

ORDERS_ID: Final = "11111111-1111-1111-1111-111111111111"
STALE_ID: Final = "22222222-2222-2222-2222-222222222222"

_NOTES: Final = {
    1: "the conversation names no broker id",
    2: "no live route has exactly this service name and no broker id",
    3: "no live route has exactly this service name and a broker id",
    4: "there is no live route to the configuration service",
    5: "no live route omits both service name and broker id",
    6: "the conversation names no broker id",
    7: "no step found a route",
}


def route(route_id: int | None, name: str | None, address: str, **others: Any) -> dict[str, Any]:
    found = {"route_id": route_id, "name": name, "remote_service_name": None, "broker_instance": None, "lifetime": None}
    return found | {"address": address, "mirror_address": None} | others


def step(number: int, note: str | None = None, *, tried: bool = True, **others: Any) -> dict[str, Any]:
    values = {"step": number, "rule": f"R{number + 10}", "tried": tried, "note": note or _NOTES[number]}
    empty = {
        "matched": [],
        "rejected": [],
        "rejected_count": 0,
        "candidate_broker_ids": [],
        "picked_broker_id": None,
        "hosts": [],
    }
    return values | empty | others


def rejected(*routes: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return {"rejected": [{"route": found, "why": why} for found, why in routes], "rejected_count": len(routes)}


def group(name: str, *routes: dict[str, Any], unusable: str | None = None, picked: int | None = None) -> dict[str, Any]:
    return {
        "class": name,
        "routes": list(routes),
        "usable": [] if unusable else [found["route_id"] for found in routes],
        "unusable": [{"route": found, "why": unusable} for found in routes] if unusable else [],
        "picked": None if picked is None else routes[picked],
    }


def table(database: str, origin: str, result: str, **others: Any) -> dict[str, Any]:
    values = {
        "database": database,
        "origin": origin,
        "sender_disabled": False,
        "id_enabled_in": None,
        "reply": None,
        "route_count": 0,
        "expired_count": 0,
    }
    return values | {"steps": [], "classes": [], "locate": None, "next_hop": None, "result": result} | others


def explained(
    conversation: dict[str, Any], tables: list[dict[str, Any]], decision: dict[str, Any], **others: Any
) -> dict[str, Any]:
    defaults = {
        "to_service_name": "//Contoso/Orders",
        "to_broker_instance": None,
        "database": "Sales",
        "is_initiator": True,
    }
    columns = dict.fromkeys(
        ("match_step", "route_id", "next_hop_address", "mirror_address", "target_database", "broker_instance")
    )
    return {
        "conversation": defaults | {"conversation_id": None} | conversation,
        "now": "2026-11-20T21:00:00Z",
        "tie_break": "hash",
        "pending_request": "continue",
        "message_forwarding": False,
        "passes": tables,
        "picks_undetermined": False,
        "similar_names": [],
        "unknown_broker_ids": [],
        "similar_routes": [
            found["route"]["route_id"] for table in tables for step in table["steps"] for found in step["rejected"]
        ],
        "located_if_local": None,
        "decision": columns | decision,
    } | others


def _remote() -> dict[str, Any]:
    found = route(65537, "Orders", "TCP://orders", remote_service_name="//Contoso/Orders", broker_instance=ORDERS_ID)
    other = route(
        65538, "OrdersCopy", "TCP://copy:4022", remote_service_name="//Contoso/Orders", broker_instance=STALE_ID
    )
    first = step(1, "found", matched=[found], **rejected((other, "other_broker_id")))
    sales = table(
        "Sales",
        "begun_here",
        "send",
        route_count=3,
        steps=[first],
        classes=[group("mirror"), group("local"), group("network", found, picked=0)],
        next_hop={"address": "TCP://orders:4022", "is_this_instance": False},
    )
    decision = {
        "outcome": "REMOTE",
        "match_step": 1,
        "route_id": 65537,
        "next_hop_address": "TCP://orders:4022",
        "broker_instance": ORDERS_ID,
        "reason": "matched",
    }
    return explained({"to_broker_instance": ORDERS_ID}, [sales], decision)


def _delayed() -> dict[str, Any]:
    name = "//Contoso/Orders"
    old = route(65537, "Old orders", "TCP://old:4022", remote_service_name=name, lifetime="2026-11-01T00:00:00Z")
    near = route(65538, "Orders", "TCP://orders:4022", remote_service_name="//contoso/Orders")
    steps = [
        step(1, tried=False),
        step(2, **rejected((old, "expired"), (near, "name_differs_in_case"))),
        *(step(number) for number in (3, 4, 5)),
        step(6, tried=False),
        step(7),
    ]
    sales = table("Sales", "begun_here", "delayed", route_count=3, expired_count=1, steps=steps)
    return explained({}, [sales], {"outcome": "DELAYED", "match_step": 7, "reason": "no_route"})


def _located() -> dict[str, Any]:
    wildcard = route(65536, "AutoCreatedLocal", "LOCAL")
    databases = [
        {
            "name": "Archive",
            "broker_instance": None,
            "is_broker_enabled": False,
            "has_service": True,
            "id_enabled_in": None,
        },
        {
            "name": "Orders",
            "broker_instance": ORDERS_ID,
            "is_broker_enabled": True,
            "has_service": True,
            "id_enabled_in": None,
        },
    ]
    sales = table(
        "Sales",
        "begun_here",
        "local",
        route_count=1,
        steps=[
            step(1, tried=False),
            step(2),
            step(3),
            step(4),
            step(5, "found", matched=[wildcard]),
        ],
        classes=[group("mirror"), group("local", wildcard, picked=0)],
        locate={
            "rule": "R32",
            "broker_instance": None,
            "databases": databases,
            "candidates": ["Orders"],
            "picked": "Orders",
        },
    )
    decision = {
        "outcome": "LOCAL",
        "match_step": 5,
        "route_id": 65536,
        "target_database": "Orders",
        "broker_instance": ORDERS_ID,
        "reason": "matched",
    }
    return explained({}, [sales], decision)


def _shared() -> dict[str, Any]:
    name = "//Contoso/Orders"
    routes = [route(65536 + n, f"Orders{n}", f"TCP://orders{n}:4022", remote_service_name=name) for n in (1, 2, 3)]
    sales = table(
        "Sales",
        "begun_here",
        "send",
        route_count=4,
        steps=[
            step(1, tried=False),
            step(2, "found", matched=routes),
        ],
        classes=[group("mirror"), group("local"), group("network", *routes, picked=0)],
        next_hop={"address": "TCP://orders1:4022", "is_this_instance": False},
    )
    decision = {"outcome": "REMOTE", "match_step": 2, "route_id": 65537, "next_hop_address": "TCP://orders1:4022"}
    return explained({}, [sales], decision | {"reason": "matched"}, picks_undetermined=True)


def _dropped() -> dict[str, Any]:
    here = route(65537, "ToMyself", "tcp://ME/", remote_service_name="//Contoso/Orders")
    away = route(65540, "Hub", "TCP://hub:4022")
    sales = table(
        "Sales",
        "begun_here",
        "re_enter",
        route_count=2,
        steps=[step(1, tried=False), step(2, "found", matched=[here])],
        classes=[group("mirror"), group("local"), group("network", here, picked=0)],
        next_hop={"address": "TCP://me:4022", "is_this_instance": True},
    )
    msdb = table(
        "msdb",
        "re_entered",
        "dropped",
        route_count=1,
        steps=[
            step(1, tried=False),
            step(2),
            step(3),
            step(4),
            step(5, "found", matched=[away]),
        ],
        classes=[group("mirror"), group("local"), group("network", away, picked=0)],
    )
    return explained(
        {}, [sales, msdb], {"outcome": "DROPPED", "match_step": 5, "route_id": 65540, "reason": "forwarding_disabled"}
    )


def _mirrored() -> dict[str, Any]:
    name = "//Contoso/Orders"
    mirrored = route(
        65539,
        "Mirrored orders of the warehouse in the north",
        "TCP://principal.warehouse.north.contoso.example:4022",
        remote_service_name=name,
        broker_instance=ORDERS_ID,
        mirror_address="TCP://mirror.warehouse.north.contoso.example:4022",
    )
    first = step(1, "found", matched=[mirrored])
    msdb = table(
        "msdb",
        "from_outside",
        "forward",
        reply={"databases": [], "applies": False},
        route_count=1,
        steps=[first],
        classes=[group("mirror", mirrored, picked=0)],
        next_hop={"address": "TCP://principal.warehouse.north.contoso.example:4022", "is_this_instance": False},
    )
    decision = {
        "outcome": "FORWARD",
        "match_step": 1,
        "route_id": 65539,
        "next_hop_address": "TCP://principal.warehouse.north.contoso.example:4022",
        "mirror_address": "TCP://mirror.warehouse.north.contoso.example:4022",
        "broker_instance": ORDERS_ID,
        "reason": "matched",
    }
    conversation = {"database": None, "is_initiator": False, "to_broker_instance": ORDERS_ID}
    return explained(conversation, [msdb], decision, message_forwarding=True)


def _reply_refused() -> dict[str, Any]:
    database = {
        "name": "Orders",
        "broker_instance": ORDERS_ID,
        "is_broker_enabled": False,
        "has_service": True,
        "id_enabled_in": None,
    }
    msdb = table("msdb", "from_outside", "dropped", route_count=4, reply={"databases": [database], "applies": True})
    decision = {"outcome": "DROPPED", "match_step": 0, "broker_instance": ORDERS_ID, "reason": "service_not_found"}
    conversation = {
        "database": None,
        "is_initiator": False,
        "to_broker_instance": ORDERS_ID,
        "conversation_id": STALE_ID,
    }
    return explained(conversation, [msdb], decision)


def _sender_disabled() -> dict[str, Any]:
    sales = table("Sales", "begun_here", "delayed", sender_disabled=True, route_count=2)
    return explained({}, [sales], {"outcome": "DELAYED", "reason": "sender_disabled"})


SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "remote by service name and broker id": _remote(),
    "delayed by an expired route and a name in another case": _delayed(),
    "a route to LOCAL for every service": _located(),
    "three copies share the load": _shared(),
    "re-entry to msdb while forwarding is off": _dropped(),
    "a reply is forwarded over a mirrored route": _mirrored(),
    "a reply whose database is disabled": _reply_refused(),
    "the database of the sender is disabled": _sender_disabled(),
}
