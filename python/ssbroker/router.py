"""Routing of batches of conversations, and explanation of single decisions."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args, overload

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core, schemas
from ssbroker import _dataframes as dataframes
from ssbroker import _notebook as notebook
from ssbroker._arguments import (
    OnErrors,
    check_option,
    epoch_microseconds,
    is_utf8_text,
    optional_guid_bytes,
    utc_datetime,
)
from ssbroker._arrow import (
    ArrowArrayExportable,
    Rows,
    Stream,
    as_arrow,
    as_batch,
    as_column,
    as_table,
    map_chunks,
    missing_column_error,
    not_arrow_error,
    refuse_spark_frame,
    stream_batches,
)
from ssbroker._text import did_you_mean
from ssbroker._well_known import CONFIGURATION_SERVICE
from ssbroker.advice import SimilarNames, corrected_route, needs_forwarding
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, SchemaError, UnknownDatabaseError
from ssbroker.explain import Explanation

STUCK: Final = ("DELAYED", "DROPPED")
"""Outcomes of conversations that are not sent or delivered."""

_MSDB: Final = "msdb"
_FIXED_BY_SIMILAR_ROUTE: Final = ("address_unusable", "forwarding_disabled", "no_route", "service_not_found")
_FIXED_BY_LOCAL_ROUTE: Final = ("forwarding_disabled", "no_route", "routing_loop")


def find_unknown_broker_ids(catalog: Catalog, details: dict[str, Any]) -> list[str]:
    """Returns the databases that could have the required broker id, because the catalog does not contain their ids; omits `msdb` if it lacks the service."""
    last_pass = details["passes"][-1]
    located = last_pass["locate"] or last_pass["reply"] or {"databases": []}
    broker = located.get("broker_instance") or details["conversation"]["to_broker_instance"]
    if broker is None:
        return []
    is_unknown: Any = pc.is_null(catalog.databases["service_broker_guid"])
    names: list[Any] = catalog.databases.filter(is_unknown)["name"].to_pylist()
    former, omitted = catalog.details.former_broker_ids, {_MSDB} - {each["name"] for each in located["databases"]}
    return [name for name in names if name not in omitted and uuid.UUID(broker).bytes not in former.get(name, ())]


def try_fixes(catalog: Catalog, details: dict[str, Any], now_us: int) -> dict[str, Any]:
    """Routes a delayed or dropped conversation again with likely fixes, and returns which of them would work.

    Args:
        catalog: The catalog.
        details: Explanation of the conversation by the native router.
        now_us: The time at which route lifetimes are evaluated, in microseconds since 1970.

    Returns:
        `similar_routes`: ids of the routes in the last routing table that would route the conversation if they matched it.
        `located_if_local`: where the service would be located if that table had a LOCAL route; None if such a route would not help.
    """
    trial, reason = _FixTrial(catalog, details, now_us), details["decision"]["reason"]
    is_stuck = details["decision"]["outcome"] in STUCK
    return {
        "similar_routes": trial.similar_routes() if is_stuck and reason in _FIXED_BY_SIMILAR_ROUTE else [],
        "located_if_local": trial.located_if_local() if is_stuck and reason in _FIXED_BY_LOCAL_ROUTE else None,
    }


class _FixTrial:
    def __init__(self, catalog: Catalog, details: dict[str, Any], now_us: int) -> None:
        self._catalog: Final = catalog
        self._details: Final = details
        self._now_us: Final = now_us
        self._conversation: Final[dict[str, Any]] = details["conversation"]
        self._last_pass: Final[dict[str, Any]] = details["passes"][-1]

    def similar_routes(self) -> list[int]:
        tried: dict[int, bool] = {}
        for step in self._last_pass["steps"]:
            for route in (rejected["route"] for rejected in step["rejected"]):
                if route["route_id"] not in tried:
                    tried[route["route_id"]] = self._would_route(route)
        return [route_id for route_id, is_fix in tried.items() if is_fix]

    def located_if_local(self) -> dict[str, Any] | None:
        unset = dict.fromkeys(("broker_instance", "lifetime", "mirror_address"))
        local = {
            "route_id": 1,
            "name": "R",
            "remote_service_name": self._conversation["to_service_name"],
            "address": "LOCAL",
        }
        # A message that returned to this instance counts as arriving from outside. It is tried as a message from the
        # initiator, because replies read no routing table.
        database = self._conversation["database"] if self._last_pass["origin"] == "begun_here" else None
        explained = self._explain(self._row(unset | local), database=database, is_initiator=True, forwarding=False)
        located: dict[str, Any] | None = explained["passes"][-1]["locate"]
        return located

    def _would_route(self, similar: dict[str, Any]) -> bool:
        changed = corrected_route(self._details, similar)
        if changed == similar:
            return False
        others: Any = self._routes
        same = pc.and_(
            pc.equal(others["database"], self._last_pass["database"]), pc.equal(others["route_id"], similar["route_id"])
        )
        explained = self._explain(
            pa.concat_tables([others.filter(pc.invert(same)), self._row(changed)]),
            database=self._conversation["database"],
            is_initiator=self._conversation["is_initiator"],
            forwarding=self._details["message_forwarding"] or needs_forwarding(self._details, self._last_pass, similar),
        )
        # With `route_requested`, the configuration service will create the route.
        decision = explained["decision"]
        return decision["outcome"] not in STUCK or decision["reason"] == "route_requested"

    @cached_property
    def _routes(self) -> pa.Table:
        """The routes that can match: routes for any service, for this service, and for the configuration service."""
        all_rows: Any = self._catalog.native.routes()
        names, databases = all_rows["remote_service_name"], all_rows["database"]
        services = pa.array([self._conversation["to_service_name"], CONFIGURATION_SERVICE], names.type)
        tables = pa.array({_MSDB, self._conversation["database"] or _MSDB}, databases.type)
        can_match = pc.or_(pc.is_null(names), pc.is_in(names, value_set=services))
        return pa.Table.from_batches([all_rows.filter(pc.and_(can_match, pc.is_in(databases, value_set=tables)))])

    @cached_property
    def _services(self) -> pa.RecordBatch:
        all_rows: Any = self._catalog.native.services()
        found: pa.RecordBatch = all_rows.filter(pc.equal(all_rows["name"], self._conversation["to_service_name"]))
        return found

    def _row(self, route: dict[str, Any]) -> pa.Table:
        broker, lifetime = route["broker_instance"], route["lifetime"]
        row = route | {
            "database": self._last_pass["database"],
            "broker_instance": None if broker is None else uuid.UUID(broker).bytes,
            "lifetime": None if lifetime is None else datetime.fromisoformat(lifetime),
        }
        return pa.Table.from_pylist([row], schema=schemas.ROUTES)

    def _explain(
        self, routes: pa.Table, *, database: str | None, is_initiator: bool, forwarding: bool
    ) -> dict[str, Any]:
        """Explains the routing of the conversation with these routes."""
        catalog = Catalog(
            routes,
            self._catalog.native.databases(),
            self._services,
            addresses=self._catalog.addresses,
            message_forwarding=forwarding,
            pending_requests=self._catalog.pending_requests,
        )
        router = _core.Router(
            catalog.native, tie_break=self._details["tie_break"], pending_request=self._details["pending_request"]
        )
        ids = [self._conversation[name] for name in ("to_broker_instance", "conversation_id")]
        broker, conversation = (None if text is None else uuid.UUID(text).bytes for text in ids)
        return router.explain(
            self._conversation["to_service_name"], broker, database, is_initiator, conversation, self._now_us
        )


TieBreak = Literal["hash", "round_robin", "first"]
"""How a router chooses among equal candidates."""
PendingRequest = Literal["continue", "delay"]
"""What a router does with a conversation while routing information is requested for its service."""

_PICKLE_FORMAT: Final = 1
_INPUT: Final = "conversations"
_READ_COLUMNS: Final = (*schemas.CONVERSATIONS.names, "conversation_handle")
_Frame = TypeVar("_Frame")


class Routed(NamedTuple, Generic[_Frame]):
    """Result of routing with `errors="reject"`.

    Attributes:
        decisions: Decisions about the valid rows (`route`), or the valid rows with their decisions (`with_decisions`).
        rejected: Invalid rows (`schemas.REJECTED_CONVERSATIONS`): the row in the input, counted from 0, the column, the value and the reason.

    Examples:
        >>> from ssbroker import Catalog, Router, schemas
        >>> router = Router(Catalog(schemas.ROUTES.empty_table()))
        >>> result = router.route([{"database": "msdb", "to_service_name": None}], errors="reject")
        >>> result.decisions.num_rows, result.rejected["reason"].to_pylist()
        (0, ['null'])
    """

    decisions: _Frame
    rejected: Any


def with_similar_database(error: InputError, catalog: Catalog) -> InputError:
    """Adds the most similar database name to the message of an error about an unknown database; returns other errors unchanged."""
    if not isinstance(error, UnknownDatabaseError):
        return error
    names: list[Any] = catalog.databases["name"].to_pylist()
    suggestion = did_you_mean(str(error.value), names)
    return UnknownDatabaseError(
        f"{error}{suggestion}", column=error.column, row=error.row, value=error.value, expected=error.expected
    )


class Router:
    """Routes conversations by the routing tables of a catalog.

    A router is thread-safe, and immutable except for the counters of `round_robin`. It can be pickled: the pickle
    contains the catalog and the options, but not the counters.

    Args:
        catalog: Databases, services and routing tables of the instance.
        tie_break: How to choose among equal candidates. `hash` uses a hash of the conversation id: a conversation gets the same
            decision in every process; `round_robin` rotates among the candidates; `first` picks the lowest route id.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.

    Raises:
        OptionError: `tie_break` or `pending_request` is not one of these values.
        SchemaError: `catalog` is not a `Catalog`.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Catalog, Router
        >>> routes = {"database": ["Sales"], "name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> router = Router(Catalog(pa.table(routes)), tie_break="first")
        >>> decisions = router.route(pa.record_batch({"to_service_name": ["//Orders"], "to_broker_instance": pa.nulls(1)}))
        >>> decisions["outcome"].to_pylist(), decisions["next_hop_address"].to_pylist()
        (['REMOTE'], ['TCP://orders:4022'])
    """

    __slots__ = ("_catalog", "_native", "_pending_request", "_similar_names", "_tie_break")

    def __init__(
        self, catalog: Catalog, *, tie_break: TieBreak = "hash", pending_request: PendingRequest = "continue"
    ) -> None:
        given: object = catalog
        if not isinstance(given, Catalog):
            hint = "; load the catalog with Catalog.load" if isinstance(given, str | os.PathLike) else ""
            raise SchemaError(f"catalog: expected an ssbroker.Catalog, got {type(given).__qualname__}{hint}")
        check_option("tie_break", tie_break, get_args(TieBreak))
        check_option("pending_request", pending_request, get_args(PendingRequest))
        self._catalog: Final = catalog
        self._tie_break: Final[TieBreak] = tie_break
        self._pending_request: Final[PendingRequest] = pending_request
        self._similar_names: SimilarNames | None = None
        self._native: Final = _core.Router(catalog.native, tie_break=tie_break, pending_request=pending_request)

    @property
    def catalog(self) -> Catalog:
        """The catalog whose routing tables the router uses."""
        return self._catalog

    @property
    def tie_break(self) -> TieBreak:
        """The tie break between equal candidates: `hash`, `round_robin` or `first`."""
        return self._tie_break

    @property
    def pending_request(self) -> PendingRequest:
        """How conversations are routed while routing information is requested for their service: `continue` or `delay`."""
        return self._pending_request

    @property
    def native(self) -> _core.Router:
        """The router of the native module."""
        return self._native

    @property
    def nbytes(self) -> int:
        """Memory that the router uses besides its catalog, in bytes."""
        return self._native.nbytes

    @overload
    def route(
        self, conversations: ArrowArrayExportable, *, now: datetime | None = None, errors: Literal["raise"] = "raise"
    ) -> pa.RecordBatch: ...

    @overload
    def route(
        self,
        conversations: Stream,
        *,
        now: datetime | None = None,
        errors: Literal["raise"] = "raise",
    ) -> pa.Table: ...

    @overload
    def route(
        self, conversations: ArrowArrayExportable, *, now: datetime | None = None, errors: Literal["reject"]
    ) -> Routed[pa.RecordBatch]: ...

    @overload
    def route(
        self,
        conversations: Stream,
        *,
        now: datetime | None = None,
        errors: Literal["reject"],
    ) -> Routed[pa.Table]: ...

    def route(self, conversations: Rows, *, now: datetime | None = None, errors: OnErrors = "raise") -> Any:
        """Decides where each conversation goes.

        The column `conversation_id` can be omitted if `tie_break` is not `hash`, or if no conversation has several equal candidates.

        Args:
            conversations: Conversations (`schemas.CONVERSATIONS`) as a record batch, table, stream, dataset, DataFrame or list of dicts.
            now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
            errors: What to do with a null service name, a direction other than true, false, 1 and 0, an invalid GUID or an unknown
                database: `raise` an exception, or `reject` the row and route the others.

        Returns:
            The decisions (`schemas.DECISIONS`), one row for each conversation, in the same order: a `RecordBatch` for a
            record batch, and otherwise a `Table` with one batch for each input batch. With `errors="reject"`, a
            `Routed` with the decisions about the valid rows, and the rejected rows (`schemas.REJECTED_CONVERSATIONS`, a
            `Table`).

        Raises:
            SchemaError: `conversations` is not an Arrow object or a list of dicts, is a Spark DataFrame (see `ssbroker.spark.route`), or a column
                is missing or has the wrong type.
            InputError: A service name, direction, GUID or database is invalid, and `errors` is `raise`; the error names column,
                row and value. The invalid batch does not advance the rotation of `round_robin`, but earlier batches of the
                same table or stream do.
            OptionError: `now` is not a datetime with a time zone, or `errors` is neither `raise` nor `reject`.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> router = Router(Catalog(schemas.ROUTES.empty_table()))
            >>> conversations = [{"database": "msdb", "to_service_name": "//Orders"}, {"database": "Sales", "to_service_name": "//Stock"}]
            >>> router.route(conversations[:1])["reason"].to_pylist()
            ['no_route']
            >>> decisions, rejected = router.route(conversations, errors="reject")
            >>> decisions.num_rows, rejected.to_pylist()
            (1, [{'row': 1, 'column': 'database', 'value': 'Sales', 'reason': 'unknown_database'}])
        """
        now_us = epoch_microseconds(utc_datetime(now))
        check_option("errors", errors, get_args(OnErrors))
        rejected: list[pa.RecordBatch] | None = None if errors == "raise" else []
        refuse_spark_frame(conversations, name=_INPUT)
        decisions: pa.RecordBatch | pa.Table
        if hasattr(conversations, "__arrow_c_array__"):
            decisions = self._route_batch(as_batch(conversations, name=_INPUT), now_us, 0, rejected)
        else:
            decisions = self._route_stream(conversations, now_us, rejected)
        if rejected is None:
            return decisions
        return Routed(decisions, pa.Table.from_batches(rejected, schema=schemas.REJECTED_CONVERSATIONS))

    @overload
    def with_decisions(
        self, conversations: _Frame, *, now: datetime | None = None, errors: Literal["raise"] = "raise"
    ) -> _Frame: ...

    @overload
    def with_decisions(
        self, conversations: _Frame, *, now: datetime | None = None, errors: Literal["reject"]
    ) -> Routed[_Frame]: ...

    def with_decisions(self, conversations: Any, *, now: datetime | None = None, errors: OnErrors = "raise") -> Any:
        """Decides where each conversation goes, and returns the conversations with their decisions.

        Args:
            conversations: Conversations (`schemas.CONVERSATIONS`) as for `route`.
            now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
            errors: What to do with invalid values, as for `route`.

        Returns:
            The conversations with the additional columns of `schemas.DECISIONS`, in the type of `conversations`: a DataFrame of pandas
            (with its index) or Polars, a DuckDB relation (of the default connection), a list of dicts, or a pyarrow
            `RecordBatch` or `Table`. Except in pyarrow, broker ids are text, and the columns that are dictionaries in
            `schemas.DECISIONS` are plain text. With `errors="reject"`, a `Routed` with the valid rows and the rejected
            rows (`schemas.REJECTED_CONVERSATIONS`), both in this type.

        Raises:
            SchemaError: As for `route`, or the rows already have a column with the name of a decision column
                (regardless of case, for a DuckDB relation).
            InputError: As for `route`.
            OptionError: `now` is not a datetime with a time zone, or `errors` is neither `raise` nor `reject`.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> router = Router(Catalog(schemas.ROUTES.empty_table()))
            >>> (row,) = router.with_decisions([{"order": 17, "database": "msdb", "to_service_name": "//Orders"}])
            >>> row["order"], row["outcome"], row["reason"]
            (17, 'DELAYED', 'no_route')
        """
        table = as_table(conversations, name=_INPUT, read=_READ_COLUMNS)
        dataframes.reject_existing_columns(conversations, table.column_names, schemas.DECISIONS.names, name=_INPUT)
        if errors == "raise":
            return dataframes.with_columns(conversations, table, self.route(table, now=now))
        decisions, rejected = self.route(table, now=now, errors=errors)
        kept = dataframes.kept_rows(rejected, rows=table.num_rows) if rejected.num_rows else None
        rows = dataframes.with_columns(conversations, table, decisions, kept=kept)
        return Routed(rows, dataframes.in_kind_of(conversations, rejected))

    def _route_stream(self, conversations: Rows, now_us: int, rejected: list[pa.RecordBatch] | None) -> pa.Table:
        given = as_arrow(conversations, name=_INPUT, read=_READ_COLUMNS)
        if not hasattr(given, "__arrow_c_stream__"):
            raise not_arrow_error(conversations, name=_INPUT)
        decided: list[pa.RecordBatch] = []
        first_row = 0
        for part in stream_batches(given, name=_INPUT):
            decided.append(self._route_batch(part, now_us, first_row, rejected))
            first_row += part.num_rows
        return pa.Table.from_batches(decided, schema=schemas.DECISIONS)

    def _route_batch(
        self,
        batch: pa.RecordBatch | pa.Array[Any],
        now_us: int,
        first_row: int,
        rejected: list[pa.RecordBatch] | None,
    ) -> pa.RecordBatch:
        """Routes a batch; adds its invalid rows to `rejected`, or raises an exception if `rejected` is None."""
        given: Any = batch
        try:
            return self._native.route(given, now_us, first_row)
        except MalformedDataError:
            raise
        except SchemaError as error:
            raise missing_column_error(error, batch, expected=schemas.CONVERSATIONS.names) from None
        except InputError as error:
            if rejected is None:
                raise with_similar_database(error, self._catalog) from None
        invalid = self._native.invalid_rows(given, first_row)
        rejected.append(invalid)
        rows: Any = batch if isinstance(batch, pa.RecordBatch) else pa.RecordBatch.from_struct_array(given)
        read_columns = rows.select([number for number, name in enumerate(rows.schema.names) if name in _READ_COLUMNS])
        kept = dataframes.kept_rows(invalid, rows=len(batch), first_row=first_row)
        return self._native.route(dataframes.filter_batch(read_columns, kept), now_us, first_row)

    def decision_table(self, *, now: datetime | None = None) -> pa.RecordBatch:
        """Returns a table of decisions for every combination of database, service name and broker id, with which SQL engines can route by joins.

        A conversation uses the row for its database, service name and broker id. If there are several such rows, it uses the
        row whose range from `hash_from` to `hash_to` contains the hash of its id: the XXH64 hash of the 16 bytes with the
        seed 42, as a signed 64-bit integer (`xxhash64(conversation_id)` in Spark). The page *Route in SQL* of the documentation
        shows the queries.

        Args:
            now: The time at which route lifetimes are evaluated; each row is valid from then until its `valid_until`.
                None for the current time. A datetime must have a time zone.

        Returns:
            The table (`schemas.DECISION_TABLE`), sorted.

        Raises:
            OptionError: `tie_break` is `round_robin`, or `now` is not a datetime with a time zone.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> table = Router(Catalog(schemas.ROUTES.empty_table())).decision_table()
            >>> set(table["outcome"].to_pylist()), set(table["reason"].to_pylist())
            ({'DELAYED'}, {'no_route'})
        """
        table = self._native.decision_table(epoch_microseconds(utc_datetime(now)))
        if table is None:
            raise OptionError(
                "tie_break: a router with 'round_robin' has no decision table; create the router with 'hash' or 'first'"
            )
        return table

    def explain(
        self,
        to_service_name: str,
        *,
        to_broker_instance: uuid.UUID | str | bytes | None = None,
        database: str | None = None,
        is_initiator: bool = True,
        conversation_id: uuid.UUID | str | bytes | None = None,
        now: datetime | None = None,
    ) -> Explanation:
        """Explains how one conversation is routed; does not advance the rotation of `round_robin`.

        Args:
            to_service_name: Service to which the conversation is addressed.
            to_broker_instance: Broker id that the conversation names, if any.
            database: Database of the sender; None if the message arrived from another instance.
            is_initiator: Whether the sender is the initiator; False for a message from the target.
            conversation_id: Id by which `hash` picks one of several equal candidates; if None, the first candidate is picked.
            now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.

        Returns:
            The explanation; `print` shows it as text.

        Raises:
            InvalidGuidError: `to_broker_instance` or `conversation_id` is not a valid GUID.
            UnknownDatabaseError: `database` is not in the catalog.
            InputError: A name is not valid UTF-8 text.
            SchemaError: An argument has the wrong type.
            OptionError: `now` is not a datetime with a time zone.

        Examples:
            >>> from ssbroker import Catalog, Router, schemas
            >>> explanation = Router(Catalog(schemas.ROUTES.empty_table())).explain("//Orders", database="msdb")
            >>> explanation.decision["outcome"], explanation.decision["reason"]
            ('DELAYED', 'no_route')
        """
        for name, value, kind in (
            ("to_service_name", to_service_name, str),
            ("database", database, str | None),
            ("is_initiator", is_initiator, bool),
        ):
            if not isinstance(value, kind):
                expected = getattr(kind, "__name__", str(kind))
                actual = type(value).__name__
                raise SchemaError(
                    f"{name}: expected {expected}, got {actual}", column=name, expected=expected, actual=actual
                )
            if isinstance(value, str) and not is_utf8_text(value):
                expected, shown = "valid UTF-8 text", ascii(value)[:80]
                raise InputError(
                    f"{name}: expected {expected}, got {shown}", column=name, value=shown, expected=expected
                )
        broker_instance, conversation = (
            optional_guid_bytes(to_broker_instance, name="to_broker_instance"),
            optional_guid_bytes(conversation_id, name="conversation_id"),
        )
        now_us = epoch_microseconds(utc_datetime(now))

        def explain(service: str) -> dict[str, Any]:
            return self._native.explain(service, broker_instance, database, is_initiator, conversation, now_us)

        try:
            details = explain(to_service_name)
        except UnknownDatabaseError as error:
            raise with_similar_database(error, self._catalog) from None
        endpoint = self._catalog.details.endpoint
        more = {
            "similar_names": self._find_similar_names(to_service_name, details, explain),
            "unknown_broker_ids": find_unknown_broker_ids(self._catalog, details),
        }
        known = {} if endpoint is None else {"endpoint": endpoint.name}
        return Explanation(details | more | known | try_fixes(self._catalog, details, now_us))

    def _find_similar_names(
        self, to_service_name: str, details: dict[str, Any], explain: Callable[[str], dict[str, Any]]
    ) -> list[str]:
        """If the conversation is delayed or dropped, returns services with similar names to which a conversation would be routed."""
        if details["decision"]["outcome"] not in STUCK or details["decision"]["reason"] == "sender_disabled":
            return []
        if self._similar_names is None:
            services = pa.chunked_array(
                [*self._catalog.services["name"].chunks, *self._catalog.routes["remote_service_name"].chunks],
                pa.string(),
            )
            names: list[Any] = services.drop_null().unique().to_pylist()
            self._similar_names = SimilarNames(names)
        similar = self._similar_names.find(to_service_name)
        return [name for name in similar if explain(name)["decision"]["outcome"] not in STUCK]

    def __repr__(self) -> str:
        return f"Router({self._catalog!r}, tie_break={self._tie_break!r}, pending_request={self._pending_request!r})"

    def _repr_html_(self) -> str:
        options = f"tie_break={self._tie_break!r}, pending_request={self._pending_request!r}"
        return notebook.section(f"Router({options})", self._catalog._repr_html_())

    def __reduce__(self) -> tuple[Callable[..., Router], tuple[Any, ...]]:
        return _restore, (_PICKLE_FORMAT, self._catalog, self._tie_break, self._pending_request)


def tie_break_hash(conversation_ids: object) -> pa.ChunkedArray[Any]:
    """Returns the hash of each conversation id, which selects the row of `Router.decision_table` among equal candidates.

    The hash is the XXH64 hash of the 16 bytes of the id with the seed 42, as a signed 64-bit integer: `xxhash64(conversation_id)` in Spark.

    Args:
        conversation_ids: Ids as text or 16 bytes: a pyarrow `Array` or `ChunkedArray`, a Polars Series, or any Arrow object, DataFrame or DuckDB relation with a single column.

    Returns:
        The hashes (int64), in the same chunks as the ids; the hash of a null id is null.

    Raises:
        SchemaError: `conversation_ids` has a different type, such as a list, or its values are neither binary nor text.
        InvalidGuidError: A value is not a GUID.

    Examples:
        >>> from ssbroker import tie_break_hash
        >>> import pyarrow as pa
        >>> tie_break_hash(pa.array(["00000000-0000-0000-0000-000000000000", None])).to_pylist()
        [-3510225485978208079, None]
    """
    column = as_column(conversation_ids, name="conversation_ids")

    def hashes(chunk: pa.Array[Any], first_row: int) -> pa.Array[Any]:
        batch: Any = pa.RecordBatch.from_arrays([chunk], names=["conversation_id"])
        return _core.tie_break_hashes(batch, first_row).column(0)

    return map_chunks(column, hashes)


def _restore(pickle_format: int, *state: Any) -> Router:
    if pickle_format != _PICKLE_FORMAT:
        raise MalformedDataError(
            f"the router was pickled by an incompatible version of ssbroker: its format is {pickle_format!r}, "
            f"but this version reads format {_PICKLE_FORMAT}; create the router again, or use the version that pickled it",
            value=repr(pickle_format),
            expected=str(_PICKLE_FORMAT),
        )
    catalog, tie_break, pending_request = state
    return Router(catalog, tie_break=tie_break, pending_request=pending_request)
