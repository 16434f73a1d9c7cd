"""Truth values of 8 bits, Arrow's extension type `arrow.bool8`: DuckDB hands them over with `arrow_lossless_conversion`."""

from __future__ import annotations

from typing import Final, TypeVar

import pyarrow as pa

_READ: Final = ("is_broker_enabled", "is_initiator")
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def with_plain_bools(rows: _Rows) -> _Rows:
    """The rows with plain truth values in the columns that are read; further ones are carried as they are.

    Examples:
        >>> truth = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
        >>> with_plain_bools(pa.table({"is_initiator": truth})).to_pylist()[1]
        {'is_initiator': False}
    """
    for number, field in enumerate(rows.schema):
        if field.name in _READ and isinstance(field.type, pa.Bool8Type):
            plain = rows.column(number).cast(pa.bool_())
            rows = rows.set_column(number, field.with_type(pa.bool_()), plain)
    return rows
