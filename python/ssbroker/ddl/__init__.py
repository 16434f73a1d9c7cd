"""Catalogs as scripts of T-SQL: `read` and `read_all`, `write`, and `decode` for the bytes of a file."""

from __future__ import annotations

from ssbroker.ddl.interpreter import Script, read, read_all
from ssbroker.ddl.lexer import decode
from ssbroker.ddl.writer import write

__all__ = ["Script", "decode", "read", "read_all", "write"]
