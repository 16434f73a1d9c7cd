"""Reads and writes routing catalogs as T-SQL scripts."""

from __future__ import annotations

from ssbroker.ddl.lexer import ScriptPosition, check_encoding, decode
from ssbroker.ddl.model import InstanceModel, ObjectKind
from ssbroker.ddl.reader import STRICT, ScriptOptions, ScriptStart, ScriptTables, read, read_servers
from ssbroker.ddl.script_notes import ScriptNote, counts, summary
from ssbroker.ddl.sqlcmd import check_variables
from ssbroker.ddl.writer import write

__all__ = [
    "STRICT",
    "InstanceModel",
    "ObjectKind",
    "ScriptNote",
    "ScriptOptions",
    "ScriptPosition",
    "ScriptStart",
    "ScriptTables",
    "check_encoding",
    "check_variables",
    "counts",
    "decode",
    "read",
    "read_servers",
    "summary",
    "write",
]
