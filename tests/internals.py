"""Inner parts of an instance, for tests."""

from __future__ import annotations

from ssbroker import Database, Instance
from ssbroker.broker.background import Background


def instance_of(database: Database) -> Instance:
    """Returns the instance of a database."""
    instance = database._activation._public.__self__  # type: ignore[attr-defined]
    assert isinstance(instance, Instance)
    return instance


def background_of(instance: Instance) -> Background:
    """Returns the background work of an instance."""
    return instance._background
