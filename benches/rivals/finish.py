"""The last step of rivals that find the numbers of decisions: takes the columns of the decisions, in blocks that fit the cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benches.columns import Column, column, fixed, halves
from benches.rivals.winners import DECISIONS

_AT = DECISIONS.get_field_index("broker_instance")


class Finisher:
    """Columns by decision number; `broker_instance` is that of the conversation if it names one, otherwise that of the decision."""

    def __init__(self, decisions: pa.Table) -> None:
        self._columns = decisions.drop_columns("broker_instance").to_batches()[0]
        self._ids = halves(decisions["broker_instance"].combine_chunks())
        self._has_id = decisions["broker_instance"].is_valid().to_numpy()

    def table(self, numbers: npt.NDArray[np.int32], brokers: Column) -> pa.Table:
        """Takes the decisions of all conversations; `brokers` are the ids that they name."""
        ends = np.cumsum([len(chunk) for chunk in brokers.chunks])
        blocks = zip(np.split(numbers, ends[:-1]), brokers.chunks, strict=True)
        return pa.Table.from_batches([self.batch(number, broker) for number, broker in blocks], DECISIONS)

    def batch(self, number: npt.NDArray[np.int32], brokers: Column) -> pa.RecordBatch:
        """Takes the decisions of a chunk; faster than `take` and `coalesce` on 16-byte values."""
        has_id = brokers.is_valid().to_numpy(zero_copy_only=False)
        takes_own = np.flatnonzero(~has_id & self._has_id[number])
        ids = halves(brokers).copy()
        ids[takes_own] = self._ids[number[takes_own]]
        has_id[takes_own] = True
        decided = self._columns.take(column(number))
        return decided.add_column(_AT, DECISIONS.field(_AT), fixed(ids, valid=has_id))
