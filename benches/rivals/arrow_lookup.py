"""pyarrow and numpy: `index_in` for the service names, then numpy in blocks that fit the cache."""

from __future__ import annotations

import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benches.columns import Column, halves
from benches.rivals.finish import Finisher
from benches.rivals.winners import DECISIONS, winners


class ArrowLookup:
    """The few broker ids of a service are stored together and compared one by one, which is faster than a second `index_in`."""

    name = "pyarrow index_in"

    def __init__(self, routes: pa.Table, now: datetime.datetime) -> None:
        found = winners(routes, now)
        self._finish = Finisher(found.decisions)
        self._services = found.names["service"].combine_chunks()
        # The last two entries are for services without a route, whose position is -1.
        by_name = np.stack([found.names["without_id"], found.names["with_id"]], axis=1)
        self._by_name = np.append(by_name, [0, 0]).astype(np.int32)
        self._add_pairs(pc.index_in(found.pairs["service"], self._services).to_numpy(), found.pairs)

    def _add_pairs(self, service: npt.NDArray[np.int32], pairs: pa.Table) -> None:
        """Returns slots: slot `k` of a service has its id `k`; unused slots repeat the first."""
        self._count = np.bincount(service, minlength=len(self._services) + 1)
        order = np.argsort(service, kind="stable")
        start = np.cumsum(self._count) - self._count
        slots = np.arange(self._count.max(initial=0))[:, np.newaxis]
        at = order[np.minimum(start + np.where(slots < self._count, slots, 0), len(order) - 1)]
        self._ids = halves(pairs["broker_instance"].combine_chunks())[at].transpose(0, 2, 1).copy()
        self._by_id = pairs["decision"].to_numpy()[at]

    def load(self, conversations: pa.Table) -> pa.Table:
        return conversations.select(["to_service_name", "to_broker_instance"])

    def route(self, conversations: pa.Table) -> pa.Table:
        # One call for all chunks, because each call hashes all service names of the table again.
        services = pc.index_in(conversations.column(0), self._services).fill_null(-1).to_numpy()
        brokers = conversations.column(1).chunks
        ends = np.cumsum([len(chunk) for chunk in brokers])
        blocks = zip(np.split(services, ends[:-1]), brokers, strict=True)
        return pa.Table.from_batches([self._route(service, broker) for service, broker in blocks], DECISIONS)

    def _route(self, service: npt.NDArray[np.int32], brokers: Column) -> pa.RecordBatch:
        ids, has_id = halves(brokers), brokers.is_valid().to_numpy(zero_copy_only=False)
        number = self._by_name[2 * service + has_id]
        rows = np.flatnonzero(has_id & (self._count[service] > 0))
        at, first, second = service[rows], ids[rows, 0], ids[rows, 1]
        for slot_ids, by_id in zip(self._ids, self._by_id, strict=True):
            same = (slot_ids[0][at] == first) & (slot_ids[1][at] == second)
            number[rows[same]] = by_id[at[same]]
        return self._finish.batch(number, brokers)

    def answer(self, result: pa.Table) -> pa.Table:
        return result
