from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TypeAlias

import pytest

Bug: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def bugs_of(module: ModuleType) -> list[Bug]:
    """Returns the bugs of a module: its public functions."""
    return [
        item
        for name, item in vars(module).items()
        if isinstance(item, FunctionType) and item.__module__ == module.__name__ and not name.startswith("_")
    ]
