"""Findings, their codes, and their SARIF report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Literal, overload

import pyarrow as pa

from ssbroker.exceptions import OptionError

Severity = Literal["error", "warning", "info"]
"""Messages are lost or wait for ever; what stands there does not do what it seems to; worth knowing."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """A kind of finding."""

    code: str
    """Stable: never given to another kind."""
    name: str
    """In words for programs."""
    severity: Severity
    """Unless a finding says otherwise."""
    title: str
    """In words for people."""
    why: str
    """Why it matters."""


_ALL: Final = (
    Code(
        code="SSB001",
        name="route-never-matches",
        severity="warning",
        title="A route names a broker id and no service",
        why="No step of the search asks for such a route, so no conversation ever takes it (R20). CREATE ROUTE refuses it.",
    ),
    Code(
        code="SSB002",
        name="route-shadowed",
        severity="warning",
        title="Other routes are always preferred to this one",
        why="Whatever the conversation, a mirrored route goes before one to LOCAL that has the service, that before a network "
        "address, that before TRANSPORT (R22). Who counts on this route counts on nothing.",
    ),
    Code(
        code="SSB003",
        name="route-expired",
        severity="warning",
        title="A route has expired",
        why="It stands in the table and is ignored (R3). SQL Server never deletes it.",
    ),
    Code(
        code="SSB004",
        name="route-expires-soon",
        severity="warning",
        title="A route is about to expire",
        why="From its lifetime on it is ignored (R3), and what goes by it now waits, or takes another way.",
    ),
    Code(
        code="SSB005",
        name="route-duplicate",
        severity="info",
        title="Two routes say the same",
        why="Routes with the same service, broker id and address count as one (R21): the second adds neither load sharing nor safety.",
    ),
    Code(
        code="SSB006",
        name="wildcard-beside-local",
        severity="info",
        title="Everything that is not here goes to the network",
        why="Beside LOCAL stands a route for every service to a network address: a name that is misspelt, or whose database is "
        "disabled, leaves this instance instead of waiting where it would be noticed (R22).",
    ),
    Code(
        code="SSB007",
        name="transport-without-address",
        severity="error",
        title="TRANSPORT for a name that holds no address",
        why="The next hop is read from the service name, which has to begin with host:port (R23). Without one the route cannot be used.",
    ),
    Code(
        code="SSB008",
        name="local-without-service",
        severity="error",
        title="LOCAL for a service that no enabled database has",
        why="What is begun here waits, what comes from outside is dropped (R26).",
    ),
    Code(
        code="SSB009",
        name="address-is-this-instance",
        severity="warning",
        title="A network address that is this instance's own",
        why="The conversation is routed again by msdb as if it came from outside (R41), where forwarding has to be on for all but LOCAL. In "
        "msdb's own table it is a loop, and the message is dropped (R42).",
    ),
    Code(
        code="SSB010",
        name="mirror-equals-address",
        severity="error",
        title="The mirror is the same server",
        why="When that server fails there is no partner to go to. CREATE ROUTE refuses it.",
    ),
    Code(
        code="SSB011",
        name="mirror-without-broker-id",
        severity="warning",
        title="A mirrored route without a broker id or a service",
        why="Both partners hold one database, whose id does not change at a failover; without it the route leads to whatever the two "
        "servers have. CREATE ROUTE refuses it.",
    ),
    Code(
        code="SSB012",
        name="broker-id-in-two-instances",
        severity="error",
        title="Two instances have a database with the same broker id",
        why="A broker id is unique in the network (I1). Messages bound to it reach the one or the other, and the rest of the conversation is "
        "missing there. A restored or copied database keeps the id of its source.",
    ),
    Code(
        code="SSB013",
        name="broker-id-twice-in-instance",
        severity="warning",
        title="Two databases of an instance have the same broker id",
        why="They can never both be enabled (I7): ENABLE_BROKER fails with 9772.",
    ),
    Code(
        code="SSB014",
        name="broker-id-stale",
        severity="error",
        title="A route names a broker id that the service no longer has",
        why="NEW_BROKER, or a copy in the place of the original, changed the id (I5). A conversation that is bound to the old one is not "
        "delivered.",
    ),
    Code(
        code="SSB015",
        name="dynamic-routing-hides-local",
        severity="warning",
        title="Dynamic routing hides services of this instance",
        why="The table has a route to SQL/ServiceBroker/BrokerConfiguration, so a conversation for a service that no route names is DELAYED and "
        "asked for (R14) before the route to LOCAL for every service is looked at.",
    ),
    Code(
        code="SSB016",
        name="forwarding-off",
        severity="error",
        title="msdb leads out of an instance that does not forward",
        why="What comes from outside and takes this route is DROPPED (R25), and its sender sends it again for ever.",
    ),
    Code(
        code="SSB017",
        name="no-way-back",
        severity="error",
        title="No way back from the target to the initiator",
        why="The target takes the message and cannot acknowledge it: the initiator sends it again every minute until the conversation "
        "times out, and replies never come.",
    ),
    Code(
        code="SSB018",
        name="name-nearly-equal",
        severity="warning",
        title="A name that differs from a service only in case, white space or Unicode form",
        why="Names compare byte by byte (R5), whatever the collation: the two are different services.",
    ),
    Code(
        code="SSB019",
        name="service-unreachable",
        severity="info",
        title="No conversation reaches this service",
        why="From no database that is known here does a conversation for it come to it. That is right for a service that only begins conversations.",
    ),
    Code(
        code="SSB020",
        name="loop",
        severity="error",
        title="Messages go in circles",
        why="Each instance passes them on to the next and the last to the first, until their hops or their lifetime are used up; then they are "
        "DROPPED (R42).",
    ),
    Code(
        code="SSB021",
        name="delivery-off",
        severity="warning",
        title="Message delivery is off in a database with services",
        why="What it sends stays in its transmission queue, and its services are not found (I2, R33).",
    ),
    Code(
        code="SSB022",
        name="next-hop-unknown",
        severity="info",
        title="No instance of the fleet has this address",
        why="Either the instance is missing from what was looked at, or host or port are wrong.",
    ),
)

CODES: Final = {code.code: code for code in _ALL}
"""Every code, in order."""


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


SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Findings, *, uris: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The findings as one SARIF log.

    Args:
        findings: What was found.
        uris: The URI of each instance's file or folder, relative to the repository. What is between instances is shown at all of them.

    Returns:
        The log, as JSON has it.

    Examples:
        >>> from ssbroker.diagnose import Findings, sarif
        >>> sarif(Findings([]))["version"]
        '2.1.0'
    """
    rules = [
        {
            "id": code.code,
            "name": "".join(word.capitalize() for word in code.name.split("-")),
            "shortDescription": {"text": code.title},
            "fullDescription": {"text": code.why},
            "defaultConfiguration": {"level": _LEVELS[code.severity]},
        }
        for code in CODES.values()
    ]
    numbers = {code: number for number, code in enumerate(CODES)}
    driver = {"name": "ssbroker", "version": version("ssbroker"), "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, numbers, uris or {}) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, numbers: dict[str, int], uris: Mapping[str, str]) -> dict[str, Any]:
    logical = [{"fullyQualifiedName": finding.where}]
    # A finding is about a whole catalog, in which nobody can say the line; viewers want one.
    locations = [
        {
            "physicalLocation": {"artifactLocation": {"uri": uris[instance]}, "region": {"startLine": 1}},
            "logicalLocations": logical,
        }
        for instance in _instances(finding)
        if instance in uris
    ]
    return {
        "ruleId": finding.code,
        "ruleIndex": numbers[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.where}: {finding.message}. {finding.remedy}"},
        "locations": locations or [{"logicalLocations": logical}],
        "partialFingerprints": {"object/v1": f"{finding.code}/{finding.where}/{finding.route_id}"},
    }


def _instances(finding: Finding) -> list[str]:
    """Whose catalog it is in; of what is between instances, those of the objects that have part in it."""
    if finding.instance is not None:
        return [finding.instance]
    return list(dict.fromkeys(related.partition("/")[0] for related in finding.related))
