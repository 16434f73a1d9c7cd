"""Counts of what came of fragments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its stubs do not know text and bytes with 64-bit offsets


@dataclass(kw_only=True)
class Tally:
    """What came of fragments, counted.

    Examples:
        >>> tally = Tally(rows=2)
        >>> tally.add_rejected(pa.record_batch({"reason": ["duplicate", "duplicate"]}))
        >>> tally.by_frequency()
        {'duplicate': 2}
    """

    rows: int = 0
    """How many fragments were read."""
    messages: int = 0
    """How many messages were written."""
    message_bytes: int = 0
    """How many bytes their bodies have."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How many fragments were rejected, by reason."""
    incomplete: int = 0
    """Of how many messages fragments are missing."""
    waiting: int = 0
    """How many messages are whole and wait for others."""
    pending_bytes: int = 0
    """How many bytes of these two are there."""
    acknowledgements: int | None = None
    """How many directions are acknowledged; None where nobody asked."""

    def add_messages(self, batch: pa.RecordBatch) -> None:
        """Counts messages."""
        self.messages += batch.num_rows
        self.message_bytes += pc.sum(pc.binary_length(batch.column("message_body"))).as_py() or 0

    def add_rejected(self, batch: pa.RecordBatch) -> None:
        """Counts rejected fragments."""
        column: Any = batch.column("reason")
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        for pair in pc.value_counts(column).to_pylist():
            self.reasons[pair["values"]] += pair["counts"]

    def add_pending(self, batch: pa.RecordBatch) -> None:
        """Counts messages that were not written."""
        whole = batch.column("first_missing_fragment").null_count
        self.waiting += whole
        self.incomplete += batch.num_rows - whole
        self.pending_bytes += pc.sum(batch.column("received_bytes")).as_py() or 0

    def by_frequency(self) -> dict[str, int]:
        """The reasons, the most frequent first."""
        return dict(sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0])))
