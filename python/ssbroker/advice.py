"""What to do about a conversation that is delayed or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ssbroker.wording import bracketed, literal, quoted, route_name

_NAME_DIFFERS: Final = ("name_differs_in_case", "name_differs_in_white_space", "name_differs_in_unicode_form")
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
    yield Advice(
        "If the service is in another instance, create a route to it:", _create_route(details, table["database"])
    )


def _near_misses(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    """What to do about the routes that would have matched but for one thing."""
    use = f"USE {bracketed(table['database'])};"
    asked = details["conversation"]
    rejected = [(found["why"], found["route"]) for step in table["steps"] for found in step["rejected"]]
    for route in _once(route for why, route in rejected if why == "expired"):
        yield Advice(
            f"Prolong {route_name(route)}, in seconds from now:",
            f"{use} ALTER ROUTE {bracketed(route['name'])} WITH LIFETIME = <seconds>;",
        )
    for route in _once(route for why, route in rejected if why in _NAME_DIFFERS):
        yield Advice(
            f"If {route_name(route)} means this service, spell the name in one way, here and where the service is made:",
            f"{use} ALTER ROUTE {bracketed(route['name'])} WITH SERVICE_NAME = {literal(asked['to_service_name'])};",
        )
    for route in _once(route for why, route in rejected if why == "other_broker_id"):
        yield Advice(
            f"If the database behind {route_name(route)} has a new broker id (service_broker_guid in its sys.databases):",
            f"{use} ALTER ROUTE {bracketed(route['name'])} WITH BROKER_INSTANCE = N'{asked['to_broker_instance']}';",
        )


def _route_requested(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield Advice(
        "Routing information is asked of the service SQL/ServiceBroker/BrokerConfiguration. Look whether it runs, creates a "
        f"route in {quoted(table['database'])} and ends its dialog with END CONVERSATION; the conversation is matched again then."
    )


def _service_not_found(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    looked_at = table["locate"] or table["reply"] or {"databases": []}
    wanted = looked_at.get("broker_instance")
    service = bracketed(details["conversation"]["to_service_name"])
    hosts = [database for database in looked_at["databases"] if database["has_service"]]
    for database in hosts:
        if not database["is_broker_enabled"] and wanted in (None, database.get("broker_instance")):
            yield Advice(
                f"Enable message delivery in {quoted(database['name'])}, which has the service:",
                _enable(database["name"]),
            )
    others = [quoted(database["name"]) for database in hosts if wanted not in (None, database.get("broker_instance"))]
    if others:
        yield Advice(
            f"The service is in {', '.join(others[:_NAMED_MAX])}, whose broker id is not {wanted}. A conversation keeps the id "
            "it was begun with, and NEW_BROKER or a restored copy changes a database's: end the conversation, or correct the route."
        )
    holders = [database for database in looked_at["databases"] if wanted == database.get("broker_instance", wanted)]
    if not hosts or (wanted is not None and holders and not holders[0]["has_service"]):
        database = bracketed(holders[0]["name"]) if holders else "<database>"
        yield Advice(
            "If the service belongs in this instance, create it in its database:",
            f"USE {database}; CREATE SERVICE {service} ON QUEUE <queue> (<contract>);",
        )
    if table["locate"] is not None:
        yield Advice(
            "If it is in another instance, create a route to it, which goes before one to LOCAL for every service:",
            _create_route(details, table["database"]),
        )


def _sender_disabled(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield Advice(f"Enable message delivery in {quoted(table['database'])}:", _enable(table["database"]))


def _forwarding_disabled(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    yield Advice(
        "If this instance is to pass messages on:",
        "ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);",
    )
    yield Advice(
        "If the service is in this instance, create a route to it in msdb, where what arrives is routed:",
        _create_route(details, "msdb", address="LOCAL"),
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
    yield from _near_misses(details, table)
    yield Advice(
        "A route to TRANSPORT takes the address from the service name, which has to begin with host:port. Create a route with "
        "the address:",
        _create_route(details, table["database"]),
    )


def _create_route(details: dict[str, Any], database: str, *, address: str = "TCP://<host>:4022") -> str:
    service = literal(details["conversation"]["to_service_name"])
    return f"USE {bracketed(database)}; CREATE ROUTE <name> WITH SERVICE_NAME = {service}, ADDRESS = N'{address}';"


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
