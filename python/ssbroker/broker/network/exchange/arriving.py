"""What arrives, taken by the machines, durably (N14, N15)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.broker.failing import told_failure
from ssbroker.broker.network.connections.inbox import Batch
from ssbroker.broker.network.exchange.beginnings import Beginnings
from ssbroker.broker.network.exchange.carrying import Carrying
from ssbroker.broker.network.exchange.dispatch import Dispatch, Parcel
from ssbroker.broker.network.exchange.ledger import Stale
from ssbroker.broker.network.exchange.machines import Machines
from ssbroker.exceptions import LockTimeoutError, StorageError
from ssbroker.protocol.event_log import EventLog

if TYPE_CHECKING:
    from ssbroker.broker.network.seam import Peer

LOGGER: Final = logging.getLogger("ssbroker.broker")
STALE_MAX: Final = 10
"""How often a batch is planned again at once, when others are faster (N3)."""
CULPRITS_MOST: Final = 16
"""How many rows that nothing can be made of are looked for among those of one batch (N15)."""
_NOTHING_MADE: Final = 9736


class Arriving:
    """Takes batches. For one thread.

    Args:
        machines: The machines.
        dispatch: Where rows go.
        beginnings: Whether what begins may.
        carrying: Who hears of acknowledgements.
        events: Where lines of the log are counted.
    """

    def __init__(
        self,
        machines: Machines,
        dispatch: Dispatch,
        beginnings: Beginnings,
        carrying: Carrying,
        *,
        events: EventLog,
    ) -> None:
        self._machines: Final = machines
        self._dispatch: Final = dispatch
        self._beginnings: Final = beginnings
        self._carrying: Final = carrying
        self._events: Final = events

    def take(self, batches: Sequence[Batch], *, now: int) -> list[Batch]:
        """Takes batches. What fails for a reason that does not pass is dropped: its senders keep it, and send it again.

        Where nobody knows the reason, a row may be to blame that would have all others fail with it, as often as it comes: the batch is
        halved until it stands alone (N15).

        Args:
            batches: The batches.
            now: The moment.

        Returns:
            What could not be taken because others were writing to a file.
        """
        self._beginnings.next_turn()
        left: list[Batch] = []
        for peer, joined in _joined(batches):
            parts, culprits = [joined], 0
            while parts:
                for rows, error in self._try(peer, parts.pop(), now, left):
                    if rows.num_rows > 1 and culprits < CULPRITS_MOST:
                        half = rows.num_rows // 2
                        parts += [rows.slice(half), rows.slice(0, half)]
                    else:
                        culprits += 1
                        self._drop(peer, rows, error, now)
        return left

    def _try(self, peer: Peer, rows: pa.Table, now: int, left: list[Batch]) -> list[tuple[pa.Table, Exception]]:
        """Takes rows; those that failed for a reason that nobody knows."""
        try:
            parcels = self._dispatch.sort(peer, rows)
        except StorageError as error:
            source = peer.principal or "somebody"
            if self._events.may_be_logged(
                "what came could not be looked at", level=logging.WARNING, source=source, now=now
            ):
                LOGGER.warning("what came from %s could not be looked at, and will come again: %s", peer.address, error)
            return []
        except Exception as error:  # noqa: BLE001 - the caller tells of it
            return [(rows, error)]
        failed: list[tuple[pa.Table, Exception]] = []
        for parcel in parcels:
            try:
                self._take(peer, parcel, now)
            except LockTimeoutError:
                left.append((peer, parcel.rows))
            except StorageError as error:
                told_failure(parcel.machine.database, "what came could not be taken, and will come again", error)
            except Exception as error:  # noqa: BLE001 - the caller tells of it
                failed.append((parcel.rows, error))
        return failed

    def _drop(self, peer: Peer, rows: pa.Table, error: Exception, now: int) -> None:
        """Tells of rows that cannot be taken."""
        source = peer.principal or "somebody"
        if self._events.may_be_logged(str(_NOTHING_MADE), level=logging.ERROR, source=source, now=now):
            text = "%d rows that came from %s, %s, were dropped, since taking them failed"
            LOGGER.error(text, rows.num_rows, peer.described, peer.address, exc_info=error)
        if rows.num_rows == 1:
            text = f"taking it failed: {type(error).__name__}, from {peer.address}"
            with suppress(Exception):  # it may be the telling that fails
                self._dispatch.tell(rows, 0, error=_NOTHING_MADE, text=text, principal=peer.principal)

    def _take(self, peer: Peer, parcel: Parcel, now: int) -> None:
        rows, keys = self._beginnings.open(peer, parcel)
        machine = parcel.machine
        principal = None if peer.principal is None else peer.principal.encode()
        for _ in range(STALE_MAX):
            if not rows.num_rows:
                return
            taken = machine.take(rows, peer=principal, session_keys=keys, now=now)
            if not isinstance(taken, Stale):
                self._carrying.acknowledged(machine.database.database_id, taken.acknowledged, now=now)
                return
            if taken.is_whole:
                self._machines.drop(machine)
                return


def _joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Batches of one principal that follow each other, as one: they go into one transaction (N15)."""
    waiting: list[pa.Table] = []
    last: Peer | None = None
    for peer, rows in batches:
        if last is not None and (peer.principal, peer.address) != (last.principal, last.address):
            yield last, pa.concat_tables(waiting)
            waiting = []
        waiting.append(rows)
        last = peer
    if last is not None:
        yield last, pa.concat_tables(waiting)
