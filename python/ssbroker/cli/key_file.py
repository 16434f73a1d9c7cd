"""Session keys from a file of any format."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ssbroker import guids
from ssbroker.cli.errors import reading
from ssbroker.cli.files import open_sources
from ssbroker.cli.intake import SESSION_KEYS
from ssbroker.exceptions import InputError, InvalidGuidError, MalformedDataError, SchemaError

_LENGTHS: Final = (16, 24, 32)
_IDS: Final = ("conversation_id", "conversation_handle")
_EXPECTED: Final = "a key of 16, 24 or 32 bytes, which text has as hexadecimal digits"


def load_keys(file: Path) -> Mapping[uuid.UUID | str | bytes, bytes]:
    r"""Reads the keys by conversation id.

    Args:
        file: A table with the columns `conversation_id` (or `conversation_handle`) and `session_key`.

    Returns:
        The keys by the 16 bytes of the id.

    Raises:
        SchemaError: A column is missing, or holds no bytes.
        InputError: The file cannot be read, an id is no GUID or has two keys, or a key has another length.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "keys.csv")
        ...     _ = path.write_text(f"conversation_id,session_key\n{uuid.UUID(int=1)},{'ab' * 16}\n")
        ...     [key.hex() for key in load_keys(path).values()]
        ['abababababababababababababababab']
    """
    with _untold(file), reading(file):
        return _keys(file)


@contextmanager
def _untold(file: Path) -> Iterator[None]:
    """Errors that would tell what stands in the file tell where alone: it may be a key in another form."""
    try:
        yield
    except InputError as error:
        of_system = isinstance(error.__cause__, OSError) and error.__cause__.errno is not None
        if of_system or (not isinstance(error, MalformedDataError) and error.column != "session_key"):
            raise
        row = "" if error.row is None else f", row {error.row}"
        reason = f"{file}: session_key{row}: expected {_EXPECTED}"
        if error.column is None:
            told = "is empty; expected" if _is_empty(file) else "expected"
            reason = f"{file}{row}: {told} a table with the columns conversation_id and session_key"
        raise type(error)(reason, column=error.column, row=error.row, expected=_EXPECTED) from None


def _is_empty(file: Path) -> bool:
    try:
        return file.stat().st_size == 0
    except OSError:  # it has gone meanwhile
        return False


def _keys(file: Path) -> Mapping[uuid.UUID | str | bytes, bytes]:
    (source,) = open_sources([file], SESSION_KEYS, lines=False, threads=1, progress=False)
    names = [] if source.schema is None else source.schema.names
    id_column = next((name for name in _IDS if name in names), "conversation_id")
    for name in (id_column, "session_key"):
        if name not in names:
            raise SchemaError(f"{file}: {name}: the column is missing", column=name)
    keys: dict[uuid.UUID | str | bytes, bytes] = {}
    for piece in source.pieces():
        columns = piece.load().columns
        pairs = zip(columns.column(id_column).to_pylist(), columns.column("session_key").to_pylist(), strict=True)
        for number, (given, key) in enumerate(pairs):
            row = piece.row_of(number)
            try:
                conversation = guids.as_bytes(given, name="conversation_id")
            except InvalidGuidError as error:
                raise InvalidGuidError(f"{file}: row {row}: {error}", column="conversation_id", row=row) from None
            if not isinstance(key, bytes) or len(key) not in _LENGTHS:  # the key itself is told to nobody
                raise InputError(
                    f"{file}: session_key, row {row}: expected {_EXPECTED}",
                    column="session_key",
                    row=row,
                    expected=_EXPECTED,
                )
            if keys.setdefault(conversation, key) != key:
                raise InputError(f"{file}: row {row}: {uuid.UUID(bytes=conversation)} has two keys", row=row)
    return keys
