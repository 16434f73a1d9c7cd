"""Findings and their codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, overload

import pyarrow as pa

from ssbroker import _notebook as notebook
from ssbroker._text import count_of, quoted, restore_spaces
from ssbroker.exceptions import OptionError

Severity = Literal["error", "warning", "info"]
"""`error`: messages are lost or delayed forever. `warning`: something has no effect, or an unintended effect. `info`: worth knowing."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """A kind of finding.

    Attributes:
        code: The stable code, such as `SSB002`; never reused for another kind.
        name: A stable name, such as `route-shadowed`.
        severity: The severity of findings of this kind, unless a finding specifies another.
        title: A short description.
        why: Why findings of this kind matter.
    """

    code: str
    name: str
    severity: Severity
    title: str
    why: str


_CONFIGURATION: Final = (
    Code(
        code="SSB001",
        name="route-never-matches",
        severity="warning",
        title="A route has a broker id but no service name",
        why="No step of the search considers such a route, so no conversation ever uses it. CREATE ROUTE rejects such a route.",
    ),
    Code(
        code="SSB002",
        name="route-shadowed",
        severity="warning",
        title="Other routes always take precedence over this one",
        why="For every conversation, a mirrored route comes first, then a LOCAL route that finds the service, then a "
        "network address, then TRANSPORT. This route is never used.",
    ),
    Code(
        code="SSB003",
        name="route-expired",
        severity="warning",
        title="A route has expired",
        why="The route is still in the table but is ignored. SQL Server never deletes expired routes. If the route is temporary, extend it: "
        "ALTER ROUTE ... WITH LIFETIME = <seconds>. A remedy that creates the route again makes it permanent.",
    ),
    Code(
        code="SSB004",
        name="route-expires-soon",
        severity="warning",
        title="A route is about to expire",
        why="After its lifetime the route is ignored: conversations that use it now will be delayed or will use another "
        "route. If the route is temporary, extend it: ALTER ROUTE ... WITH LIFETIME = <seconds>. A remedy that creates the route again "
        "makes it permanent.",
    ),
    Code(
        code="SSB005",
        name="route-duplicate",
        severity="info",
        title="Two routes are identical",
        why="Routes with the same service name, broker id and address count as one: the second one adds neither load "
        "sharing nor redundancy.",
    ),
    Code(
        code="SSB006",
        name="wildcard-beside-local",
        severity="info",
        title="Messages for all services that are not in this instance are sent to the network",
        why="The table contains two routes for all services, one to a network address and one to LOCAL. A conversation whose "
        "service name is misspelled, or whose database is disabled, leaves this instance instead of being delayed here, "
        "where it would be noticed.",
    ),
    Code(
        code="SSB007",
        name="transport-without-address",
        severity="error",
        title="A route to TRANSPORT for a service name without an address",
        why="The next hop is taken from the service name, which must begin with host:port. Otherwise the route cannot be "
        "used.",
    ),
    Code(
        code="SSB008",
        name="local-without-service",
        severity="error",
        title="A route to LOCAL for a service that no enabled database has",
        why="Conversations that start in this instance are delayed; messages from other instances are dropped.",
    ),
    Code(
        code="SSB009",
        name="address-is-this-instance",
        severity="warning",
        title="A route to this instance by its own network address",
        why="The conversation is routed again with the table of msdb, as if it came from another instance; forwarding "
        "must then be enabled for any address except LOCAL. In the table of msdb, such a route is a loop and the message is "
        "dropped.",
    ),
    Code(
        code="SSB010",
        name="mirror-equals-address",
        severity="error",
        title="The address and the mirror address are the same",
        why="If the server at this address fails, there is no partner to fail over to. CREATE ROUTE rejects such a route.",
    ),
    Code(
        code="SSB011",
        name="mirror-without-broker-id",
        severity="warning",
        title="A mirrored route without a broker id or a service name",
        why="Both partners hold the same database, whose broker id does not change at a failover. Without the broker id, the "
        "route may lead to any database of the two servers that has the service. CREATE ROUTE rejects such a route.",
    ),
    Code(
        code="SSB012",
        name="broker-id-in-two-instances",
        severity="error",
        title="Databases of several instances have the same broker id",
        why="A broker id must be unique in the network. Messages for this id reach one database or the other, and each "
        "database misses part of the conversation. A restored or copied database keeps the id of its source.",
    ),
    Code(
        code="SSB013",
        name="broker-id-twice-in-instance",
        severity="warning",
        title="Two databases of an instance have the same broker id",
        why="The two databases can never both be enabled: ENABLE_BROKER fails with error 9772.",
    ),
    Code(
        code="SSB014",
        name="broker-id-stale",
        severity="error",
        title="A route has a broker id that the service no longer has",
        why="The broker id was changed by NEW_BROKER, or a copy replaced the original database. Conversations that are "
        "bound to the old id are not delivered.",
    ),
    Code(
        code="SSB015",
        name="dynamic-routing-hides-local",
        severity="warning",
        title="Dynamic routing hides services of this instance",
        why="The table has a route to SQL/ServiceBroker/BrokerConfiguration. A conversation for a service that no route "
        "names is therefore DELAYED, and a route is requested, before the route to LOCAL for all services is "
        "considered.",
    ),
    Code(
        code="SSB016",
        name="forwarding-off",
        severity="error",
        title="A route of msdb leads out of an instance that does not forward",
        why="Messages from other instances that use this route are DROPPED, and their sender resends them until the "
        "conversation ends.",
    ),
    Code(
        code="SSB017",
        name="no-way-back",
        severity="error",
        title="The target has no return route to the initiator",
        why="The target accepts the message but cannot acknowledge it: the initiator resends it every minute until the "
        "conversation times out, and replies never arrive.",
    ),
    Code(
        code="SSB018",
        name="name-nearly-equal",
        severity="warning",
        title="A name differs from a service only in case, white space or Unicode normalization form",
        why="Service names are compared byte by byte, whatever the collation: the two names are different services.",
    ),
    Code(
        code="SSB019",
        name="service-unreachable",
        severity="info",
        title="No conversation reaches this service",
        why="No conversation from any known database is routed to the service. This is normal for a service that only starts "
        "conversations.",
    ),
    Code(
        code="SSB020",
        name="loop",
        severity="error",
        title="Instances forward messages in a loop",
        why="Each instance forwards the messages to the next, and the last one to the first, until their hop limit or "
        "lifetime is reached; then they are DROPPED. In a loop of two instances, the second drops them, "
        "because no instance sends a message back to the instance that it came from.",
    ),
    Code(
        code="SSB021",
        name="delivery-off",
        severity="warning",
        title="Message delivery is disabled in a database that has services",
        why="Messages sent by the database stay in its transmission queue, and its services are not found. ENABLE_BROKER waits until nobody "
        "uses the database, unless WITH ROLLBACK IMMEDIATE rolls back its open transactions.",
    ),
    Code(
        code="SSB022",
        name="next-hop-unknown",
        severity="info",
        title="No instance of the fleet has this address",
        why="Either the instance is not part of the fleet, or the host or port is wrong.",
    ),
    Code(
        code="SSB023",
        name="service-in-several-databases",
        severity="warning",
        title="Several databases of an instance have the same service",
        why="Conversations that name no broker id are distributed among these databases. That balances the load "
        "between copies, but is a mistake if only one database is meant to receive them.",
    ),
    Code(
        code="SSB024",
        name="messages-dropped",
        severity="error",
        title="An instance drops messages that other instances route to it",
        why="Nothing acknowledges these messages, so their sender resends them until the conversation ends.",
    ),
    Code(
        code="SSB025",
        name="own-services-unreachable",
        severity="warning",
        title="Services of a database cannot reach each other",
        why="Even a conversation within a single database needs a route to LOCAL. Every database is created with such a route, "
        "AutoCreatedLocal; here the route was dropped or changed.",
    ),
    Code(
        code="SSB026",
        name="endpoint-not-started",
        severity="error",
        title="The Service Broker endpoint is not started",
        why="Without a started endpoint, an instance neither sends messages to other instances nor receives any.",
    ),
    Code(
        code="SSB027",
        name="queue-off",
        severity="error",
        title="The queue of a service is disabled",
        why="Nothing can be received from the queue, and messages for it wait. A queue is disabled after five consecutive rollbacks of "
        "transactions that receive from it, and stays disabled until it is enabled again.",
    ),
    Code(
        code="SSB028",
        name="conversations-left-open",
        severity="warning",
        title="Conversations are not ended",
        why="A conversation takes up space until both sides have ended it. The number of endpoints grows without limit, which slows down every message.",
    ),
    Code(
        code="SSB029",
        name="binding-incomplete",
        severity="error",
        title="A remote service binding lacks its user or certificate",
        why="A dialog with encryption waits until the user of the binding owns the certificate of the remote service's owner.",
    ),
    Code(
        code="SSB030",
        name="service-without-contract",
        severity="warning",
        title="A service to which another instance sends has no contract",
        why="Without a contract, a service can only start conversations. Such a service rejects the conversations that other "
        "services start with it: these end with error -8408.",
    ),
    Code(
        code="SSB031",
        name="specified-port-differs",
        severity="warning",
        title="The specified address of an instance has a different port from its endpoint",
        why="Routes to this address seem correct, but nothing listens on its port, unless a device between the instances maps this port to "
        "the port of the endpoint.",
    ),
)

_SCRIPTS: Final = (
    Code(
        code="SSB101",
        name="script-statement-refused",
        severity="error",
        title="A statement in the script is refused",
        why="The rest of the script was read without the statement, so other findings may be consequences of this error.",
    ),
    Code(
        code="SSB102",
        name="script-statement-unknown",
        severity="error",
        title="A statement in the script is not T-SQL",
        why="SQL Server rejects the statement, so the object that it should create is missing.",
    ),
    Code(
        code="SSB103",
        name="script-not-executed",
        severity="warning",
        title="A statement in the script was not executed",
        why="The condition or text of the statement cannot be determined from the script, or the statement runs elsewhere, such as in a procedure: objects may be missing, or differ on the server.",
    ),
    Code(
        code="SSB104",
        name="script-empty",
        severity="error",
        title="The script defines no Service Broker objects",
        why="Nothing was checked.",
    ),
    Code(
        code="SSB105",
        name="script-not-decoded",
        severity="error",
        title="A script cannot be decoded",
        why="None of the statements in the script was read, so other findings may be consequences of this error.",
    ),
    Code(
        code="SSB106",
        name="broker-state-unknown",
        severity="warning",
        title="A database is restored or attached without ENABLE_BROKER",
        why="SQL Server disables message delivery during a restore, unless ENABLE_BROKER or NEW_BROKER is given: messages may wait although "
        "the routes are correct.",
    ),
    Code(
        code="SSB107",
        name="database-offline",
        severity="warning",
        title="The script leaves a database offline",
        why="The services of the database are not found, and its messages wait, until the database is online again.",
    ),
)

CODES: Final = {code.code: code for code in (*_CONFIGURATION, *_SCRIPTS)}
"""Every kind of finding by code, in order."""


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
    pa.field(
        "scripts",
        pa.list_(
            pa.struct(
                [pa.field("instance", pa.string(), nullable=False), pa.field("script", pa.string(), nullable=False)]
            )
        ),
        nullable=False,
    ),
    pa.field("related", pa.list_(pa.string()), nullable=False),
    pa.field("file", pa.string()),
    pa.field("line", pa.int32()),
]
FINDINGS: Final = pa.schema(_COLUMNS)
"""The schema of `Findings.table`: one row per finding."""


SubjectKind = Literal[
    "route",
    "routes",
    "service",
    "database",
    "queue",
    "binding",
    "endpoint",
    "broker id",
    "conversations",
    "loop",
    "statement",
]
_QUOTED_KINDS: Final = frozenset({"route", "service", "database", "queue", "binding", "endpoint"})


class Subject(NamedTuple):
    """The object of a finding; as text, for example `route "Orders"`."""

    kind: SubjectKind
    name: str | None = None
    """The name; for a queue, schema and name; for a loop, its instances; for conversations, their state; for a statement, its file and line."""

    def __str__(self) -> str:
        if self.name is None:
            return self.kind
        if self.kind == "statement":
            return self.name
        return f"{self.kind} {restore_spaces(quoted(self.name)) if self.kind in _QUOTED_KINDS else self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A problem, or something worth knowing.

    Attributes:
        code: The code, such as `SSB002`; a key of `CODES`.
        severity: `error`, `warning` or `info`.
        instance: The name of the instance; None if the finding concerns several.
        database: The database to which the routing table, service or broker id belongs, if any.
        subject: The kind and name of the object.
        route_id: The id of the route, if the object is a route.
        services: The services whose messages the problem affects; empty if there are none.
        loop: The instances of a loop, in order; empty for other findings.
        message: What was found.
        remedy: What to do: the T-SQL in `scripts` if there is any, otherwise advice.
        related: Other objects that are involved.
        scripts: The instances and scripts of a remedy that was proven on a copy; empty for advice.
        file: The script with the statement that created the object; None if the catalog was not loaded from scripts.
        line: The line of this statement in `file`, counted from 1.
    """

    code: str
    severity: Severity
    instance: str | None
    database: str | None
    subject: Subject
    route_id: int | None = None
    services: tuple[str, ...] = ()
    loop: tuple[str, ...] = ()
    message: str
    remedy: str
    related: tuple[str, ...] = ()
    scripts: tuple[tuple[str, str], ...] = ()
    file: str | None = None
    line: int | None = None

    @property
    def kind(self) -> Code:
        """The kind of finding: its entry in `CODES`."""
        return CODES[self.code]

    @property
    def object(self) -> str:
        """The object as text, such as `route "Orders"`."""
        return str(self.subject)

    @property
    def why(self) -> str:
        """Why findings of this kind matter."""
        return self.kind.why

    @property
    def where(self) -> str:
        """The instance, database and object, joined by slashes."""
        return "/".join(part for part in (self.instance, self.database, self.object) if part is not None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the finding as a dict with the columns of `FINDINGS`."""
        columns = {
            name: getattr(self, name) for name in ("severity", "instance", "database", "object", "route_id", "message")
        }
        scripts = [{"instance": instance, "script": script} for instance, script in self.scripts]
        rest = {"why": self.why, "remedy": self.remedy, "scripts": scripts, "related": list(self.related)}
        position = {"file": self.file, "line": self.line}
        return {"code": self.code, "name": self.kind.name, **columns, **rest, **position}

    def __str__(self) -> str:
        return f"{self.code} {self.severity}: {self.where}: {self.message}"


class Findings(Sequence[Finding]):
    """A sequence of findings, the most severe first.

    Args:
        findings: The findings, in any order.

    Examples:
        >>> from ssbroker.diagnose import Findings
        >>> found = Findings([])
        >>> len(found), found.table.num_rows, found.counts
        (0, 0, {'error': 0, 'warning': 0, 'info': 0})
    """

    __slots__ = ("_findings",)

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = tuple(sorted(findings, key=_sort_key))

    @property
    def table(self) -> pa.Table:
        """One row per finding, with the columns of `FINDINGS`."""
        return pa.Table.from_pylist([finding.to_dict() for finding in self], schema=FINDINGS)

    @property
    def counts(self) -> dict[str, int]:
        """The number of findings of each severity."""
        counter = Counter(finding.severity for finding in self)
        return {severity: counter[severity] for severity in SEVERITIES}

    def at_least(self, severity: Severity) -> Findings:
        """Returns the findings that have at least a given severity.

        Args:
            severity: `error`, `warning` or `info`.

        Returns:
            The findings of this severity or a higher one.

        Raises:
            OptionError: `severity` is not a severity.
        """
        if severity not in SEVERITIES:
            raise OptionError(f"severity: expected one of {', '.join(SEVERITIES)}, got {severity!r:.80}")
        kept = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return Findings([finding for finding in self if finding.severity in kept])

    def without(self, codes: Sequence[str]) -> Findings:
        """Returns the findings except those with certain codes.

        Args:
            codes: The codes to omit.

        Returns:
            The remaining findings.
        """
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

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no findings"

    def _repr_html_(self) -> str:
        if not self:
            return notebook.section("No findings")
        counts = ", ".join(severity_count(severity, number) for severity, number in self.counts.items() if number)
        parts = [
            notebook.collapsible(
                f"{finding.code} {finding.severity}: {finding.where}",
                notebook.preformatted(finding.message),
                notebook.preformatted(finding.remedy),
                *([] if finding.line is None else [notebook.preformatted(f"{finding.file or ''}:{finding.line}")]),
                is_open=finding.severity == "error",
            )
            for finding in self._findings[: notebook.ROWS_MAX]
        ]
        return notebook.section(f"{count_of(len(self), 'finding')}: {counts}", *parts, notebook.more_entries(len(self)))


def by_remedy(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Groups the findings that have the same remedy, in the order of the first finding of each group."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.remedy, finding.scripts), []).append(finding)
    return list(groups.values())


def severity_count(severity: str, number: int) -> str:
    """Formats the number of findings of a severity.

    Examples:
        >>> severity_count("error", 2), severity_count("info", 2)
        ('2 errors', '2 info')
    """
    return f"{number:,} info" if severity == "info" else count_of(number, severity)


_CONSEQUENCES: Final = frozenset({"SSB017"})
"""The codes of findings that may be consequences of other findings; they are sorted last within their severity."""


def _sort_key(finding: Finding) -> tuple[int, bool, str, str, str, int, str]:
    return (
        SEVERITIES.index(finding.severity),
        finding.code in _CONSEQUENCES,
        finding.code,
        finding.instance or "",
        finding.database or "",
        -1 if finding.route_id is None else finding.route_id,
        finding.object,
    )
