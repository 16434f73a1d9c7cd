"""A simple router: Python dicts, one row at a time. It is the reference for the other rivals."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benches.rivals.winners import DECISIONS, normal_address


class DictRouter:
    """Three dicts to decision numbers: by service and id, by service for other ids, and by service without an id."""

    name = "python dict"

    def __init__(self, routes: pa.Table, now: datetime.datetime) -> None:
        self._pairs: dict[tuple[str, bytes], int] = {}
        self._with_id: dict[str, int] = {}
        self._without_id: dict[str, int] = {}
        self._rows: list[tuple[Any, ...]] = [("DELAYED", 7, None, None, None, "no_route")]
        for row in sorted(routes.to_pylist(), key=lambda row: row["route_id"], reverse=True):
            if row["lifetime"] is None or now < row["lifetime"]:
                self._add(
                    row["remote_service_name"], row["broker_instance"], row["route_id"], normal_address(row["address"])
                )
        self._without_id |= self._with_id
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, DECISIONS, strict=True)]
        self._decisions = pa.RecordBatch.from_arrays(arrays, schema=DECISIONS)

    def _add(self, service: str | None, broker: bytes | None, route_id: int, address: str) -> None:
        """Adds a route; it replaces those with higher ids that were added before."""
        if service is None and broker is None:
            self._rows[0] = ("REMOTE", 5, route_id, address, None, "matched")
        elif service is not None and broker is None:
            self._with_id[service] = self._append(("REMOTE", 2, route_id, address, None, "matched"))
        elif service is not None and broker is not None:
            self._pairs[service, broker] = self._append(("REMOTE", 1, route_id, address, None, "matched"))
            self._without_id[service] = self._append(("REMOTE", 3, route_id, address, broker, "matched"))

    def _append(self, row: tuple[Any, ...]) -> int:
        self._rows.append(row)
        return len(self._rows) - 1

    def load(self, conversations: pa.Table) -> list[pa.RecordBatch]:
        return conversations.select(["to_service_name", "to_broker_instance"]).to_batches()

    def route(self, batches: list[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches([self._route(batch) for batch in batches], DECISIONS)

    def _route(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        services: list[Any] = batch.column(0).to_pylist()
        brokers: list[Any] = batch.column(1).to_pylist()
        pairs, with_id, without_id = self._pairs.get, self._with_id.get, self._without_id.get
        numbers = [
            without_id(service, 0) if broker is None else pairs((service, broker)) or with_id(service, 0)
            for service, broker in zip(services, brokers, strict=True)
        ]
        decided = self._decisions.take(pa.array(numbers, pa.int32()))
        at = DECISIONS.get_field_index("broker_instance")
        return decided.set_column(at, DECISIONS.field(at), pc.coalesce(batch.column(1), decided.column(at)))

    def answer(self, result: pa.Table) -> pa.Table:
        return result
