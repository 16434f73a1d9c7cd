"""What to do about a conversation that is delayed or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ssbroker.hosting import Advice, created, enable, enabled_elsewhere, enabled_hosts, taken
from ssbroker.near_misses import changes, needs_forwarding
from ssbroker.wording import bracketed, literal, quoted, route_name

__all__ = ["Advice", "advice"]

_NEAR_MISSES: Final = {
    ("expired",): "Prolong {route}",
    (
        "name_differs_in_case",
        "name_differs_in_white_space",
        "name_differs_in_unicode_form",
    ): "If {route} means this service, spell the name in one way, here and where the service is made",
    (
        "other_broker_id",
    ): "If the database behind {route} has a new broker id (service_broker_guid in its sys.databases)",
}
"""What to do about a route, by why it did not match."""
_BY_ID: Final = 1
"""The step that asks for the service name and the broker id (R11)."""
_FORWARD: Final = "ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"
_NAMED_MAX: Final = 3


def advice(details: dict[str, Any]) -> list[Advice]:
    """What can be done, the likeliest first; nothing where the conversation is on its way.

    Args:
        details: What the native router told.

    Returns:
        The advice.

    Examples:
        >>> decision = {"outcome": "DELAYED", "reason": "sender_disabled"}
        >>> conversation = {"to_service_name": "//Orders", "database": "Sales"}
        >>> advice({"decision": decision, "conversation": conversation, "passes": [{"database": "Sales"}]})[0].command
        'ALTER DATABASE [Sales] SET ENABLE_BROKER;'
    """
    if details["decision"]["outcome"] not in ("DELAYED", "DROPPED"):
        return []
    return list(_BY_REASON[details["decision"]["reason"]](details, details["passes"][-1]))


def _no_route(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    yield from _near_services(details)
    yield _way_out(details, table, "If the service is in another instance, create a route to it")
    yield from _to_local(
        details,
        "If it is in this instance, create a route to LOCAL",
        _create_route(details, table["database"], address="LOCAL"),
    )


def _to_local(details: dict[str, Any], sentence: str, command: str) -> Iterator[Advice]:
    """How a route comes to lead to LOCAL, and what else is in the way of a database that has the service."""
    local = details["if_local"] or {"databases": [], "candidates": []}
    if local["candidates"] or not any(database["has_service"] for database in local["databases"]):
        yield Advice(f"{sentence}:", command)
        return
    further = list(enabled_hosts(details, local["databases"], local["broker_instance"]))
    for each in further:
        yield Advice(f"{sentence}. {each.sentence}", f"{command} {each.command}")
    if not further:
        yield from taken(details, local["databases"], local["broker_instance"])


def _near_misses(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    """What to do about the routes that would have matched but for one thing, where that sets the conversation on its way."""
    near = set(details["near_routes"])
    rejected = [(found["why"], found["route"]) for step in table["steps"] for found in step["rejected"]]
    for reasons, told in _NEAR_MISSES.items():
        for route in _once(route for why, route in rejected if why in reasons and route["route_id"] in near):
            changed = changes(details, route)
            further = ", in seconds from now" if changed[-1].startswith("LIFETIME") and len(changed) == 1 else ""
            sentence = told.format(route=route_name(route)) + further
            command = (
                f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(route['name'])} WITH {', '.join(changed)};"
            )
            if needs_forwarding(details, table, route):
                sentence, command = f"{sentence}, and let this instance pass messages on", f"{command} {_FORWARD}"
            yield Advice(f"{sentence}:", command)


def _near_services(details: dict[str, Any]) -> Iterator[Advice]:
    """Names that are on their way from where this one began."""
    for name in details.get("near_names", ()):
        yield Advice(
            f"If {quoted(name)} is meant, begin the conversation with the name as it is spelt there:",
            f"BEGIN DIALOG ... TO SERVICE {literal(name)};",
        )


def _way_out(details: dict[str, Any], table: dict[str, Any], sentence: str) -> Advice:
    command = _create_route(details, table["database"])
    if needs_forwarding(details, table):
        return Advice(f"{sentence}, and let this instance pass messages on:", f"{command} {_FORWARD}")
    return Advice(f"{sentence}:", command)


def _route_requested(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield Advice(
        "Routing information is asked of the service SQL/ServiceBroker/BrokerConfiguration. Look whether it runs, creates a "
        f"route in {quoted(table['database'])} and ends its dialog with END CONVERSATION; the conversation is matched again then."
    )


def _service_not_found(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    yield from _near_services(details)
    looked_at = table["locate"] or table["reply"] or {"databases": []}
    wanted = details["conversation"]["to_broker_instance"] if table["reply"] else None
    wanted = looked_at.get("broker_instance", wanted)
    databases: list[dict[str, Any]] = looked_at["databases"]
    hosts = [database for database in databases if database["has_service"]]
    yield from taken(details, databases, wanted)
    holders = [database for database in databases if wanted is not None and database["broker_instance"] == wanted]
    if holders:
        # The enabled one comes first: at most one is (I7).
        holder = max(holders, key=lambda database: database["is_broker_enabled"])
        if not holder["has_service"]:
            yield from created(details, holder)
    elif wanted is not None:
        yield Advice(
            f"No database of this instance has the broker id {wanted}, so a route to LOCAL leads nowhere: end the conversation "
            "and begin it anew, or correct the id or the address of the route."
        )
    elif not hosts:
        yield from created(details, None)
    if table["locate"] is not None:
        yield _way_out(
            details,
            table,
            "If it is in another instance, create a route to it, which goes before one to LOCAL for every service",
        )


def _sender_disabled(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    sender = {"name": table["database"], "id_enabled_in": table.get("id_enabled_in")}
    if sender["id_enabled_in"] is None:
        yield Advice(f"Enable message delivery in {quoted(table['database'])}:", enable(table["database"]))
    else:
        yield from enabled_elsewhere(details, sender, None)


def _forwarding_disabled(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    picked = _picked(table)
    if table["next_hop"] is None or not table["next_hop"]["is_this_instance"]:
        yield Advice("If this instance is to pass messages on:", _FORWARD)
    elif _is_transport(picked):
        yield Advice(
            f"{_leads_back(table, picked)}: with MESSAGE_FORWARDING enabled the message is dropped as a loop. Create a route to the "
            "next instance on the way, and enable it then:",
            f"{_create_route(details, table['database'])} {_FORWARD}",
        )
    else:
        yield Advice(
            f"{_leads_back(table, picked)}: with MESSAGE_FORWARDING enabled the message is dropped as a loop. Give the route the "
            "address of the next instance on the way, and enable it then:",
            f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(picked['name'])} WITH "
            f"ADDRESS = N'TCP://<host>:4022'; {_FORWARD}",
        )
    if _stands_before_local(picked):
        yield from _dropped_for_local(details, table, "If the service is in this instance")
    else:
        yield from _to_local(
            details,
            "If the service is in this instance, create a route to it in msdb, where what arrives is routed",
            _create_route(details, table["database"], address="LOCAL"),
        )


def _picked(table: dict[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(("route_id", "name", "address", "mirror_address", "remote_service_name"))
    return next((group["picked"] for group in table["classes"] if group["picked"] is not None), nothing)


def _is_transport(route: dict[str, Any]) -> bool:
    """Whether it leads each service elsewhere: another address would lead all of them astray."""
    return str(route["address"]).upper() == "TRANSPORT"


def _leads_back(table: dict[str, Any], route: dict[str, Any]) -> str:
    return f"In {quoted(table['database'])}, {route_name(route)} leads back to this instance"


def _stands_before_local(route: dict[str, Any]) -> bool:
    """Whether it goes before a route to LOCAL of this service, and cannot be one (R22): CREATE ROUTE and ALTER ROUTE refuse a mirror beside LOCAL."""
    return route["mirror_address"] is not None and route["remote_service_name"] is not None


def _dropped_for_local(details: dict[str, Any], table: dict[str, Any], sentence: str) -> Iterator[Advice]:
    mirrored = [route for route in table["steps"][-1]["matched"] if route["mirror_address"] is not None]
    drops = " ".join(f"DROP ROUTE {bracketed(route['name'])};" for route in mirrored)
    names = ", ".join(route_name(route) for route in mirrored)
    goes = "goes" if len(mirrored) == 1 else "go"
    command = _create_route(details, table["database"], address="LOCAL")
    yield from _to_local(
        details,
        f"{sentence}, drop {names}, which {goes} before any to LOCAL, and create a route in {table['database']}, where what arrives "
        "is routed",
        f"USE {bracketed(table['database'])}; {drops} {command}",
    )


def _routing_loop(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    picked = _picked(table)
    if picked["route_id"] is None:
        return
    back = f"{_leads_back(table, picked)}. If the service is here"
    if _stands_before_local(picked):
        yield from _dropped_for_local(details, table, back)
    elif _is_transport(picked):
        create = _create_route(details, table["database"], address="LOCAL")
        yield from _to_local(details, f"{back}, create a route to LOCAL", create)
        yield _way_out(details, table, "Otherwise create one to the next instance on the way")
        return
    else:
        alter = f"ALTER ROUTE {bracketed(picked['name'])} WITH ADDRESS = N'LOCAL';"
        yield from _to_local(
            details, f"{back}, give it the address LOCAL", f"USE {bracketed(table['database'])}; {alter}"
        )
    yield Advice("Otherwise give it the address of the next instance on the way.")


def _address_unusable(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    yield from _near_services(details)
    yield _way_out(
        details,
        table,
        "A route to TRANSPORT takes the address from the service name, which has to begin with host:port. Create a route with "
        "the address",
    )


def _create_route(details: dict[str, Any], database: str, *, address: str = "TCP://<host>:4022") -> str:
    """A route that the search finds: it ends at step 1 where others name the conversation's broker id."""
    service = literal(details["conversation"]["to_service_name"])
    broker = f", BROKER_INSTANCE = N'{details['conversation']['to_broker_instance']}'"
    by_id = broker if details["decision"]["match_step"] == _BY_ID else ""
    return (
        f"USE {bracketed(database)}; CREATE ROUTE <name> WITH SERVICE_NAME = {service}{by_id}, ADDRESS = N'{address}';"
    )


def _once(routes: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first few routes, each once, though several steps saw it."""
    return list({route["route_id"]: route for route in routes}.values())[:_NAMED_MAX]


_BY_REASON: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], Iterator[Advice]]]] = {
    "address_unusable": _address_unusable,
    "forwarding_disabled": _forwarding_disabled,
    "no_route": _no_route,
    "route_requested": _route_requested,
    "routing_loop": _routing_loop,
    "sender_disabled": _sender_disabled,
    "service_not_found": _service_not_found,
}
