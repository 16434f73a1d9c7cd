"""DataFusion: two joins find the number of the decision; taking its columns with pyarrow is faster than a third join."""

from __future__ import annotations

import dataclasses
import datetime

import datafusion
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benches.columns import Column
from benches.rivals.finish import Finisher
from benches.rivals.winners import winners

_QUERY = """
    select c.position, case when c.broker is null then coalesce(n.without_id, 0) else coalesce(p.decision, n.with_id, 0) end as number
    from {conversations} c
    left join names n on n.service = c.service
    left join pairs p on p.place = n.place and p.broker = c.broker
"""


@dataclasses.dataclass(frozen=True)
class _Loaded:
    table: str
    brokers: Column


class DataFusionJoin:
    """Arrow batches in one partition; the second join uses the index of the service instead of its name.

    An outer join puts rows without a match last in each batch, so a position column restores the order.
    """

    name = "DataFusion joins"

    def __init__(self, routes: pa.Table, now: datetime.datetime) -> None:
        found = winners(routes, now)
        self._finish = Finisher(found.decisions)
        self._context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(1))
        self._tables = 0
        place = pa.array(np.arange(found.names.num_rows, dtype=np.int32))
        self._create("names", found.names.append_column("place", place))
        at = pc.index_in(found.pairs["service"], found.names["service"].combine_chunks())
        pairs = pa.table({"place": at, "broker": found.pairs["broker_instance"], "decision": found.pairs["decision"]})
        self._create("pairs", pairs)

    def _create(self, name: str, rows: pa.Table) -> None:
        self._context.register_record_batches(name, [rows.to_batches()])

    def load(self, conversations: pa.Table) -> _Loaded:
        self._tables += 1
        name = f"conversations_{self._tables}"
        columns = conversations.select(["to_service_name", "to_broker_instance"]).rename_columns(["service", "broker"])
        position = np.arange(conversations.num_rows, dtype=np.int32)
        self._create(name, columns.append_column("position", pa.array(position)))
        return _Loaded(name, conversations["to_broker_instance"])

    def route(self, loaded: _Loaded) -> pa.Table:
        found = self._context.sql(_QUERY.format(conversations=loaded.table)).to_arrow_table()
        numbers = np.empty(found.num_rows, np.int32)
        numbers[found["position"].to_numpy()] = found["number"].to_numpy()
        return self._finish.table(numbers, loaded.brokers)

    def answer(self, result: pa.Table) -> pa.Table:
        return result
