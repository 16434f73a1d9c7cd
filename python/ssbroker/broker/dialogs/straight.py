"""Straight into the queues of the same database, for many conversations at once (P33)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ssbroker.broker.dialogs.arriving import Message
from ssbroker.broker.dialogs.plain import put_plain
from ssbroker.broker.work.work import Way, Work
from ssbroker.protocol.events import Conversation
from ssbroker.store import endpoints
from ssbroker.store.endpoints import Endpoint

Sent: TypeAlias = tuple[Endpoint, Sequence[Message]]
"""A sender, in the state that the send has brought it to, and its messages, numbered and in order."""


def deliver(work: Work, sends: Sequence[Sent], ways: Sequence[Way]) -> set[int]:
    """Delivers what is plain; `arrive` looks at the rest message by message.

    Args:
        work: The transaction.
        sends: What is sent, at most once for each sender.
        ways: Where each of them sends to.

    Returns:
        The senders, by their numbers, all of whose messages were taken.
    """
    if not work.objects.broker.is_delivering or work.effects.wants(Conversation):
        return set()
    here = [send for send, way in zip(sends, ways, strict=True) if way.target_database == work.database]
    ready = endpoints.far_sides_ready(work.connection, (sender for sender, _ in here))
    arrivals: list[Sent] = []
    senders: dict[int, int] = {}
    for sender, messages in here:
        far = ready.get((sender.conversation_id, 1 - sender.is_initiator))
        if far is not None and _are_bound(work, sender, far):
            arrivals.append((far, messages))
            senders[far.endpoint_id] = sender.endpoint_id
    taken = put_plain(work, arrivals)
    endpoints.set_all_taken(work.connection, ((number, endpoint_id) for endpoint_id, number in taken.items()))
    return {senders[endpoint_id] for endpoint_id in taken}


def _are_bound(work: Work, sender: Endpoint, far: Endpoint) -> bool:
    """Whether both sides are each other's, in this database."""
    return bool(
        sender.is_bound
        and far.is_bound
        and far.far_broker_instance == work.broker_instance
        and far.far_service == work.objects.services_by_id[sender.service_id].name
    )
