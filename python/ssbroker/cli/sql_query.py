"""Queries in DuckDB's SQL on the views and queues of an instance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, compress, count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from rich.text import Text

from ssbroker._arguments import is_utf8_text
from ssbroker._arrow import guid_text
from ssbroker._text import most_similar
from ssbroker.cli.terminal import FittedTable, cell, rows_table
from ssbroker.ddl.lexer import ScriptSource, Token, next_token
from ssbroker.exceptions import DdlError, InputError, MissingDependencyError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, Statement

    from ssbroker.broker.instance import Instance

Rows = list[dict[str, Any]]

_PART: Final = r'(?:\w++|"(?:[^"]|"")+")'
_BEFORE_TABLE: Final = r"\b(?:from|join|describe|pivot|show|summarize|table|unpivot)(?:\s+|(?=\"))(?!(?:from|table)\s)"
_TABLE: Final = re.compile(
    rf"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/|({_BEFORE_TABLE}|,\s*)({_PART})(?:\s*\.\s*({_PART}))?(?!\s*[.(])",
    re.IGNORECASE | re.DOTALL,
)
"""A string, a comment, or a possible table name: one or two parts after FROM, a similar word, or a comma."""
_MISSING: Final = re.compile(r'Catalog Error: Table with name "?(.+?)"? does not exist')
_SHOW_TABLES: Final = re.compile(r"\s*SHOW\s+(?:ALL\s+)?TABLES\s*;?\s*", re.IGNORECASE)
_QUERIES: Final = frozenset(["CALL", "EXECUTE", "EXPLAIN", "MULTI", "PRAGMA", "SELECT"])
"""The types of statements that return rows; MULTI is PIVOT."""
_BEFORE_NAME: Final = frozenset([".", "AS", "DESCRIBE", "FROM", "JOIN", "SHOW", "SUMMARIZE", "TABLE"])
_KEYWORDS: Final = frozenset(
    ["AND", "BY", "CASE", "DISTINCT", "ELSE", "IN", "LIKE", "NOT", "ON", "OR", "SELECT", "THEN", "WHEN", "WHERE"]
)
"""The words directly before brackets that do not make the brackets an element of a list."""
_NAME: Final = re.compile(r"(?!(?:null|true|false)$)(?!.*\bfor\b.*\bin\b)[^\W\d][\w ]*", re.IGNORECASE)
"""The contents of brackets that are a name even without FROM or a similar word before them; any other contents are a DuckDB list."""


_READ_ONLY: Final = "views and queues are read-only: expected a SELECT statement"
_T_SQL: Final = {
    r"\bSELECT\s+(?:DISTINCT\s+)?TOP\b": "LIMIT at the end instead of TOP",
    r"\(\s*NOLOCK\s*\)": "no WITH (NOLOCK)",
    r"\b(?:GETDATE|GETUTCDATE|SYSDATETIME|SYSUTCDATETIME)\s*\(": "now() instead of GETDATE()",
    r"\bISNULL\s*\(": "coalesce() instead of ISNULL()",
    r"\bDATALENGTH\s*\(": "octet_length() instead of DATALENGTH()",
}
"""Patterns of T-SQL syntax that DuckDB does not support, and what to write instead."""


def run_queries(instance: Instance, text: str) -> list[tuple[list[str], Rows]]:
    """Runs queries on the views (`sys.databases`) and queues (`dbo.Orders`) that they name; returns the column names and rows of each query.

    Names are case-insensitive. They may be in brackets; after FROM and JOIN, the schema may be omitted.
    """
    try:
        import duckdb  # noqa: PLC0415 - DuckDB is optional
    except ImportError:
        raise MissingDependencyError("queries need DuckDB: pip install duckdb") from None
    if not is_utf8_text(text):
        raise InputError(f"expected valid UTF-8 text, got {text!r:.80}")
    objects = readable_objects(instance)
    text = _with_quoted_names(text)
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        try:
            statements = connection.extract_statements(text)
            for number, (place, (schema, name)) in enumerate(referenced_objects(objects, text)):
                connection.register(f"view_{number}", _with_uuids(read_object(instance, schema, name)))
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(place)}")
                connection.execute(f"CREATE VIEW {_quoted(place)}.{_quoted(name)} AS FROM view_{number}")
            results = [_run(connection, statement, objects) for statement in statements]
        except duckdb.BinderException as error:
            if "base table" not in str(error):
                raise InputError(_with_dialect(str(error), text)) from None
            raise InputError(_READ_ONLY) from None
        except duckdb.CatalogException as error:  # a name does not exist; DuckDB would suggest its own names
            raise InputError(_with_dialect(_without_object(str(error), objects), text)) from None
        except duckdb.Error as error:
            raise InputError(_with_dialect(str(error), text)) from None
    if not results:
        raise InputError("expected a query, such as SELECT * FROM sys.routes")
    # The results of all queries are shown; the result of another statement, such as CREATE TEMP TABLE, is shown only if
    # it is the last.
    is_query = [statement.type.name in _QUERIES for statement in statements[:-1]]
    return [*compress(results, is_query), results[-1]]


def _run(
    connection: DuckDBPyConnection, statement: Statement, objects: list[tuple[str, str]]
) -> tuple[list[str], Rows]:
    if _SHOW_TABLES.fullmatch(statement.query):  # DuckDB would list only the objects that the queries name
        return objects_as_rows(objects)
    connection.execute(statement)
    names = _unique_names([str(column[0]) for column in connection.description or ()])
    return names, [dict(zip(names, row, strict=True)) for row in connection.fetchall()]


def rows_as_json(names: list[str], rows: Rows) -> str:
    """Returns the rows of a query as JSON."""
    return json.dumps([{name: _json_value(row[name]) for name in names} for row in rows], indent=2, ensure_ascii=False)


def result_table(names: Sequence[str], rows: Rows) -> FittedTable:
    """Returns the rows of a query for the terminal."""
    return rows_table(names, [[_cell(row[name]) for name in names] for row in rows])


def readable_objects(instance: Instance) -> list[tuple[str, str]]:
    """Returns the schema and name of the queues and views that a query can read."""
    from ssbroker.broker.views import DATABASE_VIEWS, INSTANCE_VIEWS  # noqa: PLC0415 - keeps --help fast

    views = [("sys", name.removeprefix("sys.")) for name in (*INSTANCE_VIEWS, *DATABASE_VIEWS)]
    queues = [(row["schema_name"], row["name"]) for row in instance.view("sys.service_queues").to_pylist()]
    return [*dict.fromkeys(queues), *views]


def objects_as_rows(objects: list[tuple[str, str]]) -> tuple[list[str], Rows]:
    """Returns queues and views as the rows of a query."""
    rows = [{"name": f"{schema}.{name}", "kind": "view" if schema == "sys" else "queue"} for schema, name in objects]
    return ["name", "kind"], rows


def read_object(instance: Instance, schema: str, name: str) -> pa.Table:
    """Returns the rows of a view or queue."""
    from ssbroker.broker.object_names import bracketed_queue_name  # noqa: PLC0415 - keeps --help fast

    return instance.view(f"sys.{name}" if schema == "sys" else bracketed_queue_name(schema, name))


def referenced_objects(objects: list[tuple[str, str]], text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields the views and queues that a query names, each with the schema in which the query looks for it."""
    by_name = {f"{schema}.{name}".casefold(): (schema, name) for schema, name in reversed(objects)}
    by_name |= {f"{schema}.{name}": (schema, name) for schema, name in objects}
    by_last_part = {name.casefold(): (schema, name) for schema, name in reversed(objects)}
    found: dict[tuple[str, tuple[str, str]], None] = {}
    for schema, name in _table_names(_with_quoted_names(text)):
        if schema is None:
            key = by_last_part.get(name.casefold())
        else:
            key = by_name.get(f"{schema}.{name}") or by_name.get(f"{schema}.{name}".casefold())
        if key is not None:
            found["main" if schema is None else key[0], key] = None
    yield from found


def _table_names(text: str) -> Iterator[tuple[str | None, str]]:
    """Yields the schema, if any, and the name of possible tables in a query."""
    for _, first, second in _TABLE.findall(text):
        if first:
            parts = [part if part[0] != '"' else part[1:-1].replace('""', '"') for part in (first, second) if part]
            yield (parts[0] if second else None), parts[-1]


def _with_quoted_names(text: str) -> str:
    """Converts names in brackets, as in T-SQL, to names in quotation marks; keeps the DuckDB syntax `[1, 2]` and `x[1]`."""
    parts: list[str] = []
    copied = position = 0
    before: Token | None = None
    with suppress(DdlError):  # an unclosed quotation mark, which DuckDB reports
        source = ScriptSource(text, None)
        text = source.text
        while position < len(text):
            token, position = next_token(source, position)
            if not isinstance(token, Token):
                continue
            if text[token.start] == "[" and _is_name(token, before):
                parts += [text[copied : token.start], _quoted(token.text)]
                copied = position
            before = token
    return "".join([*parts, text[copied:]])


def _is_name(token: Token, before: Token | None) -> bool:
    """Returns whether brackets are a T-SQL name, rather than a DuckDB list or a list element."""
    if before is None or before.key in _BEFORE_NAME:
        return before is not None
    is_value = before.key in (")", "]") or (before.kind != "symbol" and before.key not in _KEYWORDS)
    is_element = is_value and before.end == token.start
    return not is_element and before.key != "IN" and _NAME.fullmatch(token.text) is not None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _without_object(message: str, objects: list[tuple[str, str]]) -> str:
    """Returns the error about a view or queue that does not exist, with the most similar existing name."""
    missing = _MISSING.match(message)
    if missing is None:
        return message
    known = {name.casefold(): f"{schema}.{name}" for schema, name in reversed(objects)}
    if missing[1].casefold() in {*known, *(f"{schema}.{name}".casefold() for schema, name in objects)}:
        return _READ_ONLY  # INSERT and UPDATE name it where a query names no table
    similar = most_similar(missing[1].rpartition(".")[2].casefold(), known)
    question = "" if similar is None else f"; did you mean {known[similar]}?"
    return f"{missing[1]}: there is no view or queue with this name{question}"


def _with_dialect(message: str, text: str) -> str:
    """Adds to an error what to write instead of the T-SQL syntax in the query.

    Examples:
        >>> print(_with_dialect("Parser Error", "SELECT TOP 5 name FROM sys.routes WITH (NOLOCK)"))
        Parser Error
        Queries are in DuckDB's SQL: LIMIT at the end instead of TOP; no WITH (NOLOCK)
    """
    found = [instead for pattern, instead in _T_SQL.items() if re.search(pattern, text, re.IGNORECASE)]
    return f"{message}\nQueries are in DuckDB's SQL: {'; '.join(found)}" if found else message


def _unique_names(names: list[str]) -> list[str]:
    """Appends numbers to duplicate names."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1) if f"{name}_{number}" not in names)
        found[next(one for one in chain([name], numbered) if one not in found)] = None
    return list(found)


def _uuid_column(ids: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    if not hasattr(pa, "uuid"):  # pyarrow 17 and older; comparing text with text also works
        return pa.chunked_array(map(guid_text, ids.chunks), pa.large_string())
    uuid_type: Any = pa.uuid()  # the stubs do not support arrays of extension types
    return pa.chunked_array([pa.ExtensionArray.from_storage(uuid_type, chunk) for chunk in ids.chunks], uuid_type)


def _with_uuids(table: pa.Table) -> pa.Table:
    """Converts ids to UUIDs, which a query can compare with text."""
    for number, field in enumerate(table.schema):
        if field.type == pa.binary(16):
            table = table.set_column(number, field.name, _uuid_column(table.column(number)))
    return table


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return f"0x{value.hex()}"
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(_json_value(key)): _json_value(each) for key, each in value.items()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _cell(value: Any) -> Text:
    """Returns a table cell with the lines of a value; lists and structs are JSON."""
    shown = "" if value is None else _json_value(value)
    if isinstance(shown, list | dict):
        shown = json.dumps(shown, ensure_ascii=False)
    return Text("\n").join(map(cell, str(shown).split("\n")))
