"""Scripts of T-SQL statements that an instance runs."""

from __future__ import annotations

from ssbroker.broker.scripts.execution import ScriptSession, ensure, execute, read_script

__all__ = ["ScriptSession", "ensure", "execute", "read_script"]
