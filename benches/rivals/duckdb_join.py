"""DuckDB: two joins find the number of the decision; taking its columns with pyarrow is faster than a third join."""

from __future__ import annotations

import dataclasses
import datetime

import duckdb
import pyarrow as pa

from benches.columns import Column
from benches.rivals.finish import Finisher
from benches.rivals.winners import winners

_QUERY = """
    select case when c.broker is null then coalesce(n.without_id, 0) else coalesce(p.decision, n.with_id, 0) end as number
    from {conversations} c
    left join names n on n.service = c.service
    left join pairs p on p.service = c.service and p.broker = c.broker
"""


@dataclasses.dataclass(frozen=True)
class _Loaded:
    table: str
    brokers: Column


class DuckDbJoin:
    """Tables in memory with ids as UUID, which are joined as one number; one thread."""

    name = "DuckDB joins"

    def __init__(self, routes: pa.Table, now: datetime.datetime) -> None:
        found = winners(routes, now)
        self._finish = Finisher(found.decisions)
        self._connection = duckdb.connect(config={"threads": 1})
        self._tables = 0
        self._create("names", "*", found.names)
        self._create("pairs", "service, hex(broker_instance)::uuid as broker, decision", found.pairs)

    def _create(self, name: str, columns: str, rows: pa.Table) -> None:
        self._connection.register("given", rows)
        self._connection.execute(f"create table {name} as select {columns} from given")
        self._connection.unregister("given")

    def load(self, conversations: pa.Table) -> _Loaded:
        self._tables += 1
        name = f"conversations_{self._tables}"
        broker = "case when to_broker_instance is not null then hex(to_broker_instance)::uuid end"
        self._create(name, f"to_service_name as service, {broker} as broker", conversations)
        return _Loaded(name, conversations["to_broker_instance"])

    def route(self, loaded: _Loaded) -> pa.Table:
        found = self._connection.sql(_QUERY.format(conversations=loaded.table)).to_arrow_table()
        return self._finish.table(found["number"].to_numpy(), loaded.brokers)

    def answer(self, result: pa.Table) -> pa.Table:
        return result
