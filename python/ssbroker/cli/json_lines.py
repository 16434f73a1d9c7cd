"""JSON lines: one object a line, passed on as it stands where the output is JSON lines too, else read into columns."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from ssbroker import schemas
from ssbroker.cli.errors import one_line, reading
from ssbroker.cli.pieces import Piece, Rows
from ssbroker.exceptions import InputError, MalformedDataError, SchemaError

pc: Any = pyarrow.compute  # its stubs know neither Python constants nor text with 64-bit offsets
BLOCK_BYTES: Final = 1 << 20
_TEXT_KEYS: Final = ("conversation_id", "conversation_handle", "database", "to_service_name", "to_broker_instance")
_KEYS: Final = pa.schema([(name, pa.string()) for name in _TEXT_KEYS]).append(pa.field("is_initiator", pa.bool_()))
_EXPECTED: Final = "one JSON object a line"
_BOM: Final = b"\xef\xbb\xbf"


class JsonLinesSource:
    """A file of JSON lines.

    Args:
        file: The file.
        schema: The columns to read it into, None to pass the lines on as they stand.
    """

    rows = None

    def __init__(self, file: Path, *, schema: pa.Schema | None) -> None:
        self.file = file
        self.schema = schema
        self._keys: Sequence[str] | None = None
        with reading(file), file.open("rb"):
            pass

    def pieces(self) -> Iterator[Piece]:
        """The rows, in order."""
        first_row, empty = 0, True
        for block, position in blocks(self.file):
            empty = False
            if self.schema is None and self._keys is None:
                self._keys = _keys_of(block, self.file)
            yield Piece(
                file=self.file,
                first_row=first_row,
                size=3 * len(block),
                position=position,
                load=partial(self._load, block, first_row),
            )
            first_row += block.count(b"\n")
        if empty:
            schema = self.schema or _KEYS
            nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            lines = pa.array([], pa.large_string()) if self.schema is None else None
            yield Piece(
                file=self.file, first_row=0, size=0, position=0, load=lambda: Rows(columns=nothing, lines=lines)
            )

    def _load(self, block: bytes, first_row: int) -> Rows:
        lines = _lines_of(block, self.file, first_row)
        options = pyarrow.json.ParseOptions(
            explicit_schema=self.schema or _KEYS, unexpected_field_behavior="error" if self.schema else "ignore"
        )
        columns = _parsed(block, options, self.file, first_row, rows=len(lines))
        if self.schema is not None:
            return Rows(columns=columns)
        _check_keys(block, file=self.file, first_row=first_row)
        absent = [name for name in _KEYS.names if name not in (self._keys or ())]
        for name in absent:
            if columns.column(name).null_count < columns.num_rows:
                row = first_row + pc.index(pc.is_valid(columns.column(name)), True).as_py()
                raise InputError(
                    f"{self.file}: {name}, row {row}: the first rows of the file lack it; expected it in all rows (null where there is no value), or in none",
                    column=name,
                    row=row,
                    expected="the same columns in all rows",
                )
        return Rows(columns=columns.drop_columns(absent), lines=lines)


def infer_schema(files: Sequence[Path]) -> pa.Schema:
    """The columns of files of JSON lines, for which all of them are read: any line may have a further one.

    Args:
        files: The files; a column may be missing in some lines.

    Returns:
        The columns; those that routing reads have the types that it needs.

    Raises:
        SchemaError: A column has values of types that have nothing in common.
        InputError: A file cannot be read.
    """
    found = pa.schema([])
    for file in files:
        first_row = 0
        for block, _ in blocks(file):
            rows = len(_lines_of(block, file, first_row))
            schema = _parsed(block, pyarrow.json.ParseOptions(), file, first_row, rows=rows).schema
            found = _united(found, schema, file=file, first_row=first_row)
            first_row += block.count(b"\n")
    if not found.names:
        return _KEYS
    return pa.schema(
        [_KEYS.field(field.name) if field.name in _KEYS.names else _without_null_types(field) for field in found]
    )


def blocks(file: Path) -> Iterator[tuple[bytes, int]]:
    """The lines of a file, several megabytes at a time, each block with the position after it."""
    with reading(file), file.open("rb") as opened:
        rest = b""
        position = 0
        while data := opened.read(BLOCK_BYTES):
            if position == 0:
                data = data.removeprefix(_BOM)
            position = opened.tell()
            end = data.rfind(b"\n") + 1
            if end == 0:
                rest += data
                continue
            yield rest + data[:end], position
            rest = data[end:]
        if rest.strip():
            yield rest, position


def _lines_of(block: bytes, file: Path, first_row: int) -> Any:
    with reading(file):
        whole = pa.array([block], pa.large_binary()).cast(pa.large_string())
    lines = pc.ascii_trim_whitespace(pc.split_pattern(whole, "\n").values)
    lines = lines.filter(pc.greater(pc.binary_length(lines), 0))
    objects = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    if not pc.all(objects, min_count=0).as_py():
        raise _bad_line(block, file, first_row) or _malformed(file, first_row)
    return lines


def _parsed(
    block: bytes, options: pyarrow.json.ParseOptions, file: Path, first_row: int, *, rows: int
) -> pa.RecordBatch:
    try:
        read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
        table = pyarrow.json.read_json(io.BytesIO(block), read_options=read_options, parse_options=options)
    except pa.ArrowException as error:
        told = _bad_line(block, file, first_row) or _changed_type(str(error), file, first_row)
        raise told or MalformedDataError(f"{file}: {one_line(str(error))}") from error
    if table.num_rows != rows:
        raise _bad_line(block, file, first_row) or _malformed(file, first_row)
    return table.combine_chunks().to_batches()[0]


def _bad_line(block: bytes, file: Path, first_row: int) -> InputError | SchemaError | None:
    """The first line of a block that is no object, or in which a column that routing reads has another type."""
    for row, line in enumerate(block.split(b"\n"), start=first_row):
        if not line.strip():
            continue
        where = f"{file}: row {row}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            return MalformedDataError(f"{where}: {error}; expected {_EXPECTED}", row=row, expected=_EXPECTED)
        if not isinstance(found, dict):
            return MalformedDataError(
                f"{where}: {line[:80]!r} is no object; expected {_EXPECTED}", row=row, expected=_EXPECTED
            )
        for name, kind in zip(_KEYS.names, _KEYS.types, strict=True):
            value = found.get(name)
            expected = "true or false" if kind == pa.bool_() else "text"
            if value is not None and not isinstance(value, bool if kind == pa.bool_() else str):
                shown = json.dumps(value)[:80]
                return InputError(
                    f"{file}: {name}, row {row}: {shown} is not {expected}",
                    column=name,
                    row=row,
                    value=shown,
                    expected=expected,
                )
    return None


def _changed_type(told: str, file: Path, first_row: int) -> SchemaError | None:
    found = re.search(r"Column\(/(.*)\) changed from (\w+) to (\w+) in row (\d+)", told)
    if found is None:
        return None
    name, known, other, row = found.groups()
    message = f"{file}: {name}, row {first_row + int(row)}: is {other}, and {known} in lines before; expected one type"
    return SchemaError(message, column=name, expected=known, actual=other)


def _malformed(file: Path, first_row: int) -> MalformedDataError:
    return MalformedDataError(f"{file}: rows {first_row} and further: expected {_EXPECTED}", expected=_EXPECTED)


def _keys_of(block: bytes, file: Path) -> list[str]:
    """Which columns that routing reads the lines of a block have, if only in some."""
    keys = []
    for name in _KEYS.names:
        key = re.compile(rf'"{name}"\s*:'.encode())
        try:
            if any(name in json.loads(line) for line in block.split(b"\n") if key.search(line)):
                keys.append(name)
        except (ValueError, TypeError, RecursionError) as error:
            raise _bad_line(block, file, 0) or _malformed(file, 0) from error
    return keys


def _check_keys(block: bytes, *, file: Path, first_row: int) -> None:
    suspects = [name for name in schemas.DECISIONS.names if f'"{name}"'.encode() in block]
    if not suspects:
        return
    for row, line in enumerate(block.split(b"\n"), start=first_row):
        clash = next((name for name in suspects if f'"{name}"'.encode() in line and name in json.loads(line)), None)
        if clash is not None:
            raise SchemaError(
                f"{file}: row {row} has the column {clash}, which routing adds; drop or rename it", column=clash
            )


def _united(one: pa.Schema, other: pa.Schema, *, file: Path, first_row: int) -> pa.Schema:
    """The columns of both; text that looks like a moment in some lines only is text."""
    fields = {field.name: field for field in one}
    for field in other:
        known = fields.get(field.name, field)
        kinds = {known.type, field.type}
        if len(kinds) > 1 and any(map(pa.types.is_timestamp, kinds)) and pa.string() in kinds:
            fields[field.name] = pa.field(field.name, pa.string())
            continue
        try:
            united = pa.unify_schemas([pa.schema([known]), pa.schema([field])], promote_options="permissive")
        except pa.ArrowException as error:
            raise SchemaError(
                f"{file}: {field.name}, row {first_row} or later: is {field.type}, and {known.type} in lines before; expected one type",
                column=field.name,
                expected=str(known.type),
                actual=str(field.type),
            ) from error
        fields[field.name] = united.field(0)
    return pa.schema(list(fields.values()))


def _without_null_types(field: pa.Field[Any]) -> pa.Field[Any]:
    """Where no value is known, text stands in for the type: Parquet readers often know no other."""
    return pa.field(field.name, _typed(field.type))


def _typed(kind: Any) -> Any:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_typed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([_without_null_types(kind.field(number)) for number in range(kind.num_fields)])
    return kind
