"""Lists the public names of the package with their signatures. Run: `python -m tests.guards.public_surface --write`."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from tests.guards.repository import ROOT

SNAPSHOT: Final = ROOT / "tests" / "guards" / "public_surface.txt"
CREATED_BY_THE_LIBRARY: Final = {
    "Database",
    "Explanation",
    "Instance",
    "Message",
    "ReadTransaction",
    "Server",
    "Transaction",
}
"""Classes whose constructor is not public."""
MODULES: Final = (
    "ssbroker",
    "ssbroker.diagnose",
    "ssbroker.exceptions",
    "ssbroker.schemas",
    "ssbroker.spark",
    "ssbroker.testing",
)


def lines() -> Iterator[str]:
    """Yields one line for each public name and each public member of a public class."""
    for name in MODULES:
        module = import_module(name)
        yield f"[{name}]"
        for public in (
            dir(module) if name == "ssbroker" else sorted(getattr(module, "__all__", None) or _own_names(module))
        ):
            yield from _described(public, getattr(module, public))
        yield ""


def text() -> str:
    """Returns the whole listing."""
    return "\n".join(lines())


def _own_names(module: Any) -> list[str]:
    imported = {name for name, value in vars(module).items() if inspect.ismodule(value)}
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in imported
        and getattr(value, "__module__", "") in ("", module.__name__)
    ]


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"module {name}"
    elif inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})"
        yield from (f"    {line}" for line in _members(value))
    elif callable(value):
        yield f"def {name}{_signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _members(of: type) -> Iterator[str]:
    if issubclass(of, enum.Enum):
        yield ", ".join(of.__members__)
        return
    if not issubclass(of, BaseException) and of.__name__ not in CREATED_BY_THE_LIBRARY:
        yield f"__init__{_signature(of)}"
    for name in sorted(dir(of)):
        value = inspect.getattr_static(of, name)
        defined_here = any(name in vars(base) for base in of.__mro__ if base.__module__.startswith("ssbroker"))
        if name.startswith("_") or not defined_here:
            continue
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        kind = type(value).__name__ if isinstance(value, (classmethod, staticmethod, property)) else ""
        yield f"{kind} {name}{_signature(function) if inspect.isfunction(function) else ''}".strip()


def _signature(of: Any) -> str:
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(of)))
    except (TypeError, ValueError):
        return "(...)"


if __name__ == "__main__" and "--write" in sys.argv:
    SNAPSHOT.write_text(text(), encoding="utf-8")
