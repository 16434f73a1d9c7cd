"""What waits in a transmission queue, row by row: what the server said, what is decided now, which finding is the cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import guid_bytes, utc_datetime
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table
from ssbroker._text import restore_spaces, string_literal
from ssbroker.advice import advice
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.behaviour import Question
from ssbroker.diagnose.catalog_tables import MSDB
from ssbroker.diagnose.checks import NearServices, lint
from ssbroker.diagnose.context import name
from ssbroker.diagnose.findings import Finding, Findings
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.reachability import RoutingGraph
from ssbroker.diagnose.trace import Follower, Hop, Trace, ending, place
from ssbroker.exceptions import NullError, SchemaError
from ssbroker.router import PendingRequest, Router

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("database", pa.string(), nullable=False),
    pa.field("to_service_name", pa.string(), nullable=False),
    pa.field("transmission_status", pa.string()),
    pa.field("outcome", pa.string(), nullable=False),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("end", pa.string(), nullable=False),
    pa.field("code", pa.string()),
    pa.field("cause", pa.string()),
    pa.field("remedy", pa.string()),
]
STUCK: Final = pa.schema(_FIELDS)
"""One row for each message: its decision now (`outcome`, `reason`), where that ends, and the finding that is the cause."""
_NEEDED: Final = ("database", "to_service_name")
_OF_CONVERSATIONS: Final = (*_NEEDED, "to_broker_instance", "is_initiator")


def stuck(
    fleet: Fleet | Catalog,
    queue: ArrowStreamExportable | ArrowArrayExportable,
    *,
    instance: str | None = None,
    at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> pa.Table:
    """Explains a stuck `sys.transmission_queue` row by row.

    Each conversation is followed as `trace` does, and back; of the findings that bear on a route it takes, on its service or on its way
    back, the nearest is the cause.

    Args:
        fleet: The instances, or one.
        queue: Rows of `sys.transmission_queue`; `to_broker_instance`, `is_initiator`, `from_service_name` and `transmission_status` may be left out.
        instance: Whose queue it is; may be left out where there is one instance.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        A row for each row of the queue, in its order, in the columns of `STUCK`.

    Raises:
        SchemaError: A column is missing, or `fleet` is neither a fleet nor a catalog.
        InputError: A value is not what was expected.
        OptionError: `at` is no datetime.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog
        >>> from ssbroker.diagnose import stuck
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["LOCAL"], "mirror_address": [None]}
        >>> queue = pa.table({"database": ["Sales"], "to_service_name": ["//Orders"]})
        >>> stuck(Catalog(pa.table(routes)), queue).select(["outcome", "reason", "code"]).to_pylist()
        [{'outcome': 'DELAYED', 'reason': 'service_not_found', 'code': 'SSB008'}]
    """
    whole, now = Fleet.of(fleet), utc_datetime(at)
    waiting = as_table(queue, name="queue")
    for column in _NEEDED:
        if column not in waiting.schema.names:
            raise SchemaError(f"queue.{column}: the column is missing", column=f"queue.{column}", expected="string")
    if waiting.num_rows:
        _check(whole[place(whole, instance, MSDB)[0]], waiting)
    explainer = _Explainer(whole, now=now, pending_request=pending_request)
    rows = [explainer.row(row, *place(whole, instance, str(row["database"]))) for row in waiting.to_pylist()]
    return pa.Table.from_pylist(rows, schema=STUCK)


def _check(catalog: Catalog, waiting: pa.Table) -> None:
    """Refuses rows that are no conversations of the instance, as the router does."""
    for column in ("transmission_status", "from_service_name"):
        found = next((field.type for field in waiting.schema if field.name == column), None)
        if found is not None and not _is_text(found):
            raise SchemaError(
                f"queue.{column}: expected text, found {found}",
                column=f"queue.{column}",
                expected="text",
                actual=str(found),
            )
    asked = waiting.select([number for number, name in enumerate(waiting.schema.names) if name in _OF_CONVERSATIONS])
    if "to_broker_instance" not in asked.schema.names:
        asked = asked.append_column("to_broker_instance", pa.nulls(asked.num_rows, pa.binary(16)))
    Router(catalog, tie_break="first").route(asked)
    if waiting["database"].null_count:
        row, expected = waiting["database"].is_null().index(True).as_py(), "the database in which the message waits"
        raise NullError(
            f"queue.database, row {row}: null is not allowed here; expected {expected}",
            column="queue.database",
            row=row,
            expected=expected,
        )


def _is_text(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(check(plain) for check in checks)


class _Explainer:
    """Follows each kind of conversation once."""

    def __init__(self, fleet: Fleet, *, now: datetime, pending_request: PendingRequest) -> None:
        self._ways = RoutingGraph(fleet, now=now, pending_request=pending_request)
        self._near = NearServices({instance: each.tables for instance, each in self._ways.behaviours.items()})
        self._by_table: defaultdict[tuple[str | None, str | None], list[Finding]] = defaultdict(list)
        for finding in lint(fleet, at=now):
            self._by_table[finding.instance, finding.database].append(finding)
        self._follower = Follower(self._ways, conversation_id=None, pending_request=pending_request, now=now)
        self._known: dict[tuple[str, Question, str | None], dict[str, Any]] = {}

    def row(self, row: dict[str, Any], instance: str, database: str) -> dict[str, Any]:
        broker = row.get("to_broker_instance")
        question = Question(
            database,
            str(row["to_service_name"]),
            None if broker is None else guid_bytes(broker, name="to_broker_instance"),
            row.get("is_initiator") is not False,
        )
        key = instance, question, row.get("from_service_name")
        if key not in self._known:
            self._known[key] = self._explained(*key)
        return {
            "database": database,
            "to_service_name": question.service,
            "transmission_status": row.get("transmission_status"),
            **self._known[key],
        }

    def _explained(self, instance: str, question: Question, from_service_name: str | None) -> dict[str, Any]:
        there = self._follower.follow(instance, question)
        back = self._follower.back(there, from_service_name) if question.is_initiator else None
        lost = back is not None and not back.returned_to(there)
        last = back if back is not None and lost else there
        finding = self._cause(there, back if lost else None)
        decision = there.hops[0].decision
        told: dict[str, Any] = {
            "outcome": decision["outcome"],
            "reason": decision["reason"],
            "end": restore_spaces(ending(there.end) + (f"; the way back: {ending(last.end)}" if lost else "")),
        }
        if finding is not None:
            return told | {
                "code": finding.code,
                "cause": f"{finding.where}: {finding.message}",
                "remedy": finding.remedy,
            }
        if there.end.outcome in ("DELAYED", "DROPPED") and (near := self._near.of(question.service)):
            service = self._near.nearest(question.service)
            return told | {
                "code": "SSB018",
                "cause": f"the conversation is for {name(question.service)}; {near}",
                "remedy": f"Begin it again with the service's own name: BEGIN DIALOG ... TO SERVICE {restore_spaces(string_literal(service))};",
            }
        return told | {"code": None, "cause": None, "remedy": _advice(last.hops[-1])}

    def _cause(self, there: Trace, back: Trace | None) -> Finding | None:
        """The finding that is nearest: about a route that is taken, then about the service, then about the end."""
        if there.end.outcome in ("DELIVERED", "ELSEWHERE") and back is None:
            return None
        if back is not None:
            target = there.end.instance, there.end.database
            return _first(f for f in self._by_table[target] if f.code == "SSB017")
        taken = {(hop.instance, hop.database or MSDB, hop.decision["route_id"]) for hop in there.hops}
        tables = dict.fromkeys((instance, table) for instance, table, _ in taken)
        near = [finding for table in tables for finding in self._by_table[table]]
        return (
            _first(f for f in near if f.route_id is not None and (f.instance, f.database, f.route_id) in taken)
            or _first(self._of_service(there.to_service_name, tables))
            or _first(self._at_end(there))
        )

    def _of_service(self, service: str, tables: Iterable[tuple[str, str]]) -> Iterator[Finding]:
        """Findings about routes of this service, or that name it, in some tables."""
        for instance, table in tables:
            routes = self._ways.at(instance).tables.routes
            own = {route.route_id for route in routes if (route.database, route.service) == (table, service)}
            for finding in self._by_table[instance, table]:
                if finding.route_id in own or name(service) in finding.message:
                    yield finding

    def _at_end(self, there: Trace) -> Iterator[Finding]:
        last = there.hops[-1]
        if there.end.outcome == "LOOP":
            for finding in self._by_table[None, None]:
                if finding.code == "SSB020" and last.instance in finding.object.removeprefix("loop ").split(" -> "):
                    yield finding
        if there.end.reason == "sender_disabled":
            yield from (finding for finding in self._by_table[last.instance, last.database] if finding.code == "SSB021")


def _first(findings: Iterator[Finding]) -> Finding | None:
    """The worst of them."""
    found = Findings(list(findings))
    return found[0] if found else None


def _advice(hop: Hop) -> str | None:
    told = advice(hop.explanation.details)
    if not told:
        return None
    return restore_spaces(" ".join(part for part in told[0] if part is not None))
