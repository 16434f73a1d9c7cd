"""What a contract lets each side send (facts 113, 139), and the priority that conversations get (fact 148)."""

from __future__ import annotations

from typing import Final

from ssbroker.broker.dialogs.error_body import Failure, failure
from ssbroker.broker.dialogs.validation import complaint
from ssbroker.protocol.names import refused
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Contract, MessageType, Objects

PRIORITY_DEFAULT: Final = 5


def sendable(objects: Objects, endpoint: Endpoint, name: object) -> MessageType:
    """The message type that this side is about to send.

    Raises:
        BrokerError: There is none of this name (8428), the contract does not hold it (8431), or the other side sends it (8432, 8434).
    """
    kind = objects.message_types.get(name) if isinstance(name, str) else None
    if kind is None:
        raise refused(8428, message_type=name)
    contract = objects.contracts_by_id[endpoint.service_contract_id]
    rule = contract.messages.get(kind.message_type_id)
    if rule is None:
        raise refused(8431, contract=contract.name, message_type=name)
    if endpoint.is_initiator and not rule.is_sent_by_initiator:
        raise refused(8432, message_type=name)
    if not endpoint.is_initiator and not rule.is_sent_by_target:
        raise refused(8434, message_type=name)
    return kind


def takeable(objects: Objects, contract: Contract, name: str, *, from_initiator: bool) -> MessageType | Failure:
    """The message type that has arrived from the other side, or what goes back for it (B11)."""
    kind = objects.message_types.get(name)
    rule = None if kind is None else contract.messages.get(kind.message_type_id)
    if kind is None or rule is None:
        return failure(8498, message_type=name, contract=contract.name)
    if not (rule.is_sent_by_initiator if from_initiator else rule.is_sent_by_target):
        return failure(8457, message_type=name, contract=contract.name)
    return kind


def unfit(kind: MessageType, body: bytes | None) -> Failure | None:
    """What goes back for a body that is not what its type demands; None if it is."""
    if kind.validation == "N":
        return None
    reason = complaint(kind.validation, body)
    return None if reason is None else failure(8430, message_type=kind.name, reason=reason)


def priority(objects: Objects, *, service_contract_id: int, service_id: int, far_service: str) -> int:
    """The priority of an endpoint that is being made: that of the broker priority that says most about it (fact 148)."""
    best, best_level = -1, PRIORITY_DEFAULT
    for one in objects.priorities.values():
        said = (
            (one.service_contract_id, service_contract_id),
            (one.local_service_id, service_id),
            (one.remote_service_name, far_service),
        )
        if any(named not in (None, actual) for named, actual in said):
            continue
        # The contract weighs more than the local service, and that more than the remote one.
        weight = sum(rank for rank, (named, _) in zip((4, 2, 1), said, strict=True) if named is not None)
        if weight > best:
            best, best_level = weight, one.priority
    return best_level
