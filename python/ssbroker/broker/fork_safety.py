"""Closes the files and sockets of the parent in a forked process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet


class ForkSensitive(Protocol):
    """An object with open files or sockets that a forked process must not keep open."""

    def descriptors(self) -> Iterable[int]:
        """Returns the open file descriptors. Called in the forked process; must not block."""


_HOLDERS: Final[WeakSet[ForkSensitive]] = WeakSet()


def close_after_fork(holder: ForkSensitive) -> None:
    """Registers an object whose files are closed in processes that are forked later. The object is referenced weakly."""
    _HOLDERS.add(holder)


def _release_descriptors() -> None:
    """Redirects the descriptors to the null device, in the forked process. If they were closed, their owners could later close new files with the same numbers."""
    held = [number for holder in list(_HOLDERS) for number in holder.descriptors() if number >= 0]
    if not held:
        return
    try:
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:  # no descriptor is free
        os.close(held[0])
        null = os.open(os.devnull, os.O_RDWR)
    for number in held:
        with suppress(OSError):  # a thread of the parent was closing it
            os.dup2(null, number, inheritable=False)
    if null not in held:
        os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_descriptors)
