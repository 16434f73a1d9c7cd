"""Routing decisions for live conversations, cached until the catalog changes or a route expires."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from ssbroker import schemas
from ssbroker.broker.context import DatabaseContext, InstanceContext, LocalRoute
from ssbroker.broker.dialogs.transmission_status import is_pending
from ssbroker.broker.local_routes import services_routed_locally
from ssbroker.catalog.catalog import Catalog
from ssbroker.ddl import parser_objects
from ssbroker.exceptions import StorageError
from ssbroker.explain import Explanation
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.schemas import CONVERSATIONS
from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.objects import Objects

NOWHERE: Final = LocalRoute(None, None)
KEPT_MAX: Final = 100_000
"""The decisions that are kept; beyond that all are made anew."""
_LOCAL: Final = "LOCAL"
_ROUTE_REQUESTED: Final = "route_requested"
_Key: TypeAlias = tuple[str, bytes, int, bytes | None]


class Decision(NamedTuple):
    """What routing decided about a conversation, as the columns of `schemas.DECISIONS`."""

    outcome: str
    reason: str
    target_database: str | None
    broker_instance: bytes | None
    next_hop_address: str | None
    mirror_address: str | None

    @property
    def is_local(self) -> bool:
        """Whether a database of this instance takes the conversation."""
        return self.outcome == _LOCAL

    @property
    def is_requested(self) -> bool:
        """Whether no route leads on, and one is to be asked for (R14)."""
        return self.reason == _ROUTE_REQUESTED

    @property
    def is_nowhere(self) -> bool:
        """Whether no route leads on."""
        return not self.is_local and self.next_hop_address is None

    @property
    def way(self) -> LocalRoute:
        """The same, as a transaction asks for it."""
        return LocalRoute(self.target_database, self.broker_instance) if self.is_local else NOWHERE


class RoutedSender(Protocol):
    """What routing has to know of a sender; an endpoint is one."""

    @property
    def conversation_id(self) -> bytes:
        """The conversation."""

    @property
    def is_initiator(self) -> int:
        """Which side the sender is."""

    @property
    def far_service(self) -> str:
        """The service that it sends to."""

    @property
    def far_broker_instance(self) -> bytes | None:
        """The broker id that it names or is bound to, if any."""


class LiveRoutes:
    """Routes conversations that have their sender in a database of the instance.

    A decision is kept for as long as the catalog stays the same, so that what has no broker id yet goes one way (N13).

    Args:
        instance: The instance.
        catalog: Its catalog.

    Attributes:
        tie_break: How one of several equals is picked (R24).
    """

    def __init__(self, instance: InstanceContext, catalog: LiveCatalog) -> None:
        self._instance: Final = instance
        self._catalog: Final = catalog
        self._known: _DecisionCache | None = None
        self._stays: Final[dict[str, tuple[Objects, frozenset[str]]]] = {}
        self.tie_break: TieBreak = "hash"

    def decisions(self, database: str, senders: Sequence[RoutedSender]) -> list[Decision]:
        """What routing says of senders in a database.

        Args:
            database: Where they are.
            senders: The senders.

        Returns:
            The decisions, in the same order.

        Raises:
            StorageError: A file cannot be read.
        """
        return self._that_know(database).decisions(database, senders)

    def router(self) -> Router:
        """The router that makes the decisions."""
        return self._catalog.router(tie_break=self.tie_break)

    @property
    def picture(self) -> object:
        """What decisions are made by: another object once the catalog has changed, or a route has expired."""
        return self._newest()

    def ways_of(self, database: str, objects: Objects) -> Callable[[Sequence[ConversationEndpoint]], list[LocalRoute]]:
        """What a transaction asks about its conversations; the catalog is looked at once, when one of them may leave the database.

        Args:
            database: The transaction's database.
            objects: What stands in it, as the transaction sees it.

        Returns:
            Gives the ways of endpoints of that database, in the same order.
        """
        known: _DecisionCache | None = None
        broker_instance = objects.broker.service_broker_guid

        def ways(endpoints: Sequence[ConversationEndpoint]) -> list[LocalRoute]:
            nonlocal known
            stays = self._staying(database, objects)
            if all(each.far_broker_instance == broker_instance and each.far_service in stays for each in endpoints):
                return [LocalRoute(database, broker_instance)] * len(endpoints)
            if known is None:
                known = self._that_know(database)
            return [decision.way for decision in known.decisions(database, endpoints)]

        return ways

    def _that_know(self, database: str) -> _DecisionCache:
        """The decisions of now, if they are made with a database.

        Raises:
            StorageError: They are not, since its file cannot be read (B42).
        """
        known = self._newest()
        if database not in known.databases:
            self._instance.database(database)  # says why, or it can be read again
            known = self._newest()
        if database not in known.databases:
            raise StorageError(f"the database {database!r} cannot be read")
        return known

    def _staying(self, database: str, objects: Objects) -> frozenset[str]:
        seen = self._stays.get(database)
        if seen is None or seen[0] is not objects:
            seen = self._stays[database] = (objects, services_routed_locally(objects))
        return seen[1]

    def _newest(self) -> _DecisionCache:
        router, known, now = self.router(), self._known, self._instance.clock()
        if known is None or known.router is not router or not known.holds(now):
            known = self._known = _DecisionCache(router, now)
            for gone in [name for name in list(self._stays) if name not in known.databases]:
                self._stays.pop(gone, None)
        return known


class _DecisionCache:
    """What one router has decided, for as long as none of its routes expires."""

    def __init__(self, router: Router, now: datetime) -> None:
        self.router: Final = router
        self.databases: Final = frozenset(router.catalog.databases["name"].to_pylist())
        self._decisions: dict[_Key, Decision] = {}
        lifetimes = router.catalog.routes["lifetime"].to_pylist()
        self._until: Final = min((moment for moment in lifetimes if moment is not None and moment > now), default=None)
        self._since: Final = now

    def holds(self, now: datetime) -> bool:
        """Whether the decisions are still those of the moment; a clock that goes back makes them doubtful too."""
        return self._since <= now and (self._until is None or now < self._until)

    def decisions(self, database: str, senders: Sequence[RoutedSender]) -> list[Decision]:
        """What was decided, or is now; kept within limits. Who looks at the old ones goes on with these."""
        kept = self._decisions
        keys = [(database, each.conversation_id, each.is_initiator, each.far_broker_instance) for each in senders]
        new = {key: each for key, each in zip(keys, senders, strict=True) if key not in kept}
        if not new:
            return [kept[key] for key in keys]
        found = dict(zip(new, decide(self.router, database, list(new.values()), now=self._since), strict=True))
        listed = [found[key] if key in found else kept[key] for key in keys]
        if len(kept) + len(found) > KEPT_MAX:
            self._decisions = found
        else:
            kept.update(found)
        return listed


def decide(router: Router, database: str, endpoints: Sequence[RoutedSender], *, now: datetime) -> list[Decision]:
    """Routes what endpoints of a database send.

    Args:
        router: On the catalog to go by.
        database: Where the endpoints are.
        endpoints: The senders.
        now: The moment at which routes expire.

    Returns:
        The decisions, in the same order.
    """
    asked = pa.RecordBatch.from_arrays(
        [
            pa.array([each.conversation_id for each in endpoints], pa.binary(16)),
            pa.array([database] * len(endpoints), pa.string()),
            pa.array([each.far_service for each in endpoints], pa.string()),
            pa.array([each.far_broker_instance for each in endpoints], pa.binary(16)),
            pa.array([bool(each.is_initiator) for each in endpoints], pa.bool_()),
        ],
        schema=CONVERSATIONS,
    )
    found = router.route(asked, now=now)
    return [Decision(*row) for row in zip(*(found[column].to_pylist() for column in Decision._fields), strict=True)]


def explain(router: Router, database: str, endpoint: RoutedSender, *, now: datetime) -> Explanation:
    """Tells the whole way of what an endpoint sends.

    Args:
        router: On the catalog to go by.
        database: Where the endpoint is.
        endpoint: The sender.
        now: The moment at which routes expire.

    Returns:
        The explanation.
    """
    return router.explain(
        endpoint.far_service,
        to_broker_instance=endpoint.far_broker_instance,
        database=database,
        is_initiator=bool(endpoint.is_initiator),
        conversation_id=endpoint.conversation_id,
        now=now,
    )


def database_missing_route(explained: Explanation) -> str:
    """The database in whose table the route is missing that a conversation asks for (R41).

    Args:
        explained: The whole way of what its endpoint sends.

    Returns:
        Its name.
    """
    return str(explained.details["passes"][-1]["database"])


def needs_route_request(explained: Explanation) -> bool:
    """Whether a route is to be asked for: none is found, and at most the request of some database for one to this service is open.

    Each database asks for itself (R1): what another one is answered makes no route here.

    Args:
        explained: The whole way of what an endpoint sends.

    Returns:
        Whether.
    """
    decision = explained.decision
    if decision["outcome"] == _LOCAL or decision["next_hop_address"] is not None:
        return False
    return decision["reason"] == _ROUTE_REQUESTED or is_pending(explained.details)


_LOOKS_MAX: Final = 100


class LiveCatalog:
    """What routing needs to know of an instance, for any number of threads."""

    def __init__(
        self, instance: InstanceContext, *, pending_requests: Callable[[DatabaseContext, Objects], Iterable[str]]
    ) -> None:
        self._instance: Final = instance
        self._pending_requests: Final = pending_requests
        self._guard: Final = threading.RLock()
        self._version: Hashable = None
        self._catalog: Catalog | None = None
        self._addresses: tuple[str, ...] = ()
        self._routers: dict[tuple[TieBreak, PendingRequest], Router] = {}

    def is_reached_at(self, addresses: Iterable[str] | None) -> None:
        """Adds addresses of the serving endpoint (R41); None is that nothing serves any more."""
        with self._guard:
            self._addresses = () if addresses is None else tuple(dict.fromkeys([*self._addresses, *addresses]))
            self._version = None

    def catalog(self) -> Catalog:
        """The catalog of now."""
        return self._current()[0]

    def router(self, *, tie_break: TieBreak = "hash", pending_request: PendingRequest = "continue") -> Router:
        """A router on the catalog of now; the turns of `round_robin` go on for as long as nothing changes."""
        catalog, routers = self._current()
        key = (tie_break, pending_request)
        router = routers.get(key)
        if router is None:
            router = routers.setdefault(key, Router(catalog, tie_break=tie_break, pending_request=pending_request))
        return router

    def _current(self) -> tuple[Catalog, dict[tuple[TieBreak, PendingRequest], Router]]:
        seen = self._look()
        pending = sorted({name for each in seen for name in self._pending_requests(*each)})
        version = (tuple((database.name, objects.version) for database, objects in seen), *pending)
        with self._guard:
            if self._catalog is None or self._version != version:
                self._catalog = _catalog(seen, self._addresses, pending)
                self._routers = {}
                self._version = version
            return self._catalog, self._routers

    def _look(self) -> list[tuple[DatabaseContext, Objects]]:
        """The databases with what stands in them. Each is read at its own moment: an id may seem to move from one to another."""
        for _ in range(_LOOKS_MAX):
            seen = self._instance.databases_list.seen()
            brokers = [objects.broker for _, objects in seen]
            enabled = [broker.service_broker_guid for broker in brokers if broker.is_broker_enabled]
            if len({*enabled}) == len(enabled):
                break
        return seen


def _catalog(seen: list[tuple[DatabaseContext, Objects]], served: Sequence[str], pending: Sequence[str]) -> Catalog:
    routes: dict[str, list[object]] = {name: [] for name in schemas.ROUTES.names}
    for database, objects in seen:
        for route in objects.routes.values():
            for name, column in routes.items():
                column.append(database.name if name == "database" else getattr(route, name))
    endpoint = seen[0][1].endpoint
    return Catalog(
        pa.table(
            {name: pa.array(column, schemas.ROUTES.field(name).type) for name, column in routes.items()},
            schema=schemas.ROUTES,
        ),
        pa.table(
            {
                "name": [database.name for database, _ in seen],
                "service_broker_guid": [objects.broker.service_broker_guid for _, objects in seen],
                "is_broker_enabled": [objects.broker.is_delivering for _, objects in seen],
            },
            schema=schemas.DATABASES,
        ),
        pa.table(
            {
                "database": [database.name for database, objects in seen for _ in objects.services],
                "name": [name for _, objects in seen for name in objects.services],
            },
            schema=schemas.SERVICES,
        ),
        addresses=served or (() if endpoint is None else parser_objects.listener_addresses(endpoint.port, endpoint.ip)),
        message_forwarding=endpoint is not None and endpoint.is_message_forwarding_enabled,
        pending_requests=pending,
    )
