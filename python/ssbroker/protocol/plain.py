"""Fragments of plain conversations as rows of the envelope: what was cut stays as it is, and bodies are not looked at again."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from ssbroker import _core
from ssbroker.protocol.columns import tabled
from ssbroker.protocol.envelope import ENVELOPE, Security
from ssbroker.protocol.turn import Cut

_OF_ENDPOINTS: Final = {
    "from_service_name": "service_name",
    "from_broker_instance": "broker_instance",
    "to_service_name": "far_service_name",
    "to_broker_instance": "far_broker_instance",
    "service_contract_name": "service_contract_name",
    "priority": "priority",
    "lifetime": "lifetime",
}
"""Columns whose values are attributes of the sender's endpoint."""
_ATTRIBUTES: Final = attrgetter(*_OF_ENDPOINTS.values())
_ENDPOINT: Final = pa.struct([ENVELOPE.field(name) for name in _OF_ENDPOINTS])
_SIGNATURE: Final = ENVELOPE.field("header_signature")
_SIGNED: Final = pa.schema([field for field in ENVELOPE if field.name != _SIGNATURE.name])


def plain_rows(cut: Cut) -> pa.Table:
    """The fragments of conversations that have no keys; the first one of each carries the acknowledgement that is due (P15).

    Args:
        cut: The fragments, at least one, none of a secured conversation.

    Returns:
        The rows (`envelope.ENVELOPE`), in their order.
    """
    count = cut.rows.num_rows
    acked: list[int | None] = [None] * count
    ahead: list[bytes | None] = [None] * count
    endpoints: list[tuple[Any, ...]] = []
    senders: list[int] = []
    for _, rows_of_one in groupby(cut.turns, id):  # each has its turn once
        turn, *others = rows_of_one
        dialog = turn.dialog
        if dialog.ack_due is not None:
            acked[len(senders)], ahead[len(senders)] = dialog.ack
            dialog.paid()
        senders += [len(endpoints)] * (1 + len(others))
        endpoints.append(_ATTRIBUTES(dialog.endpoint))
    of_rows = pa.array(senders, pa.int32())
    columns: dict[str, Any] = {
        **_columns(cut.rows),
        **_columns(tabled(endpoints, _ENDPOINT).take(of_rows)),
        "is_sequenced": pa.repeat(True, count),
        "security": pa.repeat(pa.scalar(Security.PLAIN, pa.int8()), count),
        "acked_sequence_number": pa.array(acked, pa.int64()),
        "acked_ahead": pa.array(ahead, pa.binary()),
    }
    rows = pa.Table.from_arrays([columns[name] for name in _SIGNED.names], schema=_SIGNED)
    return rows.append_column(_SIGNATURE, _core.header_digests(rows))


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray[Any]]:
    return dict(zip(table.column_names, table.columns, strict=True))
