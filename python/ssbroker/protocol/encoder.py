"""Encodes fragments, acknowledgements and errors as rows of the envelope, sealed and signed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from ssbroker import _core, _well_known
from ssbroker.protocol import envelope
from ssbroker.protocol.arrow_columns import column_values, tuples_to_table
from ssbroker.protocol.broker_errors import error_body
from ssbroker.protocol.dialog import Dialog, ErrorNotice
from ssbroker.protocol.envelope import ENVELOPE, EnvelopeRow, Protection, rows_to_table
from ssbroker.protocol.send_turn import FastOutbound, FragmentBatch
from ssbroker.protocol.settings import Integrity

_ENDPOINT_COLUMNS: Final = {
    "from_service_name": "service_name",
    "from_broker_instance": "broker_instance",
    "to_service_name": "far_service_name",
    "to_broker_instance": "to_broker_instance",
    "service_contract_name": "service_contract_name",
    "priority": "priority",
    "lifetime": "lifetime",
}
"""Columns whose values are attributes of the sender's endpoint."""
_ATTRIBUTES: Final = attrgetter(*_ENDPOINT_COLUMNS.values())
_ENDPOINT: Final = pa.struct([ENVELOPE.field(name) for name in _ENDPOINT_COLUMNS])
_SIGNATURE: Final = ENVELOPE.field("header_signature")
_SIGNED: Final = pa.schema([field for field in ENVELOPE if field.name != _SIGNATURE.name])


def encode_unsecured(batch: FragmentBatch) -> pa.Table:
    """Encodes fragments of conversations without keys; the first fragment of each conversation carries the acknowledgement, if one is due (P15)."""
    count = batch.rows.num_rows
    acked: list[int | None] = [None] * count
    acked_ahead: list[bytes | None] = [None] * count
    endpoints: list[tuple[Any, ...]] = []
    senders: list[int] = []
    for _, turns_of_dialog in groupby(batch.turns, id):  # each dialog has one turn
        turn, *others = turns_of_dialog
        dialog = turn.dialog
        if dialog.ack_due is not None:
            acked[len(senders)], acked_ahead[len(senders)] = dialog.ack
            dialog.mark_ack_sent()
        senders += [len(endpoints)] * (1 + len(others))
        endpoints.append(_ATTRIBUTES(dialog.endpoint))
    sender_of_row = pa.array(senders, pa.int32())
    columns: dict[str, Any] = {
        **_columns(batch.rows),
        **_columns(tuples_to_table(endpoints, _ENDPOINT).take(sender_of_row)),
        "is_sequenced": pa.repeat(True, count),
        "security": pa.repeat(pa.scalar(Protection.PLAIN, pa.int8()), count),
        "acked_sequence_number": pa.array(acked, pa.int64()),
        "acked_ahead": pa.array(acked_ahead, pa.binary()),
    }
    rows = pa.Table.from_arrays([columns[name] for name in _SIGNED.names], schema=_SIGNED)
    return rows.append_column(_SIGNATURE, _core.header_digests(rows))


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray[Any]]:
    return dict(zip(table.column_names, table.columns, strict=True))


_FRAGMENT_COLUMNS: Final = (
    "message_sequence_number",
    "fragment_number",
    "fragment_count",
    "message_signature",
    "fragment_signature",
    "message_type_name",
    "message_id",
    "is_end_of_dialog",
    "is_conversation_error",
    "message_body",
)


class Encoder:
    """Encodes the output of dialogs as envelope rows.

    Args:
        integrity: How secured dialogs are protected (P22).
    """

    __slots__ = ("_security",)

    def __init__(self, integrity: Integrity) -> None:
        self._security = Protection.SEALED if integrity == "strict" else Protection.SIGNED

    def fragments(self, batch: FragmentBatch | FastOutbound) -> pa.Table:
        """Encodes fragments; the first fragment of each dialog carries the acknowledgement, if one is due (P15)."""
        if isinstance(batch, FastOutbound):
            return encode_fast(batch)
        if not batch.turns:
            return rows_to_table([])
        if all(turn.dialog.outbound_cipher is None for turn in batch.turns):
            return encode_unsecured(batch)
        return rows_to_table(self._encode_rows(batch))

    def _encode_rows(self, batch: FragmentBatch) -> list[EnvelopeRow]:
        columns: list[list[Any]] = [column_values(batch.rows[name]) for name in _FRAGMENT_COLUMNS]
        rows: list[EnvelopeRow] = []
        for turn, sequence, number, count, message, fragment, message_type, message_id, is_end, is_error, body in zip(
            batch.turns, *columns, strict=True
        ):
            dialog = turn.dialog
            endpoint = dialog.endpoint
            row = EnvelopeRow(
                endpoint.conversation_id,
                endpoint.is_initiator,
                sequence,
                number,
                count,
                body,
                message,
                fragment,
                True,
                endpoint.service_name,
                endpoint.broker_instance,
                endpoint.far_service_name,
                endpoint.to_broker_instance,
                endpoint.service_contract_name,
                message_type,
                message_id,
                endpoint.priority,
                is_end,
                is_error,
                endpoint.lifetime,
                Protection.PLAIN,
                None,
                None,
                b"",
            )
            if dialog.ack_due is not None:
                row.acked, row.acked_ahead = dialog.ack
                dialog.mark_ack_sent()
            rows.append(self._protect(row, dialog))
        return rows

    def replies(self, acknowledging: Iterable[Dialog], notices: Iterable[ErrorNotice]) -> pa.Table:
        """Encodes broker errors, and acknowledgements that no fragment has carried."""
        rows = [self._encode_acknowledgement(dialog) for dialog in acknowledging if dialog.ack_due is not None]
        return rows_to_table(rows + [self._encode_notice(notice) for notice in notices])

    def _encode_acknowledgement(self, dialog: Dialog) -> EnvelopeRow:
        row = _unsequenced_row(dialog)
        row.acked, row.acked_ahead = dialog.ack
        dialog.mark_ack_sent()
        return self._protect(row, dialog)

    def _encode_notice(self, notice: ErrorNotice) -> EnvelopeRow:
        original = notice.row
        if notice.dialog is not None:
            row = _unsequenced_row(notice.dialog)
            if original is not None:
                row.to_broker = original.from_broker
        elif original is not None:
            row = _reply_row(original)
        else:
            raise ValueError(f"expected a notice with a row or a dialog, got {notice!r}")
        row.body = error_body(notice.code, notice.text)
        row.message_type = _well_known.ERROR
        row.is_error = True
        return self._protect(row, notice.dialog)

    def _protect(self, row: EnvelopeRow, dialog: Dialog | None) -> EnvelopeRow:
        cipher = None if dialog is None else dialog.outbound_cipher
        if cipher is not None:
            row.security = self._security
        header = row.header
        signed = row.signature_input(header)
        if cipher is None or row.security != Protection.SEALED:
            digested = signed if row.is_sequenced else signed + row.body
            row.header_signature = hashlib.md5(digested, usedforsecurity=False).digest()
            return row
        row.header_signature = cipher.sign_header(signed)
        if row.is_sequenced:
            bound = row.to_broker is not None
            row.body = cipher.seal(
                row.body, sequence=row.sequence, fragment=row.fragment, is_bound=bound, header=header
            )
        elif row.message_type is not None:
            row.body = cipher.seal_notice(row.body, header=header)
        return row


def _unsequenced_row(dialog: Dialog) -> EnvelopeRow:
    endpoint = dialog.endpoint
    return EnvelopeRow(
        endpoint.conversation_id,
        endpoint.is_initiator,
        0,
        0,
        1,
        b"",
        None,
        None,
        False,
        endpoint.service_name,
        endpoint.broker_instance,
        endpoint.far_service_name,
        endpoint.to_broker_instance,
        endpoint.service_contract_name,
        None,
        None,
        endpoint.priority,
        False,
        False,
        endpoint.lifetime,
        Protection.PLAIN,
        None,
        None,
        b"",
    )


def _reply_row(asked: EnvelopeRow) -> EnvelopeRow:
    """Returns the base of a reply to a row whose conversation has no endpoint here."""
    return EnvelopeRow(
        asked.conversation_id,
        not asked.is_initiator,
        0,
        0,
        1,
        b"",
        None,
        None,
        False,
        asked.to_service,
        asked.to_broker or envelope.NULL_GUID,
        asked.from_service,
        asked.from_broker,
        asked.contract,
        None,
        None,
        asked.priority,
        False,
        False,
        asked.lifetime,
        Protection.PLAIN,
        None,
        None,
        b"",
    )


def encode_fast(batch: FastOutbound) -> pa.Table:
    """Encodes whole messages as envelope rows; the first row of each conversation carries the acknowledgement, if one is due (P15)."""
    senders = []
    for turn, waiting, going in batch.runs:
        dialog, endpoint, acknowledgement = turn.dialog, turn.dialog.endpoint, None
        if going and dialog.ack_due is not None:
            acknowledgement = dialog.ack
            dialog.mark_ack_sent()
        names = (endpoint.service_name, endpoint.far_service_name, endpoint.service_contract_name)
        brokers = (endpoint.broker_instance, endpoint.to_broker_instance)
        senders.append((waiting, going, names, *brokers, endpoint.priority, endpoint.lifetime, acknowledgement))
    return pa.Table.from_batches(_core.outgoing_rows(batch.messages, senders))
