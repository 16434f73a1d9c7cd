"""The latest acknowledgement of each direction, however many pushes the fragments came in."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas

pc: Any = pyarrow.compute  # its stubs do not know conditions on lists
_DIRECTION: Final = ["conversation_id", "is_initiator"]
_PLACE: Final = "place"
_WAITING_MAX: Final = 200_000


class Acknowledged:
    """Keeps the latest acknowledgement of each direction, in memory that grows with the directions only."""

    def __init__(self) -> None:
        self._latest = schemas.ACKNOWLEDGEMENTS.empty_table()
        self._waiting: list[pa.Table] = []

    def add(self, acknowledgements: pa.Table) -> None:
        """Adds those of one push.

        Examples:
            >>> row = {"conversation_id": bytes(16), "is_initiator": True, "partial_sequence_number": None, "partial_fragments": None}
            >>> acknowledged = Acknowledged()
            >>> for number in (None, 0):
            ...     pushed = [row | {"acked_sequence_number": number}]
            ...     acknowledged.add(pa.Table.from_pylist(pushed, schema=schemas.ACKNOWLEDGEMENTS))
            >>> acknowledged.table(pending=schemas.PENDING.empty_table())["acked_sequence_number"].to_pylist()
            [0]
        """
        self._waiting.append(acknowledgements)
        if sum(table.num_rows for table in self._waiting) > max(_WAITING_MAX, self._latest.num_rows):
            self._sum_up()

    def table(self, *, pending: pa.Table) -> pa.Table:
        """One row for each direction, in the order in which they first came.

        What it tells of a message that is being assembled must still be so: a later push may have rejected the whole of it without
        another acknowledgement. Its sender would never send it again.

        Args:
            pending: What is incomplete at the end.

        Returns:
            The acknowledgements.
        """
        self._sum_up()
        numbers, fragments = self._latest["partial_sequence_number"], self._latest["partial_fragments"]
        still_so = self._still_so(pending)
        columns = [
            *(self._latest[name] for name in (*_DIRECTION, "acked_sequence_number")),
            pc.if_else(still_so, numbers, None),
            pc.if_else(still_so, fragments, pa.scalar(None, fragments.type)),
        ]
        return pa.Table.from_arrays(columns, schema=schemas.ACKNOWLEDGEMENTS)

    def _sum_up(self) -> None:
        table = pa.concat_tables([self._latest, *self._waiting]).combine_chunks()
        self._waiting = []
        numbered = table.select(_DIRECTION).append_column(_PLACE, pa.array(range(table.num_rows), pa.int64()))
        grouped = numbered.group_by(_DIRECTION, use_threads=False)  # so that the directions keep their order
        self._latest = table.take(grouped.aggregate([(_PLACE, "max")])[f"{_PLACE}_max"])

    def _still_so(self, pending: pa.Table) -> pa.Array[Any]:
        first: dict[tuple[bytes, bool], tuple[int, int]] = {}
        incomplete = pending.filter(pc.is_valid(pending["first_missing_fragment"]))
        for row in incomplete.select([*_DIRECTION, "message_sequence_number", "received_fragments"]).to_pylist():
            conversation, is_initiator, number, received = row.values()
            first.setdefault((conversation, is_initiator), (number, received))
        counts = pc.list_value_length(self._latest["partial_fragments"])
        told = self._latest.select([*_DIRECTION, "partial_sequence_number"]).append_column("count", counts)
        return pa.array([first.get((id_, to)) == (number, count) for id_, to, number, count in _rows(told)], pa.bool_())


def _rows(table: pa.Table) -> Any:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
