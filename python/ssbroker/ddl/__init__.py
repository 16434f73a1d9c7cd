"""Reads and writes routing catalogs as T-SQL scripts."""

from __future__ import annotations

from ssbroker.ddl.interpreter import ScriptTables, read, read_all
from ssbroker.ddl.lexer import decode
from ssbroker.ddl.writer import write

__all__ = ["ScriptTables", "decode", "read", "read_all", "write"]
