"""The file in which a serving process publishes its status to other processes."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ssbroker._text import host_and_port
from ssbroker.broker.context import InstanceContext
from ssbroker.broker.process_locks import ServeLock
from ssbroker.exceptions import StorageError

FILE: Final = "serving.json"
EVERY_SECONDS: Final = 2.0
_COLUMNS: Final = (
    "remote_user_name",
    "principal_name",
    "state_desc",
    "is_accept",
    "connect_time",
    "last_activity_time",
    "is_receive_flow_controlled",
    "is_send_flow_controlled",
    "total_bytes_sent",
    "total_bytes_received",
    "total_fragments_sent",
    "total_fragments_received",
)
LOGGER: Final = logging.getLogger("ssbroker.broker")


class StatusFile:
    """Writes the file every two seconds, in a thread of its own, for as long as the instance is served.

    Args:
        instance: The instance.
        listens: The host and port that it listens on.
        connections: Returns the rows of `sys.dm_broker_connections`.
        forwarded_pending: Returns how many messages wait to be forwarded.
        look: Is called as often as the file is written.
    """

    def __init__(
        self,
        instance: InstanceContext,
        listens: tuple[str, int],
        *,
        connections: Callable[[], list[dict[str, Any]]] = list,
        forwarded_pending: Callable[[], int] = int,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._instance: Final = instance
        self._connections: Final = connections
        self._forwarded_pending: Final = forwarded_pending
        self._listens: Final = listens
        self._look: Final = look
        self._path: Final = instance.folder / FILE
        self._guard: Final = threading.RLock()
        self._is_over: Final = threading.Event()
        self._is_told = False  # that the file cannot be written, for as long as it cannot
        self._thread: Final = threading.Thread(target=self._run, name=f"ssbroker {instance.name} bulletin", daemon=True)

    def start(self) -> None:
        """Writes the file, and begins to write it again and again."""
        self.write()
        if self._instance.background:
            self._thread.start()

    def close(self) -> None:
        """Writes no more, and removes the file."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:  # who reads it looks whether the instance is served first
            LOGGER.warning("%s: cannot be removed: %s", self._path, error)

    def write(self) -> None:
        """Writes the file now. That it cannot be written is logged, once until it can, and no reason to serve nobody."""
        with self._guard:
            try:
                beside = self._path.with_suffix(".new")
                beside.write_text(json.dumps(self._said(), ensure_ascii=False), encoding="utf-8")
                beside.replace(self._path)
                self._is_told = False
            except (OSError, StorageError) as error:
                if not self._is_told:
                    self._is_told = True
                    LOGGER.warning(
                        "%s: cannot be written, so `ssbroker status` knows no connections: %s", self._path, error
                    )

    def _said(self) -> dict[str, Any]:
        return {
            "process": os.getpid(),
            "listens": host_and_port(*self._listens),
            "written_at": self._instance.clock().isoformat(timespec="seconds"),
            "connections": [_row(row) for row in self._connections()],
            "forwarded_pending": self._forwarded_pending(),
        }

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_SECONDS):
            self.write()
            self._look()


def read(folder: Path) -> dict[str, Any] | None:
    """What the serving process has told.

    Args:
        folder: The instance's folder.

    Returns:
        The content of the file, if the process has written it that serves the instance; else who that is, and nothing about it. None where no
        process does.

    Examples:
        >>> read(Path("no such folder"))
    """
    process = ServeLock.holder(folder)
    if process is None:
        return None
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if isinstance(found, dict) and process in (found.get("process"), 0):
        return found
    return {
        "process": process or None,
        "listens": None,
        "written_at": None,
        "connections": [],
        "forwarded_pending": 0,
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"connection_id": str(uuid.UUID(bytes=row["connection_id"]))}
    for name in _COLUMNS:
        value = row[name]
        said[name] = value.isoformat(timespec="seconds") if hasattr(value, "isoformat") else value
    return said
