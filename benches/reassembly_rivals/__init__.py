"""Ways to put fragments together that others would build, each giving the same messages as ssbroker.

A rival loads the fragments into the form that it likes best (which is not timed), and puts them together in one thread: fragments
that come twice are dropped, every MD5 that is there is compared with one that it computes, and the messages of a direction come out in
order. The rivals take only traffic in which every message becomes whole and unharmed, and raise where one does not: that spares
them gaps, rejections, contradictions, acknowledgements and limits, which ssbroker handles.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa


class Rival(Protocol):
    """What takes part in a race. `Any` stands for the rival's own form of the input and of the result."""

    @property
    def name(self) -> str: ...

    def load(self, fragments: pa.Table) -> Any: ...

    def reassemble(self, loaded: Any) -> Any: ...

    def messages(self, result: Any) -> pa.Table:
        """Return the result with the columns that `answers.digest` reads."""
        ...
