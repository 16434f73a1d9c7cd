"""What goes over the network: a row of the `fragments` schema with the header's columns beside it (B30), and the header as bytes."""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from ssbroker import schemas


class Security(IntEnum):
    """How a fragment is protected."""

    PLAIN = 0
    """Digests only: they find accidents."""
    SIGNED = 1
    """MD5 signatures encrypted with the session key (`integrity="compat"`): the body is in clear."""
    SEALED = 2
    """Header signed and part sealed with keys of the session key."""


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=nullable)


HEADER: Final = (
    _field("is_sequenced", pa.bool_()),
    _field("from_service_name", pa.string()),
    _field("from_broker_instance", schemas.GUID),
    _field("to_service_name", pa.string()),
    _field("to_broker_instance", schemas.GUID, nullable=True),
    _field("service_contract_name", pa.string()),
    _field("message_type_name", pa.string(), nullable=True),
    _field("message_id", schemas.GUID, nullable=True),
    _field("priority", pa.int8()),
    _field("is_end_of_dialog", pa.bool_()),
    _field("is_conversation_error", pa.bool_()),
    _field("lifetime", pa.timestamp("us", tz="UTC"), nullable=True),
    _field("security", pa.int8()),
    _field("acked_sequence_number", pa.int64(), nullable=True),
    _field("acked_ahead", pa.binary(), nullable=True),
    _field("header_signature", pa.binary(16)),
)
"""The header's columns. `acked_ahead` is null where no acknowledgement rides along (P15)."""

ENVELOPE: Final = pa.schema([*schemas.FRAGMENTS, *HEADER])
"""A fragment on its way; an acknowledgement or an error of the broker is one without a number (`is_sequenced` false)."""

NAMES: Final = tuple(ENVELOPE.names)
ABSENT: Final = bytes(16)
SEQUENCE_MAX: Final = 2**63 - 2

_NAMES_KEPT: Final = 1 << 11  # neighbours may bring names of 4 KiB in each row: so many of them take less than 20 MiB
_STABLE: Final = struct.Struct(">16s16s16s16sqiiqHbb")
_RIDING: Final = struct.Struct(">BqI")
_LENGTH: Final = struct.Struct(">I")
_NULL: Final = 0xFFFF_FFFF

INITIATOR, SEQUENCED, END_OF_DIALOG, CONVERSATION_ERROR, BOUND, IDENTIFIED, ENDS = (1 << bit for bit in range(7))
"""Flags of the header as bytes; `BOUND`, `IDENTIFIED` and `ENDS` say that broker id, message id and lifetime are there."""


@lru_cache(maxsize=_NAMES_KEPT)
def names_as_bytes(from_service: str, to_service: str, contract: str, message_type: str | None) -> bytes:
    """The names of a header, each with its length.

    Args:
        from_service: The sender.
        to_service: The receiver.
        contract: The contract.
        message_type: The message's type; None for an acknowledgement.

    Returns:
        The bytes; others for any other names.

    Examples:
        >>> names_as_bytes("a", "b", "", None).hex()
        '0000000161000000016200000000ffffffff'
    """
    parts: list[bytes] = []
    for name in (from_service, to_service, contract, message_type):
        text = b"" if name is None else name.encode()
        parts += (_LENGTH.pack(_NULL if name is None else len(text)), text)
    return b"".join(parts)


def header_as_bytes(
    conversation_id: bytes,
    from_broker: bytes,
    to_broker: bytes | None,
    message_id: bytes | None,
    sequence: int,
    fragment: int,
    count: int,
    lifetime: int | None,
    flags: int,
    priority: int,
    security: int,
    names: bytes,
) -> bytes:
    """What a part is sealed with (P22): every field of the header that is the same each time the fragment is sent.

    Positional and plain, since it is called for every row.

    Args:
        conversation_id: The conversation.
        from_broker: The sender's broker id.
        to_broker: The receiver's, where it is known.
        message_id: The message's id, where it has one.
        sequence: The message's number.
        fragment: The fragment's number.
        count: The count of fragments.
        lifetime: The moment at which the conversation ends, in microseconds, where there is one.
        flags: `INITIATOR`, `SEQUENCED`, `END_OF_DIALOG` and `CONVERSATION_ERROR`.
        priority: The conversation's priority.
        security: How the fragment is protected.
        names: `names_as_bytes`.

    Returns:
        The bytes; others for any other header.

    Examples:
        >>> len(header_as_bytes(bytes(16), bytes(16), None, None, 0, 0, 1, None, 0, 5, 0, b""))
        92
    """
    if to_broker is not None:
        flags |= BOUND
    if message_id is not None:
        flags |= IDENTIFIED
    if lifetime is not None:
        flags |= ENDS
    return (
        _STABLE.pack(
            conversation_id,
            from_broker,
            to_broker or ABSENT,
            message_id or ABSENT,
            sequence,
            fragment,
            count,
            lifetime or 0,
            flags,
            priority,
            security,
        )
        + names
    )


def signed_bytes(
    header: bytes,
    message_signature: bytes | None,
    fragment_signature: bytes | None,
    acked: int | None,
    ahead: bytes | None,
) -> bytes:
    """What a header's signature is of: the header, the signatures of the content, and the acknowledgement that rides along.

    Args:
        header: `header_as_bytes`.
        message_signature: The signature of the message.
        fragment_signature: The signature of the fragment.
        acked: The number up to which all is acknowledged.
        ahead: What is acknowledged beyond; None for no acknowledgement.

    Returns:
        The bytes.

    Examples:
        >>> signed_bytes(b"", None, None, None, None) == signed_bytes(b"", None, None, None, b"")
        False
    """
    there = (
        (message_signature is not None)
        | (fragment_signature is not None) << 1
        | (acked is not None) << 2
        | (ahead is not None) << 3
    )
    riding = _RIDING.pack(there, acked or 0, len(ahead or b""))
    return b"".join((header, riding, message_signature or b"", fragment_signature or b"", ahead or b""))
