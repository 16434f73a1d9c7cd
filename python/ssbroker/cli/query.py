"""A SELECT over an instance's views and queues, run by DuckDB."""

from __future__ import annotations

import math
import re
from datetime import datetime
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.cli.errors import one_line
from ssbroker.exceptions import InputError, MissingDependencyError

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

Rows = list[dict[str, Any]]
_NAMES: Final = re.compile(r"""(?:(\w+)|"([^"]+)"|\[([^\]]+)\])\.(?:(\w+)|"([^"]+)"|\[([^\]]+)\])""")


def query(instance: Instance, text: str) -> tuple[list[str], Rows]:
    """Runs a query on the views and queues that it names, as they are now.

    Args:
        instance: The instance.
        text: A query in DuckDB's SQL; views are `sys.databases` and so on, queues `dbo.Orders`.

    Returns:
        The names of the columns, each of them once, and the rows.

    Raises:
        MissingDependencyError: DuckDB is not installed.
        InputError: The query is wrong, or names what is not there.
    """
    try:
        import duckdb  # noqa: PLC0415 - only a query needs it
    except ImportError:
        raise MissingDependencyError("a query needs DuckDB: pip install duckdb") from None
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        try:
            for number, (schema, name) in enumerate(_named(instance, text)):
                connection.register(f"view_{number}", _readable(_view(instance, schema, name)))
                connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
                connection.execute(f'CREATE VIEW "{schema}"."{name}" AS FROM view_{number}')
            connection.execute(text)
            names = _distinct([str(column[0]) for column in connection.description or ()])
            rows = connection.fetchall()
        except duckdb.Error as error:
            raise InputError(f"the query: {one_line(str(error))}") from None
    return names, [dict(zip(names, row, strict=True)) for row in rows]


def plain(value: Any) -> Any:
    r"""A value as JSON has it.

    Examples:
        >>> plain(b"\x01\xff"), plain(datetime(2026, 11, 21)), plain(float("inf"))
        ('0x01ff', '2026-11-21T00:00:00', 'inf')
    """
    if isinstance(value, bytes | bytearray):
        return f"0x{value.hex()}"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _distinct(names: list[str]) -> list[str]:
    """The names; one that is there already has a number behind it."""
    found: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}_{number}" for number in count(1) if f"{name}_{number}" not in names)
        found[next(one for one in chain([name], numbered) if one not in found)] = None
    return list(found)


def _named(instance: Instance, text: str) -> list[tuple[str, str]]:
    """The views and queues among the names of two parts in a query; the others are columns of something."""
    queues = {key for database in instance.databases for key in database.objects().queues}
    found = [(one or two or three, four or five or six) for one, two, three, four, five, six in _NAMES.findall(text)]
    return [key for key in dict.fromkeys(found) if key[0] == "sys" or key in queues]


def _view(instance: Instance, schema: str, name: str) -> pa.Table:
    return instance.view(f"sys.{name}" if schema == "sys" else f"[{schema}].[{name}]")


def _readable(table: pa.Table) -> pa.Table:
    """The table with ids as UUIDs, so that a query compares them with their text."""
    for number, field in enumerate(table.schema):
        if field.type == pa.binary(16):
            column = table.column(number)
            ids: list[Any] = [pa.ExtensionArray.from_storage(pa.uuid(), chunk) for chunk in column.chunks]
            kind: Any = pa.uuid()  # the stubs know no arrays of extension types
            table = table.set_column(number, field.name, pa.chunked_array(ids, kind))
    return table
