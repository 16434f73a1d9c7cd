"""What to do with conversations that have messages waiting: to which database they go, or why they stay."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ssbroker import moment
from ssbroker.broker.asking.dynamic_routing import Ask
from ssbroker.broker.delivery.transport import Outgoing
from ssbroker.broker.delivery.ways import Decision, Ways, explain, is_wanted, missing_in
from ssbroker.broker.dialogs import status
from ssbroker.broker.dialogs.status import Status
from ssbroker.explanation import Explanation
from ssbroker.protocol.event_steps import Classification
from ssbroker.protocol.events import MessageClassify
from ssbroker.store.endpoints import Endpoint

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

_SENDER_DISABLED: Final = "sender_disabled"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with some conversations of a database."""

    local: dict[tuple[str, bytes | None], list[Endpoint]] = field(default_factory=dict)
    """Those for each database of this instance, by its name and its broker id."""
    outgoing: list[Outgoing] = field(default_factory=list)
    """Those for other instances."""
    stays: dict[int, Status] = field(default_factory=dict)
    """Why the others stay, by the id of the sender."""
    asks: dict[Ask, list[int]] = field(default_factory=dict)
    """Those of them for which a route is to be asked for (R14)."""


def plan(ways: Ways, database: Database, senders: Sequence[Endpoint], *, has_transport: bool) -> Plan:
    """Routes conversations (B10), and tells the subscribers what became of each.

    Args:
        ways: Where conversations go.
        database: The senders' database.
        senders: The senders.
        has_transport: Whether messages can leave the instance.

    Returns:
        What to do.
    """
    now = database.now()
    found = Plan()
    explained: dict[tuple[str, bytes | None, int], Explanation] = {}
    router = database.instance.router(tie_break=ways.tie_break)
    for sender, decision in zip(senders, ways.decisions(database.name, senders), strict=True):
        _tell(database, sender, decision)
        if decision.is_local and decision.target_database is not None:
            found.local.setdefault((decision.target_database, decision.broker_instance), []).append(sender)
        elif decision.next_hop_address is not None and has_transport:
            found.outgoing.append(Outgoing(database, sender, decision))
        else:
            asked = (sender.far_service, sender.far_broker_instance, sender.is_initiator)
            if asked not in explained:  # the same for all of them: what stays has found nothing to pick from
                explained[asked] = explain(router, database.name, sender, now=now)
            is_mirror = decision.reason == _SENDER_DISABLED and database.mirroring_role == "mirror"
            why = status.mirror_copy(database.name) if is_mirror else status.classified(explained[asked])
            found.stays[sender.endpoint_id] = why or status.unclassified("its route has just changed")
            if is_wanted(explained[asked]):
                ask = Ask(missing_in(explained[asked]), sender.far_service, sender.far_broker_instance)
                found.asks.setdefault(ask, []).append(sender.endpoint_id)
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
