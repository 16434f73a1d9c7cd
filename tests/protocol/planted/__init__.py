"""Bugs planted in the dialog protocol's engine, each by patching one method; its docstring states the broken rule and how."""

from __future__ import annotations

from tests.protocol.planted import dialog_security, receiver, sender
from tests.protocol.planted.planting import Bug, bugs_of

BUGS: tuple[Bug, ...] = tuple(bug for module in (receiver, dialog_security, sender) for bug in bugs_of(module))
