"""Dialog storage in memory that separates committed from uncommitted state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ssbroker import _well_known
from ssbroker.protocol.storage import (
    STORED_FRAGMENTS,
    BatchChanges,
    DialogEndpoint,
    DialogStorage,
    EndpointKey,
    MessageKind,
    MessageRange,
    Refusal,
    StoredFragmentInfo,
    fragments_table,
    messages_table,
)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a queue or transmission queue.

    Attributes:
        sequence: The sequence number of the message in its direction.
        body: The message body.
        message_type: The message type.
        message_id: The GUID of the message, 16 bytes; None if the message has no GUID.
        is_end: Whether the message is an EndDialog message.
        is_error: Whether the message is an Error message.
    """

    sequence: int
    body: bytes
    message_type: str = _well_known.DEFAULT
    message_id: bytes | None = None
    is_end: bool = False
    is_error: bool = False


class SimulatedInstanceStorage(DialogStorage, Protocol):
    """Dialog storage with an application interface for simulations. Everything it returns is committed."""

    @property
    def broker_instance(self) -> bytes:
        """The broker id of the database."""

    def begin(self, endpoint: DialogEndpoint) -> EndpointKey:
        """Starts a dialog from the initiator's endpoint; returns the key of the endpoint."""

    def send(self, key: EndpointKey, body: bytes, *, message_type: str = _well_known.DEFAULT) -> int:
        """Sends a message; returns its number."""

    def waiting(self) -> list[EndpointKey]:
        """Returns the endpoints whose transmission queues contain messages."""

    def is_waiting(self, key: EndpointKey) -> bool:
        """Returns whether the transmission queue contains messages of an endpoint."""

    def can_send(self, key: EndpointKey) -> bool:
        """Returns whether an endpoint exists and its application may send."""

    def received(self, key: EndpointKey) -> Sequence[StoredMessage]:
        """Returns the messages that the application of an endpoint has received, in order."""

    def failed(self, key: EndpointKey) -> str | None:
        """Returns the broker error that ended an endpoint; None if there was none."""

    def commit(self, effects: BatchChanges) -> object:
        """Writes the changes of a batch in one transaction; returns None if all were written."""

    def restart(self) -> None:
        """Discards the state that a crash loses, such as the work table."""


Stored: TypeAlias = dict[tuple[int, int], tuple[Any, ...]]
_COUNT, _BODY, _DIGEST = (
    STORED_FRAGMENTS.get_field_index(name) for name in ("fragment_count", "message_body", "message_signature")
)


@dataclass(slots=True)
class EndpointRecord:
    """The durable state of one endpoint.

    Attributes:
        endpoint: The row of the endpoint.
        outgoing: The transmission queue, by message number.
        next: The number of the next message to send.
        stored: Fragments of incomplete or early messages, by message and fragment number.
        queue: The messages that the application received, in order.
        error: The broker error that ended the endpoint; None if there was none.
    """

    endpoint: DialogEndpoint
    outgoing: dict[int, StoredMessage] = field(default_factory=dict)
    next: int = 0
    stored: Stored = field(default_factory=dict)
    queue: list[StoredMessage] = field(default_factory=list)
    error: bytes | None = None

    def drop_stored(self, first: int, end: int) -> None:
        """Deletes the fragments of messages from `first` up to but excluding `end`."""
        for place in [place for place in self.stored if first <= place[0] < end]:
            del self.stored[place]


class MemoryDialogStorage:
    """Dialog storage in memory. A call of `commit` represents a transaction; uncommitted changes are not visible.

    Endpoints are never removed, so `BatchChanges.with_duplicates` has no effect.

    Args:
        broker_instance: The broker id of the database, 16 bytes.
        refuses: Called with the message type and body; returns why a message is refused, or None. By default, no message is refused.

    Examples:
        >>> from ssbroker.protocol.storage import DialogEndpoint
        >>> from ssbroker.testing import MemoryDialogStorage
        >>> storage = MemoryDialogStorage(bytes(16))
        >>> key = storage.begin(DialogEndpoint(conversation_id=bytes(16), is_initiator=True, service_name="Shop",
        ...                              broker_instance=bytes(16), far_service_name="Bank"))
        >>> storage.send(key, b"Hello"), storage.waiting() == [key]
        (0, True)
    """

    def __init__(
        self, broker_instance: bytes, *, refuses: Callable[[str, bytes], Refusal | None] | None = None
    ) -> None:
        self.broker_instance = broker_instance
        self.accounts: dict[EndpointKey, EndpointRecord] = {}
        self.work_table: dict[EndpointKey, bytes] = {}
        self.fragment_bytes: int | None = None
        self.other_lengths: dict[EndpointKey, int] = {}
        self._refuses = refuses

    def begin(self, endpoint: DialogEndpoint) -> EndpointKey:
        """Starts and commits a dialog.

        Args:
            endpoint: The initiator's endpoint.

        Returns:
            The key of the endpoint.
        """
        self.accounts[endpoint.key] = EndpointRecord(endpoint)
        return endpoint.key

    def send(self, key: EndpointKey, body: bytes, *, message_type: str = _well_known.DEFAULT) -> int:
        """Sends and commits a message.

        Args:
            key: The endpoint.
            body: The message body.
            message_type: The message type.

        Returns:
            The message number.
        """
        account = self.accounts[key]
        number = account.next
        account.next += 1
        if message_type == _well_known.ERROR:
            account.outgoing.clear()  # END CONVERSATION WITH ERROR deletes unsent messages
        message_id = number.to_bytes(8) + key[0][8:]
        is_end = message_type == _well_known.END_DIALOG
        account.outgoing[number] = StoredMessage(
            number, body, message_type, message_id, is_end, message_type == _well_known.ERROR
        )
        return number

    def waiting(self) -> list[EndpointKey]:
        """Returns the keys of the endpoints whose transmission queues contain messages."""
        return [key for key, account in self.accounts.items() if account.outgoing]

    def is_waiting(self, key: EndpointKey) -> bool:
        """Returns whether the transmission queue contains messages of an endpoint."""
        return bool(key in self.accounts and self.accounts[key].outgoing)

    def can_send(self, key: EndpointKey) -> bool:
        """Returns whether an endpoint exists."""
        return key in self.accounts

    def received(self, key: EndpointKey) -> Sequence[StoredMessage]:
        """Returns the messages that the application of an endpoint has received, in order."""
        return self.accounts[key].queue if key in self.accounts else []

    def failed(self, key: EndpointKey) -> str | None:
        """Returns the broker error that ended an endpoint, as text; None if there was none."""
        error = self.accounts[key].error if key in self.accounts else None
        return None if error is None else repr(error)

    def commit(self, effects: BatchChanges) -> None:
        """Writes the changes of a batch.

        Args:
            effects: The result of `DialogEngine.receive`.
        """
        for endpoint in effects.created:
            self.accounts[endpoint.key] = EndpointRecord(endpoint)
        for endpoint in effects.bound:
            account = self.accounts[endpoint.key]
            account.endpoint = replace(endpoint, receive_sequence=account.endpoint.receive_sequence)
        for row in _rows(effects.stored):
            conversation, side, sequence, number = row[:4]
            self.accounts[conversation, not side].stored[sequence, number] = row
        for conversation, side, *message in _rows(effects.messages):
            number, message_type, message_id, is_end, is_error, body = message
            queue = self.accounts[conversation, not side].queue
            queue.append(StoredMessage(number, body, message_type, message_id, is_end, is_error))
        self._apply_progress(effects)

    def _apply_progress(self, effects: BatchChanges) -> None:
        """Deletes acknowledged messages and obsolete fragments."""
        for key, sequence in effects.received.items():
            account = self.accounts[key]
            account.endpoint = replace(account.endpoint, receive_sequence=sequence)
            account.drop_stored(0, sequence)
        for key, sequence in effects.dropped:
            self.accounts[key].drop_stored(sequence, sequence + 1)
        for key, acked in effects.acknowledged.items():
            outgoing = self.accounts[key].outgoing
            for number in [number for number in outgoing if number <= acked]:
                del outgoing[number]
        for key, body in effects.errors.items():
            account = self.accounts[key]
            account.error = account.error or body
            account.outgoing.clear()
        for key in effects.lost_by_peer:
            account = self.accounts[key]
            account.error = account.error or b"the peer has lost messages"
            account.next += 1 << 40
            self.send(key, b"the peer has lost messages", message_type=_well_known.ERROR)

    def restart(self) -> None:
        """Discards the work table, as a restart of the instance does."""
        self.work_table.clear()

    def endpoints(self, keys: Sequence[EndpointKey]) -> Sequence[DialogEndpoint | None]:
        """Returns the endpoints with these keys; None for missing endpoints."""
        accounts = [self.accounts.get(key) for key in keys]
        return [None if each is None else replace(each.endpoint, send_sequence=each.next) for each in accounts]

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[EndpointKey, int]:
        """Stores the fragment size; returns the sizes of the endpoints whose waiting messages keep a different size."""
        if self.fragment_bytes is None:
            self.fragment_bytes = max_fragment_bytes
        waiting = dict.fromkeys(self.waiting(), self.fragment_bytes)
        lengths = {key: self.other_lengths.get(key, length) for key, length in waiting.items()}
        self.other_lengths = {key: length for key, length in lengths.items() if length != max_fragment_bytes}
        self.fragment_bytes = max_fragment_bytes
        return self.other_lengths

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        """Returns the waiting messages of the wanted ranges, range by range, ordered by message number."""
        rows: list[tuple[Any, ...]] = []
        for each in wanted:
            account = self.accounts.get(each.key)
            if account is None or not account.outgoing:
                continue
            left, room = each.max_messages, each.max_bytes
            first = max(each.first, next(iter(account.outgoing)))
            last = min(each.last, account.next - 1)
            if next(iter(account.outgoing.values())).is_error:
                if any(row[:2] == each.key for row in rows):
                    continue
                first = last = account.next - 1
            for number in range(first, last + 1):
                message = account.outgoing.get(number)
                if message is None:
                    continue
                if left == 0 or (room <= 0 and left < each.max_messages):
                    break
                left = 0 if len(message.body) > each.max_body_bytes else left - 1
                room -= len(message.body)
                rows.append(
                    (
                        *each.key,
                        number,
                        message.message_type,
                        message.message_id,
                        message.is_end,
                        message.is_error,
                        message.body if len(message.body) <= each.max_body_bytes else None,
                    )
                )
        return messages_table(rows)

    def ending_errors(self, keys: Sequence[EndpointKey]) -> dict[EndpointKey, int]:
        """Returns, by endpoint, the number of the waiting error message with which the application ended the dialog."""
        outgoing = {key: self.accounts[key].outgoing for key in keys if key in self.accounts}
        return {key: number for key, each in outgoing.items() for number, message in each.items() if message.is_error}

    def read_body_slices(
        self, key: EndpointKey, sequence: int, spans: Sequence[tuple[int, int]]
    ) -> Sequence[bytes] | None:
        """Returns slices of the body of a waiting message; None if the message is not in the transmission queue."""
        account = self.accounts.get(key)
        message = None if account is None else account.outgoing.get(sequence)
        return None if message is None else [message.body[begin:end] for begin, end in spans]

    def list_stored(self, keys: Sequence[EndpointKey]) -> Iterable[StoredFragmentInfo]:
        """Lists the stored fragments of endpoints, without their bodies."""
        return [
            StoredFragmentInfo(key, place, row[_COUNT], row[_DIGEST], len(row[_BODY]))
            for key in keys
            for place, row in self.accounts[key].stored.items()
        ]

    def read_stored(self, key: EndpointKey, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        """Returns the stored fragments of an endpoint in order, from `first` (message and fragment number) up to, but not including, message `end`.

        Stops after `most_bytes` bytes of bodies.
        """
        stored = self.accounts[key].stored
        rows: list[tuple[Any, ...]] = []
        for place in sorted(place for place in stored if first <= place < (end, 0)):
            if most_bytes <= 0:
                break
            rows.append(stored[place])
            most_bytes -= len(rows[-1][_BODY])
        return fragments_table(rows)

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        """Accepts all new conversations; returns their endpoints with the broker id of this database."""
        return [replace(endpoint, broker_instance=self.broker_instance) for endpoint in endpoints]

    def accept_any_body(self, kinds: Collection[MessageKind]) -> bool:  # noqa: ARG002  # this storage has no message types
        """Returns whether the storage accepts every message, because it was created without `refuses`."""
        return self._refuses is None

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:  # noqa: ARG002  # this storage has no message types
        """Returns, by row number, why `refuses` rejects messages; empty without `refuses`."""
        if self._refuses is None:
            return {}
        message_types: list[Any] = messages["message_type_name"].to_pylist()
        bodies: list[Any] = messages["message_body"].to_pylist()
        found = {
            row: self._refuses(message_type, body)
            for row, (message_type, body) in enumerate(zip(message_types, bodies, strict=True))
        }
        return {row: refusal for row, refusal in found.items() if refusal is not None}

    def sync(self) -> None:
        """Does nothing, because all changes are in memory."""

    def save_transmissions(self, objects: Mapping[EndpointKey, bytes]) -> None:
        """Writes transmission objects to the work table, replacing older objects."""
        self.work_table.update(objects)

    def load_transmissions(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, bytes]:
        """Reads transmission objects from the work table; omits missing objects."""
        return {key: self.work_table[key] for key in keys if key in self.work_table}


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))
