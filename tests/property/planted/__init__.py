"""Bugs planted in the routing oracle, one in each class; the docstring of a class names the broken rule and describes the bug."""

from __future__ import annotations

from tests.oracle.routing import Oracle
from tests.property.planted import choose, find, locate, process, tables, ties

BUGS: tuple[type[Oracle], ...] = tuple(
    planted
    for module in (tables, find, choose, ties, locate, process)
    for name, planted in vars(module).items()
    if not name.startswith("_") and isinstance(planted, type) and issubclass(planted, Oracle) and planted is not Oracle
)
