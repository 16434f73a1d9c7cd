"""A received message, as `Transaction.receive_one` and jobs return it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from ssbroker import _notebook as notebook
from ssbroker.broker.context import MessageIdentity
from ssbroker.store.session import ReceivedRow

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
"""The columns of `schemas.RECEIVED` that `Message` exposes, in the order of `ReceivedRow`."""


class Message:
    """A message that `Transaction.receive_one` or a job received.

    Its properties are the columns of `schemas.RECEIVED`, except `status` and `message_signature`.

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

    def __init__(self, row: ReceivedRow) -> None:
        self._row: Final = row

    @property
    def message_body(self) -> bytes | None:
        """The body of the message; None for EndDialog and DialogTimer messages, which have no body."""
        return self._row[0]

    @property
    def conversation_handle(self) -> uuid.UUID:
        """The handle of the receiver's endpoint: pass it to `Transaction.send` to reply, or to `Transaction.end_conversation`."""
        return uuid.UUID(bytes=self._row[1])

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """The conversation group of the receiver's endpoint."""
        return uuid.UUID(bytes=self._row[2])

    @property
    def conversation_id(self) -> uuid.UUID:
        """The id of the conversation, the same at both endpoints."""
        return uuid.UUID(bytes=self._row[3])

    @property
    def is_initiator(self) -> bool:
        """Whether the initiator of the conversation sent the message."""
        return self._row[4]

    @property
    def message_sequence_number(self) -> int:
        """The sequence number of the message in its direction of the conversation, starting at 0."""
        return self._row[5]

    @property
    def message_type_name(self) -> str:
        """The name of the message type."""
        return self._row[6]

    @property
    def service_name(self) -> str:
        """The service that the message was sent to."""
        return self._row[7]

    @property
    def service_contract_name(self) -> str:
        """The name of the conversation's contract."""
        return self._row[8]

    @property
    def priority(self) -> int:
        """The priority of the receiver's endpoint, from 1 to 10."""
        return self._row[9]

    @property
    def queuing_order(self) -> int:
        """The number by which the queue is ordered; it increases, has gaps, and is never used twice in a database."""
        return self._row[10]

    @property
    def validation(self) -> str:
        """The validation of the message type: `N` (none), `E` (empty) or `X` (well-formed XML)."""
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

    def _repr_html_(self) -> str:
        names = (
            "service_name",
            "service_contract_name",
            "conversation_handle",
            "conversation_id",
            "conversation_group_id",
            "priority",
        )
        values = notebook.grid(("column", "value"), ((name, getattr(self, name)) for name in names))
        title = f"{self.message_type_name}, number {self.message_sequence_number}"
        return notebook.section(title, values, notebook.body(self.message_body))


def messages_of(table: pa.Table) -> tuple[Message, ...]:
    """Returns received messages (`schemas.RECEIVED`) as objects."""
    columns = (table[name].to_pylist() for name in _ROW)
    return tuple(Message(row) for row in zip(*columns, strict=True))


def identities_of(messages: Iterable[Message]) -> list[MessageIdentity]:
    """Returns the identities of messages."""
    return [
        MessageIdentity(each.conversation_id.bytes, each.is_initiator, each.message_sequence_number)
        for each in messages
    ]
