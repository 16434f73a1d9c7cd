"""Thousands of users, bindings and certificates are looked up by key, without iterating over all of them."""

from __future__ import annotations

from typing import Any

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import DdlError
from ssbroker.store.objects import _LazyMapping


@pytest.fixture
def iterated_lists(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lists that were iterated."""
    found: list[str] = []

    def iterate(self: Any) -> Any:
        found.append(self._select)
        return values(self)

    values = _LazyMapping.values
    monkeypatch.setattr(_LazyMapping, "values", iterate)
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE REMOTE SERVICE BINDING C TO SERVICE '//new' WITH USER = Ann",
        "ALTER REMOTE SERVICE BINDING B WITH ANONYMOUS = ON",
        "DROP USER Bob",
        "CREATE CERTIFICATE D WITH SUBJECT = 'D'",
    ],
)
def test_a_script_iterates_over_no_list(
    instance: Instance, sales: Database, iterated_lists: list[str], statement: str
) -> None:
    """Otherwise the cost of a script would grow with the square of its objects."""
    instance.execute(
        """
        CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long and secret'; CREATE USER Ann; CREATE USER Bob
        CREATE CERTIFICATE C AUTHORIZATION Ann WITH SUBJECT = 'C'
        CREATE REMOTE SERVICE BINDING B TO SERVICE '//old' WITH USER = Ann
        """
    )
    iterated_lists.clear()
    instance.execute(statement)
    assert iterated_lists == []


def test_the_error_for_a_user_in_use_names_what_it_owns(instance: Instance, sales: Database) -> None:
    """Found without iteration, too."""
    instance.execute("CREATE USER Ann; CREATE REMOTE SERVICE BINDING B TO SERVICE '//old' WITH USER = Ann")
    with pytest.raises(
        DdlError,
        match=r"15138.*is the user of the remote service binding 'B'; first assign this object to another user",
    ):
        instance.execute("DROP USER Ann")
