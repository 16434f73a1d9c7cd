"""Plain messages into their queues, for many conversations at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from ssbroker.broker.dialogs import contract_rules
from ssbroker.broker.dialogs.arriving import Message
from ssbroker.broker.dialogs.queueing import queue_of
from ssbroker.broker.work.work import Work
from ssbroker.protocol.events import Conversation
from ssbroker.protocol.message_run import MessageRun
from ssbroker.protocol.states import State
from ssbroker.store import queues
from ssbroker.store.endpoints import Endpoint
from ssbroker.store.objects import MessageType


class Placed(NamedTuple):
    """A run, and where it begins among the messages."""

    run: MessageRun
    start: int


def put_plain(work: Work, arrivals: Iterable[tuple[Endpoint, Sequence[Message]]]) -> dict[int, int]:
    """Puts into their queues what is plain: user messages of conversations that go on, in their turn, to a queue that is on, unvalidated.

    Args:
        work: The transaction.
        arrivals: The endpoints, each at most once and with nothing that waits beside its queue or out of turn, and what comes for each,
            in order of the numbers.

    Returns:
        For each endpoint that has taken its messages, all of them, the number of its next one, which is still to be written.
    """
    taken: dict[int, int] = {}
    if work.effects.wants(Conversation):
        return taken
    rows: list[tuple[int, int, int, int, int, int, int, bytes | None]] = []
    judged: dict[tuple[int, int, str], int | None] = {}
    for endpoint, messages in arrivals:
        queue = queue_of(work, endpoint)
        if not (queue.is_enqueue_enabled and _is_in_turn(endpoint, messages)):
            continue
        kinds = [_kind(work, endpoint, message.message_type_name, judged) for message in messages]
        endpoint_id, priority = endpoint.endpoint_id, endpoint.priority
        run = [
            (queue.queue_id, queues.READY, priority, endpoint_id, queues.IN_ORDER, number, kind, body)
            for (number, _, body, _, _), kind in zip(messages, kinds, strict=True)
            if kind is not None
        ]
        if len(run) < len(messages):
            continue
        rows += run
        work.effects.are_enqueued(len(run), is_remote=bool(endpoint.is_remote), priority=priority)
        taken[endpoint_id] = endpoint.receive_sequence + len(messages)
        work.effects.arrived.add(queue.queue_id)
    queues.add(work.connection, rows)
    return taken


def put_runs(work: Work, messages: pa.Table, runs: Iterable[tuple[Endpoint, Placed]]) -> dict[int, int]:
    """Puts runs into their queues, where that is plain, natively.

    Args:
        work: The transaction.
        messages: The messages (`protocol.ledger.MESSAGES`).
        runs: The endpoints, as `put_plain` takes them, and what comes for each.

    Returns:
        As `put_plain`.
    """
    taken: dict[int, int] = {}
    if work.effects.wants(Conversation):
        return taken
    places: list[tuple[int, int, tuple[int, int, int, int, int]]] = []
    judged: dict[tuple[int, int, str], int | None] = {}
    for endpoint, (run, start) in runs:
        queue = queue_of(work, endpoint)
        kind = _kind(work, endpoint, run.message_type_name, judged)
        if (
            not queue.is_enqueue_enabled
            or kind is None
            or endpoint.state != State.CO
            or run.first != endpoint.receive_sequence
        ):
            continue
        endpoint_id, priority = endpoint.endpoint_id, endpoint.priority
        places.append((start, run.rows, (queue.queue_id, priority, endpoint_id, kind, run.first)))
        work.effects.are_enqueued(run.rows, is_remote=bool(endpoint.is_remote), priority=priority)
        taken[endpoint_id] = run.first + run.rows
        work.effects.arrived.add(queue.queue_id)
    if places:
        work.connection.statements.enqueue(messages.select(["message_body"]), places)
    return taken


def _is_in_turn(endpoint: Endpoint, messages: Sequence[Message]) -> bool:
    """Whether these are the messages that come next, and none of them ends the conversation."""
    number = endpoint.receive_sequence
    for message in messages:
        if message.message_sequence_number != number or message.is_conversation_error or message.is_end_of_dialog:
            return False
        number += 1
    return endpoint.state == State.CO


def _kind(work: Work, endpoint: Endpoint, name: str, judged: dict[tuple[int, int, str], int | None]) -> int | None:
    """The id of a message type that may come, without validation; None where it is anything else."""
    key = (endpoint.service_contract_id, endpoint.is_initiator, name)
    if key not in judged:
        contract = work.objects.contracts_by_id[endpoint.service_contract_id]
        kind = contract_rules.takeable(work.objects, contract, name, from_initiator=not endpoint.is_initiator)
        judged[key] = kind.message_type_id if isinstance(kind, MessageType) and kind.validation == "N" else None
    return judged[key]
