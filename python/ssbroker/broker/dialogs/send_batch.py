"""Sends the rows of a table, on the conversations that it names."""

from __future__ import annotations

import uuid
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import guid_bytes
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_table, reject_misspelled_columns
from ssbroker._compat import is_binary_view, is_string_view
from ssbroker._well_known import DEFAULT
from ssbroker.broker.dialogs.send import check_all_may_send, send
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import InvalidGuidError, NullError, SchemaError
from ssbroker.protocol.arrow_columns import column_values
from ssbroker.protocol.broker_errors import broker_error
from ssbroker.protocol.settings import BODY_MAX
from ssbroker.store import conversation_endpoints

_NAME: Final = "messages"
_HANDLE: Final = "conversation_handle"
_BODY: Final = "message_body"
_TYPE: Final = "message_type_name"
_BINARY: Final = "binary"
_STRING: Final = "string"
_NO_MESSAGES: Final = pa.table({_HANDLE: pa.nulls(0), _BODY: pa.nulls(0)})
_GUID_BYTES: Final = 16
_GUID: Final = "a GUID: string or binary"


def as_messages(messages: ArrowArrayExportable | ArrowStreamExportable) -> pa.Table:
    """Converts and checks the input of `Transaction.send_batch`."""
    given: object = messages
    if isinstance(given, list) and not given:  # an empty list has no rows that name the columns
        return _NO_MESSAGES
    table = as_table(messages, name=_NAME)
    reject_misspelled_columns(table.column_names, expected=[_TYPE])
    return table


def send_batch(work: Work, table: pa.Table) -> None:
    """Sends the rows of a table, after checking all of them. Messages of one conversation keep their order."""
    runs = _by_conversation(table)
    found = conversation_endpoints.by_handles(work.connection, runs)
    for handle in runs:
        if handle not in found:
            raise broker_error(8426, kind="conversation", handle=uuid.UUID(bytes=handle))
    senders = [found[handle] for handle in runs]
    message_types = [frozenset([message_type for message_type, _ in run]) for run in runs.values()]
    states = check_all_may_send(work, zip(senders, message_types, strict=True), now=work.now())
    send(work, list(zip(senders, states, runs.values(), strict=True)))


def _by_conversation(table: pa.Table) -> dict[bytes, list[tuple[str, bytes | None]]]:
    """Groups messages by conversation handle; returns their types and bodies."""
    handles = _values(table, _HANDLE, expected=_GUID)
    bodies = _values(table, _BODY, expected=_BINARY)
    message_types = _values(table, _TYPE, expected=_STRING) if _TYPE in table.column_names else [DEFAULT] * len(bodies)
    known: dict[Any, list[tuple[str, bytes | None]]] = {}
    runs: dict[bytes, list[tuple[str, bytes | None]]] = {}
    for row, (handle, message_type, body) in enumerate(zip(handles, message_types, bodies, strict=True)):
        run = known.get(handle)
        if run is None:
            is_guid_bytes = type(handle) is bytes and len(handle) == _GUID_BYTES
            run = known[handle] = runs.setdefault(handle if is_guid_bytes else _handle(handle, row), [])
        if body is None:
            raise broker_error(8433, name=f"{_BODY}: row {row}")
        if message_type is None:
            raise NullError(f"{_TYPE}: row {row} is null", column=_TYPE, row=row, expected=_STRING)
        if len(body) > BODY_MAX:
            raise broker_error(8459, name=f"{_BODY}: row {row}", length=len(body), maximum=BODY_MAX)
        run.append((message_type, body or None))
    return runs


def _handle(value: object, row: int) -> bytes:
    if value is None:
        raise NullError(f"{_HANDLE}: row {row} is null", column=_HANDLE, row=row, expected=_GUID)
    return guid_in_row(value, _HANDLE, row)


def guid_in_row(value: object, name: str, row: int) -> bytes:
    """Returns the bytes of a GUID in a column; the error for an invalid GUID names the column and the row."""
    try:
        return guid_bytes(value, name=name)
    except InvalidGuidError as error:
        raise InvalidGuidError(
            f"{error}, in row {row}", column=name, row=row, value=error.value, expected=error.expected
        ) from None


def _values(table: pa.Table, name: str, *, expected: str) -> list[Any]:
    if table.column_names.count(name) != 1:
        raise SchemaError(f"{_NAME}: expected one column {name!r} ({expected})", column=name, expected=expected)
    column: Any = table.column(name)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    data_type: Any = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or is_string_view(data_type)
    is_binary = (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or is_binary_view(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )
    fits = {_STRING: is_text, _BINARY: is_binary, _GUID: is_text or is_binary}[expected]
    if not fits and not pa.types.is_null(data_type):
        raise SchemaError(
            f"{_NAME}: column {name!r} is of type {column.type}, expected {expected}",
            column=name,
            expected=expected,
            actual=str(column.type),
        )
    values: list[Any] = column_values(column)
    return values
