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

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import reassemble
        >>> fragments = {"conversation_id": [bytes(16)] * 2, "is_initiator": [True] * 2, "message_sequence_number": [0] * 2,
        ...              "fragment_number": [0] * 2, "fragment_count": [1] * 2, "message_body": [b"Hello"] * 2}
        >>> result = reassemble(pa.table(fragments))
        >>> result.messages["message_body"].to_pylist(), result.rejected["reason"].to_pylist()
        ([b'Hello'], ['duplicate'])
        >>> result.acknowledgements["acked_sequence_number"].to_pylist(), result.pending.num_rows
        ([0], 0)
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
        return settled, (self.messages, self.rejected, self.acknowledgements, self.pending)


def settled(messages: pa.Table, rejected: pa.Table, acknowledgements: pa.Table, pending: pa.Table) -> Reassembly:
    """A result that holds what was pending, and no reassembler that could be asked later.

    Examples:
        >>> from ssbroker import schemas
        >>> empty = [schema.empty_table() for schema in (schemas.MESSAGES, schemas.REJECTED, schemas.ACKNOWLEDGEMENTS)]
        >>> settled(*empty, schemas.PENDING.empty_table()).pending.num_rows
        0
    """
    return Reassembly(messages, rejected, acknowledgements, lambda: pending)
