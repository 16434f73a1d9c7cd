"""What to do about a conversation that is delayed or dropped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ssbroker.near_misses import changes
from ssbroker.wording import bracketed, literal, quoted, route_name

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
_HOLDS_ADDRESS: Final = re.compile(r"(tcp://)?[^/\s]+:\d+(/|$)", re.IGNORECASE)
_NAMED_MAX: Final = 3


class Advice(NamedTuple):
    """One thing to do."""

    sentence: str
    """In words."""
    command: str | None = None
    """In T-SQL; what the reader fills in stands in <angle brackets>."""


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
    yield Advice(
        "If it is in this instance, create a route to LOCAL:",
        _create_route(details, table["database"], address="LOCAL"),
    )


def _near_misses(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    """What to do about the routes that would have matched but for one thing, where they would lead somewhere then."""
    rejected = [(found["why"], found["route"]) for step in table["steps"] for found in step["rejected"]]
    for reasons, told in _NEAR_MISSES.items():
        for route in _once(route for why, route in rejected if why in reasons and _leads_on(details, table, route)):
            changed = changes(details, route)
            further = ", in seconds from now" if changed[-1].startswith("LIFETIME") and len(changed) == 1 else ""
            sentence = told.format(route=route_name(route)) + further
            command = (
                f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(route['name'])} WITH {', '.join(changed)};"
            )
            if _needs_forwarding(details, table) and route["address"].upper() != "LOCAL":
                sentence, command = f"{sentence}, and let this instance pass messages on", f"{command} {_FORWARD}"
            yield Advice(f"{sentence}:", command)


def _leads_on(details: dict[str, Any], table: dict[str, Any], route: dict[str, Any]) -> bool:
    """Whether a near miss, once it is found, does not end as the conversation ends now."""
    if not changes(details, route):
        return False
    reason: str = details["decision"]["reason"]
    match route["address"].upper():
        case "LOCAL":
            return reason != "service_not_found" or bool(table["locate"] and table["locate"]["candidates"])
        case "TRANSPORT":
            return _HOLDS_ADDRESS.match(details["conversation"]["to_service_name"]) is not None
    return reason != "forwarding_disabled"


def _near_services(details: dict[str, Any]) -> Iterator[Advice]:
    """Names that are on their way from where this one began."""
    for name in details.get("near_names", ()):
        yield Advice(
            f"If {quoted(name)} is meant, begin the conversation with the name as it is spelt there:",
            f"BEGIN DIALOG ... TO SERVICE {literal(name)};",
        )


def _needs_forwarding(details: dict[str, Any], table: dict[str, Any]) -> bool:
    """Whether what leaves this instance would be dropped (R25)."""
    return table["origin"] != "begun_here" and not details["message_forwarding"]


def _way_out(details: dict[str, Any], table: dict[str, Any], sentence: str) -> Advice:
    command = _create_route(details, table["database"])
    if _needs_forwarding(details, table):
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
    for database in hosts:
        if not database["is_broker_enabled"] and wanted in (None, database["broker_instance"]):
            yield from _enabled(database, wanted)
    others = [quoted(database["name"]) for database in hosts if wanted not in (None, database["broker_instance"])]
    if others:
        yield Advice(
            f"The service is in {', '.join(others[:_NAMED_MAX])}, whose broker id is not {wanted}. A conversation keeps the id "
            "it was begun with, and NEW_BROKER or a restored copy changes a database's: end the conversation, or correct the route."
        )
    holders = [database for database in databases if wanted is not None and database["broker_instance"] == wanted]
    if holders:
        # The enabled one comes first: at most one is (I7).
        holder = max(holders, key=lambda database: database["is_broker_enabled"])
        if not holder["has_service"]:
            yield from _create_service(details, holder)
    elif wanted is not None:
        yield Advice(
            f"No database of this instance has the broker id {wanted}, so a route to LOCAL leads nowhere: end the conversation "
            "and begin it anew, or correct the id or the address of the route."
        )
    elif not hosts:
        yield from _create_service(details, None)
    if table["locate"] is not None:
        yield _way_out(
            details,
            table,
            "If it is in another instance, create a route to it, which goes before one to LOCAL for every service",
        )


def _create_service(details: dict[str, Any], holder: dict[str, Any] | None) -> Iterator[Advice]:
    database = "<database>" if holder is None else bracketed(holder["name"])
    service = bracketed(details["conversation"]["to_service_name"])
    command = f"USE {database}; CREATE SERVICE {service} ON QUEUE <queue> (<contract>);"
    if holder is None or holder["is_broker_enabled"]:
        yield Advice("If the service belongs in this instance, create it in its database:", command)
    else:
        yield Advice(
            f"If the service belongs in this instance, create it in {quoted(holder['name'])} and enable message delivery there:",
            f"{command} {_enable(holder['name'])}",
        )


def _sender_disabled(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    sender = {"name": table["database"], "id_enabled_in": table.get("id_enabled_in")}
    if sender["id_enabled_in"] is None:
        yield Advice(f"Enable message delivery in {quoted(table['database'])}:", _enable(table["database"]))
    else:
        yield from _enabled_elsewhere(sender, None)


def _enabled(database: dict[str, Any], wanted: str | None) -> Iterator[Advice]:
    """How a database that has the service, and is disabled, comes to take what is for it."""
    if database["id_enabled_in"] is None:
        yield Advice(
            f"Enable message delivery in {quoted(database['name'])}, which has the service:", _enable(database["name"])
        )
    else:
        yield from _enabled_elsewhere(database, wanted)


def _enabled_elsewhere(database: dict[str, Any], wanted: str | None) -> Iterator[Advice]:
    """How a database is enabled whose broker id is enabled in another one: ENABLE_BROKER fails there (I7)."""
    name, other = database["name"], database["id_enabled_in"]
    why = f"Message delivery cannot be enabled in {quoted(name)}: its broker id is enabled in {quoted(other)}."
    if wanted is None:
        yield Advice(
            f"{why} If {quoted(name)} is the copy, give it an id of its own, which enables it and ends its conversations:",
            f"ALTER DATABASE {bracketed(name)} SET NEW_BROKER;",
        )
    yield Advice(
        f"{why if wanted is not None else ''} If {quoted(other)} is the copy, disable it there first:".lstrip(),
        f"ALTER DATABASE {bracketed(other)} SET DISABLE_BROKER; {_enable(name)}",
    )


def _forwarding_disabled(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    picked = _picked(table)
    if table["next_hop"] is not None and table["next_hop"]["is_this_instance"]:
        yield Advice(
            f"In {quoted(table['database'])}, {route_name(picked)} leads back to this instance: with MESSAGE_FORWARDING enabled "
            "the message is dropped as a loop. Give the route the address of the next instance on the way, and enable it then:",
            f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(picked['name'])} WITH "
            f"ADDRESS = N'TCP://<host>:4022'; {_FORWARD}",
        )
    else:
        yield Advice("If this instance is to pass messages on:", _FORWARD)
    if picked["mirror_address"] is not None and picked["remote_service_name"] is not None:
        yield Advice(
            f"If the service is in this instance, drop {route_name(picked)}, which goes before any to LOCAL, and create a route "
            "in msdb, where what arrives is routed:",
            f"USE [msdb]; DROP ROUTE {bracketed(picked['name'])}; {_create_route(details, 'msdb', address='LOCAL')}",
        )
    else:
        yield Advice(
            "If the service is in this instance, create a route to it in msdb, where what arrives is routed:",
            _create_route(details, "msdb", address="LOCAL"),
        )


def _picked(table: dict[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(("route_id", "name", "mirror_address", "remote_service_name"))
    return next((group["picked"] for group in table["classes"] if group["picked"] is not None), nothing)


def _routing_loop(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    picked = _picked(table)
    if picked["route_id"] is None:
        return
    yield Advice(
        f"In {quoted(table['database'])}, {route_name(picked)} leads back to this instance. If the service is here:",
        f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(picked['name'])} WITH ADDRESS = N'LOCAL';",
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


def _enable(database: str) -> str:
    return f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;"


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
