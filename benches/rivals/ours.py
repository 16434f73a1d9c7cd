"""ssbroker, with its result in the columns of the rivals."""

from __future__ import annotations

import datetime

import pyarrow as pa

from benches.rivals.winners import DECISIONS
from ssbroker import Catalog, Router
from ssbroker.router import TieBreak


class Ours:
    """A router of a single routing table."""

    name = "ssbroker"

    def __init__(self, routes: pa.Table, now: datetime.datetime, *, tie_break: TieBreak = "first") -> None:
        self._router = Router(Catalog(routes), tie_break=tie_break)
        self._now = now

    def load(self, conversations: pa.Table) -> pa.Table:
        return conversations

    def route(self, conversations: pa.Table) -> pa.Table:
        return self._router.route(conversations, now=self._now)

    def answer(self, result: pa.Table) -> pa.Table:
        for column in ("mirror_address", "target_database"):
            if result[column].null_count < result.num_rows:
                raise ValueError(f"{column} is set, which rivals do not support")
        return result.select(DECISIONS.names)
