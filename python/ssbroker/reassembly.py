"""What comes of fragments that are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Reassembly:
    """What came of fragments.

    Attributes:
        messages: The messages that are whole and whose turn it is (`schemas.MESSAGES`), then the further columns.
        rejected: The fragments that were refused, and why (`schemas.REJECTED`).
        acknowledgements: What the sender of each direction is told (`schemas.ACKNOWLEDGEMENTS`).
    """

    messages: pa.Table
    rejected: pa.Table
    acknowledgements: pa.Table
    _ask: Callable[[], pa.Table] = field(repr=False, compare=False)

    @cached_property
    def pending(self) -> pa.Table:
        """The messages that are incomplete or wait for others (`schemas.PENDING`), as of the first time that this is asked."""
        return self._ask()

    def __reduce__(self) -> tuple[Callable[..., Reassembly], tuple[Any, ...]]:
        return _reassembly, (self.messages, self.rejected, self.acknowledgements, self.pending)


def _reassembly(messages: pa.Table, rejected: pa.Table, acknowledgements: pa.Table, pending: pa.Table) -> Reassembly:
    return Reassembly(messages, rejected, acknowledgements, lambda: pending)
