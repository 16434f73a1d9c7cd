"""Whether what arrives over the network may be taken, judged before anything of it is written (B11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.dialogs.arriving import Arrival, Envelope
from ssbroker.broker.dialogs.error_body import Failure, failure
from ssbroker.broker.dialogs.inbound import target_of
from ssbroker.broker.objects.permissions import may_send
from ssbroker.protocol.columns import listed
from ssbroker.protocol.ledger import Endpoint, Key, Refusal
from ssbroker.protocol.names import END_DIALOG, ERROR, LIFETIME_MAX
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.states import State
from ssbroker.store.objects import Contract, MessageType, Objects

_KIND: Final = ("is_initiator", "message_type_name", "is_end_of_dialog", "is_conversation_error")


def envelope_of(endpoint: Endpoint) -> Envelope:
    """What the initiator says of a conversation that begins here.

    Args:
        endpoint: The target's endpoint.

    Returns:
        The envelope of its messages.

    Raises:
        ValueError: The endpoint has no lifetime, which `admitted` gives it.
    """
    if endpoint.lifetime is None or endpoint.far_broker_instance is None:
        raise ValueError(endpoint)
    return Envelope(
        conversation_id=endpoint.conversation_id,
        is_initiator=True,
        from_service_name=endpoint.far_service_name,
        from_broker_instance=endpoint.far_broker_instance,
        to_service_name=endpoint.service_name,
        to_broker_instance=endpoint.broker_instance,
        service_contract_name=endpoint.service_contract_name,
        lifetime=endpoint.lifetime,
        is_encrypted=endpoint.session_key is not None,
    )


def admitted(objects: Objects, endpoint: Endpoint, *, now: int) -> Endpoint | Refusal:
    """A conversation that begins here, with what is settled here, or why it does not.

    Args:
        objects: What stands in the database.
        endpoint: The target's endpoint, as the first row says.
        now: The moment, from which no lifetime is longer than the longest that there is.

    Returns:
        The endpoint or the refusal.
    """
    latest = now + LIFETIME_MAX * SECOND
    asked = replace(endpoint, lifetime=latest if endpoint.lifetime is None else min(endpoint.lifetime, latest))
    found = target_of(objects, envelope_of(asked))
    if isinstance(found, Arrival):
        if found.error is not None:
            return _refusal(found.error)
        return Refusal(-(found.undelivered or 0), found.reason, is_told=False)
    service, contract = found
    if not may_send(objects, service, endpoint.far_certificate):
        return _refusal(failure(8494, service=service.name))
    priority = contract_rules.priority(
        objects,
        service_contract_id=contract.service_contract_id,
        service_id=service.service_id,
        far_service=endpoint.far_service_name,
    )
    return replace(asked, broker_instance=objects.broker.service_broker_guid, priority=priority)


def are_plain(objects: Objects, messages: pa.Table, contracts: Sequence[str]) -> bool:
    """Whether there is nothing to be judged about messages: of each kind among them any may come, whatever it holds.

    Args:
        objects: What stands in the database.
        messages: The messages (`protocol.ledger.MESSAGES`).
        contracts: The contract of each.

    Returns:
        Whether it is so.
    """
    columns: list[list[Any]] = [messages[name].to_pylist() for name in _KIND]
    for contract_name, side, name, is_end, is_error in set(zip(contracts, *columns, strict=True)):
        contract = objects.contracts.get(contract_name)
        if contract is None or is_end or is_error:
            return False
        kind = contract_rules.takeable(objects, contract, name, from_initiator=side)
        if isinstance(kind, Failure) or kind.validation != "N":
            return False
    return True


def judged(
    objects: Objects, messages: pa.Table, contracts: Mapping[Key, tuple[Contract, State]]
) -> Mapping[int, Refusal]:
    """Which messages cannot be taken.

    What comes after this side has ended is dropped, whatever it is; what comes after an error is judged, so that a sender that has
    not heard of it yet is told again.

    Args:
        objects: What stands in the database.
        messages: The messages (`protocol.ledger.MESSAGES`).
        contracts: The contract and the state of each endpoint that they are for; messages of others are not judged.

    Returns:
        The refusals by row.
    """
    kinds: dict[tuple[int, bool, str], MessageType | Failure] = {}
    found: dict[int, Refusal] = {}
    for row, (conversation_id, side, name, is_end, is_error, body) in enumerate(_rows(messages)):
        if (conversation_id, not side) not in contracts:
            continue
        contract, state = contracts[conversation_id, not side]
        if state is State.DO:
            continue
        wanted = END_DIALOG if is_end else ERROR if is_error else None
        if wanted is not None:
            kind: MessageType | Failure = objects.message_types[wanted]
            if name != wanted:
                kind = failure(8498, message_type=name, contract=contract.name)
        else:
            key = (contract.service_contract_id, side, name)
            if key not in kinds:
                kinds[key] = contract_rules.takeable(objects, contract, name, from_initiator=side)
            kind = kinds[key]
        refused = kind if isinstance(kind, Failure) else contract_rules.unfit(kind, body or None)
        if refused is not None:
            found[row] = _refusal(refused)
    return found


def _rows(messages: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns: list[list[Any]] = [listed(messages[name]) for name in ("conversation_id", *_KIND, "message_body")]
    return zip(*columns, strict=True)


def _refusal(why: Failure) -> Refusal:
    return Refusal(why.code, why.description)
