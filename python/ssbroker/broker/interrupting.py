"""Whether a call was made in the middle of another one, by the handler of a signal or by a subscriber."""

from __future__ import annotations

import sys
from typing import Final

_ROOMS: Final = ("ssbroker.broker.", "ssbroker.store.")


def is_inside_another() -> bool:
    """Whether whoever has made this call was itself called from within one: other threads may wait for what that one holds.

    Returns:
        Whether frames of somebody else stand between those of this call and others of a running instance.

    Examples:
        >>> is_inside_another()
        False
    """
    has_left = False
    frame = sys._getframe(1)  # noqa: SLF001  # as `traceback` does
    while frame.f_back is not None:
        if not str(frame.f_globals.get("__name__")).startswith(_ROOMS):
            has_left = True
        elif has_left:
            return True
        frame = frame.f_back
    return False
