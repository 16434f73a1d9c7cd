"""Routes zero rows on the driver, so that wrong columns, options and ties are reported before a job starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from ssbroker._arguments import EPOCH
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import SchemaError
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.schemas import ROUTES
from ssbroker.spark.arrow_columns import pc
from ssbroker.spark.decision_codes import Labels
from ssbroker.spark.input_columns import ID_COLUMNS


def validate_routing(
    catalog: Catalog,
    columns: Mapping[str, pa.DataType],
    *,
    now: datetime,
    tie_break: TieBreak,
    pending_request: PendingRequest,
    all_names: Iterable[str] = (),
) -> Labels:
    """Routes zero rows, so that wrong columns or options are reported before a job starts; returns the decision labels.

    An error about a missing column lists `all_names` (the columns of the input), or else `columns`.
    """
    without_routes = Catalog(ROUTES.empty_table(), catalog.databases)
    router = Router(without_routes, tie_break=tie_break, pending_request=pending_request)
    fields = [pa.field(name, columns.get(name, pa.null())) for name in dict.fromkeys((*all_names, *columns))]
    decided = router.route(pa.RecordBatch.from_pylist([], schema=pa.schema(fields)), now=EPOCH)
    if tie_break == "hash" and columns.keys().isdisjoint(ID_COLUMNS):
        _reject_ties(catalog, now=now, pending_request=pending_request)
    return Labels(outcomes=_dictionary_values(decided["outcome"]), reasons=_dictionary_values(decided["reason"]))


def _reject_ties(catalog: Catalog, *, now: datetime, pending_request: PendingRequest) -> None:
    """Raises `SchemaError` if any service has several equal candidates: without conversation ids, a task could fail later."""
    table: Any = Router(catalog, pending_request=pending_request).decision_table(now=now)
    is_tie = pc.not_equal(table["hash_from"], -(2**63))
    if pc.any(is_tie).as_py():
        services: list[Any] = table.filter(is_tie)["to_service_name"].to_pylist()
        service = next((f'the service "{name}"' for name in services if name is not None), "a service")
        expected = (
            'a conversation id for each row, or the argument tie_break="first", '
            f"because {service} has several equal candidates"
        )
        raise SchemaError(
            f"conversation_id: the column is missing; expected {expected}", column="conversation_id", expected=expected
        )


def _dictionary_values(column: Any) -> tuple[str, ...]:
    return tuple(column.dictionary.to_pylist())
