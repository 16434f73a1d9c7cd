"""Delivers waiting messages of a database to databases of the same instance, in batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.dialogs import transmission_status
from ssbroker.broker.dialogs.arrival import arrive
from ssbroker.broker.dialogs.dialog_lifecycle import end_after_data_loss
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader, header_of
from ssbroker.broker.dialogs.send import apply_outcome
from ssbroker.broker.dialogs.transmission_status import NO_PROBLEM, TransmissionStatus
from ssbroker.broker.lock_patience import LockWait, has_work_failed, lock_timeout_for, sender_wait
from ssbroker.broker.unit_of_work import Work, database_transaction, emit_undeliverable_event
from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.protocol.broker_errors import QUEUE_DISABLED
from ssbroker.store import conversation_endpoints, transmission_queue
from ssbroker.store.conversation_endpoints import ConversationEndpoint

_LOGGER: Final = logging.getLogger("ssbroker.broker")

_MESSAGES_MAX: Final = 2_000
"""Maximum number of messages in one transaction of the target."""
MESSAGES_MAX_EACH: Final = 500
"""Maximum number of messages of one conversation in a transaction, so that a long conversation does not delay other conversations."""
BYTES_MAX: Final = 8 << 20
"""Bytes of bodies after which a transaction takes no more messages."""


@dataclass(frozen=True, slots=True)
class DeliveryBatch:
    """The first waiting messages of a conversation.

    Attributes:
        sender: The sending endpoint, as read with the messages.
        header: The common header of the messages.
        messages: The messages, in order.
        is_all: Whether `messages` contains all waiting messages.
    """

    sender: ConversationEndpoint
    header: MessageHeader
    messages: Sequence[DialogMessage]
    is_all: bool


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of delivering a batch.

    Attributes:
        batch: The batch.
        outcome: The outcome at the target.
    """

    batch: DeliveryBatch
    outcome: DeliveryOutcome

    @property
    def error_number(self) -> int | None:
        """The number of the error because of which the sender keeps messages; None if there is none."""
        end = self.batch.messages[-1].message_sequence_number + 1
        return self.outcome.error_number if self.outcome.acknowledged < end else None

    @property
    def shows_data_loss(self) -> bool:
        """Whether the target has lost messages that it had acknowledged: it expects one that the sender no longer has."""
        is_refused = self.outcome.error is not None or self.outcome.error_number is not None
        return not is_refused and self.outcome.acknowledged < self.batch.messages[0].message_sequence_number


def read_batches(source: DatabaseContext, endpoint_ids: Iterable[int]) -> tuple[list[DeliveryBatch], list[int]]:
    """Reads the batches that fit into one transaction of the target; returns the batches and the ids of the remaining senders."""
    batches: list[DeliveryBatch] = []
    ids = list(endpoint_ids)
    messages_left, bytes_left = _MESSAGES_MAX, BYTES_MAX
    with source.file.read() as connection:
        objects = source.objects(connection)
        for position, endpoint_id in enumerate(ids):
            if messages_left <= 0 or bytes_left <= 0:
                return batches, ids[position:]
            sender = conversation_endpoints.by_id(connection, endpoint_id)
            rows, is_all = transmission_queue.first_messages(
                connection, endpoint_id, limit=min(messages_left, MESSAGES_MAX_EACH), bytes_max=bytes_left
            )
            if sender is None or not rows:
                continue
            messages = [
                DialogMessage(row.message_sequence_number, row.message_type_name, row.message_body) for row in rows
            ]
            batches.append(DeliveryBatch(sender, header_of(objects, sender), messages, is_all))
            messages_left -= len(rows)
            bytes_left -= sum(len(row.message_body or b"") for row in rows)
    return batches, []


def _deliver_within(
    database: DatabaseContext, batches: Sequence[DeliveryBatch], *, lock_timeout: float | None = None
) -> list[DeliveryResult]:
    """Delivers batches within their own database, in one transaction; returns no results if the broker of the database was disabled."""
    with database_transaction(database, lock_timeout=lock_timeout) as work:
        if not work.objects.broker.is_delivering:
            return []
        delivered = [
            _deliver_batch(work, batch, park_if_disabled=False)
            for batch in batches
            if conversation_endpoints.reload(work.connection, batch.sender) is not None
        ]
        acknowledge(work, delivered, broker_instance=work.broker_instance)
    return delivered


def deliver_to(
    target: DatabaseContext,
    batches: Sequence[DeliveryBatch],
    *,
    broker_instance: bytes | None,
    lock_timeout: float | None = None,
) -> list[DeliveryResult]:
    """Delivers batches to another database of the instance; returns no results if the broker of that database was disabled or has a new broker id."""
    with database_transaction(target, lock_timeout=lock_timeout) as work:
        if not work.objects.broker.is_delivering or work.broker_instance != broker_instance:
            return []
        return [_deliver_batch(work, batch, park_if_disabled=True) for batch in batches]


class SenderUpdates:
    """What deliveries have to write to the database of the senders: acknowledgements and statuses. Not thread-safe.

    If other transactions lock the database, the updates are kept, so that delivered messages need not be sent again.
    """

    def __init__(self, database: DatabaseContext) -> None:
        self._database: Final = database
        self._delivered: list[tuple[Sequence[DeliveryResult], bytes]] = []
        """Messages that other databases have committed, with the broker id of the database."""
        self._statuses: dict[int, tuple[ConversationEndpoint, str]] = {}
        """Senders with their new status, by id."""

    def __bool__(self) -> bool:
        return bool(self._delivered or self._statuses)

    def add_delivered(self, delivered: Sequence[DeliveryResult], broker_instance: bytes) -> None:
        """Adds messages to acknowledge; see `acknowledge`."""
        self._delivered.append((delivered, broker_instance))

    def add_statuses(self, senders: Mapping[int, ConversationEndpoint], statuses: Mapping[int, str]) -> None:
        """Adds the statuses that have changed."""
        for endpoint_id, status in statuses.items():
            sender = senders[endpoint_id]
            self._statuses.pop(endpoint_id, None)
            if sender.transmission_status != status:
                self._statuses[endpoint_id] = (sender, status)

    def write(self, lock_wait: LockWait) -> bool:
        """Writes the updates; returns False if the database is locked and another attempt must follow at once.

        Raises:
            LockTimeoutError: The database has been locked for `lock_timeout`. The updates are kept.
            StorageError: The updates cannot be written, and are discarded: the messages are sent again as duplicates.
        """
        if not self:
            return True
        try:
            with (
                lock_timeout_for(self._database, lock_wait) as lock_timeout,
                database_transaction(self._database, lock_timeout=lock_timeout) as work,
            ):
                for delivered, broker_instance in self._delivered:
                    acknowledge(work, delivered, broker_instance=broker_instance)
                for sender, status in self._statuses.values():
                    if conversation_endpoints.reload(work.connection, sender) is not None:
                        conversation_endpoints.set_transmission_status(work.connection, sender.endpoint_id, status)
        except LockTimeoutError:
            if has_work_failed(self._database, lock_wait):
                raise
            return False
        except BaseException:
            self._clear()
            raise
        self._clear()
        return True

    def _clear(self) -> None:
        self._delivered, self._statuses = [], {}


def acknowledge(work: Work, delivered: Sequence[DeliveryResult], *, broker_instance: bytes) -> None:
    """Removes from the transmission queue the messages that a database with this broker id has committed (P16)."""
    for each in delivered:
        sender = conversation_endpoints.reload(work.connection, each.batch.sender)
        if sender is None:
            continue
        if each.shows_data_loss:
            end_after_data_loss(work, sender)
            continue
        apply_outcome(work, sender.endpoint_id, each.outcome, broker_instance=broker_instance)
        if each.outcome.error_number is None and sender.transmission_status != NO_PROBLEM:
            conversation_endpoints.set_transmission_status(work.connection, sender.endpoint_id, NO_PROBLEM)


def _deliver_batch(work: Work, batch: DeliveryBatch, *, park_if_disabled: bool) -> DeliveryResult:
    outcome = arrive(work, batch.header, batch.messages, park_if_disabled=park_if_disabled)
    if outcome.error_number is not None:
        emit_undeliverable_event(
            work,
            batch.header.conversation_id,
            number=batch.messages[0].message_sequence_number,
            error=outcome.error_number,
            text=outcome.reason,
        )
    return DeliveryResult(batch, outcome)


class LocalDelivery:
    """Delivers waiting messages of a database, in one transaction for each target, one target after the other.

    Attributes:
        problems: Why messages were not delivered, by sender id.
        deferred: Senders whose target or own database was locked for longer than this delivery waits; a later call continues with them.
    """

    def __init__(self, source: DatabaseContext, updates: SenderUpdates, *, lock_wait: LockWait) -> None:
        self._source: Final = source
        self._updates: Final = updates
        self._lock_wait: Final = lock_wait
        self.problems: dict[int, TransmissionStatus] = {}
        self.deferred: set[int] = set()

    def deliver(self, target: DatabaseContext, broker_instance: bytes | None, endpoint_ids: Sequence[int]) -> None:
        """Delivers the waiting messages of conversations to one database, each conversation in order."""
        remaining = list(endpoint_ids)
        while remaining:
            batches, rest = read_batches(self._source, remaining)
            try:
                delivered = self._deliver_isolating_failures(target, broker_instance, batches)
            except LockTimeoutError:
                if has_work_failed(target, self._lock_wait):
                    self.problems |= dict.fromkeys(remaining, transmission_status.target_locked(target.name))
                else:
                    self.deferred |= set(remaining)
                return
            except StorageError as error:
                self.problems |= dict.fromkeys(remaining, transmission_status.unavailable(target.name, str(error)))
                return
            if target is not self._source and delivered and broker_instance is not None:
                self._updates.add_delivered(delivered, broker_instance)
                if not self._updates.write(sender_wait(self._lock_wait)):
                    self.deferred |= set(remaining)
                    return
            remaining = rest + self._record_results(target, batches, delivered)

    def _deliver_isolating_failures(
        self, target: DatabaseContext, broker_instance: bytes | None, batches: Sequence[DeliveryBatch]
    ) -> list[DeliveryResult]:
        if len(batches) > 1:
            try:
                return self._deliver_batches(target, broker_instance, batches)
            except StorageError:
                raise
            except Exception:
                _LOGGER.exception(
                    "%s: delivery failed; delivering one conversation at a time to find the failing one", target.name
                )
        delivered = []
        for batch in batches:
            try:
                delivered += self._deliver_batches(target, broker_instance, [batch])
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001  # the other conversations must not wait
                reason = log_failure(target, "a conversation could not be delivered; retrying later", error)
                self.problems[batch.sender.endpoint_id] = transmission_status.other_failure(reason)
        return delivered

    def _deliver_batches(
        self, target: DatabaseContext, broker_instance: bytes | None, batches: Sequence[DeliveryBatch]
    ) -> list[DeliveryResult]:
        with lock_timeout_for(target, self._lock_wait) as lock_timeout:
            if target is self._source:
                return _deliver_within(target, batches, lock_timeout=lock_timeout)
            return deliver_to(target, batches, broker_instance=broker_instance, lock_timeout=lock_timeout)

    def _record_results(
        self, target: DatabaseContext, batches: Sequence[DeliveryBatch], delivered: Sequence[DeliveryResult]
    ) -> list[int]:
        """Records why messages were not delivered; returns the senders that have more to deliver."""
        unfinished = []
        for each in delivered:
            endpoint_id = each.batch.sender.endpoint_id
            if each.error_number is not None:
                self.problems[endpoint_id] = _why_stuck(target, each, each.error_number)
            elif each.shows_data_loss or (not each.batch.is_all and each.outcome.error is None):
                unfinished.append(endpoint_id)
        delivered_ids = {each.batch.sender.endpoint_id for each in delivered}
        for batch in batches:
            endpoint_id = batch.sender.endpoint_id
            if endpoint_id not in delivered_ids:
                self.problems.setdefault(
                    endpoint_id, transmission_status.other_failure(f"the broker of {target.name!r} has just changed")
                )
        return unfinished


def _why_stuck(target: DatabaseContext, delivered: DeliveryResult, number: int) -> TransmissionStatus:
    """Returns why the target did not accept a batch."""
    if number == QUEUE_DISABLED:
        objects = target.objects()
        service = objects.services.get(delivered.batch.header.to_service_name)
        if service is not None:
            queue = objects.queues_by_id[service.queue_id]
            return transmission_status.queue_disabled(target.name, queue.schema_name, queue.name)
    return transmission_status.dropped_by_target(number, delivered.outcome.reason)
