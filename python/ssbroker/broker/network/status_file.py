"""Writes and reads the status file of a serving instance."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ssbroker._text import host_and_port
from ssbroker.broker.background_thread import wait_limit
from ssbroker.broker.context import InstanceContext
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.catalog.instance_folder import STATUS_FILE
from ssbroker.exceptions import StorageError

WRITE_INTERVAL: Final = 2.0
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
_LOGGER: Final = logging.getLogger("ssbroker.broker")


class StatusFile:
    """Writes the status file of a serving instance every two seconds, in a thread.

    Calls `on_write` each time. The file remains when serving ends: the diagnostics read the catalog's addresses from it
    (`catalog/instance_folder.py`).
    """

    def __init__(
        self,
        instance: InstanceContext,
        listens: tuple[str, int],
        *,
        addresses: Sequence[str] = (),
        connections: Callable[[], list[dict[str, Any]]] = list,
        forwarded_pending: Callable[[], int] = int,
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._instance: Final = instance
        self._addresses: Final = addresses
        self._connections: Final = connections
        self._forwarded_pending: Final = forwarded_pending
        self._listens: Final = listens
        self._on_write: Final = on_write
        self._path: Final = instance.folder / STATUS_FILE
        self._guard: Final = threading.RLock()
        self._is_closed: Final = threading.Event()
        self._is_failure_logged = False
        self._thread: Final = threading.Thread(
            target=self._run, name=f"ssbroker {instance.name} status file", daemon=True
        )

    def start(self) -> None:
        """Writes the file, and starts the thread that keeps it current."""
        self.write()
        if self._instance.background:
            self._thread.start()

    def close(self) -> None:
        """Stops writing; the last version of the file names no process and no connections."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(wait_limit())
        self._write({**self._header(None), "connections": [], "forwarded_pending": 0})

    def write(self) -> None:
        """Writes the file now; logs only the first failure of a series, because the instance can be served without the file."""
        with self._guard:
            try:
                status = self.status()
            except StorageError as error:
                self._log_failure(error)
            else:
                self._write(status)

    def _write(self, status: dict[str, Any]) -> None:
        try:
            temporary = self._path.with_suffix(".new")
            temporary.write_text(json.dumps(status, ensure_ascii=False), encoding="utf-8")
            temporary.replace(self._path)
            self._is_failure_logged = False
        except OSError as error:
            self._log_failure(error)

    def _log_failure(self, error: OSError | StorageError) -> None:
        if not self._is_failure_logged:
            self._is_failure_logged = True
            _LOGGER.warning(
                "%s: cannot be updated, so `ssbroker status` shows outdated connections or none: %s", self._path, error
            )

    def status(self) -> dict[str, Any]:
        """Returns the current content of the file."""
        return {
            **self._header(os.getpid()),
            "connections": [_status_row(row) for row in self._connections()],
            "forwarded_pending": self._forwarded_pending(),
        }

    def _header(self, process: int | None) -> dict[str, Any]:
        return {
            "process": process,
            "listens": host_and_port(*self._listens),
            "addresses": [*self._addresses],
            "written_at": self._instance.clock().isoformat(timespec="seconds"),
        }

    def _run(self) -> None:
        while not self._is_closed.wait(WRITE_INTERVAL):
            self.write()
            try:
                self._on_write()
            except Exception:  # the next interval tries again
                _LOGGER.exception(
                    "%s: the periodic check for changed certificates failed; it is repeated at the next interval",
                    self._instance.name,
                )


def read_status(folder: Path) -> dict[str, Any] | None:
    """Returns the content of the status file, or a minimal status if the serving process did not write it; None if no process serves."""
    process = ServeLock.holder(folder)
    if process is None:
        return None
    try:
        found = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if isinstance(found, dict) and process in (found.get("process"), 0):
        return found
    return {
        "process": process or None,
        "listens": None,
        "addresses": [],
        "written_at": None,
        "connections": [],
        "forwarded_pending": 0,
    }


def _status_row(row: dict[str, Any]) -> dict[str, Any]:
    status: dict[str, Any] = {"connection_id": str(uuid.UUID(bytes=row["connection_id"]))}
    for name in _COLUMNS:
        value = row[name]
        status[name] = value.isoformat(timespec="seconds") if hasattr(value, "isoformat") else value
    return status
