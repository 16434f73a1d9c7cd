"""Fingerprints of catalogs, and their tables as Arrow IPC."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import schemas

_FINGERPRINT_FORMAT: Final = 1
# What lies under a null is anybody's; so each type of the schemas is written as one without nulls, with a value in their place.
_PLAIN: Final[dict[pa.DataType, tuple[pa.DataType, Any]]] = {
    pa.string(): (pa.string(), ""),
    pa.int32(): (pa.int32(), 0),
    pa.bool_(): (pa.int8(), 0),
    pa.timestamp("us", "UTC"): (pa.int64(), 0),
    schemas.GUID: (pa.binary(), b""),
}


def to_ipc(table: pa.Table) -> bytes:
    """The table as an Arrow IPC stream.

    Examples:
        >>> import pyarrow as pa
        >>> from_ipc(to_ipc(pa.table({"name": ["//Orders"]}))).to_pylist()
        [{'name': '//Orders'}]
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """The table of an Arrow IPC stream.

    Examples:
        >>> import pyarrow as pa
        >>> from_ipc(to_ipc(pa.table({"name": pa.array([], pa.string())}))).num_rows
        0
    """
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def fingerprint(
    routes: pa.Table,
    databases: pa.Table,
    services: pa.Table,
    *,
    addresses: Iterable[str],
    message_forwarding: bool,
    pending_requests: Iterable[str],
) -> str:
    """A digest of what a catalog says; the order of rows and further columns are no part of it.

    Args:
        routes: In the schema of `sys.routes`.
        databases: In the schema of `sys.databases`.
        services: In the schema of `sys.services`.
        addresses: The instance's own addresses in their normal form.
        message_forwarding: Whether the instance passes messages on.
        pending_requests: Services for which routing information has been requested.

    Returns:
        64 hexadecimal digits.

    Examples:
        >>> from ssbroker import schemas
        >>> tables = [schema.empty_table() for schema in (schemas.ROUTES, schemas.DATABASES, schemas.SERVICES)]
        >>> len(fingerprint(*tables, addresses=(), message_forwarding=False, pending_requests=()))
        64
    """
    settings = [_FINGERPRINT_FORMAT, sorted(set(addresses)), message_forwarding, sorted(set(pending_requests))]
    digest = hashlib.sha256(json.dumps(settings).encode())
    services = services.select(schemas.SERVICES.names).group_by(schemas.SERVICES.names).aggregate([])
    _add(digest, routes.select(schemas.ROUTES.names), keys=("database", "route_id"))
    _add(digest, databases.select(schemas.DATABASES.names), keys=("name",))
    _add(digest, services, keys=("database", "name"))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, table: pa.Table, *, keys: tuple[str, ...]) -> None:
    """Adds the rows in the order of their keys, written so that equal rows are equal bytes."""
    table = table.take(pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys])).combine_chunks()
    columns: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        kind, no_value = _PLAIN[field.type]
        plain: Any = column.cast(kind)
        columns[field.name] = plain.fill_null(no_value)
        columns[f"{field.name} is null"] = column.is_null().cast(pa.int8())
    digest.update(to_ipc(pa.table(columns)))
