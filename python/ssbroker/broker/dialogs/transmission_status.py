"""The texts of `transmission_status`: why messages wait, and how to fix it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ssbroker._text import enable_queue_command, quoted, restore_spaces
from ssbroker.advice import Advice, advice
from ssbroker.explain import Explanation
from ssbroker.protocol.wire.frames import DropReason

LENGTH_MAX: Final = 4000
"""Maximum number of characters of `transmission_status`, as in SQL Server."""
NO_PROBLEM: Final = ""
"""The status if no problem is known."""

_LOCAL: Final = "LOCAL"


@dataclass(frozen=True, slots=True)
class TransmissionStatus:
    """Why messages wait.

    Attributes:
        number: The Service Broker error number of the reason.
        sentence: The reason and how to fix it.
    """

    number: int
    sentence: str

    def __str__(self) -> str:
        text = restore_spaces(f"{self.number}: {self.sentence}")
        return text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 1] + "\N{HORIZONTAL ELLIPSIS}"


def routing_problem(explanation: Explanation) -> TransmissionStatus | None:
    """Returns why messages of a conversation cannot be delivered; None if routing delivers them in this instance."""
    details = explanation.details
    decision = details["decision"]
    if decision["outcome"] == _LOCAL:
        return None
    if decision["next_hop_address"] is not None:
        return no_endpoint(decision["next_hop_address"])
    number, reason = (_route_requested if is_pending(details) else _REASONS[decision["reason"]])(details)
    how_to_explain = f"To see the route: {_explain_calls(details['conversation'])}."
    return TransmissionStatus(number, " ".join([f"{reason}.", *map(_advice_text, advice(details)), how_to_explain]))


def is_pending(details: dict[str, Any]) -> bool:
    """Returns whether a request for the service's route is open, so that step 4 of routing sent no other request (R14)."""
    steps = details["passes"][-1]["steps"]
    return any(each["why"] == "pending_request" for step in steps for each in step["rejected"])


def no_endpoint(next_hop: str) -> TransmissionStatus:
    """Returns the status of a message for another instance while no process serves this one."""
    return TransmissionStatus(
        9748,
        f"the message is for another instance, at {next_hop}, but no process serves this instance: run "
        "`ssbroker serve FOLDER` or `with instance.serve()`. If the service is in this instance, change the address of its route: ALTER ROUTE <name> WITH ADDRESS = N'LOCAL';",
    )


def route_refused(service: str, refusal: str) -> TransmissionStatus:
    """Returns the status after the configuration service has refused a route request (R62)."""
    return TransmissionStatus(
        9761,
        f"the configuration service has no route to the service {quoted(service)}: {refusal}. Add the service to its directory, "
        "or create the route manually with CREATE ROUTE. The request is repeated automatically after a minute.",
    )


def database_is_mirror(database: str) -> TransmissionStatus:
    """Returns the status in a mirror database, whose principal sends the messages instead."""
    return TransmissionStatus(
        28018,
        f"{quoted(database)} is a mirror, which sends no messages. The message is sent once the database is the principal: "
        'database.set_mirroring_role("principal")',
    )


def queue_disabled(database: str, schema: str, queue: str) -> TransmissionStatus:
    """Returns the status of a message that has arrived while its queue is disabled (P34)."""
    return TransmissionStatus(
        11219,
        f"the message waits in {quoted(database)} because its queue is disabled: by ALTER QUEUE, or by poison message "
        "handling (`ssbroker status` shows the last error). Correct the cause, then enable the queue: "
        + enable_queue_command(database, schema, queue),
    )


def unreachable(address: str, why: str) -> TransmissionStatus:
    """Returns the status of messages whose next hop cannot be reached."""
    return TransmissionStatus(
        9754,
        f"the next hop {address} cannot be reached: {why}. The connection is retried automatically. {_connection_advice(why)}",
    )


def _connection_advice(why: str) -> str:
    """Returns how to fix a connection; the reasons are those of `tls.py`."""
    if "the peer rejects the certificate of this instance" in why:
        return (
            "If the certificate of this instance has expired, renew it. Otherwise, make the peer accept the certificate: there, use the "
            "options authority and names, or the option pinned."
        )
    if "certificate has expired" in why or "certificate is not yet valid" in why:
        return "Renew the certificate of the peer, and compare the clocks of the two machines."
    if "to accept this peer" in why:
        return "If this is not the intended peer, correct the address of the route."
    if "certificate" in why:
        return (
            "If this is the intended peer, make this instance trust its certificate, with the option authority or pinned. Otherwise, correct "
            "the address of the route."
        )
    return "If the address is wrong: ALTER ROUTE <name> WITH ADDRESS = N'TCP://<host>:<port>';"


def unacknowledged(address: str) -> TransmissionStatus:
    """Returns the status of messages that were sent but not acknowledged."""
    return TransmissionStatus(
        9753,
        f"sent to {address}, but not acknowledged yet. The message is retransmitted automatically. If this status persists, check the "
        "target's events (Message Undeliverable, Message Classify), its route back to the service of this instance, and the forwarders between "
        "the two instances.",
    )


def dropped_by_next_hop(address: str, reason: DropReason) -> TransmissionStatus:
    """Returns the status of messages that the next hop has received but does not acknowledge."""
    return TransmissionStatus(
        9792 if reason is DropReason.FORWARDING_DISABLED else 9753,
        f"sent to {address}, but {_DROP_TEXTS[reason]} The message is retransmitted automatically.",
    )


_DROP_TEXTS: Final = {
    DropReason.NOT_ACCEPTED: "that instance has no route or service for it and dropped it. The event Message Undeliverable there states the "
    "reason. If this instance should send it elsewhere: ALTER ROUTE <name> WITH ADDRESS = N'TCP://<host>:<port>';",
    DropReason.FORWARDING_DISABLED: "that instance would have to forward it, and message forwarding is disabled there. Change the route so that it leads "
    "to the instance that has the service, or run on that instance: ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);",
    DropReason.NOT_FORWARDED: "that instance could not forward it and dropped it. The event Forwarded Message Dropped there shows the reason.",
    DropReason.NO_RETURN_ROUTE: "that instance cannot acknowledge it, because none of its routes leads back to the service of this "
    "conversation. Run in the target database there: CREATE ROUTE <name> WITH SERVICE_NAME = N'<service>', ADDRESS = N'TCP://<host>:<port>';",
    DropReason.TOO_LARGE: "the message is larger than that instance accepts, so neither it nor the messages after it arrive. Increase "
    "the limit there (limits.max_message_bytes of `ssbroker serve`, max_message_bytes of ProtocolSettings in Python), or end the "
    "conversation and send the content in smaller messages.",
}


def keys_unavailable(why: str) -> TransmissionStatus:
    """Returns the status of messages whose dialog keys cannot be read or written."""
    return TransmissionStatus(
        28050, f"the keys to secure the dialog cannot be read or written: {why}. This is retried automatically."
    )


def no_principal(address: str, mirror_address: str) -> TransmissionStatus:
    """Returns the status of messages for a mirrored route without a known principal (R54)."""
    return TransmissionStatus(
        9787,
        f"neither {address} nor {mirror_address} reports that it is the principal of the mirrored database, so nothing is sent. Both addresses "
        "are queried again automatically.",
    )


def target_locked(database: str) -> TransmissionStatus:
    """Returns the status if other transactions locked the target database for longer than `lock_timeout`."""
    return TransmissionStatus(
        9749,
        f"other transactions locked {quoted(database)} for longer than lock_timeout. Delivery is retried automatically; "
        "if the problem persists, look for a transaction that is left open.",
    )


def unavailable(database: str, reason: str) -> TransmissionStatus:
    """Returns the status if the target database cannot be written: its file is missing, read-only or damaged, or the disk is full."""
    return TransmissionStatus(
        28012,
        f"the target database {quoted(database)} cannot be written: {reason}. Delivery is retried automatically.",
    )


def other_failure(reason: str) -> TransmissionStatus:
    """Returns the status if delivery failed for a reason that has no status of its own."""
    return TransmissionStatus(9798, f"the message could not be delivered: {reason}. Delivery is retried automatically.")


def dropped_by_target(number: int, reason: str) -> TransmissionStatus:
    """Returns the status if the target dropped the message."""
    return TransmissionStatus(
        number, f"the target dropped the message: {reason}. The message is sent again automatically."
    )


def _advice_text(action: Advice) -> str:
    return action.sentence if action.command is None else f"{action.sentence} {action.command}"


_OPTIONS: Final = {"to_broker_instance": "--broker-instance", "database": "--from"}


def _explain_calls(conversation: dict[str, Any]) -> str:
    """Returns the command and the call that explain the routing of a conversation."""
    service = conversation["to_service_name"]
    given = {key: str(conversation[key]) for key in _OPTIONS if conversation[key] is not None}
    options = [word for key, value in given.items() for word in (_OPTIONS[key], value)]
    command = shlex.join(["ssbroker", "explain", "FOLDER", "--to-service", service, *options])
    arguments = ", ".join([repr(service), *(f"{key}={value!r}" for key, value in given.items())])
    return f"`{command}`, or instance.router().explain({arguments})"


def _no_route(details: dict[str, Any]) -> tuple[int, str]:
    database = details["passes"][-1]["database"]
    return 9750, f"no route of {quoted(database)} leads to {_service(details)}"


def _route_requested(details: dict[str, Any]) -> tuple[int, str]:
    return 9770, f"routing information for {_service(details)} has been requested"


def _service_not_found(details: dict[str, Any]) -> tuple[int, str]:
    last_pass = details["passes"][-1]
    searched = last_pass["locate"] or last_pass["reply"] or {"databases": []}
    broker_id = searched.get("broker_instance")
    found = [each for each in searched["databases"] if broker_id in (None, each["broker_instance"])]
    disabled = [quoted(each["name"]) for each in found if each["has_service"] and not each["is_broker_enabled"]]
    if disabled:
        return 28012, f"the broker of {', '.join(disabled)}, which has {_service(details)}, is disabled"
    if broker_id is not None and not found:
        return (
            9795,
            f"no database of this instance has the broker id {broker_id}, which the conversation or its route names",
        )
    if broker_id is not None:
        return (
            9793,
            f"{quoted(found[0]['name'])}, which has the broker id {broker_id}, does not have {_service(details)}",
        )
    return 9796, f"a route to LOCAL matches, but no database of this instance has {_service(details)}"


def _sender_disabled(details: dict[str, Any]) -> tuple[int, str]:
    return 9791, f"the broker of the sending database {quoted(details['passes'][-1]['database'])} is disabled"


def _forwarding_disabled(details: dict[str, Any]) -> tuple[int, str]:
    return (
        9792,
        f"the route to {_service(details)} leads through this instance to another one, but message forwarding is disabled",
    )


def _routing_loop(details: dict[str, Any]) -> tuple[int, str]:
    return 28017, f"the route to {_service(details)} is a loop that leads back to this instance"


def _address_unusable(details: dict[str, Any]) -> tuple[int, str]:
    return 9785, f"the route to {_service(details)} takes its address from the service name, which contains no address"


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
"""For each `reason` of a decision that delays a message: the function that returns the error number and the text."""
