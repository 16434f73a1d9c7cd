"""Bugs planted in the engine of the dialog protocol; each patches one method, and its docstring names the broken rule."""

from __future__ import annotations

from tests.protocol.planted import dialog_security, receiver, sender
from tests.protocol.planted.planting import Bug, bugs_of

BUGS: tuple[Bug, ...] = tuple(bug for module in (receiver, dialog_security, sender) for bug in bugs_of(module))
