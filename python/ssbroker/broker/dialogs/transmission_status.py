"""The texts of `transmission_status`: why messages wait, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ssbroker._text import quoted, restore_spaces
from ssbroker.advice import Advice, advice
from ssbroker.explain import Explanation

LENGTH_MAX: Final = 4000
"""The characters that `transmission_status` holds (fact 151)."""
DELIVERED: Final = ""
"""What it says where nothing is in the way."""

_ON_ITS_WAY: Final = ("LOCAL",)


@dataclass(frozen=True, slots=True)
class TransmissionStatus:
    """Why messages wait.

    Attributes:
        number: Service Broker's number of the reason (facts 135, 153).
        sentence: The reason and what to do, for a person.
    """

    number: int
    sentence: str

    def __str__(self) -> str:
        text = restore_spaces(f"{self.number}: {self.sentence}")
        return text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 1] + "\N{HORIZONTAL ELLIPSIS}"


def classified(explanation: Explanation) -> TransmissionStatus | None:
    """What routing has in the way of a conversation.

    Args:
        explanation: The way of the conversation, as `Router.explain` tells it.

    Returns:
        The status; None where a database of this instance takes the conversation.

    Examples:
        >>> from ssbroker import Catalog, Router, schemas
        >>> way = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
        >>> print(str(classified(way))[:65])
        9750: no route of "msdb" leads to the service "//Orders". If the
    """
    details = explanation.details
    decision = details["decision"]
    if decision["outcome"] in _ON_ITS_WAY:
        return None
    if decision["next_hop_address"] is not None:
        return no_endpoint(decision["next_hop_address"])
    number, reason = (_route_requested if is_pending(details) else _REASONS[decision["reason"]])(details)
    shown = f"the way that was tried: instance.router().explain({_asked(details['conversation'])})"
    return TransmissionStatus(number, " ".join([f"{reason}.", *map(_said, advice(details)), f"To see {shown}."]))


def is_pending(details: dict[str, Any]) -> bool:
    """Whether a request for the service's route is open, so that nothing was asked in step 4 (R14).

    Args:
        details: The way of a conversation, as `Explanation.details` has it.

    Returns:
        Whether.
    """
    steps = details["passes"][-1]["steps"]
    return any(each["why"] == "pending_request" for step in steps for each in step["rejected"])


def no_endpoint(next_hop: str) -> TransmissionStatus:
    """The message is for another instance, and this one has nothing to send with.

    Args:
        next_hop: The address to which the route leads.

    Returns:
        The status.
    """
    return TransmissionStatus(
        9748,
        f"the message is for another instance, at {next_hop}, and no process serves this one, so that nothing is sent: "
        "`ssbroker serve FOLDER`, or `with instance.serve()`. If the service is in this instance, give its route the address LOCAL: ALTER ROUTE <name> WITH ADDRESS = N'LOCAL';",
    )


def route_refused(service: str, refusal: str) -> TransmissionStatus:
    """The configuration service has ended the request for a route with an error (R62).

    Args:
        service: The service to which no route leads.
        refusal: The error.

    Returns:
        The status.
    """
    return TransmissionStatus(
        9761,
        f"the configuration service has no route to the service {quoted(service)}: {refusal}. Add the service to its directory, "
        "or make the route by hand: CREATE ROUTE. It is asked again by itself after a minute.",
    )


def mirror_copy(database: str) -> TransmissionStatus:
    """The sender's database is the mirror of its pair, so its principal sends (N25).

    Args:
        database: The sender's database.

    Returns:
        The status.
    """
    return TransmissionStatus(
        28018,
        f"{quoted(database)} is the mirror of a mirrored pair, and sends nothing. It goes once the database is the principal: "
        'database.set_mirroring_role("principal")',
    )


def queue_off(database: str, queue: str) -> TransmissionStatus:
    """The message has arrived, and the queue that it is for is off (P34).

    Args:
        database: The queue's database.
        queue: The queue, as T-SQL names it.

    Returns:
        The status.
    """
    return TransmissionStatus(
        11219,
        f"the message waits in {quoted(database)} until its queue is on: ALTER QUEUE {queue} WITH STATUS = ON; "
        "Five rollbacks in a row of transactions that received from it turn a queue off: look for what cannot be processed first.",
    )


def busy(database: str) -> TransmissionStatus:
    """Others were writing to the target's database for longer than `lock_timeout`.

    Args:
        database: The target's database.

    Returns:
        The status.
    """
    return TransmissionStatus(
        9749,
        f"others were writing to {quoted(database)} for longer than lock_timeout. The message is sent again by itself; "
        "if this stays, look for a transaction there that is left open.",
    )


def unavailable(database: str, reason: str) -> TransmissionStatus:
    """The target's database cannot take anything: its file is gone, read-only, damaged, or its disk is full.

    Args:
        database: The target's database.
        reason: What its file says.

    Returns:
        The status.
    """
    return TransmissionStatus(
        28012,
        f"{quoted(database)}, which the message is for, cannot be written to: {reason}. The message is sent again by itself once "
        "that is mended.",
    )


def unclassified(reason: str) -> TransmissionStatus:
    """Delivery itself has failed.

    Args:
        reason: With what.

    Returns:
        The status.
    """
    return TransmissionStatus(9798, f"the message could not be delivered: {reason}. It is tried again by itself.")


def undeliverable(number: int, reason: str) -> TransmissionStatus:
    """The target's side dropped the message without an answer.

    Args:
        number: Service Broker's number of the reason (fact 135).
        reason: What it says.

    Returns:
        The status.
    """
    return TransmissionStatus(number, f"the target dropped the message: {reason}. It is sent again by itself.")


def _said(action: Advice) -> str:
    return action.sentence if action.command is None else f"{action.sentence} {action.command}"


def _asked(conversation: dict[str, Any]) -> str:
    named = {key: conversation[key] for key in ("to_broker_instance", "database") if conversation[key] is not None}
    return ", ".join([repr(conversation["to_service_name"]), *(f"{key}={value!r}" for key, value in named.items())])


def _no_route(details: dict[str, Any]) -> tuple[int, str]:
    table = details["passes"][-1]["database"]
    return 9750, f"no route of {quoted(table)} leads to {_service(details)}"


def _route_requested(details: dict[str, Any]) -> tuple[int, str]:
    return 9770, f"routing information for {_service(details)} has been asked for"


def _service_not_found(details: dict[str, Any]) -> tuple[int, str]:
    table = details["passes"][-1]
    looked_at = table["locate"] or table["reply"] or {"databases": []}
    wanted = looked_at.get("broker_instance")
    found = [each for each in looked_at["databases"] if wanted in (None, each["broker_instance"])]
    disabled = [quoted(each["name"]) for each in found if each["has_service"] and not each["is_broker_enabled"]]
    if disabled:
        return 28012, f"the broker of {', '.join(disabled)}, where {_service(details)} is, is disabled (28013)"
    if wanted is not None and not found:
        return (
            9795,
            f"no database of this instance has the broker id {wanted}, which the conversation or its route names",
        )
    if wanted is not None:
        return 9793, f"{quoted(found[0]['name'])}, whose broker id {wanted} is, does not have {_service(details)}"
    return 9796, f"a route to LOCAL matches, and no database of this instance has {_service(details)}"


def _sender_disabled(details: dict[str, Any]) -> tuple[int, str]:
    return 9791, f"the broker of {quoted(details['passes'][-1]['database'])}, where the message was sent, is disabled"


def _forwarding_disabled(details: dict[str, Any]) -> tuple[int, str]:
    return (
        9792,
        f"the route to {_service(details)} leads back to this instance and from there on, and forwarding is off",
    )


def _routing_loop(details: dict[str, Any]) -> tuple[int, str]:
    return 28017, f"the route to {_service(details)} leads back to this instance, again and again"


def _address_unusable(details: dict[str, Any]) -> tuple[int, str]:
    return 9785, f"the route to {_service(details)} takes its address from the service's name, and that holds none"


def _service(details: dict[str, Any]) -> str:
    return f"the service {quoted(details['conversation']['to_service_name'])}"


_REASONS: Final[dict[str, Callable[[dict[str, Any]], tuple[int, str]]]] = {
    "address_unusable": _address_unusable,
    "forwarding_disabled": _forwarding_disabled,
    "no_route": _no_route,
    "route_requested": _route_requested,
    "routing_loop": _routing_loop,
    "sender_disabled": _sender_disabled,
    "service_not_found": _service_not_found,
}
"""For each `reason` of a decision that leaves a message where it is: the number and what it says."""
