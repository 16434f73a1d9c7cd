"""Reads and writes routing catalogs as T-SQL scripts."""

from __future__ import annotations

from ssbroker.ddl.interpreter import ObjectKind, ScriptPosition, ScriptTables, read, read_all
from ssbroker.ddl.lexer import decode
from ssbroker.ddl.writer import write

__all__ = ["ObjectKind", "ScriptPosition", "ScriptTables", "decode", "read", "read_all", "write"]
