"""The task that stream workers receive, and where they find the catalog."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from ssbroker._arguments import EPOCH
from ssbroker.catalog.catalog import Catalog, catalog_files
from ssbroker.exceptions import SsbrokerError
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.spark import worker
from ssbroker.spark.broadcast import SharedValue
from ssbroker.spark.columns import Labels

_LOG: Final = logging.getLogger("ssbroker.spark")
_PATHS_MAX: Final = 4


@dataclass(frozen=True)
class CatalogLocation:
    """Where the catalog of a stream is."""

    @property
    def may_change(self) -> bool:
        """Whether it may say something else later."""
        raise NotImplementedError

    def router(self, tie_break: TieBreak, pending_request: PendingRequest, *, now_us: int) -> tuple[Router, str]:
        """The router of the catalog as it is now.

        Args:
            tie_break: As of the router.
            pending_request: The same.
            now_us: The moment.

        Returns:
            The router, the same one as long as the catalog says the same; and what tells the catalog from others.

        Raises:
            InputError: The catalog cannot be read, and there is none to go on with.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FixedCatalog(CatalogLocation):
    """A catalog that stays as it is while the query runs."""

    catalog: SharedValue[Catalog]

    @property
    def may_change(self) -> bool:
        """As of every source."""
        return False

    def router(self, tie_break: TieBreak, pending_request: PendingRequest, *, now_us: int) -> tuple[Router, str]:  # noqa: ARG002 - it stays as it is
        """As of every source."""
        return worker.cached_router(self.catalog, tie_break, pending_request), self.catalog.fingerprint


@dataclass(frozen=True)
class CatalogPath(CatalogLocation):
    """A file or folder, as `Catalog.load` takes it, that every worker can read; looked at for each bucket and batch.

    Attributes:
        path: The file or folder.
        patience_us: How long a router goes on after its file cannot be read any more.
    """

    path: str
    patience_us: int

    @property
    def may_change(self) -> bool:
        """As of every source."""
        return True

    def router(self, tie_break: TieBreak, pending_request: PendingRequest, *, now_us: int) -> tuple[Router, str]:
        """As of every source."""
        router = _watched(self.path, tie_break, pending_request).router(now_us, patience_us=self.patience_us)
        return router, router.catalog.fingerprint


class WatchedCatalog:
    """The router of a path, compiled anew when the path says something else.

    Args:
        path: The file or folder.
        compiled: Makes the router of a catalog.
    """

    def __init__(self, path: Path, compiled: Callable[[Catalog], Router]) -> None:
        self._path: Final = path
        self._compiled: Final = compiled
        self._seen: object = None
        self._router: Router | None = None
        self._broken_since_us: int | None = None

    def router(self, now_us: int, *, patience_us: int) -> Router:
        """The router of what the path says now.

        Args:
            now_us: The moment.
            patience_us: How long the router of what it said before goes on when it cannot be read.

        Returns:
            The router.

        Raises:
            SsbrokerError: It cannot be read, for longer than that or from the beginning.
            OSError: The same.
        """
        try:
            self._look()
        except (SsbrokerError, OSError) as error:
            if self._router is None:
                raise
            if self._broken_since_us is None:
                _LOG.warning("the catalog cannot be read; the last one that could goes on: %s", error)
                self._broken_since_us = now_us
            self._broken_since_us = min(self._broken_since_us, now_us)
            if now_us - self._broken_since_us >= patience_us:
                raise
            return self._router
        self._broken_since_us = None
        assert self._router is not None  # noqa: S101 - it was made when it was first looked at
        return self._router

    def _look(self) -> None:
        seen = signature(self._path)
        if self._router is not None and seen == self._seen:
            return
        catalog = load(self._path)
        if self._router is None or self._router.catalog != catalog:
            self._router = self._compiled(catalog)
        self._seen = seen


def load(path: Path) -> Catalog:
    """The catalog at a path. LIFETIME in a script counts from when the script was written, so that all workers agree.

    Args:
        path: As for `Catalog.load`.

    Returns:
        The catalog.

    Raises:
        SsbrokerError: It cannot be read, or a value in it is not what was expected.
        OSError: The same.
    """
    newest = max((file.stat().st_mtime_ns for file in catalog_files(path) if file.exists()), default=0)
    return Catalog.load(path, now=EPOCH + timedelta(microseconds=newest // 1000))


def signature(path: Path) -> object:
    """What differs when a file of a path was written or replaced.

    Args:
        path: A file or folder.

    Returns:
        Names, sizes, times and inodes.

    Raises:
        OSError: It cannot be looked at.
    """
    found = []
    for file in catalog_files(path):
        stat = file.stat()
        found.append((file.name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
    return found


@functools.lru_cache(maxsize=_PATHS_MAX)
def _watched(path: str, tie_break: TieBreak, pending_request: PendingRequest) -> WatchedCatalog:
    """That of this process: made for the first bucket that needs it, found by all that follow."""
    return WatchedCatalog(
        Path(path), lambda catalog: Router(catalog, tie_break=tie_break, pending_request=pending_request)
    )


@dataclass(frozen=True, kw_only=True)
class AssemblySettings:
    """How fragments are put together.

    Attributes:
        in_order: Whether messages wait for those before them.
        max_message_bytes: As of `ssbroker.Reassembler`.
        max_fragments_per_message: The same.
        max_pending_bytes: The same, for each bucket.
        max_pending_age_us: After how long a message that does not grow is dropped, None for never.
        session_keys: The name of the column, or where the keys are.
        acknowledgements: Whether acknowledgements are told.
    """

    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int
    max_pending_age_us: int | None
    session_keys: str | SharedValue[dict[bytes, bytes]] | None = field(repr=False)
    acknowledgements: bool


@dataclass(frozen=True, kw_only=True)
class RoutingSettings:
    """How messages are routed.

    Attributes:
        source: Where the catalog is.
        tie_break: As of the router.
        pending_request: The same.
        labels: The labels by number.
        names: Where the columns of conversations stand: their names in messages.
        direction: The columns of what goes in order: what follows a message that waits, waits. None where each is for itself.
        max_delayed_bytes: How much may wait for a route in one bucket.
    """

    source: CatalogLocation
    tie_break: TieBreak
    pending_request: PendingRequest
    labels: Labels
    names: Mapping[str, str]
    direction: tuple[str, ...] | None
    max_delayed_bytes: int


@dataclass(frozen=True, kw_only=True)
class StreamTask:
    """What is done with each bucket: small enough to travel with every task.

    Attributes:
        fixed: The options that must not change while a checkpoint lives, by name.
        carried: The names of the further columns, by their places.
        assembly: How fragments are put together; None where whole rows come.
        routing: How messages are routed, if they are.
        figures: Whether each step tells how large the bucket is.
    """

    fixed: Mapping[str, str | int | bool | None]
    carried: tuple[str, ...]
    assembly: AssemblySettings | None
    routing: RoutingSettings | None
    figures: bool
