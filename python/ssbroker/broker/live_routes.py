"""Routing decisions for live conversations, cached until the catalog changes or a route expires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from ssbroker.broker.context import InstanceContext
from ssbroker.broker.live_catalog import LiveCatalog
from ssbroker.exceptions import StorageError
from ssbroker.explain import Explanation
from ssbroker.router import Router, TieBreak
from ssbroker.schemas import CONVERSATIONS

CACHED_MAX: Final = 100_000
"""Maximum number of cached decisions; when it is exceeded, the cache is cleared."""
_LOCAL: Final = "LOCAL"
_ROUTE_REQUESTED: Final = "route_requested"
_Key: TypeAlias = tuple[str, bytes, int, str, bytes | None]


class Decision(NamedTuple):
    """A routing decision about a conversation, with columns of `schemas.DECISIONS`."""

    outcome: str
    reason: str
    target_database: str | None
    broker_instance: bytes | None
    next_hop_address: str | None
    mirror_address: str | None

    @property
    def is_local(self) -> bool:
        """Whether the target is a database of this instance."""
        return self.outcome == _LOCAL

    @property
    def is_route_requested(self) -> bool:
        """Whether no route was found, and one must be requested (R14)."""
        return self.reason == _ROUTE_REQUESTED

    @property
    def has_no_destination(self) -> bool:
        """Whether messages go neither to a database of this instance nor to an address."""
        return not self.is_local and self.next_hop_address is None


class RoutedSender(Protocol):
    """The properties of a sending endpoint that routing needs."""

    @property
    def conversation_id(self) -> bytes:
        """The id of the conversation."""

    @property
    def is_initiator(self) -> int:
        """Whether the sender is the initiator."""

    @property
    def far_service(self) -> str:
        """The service that the sender sends to."""

    @property
    def far_broker_instance(self) -> bytes | None:
        """The broker id that the conversation names or is bound to, if any."""


class RouteQuery(NamedTuple):
    """The routing input for a sender that may have no endpoint in this instance."""

    conversation_id: bytes
    is_initiator: bool
    far_service: str
    far_broker_instance: bytes | None


class LiveRoutes:
    """Routes conversations whose sender is in a database of the instance.

    Decisions are cached while the catalog stays the same, so that all messages of a conversation without a broker id take the same route.

    Attributes:
        tie_break: How to choose among equal candidates (R24).
    """

    def __init__(self, instance: InstanceContext, catalog: LiveCatalog) -> None:
        self._instance: Final = instance
        self._catalog: Final = catalog
        self._decision_cache: DecisionCache | None = None
        self.tie_break: TieBreak = "hash"

    def decisions(self, database: str, senders: Sequence[RoutedSender]) -> list[Decision]:
        """Returns the routing decisions for senders of a database."""
        return self._cache_for(database).decisions(database, senders)

    def router(self) -> Router:
        """Returns the router that makes the decisions."""
        return self._catalog.router(tie_break=self.tie_break)

    @property
    def snapshot(self) -> DecisionCache:
        """The cache behind the current decisions: a different object once the catalog has changed or a route has expired."""
        return self._current()

    def local_router(self, database: str) -> Callable[[Sequence[RoutedSender]], list[bool]]:
        """Implements `LocalRouting.local_router`. The returned function decides with the catalog at the time of this call."""
        cache = self._cache_for(database)
        return lambda endpoints: [
            decision.is_local and decision.target_database == database
            for decision in cache.decisions(database, endpoints)
        ]

    def _cache_for(self, database: str) -> DecisionCache:
        """Returns the current decision cache; raises an error if its catalog does not contain a database."""
        cache = self._current()
        if database not in cache.databases:
            self._instance.database(database)  # raises the error, unless the database is readable again
            cache = self._current()
        if database not in cache.databases:
            raise StorageError(
                f"the database {database!r} became unavailable while its routes were read; repeat the call"
            )
        return cache

    def _current(self) -> DecisionCache:
        router, cache, now = self.router(), self._decision_cache, self._instance.clock()
        if cache is None or cache.router is not router or not cache.is_valid(now):
            cache = self._decision_cache = DecisionCache(router, now)
        return cache


class DecisionCache:
    """The decisions of one router, valid until one of its routes expires.

    Attributes:
        router: The router.
        databases: The names of the databases in the router's catalog.
        valid_until: When the next route expires; None if no route expires.
    """

    def __init__(self, router: Router, now: datetime) -> None:
        self.router: Final = router
        self.databases: Final = frozenset(router.catalog.databases["name"].to_pylist())
        self._decisions: dict[_Key, Decision] = {}
        lifetimes = router.catalog.routes["lifetime"].to_pylist()
        self.valid_until: Final[datetime | None] = min(
            (at for at in lifetimes if at is not None and at > now), default=None
        )
        self._valid_from: Final = now

    def is_valid(self, now: datetime) -> bool:
        """Returns whether the decisions are still valid; they also become invalid if the clock is set back."""
        return self._valid_from <= now and (self.valid_until is None or now < self.valid_until)

    def decisions(self, database: str, senders: Sequence[RoutedSender]) -> list[Decision]:
        """Returns cached or new decisions. Clearing the cache replaces the dictionary, so concurrent readers keep the old one."""
        cached = self._decisions
        keys = [
            (database, each.conversation_id, each.is_initiator, each.far_service, each.far_broker_instance)
            for each in senders
        ]
        new = {key: each for key, each in zip(keys, senders, strict=True) if key not in cached}
        if not new:
            return [cached[key] for key in keys]
        found = dict(zip(new, decide(self.router, database, list(new.values()), now=self._valid_from), strict=True))
        decisions = [found[key] if key in found else cached[key] for key in keys]
        if len(cached) + len(found) > CACHED_MAX:
            self._decisions = found
        else:
            cached.update(found)
        return decisions


def decide(router: Router, database: str, endpoints: Sequence[RoutedSender], *, now: datetime) -> list[Decision]:
    """Returns the routing decisions for sending endpoints of a database."""
    conversations = pa.RecordBatch.from_arrays(
        [
            pa.array([each.conversation_id for each in endpoints], pa.binary(16)),
            pa.array([database] * len(endpoints), pa.string()),
            pa.array([each.far_service for each in endpoints], pa.string()),
            pa.array([each.far_broker_instance for each in endpoints], pa.binary(16)),
            pa.array([bool(each.is_initiator) for each in endpoints], pa.bool_()),
        ],
        schema=CONVERSATIONS,
    )
    found = router.route(conversations, now=now)
    return [Decision(*row) for row in zip(*(found[column].to_pylist() for column in Decision._fields), strict=True)]


def explain(router: Router, database: str, endpoint: RoutedSender, *, now: datetime) -> Explanation:
    """Explains the route of messages from an endpoint."""
    return router.explain(
        endpoint.far_service,
        to_broker_instance=endpoint.far_broker_instance,
        database=database,
        is_initiator=bool(endpoint.is_initiator),
        conversation_id=endpoint.conversation_id,
        now=now,
    )
