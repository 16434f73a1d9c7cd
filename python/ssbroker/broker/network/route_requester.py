"""Requests missing routes for the dialogs of one database, and asks mirrored addresses which of them is the principal."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.dynamic_routing import missing_route
from ssbroker.broker.live_routes import Decision, explain
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.exceptions import SsbrokerError

if TYPE_CHECKING:
    from ssbroker.broker.network.mirrored_routes import MirroredRoutes

REQUESTS_BURST: Final = 32
"""The burst of route requests that peers can trigger by naming services without a route."""
REQUESTS_PER_SECOND: Final = 4
"""The route requests a second beyond the burst."""


class RouteQuery(NamedTuple):
    """The routing input for a sender."""

    conversation_id: bytes
    is_initiator: bool
    far_service: str
    far_broker_instance: bytes | None


class RouteRequester:
    """Requests missing routes for the dialogs of a database.

    Delivery requests them for conversations with waiting messages; these dialogs may only have acknowledgements to send.
    """

    def __init__(
        self, database: DatabaseContext, background: Background, mirrors: MirroredRoutes, *, lock_timeout: float
    ) -> None:
        self._database: Final = database
        self._background: Final = background
        self._lock_timeout: Final = lock_timeout
        self._mirrors: Final = mirrors
        self._limiter: Final = RateLimiter(burst=REQUESTS_BURST, per_second=REQUESTS_PER_SECOND)

    def ask_principals(self, decisions: Iterable[Decision]) -> None:
        """Keeps asking both addresses of mirrored routes for their role, as long as messages wait for them."""
        for address, mirror, broker in {
            (each.next_hop_address, each.mirror_address, each.broker_instance) for each in decisions
        }:
            if address is not None and mirror is not None:
                self._mirrors.resolve(address, mirror, broker)

    def request_missing(self, decided: Iterable[tuple[RouteQuery, Decision]]) -> None:
        """Requests missing routes, unless that was done recently."""
        missing = {
            (each.far_service, each.far_broker_instance): (each, decision)
            for each, decision in decided
            if decision.has_no_destination
        }
        if not missing:
            return
        now = self._database.now()
        may_begin = partial(self._limiter.take, "", now=epoch_microseconds(now))
        try:
            router = self._background.routes.router()
            pending = frozenset(router.catalog.pending_requests)
            explanations = {
                service: explain(router, self._database.name, query, now=now)
                for service, (query, decision) in missing.items()
                if decision.is_route_requested or query.far_service in pending
            }
            found = (missing_route(explained, *service) for service, explained in explanations.items())
            requests = [each for each in found if each is not None]
            self._background.dynamic_routing.request(requests, lock_timeout=self._lock_timeout, may_begin=may_begin)
        except SsbrokerError as error:
            log_failure(self._database, "missing routes could not be requested; the request is repeated later", error)
