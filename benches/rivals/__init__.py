"""Routers that others would build, each giving the same answer as ssbroker with `tie_break="first"` on one routing table.

A rival is prepared from a routing table once, loads conversations into the form that it likes best (neither is timed with the
routing), and routes them in one thread. They take tables of network addresses only, without mirrors, and one database: this
spares them work that ssbroker does.
"""

from __future__ import annotations

import datetime
from typing import Any, Protocol

import pyarrow as pa


class Rival(Protocol):
    """What takes part in a race. `Any` stands for the rival's own form of the input and of the result."""

    @property
    def name(self) -> str: ...

    def load(self, conversations: pa.Table) -> Any: ...

    def route(self, loaded: Any) -> Any: ...

    def answer(self, result: Any) -> pa.Table:
        """Return the result with the columns of `winners.DECISIONS`, so that it can be compared."""
        ...


class Entry(Protocol):
    """Makes a rival from a routing table."""

    def __call__(self, routes: pa.Table, now: datetime.datetime) -> Rival: ...
