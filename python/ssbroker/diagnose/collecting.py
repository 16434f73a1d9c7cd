"""Python's collector of cycles, at rest while a fleet is worked out."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Options = ParamSpec("Options")
Result = TypeVar("Result")


def without_collector(work: Callable[Options, Result]) -> Callable[Options, Result]:
    """Has a function run while the collector of cycles rests.

    The answers of a large fleet are millions of small tuples without a cycle among them. The collector would walk them again and
    again, and take two fifths of the time; what is not needed any more goes without it.

    Args:
        work: The function.

    Returns:
        The same; afterwards the collector is as it was.

    Examples:
        >>> without_collector(gc.isenabled)(), gc.isenabled()
        (False, True)
    """

    @wraps(work)
    def quietly(*args: Options.args, **kwargs: Options.kwargs) -> Result:
        if not gc.isenabled():
            return work(*args, **kwargs)
        gc.disable()
        try:
            return work(*args, **kwargs)
        finally:
            gc.enable()

    return quietly
