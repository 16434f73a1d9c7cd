"""Runs a function without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def without_garbage_collection(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Decorates a function to run with the cyclic garbage collector disabled.

    The decisions of a large fleet are millions of small tuples without cycles. Scanning them repeatedly would take 40%
    of the time.
    """

    @wraps(function)
    def wrapper(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return wrapper
