"""Fragments of plain conversations as rows of the envelope: what was cut stays as it is, and bodies are not looked at again."""

from __future__ import annotations

import hashlib
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from ssbroker.protocol import envelope
from ssbroker.protocol.columns import listed, tabled
from ssbroker.protocol.envelope import CONVERSATION_ERROR, END_OF_DIALOG, ENVELOPE, SEQUENCED, Security
from ssbroker.protocol.turn import Cut

LISTED: Final = (
    "message_sequence_number",
    "fragment_number",
    "fragment_count",
    "message_signature",
    "fragment_signature",
    "message_type_name",
    "message_id",
    "is_end_of_dialog",
    "is_conversation_error",
)
"""What the header and the signatures of a fragment are made of."""
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
_NAMES: Final = (*_OF_ENDPOINTS, "is_sequenced", "security", "acked_sequence_number", "acked_ahead", "header_signature")
_MADE: Final = pa.struct([ENVELOPE.field(name) for name in _NAMES])


def plain_rows(cut: Cut) -> pa.Table:
    """The fragments of conversations that have no keys; the first one of each carries the acknowledgement that is due (P15).

    Args:
        cut: The fragments, at least one, none of a secured conversation.

    Returns:
        The rows (`envelope.ENVELOPE`), in their order.
    """
    rows: list[tuple[Any, ...]] = []
    columns: list[list[Any]] = [listed(cut.rows[name]) for name in LISTED]
    for turn, sequence, number, count, message, fragment, kind, message_id, is_end, is_error in zip(
        cut.turns, *columns, strict=True
    ):
        dialog = turn.dialog
        endpoint = dialog.endpoint
        ack: tuple[int | None, bytes | None] = (None, None)
        if dialog.ack_due is not None:
            ack = dialog.ack
            dialog.paid()
        header = envelope.header_as_bytes(
            endpoint.conversation_id,
            endpoint.broker_instance,
            endpoint.far_broker_instance,
            message_id,
            sequence,
            number,
            count,
            endpoint.lifetime,
            endpoint.is_initiator | SEQUENCED | is_end * END_OF_DIALOG | is_error * CONVERSATION_ERROR,
            endpoint.priority,
            Security.PLAIN,
            envelope.names_as_bytes(
                endpoint.service_name, endpoint.far_service_name, endpoint.service_contract_name, kind
            ),
        )
        signed = envelope.signed_bytes(header, message, fragment, *ack)
        signature = hashlib.md5(signed, usedforsecurity=False).digest()
        rows.append((*_ATTRIBUTES(endpoint), True, Security.PLAIN, *ack, signature))
    made = tabled(rows, _MADE)
    return pa.Table.from_arrays(
        [(made if name in _NAMES else cut.rows)[name] for name in ENVELOPE.names], schema=ENVELOPE
    )
