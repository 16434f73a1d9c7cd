"""Two conversations for reassembly tests, and helpers that create fragments and read results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import ssbroker
from tests.oracle.fragmentation import fragment_message
from tests.oracle.traffic import Fragment, Row
from tests.worlds.fragment_tables import fragment_batch, rows_of

A = UUID("aaaaaaaa-0000-4000-8000-000000000001")
B = UUID("bbbbbbbb-0000-4000-8000-000000000002")
KEY = b"the key of A, 16"
OTHER_KEY = b"the key of B, 16"


def parts(
    body: bytes,
    sequence: int = 0,
    *,
    size: int = 2,
    conversation: UUID = A,
    initiator: bool = True,
    key: bytes | None = None,
) -> list[Fragment]:
    """Returns the signed fragments of a message."""
    return fragment_message(
        body,
        conversation_id=conversation,
        is_initiator=initiator,
        sequence=sequence,
        max_fragment_bytes=size,
        key=key,
    )


def single(sequence: int, *, body: bytes = b"", conversation: UUID = A, initiator: bool = True) -> Fragment:
    """Returns a message of one fragment."""
    return parts(body, sequence, size=len(body) + 1, conversation=conversation, initiator=initiator)[0]


def first_of_two(sequence: int = 0, *, conversation: UUID = A, initiator: bool = True, body: bytes = b"") -> Fragment:
    """Returns the first of two fragments of a message, unsigned."""
    fragment = single(sequence, conversation=conversation, initiator=initiator)
    return replace(fragment, count=2, body=body, message_signature=None, fragment_signature=None)


def second_of_two(first: Fragment, body: bytes = b"") -> Fragment:
    """Returns the fragment that completes a message."""
    return replace(first, number=1, body=body)


def unsigned(fragments: list[Fragment]) -> list[Fragment]:
    """Returns the fragments without signatures."""
    return [replace(each, message_signature=None, fragment_signature=None) for each in fragments]


def push(reassembler: ssbroker.Reassembler, *fragments: Fragment) -> ssbroker.Reassembly:
    """Pushes the fragments in one batch."""
    return reassembler.push(fragment_batch(fragments))


def reassemble_all(*fragments: Fragment, **options: Any) -> ssbroker.Reassembly:
    """Reassembles the fragments in one call."""
    return ssbroker.reassemble(fragment_batch(fragments), **options)


def messages(result: ssbroker.Reassembly) -> list[tuple[int, bytes]]:
    """Returns sequence numbers and bodies."""
    return [(row["message_sequence_number"], row["message_body"]) for row in rows_of(result.messages)]


def rejected(result: ssbroker.Reassembly) -> list[tuple[int, int, str]]:
    """Returns sequence number, fragment number and reason of rejected fragments."""
    return [(row["message_sequence_number"], row["fragment_number"], row["reason"]) for row in rows_of(result.rejected)]


def reasons(result: ssbroker.Reassembly) -> list[str]:
    """Returns the reasons of rejected fragments."""
    return [reason for _, _, reason in rejected(result)]


def acknowledged(result: ssbroker.Reassembly) -> list[tuple[int | None, int | None, list[int] | None]]:
    """Returns the acknowledgements: the acknowledged number, and number and fragments of the first incomplete message."""
    return [
        (row["acked_sequence_number"], row["partial_sequence_number"], row["partial_fragments"])
        for row in rows_of(result.acknowledgements)
    ]


def pending(reassembler: ssbroker.Reassembler) -> list[Row]:
    """Returns the incomplete and waiting messages."""
    return rows_of(reassembler.pending())


def pending_numbers(reassembler: ssbroker.Reassembler) -> list[int]:
    """Returns the sequence numbers of incomplete and waiting messages."""
    return [row["message_sequence_number"] for row in pending(reassembler)]
