"""Findings as people read them."""

from __future__ import annotations

from itertools import groupby
from typing import Final

from rich.console import Console

from ssbroker.diagnose import CODES, Findings
from ssbroker.wording import harmless

_SHOWN: Final = 10
_COLOURS: Final = {"error": "red", "warning": "yellow", "info": "cyan"}


def print_findings(found: Findings, console: Console) -> None:
    """Prints each code with its findings, the worst first."""

    def line(text: str, style: str | None = None) -> None:
        console.print(harmless(text), style=style, markup=False, highlight=False, soft_wrap=True)

    for (code, severity), group in groupby(found, key=lambda finding: (finding.code, finding.severity)):
        findings = list(group)
        line(f"{code} {severity}: {CODES[code].title}", _COLOURS[severity])
        line(f"  {CODES[code].why}")
        for finding in findings[:_SHOWN]:
            line(f"  - {finding.where}: {finding.message}")
            line(f"    {finding.remedy}", "dim")
        if len(findings) > _SHOWN:
            line(f"  - and {len(findings) - _SHOWN:,} more; --json has them all")
        line("")
    counts = ", ".join(
        f"{number:,} {severity}{'' if number == 1 or severity == 'info' else 's'}"
        for severity, number in found.counts.items()
        if number
    )
    line(counts or "Nothing is found.")
