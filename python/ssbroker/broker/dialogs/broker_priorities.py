"""The priority of a new endpoint, by the broker priorities of its database."""

from __future__ import annotations

from typing import Final

from ssbroker.store.objects import Objects

PRIORITY_DEFAULT: Final = 5


def priority_of_endpoint(objects: Objects, *, service_contract_id: int, service_id: int, far_service: str) -> int:
    """Returns the priority of a new endpoint: the level of the most specific broker priority that matches."""
    best, best_level = -1, PRIORITY_DEFAULT
    for one in objects.priorities.values():
        criteria = (
            (one.service_contract_id, service_contract_id),
            (one.local_service_id, service_id),
            (one.remote_service_name, far_service),
        )
        if any(expected not in (None, actual) for expected, actual in criteria):
            continue
        # The contract weighs more than the local service, which weighs more than the remote service.
        weight = sum(rank for rank, (expected, _) in zip((4, 2, 1), criteria, strict=True) if expected is not None)
        if weight > best:
            best, best_level = weight, one.priority
    return best_level
