"""Lazy objects read only the needed objects, and equal a snapshot of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.store import objects as stored
from ssbroker.store.objects import lazy_objects
from tests.broker.test_scripts import SCRIPT

SECRETS = """
USE Sales
CREATE USER Ann WITHOUT LOGIN
CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long and secret'
CREATE CERTIFICATE Ours WITH SUBJECT = 'ours'
CREATE CERTIFICATE Hers AUTHORIZATION Ann WITH SUBJECT = 'hers'
CREATE REMOTE SERVICE BINDING Far TO SERVICE '//Far' WITH USER = Ann, ANONYMOUS = ON
DENY SEND ON SERVICE::[//Orders] TO Ann
"""
ABSENT: dict[str, Any] = dict.fromkeys(("message_types", "contracts", "services", "routes", "priorities"), "none")
ABSENT |= {"queues": ("dbo", "none")}
ABSENT_IN_SECURITY: dict[str, Any] = dict.fromkeys(("principals", "certificates", "bindings"), "none")
ABSENT_IN_SECURITY |= {"permissions": (0, 7)}
"""A key of each kind that does not exist."""


def test_each_lazy_object_equals_that_of_a_snapshot(instance: Instance) -> None:
    instance.execute(SCRIPT)
    instance.execute(SECRETS)
    for database in instance.databases:
        with database_context(database).file.read() as connection:
            snapshot, lazy = stored.load(connection), lazy_objects(connection)
            assert (lazy.version, lazy.broker, lazy.endpoint) == (snapshot.version, snapshot.broker, snapshot.endpoint)
            assert lazy.security.master_key == snapshot.security.master_key
            for whole, part, keys in (
                (snapshot, lazy, ABSENT),
                (snapshot.security, lazy.security, ABSENT_IN_SECURITY),
            ):
                for kind, absent in keys.items():
                    expected, rows = getattr(whole, kind), getattr(part, kind)
                    assert list(rows.items()) == list(expected.items())
                    assert list(rows.values()) == list(expected.values())
                    assert (len(rows), absent in rows) == (len(expected), False)
            assert lazy.queues_by_id == snapshot.queues_by_id
            assert lazy.security.by_fingerprint == snapshot.security.by_fingerprint


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROUTE R{0} WITH ADDRESS = 'TCP://far:4022'; -- ssbroker: route_id={0}\n",
        "CREATE QUEUE Q{0}; CREATE SERVICE S{0} ON QUEUE Q{0} ([DEFAULT]);",
        "CREATE MESSAGE TYPE M{0}; CREATE CONTRACT C{0} (M{0} SENT BY ANY);",
        "CREATE USER U{0} WITHOUT LOGIN;",
    ],
)
def test_a_statement_reads_no_complete_snapshot(
    instance: Instance, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Otherwise the cost of a script would grow with the square of its statements."""
    load: Callable[[Any], stored.Objects] = stored.load
    pictures: list[object] = []

    def counted(connection: Any) -> stored.Objects:
        pictures.append(connection)
        return load(connection)

    monkeypatch.setattr(stored, "load", counted)
    instance.execute("CREATE DATABASE Sales;")
    read = []
    for numbers in (range(100, 105), range(200, 300)):
        pictures.clear()
        instance.execute("USE Sales;" + "".join(statement.format(number) for number in numbers))
        read.append(len(pictures))
    assert read[0] == read[1] <= 2
