"""Explanations of single routing decisions, as structured data and as text."""

from __future__ import annotations

import copy
import textwrap
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ssbroker import _notebook as notebook
from ssbroker._text import quantity, quoted, restore_spaces, route_name, route_text, timestamp_text
from ssbroker.advice import advice

_WIDTH: Final = 100
_HANGING: Final = "\ue001"
"""Marks where the second and later lines of a paragraph start. It is a private-use character, which `printable` escapes in names."""
_LAST_STEP: Final = 7
_NOTE_FOUND: Final = "found"
"""The note of a step that found routes; not shown, because it adds nothing to the number of routes."""
_STEPS: Final = {
    1: "this service name and this broker id",
    2: "this service name, no broker id",
    3: "this service name, any broker id",
    4: "a route to the configuration service",
    5: "neither service name nor broker id",
    6: "a local database has the service",
    7: "no route found",
}
_CLASSES: Final = {
    "mirror": "routes with a mirror address",
    "local": "routes to LOCAL",
    "network": "routes to a network address",
    "transport": "routes to TRANSPORT",
}
_REJECTED: Final = {
    "expired": "expired at {lifetime}",
    "other_broker_id": "has a different broker id, {broker_instance}",
    "names_broker_id": "has a broker id, {broker_instance}",
    "names_no_broker_id": "has no broker id",
    "name_differs_in_case": "for {name}: differs only in case",
    "name_differs_in_white_space": "for {name}: differs in white space",
    "name_differs_in_unicode_form": "for {name}: looks the same, but uses other Unicode code points",
    "pending_request": "not asked again: a route request for this service is pending",
    "not_the_picked_id": "has a broker id that was not picked, {broker_instance}",
}
_UNUSABLE: Final = {
    "service_not_found": "no database of this instance {accepts} the conversation",
    "address_unusable": "the service name does not begin with an address (host:port)",
}
_ORIGINS: Final = {
    "begun_here": "because the conversation started there",
    "from_outside": "because the message arrived from another instance",
    "re_entered": "because the next hop is this instance itself; the conversation is now routed like a message from another instance",
}
_SEARCH_ORDER: Final = {
    "begun_here": "; the sender's own database is searched first",
    "from_outside": "; no database is preferred for a message from another instance",
    "re_entered": "; no database is preferred for a message from another instance",
}
_PICKS: Final = {
    "hash": "picked by conversation id",
    "round_robin": "picked in turn",
    "first": "picked as the first",
}


def render(details: dict[str, Any], *, width: int = _WIDTH) -> str:
    """Returns the text of an explanation, with prose of at most `width` columns; its last line is the decision, without a line break."""
    lines = list(_conversation(details))
    for table in details["passes"]:
        lines += ["", *_table(table, details)]
    if details["picks_undetermined"]:
        lines += [
            "",
            *_wrapped(
                "One of several equal candidates is picked by conversation id. No conversation id was given, so the first candidate is shown.",
                "Note: ",
            ),
        ]
    actions = advice(details)
    if actions:
        lines += ["", "What to do"]
    for action in actions:
        lines += _wrapped(action.sentence, "  - ")
        if action.command is not None:
            lines.append(f"      {action.command}")
    effect = _until_delivered(details)
    if effect is not None:
        lines += ["", *_wrapped(effect, "Effect: ")]
    fitted = (part for line in lines for part in _wrap_line(line, min(width, _WIDTH)))
    return restore_spaces("\n".join([*fitted, "", _decision(details)]))


def _conversation(details: dict[str, Any]) -> Iterator[str]:
    conversation = details["conversation"]
    origin = "another instance" if conversation["database"] is None else f"database {quoted(conversation['database'])}"
    subject = "Conversation with" if conversation["is_initiator"] else "Reply to"
    yield f"{subject} the service {quoted(conversation['to_service_name'])}"
    yield f"  broker id   {conversation['to_broker_instance'] or 'not specified'}"
    yield f"  started in  {origin}" if conversation["is_initiator"] else f"  comes from  {origin}"
    yield f"  sender      {'the initiator' if conversation['is_initiator'] else 'the target, so this is a reply'}"
    if conversation["conversation_id"] is not None:
        yield f"  id          {conversation['conversation_id']}"
    yield f"  at          {timestamp_text(details['now'])}"
    yield f"  forwarding  {'on' if details['message_forwarding'] else 'off'}"


def _table(table: dict[str, Any], details: dict[str, Any]) -> Iterator[str]:
    database = quoted(table["database"])
    is_reply = not details["conversation"]["is_initiator"]
    is_sent_here = is_reply and table["origin"] == "begun_here"
    origin = "because this database sends the reply" if is_sent_here else _ORIGINS[table["origin"]]
    yield from _wrapped(f"sys.routes of {database}, {origin}", "Routing table: ")
    if table["sender_disabled"]:
        waiting = "its replies wait" if is_reply else "conversations started there wait"
        yield from _wrapped(f"not read: message delivery is disabled in {database}, so {waiting}", "  ")
        return
    if table["reply"] is not None:
        yield from _reply(table["reply"], details)
        if table["reply"]["applies"]:
            return
    yield f"  {quantity(table['route_count'], 'route')}, {table['expired_count'] or 'none'} expired"
    yield ""
    yield "Find: the search ends at the first step that finds a route"
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
        yield f"Next hop: {table['next_hop']['address']}, {_hop_owner(table['next_hop'])}"


def _reply(reply: dict[str, Any], details: dict[str, Any]) -> Iterator[str]:
    if reply["applies"]:
        yield from _wrapped(
            "not read: a database of this instance has the broker id of this reply, so the reply is delivered there or dropped",
            "  ",
        )
        yield from _databases(reply["databases"], details)
    else:
        has = _as_known("has", "have", details)
        yield from _wrapped(
            f"no database of this instance {has} the broker id of this reply, so it is routed like any other message",
            "  ",
        )


def _step(step: dict[str, Any]) -> Iterator[str]:
    if not step["tried"]:
        verdict = "not tried"
    elif step["hosts"]:
        verdict = f"found {quantity(len(step['hosts']), 'database')}"
    elif step["matched"]:
        verdict = f"found {quantity(len(step['matched']), 'route')}"
    else:
        verdict = "" if step["step"] == _LAST_STEP else "found none"
    yield f"  {step['step']}  {_STEPS[step['step']]:<42}{verdict}".rstrip()
    if step["note"] != _NOTE_FOUND:
        yield from _wrapped(step["note"], "     ")
    for host in step["hosts"]:
        yield from _wrapped(f"database {quoted(host)}", "     + ")
    for route in step["matched"]:
        yield from _wrapped(route_text(route), "     + ")
    for rejected in step["rejected"]:
        yield from _wrapped(f"{route_text(rejected['route'])} ({_rejection(rejected)})", "     - ")
    if step["rejected_count"] > len(step["rejected"]):
        yield f"     - and {step['rejected_count'] - len(step['rejected'])} more"
    if len(step["candidate_broker_ids"]) > 1:
        yield f"     {step['picked_broker_id']} is picked from {quantity(len(step['candidate_broker_ids']), 'broker id')}"


def _rejection(rejected: dict[str, Any]) -> str:
    route = rejected["route"]
    lifetime, name = route["lifetime"], route["remote_service_name"]
    return _REJECTED[rejected["why"]].format(
        lifetime=lifetime and timestamp_text(lifetime),
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
            why = _UNUSABLE[reasons[number]].format(accepts=_as_known("can accept", "accept", details))
            yield from _wrapped(f"{text} ({why})", "     - ")
        elif group["picked"] is not None and group["picked"]["route_id"] == number:
            yield from _wrapped(f"{text} ({_pick(details)})" if usable > 1 else text, "     + ")
        else:
            yield from _wrapped(f"{text} (not picked)" if group["picked"] is not None else text, "     + ")


def _locate(locate: dict[str, Any], origin: str, details: dict[str, Any]) -> Iterator[str]:
    broker_id = locate["broker_instance"]
    if broker_id is not None:
        yield f"Locate: the database with broker id {broker_id}, if it has the service"
    else:
        yield f"Locate: a database that has the service{_SEARCH_ORDER[origin]}"
    yield from _databases(locate["databases"], details, broker_id)
    if not locate["databases"]:
        or_id = "" if broker_id is None or details.get("unknown_broker_ids") else " or the broker id"
        yield f"  - no database of this instance has the service{or_id}"
    # No database is picked if a route other than the LOCAL route was chosen.
    if len(locate["candidates"]) > 1 and locate["picked"] is not None:
        yield from _wrapped(f"{quoted(locate['picked'])} is {_pick(details)}", "  ")


def _as_known(verb: str, infinitive: str, details: dict[str, Any]) -> str:
    """Returns the verb of a negative statement: `verb`, or `is known to ...` if broker ids are missing and the statement is therefore uncertain."""
    return f"is known to {infinitive}" if details.get("unknown_broker_ids") else verb


def _databases(databases: list[dict[str, Any]], details: dict[str, Any], broker_id: str | None = None) -> Iterator[str]:
    width = max((len(quoted(database["name"])) for database in databases), default=0)
    for database in databases:
        sign = "+" if database["has_service"] else "-"
        state = "has the service" if database["has_service"] else "does not have the service"
        if broker_id is not None and database["broker_instance"] != broker_id:
            sign = "-"
            is_unknown = database["name"] in details.get("unknown_broker_ids", ())
            state += "; its broker id is not known" if is_unknown else ", but has a different broker id"
        if not database["is_broker_enabled"]:
            sign, state = "-", f"{state}; message delivery is disabled"
        yield f"  {sign} {quoted(database['name']):<{width}}  {state}"


def _pick(details: dict[str, Any]) -> str:
    return _PICKS["first" if details["picks_undetermined"] else details["tie_break"]]


def _hop_owner(hop: dict[str, Any]) -> str:
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
            verb = "sent" if outcome == "REMOTE" else "forwarded"
            mirror = f", mirror {decision['mirror_address']}," if decision["mirror_address"] is not None else ""
            return f"{outcome}, {verb} to {decision['next_hop_address']}{mirror}{_by_route(details)}"
        case "DELAYED":
            return (
                f"DELAYED, {'dropped by this instance' if _is_from_outside(details) else f'waits {_waits_in(details)}'}"
            )
        case _:
            return "DROPPED, not acknowledged"


def _until_delivered(details: dict[str, Any]) -> str | None:
    outcome = details["decision"]["outcome"]
    if outcome == "DELAYED" and not _is_from_outside(details):
        return "no message is lost; the conversation is routed again after a timeout."
    if outcome in ("DELAYED", "DROPPED"):
        place = "" if _is_from_outside(details) else f" {_waits_in(details)}"
        return f"the sender keeps the message{place} and resends it until it is acknowledged."
    return None


def _is_from_outside(details: dict[str, Any]) -> bool:
    """Returns whether the message comes from another instance; only its sender keeps such a message."""
    return details["conversation"]["database"] is None


def _waits_in(details: dict[str, Any]) -> str:
    return f"in the transmission queue of {quoted(details['conversation']['database'])}"


def _by_route(details: dict[str, Any]) -> str:
    picked = [group["picked"] for group in details["passes"][-1]["classes"] if group["picked"] is not None]
    return f" by {route_name(picked[-1])}" if picked else ""


def _wrapped(text: str, indent: str) -> list[str]:
    """Returns a paragraph that is wrapped later; the first line starts with `indent`, the others with as many spaces."""
    return [f"{indent}{_HANGING}{text}"]


def _wrap_line(line: str, width: int) -> list[str]:
    indent, mark, text = line.partition(_HANGING)
    if not mark:
        return [line]
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True, repr=False)
class Explanation:
    """How one conversation was routed: every routing table, step and route that was considered, and the decision.

    `str()` returns it as text for an administrator, and `to_dict()` as a dict.

    Attributes:
        details: A dict with the conversation, the decision, and the routing tables that were read (`passes`). Each
            table lists its steps, the routes that each step considered, the classes of routes, and the databases.
            `to_dict` returns a copy.

    Examples:
        >>> from ssbroker import Catalog, Router, schemas
        >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
        >>> print(str(explanation).splitlines()[-1])
        Decision: DELAYED, waits in the transmission queue of "msdb" (step 7, no_route).
    """

    details: dict[str, Any]

    @property
    def decision(self) -> dict[str, Any]:
        """The decision, by the column names of `schemas.DECISIONS`; `broker_instance` is a `uuid.UUID` or None."""
        decision = dict(self.details["decision"])
        broker_instance = decision["broker_instance"]
        decision["broker_instance"] = None if broker_instance is None else uuid.UUID(broker_instance)
        return decision

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the explanation as values that JSON can represent; GUIDs and timestamps are strings.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
            >>> [step["step"] for step in explanation.to_dict()["passes"][0]["steps"]]
            [1, 2, 3, 4, 5, 6, 7]
        """
        return copy.deepcopy(self.details)

    def __str__(self) -> str:
        return render(self.details)

    def _repr_html_(self) -> str:
        *steps, decision = str(self).splitlines()
        return notebook.section(
            decision, notebook.collapsible("Steps", notebook.preformatted("\n".join(steps)), is_open=True)
        )

    def __repr__(self) -> str:
        decision = self.details["decision"]
        return f"<Explanation of {self.details['conversation']['to_service_name']!r}: {decision['outcome']}, {decision['reason']}>"
