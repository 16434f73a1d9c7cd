"""Fingerprints of catalogs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import schemas
from ssbroker._arrow import to_ipc

_FINGERPRINT_FORMAT: Final = 1
# The bytes under a null are undefined, so each column is digested as two columns without nulls: the values with a fill
# value, and the null flags.
_CANONICAL_TYPES: Final[dict[pa.DataType, tuple[pa.DataType, Any]]] = {
    pa.string(): (pa.string(), ""),
    pa.int32(): (pa.int32(), 0),
    pa.bool_(): (pa.int8(), 0),
    pa.timestamp("us", "UTC"): (pa.int64(), 0),
    schemas.GUID: (pa.binary(), b""),
}


def fingerprint(
    routes: pa.Table,
    databases: pa.Table,
    services: pa.Table,
    *,
    addresses: Iterable[str],
    message_forwarding: bool,
    pending_requests: Iterable[str],
) -> str:
    """Returns the SHA-256 digest of a catalog's content in hexadecimal; ignores the order of rows and extra columns."""
    settings = [_FINGERPRINT_FORMAT, sorted(set(addresses)), message_forwarding, sorted(set(pending_requests))]
    digest = hashlib.sha256(json.dumps(settings).encode())
    services = services.select(schemas.SERVICES.names).group_by(schemas.SERVICES.names).aggregate([])
    _add(digest, routes.select(schemas.ROUTES.names), keys=("database", "route_id"))
    _add(digest, databases.select(schemas.DATABASES.names), keys=("name",))
    _add(digest, services, keys=("database", "name"))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, table: pa.Table, *, keys: tuple[str, ...]) -> None:
    """Adds rows to the digest, sorted by their keys, encoded so that equal rows have equal bytes."""
    table = table.take(pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys])).combine_chunks()
    columns: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        canonical_type, fill_value = _CANONICAL_TYPES[field.type]
        cast: Any = column.cast(canonical_type)
        columns[field.name] = cast.fill_null(fill_value)
        columns[f"{field.name} is null"] = column.is_null().cast(pa.int8())
    digest.update(to_ipc(pa.table(columns)))
