"""Loads the session keys of conversations from a file, without showing a key in an error message."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ssbroker._arguments import guid_bytes
from ssbroker.cli.errors import reading
from ssbroker.cli.input_columns import SESSION_KEY_COLUMNS
from ssbroker.cli.input_files import open_inputs
from ssbroker.exceptions import InputError, InvalidGuidError, MalformedDataError, SchemaError

_KEY_LENGTHS: Final = (16, 24, 32)
_ID_COLUMNS: Final = ("conversation_id", "conversation_handle")
_EXPECTED_KEY: Final = "a key of 16, 24 or 32 bytes, as hexadecimal digits in text formats"


def load_session_keys(file: Path) -> Mapping[uuid.UUID | str | bytes, bytes]:
    """Reads a table of `conversation_id` (or `conversation_handle`) and `session_key`; returns the keys by the 16 bytes of the id."""
    with _without_contents(file), reading(file):
        return _load(file)


@contextmanager
def _without_contents(file: Path) -> Iterator[None]:
    """Removes the contents of the file from errors, because they may be a key that could not be parsed."""
    try:
        yield
    except InputError as error:
        is_system_error = isinstance(error.__cause__, OSError) and error.__cause__.errno is not None
        if is_system_error or (not isinstance(error, MalformedDataError) and error.column != "session_key"):
            raise
        row = "" if error.row is None else f", row {error.row}"
        message = f"{file}: session_key{row}: expected {_EXPECTED_KEY}"
        if error.column is None:
            problem = "the file is empty; expected" if _is_empty(file) else "expected"
            message = f"{file}{row}: {problem} a table with the columns conversation_id and session_key"
        raise type(error)(message, column=error.column, row=error.row, expected=_EXPECTED_KEY) from None


def _is_empty(file: Path) -> bool:
    try:
        return file.stat().st_size == 0
    except OSError:  # it was removed in the meantime
        return False


def _load(file: Path) -> Mapping[uuid.UUID | str | bytes, bytes]:
    (input_file,) = open_inputs([file], SESSION_KEY_COLUMNS, keep_json_lines=False, threads=1, progress=False)
    names = [] if input_file.schema is None else input_file.schema.names
    id_column = next((name for name in _ID_COLUMNS if name in names), "conversation_id")
    for name in (id_column, "session_key"):
        if name not in names:
            raise SchemaError(
                f"{file}: {name}: the column is missing; expected the columns conversation_id and session_key",
                column=name,
            )
    keys: dict[uuid.UUID | str | bytes, bytes] = {}
    for chunk in input_file.chunks():
        batch = chunk.load().batch
        pairs = zip(batch.column(id_column).to_pylist(), batch.column("session_key").to_pylist(), strict=True)
        for number, (conversation, key) in enumerate(pairs):
            row = chunk.row_in_file(number)
            try:
                conversation_id = guid_bytes(conversation, name="conversation_id")
            except InvalidGuidError as error:
                raise InvalidGuidError(f"{file}: row {row}: {error}", column="conversation_id", row=row) from None
            if not isinstance(key, bytes) or len(key) not in _KEY_LENGTHS:
                raise InputError(
                    f"{file}: session_key, row {row}: expected {_EXPECTED_KEY}",
                    column="session_key",
                    row=row,
                    expected=_EXPECTED_KEY,
                )
            if keys.setdefault(conversation_id, key) != key:
                text = uuid.UUID(bytes=conversation_id)
                raise InputError(
                    f"{file}: row {row}: an earlier row contains a different key for the conversation {text}; keep only the row with the correct key",
                    row=row,
                )
    return keys
