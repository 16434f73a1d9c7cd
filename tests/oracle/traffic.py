"""Input and state of the reassembly oracle: fragments, limits, messages and directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

Row = dict[str, Any]
"""A row of a result, by column name."""

SEQUENCE_END = 2**63 - 1
SIGNATURE_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A fragment; the key is the session key of its conversation, if there is one."""

    conversation_id: UUID
    is_initiator: bool
    sequence: int
    number: int
    count: int
    body: bytes
    message_signature: bytes | None = None
    fragment_signature: bytes | None = None
    key: bytes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_bytes: int = 0
    """The memory charge of the extra columns of this row (P26)."""

    @property
    def direction(self) -> tuple[bytes, bool]:
        """P12: the conversation id and `is_initiator`."""
        return (self.conversation_id.bytes, self.is_initiator)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a reassembler; None means none."""

    max_pending_bytes: int | None = None
    max_pending_messages: int | None = None
    max_message_bytes: int = 2**31 - 1
    max_fragments_per_message: int | None = None
    max_sequence_distance: int | None = None


@dataclass
class Message:
    """An incomplete or waiting message; count and signature are those of the fragment that arrived first."""

    first: Fragment
    fragments: dict[int, Fragment] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """P14: all numbers from 0 to the count are stored."""
        return len(self.fragments) == self.first.count

    @property
    def by_number(self) -> list[Fragment]:
        """Its fragments, by number."""
        return [self.fragments[number] for number in sorted(self.fragments)]

    @property
    def body(self) -> bytes:
        """The stored parts, concatenated."""
        return b"".join(fragment.body for fragment in self.by_number)

    @property
    def size(self) -> int:
        """The number of stored bytes."""
        return sum(len(fragment.body) for fragment in self.fragments.values())

    def copy(self) -> Self:
        """Returns a copy with its own list of fragments."""
        return type(self)(self.first, dict(self.fragments))


@dataclass
class Direction:
    """P12: the state of one direction of a conversation."""

    next: int = 0
    """The lowest sequence number that is not complete."""
    known: bool = False
    """P26: one of its messages was complete and matched."""
    messages: dict[int, Message] = field(default_factory=dict)
    """Incomplete and waiting messages, by sequence number."""
    numbers: set[int] = field(default_factory=set)
    """P26: with `in_order=False`, the numbers of complete messages after a gap."""

    def copy(self) -> Self:
        """Returns a copy, for trying out a fragment."""
        messages = {sequence: message.copy() for sequence, message in self.messages.items()}
        return type(self)(self.next, self.known, messages, set(self.numbers))
