"""Which priority an endpoint gets."""

from __future__ import annotations

from itertools import product

import pytest

from ssbroker.broker.database import Database
from ssbroker.store.objects import Broker, Objects, Priority
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR


def objects_with(*priorities: Priority) -> Objects:
    return Objects(
        version=1,
        broker=Broker(bytes(16), is_broker_enabled=True, is_honor_broker_priority_on=False),
        message_types={},
        contracts={},
        queues={},
        services={},
        routes={},
        priorities={one.name: one for one in priorities},
    )


# The best match first: contract, local service and remote service, each named or ANY.
ORDER = ["CLR", "CL*", "C*R", "C**", "*LR", "*L*", "**R", "***"]


def create_priority(pattern: str, level: int) -> Priority:
    contract, local, remote = (letter != "*" for letter in pattern)
    return Priority(level, pattern, 7 if contract else None, 8 if local else None, "//R" if remote else None, level)


@pytest.mark.parametrize("worst", range(len(ORDER)))
def test_the_most_specific_priority_wins(worst: int) -> None:
    priorities_in_order = [create_priority(pattern, level) for level, pattern in enumerate(ORDER[worst:], start=1)]
    for one in (priorities_in_order, priorities_in_order[::-1]):
        assert objects_with(*one).priority_of_endpoint(service_contract_id=7, service_id=8, far_service="//R") == 1


def test_a_priority_for_other_services_does_not_apply() -> None:
    every = objects_with(*(create_priority(pattern, 9) for pattern in ORDER[:-1]))
    for contract, local, remote in product((7, 1), (8, 1), ("//R", "//r")):
        found = every.priority_of_endpoint(service_contract_id=contract, service_id=local, far_service=remote)
        assert found == (5 if (contract, local, remote) == (1, 1, "//r") else 9)


def test_each_endpoint_has_its_own_constant_priority(sales: Database) -> None:
    sales.create_broker_priority("Ours", local_service=INITIATOR, level=3)
    initiator = dialog_calls.begin(sales, b"x")
    sales.alter_broker_priority("Ours", level=8)
    target = dialog_calls.far_handle(sales, initiator)
    for side, expected in ((initiator, 3), (target, 5)):
        found = dialog_calls.endpoint(sales, side)
        assert found is not None
        assert found.priority == expected
