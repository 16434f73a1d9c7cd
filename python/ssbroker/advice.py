"""Suggests how to fix a conversation that is delayed or dropped."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from ssbroker._text import bracketed, literal, quoted, route_name, soften

_NAMED_MAX: Final = 3


class Advice(NamedTuple):
    """One thing to do."""

    sentence: str
    """In words."""
    command: str | None = None
    """In T-SQL; what the reader fills in stands in <angle brackets>."""


def taken(details: dict[str, Any], databases: list[dict[str, Any]], wanted: str | None) -> Iterator[Advice]:
    """What to do about databases that were looked at, and of which none takes the conversation.

    Args:
        details: What the native router told.
        databases: The databases.
        wanted: The broker id by which one is told; None if any with the service will do.

    Yields:
        The advice; none where none of them has the service.
    """
    yield from enabled_hosts(details, databases, wanted)
    others = [
        quoted(database["name"])
        for database in databases
        if database["has_service"] and wanted not in (None, database["broker_instance"])
    ]
    if others:
        yield Advice(
            f"The service is in {', '.join(others[:_NAMED_MAX])}, whose broker id is not {wanted}. A conversation keeps the id "
            "it was begun with, and NEW_BROKER or a restored copy changes a database's: end the conversation, or correct the route."
        )


def enabled_hosts(details: dict[str, Any], databases: list[dict[str, Any]], wanted: str | None) -> Iterator[Advice]:
    """How disabled databases that have the service come to take the conversation.

    Args:
        details: What the native router told.
        databases: Databases that were looked at.
        wanted: The broker id by which one is told; None if any with the service will do.

    Yields:
        The advice.
    """
    for database in databases:
        is_meant = database["has_service"] and wanted in (None, database["broker_instance"])
        if not is_meant or database["is_broker_enabled"]:
            continue
        if database["id_enabled_in"] is None:
            yield Advice(
                f"Enable message delivery in {quoted(database['name'])}, which has the service:",
                enable(database["name"]),
            )
        else:
            yield from enabled_elsewhere(details, database, wanted)


def enabled_elsewhere(details: dict[str, Any], database: dict[str, Any], wanted: str | None) -> Iterator[Advice]:
    """How a database is enabled whose broker id is enabled in another one: ENABLE_BROKER fails there (I7).

    Args:
        details: What the native router told.
        database: The database.
        wanted: The broker id that it has to keep, if any.

    Yields:
        The advice.
    """
    name, other = database["name"], database["id_enabled_in"]
    why = f"Message delivery cannot be enabled in {quoted(name)}: its broker id is enabled in {quoted(other)}."
    if wanted is None:
        yield Advice(
            f"{why} If {quoted(name)} is the copy, give it an id of its own, which enables it and ends its conversations:",
            f"ALTER DATABASE {bracketed(name)} SET NEW_BROKER;",
        )
    # What began in the other one would wait there then (R34).
    if other != details["conversation"]["database"]:
        yield Advice(
            f"{why if wanted is not None else ''} If {quoted(other)} is the copy, disable it there first:".lstrip(),
            f"ALTER DATABASE {bracketed(other)} SET DISABLE_BROKER; {enable(name)}",
        )


def created(details: dict[str, Any], holder: dict[str, Any] | None) -> Iterator[Advice]:
    """How the service comes to be in a database.

    Args:
        details: What the native router told.
        holder: The database; None if it is for the reader to choose.

    Yields:
        The advice.
    """
    database = "<database>" if holder is None else bracketed(holder["name"])
    service = bracketed(details["conversation"]["to_service_name"])
    command = f"USE {database}; CREATE SERVICE {service} ON QUEUE <queue> (<contract>);"
    if holder is None or holder["is_broker_enabled"]:
        yield Advice("If the service belongs in this instance, create it in its database:", command)
    else:
        yield Advice(
            f"If the service belongs in this instance, create it in {quoted(holder['name'])} and enable message delivery there:",
            f"{command} {enable(holder['name'])}",
        )


def enable(database: str) -> str:
    """The command that enables message delivery.

    Args:
        database: Where.

    Returns:
        The command.
    """
    return f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;"


BROKER_CONFIGURATION: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""The dynamic routing service."""

_LETTER_COUNTS_FROM: Final = 4
"""In shorter names one letter more or less makes another name."""


class NearNames:
    """The names that there are, to be found by names that are nearly theirs.

    Args:
        names: What there is.

    Examples:
        >>> names = NearNames(["//Orders", "//Order", "//Stock"])
        >>> names.of("//orders"), names.of("//Stokc"), names.of("//Stock")
        (['//Orders'], ['//Stock'], [])
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: defaultdict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(names):
            self._alike[_folded(name)].append(name)

    def of(self, wanted: str) -> list[str]:
        """The names that are nearly what was asked for.

        Args:
            wanted: What was asked for.

        Returns:
            A few of them; none where one is just that.
        """
        folded = _folded(wanted)
        near = self._alike.get(folded, [])
        if not near and len(folded) >= _LETTER_COUNTS_FROM:
            near = [
                name for other, names in self._alike.items() if _is_one_letter_away(folded, other) for name in names
            ]
        return [] if wanted in near else sorted(near)[:_NAMED_MAX]


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """The question at the end of a message; empty where nothing is near.

    Examples:
        >>> did_you_mean("sales", ["Sales", "Stock"])
        '; did you mean "Sales"?'
    """
    near = NearNames(names).of(wanted)
    return soften(f"; did you mean {' or '.join(map(quoted, near))}?") if near else ""


def mended(details: dict[str, Any], route: dict[str, Any]) -> dict[str, Any]:
    """A route that came close, with all that keeps it from being found made right: after the first of several alone the next stands in the way.

    Args:
        details: What the native router told of a conversation.
        route: The route.

    Returns:
        The route as it would be found; as it is where no change of ALTER ROUTE makes it match.
    """
    name, broker = details["conversation"]["to_service_name"], details["conversation"]["to_broker_instance"]
    changed: dict[str, Any] = {}
    if route["remote_service_name"] not in (None, name, BROKER_CONFIGURATION):
        changed["remote_service_name"] = name
    if broker is not None and route["broker_instance"] not in (None, broker):
        changed["broker_instance"] = broker
    lifetime = route["lifetime"]
    if lifetime is not None and datetime.fromisoformat(lifetime) <= datetime.fromisoformat(details["now"]):
        changed["lifetime"] = None
    return route | changed


def changes(details: dict[str, Any], route: dict[str, Any]) -> list[str]:
    """The clauses of ALTER ROUTE by which a route is found.

    Args:
        details: What the native router told of a conversation.
        route: A route that came close.

    Returns:
        The clauses; none for what no change of these makes match.

    Examples:
        >>> asked = {"to_service_name": "//Orders", "to_broker_instance": None}
        >>> route = {"remote_service_name": "//orders", "broker_instance": None, "lifetime": None}
        >>> changes({"conversation": asked, "now": "2026-11-20T21:00:00Z"}, route)
        ["SERVICE_NAME = N'//Orders'"]
    """
    found = mended(details, route)
    clauses = {
        "remote_service_name": f"SERVICE_NAME = {literal(found['remote_service_name'] or '')}",
        "broker_instance": f"BROKER_INSTANCE = N'{found['broker_instance']}'",
        "lifetime": "LIFETIME = <seconds>",
    }
    return [clause for column, clause in clauses.items() if found[column] != route[column]]


def needs_forwarding(details: dict[str, Any], table: dict[str, Any], route: dict[str, Any] | None = None) -> bool:
    """Whether a message that was routed by a table would be dropped on its way out of this instance (R25).

    Args:
        details: What the native router told of a conversation.
        table: The table, as the router told of it.
        route: The route by which it would leave; None for one to another instance.

    Returns:
        Whether.
    """
    stays = route is not None and (
        route["address"].upper() == "LOCAL" or route["remote_service_name"] == BROKER_CONFIGURATION
    )
    return table["origin"] != "begun_here" and not details["message_forwarding"] and not stays


def _folded(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def _is_one_letter_away(one: str, other: str) -> bool:
    """Whether one letter is missing, too many or another, or two that stand side by side have changed places."""
    if abs(len(one) - len(other)) > 1:
        return False
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    ends = (
        (one[same + 1 :], other[same + 1 :]),
        (one[same + 1 :], other[same:]),
        (one[same:], other[same + 1 :]),
        (one[same : same + 2][::-1] + one[same + 2 :], other[same:]),
    )
    return any(mine == theirs for mine, theirs in ends)


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
