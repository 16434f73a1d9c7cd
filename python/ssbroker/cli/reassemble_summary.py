"""What came of fragments, as a table and sentences for people and as one object for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from ssbroker.cli.reassemble_tally import Tally

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_LIMIT: Final = "limit_exceeded"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did."""

    fragments: Sequence[str]
    """The files that were read."""
    outputs: Mapping[str, str]
    """Where what was written, by the names of the options."""
    state: str | None
    """Where what is pending was left."""
    tally: Tally
    """The counts."""
    seconds: float
    """How long it took."""

    @property
    def rows_per_second(self) -> int:
        """How many fragments a second."""
        return round(self.tally.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        tally = self.tally
        return {
            "fragments": list(self.fragments),
            "state": self.state,
            "rows": tally.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "messages": {
                "rows": tally.messages,
                "bytes": tally.message_bytes,
                "output": self.outputs["messages"],
            },
            "rejected": {
                "rows": tally.reasons.total(),
                "reasons": tally.by_frequency(),
                "output": self.outputs.get("rejected"),
            },
            "incomplete": {
                "rows": tally.incomplete + tally.waiting,
                "waiting": tally.waiting,
                "bytes": tally.pending_bytes,
                "output": self.outputs.get("incomplete"),
            },
            "acknowledgements": {
                "rows": tally.acknowledgements,
                "output": self.outputs.get("acknowledgements"),
            },
        }

    def print(self, console: Console) -> None:
        """Prints it."""
        if self.tally.reasons:
            console.print(self._table())
        for sentence in self._sentences():
            console.print(sentence, soft_wrap=True, markup=False, highlight=False)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title_justify="left")
        table.add_column("Rejected", min_width=36, overflow="fold")
        table.add_column("Fragments", justify="right", min_width=14)
        table.add_column("Share", justify="right", min_width=7)
        for reason, rows in self.tally.by_frequency().items():
            table.add_row(reason, f"{rows:,}", f"{rows / self.tally.rows:.1%}")
        table.add_row()
        return table

    def _sentences(self) -> list[str]:
        tally = self.tally
        sentences = []
        if tally.reasons:
            sentences.append(f"{counted(tally.reasons.total(), 'fragment')} rejected{self._where('rejected')}")
        if tally.reasons[_LIMIT]:
            sentences.append("limit_exceeded: --help tells the limits, which can be raised")
        if tally.incomplete or tally.waiting:
            kept = f"; kept in {self.state}" if self.state else ""
            sentences.append(f"{self._pending()}{self._where('incomplete')}{kept}")
        if tally.acknowledgements is not None:
            sentences.append(f"{counted(tally.acknowledgements, 'acknowledgement')}{self._where('acknowledgements')}")
        done = f"{counted(tally.messages, 'message')} ({in_units(tally.message_bytes)}) of {counted(tally.rows, 'fragment')}"
        speed = f"in {self.seconds:,.1f} s ({self.rows_per_second:,} rows/s)"
        return [*sentences, f"{done} reassembled {speed} to {self.outputs['messages']}"]

    def _pending(self) -> str:
        tally = self.tally
        size = in_units(tally.pending_bytes)
        if not tally.incomplete:
            return f"{counted(tally.waiting, 'message')} waiting ({size})"
        waiting = f" and {tally.waiting:,} waiting" if tally.waiting else ""
        return f"{counted(tally.incomplete, 'message')} incomplete{waiting} ({size})"

    def _where(self, name: str) -> str:
        return f", to {self.outputs[name]}" if name in self.outputs else f"; --{name} FILE writes which"


def counted(number: int, noun: str) -> str:
    """A number of things.

    Examples:
        >>> counted(1, "message"), counted(2000, "message")
        ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_units(size: int) -> str:
    """A number of bytes for people.

    Examples:
        >>> in_units(100), in_units(3 << 19)
        ('100 B', '1.5 MiB')
    """
    scaled, unit = float(size), 0
    while scaled >= _STEP and unit < len(_UNITS) - 1:
        scaled, unit = scaled / _STEP, unit + 1
    return f"{scaled:.1f} {_UNITS[unit]}" if unit else f"{size} B"
