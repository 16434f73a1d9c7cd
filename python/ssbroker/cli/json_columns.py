"""The columns of JSON lines, where the output needs to know them: lines tell theirs one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from ssbroker.cli.intake import Intake
from ssbroker.cli.json_lines import blocks, lines_of, parsed
from ssbroker.cli.pipeline import UNDER_WAY_BYTES, in_order
from ssbroker.cli.progress import ProgressBar
from ssbroker.exceptions import SchemaError


def infer_schema(files: Sequence[Path], intake: Intake, *, threads: int, progress: bool | None) -> pa.Schema:
    """The columns of files of JSON lines, for which all of them are read: any line may have a further one.

    Args:
        files: The files; a column may be missing in some lines.
        intake: What is read of them.
        threads: How many threads read.
        progress: Whether to show a bar; None shows it where standard error is a terminal.

    Returns:
        The columns; those that the command reads have the types that it reads.

    Raises:
        SchemaError: A column has values of types that have nothing in common.
        InputError: A file cannot be read.
    """
    found = pa.schema([])
    rows = 0
    total = sum(file.stat().st_size for file in files)
    schemas_of = in_order(
        _numbered(files),
        partial(_schema_of, intake),
        threads=threads,
        weigh=lambda block: 3 * len(block.data),
        weight_max=UNDER_WAY_BYTES,
    )
    with ProgressBar("Reading columns", total_bytes=total, shown=progress) as bar, contextlib.closing(schemas_of):
        for schema, count, block in schemas_of:
            found = _united(found, schema, file=block.file, first_row=block.first_row)
            rows += count
            bar.update(rows=rows, position=block.position)
    keys = intake.in_json
    if not found.names:
        return keys
    # Where no value is known, text stands in for the type: Parquet readers often know no other.
    return pa.schema(
        [keys.field(field.name) if field.name in keys.names else _with_text(field, pa.types.is_null) for field in found]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    file: Path
    data: bytes
    first_row: int
    position: int


def _numbered(files: Sequence[Path]) -> Iterator[_Block]:
    before = 0
    for file in files:
        for data, first_row, position in blocks(file):
            yield _Block(file=file, data=data, first_row=first_row, position=before + position)
        before += file.stat().st_size


def _schema_of(intake: Intake, block: _Block) -> tuple[pa.Schema, int, _Block]:
    rows = len(lines_of(block.data, block.file, block.first_row))
    batch = parsed(block.data, pyarrow.json.ParseOptions(), intake, block.file, block.first_row, rows=rows)
    # JSON has no moments: pyarrow makes them of text that looks so, and loses how it was written and its zone.
    return pa.schema([_with_text(field, pa.types.is_timestamp) for field in batch.schema]), rows, block


def _with_text(field: pa.Field[Any], stands: Callable[[Any], bool]) -> pa.Field[Any]:
    """The column as text where such a type is found, in lists and structs too."""

    def typed(kind: Any) -> Any:
        if stands(kind):
            return pa.string()
        if pa.types.is_list(kind):
            return pa.list_(typed(kind.value_type))
        if pa.types.is_struct(kind):
            return pa.struct([_with_text(each, stands) for each in kind])
        return kind

    return pa.field(field.name, typed(field.type))


def _united(one: pa.Schema, other: pa.Schema, *, file: Path, first_row: int) -> pa.Schema:
    """The columns of both."""
    fields = {field.name: field for field in one}
    for field in other:
        known = fields.get(field.name, field)
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
