"""Changes an instance in a separate process that dies at a given commit, like a crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError
from ssbroker.store.session import Session

CHANGES: dict[str, Callable[[Instance, Path], object]] = {
    "create": lambda instance, _: instance.create_database("New"),
    "attach": lambda instance, file: instance.attach_database("Attached", file),
    "attach with a new id": lambda instance, file: instance.attach_database("Attached", file, option="NEW_BROKER"),
    "detach": lambda instance, _: instance.detach_database("Sales"),
    "drop": lambda instance, _: instance.drop_database("Sales"),
    "disable": lambda instance, _: instance.database("Sales").set_broker("DISABLE_BROKER"),
    "enable": lambda instance, _: instance.database("Stock").set_broker("ENABLE_BROKER"),
    "enable Sales": lambda instance, _: instance.database("Sales").set_broker("ENABLE_BROKER"),
    "renew": lambda instance, _: instance.database("Sales").set_broker("NEW_BROKER"),
    "end": lambda instance, _: instance.database("Sales").set_broker("ERROR_BROKER_CONVERSATIONS"),
}
"""Changes of an instance with the databases Sales, enabled, and Stock, disabled."""
DIED = 17


def change(folder: Path, name: str, file: Path, *, die_at: int, is_after: bool) -> None:
    """Makes a change, and dies before or after the commit of that number; exits with 0 if there are fewer commits."""
    commit, count = Session.commit, 0

    def commit_or_die(session: Session, **options: Any) -> None:
        nonlocal count
        if session.has_begun:
            count += 1
        if count == die_at and not is_after:
            os._exit(DIED)
        commit(session, **options)
        if count == die_at:
            os._exit(DIED)

    instance = Instance.open(folder, background=False)
    Session.commit = commit_or_die  # type: ignore[method-assign, assignment]
    CHANGES[name](instance, file)
    os._exit(0)


def enable(folder: Path, name: str, result: Path) -> None:
    """Enables a database, and writes whether that succeeded."""
    with Instance.open(folder, background=False) as instance:
        database = instance.database(name)
        result.with_suffix(".ready").touch()
        while not (result.parent / "go").exists():
            pass
        try:
            database.set_broker("ENABLE_BROKER")
        except BrokerError as error:
            result.write_text(str(error.number))
        else:
            result.write_text("enabled")
