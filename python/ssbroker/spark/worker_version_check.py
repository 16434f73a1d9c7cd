"""Makes workers check that they have the driver's version of ssbroker; otherwise, the task fails with an error that names the version to install."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, get_type_hints


def on_workers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an equivalent function for Spark; workers check that they have this version of ssbroker before they load `function`."""
    shipped = _Shipped(function)

    def run(*arguments: Any, **named: Any) -> Any:
        return shipped(*arguments, **named)

    run.__name__ = getattr(function, "__name__", type(function).__name__)  # query plans show this name
    # Spark reads the annotations to determine the kind of function. `__wrapped__` would be pickled with the function.
    run.__annotations__ = get_type_hints(function)
    run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined] # an attribute that inspect reads
    return run


class _Shipped:
    """A function that is pickled in two steps: first a loader by value, which does not need ssbroker, then the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._function(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[[bytes, str], Any], tuple[bytes, str]]:
        from pyspark import cloudpickle  # noqa: PLC0415 - pyspark is an extra

        untyped: Any = cloudpickle
        return _loader(), (untyped.dumps(self._function), version("ssbroker"))


def _loader() -> Callable[[bytes, str], Any]:
    # An inner function is pickled by value, so it uses no other names of this module.
    def load(pickled: bytes, wanted: str) -> Any:
        import importlib  # noqa: PLC0415 - as above
        import pickle  # noqa: PLC0415 - the same
        import sys  # noqa: PLC0415 - the same

        try:
            found = importlib.import_module("ssbroker").__version__
        except ImportError as error:
            raise ImportError(
                f"a Spark worker cannot import ssbroker ({error}); install ssbroker=={wanted}, the version of the driver, "
                f"in the worker's Python {sys.executable}"
            ) from error
        if found != wanted:
            raise ImportError(
                f"a Spark worker has ssbroker {found}, and the driver has {wanted}; install ssbroker=={wanted} in the worker's Python "
                f"{sys.executable}, and restart the Python processes of the workers"
            )
        return pickle.loads(pickled)  # noqa: S301 - it comes from the driver, whose code runs here anyway

    return load
