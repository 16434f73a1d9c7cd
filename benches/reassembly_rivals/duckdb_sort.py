"""DuckDB: selects the first row of each fragment, sorted; the result has the bodies one after the other."""

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
    """A table in memory, with ids as UUID too. `list(... order by ...)`, `distinct on` and `md5` are slower; `string_agg` accepts only text."""

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
        # One batch, so that all bodies are in one buffer.
        ordered = self._connection.sql(_QUERY.format(fragments=fragments)).to_arrow_table(batch_size=self._rows)
        return messages_of(ordered)

    def messages(self, result: pa.Table) -> pa.Table:
        return result
