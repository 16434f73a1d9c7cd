"""Bugs planted in the dialog protocol's machine, each by one method that is patched; its docstring says which rule it breaks and how."""

from __future__ import annotations

from tests.protocol.planted import receiving, securing, sending
from tests.protocol.planted.planting import Bug, bugs_of

BUGS: tuple[Bug, ...] = tuple(bug for module in (receiving, securing, sending) for bug in bugs_of(module))
