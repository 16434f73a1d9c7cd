"""Many messages sent at once, out of an Arrow table."""

from __future__ import annotations

import uuid
from typing import Any, Final

import pyarrow as pa

from ssbroker import guids
from ssbroker.arrow_input import ArrowArrayExportable, ArrowStreamExportable, as_table
from ssbroker.broker.dialogs import sending
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import InvalidGuidError, NullError, SchemaError
from ssbroker.further import check_meant
from ssbroker.protocol.columns import listed
from ssbroker.protocol.names import BODY_MAX, DEFAULT, refused
from ssbroker.store import endpoints

_NAME: Final = "messages"
_HANDLE: Final = "conversation_handle"
_BODY: Final = "message_body"
_TYPE: Final = "message_type_name"
_BINARY: Final = "binary"
_STRING: Final = "string"
_GUID_BYTES: Final = 16
_GUID: Final = "a GUID: string or binary"


def send_batch(work: Work, messages: ArrowArrayExportable | ArrowStreamExportable) -> None:
    """Sends the rows of a table; those of one conversation in their order. All are checked before anything is written (B5)."""
    table = as_table(messages, name=_NAME)
    check_meant(table.column_names, read=[_TYPE])
    if sending.send_all_plain(work, table):
        return
    runs = _by_conversation(table)
    found = endpoints.with_handles(work.connection, runs)
    for handle in runs:
        if handle not in found:
            raise refused(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    senders = [found[handle] for handle in runs]
    kinds = [frozenset([kind for kind, _ in run]) for run in runs.values()]
    states = sending.check_all(work, zip(senders, kinds, strict=True), now=work.now())
    sending.send(work, list(zip(senders, states, runs.values(), strict=True)))


def _by_conversation(table: pa.Table) -> dict[bytes, list[tuple[str, bytes | None]]]:
    """Type and body of each message, by the handle."""
    handles = _values(table, _HANDLE, expected=_GUID)
    bodies = _values(table, _BODY, expected=_BINARY)
    kinds = _values(table, _TYPE, expected=_STRING) if _TYPE in table.column_names else [DEFAULT] * len(bodies)
    known: dict[Any, list[tuple[str, bytes | None]]] = {}
    runs: dict[bytes, list[tuple[str, bytes | None]]] = {}
    for row, (handle, kind, body) in enumerate(zip(handles, kinds, bodies, strict=True)):
        run = known.get(handle)
        if run is None:
            is_plain = type(handle) is bytes and len(handle) == _GUID_BYTES
            run = known[handle] = runs.setdefault(handle if is_plain else _guid(handle, row), [])
        if body is None:
            raise refused(8433)
        if kind is None:
            raise NullError(f"{_TYPE}: row {row} is null", column=_TYPE, row=row, expected=_STRING)
        if len(body) > BODY_MAX:
            raise refused(8459, length=len(body), most=BODY_MAX)
        run.append((kind, body or None))
    return runs


def _guid(value: object, row: int) -> bytes:
    if value is None:
        raise NullError(f"{_HANDLE}: row {row} is null", column=_HANDLE, row=row, expected=_GUID)
    try:
        return guids.as_bytes(value, name=_HANDLE)
    except InvalidGuidError as error:
        raise InvalidGuidError(
            f"{error}, in row {row}", column=_HANDLE, row=row, value=error.value, expected=error.expected
        ) from None


def _values(table: pa.Table, name: str, *, expected: str) -> list[Any]:
    if table.column_names.count(name) != 1:
        raise SchemaError(f"{_NAME}: expected one column {name!r} ({expected})", column=name, expected=expected)
    column: Any = table.column(name)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    kind: Any = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    is_binary = (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    fits = {_STRING: is_text, _BINARY: is_binary, _GUID: is_text or is_binary}[expected]
    if not fits and not pa.types.is_null(kind):
        raise SchemaError(
            f"{_NAME}: column {name!r} is of type {column.type}, expected {expected}",
            column=name,
            expected=expected,
            actual=str(column.type),
        )
    values: list[Any] = listed(column)
    return values
