"""Fragments of a batch from the network, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.protocol import envelope
from ssbroker.protocol.acknowledgement import unpacked
from ssbroker.protocol.columns import listed, tabled
from ssbroker.protocol.envelope import ENVELOPE


@dataclass(slots=True)
class Row:
    """A fragment as it came; the attributes are the columns of `envelope.ENVELOPE`, in their order, and one more.

    Attributes:
        is_digested: Whether the header's signature is its MD5, as in a plain conversation; an error of the broker has its body in it.
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
    ahead: bytes | None
    signature: bytes
    is_digested: bool = False

    @property
    def header(self) -> bytes:
        """All that stays the same whenever the fragment is sent, as bytes."""
        flags = self.is_initiator | self.is_sequenced << 1 | self.is_end << 2 | self.is_error << 3
        names = envelope.names_as_bytes(self.from_service, self.to_service, self.contract, self.message_type)
        return envelope.header_as_bytes(
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

    def signed(self, header: bytes) -> bytes:
        """What the header's signature is of.

        Args:
            header: That of this row.
        """
        return envelope.signed_bytes(header, self.message_signature, self.fragment_signature, self.acked, self.ahead)

    @property
    def is_well_formed(self) -> bool:
        """Whether the fields agree with each other (fact 84)."""
        if self.ahead is None:
            rides = self.acked is None
        else:
            rides = unpacked(self.ahead) is not None and (self.acked is None or self.acked >= 0)
        if not rides or (self.is_end and self.is_error):
            return False
        if self.is_sequenced:
            numbered = 0 <= self.sequence <= envelope.SEQUENCE_MAX and 0 <= self.fragment < self.count
            return self.message_type is not None and numbered
        if self.message_type is None:  # an acknowledgement, whose signature has no body in it
            return (self.sequence, self.fragment, self.count) == (0, 0, 1) and not self.is_error and not self.body
        return (self.sequence, self.fragment, self.count) == (0, 0, 1) and self.is_error


_VALUES: Final = attrgetter(*Row.__slots__[:-1])
_ROW: Final = pa.struct(list(ENVELOPE))
_LIFETIME: Final = ENVELOPE.get_field_index("lifetime")


def table_of(rows: Sequence[Row]) -> pa.Table:
    """A batch of rows.

    Args:
        rows: The rows.

    Returns:
        The same, as `envelope.ENVELOPE`.

    Examples:
        >>> rows_of(table_of([])) == []
        True
    """
    return tabled([_VALUES(row) for row in rows], _ROW)


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a batch.

    Args:
        table: Rows of `envelope.ENVELOPE`.

    Returns:
        The same, as objects.

    Examples:
        >>> rows_of(ENVELOPE.empty_table())
        []
    """
    found = list(table.columns)
    if found[_LIFETIME].null_count < table.num_rows:
        found[_LIFETIME] = found[_LIFETIME].cast(pa.int64())
    is_digested: Any = pc.equal(table["header_signature"], _core.header_digests(table))
    columns: list[list[Any]] = [listed(column) for column in (*found, is_digested)]
    return [Row(*values) for values in zip(*columns, strict=True)]
