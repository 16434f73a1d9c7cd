"""One push: parts that are put together by a reassembler which knows of nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.columns import listed, replaced
from ssbroker.protocol.incoming import Incoming, Part
from ssbroker.protocol.ledger import MESSAGES, STORED, Key, parts_of
from ssbroker.reassembler import Reassembler

Rejected: TypeAlias = dict[int, tuple[Part, str]]
"""Parts that were refused, and why, by `id`."""

_DIGEST: Final = STORED.get_field_index("fragment_signature")
_PLACE: Final = ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")


class Push:
    """What comes of one push.

    Args:
        reassembler: Puts together what is pushed, and knows of nothing.
        parts: What has come.

    Attributes:
        messages: The messages whose turn it is.
        rejected: The parts that were refused.
        forgotten: The messages of which all parts have gone, by endpoint and number.
        broken: The endpoints in ER for which a message has come whole of which nothing was kept.
    """

    __slots__ = ("_bases", "_parts", "_reassembler", "broken", "forgotten", "messages", "rejected")

    def __init__(self, reassembler: Reassembler, parts: Sequence[Part]) -> None:
        self._reassembler: Final = reassembler
        self._parts: Final = parts
        self._bases: Final = {part.sender: (part.incoming, part.incoming.next) for part in parts}
        self.messages: Final[list[pa.Table]] = []
        self.rejected: Final[Rejected] = {}
        self.forgotten: Final[list[tuple[Key, int]]] = []
        self.broken: Final[list[Key]] = []

    def push(self, table: pa.Table) -> None:
        """Takes parts in (`STORED`), their messages counted from where their directions stood."""
        pushed = self._reassembler.push(table)
        told, acked = pushed.acknowledgements, pushed.acknowledgements["acked_sequence_number"].to_pylist()
        for sender, number in zip(senders_of(told), acked, strict=True):
            incoming, base = self._bases[sender]
            if number is not None:
                incoming.reach(base + number + 1)
        if pushed.rejected.num_rows:
            self._reject(pushed.rejected)
        numbers: list[Any] = pushed.messages["message_sequence_number"].to_pylist()
        real = [
            number + self._bases[sender][1] for sender, number in zip(senders_of(pushed.messages), numbers, strict=True)
        ]
        self.messages.append(
            replaced(pushed.messages, MESSAGES, {"message_sequence_number": real}).select(MESSAGES.names)
        )

    def push_stored(self, table: pa.Table) -> None:
        """Takes in what was read back. Each part was compared with its own digest when it came; now the whole is."""
        _, base = self._bases[table["conversation_id"][0].as_py(), table["is_initiator"][0].as_py()]
        at = STORED.get_field_index("message_sequence_number")
        table = table.set_column(at, STORED.field(at), pc.subtract(table[at], base))
        self.push(
            table.set_column(_DIGEST, STORED.field(_DIGEST), pa.nulls(table.num_rows, STORED.field(_DIGEST).type))
        )

    def forget(self, incoming: Incoming, number: int) -> None:
        """Notes that the parts of a message have gone."""
        incoming.drop(number)
        self.forgotten.append((incoming.key, number))

    def _reject(self, rejected: pa.Table) -> None:
        places = {(*part.sender, part.sequence, part.fragment): part for part in self._parts}
        columns: list[list[Any]] = [listed(rejected[name]) for name in (*_PLACE, "reason")]
        for conversation_id, side, sequence, fragment, reason in zip(*columns, strict=True):
            incoming, base = self._bases[conversation_id, side]
            number = sequence + base
            part = places.get((conversation_id, side, number, fragment))
            if part is not None:
                self.rejected[id(part)] = (part, reason)
            if reason == "corrupt_message" and (incoming.key, number) not in self.forgotten:
                self.forget(incoming, number)


def senders_of(table: pa.Table) -> Iterator[Key]:
    """The sides of conversations that have sent the rows of a table, row by row."""
    return zip(listed(table["conversation_id"]), listed(table["is_initiator"]), strict=True)


def table_of(parts: Sequence[Part]) -> pa.Table:
    """Parts as a push takes them.

    Args:
        parts: The parts.

    Returns:
        The rows (`STORED`), the messages counted from where their directions stand.

    Examples:
        >>> table_of([]).num_rows
        0
    """
    return parts_of([_values(part, part.sequence - part.incoming.next) for part in parts])


def stored_table(parts: Sequence[Part]) -> pa.Table:
    """Parts as the ledger keeps them.

    Args:
        parts: The parts.

    Returns:
        The rows (`STORED`).

    Examples:
        >>> stored_table([]).num_rows
        0
    """
    return parts_of([_values(part, part.sequence) for part in parts])


def _values(part: Part, sequence: int) -> tuple[Any, ...]:
    """A row of `STORED`, with the number that its message shall have."""
    place = (*part.sender, sequence, part.fragment, part.count)
    return (*place, part.body, part.message_digest, part.fragment_digest, *part.kind)
