"""Compares the results of rivals, independently of dictionaries and chunks."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benches.columns import Column, halves
from benches.rivals.winners import DECISIONS

_STEP: Final = 10_000
_PLAIN: Final = pa.schema([pa.field(field.name, getattr(field.type, "value_type", field.type)) for field in DECISIONS])


def digest(answer: pa.Table) -> str:
    """Hashes the decision columns of all rows; equal results have equal digests."""
    state = hashlib.blake2b(digest_size=16)
    for field in DECISIONS:
        column: Column = answer[field.name]
        state.update(np.packbits(column.is_valid().to_numpy()).tobytes())
        if pa.types.is_dictionary(field.type):
            values, numbers = _ranked(column)
            state.update(repr(values).encode())
            state.update(numbers.tobytes())
        elif pa.types.is_integer(field.type):
            state.update(column.cast(field.type).fill_null(0).to_numpy().tobytes())
        else:
            state.update(halves(column.cast(field.type).fill_null(bytes(16)).combine_chunks()).tobytes())
    return state.hexdigest()


def first_difference(left: pa.Table, right: pa.Table) -> str | None:
    """Describes the first row in which two results differ; None if they are equal."""
    if left.num_rows != right.num_rows:
        return f"{left.num_rows} and {right.num_rows} rows"
    plain = [answer.select(DECISIONS.names).cast(_PLAIN) for answer in (left, right)]
    for start in range(0, left.num_rows, _STEP):
        one, other = (table.slice(start, _STEP) for table in plain)
        if not one.equals(other):
            row = next(row for row in range(_STEP) if one.slice(row, 1) != other.slice(row, 1))
            return f"row {start + row}: {one.slice(row, 1).to_pylist()[0]} and {other.slice(row, 1).to_pylist()[0]}"
    return None


def _ranked(column: Column) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Returns the distinct values, sorted, and for each row the index of its value (-1 for null)."""
    encoded = column.unify_dictionaries().combine_chunks()
    numbers = encoded.indices.fill_null(-1).to_numpy().astype(np.int32)
    used = np.unique(numbers[numbers >= 0])
    texts = encoded.dictionary.take(pa.array(used)).to_pylist()
    values = sorted(set(texts))
    rank = np.full(len(encoded.dictionary) + 1, -1, np.int32)
    rank[used] = np.searchsorted(np.array(values), np.array(texts))
    return values, rank[numbers]
