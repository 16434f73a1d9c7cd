"""What a forked process lets go of: the lock, the port and the connections of who serves, which are its parent's alone (B3)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet


class Holder(Protocol):
    """Who has files or sockets open that no other process may keep open."""

    def descriptors(self) -> Iterable[int]:
        """Their numbers, as far as they are open now. It is called in a forked process, and waits for nothing."""


_HOLDERS: Final[WeakSet[Holder]] = WeakSet()


def lets_go(holder: Holder) -> None:
    """Has processes that are forked from now on let go of what somebody holds, for as long as that one is there.

    Args:
        holder: Who holds it.
    """
    _HOLDERS.add(holder)


def _let_go() -> None:
    """In the forked process: has the numbers stand for nothing. Closed, they would be given anew, and then closed by who had them."""
    held = [number for holder in list(_HOLDERS) for number in holder.descriptors() if number >= 0]
    if not held:
        return
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
    except OSError:  # no file is left
        os.close(held[0])
        nothing = os.open(os.devnull, os.O_RDWR)
    for number in held:
        with suppress(OSError):  # a thread of the parent was about to close it
            os.dup2(nothing, number, inheritable=False)
    if nothing not in held:
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
