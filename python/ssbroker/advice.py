"""Suggests how to fix a conversation that is delayed or dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from ssbroker._text import (
    bracketed,
    folded_name,
    may_be_misspelled,
    quoted,
    route_name,
    shortened_list,
    string_literal,
    without_digits,
    without_invisible_characters,
)
from ssbroker._well_known import CONFIGURATION_SERVICE

_LISTED_MAX: Final = 3
_BROKER_ID_STEP: Final = 1
"""The step of the search that matches service name and broker id (R11)."""
HOW_TO_SPECIFY_ID: Final = (
    "in a script with the comment -- ssbroker: service_broker_guid=<id> at the end of the statement that creates or uses the "
    "database, or in the column service_broker_guid of databases.csv"
)
"""Where to specify the broker id of a database."""
_READ_IDS: Final = "SELECT name, service_broker_guid FROM sys.databases"
_NEAR_MISSES: Final = {
    ("expired",): "Extend the lifetime of {route}",
    (
        "name_differs_in_case",
        "name_differs_in_white_space",
        "name_differs_in_unicode_form",
    ): "If {route} is meant for this service, change its service name to match exactly",
    (
        "other_broker_id",
    ): "If the database to which {route} leads has a new broker id (service_broker_guid in its sys.databases), update the route",
}
"""Advice on a route that almost matched, by the reasons why it did not match."""


class Advice(NamedTuple):
    """One suggested action."""

    sentence: str
    """The action in words."""
    command: str | None = None
    """The action in T-SQL; the reader replaces the parts in <angle brackets>."""


def advice(details: dict[str, Any]) -> list[Advice]:
    """Returns the suggested actions, the most likely first; none if the conversation is neither delayed nor dropped.

    Examples:
        >>> decision = {"outcome": "DELAYED", "reason": "sender_disabled"}
        >>> conversation = {"to_service_name": "//Orders", "database": "Sales"}
        >>> advice({"decision": decision, "conversation": conversation, "passes": [{"database": "Sales"}]})[0].command
        'ALTER DATABASE [Sales] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;'
    """
    if details["decision"]["outcome"] not in ("DELAYED", "DROPPED"):
        return []
    return list(_BY_REASON[details["decision"]["reason"]](details, details["passes"][-1]))


def broker_command(database: str, option: str = "ENABLE_BROKER") -> str:
    """Returns the command that enables, disables or resets a broker. Without ROLLBACK IMMEDIATE, the statement waits until nobody uses the database."""
    return f"ALTER DATABASE {bracketed(database)} SET {option} WITH ROLLBACK IMMEDIATE;"


def corrected_route(details: dict[str, Any], route: dict[str, Any]) -> dict[str, Any]:
    """Returns a route that almost matched, with all differences corrected.

    All differences are corrected together, because each remaining one would keep the route from matching. Returns the
    route unchanged if ALTER ROUTE cannot make it match.
    """
    name, broker = details["conversation"]["to_service_name"], details["conversation"]["to_broker_instance"]
    changed: dict[str, Any] = {}
    if route["remote_service_name"] not in (None, name, CONFIGURATION_SERVICE):
        changed["remote_service_name"] = name
    if broker is not None and route["broker_instance"] not in (None, broker):
        changed["broker_instance"] = broker
    lifetime = route["lifetime"]
    if lifetime is not None and datetime.fromisoformat(lifetime) <= datetime.fromisoformat(details["now"]):
        changed["lifetime"] = None
    return route | changed


def needs_forwarding(details: dict[str, Any], table: dict[str, Any], route: dict[str, Any] | None = None) -> bool:
    """Returns whether a message routed by a routing table leaves this instance and would be dropped because forwarding is off (R25).

    Without a route, the message is assumed to go to another instance.
    """
    stays_local = route is not None and (
        route["address"].upper() == "LOCAL" or route["remote_service_name"] == CONFIGURATION_SERVICE
    )
    return table["origin"] != "begun_here" and not details["message_forwarding"] and not stays_local


def _no_route(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    yield _create_network_route(details, table, "If the service is in another instance, create a route to it")
    yield from _route_to_local(
        details,
        "If the service is in this instance, create a route to LOCAL",
        _create_route(details, table["database"], address="LOCAL"),
    )


def _route_requested(_details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield Advice(
        "A route was requested from the service SQL/ServiceBroker/BrokerConfiguration. Check that the service is running, creates "
        f"a route in {quoted(table['database'])} and ends its dialog with END CONVERSATION; the conversation is then routed again."
    )


def _service_not_found(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    located = table["locate"] or table["reply"] or {"databases": []}
    broker_id = details["conversation"]["to_broker_instance"] if table["reply"] else None
    broker_id = located.get("broker_instance", broker_id)
    databases: list[dict[str, Any]] = located["databases"]
    hosts = [database for database in databases if database["has_service"]]
    yield from _unavailable_databases(details, databases, broker_id)
    holders = [database for database in databases if broker_id is not None and database["broker_instance"] == broker_id]
    if holders:
        # At most one of these databases is enabled (I7): prefer it.
        holder = max(holders, key=lambda database: database["is_broker_enabled"])
        if not holder["has_service"]:
            yield from _create_service(details, holder)
    elif broker_id is not None and not details.get("unknown_broker_ids"):
        yield Advice(
            f"No database of this instance has the broker id {broker_id}, so a route to LOCAL cannot deliver the message. "
            "End the conversation and start a new one, or correct the broker id or the address of the route."
        )
    elif not hosts:
        yield from _create_service(details, None)
    if table["locate"] is not None:
        yield _create_network_route(
            details,
            table,
            "If the service is in another instance, create a route to it (the route takes precedence over a LOCAL route for all services)",
        )


def _sender_disabled(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    sender = {"name": table["database"], "id_enabled_in": table.get("id_enabled_in")}
    if sender["id_enabled_in"] is None:
        yield Advice(f"Enable message delivery in {quoted(table['database'])}:", broker_command(table["database"]))
    else:
        yield from _resolve_duplicate_id(details, sender, None)


def _forwarding_disabled(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    picked = _chosen_route(table)
    loop = f"{_leads_back(table, picked)}, so the message would be dropped as a routing loop even with MESSAGE_FORWARDING enabled"
    if table["next_hop"] is None or not table["next_hop"]["is_this_instance"]:
        yield Advice("If this instance should forward messages:", _enable_forwarding(details))
    elif _is_transport(picked):
        yield Advice(
            f"{loop}. Create a route to the next instance on the path, then enable forwarding:",
            f"{_create_route(details, table['database'])} {_enable_forwarding(details)}",
        )
    else:
        yield Advice(
            f"{loop}. Change the route to the address of the next instance on the path, then enable forwarding:",
            f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(picked['name'])} WITH "
            f"ADDRESS = N'TCP://<host>:4022'; {_enable_forwarding(details)}",
        )
    if _takes_precedence_over_local(picked):
        yield from _replace_by_local(details, table, "If the service is in this instance")
    else:
        yield from _route_to_local(
            details,
            "If the service is in this instance, create a route to it in msdb, whose routes apply to incoming messages",
            _create_route(details, table["database"], address="LOCAL"),
        )


def _routing_loop(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    picked = _chosen_route(table)
    if picked["route_id"] is None:
        return
    condition = f"{_leads_back(table, picked)}. If the service is in this instance"
    if _takes_precedence_over_local(picked):
        yield from _replace_by_local(details, table, condition)
    elif _is_transport(picked):
        create = _create_route(details, table["database"], address="LOCAL")
        yield from _route_to_local(details, f"{condition}, create a route to LOCAL", create)
        yield _create_network_route(details, table, "Otherwise, create a route to the next instance on the path")
        return
    else:
        alter = f"ALTER ROUTE {bracketed(picked['name'])} WITH ADDRESS = N'LOCAL';"
        yield from _route_to_local(
            details,
            f"{condition}, change the address of the route to LOCAL",
            f"USE {bracketed(table['database'])}; {alter}",
        )
    yield Advice("Otherwise, change the address of the route to the address of the next instance on the path.")


def _address_unusable(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    yield from _near_misses(details, table)
    yield _create_network_route(
        details,
        table,
        "A route to TRANSPORT takes the address from the service name, which must begin with host:port. Create a route with an "
        "explicit address",
    )


_BY_REASON: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], Iterator[Advice]]]] = {
    "address_unusable": _address_unusable,
    "forwarding_disabled": _forwarding_disabled,
    "no_route": _no_route,
    "route_requested": _route_requested,
    "routing_loop": _routing_loop,
    "sender_disabled": _sender_disabled,
    "service_not_found": _service_not_found,
}


def _near_misses(details: dict[str, Any], table: dict[str, Any]) -> Iterator[Advice]:
    """Yields advice on the routes that almost matched, if the conversation would be routed after their correction, and on services with similar names."""
    wanted = details["conversation"]["to_service_name"]
    near = set(details["similar_routes"])
    rejected = [(found["why"], found["route"]) for step in table["steps"] for found in step["rejected"]]
    for reasons, template in _NEAR_MISSES.items():
        for route in _first_distinct(route for why, route in rejected if why in reasons and route["route_id"] in near):
            name = route["remote_service_name"]
            if name in details.get("similar_names", ()) and _has_more_white_space(wanted, name):
                continue  # other conversations use the route
            clauses = _alter_route_clauses(details, route)
            unit = " (in seconds from now)" if clauses[-1].startswith("LIFETIME") and len(clauses) == 1 else ""
            sentence = template.format(route=route_name(route)) + unit
            command = (
                f"USE {bracketed(table['database'])}; ALTER ROUTE {bracketed(route['name'])} WITH {', '.join(clauses)};"
            )
            if needs_forwarding(details, table, route):
                sentence, command = _with_forwarding(details, sentence, command)
            yield Advice(f"{sentence}:", command)
    yield from _similar_services(details)


def _has_more_white_space(one: str, other: str) -> bool:
    """Returns whether a name equals another except for additional invisible characters."""
    return len(one) > len(other) and without_invisible_characters(one) == without_invisible_characters(other)


def _similar_services(details: dict[str, Any]) -> Iterator[Advice]:
    """Yields advice on services with similar names that the sender can reach; none for a reply, whose service the initiator has determined."""
    if not details["conversation"].get("is_initiator", True):
        return
    for name in details.get("similar_names", ()):
        yield Advice(
            f"If you meant {quoted(name)}, start the conversation with exactly that name:",
            f"BEGIN DIALOG ... TO SERVICE {string_literal(name)};",
        )


def _unavailable_databases(
    details: dict[str, Any], databases: list[dict[str, Any]], broker_id: str | None
) -> Iterator[Advice]:
    """Yields advice on databases that have the service but cannot accept the conversation; `broker_id` is the required id, if any."""
    yield from _enable_hosts(details, databases, broker_id)
    others = [
        database["name"]
        for database in databases
        if database["has_service"] and broker_id not in (None, database["broker_instance"])
    ]
    unknown = [name for name in others if name in details.get("unknown_broker_ids", ())]
    if unknown:
        yield _specify_broker_ids(unknown)
    elif others:
        names = ", ".join(shortened_list(map(quoted, others), _LISTED_MAX))
        yield Advice(
            f"The service is in {names}, whose broker id is not {broker_id}. A conversation keeps the "
            "broker id that it was started with, while NEW_BROKER or restoring a copy changes the id of a database. End the "
            "conversation, or correct the route."
        )


def _specify_broker_ids(databases: list[str]) -> Advice:
    names = ", ".join(shortened_list(map(quoted, databases), _LISTED_MAX))
    found = f"{names} has the service, but the catalog does not contain its broker id"
    one = "this database"
    if len(databases) > 1:
        found = f"{names} have the service, but the catalog does not contain their broker ids"
        one = "one of these databases"
    return Advice(
        f"{found}, so whether the conversation is for {one} cannot be determined; the decision assumes that it is not. Specify broker ids "
        f"{HOW_TO_SPECIFY_ID}. This query on the instance returns them:",
        f"{_READ_IDS};",
    )


def unknown_ids_text(databases: Iterable[str]) -> str:
    """Returns a sentence about databases whose broker ids the catalogs do not contain, and how to specify them."""
    names = list(databases)
    are = "broker ids of {} are" if len(names) > 1 else "broker id of {} is"
    shown = ", ".join(shortened_list(names, _LISTED_MAX))
    return f"The {are.format(shown)} not known. {_READ_IDS} returns broker ids; specify them {HOW_TO_SPECIFY_ID}."


def _enable_hosts(details: dict[str, Any], databases: list[dict[str, Any]], broker_id: str | None) -> Iterator[Advice]:
    for database in databases:
        is_candidate = database["has_service"] and broker_id in (None, database["broker_instance"])
        if not is_candidate or database["is_broker_enabled"]:
            continue
        if database["id_enabled_in"] is None:
            yield Advice(
                f"Enable message delivery in {quoted(database['name'])}, which has the service:",
                broker_command(database["name"]),
            )
        else:
            yield from _resolve_duplicate_id(details, database, broker_id)


def _resolve_duplicate_id(details: dict[str, Any], database: dict[str, Any], broker_id: str | None) -> Iterator[Advice]:
    """Yields advice for a database on which ENABLE_BROKER fails, because its broker id is enabled in another database (I7).

    With `broker_id`, the database must keep its id.
    """
    name, other = database["name"], database["id_enabled_in"]
    why = f"Message delivery cannot be enabled in {quoted(name)}: its broker id is already enabled in {quoted(other)}."
    if broker_id is None:
        yield Advice(
            f"{why} If {quoted(name)} is a copy, give it a new broker id; this also enables message delivery there and ends its conversations:",
            broker_command(name, "NEW_BROKER"),
        )
    # If the conversation started in the other database, disabling that database would only delay the conversation there
    # (R34).
    if other != details["conversation"]["database"]:
        yield Advice(
            f"{why if broker_id is not None else ''} If {quoted(other)} is a copy, disable message delivery there first:".lstrip(),
            f"{broker_command(other, 'DISABLE_BROKER')} {broker_command(name)}",
        )


def _create_service(details: dict[str, Any], holder: dict[str, Any] | None) -> Iterator[Advice]:
    """Yields advice to create the service in the database `holder`, or in a database that the reader chooses."""
    database = "<database>" if holder is None else bracketed(holder["name"])
    service = bracketed(details["conversation"]["to_service_name"])
    command = f"USE {database}; CREATE SERVICE {service} ON QUEUE <queue> (<contract>);"
    if holder is None or holder["is_broker_enabled"]:
        yield Advice("If the service belongs in this instance, create it in its database:", command)
    else:
        yield Advice(
            f"If the service belongs in this instance, create it in {quoted(holder['name'])} and enable message delivery there:",
            f"{command} {broker_command(holder['name'])}",
        )


def _create_network_route(details: dict[str, Any], table: dict[str, Any], sentence: str) -> Advice:
    command = _create_route(details, table["database"])
    if needs_forwarding(details, table):
        sentence, command = _with_forwarding(details, sentence, command)
    return Advice(f"{sentence}:", command)


def _with_forwarding(details: dict[str, Any], sentence: str, command: str) -> tuple[str, str]:
    return f"{sentence}, and enable message forwarding in this instance", f"{command} {_enable_forwarding(details)}"


def _enable_forwarding(details: dict[str, Any]) -> str:
    endpoint = bracketed(details["endpoint"]) if "endpoint" in details else "<endpoint>"
    return f"ALTER ENDPOINT {endpoint} FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"


def _route_to_local(details: dict[str, Any], sentence: str, command: str) -> Iterator[Advice]:
    """Yields advice to route to LOCAL, and to remove other obstacles to finding a database that has the service."""
    local = details["located_if_local"] or {"databases": [], "candidates": []}
    if local["candidates"] or not any(database["has_service"] for database in local["databases"]):
        yield Advice(f"{sentence}:", command)
        return
    enabling = list(_enable_hosts(details, local["databases"], local["broker_instance"]))
    for each in enabling:
        yield Advice(f"{sentence}. {each.sentence}", f"{command} {each.command}")
    if not enabling:
        yield from _unavailable_databases(details, local["databases"], local["broker_instance"])


def _replace_by_local(details: dict[str, Any], table: dict[str, Any], sentence: str) -> Iterator[Advice]:
    mirrored = [route for route in table["steps"][-1]["matched"] if route["mirror_address"] is not None]
    drops = " ".join(f"DROP ROUTE {bracketed(route['name'])};" for route in mirrored)
    names = ", ".join(route_name(route) for route in mirrored)
    verb = "takes" if len(mirrored) == 1 else "take"
    command = _create_route(details, table["database"], address="LOCAL")
    yield from _route_to_local(
        details,
        f"{sentence}, drop {names}, which {verb} precedence over a LOCAL route, and create a LOCAL route in {table['database']}, "
        "whose routes apply to incoming messages",
        f"USE {bracketed(table['database'])}; {drops} {command}",
    )


def _create_route(details: dict[str, Any], database: str, *, address: str = "TCP://<host>:4022") -> str:
    """Returns the command that creates a route which the search finds; includes the broker id if the search ends at step 1."""
    service = string_literal(details["conversation"]["to_service_name"])
    broker = f", BROKER_INSTANCE = N'{details['conversation']['to_broker_instance']}'"
    by_id = broker if details["decision"]["match_step"] == _BROKER_ID_STEP else ""
    return (
        f"USE {bracketed(database)}; CREATE ROUTE <name> WITH SERVICE_NAME = {service}{by_id}, ADDRESS = N'{address}';"
    )


def _alter_route_clauses(details: dict[str, Any], route: dict[str, Any]) -> list[str]:
    """Returns the clauses of ALTER ROUTE that make a route match; none if no clauses can."""
    corrected = corrected_route(details, route)
    clauses = {
        "remote_service_name": f"SERVICE_NAME = {string_literal(corrected['remote_service_name'] or '')}",
        "broker_instance": f"BROKER_INSTANCE = N'{corrected['broker_instance']}'",
        "lifetime": "LIFETIME = <seconds>",
    }
    return [clause for column, clause in clauses.items() if corrected[column] != route[column]]


def _chosen_route(table: dict[str, Any]) -> dict[str, Any]:
    no_route = dict.fromkeys(("route_id", "name", "address", "mirror_address", "remote_service_name"))
    return next((group["picked"] for group in table["classes"] if group["picked"] is not None), no_route)


def _is_transport(route: dict[str, Any]) -> bool:
    """Returns whether the route derives the address from the service name, so that a fixed address would misroute other services."""
    return str(route["address"]).upper() == "TRANSPORT"


def _leads_back(table: dict[str, Any], route: dict[str, Any]) -> str:
    return f"In {quoted(table['database'])}, {route_name(route)} leads back to this instance"


def _takes_precedence_over_local(route: dict[str, Any]) -> bool:
    """Returns whether the route precedes LOCAL routes to this service (R22) and, being mirrored, cannot be changed to LOCAL."""
    return route["mirror_address"] is not None and route["remote_service_name"] is not None


def _first_distinct(routes: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the first few distinct routes; several steps may have rejected the same route."""
    return list({route["route_id"]: route for route in routes}.values())[:_LISTED_MAX]


_ONE_EDIT_LENGTH_MIN: Final = 4
"""Shorter names that differ by one letter are not considered similar."""


class SimilarNames:
    """Existing names, which can be searched for similar names.

    Examples:
        >>> names = SimilarNames(["//Orders", "//Order", "//Stock"])
        >>> names.find("//orders"), names.find("//Stokc"), names.find("//Stock")
        (['//Orders'], ['//Stock'], [])
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_folded: defaultdict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(names):
            self._by_folded[folded_name(name)].append(name)

    def find(self, wanted: str) -> list[str]:
        """Returns a few names similar to `wanted`; none if `wanted` itself exists."""
        folded = folded_name(wanted)
        near = self._by_folded.get(folded, [])
        if not near and len(folded) >= _ONE_EDIT_LENGTH_MIN:
            near = [name for other, names in self._by_folded.items() if _is_misspelled(folded, other) for name in names]
        return [] if wanted in near else sorted(near)[:_LISTED_MAX]


def _is_misspelled(one: str, other: str) -> bool:
    """Returns whether two names differ by one letter, so that one is probably a misspelling of the other.

    Names that differ only in digits, such as `//S1` and `//S2`, or in a last part of one letter, such as `//A` and
    `//B`, differ on purpose.
    """
    if not may_be_misspelled(one, other):
        return False
    (path, _, last), (other_path, _, other_last) = one.rpartition("/"), other.rpartition("/")
    return path != other_path or min(len(without_digits(last)), len(without_digits(other_last))) > 1
