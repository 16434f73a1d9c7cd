"""Inner parts of an instance, for tests."""

from __future__ import annotations

from ssbroker import Database, Instance


def instance_of(database: Database) -> Instance:
    """The instance of a database."""
    instance = database._activation._public.__self__  # type: ignore[attr-defined]
    assert isinstance(instance, Instance)
    return instance
