"""Alternative routers with the same results as ssbroker with `tie_break="first"`.

A rival is built from a routing table and loads conversations in its preferred format; neither is timed. It routes them in one thread.
Rivals accept only one table, with network addresses and without mirrors, which saves them work that ssbroker does.
"""

from __future__ import annotations

import datetime
from typing import Any, Protocol

import pyarrow as pa


class Rival(Protocol):
    """A contender. `Any` is its own format of input and result."""

    @property
    def name(self) -> str: ...

    def load(self, conversations: pa.Table) -> Any: ...

    def route(self, loaded: Any) -> Any: ...

    def answer(self, result: Any) -> pa.Table:
        """Returns the result with the columns of `winners.DECISIONS`, for comparison."""
        ...


class Entry(Protocol):
    """Creates a rival from a routing table."""

    def __call__(self, routes: pa.Table, now: datetime.datetime) -> Rival: ...
