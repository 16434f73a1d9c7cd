"""Explains the messages in a transmission queue: the current decision, and the finding that is the cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker._arguments import optional_guid_bytes, utc_datetime
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table, null_where, with_column
from ssbroker._compat import cast, is_string_view
from ssbroker._text import bracketed, quoted_name, restore_spaces, string_literal
from ssbroker.advice import advice
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import RouteLookup
from ssbroker.diagnose.assumed_broker_ids import AssumedBrokerIds, assumed_ids_of
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.findings import Finding, Findings, Subject
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.lint import lint
from ssbroker.diagnose.routing_graph import (
    ENDPOINT_NOT_STARTED,
    NEXT_ENDPOINT_NOT_STARTED,
    QUEUE_DISABLED,
    SENT_BACK,
    RoutingGraph,
)
from ssbroker.diagnose.similar_names import SimilarServices
from ssbroker.diagnose.status_causes import cause_of
from ssbroker.diagnose.trace import Hop, Trace, Tracer, assumption_text, end_text, origin_of, resolve_database
from ssbroker.exceptions import NullError, SchemaError
from ssbroker.router import PendingRequest, Router

pc: Any = pyarrow.compute  # the stubs do not support chunked columns
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
"""The schema of `stuck`: one row per message, with the current decision (`outcome`, `reason`), the end of its path, and the cause."""
_REQUIRED: Final = ("database", "to_service_name")
_CONVERSATION_COLUMNS: Final = (*_REQUIRED, "to_broker_instance", "is_initiator")


def stuck(
    fleet: Fleet | Catalog,
    queue: ArrowStreamExportable | ArrowArrayExportable,
    *,
    instance: str | None = None,
    at: datetime | None = None,
    pending_request: PendingRequest = "continue",
) -> pa.Table:
    """Explains why messages are stuck in `sys.transmission_queue`, row by row.

    Each conversation is traced to its end and back, as by `trace`. The cause is the most closely related finding: about
    a route that the conversation uses, about its service, about an endpoint or queue on its path, or about its return
    path. If the routes are correct, `transmission_status` determines the cause and the remedy. The same applies if the
    route in use is correct, an equal route has a fault, and the status names a cause other than routing.

    If a conversation names a broker id that no database is known to have, a database whose id is not known is assumed
    to have it; `end` then names this assumption.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        queue: Rows of `sys.transmission_queue` with the columns `database` and `to_service_name`, and optionally
            `to_broker_instance` (null or empty if the conversation names no broker id), `is_initiator`,
            `from_service_name` and `transmission_status`.
        instance: The instance of the queue; optional if there is only one instance.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        pending_request: How step 4 of the search treats a service with a pending route request: `continue` or `delay`.

    Returns:
        One row per row of the queue, in the same order, with the columns of `STUCK`.

    Raises:
        SchemaError: A column is missing or has an unsupported type, or `fleet` is neither a fleet nor a catalog.
        UnknownDatabaseError: The instance or a database does not exist, or the instance must be specified.
        InputError: A value is invalid; the error names column, row and value.
        OptionError: `at` is not a datetime with a time zone, or `pending_request` is unknown.

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
    whole_fleet, now = Fleet.of(fleet), utc_datetime(at, name="at")
    messages = as_table(queue, name="queue")
    for column in _REQUIRED:
        if column not in messages.schema.names:
            raise SchemaError(f"queue.{column}: the column is missing", column=f"queue.{column}", expected="string")
    if messages.num_rows:
        instance, _ = resolve_database(whole_fleet, instance, MSDB)
        messages = valid_messages(whole_fleet[instance], messages)
    rows = explain_messages(whole_fleet, messages, instance=instance, now=now, pending_request=pending_request)
    return pa.Table.from_pylist(rows, schema=STUCK)


def explain_messages(
    fleet: Fleet,
    messages: pa.Table,
    *,
    instance: str | None,
    now: datetime,
    pending_request: PendingRequest,
    conversation_id: bytes | None = None,
) -> list[dict[str, Any]]:
    """Returns the rows of `stuck` for messages that `valid_messages` returned; `instance` may be None if there are no messages.

    `conversation_id` determines which of several equal routes is followed first; None means the first candidate.
    Each row also contains `is_sound` (whether no fault of the routes is known, so that only the status can name a
    cause), `is_followed` (whether the message was followed to its end, and not to an address that no instance has) and
    `assumed_ids` (as in `Trace`).
    """
    explainer = _Explainer(
        assumed_ids_of(fleet),
        lint(fleet, at=now),
        now=now,
        pending_request=pending_request,
        conversation_id=conversation_id,
    )
    return [explainer.row(row, str(instance)) for row in messages.to_pylist()]


def valid_messages(catalog: Catalog, messages: pa.Table) -> pa.Table:
    """Refuses rows that are not valid conversations of the instance, as the router does; converts an empty broker id to null."""
    messages = _with_null_for_empty_broker_id(messages)
    for column in ("transmission_status", "from_service_name"):
        found = next((field.type for field in messages.schema if field.name == column), None)
        if found is not None and not _is_text(found):
            raise SchemaError(
                f"queue.{column}: expected text, got {found}",
                column=f"queue.{column}",
                expected="text",
                actual=str(found),
            )
    conversations = messages.select(
        [number for number, name in enumerate(messages.schema.names) if name in _CONVERSATION_COLUMNS]
    )
    if "to_broker_instance" not in conversations.schema.names:
        conversations = conversations.append_column(
            "to_broker_instance", pa.nulls(conversations.num_rows, pa.binary(16))
        )
    Router(catalog, tie_break="first").route(conversations)
    if messages["database"].null_count:
        row, expected = messages["database"].is_null().index(True).as_py(), "the database in which the message waits"
        raise NullError(
            f"queue.database, row {row}: null is not allowed here; expected {expected}",
            column="queue.database",
            row=row,
            expected=expected,
        )
    return messages


def _with_null_for_empty_broker_id(messages: pa.Table) -> pa.Table:
    """Returns the messages with null instead of an empty `to_broker_instance`, which is how SQL Server represents a missing broker id."""
    number = messages.schema.get_field_index("to_broker_instance")
    if number < 0 or not _is_text(messages.schema.field(number).type):
        return messages
    broker_ids = cast(messages.column(number), pa.string())
    field = pa.field("to_broker_instance", pa.string())
    return with_column(messages, number, field, null_where(pc.equal(broker_ids, ""), broker_ids))


def _is_text(kind: pa.DataType) -> bool:
    value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
    checks = (pa.types.is_string, pa.types.is_large_string, is_string_view, pa.types.is_null)
    return any(check(value_type) for check in checks)


class _Explanation(NamedTuple):
    """What is known of a conversation apart from its status. All messages of the conversation share it, so it must not be changed."""

    columns: dict[str, Any]
    is_sound: bool
    """Whether no fault of the routes is known, so that only the status can name a cause."""
    is_followed: bool = True
    """Whether the message was followed to its end, and not to an address that no instance has."""
    assumed_ids: tuple[tuple[str, str], ...] = ()
    """The databases that are assumed to have the broker id that the conversation names."""
    first: dict[str, Any] | None = None
    """The columns of the path that is taken first, if only another choice between equal routes has a fault."""


class _Explainer:
    """Traces each distinct conversation once."""

    def __init__(
        self,
        assumed: AssumedBrokerIds,
        found: Findings,
        *,
        now: datetime,
        pending_request: PendingRequest,
        conversation_id: bytes | None,
    ) -> None:
        self._graph = RoutingGraph(assumed.fleet, now=now, pending_request=pending_request)
        self._similar_services = SimilarServices(
            {instance: each.tables for instance, each in self._graph.behaviours.items()}
        )
        self._by_table: defaultdict[tuple[str | None, str | None], list[Finding]] = defaultdict(list)
        for finding in found:
            self._by_table[finding.instance, finding.database].append(finding)
        self._tracer = Tracer(
            self._graph, assumed=assumed, conversation_id=conversation_id, pending_request=pending_request, now=now
        )
        self._results: dict[tuple[str, RouteLookup, str | None], _Explanation] = {}

    def row(self, row: dict[str, Any], instance: str) -> dict[str, Any]:
        database, broker = str(row["database"]), row.get("to_broker_instance")
        lookup = RouteLookup(
            database,
            str(row["to_service_name"]),
            optional_guid_bytes(broker, name="to_broker_instance"),
            bool(row.get("is_initiator", True)),  # may be a number
        )
        key = instance, lookup, row.get("from_service_name")
        if key not in self._results:
            self._results[key] = self._explain(*key)
        status = row.get("transmission_status")
        return {
            "database": database,
            "to_service_name": lookup.service,
            "transmission_status": status,
            **_with_status(self._results[key], None if status is None else str(status)),
            "is_sound": self._results[key].is_sound,
            "is_followed": self._results[key].is_followed,
            "assumed_ids": self._results[key].assumed_ids,
        }

    def _explain(self, instance: str, lookup: RouteLookup, from_service_name: str | None) -> _Explanation:
        """Explains the first possible path that has a fault, or else the path that is taken first."""
        paths = self._paths(instance, lookup, from_service_name)
        taken_first = next(paths)
        first = self._explain_path(taken_first, taken_first.hops[0])
        explanations = (self._explain_path(path, (path.hops or taken_first.hops)[0]) for path in paths)
        if not first.is_sound:
            return first
        fault = next((each for each in explanations if not each.is_sound), None)
        if fault is None:
            return first
        fault.columns["end"] = f"with another choice between equal routes: {fault.columns['end']}"
        return fault._replace(first=first.columns)

    def _paths(self, instance: str, lookup: RouteLookup, from_service_name: str | None) -> Iterator[Trace]:
        """Yields the path of a message, then a path to each other end that a choice between equal routes can lead to; each path includes the path of the acknowledgement."""
        forward = self._tracer.follow(instance, lookup)
        if lookup.is_initiator:
            forward = self._tracer.with_acknowledgements(forward, from_service_name)
        yield forward
        returns = {(path.instance, path.database): path for path in forward.other_acknowledgements}
        for end in forward.possible:
            if end.outcome == "DELIVERED" and end != forward.end:
                back = returns.get((str(end.instance), str(end.database)))
                yield replace(forward, end=end, acknowledgement=back)
            elif end != forward.end:
                yield self._tracer.follow_to(instance, lookup, end)

    def _explain_path(self, forward: Trace, start: Hop) -> _Explanation:
        lost = self._lost_return(forward)
        finding = self._cause(forward, lost)
        # A message to an address outside the fleet has also been routed without a fault.
        is_sound = forward.end.outcome in ("DELIVERED", "ELSEWHERE") and lost is None and finding is None
        end = end_text(forward.end)
        if lost is not None:
            end += f"; return path: {end_text(lost.end)}"
        if forward.assumed_ids:
            end += f"; assumed: {assumption_text(forward.assumed_ids)}"
        result: dict[str, Any] = {
            "outcome": start.decision["outcome"],
            "reason": start.decision["reason"],
            "end": restore_spaces(end),
        }
        result |= self._columns_of_cause(forward, lost or forward, finding)
        return _Explanation(
            result, is_sound, is_followed=forward.end.outcome != "ELSEWHERE", assumed_ids=forward.assumed_ids
        )

    def _lost_return(self, forward: Trace) -> Trace | None:
        """Returns a path of the acknowledgement that does not lead back to the sender, whichever way ties are broken; None if there is no such path."""
        back = forward.acknowledgement
        origin = origin_of(forward)
        if back is None or back.possible == (origin,):
            return None
        if back.end != origin:
            return back
        end = next(each for each in back.possible if each != origin)
        reply = self._tracer.reply_lookup(forward, back.database, back.to_service_name)
        return self._tracer.follow_to(back.instance, reply, end)

    def _columns_of_cause(self, forward: Trace, last: Trace, finding: Finding | None) -> dict[str, Any]:
        """Returns the code, cause and remedy for a message on a path; `last` is the path on which the message or its acknowledgement is lost."""
        service = forward.to_service_name
        if forward.end.outcome == "REFUSED":
            return {
                "code": "SSB030",
                "cause": f"{quoted_name(service)} has no contract, so it accepts no conversations; this conversation ends with error -8408",
                "remedy": restore_spaces(
                    f"In {forward.end.instance}, add the contract that the sender names in BEGIN DIALOG, such as [DEFAULT]: USE "
                    f"{bracketed(str(forward.end.database))}; ALTER SERVICE {bracketed(service)} (ADD CONTRACT [DEFAULT]);"
                ),
            }
        if finding is not None:
            return {
                "code": finding.code,
                "cause": f"{finding.where}: {finding.message}",
                "remedy": finding.remedy,
            }
        # The initiator determines the service to which replies go, so its name cannot be misspelled.
        is_lost = forward.is_initiator and forward.end.outcome in ("DELAYED", "DROPPED")
        if is_lost and (similar := self._similar_services.of(service)):
            nearest = self._similar_services.nearest(service)
            return {
                "code": "SSB018",
                "cause": f"the conversation is for {quoted_name(service)}, but {similar}",
                "remedy": f"Start the conversation again with the exact name of the service: BEGIN DIALOG ... TO SERVICE {restore_spaces(string_literal(nearest))};",
            }
        if forward.end.outcome == "ELSEWHERE":
            return {"code": None, "cause": None, "remedy": forward.advice}
        return {"code": None, "cause": None, "remedy": _advice(last.hops[-1]) if last.hops else None}

    def _cause(self, forward: Trace, acknowledgement: Trace | None) -> Finding | None:
        """Returns the most closely related finding: about a route in use, about the service, or about the end; None if there is no such finding, or if nothing is lost."""
        if forward.end.outcome == "DELIVERED" and acknowledgement is None:
            return None
        if acknowledgement is not None:
            target = forward.end.instance, forward.end.database
            return self._state(acknowledgement) or _most_severe(f for f in self._by_table[target] if f.code == "SSB017")
        if (state := self._state(forward)) is not None:
            return state
        used_routes = {(hop.instance, hop.database or MSDB, hop.decision["route_id"]) for hop in forward.hops}
        tables = dict.fromkeys((instance, table) for instance, table, _ in used_routes)
        if not tables:  # the path to the end is not known
            start, end = forward.instance, forward.end.instance
            tables = {(str(end), forward.database if end == start else MSDB): None}
        candidates = [finding for table in tables for finding in self._by_table[table]]
        on_routes = [
            each
            for each in candidates
            if each.route_id is not None and (each.instance, each.database, each.route_id) in used_routes
        ]
        if forward.end.outcome == "ELSEWHERE":
            # The address may be correct and belong to an instance outside the fleet, unless another port on the host is
            # known.
            return _most_severe(each for each in on_routes if (each.code, each.severity) == ("SSB022", "error"))
        return (
            _most_severe(on_routes)
            or _most_severe(each for each in candidates if forward.to_service_name in each.services)
            or _most_severe(self._findings_at_end(forward))
        )

    def _state(self, path: Trace) -> Finding | None:
        """Returns the finding about the endpoint or queue that stops the message; None if there is no such finding."""
        end = path.end
        if end.reason == QUEUE_DISABLED:
            details = self._graph.fleet[str(end.instance)].details
            queue = details.queues[str(end.database), details.services[str(end.database), path.to_service_name].queue]
            where = "SSB027", Subject("queue", f"{queue.schema}.{queue.name}")
            return _most_severe(
                each for each in self._by_table[end.instance, end.database] if (each.code, each.subject) == where
            )
        if end.reason in (ENDPOINT_NOT_STARTED, NEXT_ENDPOINT_NOT_STARTED):
            instance = end.instance if end.reason == ENDPOINT_NOT_STARTED else self._graph.fleet.at(str(end.address))
            return _most_severe(each for each in self._by_table[instance, None] if each.code == "SSB026")
        return None

    def _findings_at_end(self, forward: Trace) -> Iterator[Finding]:
        if not forward.hops:
            return
        last = forward.hops[-1]
        if forward.end.outcome == "LOOP" or forward.end.reason == SENT_BACK:
            for finding in self._by_table[None, None]:
                if finding.code == "SSB020" and last.instance in finding.loop:
                    yield finding
        if forward.end.reason == "sender_disabled":
            yield from (finding for finding in self._by_table[last.instance, last.database] if finding.code == "SSB021")


_NOT_FOLLOWED: Final = "what happens at that address is not known here"


def _with_status(explanation: _Explanation, status: str | None) -> dict[str, Any]:
    """Returns the columns with the cause that the status names, unless the routing decision certainly explains the message."""
    result, is_sound, is_followed, first = (
        explanation.columns,
        explanation.is_sound,
        explanation.is_followed,
        explanation.first,
    )
    said = cause_of(status)
    if not is_sound:
        if first is None or said is None or said.is_routing:
            return result
        # The message may not have taken the path with the fault.
        code = "" if result["code"] is None else f", {result['code']}"
        return first | {"cause": f"the status says that {said.cause}; {result['end']}{code}", "remedy": said.remedy}
    if said is None:
        if not status:
            return result
        verdict = "the routes are correct" if is_followed else _NOT_FOLLOWED
        return result | {
            "cause": f"{verdict}; the status says {quoted_name(status)}",
            "remedy": "Look in the error log of both instances for this text.",
        }
    if not is_followed:
        remedy = f"{said.remedy} {result['remedy'] or ''}" if said.is_routing else said.remedy
        return result | {"cause": f"{_NOT_FOLLOWED}; the status says that {said.cause}", "remedy": remedy}
    if said.is_routing:
        return result | {
            "cause": f"the routes are correct now; the status is from an earlier attempt: {said.cause}",
            "remedy": "Wait for the next attempt, at most about a minute; the status then changes.",
        }
    return result | {"cause": f"the routes are correct; the status says that {said.cause}", "remedy": said.remedy}


def _most_severe(findings: Iterable[Finding]) -> Finding | None:
    found = Findings(list(findings))
    return found[0] if found else None


def _advice(hop: Hop) -> str | None:
    actions = advice(hop.explanation.details)
    if not actions:
        return None
    return restore_spaces(" ".join(part for part in actions[0] if part is not None))
