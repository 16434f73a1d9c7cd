"""Straight into the queues of the same database, for many conversations at once (P33)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.dialogs.arriving import Message
from ssbroker.broker.dialogs.queueing import queue_of
from ssbroker.broker.work.work import Work
from ssbroker.protocol.events import Conversation
from ssbroker.store import endpoints, queues
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import MessageType

Sent: TypeAlias = tuple[Endpoint, Sequence[Message]]
"""A sender as it is after the send, and its messages, numbered and in order."""


def deliver(work: Work, sends: Sequence[Sent]) -> Sequence[Sent]:
    """Delivers what is plain: user messages of conversations that go on, in their turn, to a queue that is on, without validation.

    Args:
        work: The transaction.
        sends: What is sent, at most once for each sender.

    Returns:
        What is not plain; `arrive` looks at that message by message.
    """
    if not work.objects.broker.is_delivering or work.effects.wants(Conversation):
        return sends
    ready = endpoints.far_sides_ready(work.connection, (sender for sender, _ in sends))
    judged: dict[tuple[int, int, str], MessageType | None] = {}
    left: list[Sent] = []
    rows: list[tuple[int, int, int, int, int, int, int, bytes | None]] = []
    taken: list[tuple[int, int]] = []
    for (sender, messages), way in zip(sends, work.ways_of([sender for sender, _ in sends]), strict=True):
        far = ready.get((sender.conversation_id, 1 - sender.is_initiator))
        kinds = None
        if far is not None and way.target_database == work.database:
            kinds = _kinds(work, sender, far, messages, judged)
        if far is None or kinds is None:
            left.append((sender, messages))
            continue
        queue_id, priority, endpoint_id = queue_of(work, far).queue_id, far.priority, far.endpoint_id
        rows += [
            (queue_id, queues.READY, priority, endpoint_id, queues.IN_ORDER, number, kinds[name], body)
            for number, name, body, _, _ in messages
        ]
        taken.append((messages[-1].message_sequence_number + 1, endpoint_id))
        work.effects.arrived.add(queue_id)
    queues.add(work.connection, rows)
    work.effects.enqueued += len(rows)
    endpoints.set_all_taken(work.connection, taken)
    return left


def _kinds(
    work: Work,
    sender: Endpoint,
    far: Endpoint,
    messages: Sequence[Message],
    judged: dict[tuple[int, int, str], MessageType | None],
) -> dict[str, int] | None:
    """The ids of the message types; None where something is not plain."""
    own = work.broker_instance
    if not (
        sender.is_bound
        and far.is_bound
        and far.far_broker_instance == own
        and far.receive_sequence == messages[0].message_sequence_number
        and far.far_service == work.objects.services_by_id[sender.service_id].name
        and queue_of(work, far).is_enqueue_enabled
    ):
        return None
    found: dict[str, int] = {}
    for name in {message.message_type_name for message in messages}:
        key = (far.service_contract_id, far.is_initiator, name)
        if key not in judged:
            judged[key] = _plain_kind(work, far, name)
        kind = judged[key]
        if kind is None:
            return None
        found[name] = kind.message_type_id
    return found


def _plain_kind(work: Work, far: Endpoint, name: str) -> MessageType | None:
    contract = work.objects.contracts_by_id[far.service_contract_id]
    kind = contract_rules.takeable(work.objects, contract, name, from_initiator=not far.is_initiator)
    return kind if isinstance(kind, MessageType) and kind.validation == "N" else None
