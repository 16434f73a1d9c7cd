"""The catalog of a stream, fixed or at a path that is watched, and its current router."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from ssbroker._arguments import EPOCH
from ssbroker.catalog.catalog import Catalog, catalog_files
from ssbroker.exceptions import SsbrokerError
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.spark.routing_task import cached_router
from ssbroker.spark.shared_values import SharedValue

_LOGGER: Final = logging.getLogger("ssbroker.spark")
_PATHS_MAX: Final = 4


class StreamCatalog(Protocol):
    """The catalog of a stream."""

    @property
    def may_change(self) -> bool:
        """Whether the catalog may change while the query runs."""

    def router(self, tie_break: TieBreak, pending_request: PendingRequest, *, now_us: int) -> tuple[Router, str]:
        """Returns the current router and the fingerprint of its catalog; the router is the same object while the catalog is unchanged.

        Raises `InputError` if the catalog cannot be read and there is no earlier router.
        """


@dataclass(frozen=True)
class FixedCatalog:
    """A catalog that does not change while the query runs."""

    catalog: SharedValue[Catalog]

    @property
    def may_change(self) -> bool:
        """See `StreamCatalog`."""
        return False

    def router(self, tie_break: TieBreak, pending_request: PendingRequest, *, now_us: int) -> tuple[Router, str]:  # noqa: ARG002 - it does not change
        """See `StreamCatalog`."""
        return cached_router(self.catalog, tie_break, pending_request), self.catalog.fingerprint


@dataclass(frozen=True)
class CatalogPath:
    """A file or folder that `Catalog.load` can read, on a file system that workers share; it is checked for each bucket and micro-batch.

    Attributes:
        path: The file or folder.
        patience_us: How long the last router is used after the path becomes unreadable.
    """

    path: str
    patience_us: int

    @property
    def may_change(self) -> bool:
        """See `StreamCatalog`."""
        return True

    def router(self, tie_break: TieBreak, pending_request: PendingRequest, *, now_us: int) -> tuple[Router, str]:
        """See `StreamCatalog`."""
        router = _watched(self.path, tie_break, pending_request).router(now_us, patience_us=self.patience_us)
        return router, router.catalog.fingerprint


class WatchedCatalog:
    """Watches the catalog at a path, and recompiles its router when the catalog changes.

    Args:
        path: The file or folder.
        compile_router: Creates the router of a catalog.
    """

    def __init__(self, path: Path, compile_router: Callable[[Catalog], Router]) -> None:
        self._path: Final = path
        self._compile_router: Final = compile_router
        self._signature: object = None
        self._router: Router | None = None
        self._unreadable_since_us: int | None = None

    def router(self, now_us: int, *, patience_us: int) -> Router:
        """Returns the router of the current catalog.

        While the path cannot be read, returns the last router for `patience_us` microseconds. After that, or if there is no
        last router, raises the error.
        """
        try:
            self._refresh()
        except (SsbrokerError, OSError) as error:
            if self._router is None:
                raise
            if self._unreadable_since_us is None:
                _LOGGER.warning("cannot read the catalog, continuing with the last readable one: %s", error)
                self._unreadable_since_us = now_us
            self._unreadable_since_us = min(self._unreadable_since_us, now_us)
            if now_us - self._unreadable_since_us >= patience_us:
                raise
            return self._router
        self._unreadable_since_us = None
        assert self._router is not None  # noqa: S101 - _refresh has set it
        return self._router

    def _refresh(self) -> None:
        signature = file_signature(self._path)
        if self._router is not None and signature == self._signature:
            return
        catalog = load_catalog(self._path)
        if self._router is None or self._router.catalog != catalog:
            self._router = self._compile_router(catalog)
        self._signature = signature


def load_catalog(path: Path) -> Catalog:
    """Loads the catalog at a path; LIFETIME in a script counts from the newest modification time of the files, so that all workers agree."""
    newest = max((file.stat().st_mtime_ns for file in catalog_files(path) if file.exists()), default=0)
    return Catalog.load(path, now=EPOCH + timedelta(microseconds=newest // 1000))


def file_signature(path: Path) -> object:
    """Returns the names, sizes, modification times and inodes of a path's files, which change when a file is written or replaced."""
    found = []
    for file in catalog_files(path):
        stat = file.stat()
        found.append((file.name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return found


@functools.lru_cache(maxsize=_PATHS_MAX)
def _watched(path: str, tie_break: TieBreak, pending_request: PendingRequest) -> WatchedCatalog:
    """Returns the watched catalog for a path and options; each process has one."""
    return WatchedCatalog(
        Path(path), lambda catalog: Router(catalog, tie_break=tie_break, pending_request=pending_request)
    )
