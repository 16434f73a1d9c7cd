"""What to do about a conversation that is delayed or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ssbroker.wording import bracketed, literal, quoted, route_name

_NAME_DIFFERS: Final = ("name_differs_in_case", "name_differs_in_white_space", "name_differs_in_unicode_form")
_ROUTES_MAX: Final = 3


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
    use = f"USE {bracketed(table['database'])};"
    service = details["conversation"]["to_service_name"]
    rejected = [(found["why"], found["route"]) for step in table["steps"] for found in step["rejected"]]
    for route in _once(route for why, route in rejected if why == "expired"):
        yield Advice(
            f"Prolong {route_name(route)}, in seconds from now:",
            f"{use} ALTER ROUTE {bracketed(route['name'])} WITH LIFETIME = <seconds>;",
        )
    for route in _once(route for why, route in rejected if why in _NAME_DIFFERS):
        yield Advice(
            f"If {route_name(route)} means this service, spell the name in one way, here and where the service is made:",
            f"{use} ALTER ROUTE {bracketed(route['name'])} WITH SERVICE_NAME = {literal(service)};",
        )
    for route in _once(route for why, route in rejected if why == "other_broker_id"):
        wanted = details["conversation"]["to_broker_instance"]
        yield Advice(
            f"If the database behind {route_name(route)} has a new broker id (service_broker_guid in its sys.databases):",
            f"{use} ALTER ROUTE {bracketed(route['name'])} WITH BROKER_INSTANCE = N'{wanted}';",
        )
    yield Advice(
        "If the service is in another instance, create a route to it:",
        f"{use} CREATE ROUTE <name> WITH SERVICE_NAME = {literal(service)}, ADDRESS = N'TCP://<host>:4022';",
    )


def _route_requested(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield Advice(
        "Routing information is asked of the service SQL/ServiceBroker/BrokerConfiguration. Look whether it runs, creates a "
        f"route in {quoted(table['database'])} and ends its dialog with END CONVERSATION; the conversation is matched again then."
    )


def _service_not_found(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    service = details["conversation"]["to_service_name"]
    looked_at = table["locate"] or table["reply"] or {"databases": []}
    wanted = looked_at.get("broker_instance")
    for database in looked_at["databases"]:
        other_id = wanted is not None and database["broker_instance"] != wanted
        if not database["has_service"]:
            continue
        if other_id:
            yield Advice(
                f"Database {quoted(database['name'])} has the service, but not the broker id {wanted}. A conversation keeps the id "
                "it was begun with, and NEW_BROKER or a restored copy changes it: end the conversation, or correct the route."
            )
        elif not database["is_broker_enabled"]:
            yield Advice(
                f"Enable message delivery in {quoted(database['name'])}, which has the service:",
                _enable(database["name"]),
            )
    if not any(database["has_service"] for database in looked_at["databases"]):
        yield Advice(
            "If the service belongs in this instance, create it in its database:",
            f"USE <database>; CREATE SERVICE {bracketed(service)} ON QUEUE <queue> (<contract>);",
        )
    if table["locate"] is not None:
        yield Advice(
            "If it is in another instance, create a route to it, which goes before one to LOCAL for every service:",
            f"USE {bracketed(table['database'])}; "
            f"CREATE ROUTE <name> WITH SERVICE_NAME = {literal(service)}, ADDRESS = N'TCP://<host>:4022';",
        )


def _sender_disabled(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield Advice(f"Enable message delivery in {quoted(table['database'])}:", _enable(table["database"]))


def _forwarding_disabled(details: dict[str, Any], _table: dict[str, Any]) -> Iterator[Advice]:
    service = details["conversation"]["to_service_name"]
    yield Advice(
        "If this instance is to pass messages on:",
        "ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);",
    )
    yield Advice(
        "If the service is in this instance, create a route to it in msdb, where what arrives is routed:",
        f"USE [msdb]; CREATE ROUTE <name> WITH SERVICE_NAME = {literal(service)}, ADDRESS = N'LOCAL';",
    )


def _routing_loop(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    picked = next((group["picked"] for group in table["classes"] if group["picked"] is not None), None)
    if picked is None or picked["route_id"] is None:
        return
    yield Advice(
        f"In {quoted(table['database'])}, {route_name(picked)} leads back to this instance. If the service is here:",
        f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(picked['name'])} WITH ADDRESS = N'LOCAL';",
    )
    yield Advice("Otherwise give it the address of the next instance on the way.")


def _address_unusable(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    service = details["conversation"]["to_service_name"]
    yield Advice(
        "A route to TRANSPORT takes the address from the service name, which has to begin with host:port. Create a route with "
        "the address:",
        f"USE {bracketed(table['database'])}; "
        f"CREATE ROUTE <name> WITH SERVICE_NAME = {literal(service)}, ADDRESS = N'TCP://<host>:4022';",
    )


def _enable(database: str) -> str:
    return f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;"


def _once(routes: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first few routes, each once, though several steps saw it."""
    return list({route["route_id"]: route for route in routes}.values())[:_ROUTES_MAX]


_BY_REASON: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], Iterator[Advice]]]] = {
    "address_unusable": _address_unusable,
    "forwarding_disabled": _forwarding_disabled,
    "no_route": _no_route,
    "route_requested": _route_requested,
    "routing_loop": _routing_loop,
    "sender_disabled": _sender_disabled,
    "service_not_found": _service_not_found,
}
