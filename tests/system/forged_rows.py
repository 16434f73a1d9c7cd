"""Forged rows by an attacker who knows the format and everything public, but no key."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from ssbroker.protocol.ack_ranges import pack_ack_ranges
from ssbroker.protocol.envelope import ENVELOPE, rows_to_table, table_to_rows
from tests.system.controlled_peer import Row


def forged(row: Row, **columns: Any) -> Row:
    """Returns a row with changed columns and recomputed digests, which needs no key."""
    changed = {**row, **columns}
    digest = hashlib.md5(changed["message_body"], usedforsecurity=False).digest()
    if changed["is_sequenced"]:
        changed["message_signature"] = digest
        changed["fragment_signature"] = digest
    envelope = {name: changed[name] for name in ENVELOPE.names}
    (found,) = table_to_rows(pa.Table.from_pylist([envelope], schema=ENVELOPE))
    covered = (
        found.signature_input(found.header) if found.is_sequenced else found.signature_input(found.header) + found.body
    )
    found.header_signature = hashlib.md5(covered, usedforsecurity=False).digest()
    return {**changed, **rows_to_table([found]).to_pylist()[0]}


def acknowledging(row: Row, number: int, **columns: Any) -> Row:
    """Returns an acknowledgement by the receiver of a row, of all messages up to a number."""
    return forged(
        row,
        **{
            "is_initiator": not row["is_initiator"],
            "is_sequenced": False,
            "message_sequence_number": 0,
            "fragment_number": 0,
            "fragment_count": 1,
            "message_body": b"",
            "message_signature": None,
            "fragment_signature": None,
            "message_type_name": None,
            "message_id": None,
            "is_end_of_dialog": False,
            "from_service_name": row["to_service_name"],
            "from_broker_instance": row["to_broker_instance"] or bytes(16),
            "to_service_name": row["from_service_name"],
            "to_broker_instance": row["from_broker_instance"],
            "acked_sequence_number": number,
            "acked_ahead": pack_ack_ranges(()),
            **columns,
        },
    )
