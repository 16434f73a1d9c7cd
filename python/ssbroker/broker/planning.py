"""What to do with conversations that have messages waiting: to which database they go, or why they stay."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ssbroker import moment
from ssbroker.broker import status
from ssbroker.broker.status import Status
from ssbroker.broker.transport import Outgoing
from ssbroker.broker.ways import Decision, decide, explain
from ssbroker.protocol.event_steps import Classification
from ssbroker.protocol.events import MessageClassify
from ssbroker.store.endpoints import Endpoint

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.routing import Router


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with some conversations of a database."""

    local: dict[tuple[str, bytes | None], list[Endpoint]] = field(default_factory=dict)
    """Those for each database of this instance, by its name and its broker id."""
    outgoing: list[Outgoing] = field(default_factory=list)
    """Those for other instances."""
    stays: dict[int, Status] = field(default_factory=dict)
    """Why the others stay, by the id of the sender."""


def plan(router: Router, database: Database, senders: Sequence[Endpoint], *, has_transport: bool) -> Plan:
    """Routes conversations (B10), and tells the subscribers what became of each.

    Args:
        router: On the catalog to go by.
        database: The senders' database.
        senders: The senders.
        has_transport: Whether messages can leave the instance.

    Returns:
        What to do.
    """
    now = database.now()
    found = Plan()
    explained: dict[tuple[str, bytes | None, int], Status | None] = {}
    for sender, decision in zip(senders, decide(router, database.name, senders, now=now), strict=True):
        _tell(database, sender, decision)
        if decision.is_local and decision.target_database is not None:
            found.local.setdefault((decision.target_database, decision.broker_instance), []).append(sender)
        elif decision.next_hop_address is not None and has_transport:
            found.outgoing.append(
                Outgoing(database, sender.endpoint_id, decision.next_hop_address, decision.mirror_address)
            )
        else:
            asked = (sender.far_service, sender.far_broker_instance, sender.is_initiator)
            if asked not in explained:  # the same for all of them: what stays has found nothing to pick from
                explained[asked] = status.classified(explain(router, database.name, sender, now=now))
            found.stays[sender.endpoint_id] = explained[asked] or status.unclassified("its route has just changed")
    return found


def _tell(database: Database, sender: Endpoint, decision: Decision) -> None:
    log = database.instance.events
    if not log.wants(MessageClassify):
        return
    if decision.is_local:
        classification = Classification.LOCAL
    elif decision.next_hop_address is not None:
        classification = Classification.REMOTE
    else:
        classification = Classification.DELAYED
    log.emit(
        MessageClassify(
            at=moment.microseconds(database.now()),
            database=database.name,
            conversation_id=uuid.UUID(bytes=sender.conversation_id),
            classification=classification,
            to_service_name=sender.far_service,
            to_broker_instance=None if decision.broker_instance is None else uuid.UUID(bytes=decision.broker_instance),
            next_hop_address=decision.next_hop_address,
            reason=decision.reason,
        )
    )
