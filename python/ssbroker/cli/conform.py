"""Many files, one output: they have to have the same columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ssbroker.cli.intake import Intake
from ssbroker.cli.pieces import Source
from ssbroker.exceptions import SchemaError


def common_schema(sources: Sequence[Source], intake: Intake) -> pa.Schema:
    """The columns that all files have, in the order and with the types of the first.

    Args:
        sources: The files; those whose lines are passed on as they are count for nothing.
        intake: What is read of them.

    Returns:
        The columns; none where no file has columns.

    Raises:
        SchemaError: A column is missing, comes twice, has another type, or has the name of one that the command adds.

    Examples:
        >>> from ssbroker.cli.intake import CONVERSATIONS
        >>> common_schema([], CONVERSATIONS).names
        []
    """
    first: Source | None = None
    for source in sources:
        if source.schema is None:
            continue
        _check_names(source, source.schema, intake)
        if first is None or first.schema is None:
            first = source
            continue
        for name in [*first.schema.names, *source.schema.names]:
            one, other = _type_of(first.schema, name), _type_of(source.schema, name)
            if one is None or other is None:
                has, lacks = (first, source) if other is None else (source, first)
                message = f"{lacks.file}: lacks the column {name}, which {has.file} has; expected the same columns in all files"
                raise SchemaError(message, column=name)
            if plain_type(one) != plain_type(other):
                message = (
                    f"{source.file}: {name} is {other}, and {one} in {first.file}; expected the same types in all files"
                )
                raise SchemaError(message, column=name, expected=str(one), actual=str(other))
    return pa.schema([]) if first is None or first.schema is None else first.schema


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns in the order and with the types of the schema.

    Examples:
        >>> batch = pa.record_batch({"a": pa.array(["x"], pa.large_string())})
        >>> conformed(batch, pa.schema([("a", pa.string())])).schema.types
        [DataType(string)]
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        column: Any = batch.column(field.name)
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(field.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """What the values of a column are, whatever their layout.

    Examples:
        >>> plain_type(pa.dictionary(pa.int8(), pa.large_string()))
        DataType(string)
    """
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def _type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _check_names(source: Source, schema: pa.Schema, intake: Intake) -> None:
    seen = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(f"{source.file}: has the column {name} twice; expected each once", column=name)
        if name in intake.added:
            raise SchemaError(
                f"{source.file}: has the column {name}, which {intake.by} adds; drop or rename it", column=name
            )
        seen.add(name)
