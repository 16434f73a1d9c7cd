"""The counts and the summary of `ssbroker reassemble`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from rich.console import Console

from ssbroker._text import count_of
from ssbroker.cli.invalid_rows import CauseCounts, InvalidRows
from ssbroker.cli.terminal import print_prose, share_table

pc: Any = pyarrow.compute  # the stubs do not support text and bytes with 64-bit offsets
MESSAGES: Final = "messages"
REJECTED: Final = "rejected"
INCOMPLETE: Final = "incomplete"
ACKNOWLEDGEMENTS: Final = "acknowledgements"
INVALID: Final = "invalid"
DIRECTION: Final = ["conversation_id", "is_initiator"]
"""The columns that identify a direction."""


@dataclass(kw_only=True)
class ReassembleCounts:
    """The counts of a run."""

    rows: int = 0
    """The number of fragments read, without invalid rows."""
    messages: int = 0
    """The number of messages written."""
    message_bytes: int = 0
    """The total size of the written bodies."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The number of rejected fragments by reason."""
    incomplete: int = 0
    """The number of messages with missing fragments."""
    waiting: int = 0
    """The number of complete messages that wait for earlier ones."""
    blocked: int = 0
    """The number of waiting messages in directions whose next message has no fragment in the input."""
    pending_bytes: int = 0
    """The number of received bytes of incomplete and waiting messages."""
    acknowledgements: int | None = None
    """The number of acknowledged directions; None if acknowledgements are not written."""
    invalid: CauseCounts = field(default_factory=CauseCounts)
    """The invalid rows, if they are written."""

    def add_messages(self, batch: pa.RecordBatch) -> None:
        """Counts written messages."""
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
        """Counts incomplete and waiting messages."""
        complete = batch.column("first_missing_fragment").null_count
        self.waiting += complete
        self.incomplete += batch.num_rows - complete
        self.pending_bytes += pc.sum(batch.column("received_bytes")).as_py() or 0

    def add_blocked(self, pending: pa.Table) -> None:
        """Counts the complete messages of directions in which even the next message has no fragment."""
        is_next = pc.is_null(pending["waits_for_sequence_number"])
        is_complete = pc.is_null(pending["first_missing_fragment"])
        marked = pending.select(DIRECTION).append_column("next", is_next).append_column("complete", is_complete)
        directions = marked.group_by(DIRECTION).aggregate([("next", "any"), ("complete", "sum")])
        self.blocked = pc.sum(directions.filter(pc.invert(directions["next_any"]))["complete_sum"]).as_py() or 0

    def by_frequency(self) -> dict[str, int]:
        """Returns the number of rejected fragments by reason, the most frequent reason first."""
        return dict(sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0])))


_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT_FACTOR: Final = 1024


@dataclass(frozen=True, kw_only=True)
class ReassembleSummary:
    """The summary of a run."""

    fragments: Sequence[str]
    """The input files."""
    outputs: Mapping[str, str]
    """The output paths by table name."""
    state: str | None
    """The state file."""
    counts: ReassembleCounts
    seconds: float
    """The duration of the run."""

    @property
    def invalid(self) -> InvalidRows | None:
        """The invalid rows; None if they are not written."""
        output = self.outputs.get(INVALID)
        return None if output is None else InvalidRows(causes=self.counts.invalid.all(), output=output, verb="ignored")

    @property
    def rows_per_second(self) -> int:
        """The fragments processed per second."""
        return round(self.counts.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as values for JSON."""
        counts = self.counts
        return {
            "fragments": list(self.fragments),
            "state": self.state,
            "rows": counts.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "messages": {
                "rows": counts.messages,
                "bytes": counts.message_bytes,
                "output": self.outputs[MESSAGES],
            },
            "rejected": {
                "rows": counts.reasons.total(),
                "reasons": counts.by_frequency(),
                "output": self.outputs.get(REJECTED),
            },
            "invalid": None if self.invalid is None else self.invalid.to_dict(),
            "incomplete": {
                "rows": counts.incomplete + counts.waiting,
                "waiting": counts.waiting,
                "bytes": counts.pending_bytes,
                "output": self.outputs.get(INCOMPLETE),
            },
            "acknowledgements": {
                "rows": counts.acknowledgements,
                "output": self.outputs.get(ACKNOWLEDGEMENTS),
            },
        }

    def print(self, console: Console) -> None:
        """Prints the summary."""
        if self.counts.reasons:
            table = share_table("Rejected", "Fragments")
            for reason, rows in self.counts.by_frequency().items():
                table.add_row(reason, f"{rows:,}", f"{rows / self.counts.rows:.1%}")
            console.print(table)
            console.print()
        for sentence in self._sentences():
            print_prose(console, sentence)

    def _sentences(self) -> list[str]:
        counts = self.counts
        sentences = [] if self.invalid is None else ["\n".join(self.invalid.lines())]
        if counts.reasons:
            sentences.append(f"{count_of(counts.reasons.total(), 'fragment')} rejected{self._destination(REJECTED)}")
        if counts.incomplete or counts.waiting:
            saved = f"; saved in {self.state}" if self.state else ""
            sentences.append(f"{self._pending()}{self._destination(INCOMPLETE)}{saved}")
        if counts.acknowledgements is not None:
            sentences.append(
                f"{count_of(counts.acknowledgements, 'acknowledgement')}{self._destination(ACKNOWLEDGEMENTS)}"
            )
        result = f"{count_of(counts.messages, 'message')} ({format_bytes(counts.message_bytes)}) of {count_of(counts.rows, 'fragment')}"
        speed = f"in {self.seconds:,.1f} s ({self.rows_per_second:,} rows/s)"
        return [*sentences, f"{result} reassembled {speed} to {self.outputs[MESSAGES]}"]

    def _pending(self) -> str:
        counts = self.counts
        size = format_bytes(counts.pending_bytes)
        if not counts.incomplete:
            return f"{count_of(counts.waiting, 'message')} waiting ({size})"
        waiting = f" and {counts.waiting:,} waiting" if counts.waiting else ""
        return f"{count_of(counts.incomplete, 'message')} incomplete{waiting} ({size})"

    def _destination(self, name: str) -> str:
        return f", written to {self.outputs[name]}" if name in self.outputs else f"; --{name} FILE lists them"


def format_bytes(size: int) -> str:
    """Formats a number of bytes with a binary unit.

    Examples:
        >>> format_bytes(100), format_bytes(3 << 19)
        ('100 B', '1.5 MiB')
    """
    scaled, unit = float(size), 0
    while scaled >= _UNIT_FACTOR and unit < len(_SIZE_UNITS) - 1:
        scaled, unit = scaled / _UNIT_FACTOR, unit + 1
    return f"{scaled:.1f} {_SIZE_UNITS[unit]}" if unit else f"{size} B"
