"""Encodes fragments, acknowledgements and errors as rows of the envelope, sealed and signed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Final
from xml.sax.saxutils import escape

import pyarrow as pa

from ssbroker import _core
from ssbroker.protocol import envelope, message_types
from ssbroker.protocol.config import Integrity
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import ENVELOPE, EnvelopeRow, Protection, column_values, rows_to_table, tuples_to_table
from ssbroker.protocol.receiver import ErrorNotice
from ssbroker.protocol.sender import FastOutbound, FragmentedTurn, departing

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


def plain_rows(cut: FragmentedTurn) -> pa.Table:
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
        **_columns(tuples_to_table(endpoints, _ENDPOINT).take(of_rows)),
        "is_sequenced": pa.repeat(True, count),
        "security": pa.repeat(pa.scalar(Protection.PLAIN, pa.int8()), count),
        "acked_sequence_number": pa.array(acked, pa.int64()),
        "acked_ahead": pa.array(ahead, pa.binary()),
    }
    rows = pa.Table.from_arrays([columns[name] for name in _SIGNED.names], schema=_SIGNED)
    return rows.append_column(_SIGNATURE, _core.header_digests(rows))


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray[Any]]:
    return dict(zip(table.column_names, table.columns, strict=True))


_OF_FRAGMENTS: Final = (
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


def error_body(code: int, text: str) -> bytes:
    """The body of an Error message (fact 131).

    Args:
        code: Service Broker's number, negative where the broker says it.
        text: What it means.

    Returns:
        The XML.

    Examples:
        >>> error_body(-8462, "gone").decode()
        '<Error xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/Error"><Code>-8462</Code><Description>gone</Description></Error>'
    """
    return f'<Error xmlns="{message_types.ERROR}"><Code>{code}</Code><Description>{escape(text)}</Description></Error>'.encode()


class Encoder:
    """Makes rows of what dialogs send.

    Args:
        integrity: How secured dialogs are protected (P22).
    """

    __slots__ = ("_security",)

    def __init__(self, integrity: Integrity) -> None:
        self._security = Protection.SEALED if integrity == "strict" else Protection.SIGNED

    def fragments(self, cut: FragmentedTurn | FastOutbound) -> pa.Table:
        """The fragments of messages; the first one of each dialog carries the acknowledgement that is due (P15)."""
        if isinstance(cut, FastOutbound):
            return departing(cut)
        if not cut.turns:
            return rows_to_table([])
        if all(turn.dialog.outbound is None for turn in cut.turns):
            return plain_rows(cut)
        return rows_to_table(self._one_by_one(cut))

    def _one_by_one(self, cut: FragmentedTurn) -> list[EnvelopeRow]:
        columns: list[list[Any]] = [column_values(cut.rows[name]) for name in _OF_FRAGMENTS]
        rows: list[EnvelopeRow] = []
        for turn, sequence, number, count, message, fragment, kind, message_id, is_end, is_error, body in zip(
            cut.turns, *columns, strict=True
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
                endpoint.far_broker_instance,
                endpoint.service_contract_name,
                kind,
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
                dialog.paid()
            rows.append(self._secured(row, dialog))
        return rows

    def answers(self, owing: Iterable[Dialog], notices: Iterable[ErrorNotice]) -> pa.Table:
        """Acknowledgements that go alone, and errors of the broker; whose acknowledgement a fragment has carried owes nothing any more."""
        rows = [self._acknowledgement(dialog) for dialog in owing if dialog.ack_due is not None]
        return rows_to_table(rows + [self._notice(notice) for notice in notices])

    def _acknowledgement(self, dialog: Dialog) -> EnvelopeRow:
        row = _unsequenced(dialog)
        row.acked, row.acked_ahead = dialog.ack
        dialog.paid()
        return self._secured(row, dialog)

    def _notice(self, notice: ErrorNotice) -> EnvelopeRow:
        asked = notice.row
        if notice.dialog is not None:
            row = _unsequenced(notice.dialog)
            if asked is not None:
                row.to_broker = asked.from_broker
        elif asked is not None:
            row = _answer(asked)
        else:
            raise ValueError(notice)
        row.body = error_body(notice.code, notice.text)
        row.message_type = message_types.ERROR
        row.is_error = True
        return self._secured(row, notice.dialog)

    def _secured(self, row: EnvelopeRow, dialog: Dialog | None) -> EnvelopeRow:
        secured = None if dialog is None else dialog.outbound
        if secured is not None:
            row.security = self._security
        header = row.header
        signed = row.signature_input(header)
        if secured is None or row.security != Protection.SEALED:
            covered = signed if row.is_sequenced else signed + row.body
            row.header_signature = hashlib.md5(covered, usedforsecurity=False).digest()
            return row
        row.header_signature = secured.sign_header(signed)
        if row.is_sequenced:
            bound = row.to_broker is not None
            row.body = secured.seal(
                row.body, sequence=row.sequence, fragment=row.fragment, is_bound=bound, header=header
            )
        elif row.message_type is not None:
            row.body = secured.seal_notice(row.body, header=header)
        return row


def _unsequenced(dialog: Dialog) -> EnvelopeRow:
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
        endpoint.far_broker_instance,
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


def _answer(asked: EnvelopeRow) -> EnvelopeRow:
    """What goes back to who sent a row for which there is no endpoint."""
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
