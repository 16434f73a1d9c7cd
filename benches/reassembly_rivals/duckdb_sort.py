"""DuckDB: the first row of each fragment, all of them in order; its answer holds the bodies one after the other."""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from benches.reassembly_rivals.sorted_parts import messages_of

_QUERY: Final = """
    select * exclude (conversation) from {fragments}
    where rowid in (
        select min(rowid) from {fragments}
        group by conversation, is_initiator, message_sequence_number, fragment_number
    )
    order by conversation, is_initiator, message_sequence_number, fragment_number
"""


class DuckDbSort:
    """Its own table in memory, ids as UUID too. `list(... order by ...)`, `distinct on` and its own `md5` are each slower, `string_agg` takes text only."""

    name = "DuckDB sort"

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 1, "arrow_large_buffer_size": True})
        self._rows = 0

    def load(self, fragments: pa.Table) -> str:
        self._connection.register("given", fragments)
        self._connection.execute(
            "create or replace table fragments as select *, hex(conversation_id)::uuid as conversation from given"
        )
        self._connection.unregister("given")
        self._rows = fragments.num_rows
        return "fragments"

    def reassemble(self, fragments: str) -> pa.Table:
        # One batch, so that all bodies stand in one buffer.
        ordered = self._connection.sql(_QUERY.format(fragments=fragments)).to_arrow_table(batch_size=self._rows)
        return messages_of(ordered)

    def messages(self, result: pa.Table) -> pa.Table:
        return result
