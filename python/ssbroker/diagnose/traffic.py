"""Traffic a batch at a time, that of each instance by itself, with the rows that errors are told by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker.exceptions import SchemaError
from ssbroker.views import without_views

pc: Any = pyarrow.compute  # its stubs know too little of it
INSTANCE: Final = "instance"
_BATCH_ROWS: Final = 1 << 18
_READ: Final = {"conversation_handle", *schemas.CONVERSATIONS.names}


class Part(NamedTuple):
    """Conversations of one instance."""

    instance: str
    """Whose."""
    batch: pa.RecordBatch
    """Their columns."""
    row_of: Callable[[int], int]
    """The row of the traffic that a row of the batch is."""


def parts(traffic: pa.Table, instances: Sequence[str]) -> Iterator[Part]:
    """The traffic of each instance, a batch at a time.

    Args:
        traffic: The conversations; where there are several instances, with a column `instance`.
        instances: The instances that there are.

    Yields:
        The parts.

    Raises:
        SchemaError: The column is missing, or names an instance that there is not.

    Examples:
        >>> traffic = pa.table({"instance": ["A", "B", "A"], "database": ["Sales", "Stores", "Billing"]})
        >>> [(part.instance, part.batch["database"].to_pylist(), part.row_of(0)) for part in parts(traffic, ["A", "B"])]
        [('A', ['Sales', 'Billing'], 0), ('B', ['Stores'], 1)]
    """
    if len(instances) > 1 and INSTANCE not in traffic.schema.names:
        raise SchemaError(
            f"conversations.{INSTANCE}: the column is missing; there are the instances {', '.join(instances)}",
            column=f"conversations.{INSTANCE}",
            expected="string",
        )
    first = 0
    for batch in traffic.to_batches(_BATCH_ROWS):
        if len(instances) == 1:
            yield Part(instances[0], batch, partial(add, first))
        else:
            yield from _by_instance(batch, instances, first)
        first += batch.num_rows


def _by_instance(batch: pa.RecordBatch, instances: Sequence[str], first: int) -> Iterator[Part]:
    named = without_views(batch.column(INSTANCE))
    for instance in pc.unique(named).to_pylist():
        if instance not in instances:
            row = first + pc.index(pc.is_null(named) if instance is None else pc.equal(named, instance), True).as_py()
            raise SchemaError(
                f"conversations.{INSTANCE}, row {row}: there is no instance {instance!r:.80}; expected one of {', '.join(instances)}",
                column=f"conversations.{INSTANCE}",
            )
        rows = pc.indices_nonzero(pc.equal(named, instance))
        columns = {
            # Of what is not read, only the name is looked at.
            name: without_views(column).take(rows) if name in _READ else pa.nulls(len(rows))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            if name != INSTANCE
        }
        yield Part(
            instance, pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), partial(_row, first, rows)
        )


def _row(first: int, rows: Any, row: int) -> int:
    return first + int(rows[row].as_py())
