"""What a transaction has subscribers hear once it has committed."""

from __future__ import annotations

import uuid

from ssbroker.broker.work.work import Work
from ssbroker.protocol.event_steps import ConversationStep, GroupStep
from ssbroker.protocol.events import Conversation, ConversationGroup, MessageUndeliverable
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import Queue


def queue_name(queue: Queue) -> str:
    """A queue as events and views name it.

    Args:
        queue: The queue.

    Returns:
        Schema and name.

    Examples:
        >>> queue_name(Queue(65536, "dbo", "Orders"))
        'dbo.Orders'
    """
    return f"{queue.schema_name}.{queue.name}"


def told_conversation(
    work: Work,
    endpoint: Endpoint,
    step: ConversationStep,
    *,
    state: str | None = None,
    message_type_name: str | None = None,
    message_sequence_number: int | None = None,
    error: int = 0,
    text: str = "",
) -> None:
    """A conversation went a step.

    Args:
        work: The transaction.
        endpoint: This side of the conversation.
        step: What happened.
        state: The state that it is in now; None is that of `endpoint`.
        message_type_name: The message's type, where the step is about one.
        message_sequence_number: Its number.
        error: The error's code, where the step is about one.
        text: The error's text.
    """
    if not work.effects.wants(Conversation):
        return
    work.effects.events.append(
        Conversation(
            at=work.now(),
            database=work.database,
            conversation_id=uuid.UUID(bytes=endpoint.conversation_id),
            step=step,
            is_initiator=bool(endpoint.is_initiator),
            conversation_handle=uuid.UUID(bytes=endpoint.conversation_handle),
            conversation_group_id=uuid.UUID(bytes=endpoint.conversation_group_id),
            state=endpoint.state if state is None else state,
            message_type_name=message_type_name,
            message_sequence_number=message_sequence_number,
            error=error,
            text=text,
            priority=endpoint.priority,
        )
    )


def told_group(work: Work, group: bytes, step: GroupStep) -> None:
    """A conversation group came or went.

    Args:
        work: The transaction.
        group: The group.
        step: Which of the two.
    """
    if work.effects.wants(ConversationGroup):
        work.effects.events.append(
            ConversationGroup(
                at=work.now(), database=work.database, conversation_group_id=uuid.UUID(bytes=group), step=step
            )
        )


def told_undeliverable(work: Work, conversation_id: bytes, *, number: int, error: int, text: str) -> None:
    """A message cannot be taken by any conversation here.

    Args:
        work: The transaction.
        conversation_id: The conversation that it names.
        number: Its sequence number.
        error: Service Broker's number for the reason.
        text: The reason.
    """
    if work.effects.wants(MessageUndeliverable):
        work.effects.events.append(
            MessageUndeliverable(
                at=work.now(),
                database=work.database,
                conversation_id=uuid.UUID(bytes=conversation_id),
                message_sequence_number=number,
                error=error,
                text=text,
            )
        )
