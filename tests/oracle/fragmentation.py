"""P13: fragmentation and signing of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.oracle.signatures import fragment_signature, message_signature
from tests.oracle.traffic import Fragment


def split_body(body: bytes, max_fragment_bytes: int) -> list[bytes]:
    """P13: splits a body into parts of that size; the last may be shorter, and an empty body is one empty part."""
    return [body[at : at + max_fragment_bytes] for at in range(0, len(body), max_fragment_bytes)] or [b""]


def fragment_message(
    body: bytes,
    *,
    conversation_id: UUID,
    is_initiator: bool,
    sequence: int,
    max_fragment_bytes: int,
    key: bytes | None = None,
    extra: Mapping[str, Any] | None = None,
) -> list[Fragment]:
    """P13: returns the fragments of one message, with both signatures; extra columns are repeated."""
    parts = split_body(body, max_fragment_bytes)
    signature = message_signature(
        body, conversation_id=conversation_id, is_initiator=is_initiator, sequence=sequence, key=key
    )
    return [
        Fragment(
            conversation_id=conversation_id,
            is_initiator=is_initiator,
            sequence=sequence,
            number=number,
            count=len(parts),
            body=part,
            message_signature=signature,
            fragment_signature=fragment_signature(
                part,
                conversation_id=conversation_id,
                is_initiator=is_initiator,
                sequence=sequence,
                number=number,
                count=len(parts),
                signature=signature,
                key=key,
            ),
            key=key,
            extra=extra or {},
        )
        for number, part in enumerate(parts)
    ]
