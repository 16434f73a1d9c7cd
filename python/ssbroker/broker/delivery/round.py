"""One round of deliveries from the transmission queue of a database to the databases of the instance."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ssbroker.broker.delivery import handover
from ssbroker.broker.delivery.handover import Delivered, Parcel
from ssbroker.broker.dialogs import status
from ssbroker.broker.dialogs.status import Status
from ssbroker.broker.objects.queue_names import queue_text
from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.protocol.names import text

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

_NOT_THE_NEXT: Final = 11217
_QUEUE_OFF: Final = 11219
LOGGER: Final = logging.getLogger("ssbroker.broker")


class Round:
    """Hands over what waits, one transaction of a target after the other, and notes what was in the way.

    Args:
        source: The database whose messages wait.
        patience: The seconds to wait for the lock of a target; None is as long as always.

    Attributes:
        stays: Why messages stay, by the id of their sender.
        later: Senders whose target was busy for longer than `patience`: nothing is wrong, somebody with more time delivers.
    """

    def __init__(self, source: Database, *, patience: float | None) -> None:
        self._source: Final = source
        self._patience: Final = patience
        self.stays: dict[int, Status] = {}
        self.later: set[int] = set()

    def deliver(self, target: Database, broker_instance: bytes | None, endpoint_ids: Sequence[int]) -> None:
        """Delivers what conversations have waiting for one database, each in order.

        Args:
            target: The database; it may be the source.
            broker_instance: Its broker id, as routing found it.
            endpoint_ids: The senders, those to go first in front.

        Raises:
            LockTimeoutError: Others were writing to the source.
            StorageError: The source cannot be used.
        """
        left = list(endpoint_ids)
        while left:
            parcels, rest = handover.pack(self._source, left)
            try:
                delivered = self._put(target, broker_instance, parcels)
            except LockTimeoutError:
                if self._patience is None:
                    self.stays |= dict.fromkeys(left, status.busy(target.name))
                else:
                    self.later |= set(left)
                return
            except StorageError as error:
                self.stays |= dict.fromkeys(left, status.unavailable(target.name, str(error)))
                return
            if target is not self._source and delivered and broker_instance is not None:
                handover.acknowledge(self._source, delivered, broker_instance=broker_instance)
            left = rest + self._judge(target, parcels, delivered)

    def _put(self, target: Database, broker_instance: bytes | None, parcels: Sequence[Parcel]) -> list[Delivered]:
        try:
            return self._put_all(target, broker_instance, parcels)
        except StorageError:
            raise
        except Exception:
            if len(parcels) == 1:
                raise
            LOGGER.exception(
                "%s: messages are delivered one conversation at a time, to find the one that fails", target
            )
        delivered = []
        for parcel in parcels:
            try:
                delivered += self._put_all(target, broker_instance, [parcel])
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001  # it was logged above; the others must not wait for this one
                self.stays[parcel.sender.endpoint_id] = status.unclassified(f"{type(error).__name__}: {error}")
        return delivered

    def _put_all(self, target: Database, broker_instance: bytes | None, parcels: Sequence[Parcel]) -> list[Delivered]:
        if target is self._source:
            return handover.hand_back(target, parcels, lock_timeout=self._patience)
        return handover.put(target, parcels, broker_instance=broker_instance, lock_timeout=self._patience)

    def _judge(self, target: Database, parcels: Sequence[Parcel], delivered: Sequence[Delivered]) -> list[int]:
        """Notes what stays; the senders that have more to deliver."""
        goes_on = []
        for each in delivered:
            endpoint_id = each.parcel.sender.endpoint_id
            if each.is_stuck:
                self.stays[endpoint_id] = _why(target, each)
            elif not each.parcel.is_all and each.arrival.error is None:
                goes_on.append(endpoint_id)
        done = {each.parcel.sender.endpoint_id for each in delivered}
        for parcel in parcels:
            endpoint_id = parcel.sender.endpoint_id
            if endpoint_id not in done:
                self.stays.setdefault(endpoint_id, status.unclassified(f"{target.name!r} has just changed"))
        return goes_on


def _why(target: Database, delivered: Delivered) -> Status:
    """Why the target did not take a parcel."""
    number = delivered.arrival.undelivered
    if number is None:
        return status.undeliverable(_NOT_THE_NEXT, text(_NOT_THE_NEXT))
    if number == _QUEUE_OFF:
        objects = target.objects()
        service = objects.services.get(delivered.parcel.envelope.to_service_name)
        if service is not None:
            queue = objects.queues_by_id[service.queue_id]
            return status.queue_off(target.name, queue_text(queue.schema_name, queue.name))
    return status.undeliverable(number, delivered.arrival.reason)
