"""Takes off the transmission queue what was taken, or what nobody wants any more."""

from __future__ import annotations

from collections.abc import Iterable

from ssbroker.broker.work.work import Work
from ssbroker.store import transmission


def take_off(work: Work, numbers: Iterable[tuple[int, int]]) -> None:
    """Takes off what endpoints sent and the far sides have (P16).

    Args:
        work: The transaction.
        numbers: Each the endpoint, and the number before which all goes.
    """
    before = work.connection.total_changes()
    transmission.remove_below(work.connection, numbers)
    work.effects.taken_off += work.connection.total_changes() - before


def take_all_off(work: Work, endpoint_id: int) -> None:
    """Takes off all that an endpoint sent.

    Args:
        work: The transaction.
        endpoint_id: The endpoint.
    """
    before = work.connection.total_changes()
    transmission.remove_sent(work.connection, endpoint_id)
    work.effects.taken_off += work.connection.total_changes() - before
