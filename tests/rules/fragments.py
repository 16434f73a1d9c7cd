"""Two conversations that the tests of reassembly stand in, and short words for their fragments and for what becomes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import ssbroker
from tests.oracle.cutting import cut
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
    """The fragments of a message, both signatures there."""
    return cut(
        body,
        conversation_id=conversation,
        is_initiator=initiator,
        sequence=sequence,
        max_fragment_bytes=size,
        key=key,
    )


def single(sequence: int, *, body: bytes = b"", conversation: UUID = A, initiator: bool = True) -> Fragment:
    """A message of one fragment."""
    return parts(body, sequence, size=len(body) + 1, conversation=conversation, initiator=initiator)[0]


def begun(sequence: int = 0, *, conversation: UUID = A, initiator: bool = True, body: bytes = b"") -> Fragment:
    """The first fragment of two, unsigned: a message that stays incomplete."""
    fragment = single(sequence, conversation=conversation, initiator=initiator)
    return replace(fragment, count=2, body=body, message_signature=None, fragment_signature=None)


def ended(beginning: Fragment, body: bytes = b"") -> Fragment:
    """The fragment that makes a message that was begun whole."""
    return replace(beginning, number=1, body=body)


def unsigned(fragments: list[Fragment]) -> list[Fragment]:
    """Without signatures."""
    return [replace(each, message_signature=None, fragment_signature=None) for each in fragments]


def push(reassembler: ssbroker.Reassembler, *fragments: Fragment) -> ssbroker.Reassembly:
    """Pushes the fragments in one batch."""
    return reassembler.push(fragment_batch(fragments))


def whole(*fragments: Fragment, **options: Any) -> ssbroker.Reassembly:
    """All at once."""
    return ssbroker.reassemble(fragment_batch(fragments), **options)


def messages(result: ssbroker.Reassembly) -> list[tuple[int, bytes]]:
    """Sequence numbers and bodies."""
    return [(row["message_sequence_number"], row["message_body"]) for row in rows_of(result.messages)]


def rejected(result: ssbroker.Reassembly) -> list[tuple[int, int, str]]:
    """Sequence and fragment numbers, and why."""
    return [(row["message_sequence_number"], row["fragment_number"], row["reason"]) for row in rows_of(result.rejected)]


def reasons(result: ssbroker.Reassembly) -> list[str]:
    """Why something was rejected."""
    return [reason for _, _, reason in rejected(result)]


def acknowledged(result: ssbroker.Reassembly) -> list[tuple[int | None, int | None, list[int] | None]]:
    """Up to where all is whole, and what is there of the next."""
    return [
        (row["acked_sequence_number"], row["partial_sequence_number"], row["partial_fragments"])
        for row in rows_of(result.acknowledgements)
    ]


def pending(reassembler: ssbroker.Reassembler) -> list[Row]:
    """What is incomplete or held."""
    return rows_of(reassembler.pending())


def pending_numbers(reassembler: ssbroker.Reassembler) -> list[int]:
    """The sequence numbers of what is incomplete or held."""
    return [row["message_sequence_number"] for row in pending(reassembler)]
