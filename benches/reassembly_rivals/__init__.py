"""Alternative implementations of reassembly with the same results as ssbroker.

A rival loads the fragments in its preferred format, which is not timed, and reassembles them in one thread: it drops duplicates, verifies
signatures, and returns the messages of each direction in order. Rivals accept only traffic in which all messages are complete and valid,
and raise otherwise. This saves them work that ssbroker does: gaps, rejections, contradictions, acknowledgements and limits.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa


class Rival(Protocol):
    """A contender. `Any` is its own format of input and result."""

    @property
    def name(self) -> str: ...

    def load(self, fragments: pa.Table) -> Any: ...

    def reassemble(self, loaded: Any) -> Any: ...

    def messages(self, result: Any) -> pa.Table:
        """Returns the result with the columns that `answers.digest` reads."""
        ...
