"""What is asked for on behalf of dialogs that cannot send: principals of mirrored routes, and routes that are missing (R14, R54)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker import moment
from ssbroker.broker.asking.dynamic_routing import Ask
from ssbroker.broker.delivery.ways import Decision, explain, is_wanted, missing_in
from ssbroker.broker.failing import told_failure
from ssbroker.broker.network.connections.buckets import Buckets
from ssbroker.exceptions import SsbrokerError

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.network.hooks import Mirrors

ASKS_AT_ONCE: Final = 32
"""The requests for routes that neighbours have begun at once, by naming services to which none leads (N26)."""
ASKS_PER_SECOND: Final = 4
"""And how many more in a second."""


class Asked(NamedTuple):
    """A sender, as routing has to know it."""

    conversation_id: bytes
    is_initiator: bool
    far_service: str
    far_broker_instance: bytes | None


class Seeking:
    """Asks for what the dialogs of a database lack. Delivery asks for those with messages that wait; these may only have to acknowledge.

    Args:
        database: The database.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.
        patience: The seconds to wait for whoever writes to a file.
    """

    def __init__(self, database: Database, mirrors: Mirrors | None, *, patience: float) -> None:
        self._database: Final = database
        self._patience: Final = patience
        self._mirrors: Final = mirrors
        self._asks: Final = Buckets(at_once=ASKS_AT_ONCE, per_second=ASKS_PER_SECOND)

    def principals(self, ways: Iterable[Decision]) -> None:
        """Has both addresses of mirrored routes asked, for as long as something wants to go there (N23).

        Args:
            ways: The routes.
        """
        for address, mirror, broker in {
            (each.next_hop_address, each.mirror_address, each.broker_instance) for each in ways
        }:
            if self._mirrors is not None and address is not None and mirror is not None:
                self._mirrors.way(address, mirror, broker)

    def routes(self, decided: Iterable[tuple[Asked, Decision]]) -> None:
        """Asks for routes that are missing, unless that was done lately.

        Args:
            decided: Senders, and where their rows go.
        """
        lost = {(each.far_service, each.far_broker_instance): (each, way) for each, way in decided if way.is_nowhere}
        if not lost:
            return
        instance, now = self._database.instance, self._database.now()
        may_begin = partial(self._asks.take, "", now=moment.microseconds(now))
        try:
            router = instance.router(tie_break=instance.worker.ways.tie_break)
            pending = frozenset(router.catalog.pending_requests)
            explained = {
                service: explain(router, self._database.name, one, now=now)
                for service, (one, way) in lost.items()
                if way.is_requested or one.far_service in pending
            }
            asks = [Ask(missing_in(way), *service) for service, way in explained.items() if is_wanted(way)]
            instance.worker.dynamic_routing.ask(asks, patience=self._patience, may_begin=may_begin)
        except SsbrokerError as error:
            told_failure(self._database, "missing routes could not be asked for, and are later", error)
