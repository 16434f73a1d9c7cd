"""Routing by a join with the decision table in DuckDB, as `docs/how-to/decision-table.md` shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import duckdb
import pyarrow as pa

import ssbroker
from ssbroker.schemas import DECISIONS

BY_NAME: Final = "by name"
"""The decision depends on the address at the start of a name, so the table leaves it to the router."""
BY_ROW: Final = "by row"
"""A message of a target names the broker id of a database, so the table leaves it to the router."""

_QUERY: Final = """
SELECT * FROM (
    SELECT c.row, c.is_initiator, c.to_broker_instance AS named, d.*, row_number() OVER (
        PARTITION BY c.row
        ORDER BY d.is_reply DESC, d.to_service_name IS NULL, d.to_broker_instance IS NULL) AS choice
    FROM conversations c JOIN decisions d
        ON d.database IS NOT DISTINCT FROM c.database
        AND (d.to_service_name = c.to_service_name OR d.to_service_name IS NULL)
        AND d.has_broker_instance = (c.to_broker_instance IS NOT NULL)
        AND (d.to_broker_instance = c.to_broker_instance OR d.to_broker_instance IS NULL)
        AND (NOT d.is_reply OR NOT c.is_initiator)
        AND c.hash BETWEEN d.hash_from AND d.hash_to
) WHERE choice = 1 ORDER BY row
"""


def routed_by_table(
    connection: duckdb.DuckDBPyConnection, router: ssbroker.Router, conversations: pa.RecordBatch, *, now: datetime
) -> list[dict[str, Any] | str]:
    """Returns the decision for each conversation, or why the table has none.

    Args:
        connection: A DuckDB connection, in which the tables are registered.
        router: The router whose table it is.
        conversations: All columns that routing reads, with ids as bytes.
        now: The time of the table.
    """
    asked = pa.table(conversations)
    asked = asked.append_column("hash", ssbroker.tie_break_hash(asked["conversation_id"]))
    asked = asked.append_column("row", pa.array(range(asked.num_rows)))
    for name in ("conversation_id", "to_broker_instance"):
        asked = asked.set_column(asked.schema.get_field_index(name), name, asked[name].cast(pa.binary()))
    connection.register("conversations", asked)
    connection.register("decisions", pa.table(router.decision_table(now=now)))
    joined: Any = connection.sql(_QUERY).to_arrow_table()
    found: list[dict[str, Any]] = joined.to_pylist()
    assert [row["row"] for row in found] == list(range(asked.num_rows))
    return [_decision(row, router.catalog) for row in found]


def _decision(row: dict[str, Any], catalog: ssbroker.Catalog) -> dict[str, Any] | str:
    ids: list[Any] = catalog.databases["service_broker_guid"].drop_null().to_pylist()
    if row["outcome"] is None:
        routes: list[Any] = catalog.routes.select(["remote_service_name", "address"]).to_pylist()
        assert any(
            route["remote_service_name"] is None and route["address"].upper() == "TRANSPORT" for route in routes
        ), row
        return BY_NAME
    if row["only_from_initiator"] and not row["is_initiator"] and row["named"] in ids:
        return BY_ROW
    decided = {name: row[name] for name in DECISIONS.names}
    return decided | {"broker_instance": row["named"] or row["broker_instance"]}
