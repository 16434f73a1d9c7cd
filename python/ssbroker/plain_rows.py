"""Rows as they are meant, without what a library has added to them."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import pyarrow as pa

from ssbroker.bool8 import with_plain_bools

_INDEX: Final = re.compile(r"__index_level_[0-9]+__")
"""What Arrow calls an index of pandas that has no name; pandas makes one where rows are left out."""
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def plain(rows: _Rows) -> _Rows:
    """The rows with plain truth values, and without an index that nobody has named (K28).

    Examples:
        >>> plain(pa.table({"name": ["Orders"], "__index_level_0__": [7]})).to_pylist()
        [{'name': 'Orders'}]
    """
    names = rows.schema.names
    named = [number for number, name in enumerate(names) if not _INDEX.fullmatch(name)]
    return with_plain_bools(rows if len(named) == len(names) else rows.select(named))
