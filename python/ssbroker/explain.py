"""Explains one routing decision, as an object and as text for an administrator."""

from __future__ import annotations

import copy
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ssbroker._text import count, moment_text, quoted, route_name, route_text, soften
from ssbroker.advice import advice

_WIDTH: Final = 100
_LAST_STEP: Final = 7
_SAYS_NOTHING_MORE: Final = "found"
_STEPS: Final = {
    1: "this service name and this broker id",
    2: "this service name, no broker id",
    3: "this service name, any broker id",
    4: "the dynamic routing service can be asked",
    5: "neither service name nor broker id",
    6: "a database here has the service",
    7: "nothing found",
}
_CLASSES: Final = {
    "mirror": "routes with a mirror address",
    "local": "routes to LOCAL",
    "network": "routes to a network address",
    "transport": "routes to TRANSPORT",
}
_REJECTED: Final = {
    "expired": "expired on {lifetime}",
    "other_broker_id": "names another broker id, {broker_instance}",
    "names_broker_id": "names a broker id, {broker_instance}",
    "names_no_broker_id": "names no broker id",
    "name_differs_in_case": "for {name}: upper and lower case differ",
    "name_differs_in_white_space": "for {name}: the white space differs",
    "name_differs_in_unicode_form": "for {name}: looks alike, but is spelt in other code points",
    "pending_request": "not asked again: routing information for this service has been requested",
    "not_the_picked_id": "names a broker id that was not picked, {broker_instance}",
}
_UNUSABLE: Final = {
    "service_not_found": "no database here can take the conversation",
    "address_unusable": "the service name does not begin with an address (host:port)",
}
_ORIGINS: Final = {
    "begun_here": "because the conversation began there",
    "from_outside": "because the message arrived from outside this instance",
    "re_entered": "because the next hop is this instance itself, and the conversation now counts as from outside",
}
_COMES_FIRST: Final = {
    "begun_here": ", the one where the conversation began first",
    "from_outside": "; none comes first for what came from outside",
    "re_entered": "; none comes first for what came from outside",
}
_PICKS: Final = {
    "hash": "picked by the conversation id",
    "round_robin": "picked: its turn",
    "first": "picked: the first",
}


def render(details: dict[str, Any]) -> str:
    """The text of an explanation.

    Args:
        details: What the native router told.

    Returns:
        Lines without a final line break; the last one is the decision.
    """
    lines = list(_question(details))
    for table in details["passes"]:
        lines += ["", *_table(table, details)]
    if details["picks_undetermined"]:
        lines += [
            "",
            *_wrapped("The conversation id picks among equals. None was given, so the first stands in.", "Note: "),
        ]
    actions = advice(details)
    if actions:
        lines += ["", "What to do"]
    for action in actions:
        lines += _wrapped(action.sentence, "  - ")
        if action.command is not None:
            lines.append(f"      {action.command}")
    meanwhile = _meanwhile(details)
    if meanwhile is not None:
        lines += ["", *_wrapped(meanwhile, "Meanwhile: ")]
    return soften("\n".join([*lines, "", _decision(details)]))


def _question(details: dict[str, Any]) -> Iterator[str]:
    asked = details["conversation"]
    began = "another instance" if asked["database"] is None else f"database {quoted(asked['database'])}"
    yield f"Conversation with the service {quoted(asked['to_service_name'])}"
    yield f"  broker id   {asked['to_broker_instance'] or 'none named'}"
    yield f"  began in    {began}" if asked["is_initiator"] else f"  comes from  {began}"
    yield f"  sender      {'the initiator' if asked['is_initiator'] else 'the target, so this is a reply'}"
    if asked["conversation_id"] is not None:
        yield f"  id          {asked['conversation_id']}"
    yield f"  at          {moment_text(details['now'])}"
    yield f"  forwarding  {'on' if details['message_forwarding'] else 'off'}"


def _table(table: dict[str, Any], details: dict[str, Any]) -> Iterator[str]:
    database = quoted(table["database"])
    yield from _wrapped(f"sys.routes of {database}, {_ORIGINS[table['origin']]}", "Routing table: ")
    if table["sender_disabled"]:
        yield from _wrapped(f"not read: message delivery is disabled in {database}, so what begins there waits", "  ")
        return
    if table["reply"] is not None:
        yield from _reply(table["reply"])
        if table["reply"]["applies"]:
            return
    yield f"  {count(table['route_count'], 'route')}, {table['expired_count'] or 'none'} expired"
    yield ""
    yield "Find: the first step that finds a route ends the search"
    for step in table["steps"]:
        yield from _step(step)
    if table["classes"]:
        yield ""
        yield "Choose: the first class with a usable route"
        for group in table["classes"]:
            yield from _class(group, details)
    if table["locate"] is not None:
        yield ""
        yield from _locate(table["locate"], table["origin"], details)
    if table["next_hop"] is not None:
        yield ""
        yield f"Next hop: {table['next_hop']['address']}, {_whose(table['next_hop'])}"


def _reply(reply: dict[str, Any]) -> Iterator[str]:
    if reply["applies"]:
        yield from _wrapped(
            "not read: a database here has the broker id of this reply, so it goes there or nowhere", "  "
        )
        yield from _databases(reply["databases"])
    else:
        yield "  no database here has the broker id of this reply, so it is routed like any message"


def _step(step: dict[str, Any]) -> Iterator[str]:
    if not step["tried"]:
        verdict = "not tried"
    elif step["hosts"]:
        verdict = f"found {count(len(step['hosts']), 'database')}"
    elif step["matched"]:
        verdict = f"found {count(len(step['matched']), 'route')}"
    else:
        verdict = "" if step["step"] == _LAST_STEP else "found none"
    yield f"  {step['step']}  {_STEPS[step['step']]:<42}{verdict}".rstrip()
    if step["note"] != _SAYS_NOTHING_MORE:
        yield from _wrapped(step["note"], "     ")
    for host in step["hosts"]:
        yield from _wrapped(f"database {quoted(host)}", "     + ")
    for route in step["matched"]:
        yield from _wrapped(route_text(route), "     + ")
    for rejected in step["rejected"]:
        yield from _wrapped(f"{route_text(rejected['route'])} ({_why(rejected)})", "     - ")
    if step["rejected_count"] > len(step["rejected"]):
        yield f"     - and {step['rejected_count'] - len(step['rejected'])} more"
    if len(step["candidate_broker_ids"]) > 1:
        yield f"     of {count(len(step['candidate_broker_ids']), 'broker id')}, {step['picked_broker_id']} is picked"


def _why(rejected: dict[str, Any]) -> str:
    route = rejected["route"]
    lifetime, name = route["lifetime"], route["remote_service_name"]
    return _REJECTED[rejected["why"]].format(
        lifetime=lifetime and moment_text(lifetime),
        broker_instance=route["broker_instance"],
        name=name and quoted(name),
    )


def _class(group: dict[str, Any], details: dict[str, Any]) -> Iterator[str]:
    usable = len(group["usable"])
    verdict = "none"
    if group["routes"]:
        verdict = f"{len(group['routes'])}, {'all' if usable == len(group['routes']) else usable or 'none'} usable"
    if len(group["routes"]) == 1:
        verdict = f"1, {'usable' if usable else 'not usable'}"
    yield f"  {_CLASSES[group['class']]:<45}{verdict}"
    reasons = {unusable["route"]["route_id"]: unusable["why"] for unusable in group["unusable"]}
    for route in group["routes"]:
        number = route["route_id"]
        text = route_text(route)
        if number in reasons:
            yield from _wrapped(f"{text} ({_UNUSABLE[reasons[number]]})", "     - ")
        elif group["picked"] is not None and group["picked"]["route_id"] == number:
            yield from _wrapped(f"{text} ({_pick(details)})" if usable > 1 else text, "     + ")
        else:
            yield from _wrapped(f"{text} (not picked)" if group["picked"] is not None else text, "     + ")


def _locate(locate: dict[str, Any], origin: str, details: dict[str, Any]) -> Iterator[str]:
    wanted = locate["broker_instance"]
    if wanted is not None:
        yield f"Locate: the database with broker id {wanted}, if it has the service"
    else:
        yield f"Locate: a database that has the service{_COMES_FIRST[origin]}"
    yield from _databases(locate["databases"], wanted)
    if not locate["databases"]:
        yield f"  - no database here has the service{'' if wanted is None else ' or the broker id'}"
    # Where another route than the one to LOCAL was chosen, none of the databases is picked.
    if len(locate["candidates"]) > 1 and locate["picked"] is not None:
        yield from _wrapped(f"{quoted(locate['picked'])} is {_pick(details)}", "  ")


def _databases(databases: list[dict[str, Any]], wanted: str | None = None) -> Iterator[str]:
    width = max((len(quoted(database["name"])) for database in databases), default=0)
    for database in databases:
        sign = "+" if database["has_service"] else "-"
        state = "has the service" if database["has_service"] else "does not have the service"
        if wanted is not None and database["broker_instance"] != wanted:
            sign, state = (
                "-",
                f"{state}, but another broker id" if database["broker_instance"] else f"{state}, its id is not known",
            )
        if not database["is_broker_enabled"]:
            sign, state = "-", f"{state}, message delivery is disabled"
        yield f"  {sign} {quoted(database['name']):<{width}}  {state}"


def _pick(details: dict[str, Any]) -> str:
    return _PICKS["first" if details["picks_undetermined"] else details["tie_break"]]


def _whose(hop: dict[str, Any]) -> str:
    return "which is this instance itself" if hop["is_this_instance"] else "another instance"


def _decision(details: dict[str, Any]) -> str:
    decision = details["decision"]
    step, reason = decision["match_step"], decision["reason"]
    return f"Decision: {_outcome(details)} ({f'step {step}, ' if step else ''}{reason})."


def _outcome(details: dict[str, Any]) -> str:
    decision = details["decision"]
    match decision["outcome"]:
        case "LOCAL":
            return f"LOCAL, delivered in database {quoted(decision['target_database'])}{_by_route(details)}"
        case "REMOTE" | "FORWARD" as outcome:
            verb = "sent" if outcome == "REMOTE" else "passed on"
            mirror = f", mirror {decision['mirror_address']}," if decision["mirror_address"] is not None else ""
            return f"{outcome}, {verb} to {decision['next_hop_address']}{mirror}{_by_route(details)}"
        case "DELAYED":
            return f"DELAYED, waits {_waits_in(details)}"
        case _:
            return "DROPPED, not acknowledged"


def _meanwhile(details: dict[str, Any]) -> str | None:
    match details["decision"]["outcome"]:
        case "DELAYED":
            return "nothing is lost; the conversation is routed again after a time-out."
        case "DROPPED":
            keeper = "" if details["conversation"]["database"] is None else f" {_waits_in(details)}"
            return f"the sender keeps the message{keeper} and sends it again, because nothing acknowledges it."
    return None


def _waits_in(details: dict[str, Any]) -> str:
    database = details["conversation"]["database"]
    return "for a route" if database is None else f"in the transmission queue of {quoted(database)}"


def _by_route(details: dict[str, Any]) -> str:
    picked = [group["picked"] for group in details["passes"][-1]["classes"] if group["picked"] is not None]
    return f" by {route_name(picked[-1])}" if picked else ""


def _wrapped(text: str, indent: str) -> list[str]:
    """The text in lines; the first begins with `indent`, the others with as many blanks."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True, repr=False)
class Explanation:
    """The whole way of one conversation through the routing process; `str()` of it is what a DBA wants to read.

    Examples:
        >>> from ssbroker import Catalog, Router, schemas
        >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
        >>> print(str(explanation).splitlines()[-1])
        Decision: DELAYED, waits in the transmission queue of "msdb" (step 7, no_route).
    """

    details: dict[str, Any]
    """Each table that was read, each step with the routes it saw, the classes, the databases, the decision; see `to_dict`."""

    @property
    def decision(self) -> dict[str, Any]:
        """The columns of the decision as Python values; `broker_instance` is a `uuid.UUID` or None."""
        decision = dict(self.details["decision"])
        broker_instance = decision["broker_instance"]
        decision["broker_instance"] = None if broker_instance is None else uuid.UUID(broker_instance)
        return decision

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold; GUIDs and moments are text.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
            >>> [step["step"] for step in explanation.to_dict()["passes"][0]["steps"]]
            [1, 2, 3, 4, 5, 6, 7]
        """
        return copy.deepcopy(self.details)

    def __str__(self) -> str:
        return render(self.details)

    def __repr__(self) -> str:
        decision = self.details["decision"]
        return f"<Explanation of {self.details['conversation']['to_service_name']!r}: {decision['outcome']}, {decision['reason']}>"
