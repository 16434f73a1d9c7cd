"""Defaults of a queue's ACTIVATION clause."""

from __future__ import annotations

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("PROCEDURE_NAME = p, MAX_QUEUE_READERS = 5, EXECUTE AS SELF", (True, 5)),
        ("PROCEDURE_NAME = p, EXECUTE AS SELF", (True, 1)),
        ("STATUS = OFF, PROCEDURE_NAME = p, MAX_QUEUE_READERS = 0, EXECUTE AS SELF", (False, 0)),
        ("MAX_QUEUE_READERS = 5", (False, 5)),
    ],
)
@pytest.mark.parametrize(
    "statement", ["CREATE QUEUE Q WITH ACTIVATION ({});", "CREATE QUEUE Q; ALTER QUEUE Q WITH ACTIVATION ({});"]
)
def test_a_first_procedure_is_activated_by_default(
    instance: Instance, sales: Database, statement: str, clause: str, expected: tuple[bool, int]
) -> None:
    """SQL Server's examples omit STATUS."""
    instance.execute("USE Sales; " + statement.format(clause))
    assert activation_of(sales) == expected
    instance.execute("USE Sales; ALTER QUEUE Q WITH ACTIVATION (STATUS = OFF, MAX_QUEUE_READERS = 3);")
    instance.execute("USE Sales; ALTER QUEUE Q WITH ACTIVATION (PROCEDURE_NAME = another);")
    has_procedure = "PROCEDURE_NAME" in clause
    assert activation_of(sales) == (not has_procedure, 3)


def test_a_queue_created_with_a_procedure_activates_it(sales: Database) -> None:
    sales.create_queue("Q", procedure="p")
    assert activation_of(sales) == (True, 1)


def activation_of(database: Database) -> tuple[bool, int]:
    queue = database_context(database).objects().queues["dbo", "Q"]
    return bool(queue.is_activation_enabled), queue.max_readers
