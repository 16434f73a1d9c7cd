"""Routes batches of conversations, and explains single decisions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, get_args, overload

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core, schemas
from ssbroker._arguments import epoch_microseconds, guid_bytes, is_utf8_text, utc_datetime
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_batch, not_arrow_error, stream_batches
from ssbroker.advice import BROKER_CONFIGURATION, SimilarNames, corrected_route, did_you_mean, needs_forwarding
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, SchemaError, UnknownDatabaseError
from ssbroker.explain import Explanation

STUCK: Final = ("DELAYED", "DROPPED")
"""The outcomes of a conversation that is not on its way."""

_MSDB: Final = "msdb"
_BY_NEAR_ROUTES: Final = ("address_unusable", "forwarding_disabled", "no_route", "service_not_found")
_BY_LOCAL: Final = ("forwarding_disabled", "no_route", "routing_loop")


def tried(catalog: Catalog, details: dict[str, Any], now_us: int) -> dict[str, Any]:
    """What would become of a conversation that waits or is dropped.

    Args:
        catalog: The catalog.
        details: What the native router told of the conversation.
        now_us: The moment at which routes expire, in microseconds since 1970.

    Returns:
        `near_routes`, the ids of the routes of the last table that set it on its way once what is near the conversation is made equal to it;
        `if_local`, where it would be looked for if that table had a route to LOCAL; None where it is on its way, or that is no question.
    """
    trial, reason = _Trial(catalog, details, now_us), details["decision"]["reason"]
    stuck = details["decision"]["outcome"] in STUCK
    return {
        "near_routes": trial.near_routes() if stuck and reason in _BY_NEAR_ROUTES else [],
        "if_local": trial.if_local() if stuck and reason in _BY_LOCAL else None,
    }


class _Trial:
    def __init__(self, catalog: Catalog, details: dict[str, Any], now_us: int) -> None:
        self._catalog: Final = catalog
        self._details: Final = details
        self._now_us: Final = now_us
        self._asked: Final[dict[str, Any]] = details["conversation"]
        self._table: Final[dict[str, Any]] = details["passes"][-1]

    def near_routes(self) -> list[int]:
        found: dict[int, bool] = {}
        for step in self._table["steps"]:
            for near in (rejected["route"] for rejected in step["rejected"]):
                if near["route_id"] not in found:
                    found[near["route_id"]] = self._leads_on(near)
        return [route_id for route_id, leads_on in found.items() if leads_on]

    def if_local(self) -> dict[str, Any] | None:
        nothing = dict.fromkeys(("broker_instance", "lifetime", "mirror_address"))
        local = {"route_id": 1, "name": "R", "remote_service_name": self._asked["to_service_name"], "address": "LOCAL"}
        # What came back to this instance is asked as one from outside: its own table has no part in it any more. A reply would read none.
        database = self._asked["database"] if self._table["origin"] == "begun_here" else None
        told = self._told(self._row(nothing | local), database=database, is_initiator=True, forwarding=False)
        located: dict[str, Any] | None = told["passes"][-1]["locate"]
        return located

    def _leads_on(self, near: dict[str, Any]) -> bool:
        changed = corrected_route(self._details, near)
        if changed == near:
            return False
        others: Any = self._routes
        same = pc.and_(
            pc.equal(others["database"], self._table["database"]), pc.equal(others["route_id"], near["route_id"])
        )
        told = self._told(
            pa.concat_tables([others.filter(pc.invert(same)), self._row(changed)]),
            database=self._asked["database"],
            is_initiator=self._asked["is_initiator"],
            forwarding=self._details["message_forwarding"] or needs_forwarding(self._details, self._table, near),
        )
        # Where the dynamic routing service can be asked, it makes the route.
        return told["decision"]["outcome"] not in STUCK or told["decision"]["reason"] == "route_requested"

    @cached_property
    def _routes(self) -> pa.Table:
        """The routes that have a say in it: those for every service, for this one, and for the dynamic routing service."""
        every: Any = self._catalog.native.routes()
        names, databases = every["remote_service_name"], every["database"]
        services = pa.array([self._asked["to_service_name"], BROKER_CONFIGURATION], names.type)
        tables = pa.array({_MSDB, self._asked["database"] or _MSDB}, databases.type)
        has_say = pc.or_(pc.is_null(names), pc.is_in(names, value_set=services))
        return pa.Table.from_batches([every.filter(pc.and_(has_say, pc.is_in(databases, value_set=tables)))])

    @cached_property
    def _services(self) -> pa.RecordBatch:
        every: Any = self._catalog.native.services()
        found: pa.RecordBatch = every.filter(pc.equal(every["name"], self._asked["to_service_name"]))
        return found

    def _row(self, route: dict[str, Any]) -> pa.Table:
        broker, lifetime = route["broker_instance"], route["lifetime"]
        row = route | {
            "database": self._table["database"],
            "broker_instance": None if broker is None else uuid.UUID(broker).bytes,
            "lifetime": None if lifetime is None else datetime.fromisoformat(lifetime),
        }
        return pa.Table.from_pylist([row], schema=schemas.ROUTES)

    def _told(self, routes: pa.Table, *, database: str | None, is_initiator: bool, forwarding: bool) -> dict[str, Any]:
        """What the native router tells of the conversation by these routes."""
        part = Catalog(
            routes,
            self._catalog.native.databases(),
            self._services,
            addresses=self._catalog.addresses,
            message_forwarding=forwarding,
            pending_requests=self._catalog.pending_requests,
        )
        router = _core.Router(
            part.native, tie_break=self._details["tie_break"], pending_request=self._details["pending_request"]
        )
        ids = [self._asked[name] for name in ("to_broker_instance", "conversation_id")]
        broker, conversation = (None if told is None else uuid.UUID(told).bytes for told in ids)
        return router.explain(
            self._asked["to_service_name"], broker, database, is_initiator, conversation, self._now_us
        )


TieBreak = Literal["hash", "round_robin", "first"]
"""How the pick among equals is made (R24)."""
PendingRequest = Literal["continue", "delay"]
"""What a pending request for routing information does to step 4 (R14)."""

_PICKLE_FORMAT: Final = 1
_INPUT: Final = "conversations"


class Router:
    """Routes conversations by the tables of a catalog.

    A router is immutable and may be used from many threads at once; the turns of `round_robin` are all that it remembers.
    It pickles, as its catalog and its options: the turns begin anew.

    Args:
        catalog: The instance's databases, services and routing tables.
        tie_break: How one of several equals is picked: `hash` by the conversation id, so that one conversation gets one answer
            everywhere; `round_robin` in turns; `first` the lowest route id.
        pending_request: While routing information is requested, `continue` goes on at step 5, `delay` keeps the conversation waiting.

    Raises:
        OptionError: An option is none of these.
        SchemaError: `catalog` is no `Catalog`.

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
        if not isinstance(catalog, Catalog):
            raise SchemaError(f"catalog: expected an ssbroker.Catalog, got {type(catalog).__qualname__}")
        _check_option("tie_break", tie_break, get_args(TieBreak))
        _check_option("pending_request", pending_request, get_args(PendingRequest))
        self._catalog: Final = catalog
        self._tie_break: Final[TieBreak] = tie_break
        self._pending_request: Final[PendingRequest] = pending_request
        self._similar_names: SimilarNames | None = None
        self._native: Final = _core.Router(catalog.native, tie_break=tie_break, pending_request=pending_request)

    @property
    def catalog(self) -> Catalog:
        """The catalog that is routed by."""
        return self._catalog

    @property
    def tie_break(self) -> TieBreak:
        """How one of several equals is picked."""
        return self._tie_break

    @property
    def pending_request(self) -> PendingRequest:
        """What a pending request for routing information does."""
        return self._pending_request

    @property
    def native(self) -> _core.Router:
        """The router as the native module has it."""
        return self._native

    @property
    def nbytes(self) -> int:
        """The bytes that the index holds, without the catalog."""
        return self._native.nbytes

    @overload
    def route(self, conversations: ArrowArrayExportable, *, now: datetime | None = None) -> pa.RecordBatch: ...

    @overload
    def route(self, conversations: ArrowStreamExportable, *, now: datetime | None = None) -> pa.Table: ...

    def route(
        self, conversations: ArrowArrayExportable | ArrowStreamExportable, *, now: datetime | None = None
    ) -> pa.RecordBatch | pa.Table:
        """Decides where each conversation goes.

        Args:
            conversations: Rows of `sys.transmission_queue` (`schemas.CONVERSATIONS`) as a batch, a table or a stream.
            now: The moment at which routes expire, None for the current time. Without a zone it is UTC.

        Returns:
            The decisions (`schemas.DECISIONS`), one row for each conversation, in the same order: a RecordBatch for a batch, for a
            table or stream a Table with one batch for each of the input's.

        Raises:
            SchemaError: It is no Arrow object, or a column is missing or has a type that cannot be read.
            InputError: A value is not what was expected; column, row and value are named. A batch that raises takes no turn of
                `round_robin`; of a table or stream, the batches before it have taken theirs.
            OptionError: `now` is no datetime.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Catalog, Router, schemas
            >>> router = Router(Catalog(schemas.ROUTES.empty_table()), tie_break="first")
            >>> conversations = pa.table({"database": ["msdb"], "to_service_name": ["//Orders"], "to_broker_instance": pa.nulls(1)})
            >>> router.route(conversations)["reason"].to_pylist()
            ['no_route']
        """
        now_us = epoch_microseconds(utc_datetime(now))
        if hasattr(conversations, "__arrow_c_array__"):
            return self._native.route(as_batch(conversations, name=_INPUT), now_us, 0)
        if not hasattr(conversations, "__arrow_c_stream__"):
            raise not_arrow_error(conversations, name=_INPUT)
        decided: list[pa.RecordBatch] = []
        first_row = 0
        for part in stream_batches(conversations, name=_INPUT):
            decided.append(self._native.route(part, now_us, first_row))
            first_row += part.num_rows
        return pa.Table.from_batches(decided, schema=schemas.DECISIONS)

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
        """Tells the whole way of one conversation; no turn of `round_robin` is used up.

        Args:
            to_service_name: The service that the conversation is for.
            to_broker_instance: The broker id that it names, if any.
            database: Where it began; None if it arrived from outside the instance.
            is_initiator: Whether the sender is the initiator; False for a message from the target.
            conversation_id: Picks among equals where `tie_break` is `hash`; left out, the first candidate stands in.
            now: The moment at which routes expire, None for the current time. Without a zone it is UTC.

        Returns:
            The explanation; print it.

        Raises:
            InvalidGuidError: `to_broker_instance` or `conversation_id` is no GUID.
            UnknownDatabaseError: The catalog does not have `database`.
            InputError: A name is no text that UTF-8 can write.
            SchemaError: An argument has another type.
            OptionError: `now` is no datetime.

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
                expected, shown = "text that UTF-8 can write", ascii(value)[:80]
                raise InputError(
                    f"{name}: expected {expected}; got {shown}", column=name, value=shown, expected=expected
                )
        broker_instance, conversation = (
            _guid("to_broker_instance", to_broker_instance),
            _guid("conversation_id", conversation_id),
        )
        now_us = epoch_microseconds(utc_datetime(now))

        def told(service: str) -> dict[str, Any]:
            return self._native.explain(service, broker_instance, database, is_initiator, conversation, now_us)

        try:
            details = told(to_service_name)
        except UnknownDatabaseError as error:
            names: list[Any] = self._catalog.databases["name"].to_pylist()
            question = did_you_mean(str(database), names)
            raise UnknownDatabaseError(
                f"{error}{question}", column=error.column, value=error.value, expected=error.expected
            ) from None
        near_names = self._near_names(to_service_name, details, told)
        return Explanation(details | {"near_names": near_names} | tried(self._catalog, details, now_us))

    def _near_names(
        self, to_service_name: str, details: dict[str, Any], told: Callable[[str], dict[str, Any]]
    ) -> list[str]:
        """Services of nearly the name that was asked for, which are on their way where this one is not."""
        if details["decision"]["outcome"] not in STUCK or details["decision"]["reason"] == "sender_disabled":
            return []
        if self._similar_names is None:
            every = pa.chunked_array(
                [*self._catalog.services["name"].chunks, *self._catalog.routes["remote_service_name"].chunks],
                pa.string(),
            )
            names: list[Any] = every.drop_null().unique().to_pylist()
            self._similar_names = SimilarNames(names)
        near = self._similar_names.find(to_service_name)
        return [name for name in near if told(name)["decision"]["outcome"] not in STUCK]

    def __repr__(self) -> str:
        return f"Router({self._catalog!r}, tie_break={self._tie_break!r}, pending_request={self._pending_request!r})"

    def __reduce__(self) -> tuple[Callable[..., Router], tuple[Any, ...]]:
        return _restore, (_PICKLE_FORMAT, self._catalog, self._tie_break, self._pending_request)


def _restore(pickle_format: int, *state: Any) -> Router:
    if pickle_format != _PICKLE_FORMAT:
        raise MalformedDataError(
            f"the router was pickled by another version of ssbroker: its format is {pickle_format!r}, "
            f"this version reads {_PICKLE_FORMAT}",
            value=repr(pickle_format),
            expected=str(_PICKLE_FORMAT),
        )
    catalog, tie_break, pending_request = state
    return Router(catalog, tie_break=tie_break, pending_request=pending_request)


def _check_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{name}: expected one of {', '.join(allowed)}; got {value!r}")


def _guid(name: str, value: object) -> bytes | None:
    return None if value is None else guid_bytes(value, name=name)
