"""The envelope: the columns of a fragment on the network, and its header bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core, schemas
from ssbroker.protocol.ack_ranges import unpack_ack_ranges
from ssbroker.protocol.arrow_columns import column_values, tuples_to_table
from ssbroker.protocol.storage import EndpointKey


class Protection(IntEnum):
    """How a fragment is protected."""

    PLAIN = 0
    """Digests only, which detect accidental damage."""
    SIGNED = 1
    """MD5 signatures encrypted with the session key (`integrity="compat"`); the body is not encrypted."""
    SEALED = 2
    """The header is signed and the body is sealed, with keys derived from the session key."""


def _field(name: str, data_type: pa.DataType, *, nullable: bool = False) -> pa.Field[Any]:
    return pa.field(name, data_type, nullable=nullable)


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
"""The columns of the header. `acked_ahead` is null if the row carries no acknowledgement (P15)."""

ENVELOPE: Final = pa.schema([*schemas.FRAGMENTS, *HEADER])
"""A fragment in transit. An acknowledgement or a broker error is a row without a sequence number (`is_sequenced` is false)."""

NO_ROWS: Final = pa.Table.from_batches([], ENVELOPE)
NAMES: Final = tuple(ENVELOPE.names)
NULL_GUID: Final = bytes(16)
SEQUENCE_MAX: Final = 2**63 - 2

_CACHED_NAMES: Final = 1 << 11  # peers may send names of 4 KiB in each row; this many entries need less than 20 MiB
_STABLE: Final = struct.Struct(">16s16s16s16sqiiqHbb")
_ACKNOWLEDGEMENT: Final = struct.Struct(">BqI")
_LENGTH: Final = struct.Struct(">I")
_NULL: Final = 0xFFFF_FFFF

INITIATOR, SEQUENCED, END_OF_DIALOG, CONVERSATION_ERROR, HAS_TO_BROKER, HAS_MESSAGE_ID, HAS_LIFETIME = (
    1 << bit for bit in range(7)
)
"""The flags in the header bytes; the last three mean that the broker id, message id and lifetime are present."""


@lru_cache(maxsize=_CACHED_NAMES)
def encode_names(from_service: str, to_service: str, contract: str, message_type: str | None) -> bytes:
    """Encodes the names of a header, each with its length; `message_type` is None for an acknowledgement.

    Examples:
        >>> encode_names("a", "b", "", None).hex()
        '0000000161000000016200000000ffffffff'
    """
    parts: list[bytes] = []
    for name in (from_service, to_service, contract, message_type):
        text = b"" if name is None else name.encode()
        parts += (_LENGTH.pack(_NULL if name is None else len(text)), text)
    return b"".join(parts)


def encode_header(
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
    """Encodes the header fields that do not change between transmissions; a fragment is sealed with them (P22).

    The arguments are positional because this is called for every row.

    Args:
        conversation_id: The conversation.
        from_broker: The sender's broker id.
        to_broker: The receiver's broker id, if known.
        message_id: The message id, if the message has one.
        sequence: The message number.
        fragment: The fragment number.
        count: The number of fragments of the message.
        lifetime: When the conversation expires, in microseconds; None for never.
        flags: `INITIATOR`, `SEQUENCED`, `END_OF_DIALOG` and `CONVERSATION_ERROR`.
        priority: The priority of the conversation.
        security: How the fragment is protected.
        names: The result of `encode_names`.

    Returns:
        The encoded header; different headers produce different bytes.

    Examples:
        >>> len(encode_header(bytes(16), bytes(16), None, None, 0, 0, 1, None, 0, 5, 0, b""))
        92
    """
    if to_broker is not None:
        flags |= HAS_TO_BROKER
    if message_id is not None:
        flags |= HAS_MESSAGE_ID
    if lifetime is not None:
        flags |= HAS_LIFETIME
    return (
        _STABLE.pack(
            conversation_id,
            from_broker,
            to_broker or NULL_GUID,
            message_id or NULL_GUID,
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


def signature_input(
    header: bytes,
    message_signature: bytes | None,
    fragment_signature: bytes | None,
    acked: int | None,
    ahead: bytes | None,
) -> bytes:
    """Returns the bytes that a header signature covers: header, content signatures and acknowledgement.

    Args:
        header: The result of `encode_header`.
        message_signature: The signature of the message.
        fragment_signature: The signature of the fragment.
        acked: The last message acknowledged in order.
        ahead: The packed ranges acknowledged beyond `acked`; None for no acknowledgement.

    Returns:
        The bytes that the signature covers.

    Examples:
        >>> signature_input(b"", None, None, None, None) == signature_input(b"", None, None, None, b"")
        False
    """
    present = (
        (message_signature is not None)
        | (fragment_signature is not None) << 1
        | (acked is not None) << 2
        | (ahead is not None) << 3
    )
    acknowledgement = _ACKNOWLEDGEMENT.pack(present, acked or 0, len(ahead or b""))
    return b"".join((header, acknowledgement, message_signature or b"", fragment_signature or b"", ahead or b""))


@dataclass(slots=True)
class EnvelopeRow:
    """A row of `envelope.ENVELOPE`. The attributes are the columns, in the same order, and `has_valid_digest`.

    Attributes:
        has_valid_digest: Whether the header signature is a matching MD5 digest, as in an unsecured conversation. The
            digest of a broker error also covers the body.
    """

    conversation_id: bytes
    is_initiator: bool
    sequence: int
    fragment: int
    count: int
    body: bytes
    message_signature: bytes | None
    fragment_signature: bytes | None
    is_sequenced: bool
    from_service: str
    from_broker: bytes
    to_service: str
    to_broker: bytes | None
    contract: str
    message_type: str | None
    message_id: bytes | None
    priority: int
    is_end: bool
    is_error: bool
    lifetime: int | None
    security: int
    acked: int | None
    acked_ahead: bytes | None
    header_signature: bytes
    has_valid_digest: bool = False

    @property
    def header(self) -> bytes:
        """The encoded header fields that do not change between transmissions."""
        flags = self.is_initiator | self.is_sequenced << 1 | self.is_end << 2 | self.is_error << 3
        names = encode_names(self.from_service, self.to_service, self.contract, self.message_type)
        return encode_header(
            self.conversation_id,
            self.from_broker,
            self.to_broker,
            self.message_id,
            self.sequence,
            self.fragment,
            self.count,
            self.lifetime,
            flags,
            self.priority,
            self.security,
            names,
        )

    def signature_input(self, header: bytes) -> bytes:
        """Returns the bytes that the header signature covers, given the encoded header."""
        return signature_input(header, self.message_signature, self.fragment_signature, self.acked, self.acked_ahead)

    @property
    def is_well_formed(self) -> bool:
        """Whether the fields are consistent with each other."""
        if self.acked_ahead is None:
            rides = self.acked is None
        else:
            rides = unpack_ack_ranges(self.acked_ahead) is not None and (self.acked is None or self.acked >= 0)
        if not rides or (self.is_end and self.is_error):
            return False
        if self.is_sequenced:
            numbered = 0 <= self.sequence <= SEQUENCE_MAX and 0 <= self.fragment < self.count
            return self.message_type is not None and numbered
        if self.message_type is None:  # an acknowledgement, whose signature does not cover a body
            return (self.sequence, self.fragment, self.count) == (0, 0, 1) and not self.is_error and not self.body
        return (self.sequence, self.fragment, self.count) == (0, 0, 1) and self.is_error


_VALUES: Final = attrgetter(*EnvelopeRow.__slots__[:-1])
_ROW: Final = pa.struct(list(ENVELOPE))
_LIFETIME: Final = ENVELOPE.get_field_index("lifetime")


def rows_to_table(rows: Sequence[EnvelopeRow]) -> pa.Table:
    """Converts rows to a table (`ENVELOPE`)."""
    return tuples_to_table([_VALUES(row) for row in rows], _ROW)


def table_to_rows(table: pa.Table) -> list[EnvelopeRow]:
    """Converts a table (`ENVELOPE`) to rows."""
    if not table.num_rows:
        return []
    found = list(table.columns)
    if found[_LIFETIME].null_count < table.num_rows:
        found[_LIFETIME] = found[_LIFETIME].cast(pa.int64())
    is_digested: Any = pc.equal(table["header_signature"], _core.header_digests(table))
    columns: list[list[Any]] = [column_values(column) for column in (*found, is_digested)]
    return [EnvelopeRow(*values) for values in zip(*columns, strict=True)]


def sender_keys(rows: pa.Table) -> Iterator[EndpointKey]:
    """Returns the key of the sending endpoint of each row."""
    return zip(column_values(rows["conversation_id"]), column_values(rows["is_initiator"]), strict=True)


def receiver_keys(rows: pa.Table) -> Iterator[EndpointKey]:
    """Returns the key of the receiving endpoint of each row."""
    return ((conversation_id, not side) for conversation_id, side in sender_keys(rows))


SenderKey: TypeAlias = tuple[bytes, bool, bytes | None]
"""A conversation, whether the sender is the initiator, and the broker id that the sender's rows name, if any."""


_SENDER: Final = ("conversation_id", "is_initiator", "to_broker_instance", "security")


def sender_runs(rows: pa.Table) -> tuple[list[tuple[SenderKey, int]], bool]:
    """Returns the runs of consecutive rows with the same sender, each with its length, and whether all rows are unsecured."""
    found, are_plain = _core.sender_runs(rows.select(_SENDER))
    return [((conversation_id, side, broker), number) for conversation_id, side, broker, number in found], are_plain
