"""What arrives, taken by the machines, durably (N14, N15)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.broker.network.connections.inbox import Batch
from ssbroker.broker.network.exchange.beginnings import Beginnings
from ssbroker.broker.network.exchange.carrying import Carrying
from ssbroker.broker.network.exchange.dispatch import Dispatch, Parcel
from ssbroker.broker.network.exchange.ledger import Stale
from ssbroker.broker.network.exchange.machines import Machines
from ssbroker.exceptions import LockTimeoutError, SsbrokerError

if TYPE_CHECKING:
    from ssbroker.broker.network.seam import Peer

LOGGER: Final = logging.getLogger("ssbroker.broker")
STALE_MAX: Final = 10
"""How often a batch is planned again at once, when others are faster (N3)."""


class Arriving:
    """Takes batches. For one thread.

    Args:
        machines: The machines.
        dispatch: Where rows go.
        beginnings: Whether what begins may.
        carrying: Who hears of acknowledgements.
    """

    def __init__(self, machines: Machines, dispatch: Dispatch, beginnings: Beginnings, carrying: Carrying) -> None:
        self._machines: Final = machines
        self._dispatch: Final = dispatch
        self._beginnings: Final = beginnings
        self._carrying: Final = carrying

    def take(self, batches: Sequence[Batch], *, now: int) -> list[Batch]:
        """Takes batches. What fails for a reason that does not pass is dropped: its senders keep it, and send it again.

        Args:
            batches: The batches.
            now: The moment.

        Returns:
            What could not be taken because others were writing to a file.
        """
        self._beginnings.next_turn()
        left: list[Batch] = []
        for peer, rows in _joined(batches):
            try:
                parcels = self._dispatch.sort(peer, rows)
            except SsbrokerError as error:
                LOGGER.warning("what came from %s could not be looked at, and will come again: %s", peer.address, error)
                continue
            except Exception:
                LOGGER.exception("what came from %s could not be looked at, and will come again", peer.address)
                continue
            for parcel in parcels:
                name = parcel.machine.database.name
                try:
                    self._take(peer, parcel, now)
                except LockTimeoutError:
                    left.append((peer, parcel.rows))
                except SsbrokerError as error:
                    LOGGER.warning("%s: what came could not be taken, and will come again: %s", name, error)
                except Exception:
                    LOGGER.exception("%s: what came could not be taken, and will come again", name)
        return left

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
