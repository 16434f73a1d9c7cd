"""What was found, as objects and as an Arrow table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import pyarrow as pa

from ssbroker.diagnose.codes import CODES, SEVERITIES, Code, Severity
from ssbroker.exceptions import OptionError

_COLUMNS: Final[list[pa.Field[Any]]] = [
    pa.field("code", pa.string(), nullable=False),
    pa.field("name", pa.string(), nullable=False),
    pa.field("severity", pa.string(), nullable=False),
    pa.field("instance", pa.string()),
    pa.field("database", pa.string()),
    pa.field("object", pa.string(), nullable=False),
    pa.field("route_id", pa.int32()),
    pa.field("message", pa.string(), nullable=False),
    pa.field("why", pa.string(), nullable=False),
    pa.field("remedy", pa.string(), nullable=False),
    pa.field("related", pa.list_(pa.string()), nullable=False),
]
FINDINGS: Final = pa.schema(_COLUMNS)
"""A finding a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    code: str
    """Stable, such as `SSB002`."""
    severity: Severity
    """`error`, `warning` or `info`."""
    instance: str | None
    """Whose catalog it is in; None for what is between instances."""
    database: str | None
    """Whose table or service it is."""
    object: str
    """What it is about, such as `route "Orders"`."""
    route_id: int | None = None
    """Of the route, where it is one."""
    message: str
    """What is so."""
    remedy: str
    """What to do."""
    related: tuple[str, ...] = ()
    """Other objects that have part in it."""

    @property
    def kind(self) -> Code:
        """What kind of finding it is."""
        return CODES[self.code]

    @property
    def why(self) -> str:
        """Why it matters."""
        return self.kind.why

    @property
    def where(self) -> str:
        """Instance, database and object in one text."""
        return "/".join(part for part in (self.instance, self.database, self.object) if part is not None)

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values, in the columns of `FINDINGS`."""
        own = {
            name: getattr(self, name) for name in ("severity", "instance", "database", "object", "route_id", "message")
        }
        rest = {"why": self.why, "remedy": self.remedy, "related": list(self.related)}
        return {"code": self.code, "name": self.kind.name, **own, **rest}

    def __str__(self) -> str:
        return f"{self.code} {self.severity}: {self.where}: {self.message}"


class Findings(Sequence[Finding]):
    """Findings, the worst first.

    Examples:
        >>> found = Findings([])
        >>> len(found), found.table.num_rows, found.counts
        (0, 0, {'error': 0, 'warning': 0, 'info': 0})
    """

    __slots__ = ("_findings",)

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = tuple(sorted(findings, key=_order))

    @property
    def table(self) -> pa.Table:
        """A row for each finding, in the columns of `FINDINGS`."""
        return pa.Table.from_pylist([finding.to_dict() for finding in self], schema=FINDINGS)

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each severity."""
        counted = Counter(finding.severity for finding in self)
        return {severity: counted[severity] for severity in SEVERITIES}

    def at_least(self, severity: Severity) -> Findings:
        """Those that are as bad as this, or worse.

        Raises:
            OptionError: It is no severity.
        """
        if severity not in SEVERITIES:
            raise OptionError(f"severity: expected one of {', '.join(SEVERITIES)}; got {severity!r:.80}")
        kept = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return Findings([finding for finding in self if finding.severity in kept])

    def without(self, codes: Sequence[str]) -> Findings:
        """Those whose code is none of these."""
        return Findings([finding for finding in self if finding.code not in codes])

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...

    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self._findings[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def __len__(self) -> int:
        return len(self._findings)

    def __repr__(self) -> str:
        counts = ", ".join(f"{severity}={number}" for severity, number in self.counts.items())
        return f"Findings({counts})"


def _order(finding: Finding) -> tuple[int, str, str, str, int, str]:
    return (
        SEVERITIES.index(finding.severity),
        finding.code,
        finding.instance or "",
        finding.database or "",
        -1 if finding.route_id is None else finding.route_id,
        finding.object,
    )
