"""The columns that the commands read and add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ssbroker import schemas

IS_INITIATOR: Final = "is_initiator"
"""The column that states which side sent a message, which `--from-target` adds."""


@dataclass(frozen=True, kw_only=True)
class InputColumns:
    """The columns that a command reads from its input files, and the columns that it adds to the output."""

    schema: pa.Schema
    """The columns that the command reads if present. In text formats, ids are text, and `NULL` is a spelling of null."""
    added: tuple[str, ...]
    """The columns that the command adds; an input file must not have them."""
    operation: str
    """A noun that describes what the command does, for messages."""
    secret: str | None = None
    """The column whose values must not be shown."""

    @property
    def json_schema(self) -> pa.Schema:
        """The schema for JSON, in which binary columns are text."""
        columns = zip(self.schema.names, self.schema.types, strict=True)
        return pa.schema({name: _json_type(data_type) for name, data_type in columns})

    @staticmethod
    def expected_value(data_type: pa.DataType) -> str:
        """Returns a description of the CSV cells that are valid for a type, for messages."""
        if data_type == pa.bool_():
            return "true, false, 1 or 0"
        if data_type == pa.binary():
            return "hexadecimal digits, such as 0x01ff"
        return f"a {data_type.bit_width}-bit integer"


def make_schema(*fields: pa.Field[Any]) -> pa.Schema:
    """Returns a schema with fields of any types, which the pyarrow stubs reject."""
    return pa.schema(list(fields))


_ID_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("conversation_id", pa.string(), nullable=False),
    pa.field("conversation_handle", pa.string(), nullable=False),
)

_CONVERSATION_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("database", pa.string()),
    pa.field("to_service_name", pa.string(), nullable=False),
    pa.field("to_broker_instance", pa.string()),
    pa.field(IS_INITIATOR, pa.bool_(), nullable=False),
)

CONVERSATION_COLUMNS: Final = InputColumns(
    schema=make_schema(*_ID_FIELDS, *_CONVERSATION_FIELDS),
    added=tuple(schemas.DECISIONS.names),
    operation="routing",
)
"""The columns of the input of `route` and `compare`."""


QUEUE_COLUMNS: Final = InputColumns(
    schema=make_schema(
        *_CONVERSATION_FIELDS,
        pa.field("from_service_name", pa.string()),
        pa.field("transmission_status", pa.string()),
    ),
    added=(),
    operation="the explanation",
)
"""The columns of the input of `stuck --queue`."""


SESSION_KEY_COLUMNS: Final = InputColumns(
    schema=make_schema(*_ID_FIELDS, pa.field("session_key", pa.binary(), nullable=False)),
    added=(),
    operation="reassembly",
    secret="session_key",  # noqa: S106 - the name of a column
)
"""The columns of the input of `reassemble --session-keys`."""


def fragment_columns(*, session_key_column: str | None = None) -> InputColumns:
    """Returns the input columns of `reassemble`, with the session key column if there is one."""
    keys: list[pa.Field[Any]] = [] if session_key_column is None else [pa.field(session_key_column, pa.binary())]
    schema = make_schema(
        *_ID_FIELDS,
        pa.field(IS_INITIATOR, pa.bool_(), nullable=False),
        pa.field("message_sequence_number", pa.int64(), nullable=False),
        pa.field("fragment_number", pa.int32(), nullable=False),
        pa.field("fragment_count", pa.int32(), nullable=False),
        pa.field("message_body", pa.binary(), nullable=False),
        pa.field("message_signature", pa.binary()),
        pa.field("fragment_signature", pa.binary()),
        *(key for key in keys if key.name not in schemas.FRAGMENTS.names),
    )
    return InputColumns(schema=schema, added=(), operation="reassembly", secret=session_key_column)


def _json_type(data_type: pa.DataType) -> pa.DataType:
    return pa.string() if data_type == pa.binary() else data_type
