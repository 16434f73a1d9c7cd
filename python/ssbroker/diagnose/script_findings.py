"""Findings about the scripts that a catalog was loaded from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ssbroker.ddl import ScriptNote
from ssbroker.diagnose.check_context import Problem
from ssbroker.diagnose.findings import CODES, Finding
from ssbroker.diagnose.fleet import Fleet

_CODES: Final = {"refused": "SSB101", "unknown": "SSB102", "not_carried_out": "SSB103", "empty": "SSB104"}
_REMEDIES: Final = {
    "refused": "Correct the statement, or add the script that creates what it needs",
    "unknown": "Correct the statement",
    "not_carried_out": "Write the statement so that the script decides it, or check the instance itself: "
    "Catalog.from_sql_server, or the folder of an ssbroker instance",
    "empty": "Check that this is the right file",
}


def script_problems(fleet: Fleet) -> Iterator[Problem]:
    """Yields a finding for each statement because of which the catalog may not be what its script says."""
    for instance, catalog in fleet.items():
        for note in catalog.notes:
            if note.is_problem:
                yield Problem(_finding(instance, note))


def _finding(instance: str, note: ScriptNote) -> Finding:
    file, line = note.position
    code = _CODES[note.kind]
    return Finding(
        code=code,
        severity=CODES[code].severity,
        instance=instance,
        database=None,
        object=f"line {line}" if file is None else f"{Path(file).name}:{line}",
        message=": ".join(part for part in (note.subject, note.text) if part),
        remedy=_REMEDIES[note.kind],
        file=file,
        line=line,
    )
