"""BEGIN DIALOG (facts 106 to 110)."""

from __future__ import annotations

import uuid
from typing import Final

from ssbroker import guids, options
from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.objects.refusals import existing
from ssbroker.broker.work.telling import told_conversation, told_group
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.protocol.event_steps import ConversationStep, GroupStep
from ssbroker.protocol.names import LIFETIME_MAX, refused
from ssbroker.protocol.retry import SECOND
from ssbroker.protocol.states import BEGUN
from ssbroker.security import at_rest
from ssbroker.store import endpoints
from ssbroker.store import security as stored
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Service

CURRENT_DATABASE: Final = "CURRENT DATABASE"
"""As `broker_instance`: the database's own broker id (fact 106)."""
SERVICE_NAME_MAX: Final = 256


def begin(
    work: Work,
    from_service: str,
    to_service: str,
    *,
    broker_instance: object,
    contract: str,
    lifetime: int | None,
    encryption: bool,
    related_conversation: object,
    related_conversation_group: object,
) -> Endpoint:
    """Makes the initiator's endpoint; nothing is sent (B7)."""
    objects = work.objects
    service = existing(objects.services, from_service, kind="service")
    kind = existing(objects.contracts, contract, kind="contract")
    if not isinstance(to_service, str):
        raise SchemaError(f"to_service: expected str, got {type(to_service).__name__}", column="to_service")
    if not 0 < len(to_service) <= SERVICE_NAME_MAX or not options.is_text(to_service):
        raise refused(8412, name=to_service)
    expires = work.now() + seconds(LIFETIME_MAX if lifetime is None else lifetime, name="lifetime") * SECOND
    group = _group(work, service, related_conversation, related_conversation_group)
    endpoint = endpoints.insert(
        work.connection,
        conversation_handle=work.new_id(),
        conversation_id=work.new_id(),
        is_initiator=True,
        conversation_group_id=group,
        service_id=service.service_id,
        service_contract_id=kind.service_contract_id,
        far_service=to_service,
        far_broker_instance=_broker_instance(work, broker_instance),
        is_bound=False,
        is_encrypted=encryption,
        state=BEGUN,
        lifetime=expires,
        priority=contract_rules.priority(
            objects,
            service_contract_id=kind.service_contract_id,
            service_id=service.service_id,
            far_service=to_service,
        ),
    )
    if to_service in objects.security.by_service:  # N20: a binding secures what begins while it is there
        key = stored.keep_session_key(work.connection, endpoint.endpoint_id, at_rest.new_key())
        endpoint = endpoint._replace(session_key=key)
    work.begins(endpoint.endpoint_id)
    work.effects.is_due_at(expires)
    if related_conversation is None and related_conversation_group is None:
        told_group(work, group, GroupStep.CREATE)
    told_conversation(work, endpoint, ConversationStep.BEGIN_DIALOG)
    return endpoint


def seconds(value: object, *, name: str) -> int:
    """A lifetime or a timer in whole seconds.

    Raises:
        BrokerError: It is none, or outside of 1 to 2147483647 (8411).

    Examples:
        >>> seconds(60, name="lifetime")
        60
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LIFETIME_MAX:
        raise refused(8411, name=name, value=value)
    return value


def _broker_instance(work: Work, value: object) -> bytes | None:
    if value is None:
        return None
    if value == CURRENT_DATABASE:
        return work.broker_instance
    return guids.as_bytes(value, name="broker_instance")


def _group(work: Work, service: Service, conversation: object, group: object) -> bytes:
    """The conversation group of a new dialog (fact 108)."""
    if conversation is not None and group is not None:
        raise OptionError("related_conversation and related_conversation_group: expected one of them, got both")
    if conversation is not None:
        handle = guids.as_bytes(conversation, name="related_conversation")
        related = endpoints.by_handle(work.connection, handle)
        if related is None:
            raise refused(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
        return _of_service(work, [related], service, related.conversation_group_id)
    if group is not None:
        wanted = guids.as_bytes(group, name="related_conversation_group")
        return _of_service(work, endpoints.in_group(work.connection, wanted, limit=1), service, wanted)
    return work.new_id()


def _of_service(work: Work, members: list[Endpoint], service: Service, group: bytes) -> bytes:
    for member in members:
        if member.service_id != service.service_id:
            other = work.objects.services_by_id[member.service_id].name
            raise refused(9610, service=service.name, other=other)
    return group
