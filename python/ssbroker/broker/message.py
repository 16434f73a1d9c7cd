"""One message that was received."""

from __future__ import annotations

import uuid
from typing import Final, Self

import pyarrow as pa

from ssbroker.store.plain import Row

_ROW: Final = (
    "message_body",
    "conversation_handle",
    "conversation_group_id",
    "conversation_id",
    "is_initiator",
    "message_sequence_number",
    "message_type_name",
    "service_name",
    "service_contract_name",
    "priority",
    "queuing_order",
    "validation",
)
"""The columns of `schemas.RECEIVED` that a message has, in the order of `Row`."""


class Message:
    """A message that `Transaction.receive_one` took out of a queue, with the columns of `schemas.RECEIVED` but `status` and `message_signature`.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Orders")
        ...     sales.create_service("//Orders", queue="Orders")
        ...     with sales.transaction() as t:
        ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
        ...         message = t.receive_one("Orders")
        ...     message.message_body, message.message_type_name, message.message_sequence_number
        (b'two chairs', 'DEFAULT', 0)
    """

    __slots__ = ("_row",)

    def __init__(self, row: Row) -> None:
        self._row: Final = row

    @classmethod
    def first_of(cls, table: pa.Table) -> Self | None:
        """The first message of a table.

        Args:
            table: What `Transaction.receive` returned.

        Returns:
            The message; None where there is none.
        """
        if not table.num_rows:
            return None
        (row,) = table.slice(length=1).select(_ROW).to_pylist()
        body, handle, group, conversation, *rest = (row[name] for name in _ROW)
        return cls((body, handle, group, conversation, *rest))

    @property
    def message_body(self) -> bytes | None:
        """The message; None where it is empty."""
        return self._row[0]

    @property
    def conversation_handle(self) -> uuid.UUID:
        """The receiver's side of the conversation: what an answer is sent to, and what is ended."""
        return uuid.UUID(bytes=self._row[1])

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """The conversation group of that side."""
        return uuid.UUID(bytes=self._row[2])

    @property
    def conversation_id(self) -> uuid.UUID:
        """The conversation, as both sides know it."""
        return uuid.UUID(bytes=self._row[3])

    @property
    def is_initiator(self) -> bool:
        """Whether the initiator sent it."""
        return self._row[4]

    @property
    def message_sequence_number(self) -> int:
        """Its number within its direction of the conversation, from 0."""
        return self._row[5]

    @property
    def message_type_name(self) -> str:
        """The name of its type."""
        return self._row[6]

    @property
    def service_name(self) -> str:
        """The service that it is for."""
        return self._row[7]

    @property
    def service_contract_name(self) -> str:
        """The contract of the conversation."""
        return self._row[8]

    @property
    def priority(self) -> int:
        """The priority of the receiver's side, 1 to 10."""
        return self._row[9]

    @property
    def queuing_order(self) -> int:
        """Its place in the queue."""
        return self._row[10]

    @property
    def validation(self) -> str:
        """How its type is validated: N, E or X."""
        return self._row[11]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._row == other._row

    def __hash__(self) -> int:
        return hash(self._row)

    def __repr__(self) -> str:
        size = 0 if self.message_body is None else len(self.message_body)
        return (
            f"Message({self.message_type_name!r}, number {self.message_sequence_number} of {self.conversation_handle}, "
            f"{size} bytes)"
        )
