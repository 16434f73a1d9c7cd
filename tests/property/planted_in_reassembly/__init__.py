"""Bugs planted in the reassembly oracle, one in each class; the docstring of a class names the broken rule and describes the bug."""

from __future__ import annotations

from tests.oracle.reassembly import Oracle
from tests.property.planted_in_reassembly import memory_limits, process, signatures, validation

BUGS: tuple[type[Oracle], ...] = tuple(
    planted
    for module in (validation, signatures, memory_limits, process)
    for name, planted in vars(module).items()
    if not name.startswith("_") and isinstance(planted, type) and issubclass(planted, Oracle) and planted is not Oracle
)
