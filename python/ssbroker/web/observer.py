"""Observes the state of an instance: depths and ages over time, undelivered messages and their causes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.overview import DatabaseQueue, forwarding_of, health_problems, overview_of
from ssbroker.diagnose.status_causes import cause_of
from ssbroker.exceptions import InputError
from ssbroker.store import overview_counts

State = dict[str, Any]
"""The state of an instance as JSON."""
Point = tuple[float, int | None, int | None]
"""A time in seconds since 1970, the number of ready messages, and the age of the oldest message in seconds; the latter two are None in a gap."""

POINTS_MAX: Final = 600
"""The number of points that are kept for each queue."""
QUEUES_MAX: Final = 100
ROWS_MAX: Final = 200
"""The maximum number of queues with history, and of rows in each table; the fullest queues are kept."""
INTERVAL: Final = 1.0
"""The minimum number of seconds between two states."""
_BUSY_SHARE_MAX: Final = 0.05
"""The maximum fraction of the time that is spent on creating states."""
_SORT_KEYS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "queues": lambda row: -row["ready"] - row["waiting"] - row["leased"] - row["incomplete"],
    "transmission_queue": lambda row: -(row["oldest_seconds"] or 0),
    "conversations": lambda row: -row["count"],
    "leases": lambda row: -row["groups"],
    "moved": lambda row: -row["groups"],
}


class Observer:
    """Creates the state of an instance, at most once a second and for at most 5% of the time, regardless of the number of callers.

    The observer reads snapshots of the files, which blocks no writer, and keeps the history of the fullest queues.

    Args:
        instance: An open instance, whose databases any process can change.
        interval: The minimum number of seconds between two states.
        clock: A monotonic clock, in seconds.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
        ...     _ = instance.queue("Jobs").put(b"two chairs")
        ...     [(row["queue"], row["ready"]) for row in Observer(instance).state()["queues"] if row["ready"]]
        [('dbo.Jobs', 1)]
    """

    def __init__(
        self, instance: Instance, *, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instance: Final = instance
        self._interval: Final = interval
        self._clock: Final = clock
        self._guard: Final = threading.Lock()
        self._history: dict[DatabaseQueue, deque[Point]] = {}
        self._state: State | None = None
        self._due = 0.0

    def state(self) -> State:
        """Returns the current state, or the last state if it is recent."""
        with self._guard:
            began = self._clock()
            if self._state is None or began >= self._due:
                self._state = self._observe()
                self._due = began + max(self._interval, (self._clock() - began) / _BUSY_SHARE_MAX)
            return self._state

    def seconds_until_due(self) -> float:
        """Returns the seconds until `state` reads the instance again."""
        return max(0.0, self._due - self._clock())

    def history(self) -> dict[DatabaseQueue, list[Point]]:
        """Returns the depths and ages of the fullest queues over time."""
        with self._guard:
            return {key: list(points) for key, points in self._history.items()}

    def pause(self) -> None:
        """Starts a gap in the history, because no page is open any more."""
        with self._guard:
            for points in self._history.values():
                points.append((points[-1][0], None, None))

    def _observe(self) -> State:
        found = overview_of(self._instance)
        at = time.time()
        self._record_history(found["queues"], at)
        totals = _totals(found)
        omitted = {}
        for name, key in _SORT_KEYS.items():
            rows = sorted(found[name], key=key)  # equal rows keep their order
            found[name], omitted[name] = rows[:ROWS_MAX], max(0, len(rows) - ROWS_MAX)
        serving = found["serving"]
        if serving is not None:
            omitted["connections"] = max(0, len(serving["connections"]) - ROWS_MAX)
            serving["connections"] = serving["connections"][:ROWS_MAX]
        for row in found["transmission_queue"]:
            row["cause"], row["remedy"] = cause_and_remedy(row["transmission_status"])
        return {
            "at": utc_text(at),
            **found,
            "problems": {} if self._instance.server is None else health_problems(self._instance),
            "forwarding": forwarding_of(self._instance),
            "totals": totals,
            "omitted": omitted,
        }

    def _record_history(self, rows: list[dict[str, Any]], at: float) -> None:
        """Adds a point for each of the fullest queues; of equally full queues, those that already have a history come first."""
        fullest = sorted(rows, key=lambda row: (-row["ready"], (row["database"], row["queue"]) not in self._history))
        self._history = {
            key: self._history.get(key) or deque(maxlen=POINTS_MAX)
            for key in ((row["database"], row["queue"]) for row in fullest[:QUEUES_MAX])
        }
        for row in fullest[:QUEUES_MAX]:
            self._history[row["database"], row["queue"]].append((round(at, 1), row["ready"], row["oldest_seconds"]))


def _totals(found: dict[str, Any]) -> dict[str, int]:
    """Returns the numbers at the top of the page, which include the rows that a large state omits."""
    return {
        "ready": sum(row["ready"] for row in found["queues"]),
        "undelivered": sum(row["messages"] for row in found["transmission_queue"]),
        "conversations": sum(row["count"] for row in found["conversations"]),
        "connections": 0 if found["serving"] is None else len(found["serving"]["connections"]),
        "leased_groups": sum(row["groups"] for row in found["leases"] if row["state"] == "LEASED"),
        "disabled_queues": sum(
            not (row["is_receive_enabled"] and row["is_enqueue_enabled"]) for row in found["queues"]
        ),
    }


def utc_text(seconds: float) -> str:
    """Returns a time, given in seconds since 1970, as text.

    Examples:
        >>> utc_text(0.5)
        '1970-01-01T00:00:00.500Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cause_and_remedy(status: str) -> tuple[str | None, str | None]:
    """Returns the likely cause of a transmission status, and the remedy; (None, None) if the status has no known cause."""
    found = cause_of(status)
    return (None, None) if found is None else (found.cause, found.remedy)


def explain_waiting(
    instance: Instance, *, database: str, to_service_name: str, transmission_status: str | None = None
) -> dict[str, Any]:
    """Explains the oldest undelivered message for a service in the transmission queue of a database.

    With `transmission_status`, explains the oldest message with this status; if no message has it any more, the oldest message.

    Raises:
        UnknownDatabaseError: The database does not exist.
        InputError: There is no undelivered message for the service.
        StorageError: The file of the database cannot be read.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Replies")
        ...     sales.create_service("//shop/Orders", queue="Replies")
        ...     with sales.transaction() as t:
        ...         t.send(t.begin_dialog("//shop/Orders", "//bank/Payments"), b"three euros")
        ...     found = explain_waiting(instance, database="Sales", to_service_name="//bank/Payments")
        ...     found["message_sequence_number"], found["explanation"].splitlines()[-1].partition(":")[0]
        (0, 'Decision')
    """
    context = database_context(instance.database(database))
    found = context.file.query(
        lambda connection: (
            overview_counts.oldest_message(connection, to_service_name, status=transmission_status)
            or overview_counts.oldest_message(connection, to_service_name)
        )
    )
    if found is None:
        raise InputError(
            f"no undelivered messages for service {to_service_name!r} in {database!r}; they may have been delivered since",
            value=to_service_name,
        )
    explanation = instance.router().explain(
        to_service_name,
        to_broker_instance=found.to_broker_instance,
        database=database,
        is_initiator=found.is_initiator,
        conversation_id=found.conversation_id,
        now=context.now(),
    )
    cause, remedy = cause_and_remedy(found.transmission_status)
    return {
        "database": database,
        "to_service_name": to_service_name,
        "from_service_name": found.from_service_name,
        "conversation_id": str(found.conversation_id),
        "message_sequence_number": found.message_sequence_number,
        "transmission_status": found.transmission_status,
        "cause": cause,
        "remedy": remedy,
        "explanation": str(explanation),
    }
