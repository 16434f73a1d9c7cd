"""Dialog storage in memory that separates committed from uncommitted state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ssbroker.protocol import message_types
from ssbroker.protocol.storage import (
    STORED_FRAGMENTS,
    BatchChanges,
    DialogEndpoint,
    DialogStorage,
    Key,
    MessageRange,
    Refusal,
    StoredFragmentInfo,
    fragments_table,
    messages_table,
)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in a transmission queue or a queue.

    Attributes:
        sequence: Its number.
        body: Its body.
        message_type: Its type.
        message_id: Its id.
        is_end: Whether it ends the dialog.
        is_error: Whether it is an error of the application.
    """

    sequence: int
    body: bytes
    message_type: str = message_types.DEFAULT
    message_id: bytes | None = None
    is_end: bool = False
    is_error: bool = False


class SimulatedInstanceStorage(DialogStorage, Protocol):
    """A ledger with applications; what it says is committed."""

    @property
    def broker_instance(self) -> bytes:
        """The broker id of its database."""

    def begin(self, endpoint: DialogEndpoint) -> Key:
        """Begins a dialog."""

    def send(self, key: Key, body: bytes, *, message_type: str = message_types.DEFAULT) -> int:
        """Sends a message; its number."""

    def waiting(self) -> list[Key]:
        """The endpoints whose transmission queues hold messages."""

    def is_waiting(self, key: Key) -> bool:
        """Whether the transmission queue holds messages of an endpoint."""

    def can_send(self, key: Key) -> bool:
        """Whether an endpoint is there, and its application may send."""

    def received(self, key: Key) -> Sequence[StoredMessage]:
        """What the application of an endpoint has received, in order."""

    def failed(self, key: Key) -> str | None:
        """The error of the broker that has ended an endpoint; None for none."""

    def commit(self, effects: BatchChanges) -> object:
        """Writes what a batch has come to, as one transaction; what it says of that is None where all is written."""

    def restart(self) -> None:
        """Loses what a crash loses."""


Stored: TypeAlias = dict[tuple[int, int], tuple[Any, ...]]
_COUNT, _BODY, _DIGEST = (
    STORED_FRAGMENTS.get_field_index(name) for name in ("fragment_count", "message_body", "message_signature")
)


@dataclass(slots=True)
class EndpointRecord:
    """All that is durable of one endpoint.

    Attributes:
        endpoint: Its row.
        outgoing: Its transmission queue, by number.
        next: The number of the message that is sent next.
        stored: Fragments that are kept until their turn comes, by message and fragment.
        queue: What the application received, in order.
        error: The broker's error that ended it; None for none.
    """

    endpoint: DialogEndpoint
    outgoing: dict[int, StoredMessage] = field(default_factory=dict)
    next: int = 0
    stored: Stored = field(default_factory=dict)
    queue: list[StoredMessage] = field(default_factory=list)
    error: bytes | None = None

    def drop_stored(self, first: int, end: int) -> None:
        """Drops the fragments of messages, from one number to before another."""
        for place in [place for place in self.stored if first <= place[0] < end]:
            del self.stored[place]


class MemoryDialogStorage:
    """A ledger in memory: `commit` is what a store's transaction is, and what was not committed is not there.

    Args:
        broker_instance: The broker id of its database.
        refuses: Says why a message is not taken; None for all are.

    Examples:
        >>> ledger = MemoryDialogStorage(bytes(16))
        >>> key = ledger.begin(DialogEndpoint(conversation_id=bytes(16), is_initiator=True, service_name="Shop",
        ...                             broker_instance=bytes(16), far_service_name="Bank"))
        >>> ledger.send(key, b"Hello"), ledger.waiting() == [key]
        (0, True)
    """

    def __init__(
        self, broker_instance: bytes, *, refuses: Callable[[str, bytes], Refusal | None] | None = None
    ) -> None:
        self.broker_instance = broker_instance
        self.accounts: dict[Key, EndpointRecord] = {}
        self.work_table: dict[Key, bytes] = {}
        self.fragment_bytes: int | None = None
        self.other_lengths: dict[Key, int] = {}
        self._refuses = refuses

    def begin(self, endpoint: DialogEndpoint) -> Key:
        """Begins a dialog, committed.

        Args:
            endpoint: The initiator's endpoint.

        Returns:
            Its key.
        """
        self.accounts[endpoint.key] = EndpointRecord(endpoint)
        return endpoint.key

    def send(self, key: Key, body: bytes, *, message_type: str = message_types.DEFAULT) -> int:
        """Sends a message, committed.

        Args:
            key: The endpoint.
            body: The body.
            message_type: The type.

        Returns:
            Its number.
        """
        account = self.accounts[key]
        number = account.next
        account.next += 1
        if message_type == message_types.ERROR:
            account.outgoing.clear()  # as END CONVERSATION WITH ERROR has it (B13)
        message_id = number.to_bytes(8) + key[0][8:]
        is_end = message_type == message_types.END_DIALOG
        account.outgoing[number] = StoredMessage(
            number, body, message_type, message_id, is_end, message_type == message_types.ERROR
        )
        return number

    def waiting(self) -> list[Key]:
        """The endpoints whose transmission queues hold messages.

        Returns:
            Their keys.
        """
        return [key for key, account in self.accounts.items() if account.outgoing]

    def is_waiting(self, key: Key) -> bool:
        """See `Book`."""
        return bool(key in self.accounts and self.accounts[key].outgoing)

    def can_send(self, key: Key) -> bool:
        """See `Book`."""
        return key in self.accounts

    def received(self, key: Key) -> Sequence[StoredMessage]:
        """See `Book`."""
        return self.accounts[key].queue if key in self.accounts else []

    def failed(self, key: Key) -> str | None:
        """See `Book`."""
        error = self.accounts[key].error if key in self.accounts else None
        return None if error is None else repr(error)

    def commit(self, effects: BatchChanges) -> None:
        """Writes what a batch has come to, as one transaction.

        Args:
            effects: What `Dialogs.arrived` gave.
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
            number, kind, message_id, is_end, is_error, body = message
            queue = self.accounts[conversation, not side].queue
            queue.append(StoredMessage(number, body, kind, message_id, is_end, is_error))
        self._settle(effects)

    def _settle(self, effects: BatchChanges) -> None:
        """Takes out what has served."""
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
            account.error = account.error or b"the far side has forgotten"
            account.next += 1 << 40
            self.send(key, b"the far side has forgotten", message_type=message_types.ERROR)

    def restart(self) -> None:
        """What a restart of the instance loses: the work table."""
        self.work_table.clear()

    def endpoints(self, keys: Sequence[Key]) -> Sequence[DialogEndpoint | None]:
        """See `Ledger`."""
        accounts = [self.accounts.get(key) for key in keys]
        return [None if each is None else replace(each.endpoint, send_sequence=each.next) for each in accounts]

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[Key, int]:
        """See `Ledger`."""
        if self.fragment_bytes is None:
            self.fragment_bytes = max_fragment_bytes
        waiting = dict.fromkeys(self.waiting(), self.fragment_bytes)
        lengths = {key: self.other_lengths.get(key, length) for key, length in waiting.items()}
        self.other_lengths = {key: length for key, length in lengths.items() if length != max_fragment_bytes}
        self.fragment_bytes = max_fragment_bytes
        return self.other_lengths

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        """See `Ledger`."""
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

    def ending_errors(self, keys: Sequence[Key]) -> dict[Key, int]:
        """See `Ledger`."""
        outgoing = {key: self.accounts[key].outgoing for key in keys if key in self.accounts}
        return {key: number for key, each in outgoing.items() for number, message in each.items() if message.is_error}

    def read_body_slices(self, key: Key, sequence: int, spans: Sequence[tuple[int, int]]) -> Sequence[bytes] | None:
        """See `Ledger`."""
        account = self.accounts.get(key)
        message = None if account is None else account.outgoing.get(sequence)
        return None if message is None else [message.body[begin:end] for begin, end in spans]

    def list_stored(self, keys: Sequence[Key]) -> Iterable[StoredFragmentInfo]:
        """See `Ledger`."""
        return [
            StoredFragmentInfo(key, place, row[_COUNT], row[_DIGEST], len(row[_BODY]))
            for key in keys
            for place, row in self.accounts[key].stored.items()
        ]

    def read_stored(self, key: Key, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        """See `Ledger`."""
        stored = self.accounts[key].stored
        rows: list[tuple[Any, ...]] = []
        for place in sorted(place for place in stored if first <= place < (end, 0)):
            if most_bytes <= 0:
                break
            rows.append(stored[place])
            most_bytes -= len(rows[-1][_BODY])
        return fragments_table(rows)

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        """See `Ledger`."""
        return [replace(endpoint, broker_instance=self.broker_instance) for endpoint in endpoints]

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:  # noqa: ARG002  # it knows none
        """See `Ledger`."""
        if self._refuses is None:
            return {}
        kinds: list[Any] = messages["message_type_name"].to_pylist()
        bodies: list[Any] = messages["message_body"].to_pylist()
        found = {row: self._refuses(kind, body) for row, (kind, body) in enumerate(zip(kinds, bodies, strict=True))}
        return {row: refusal for row, refusal in found.items() if refusal is not None}

    def save_transmissions(self, objects: Mapping[Key, bytes]) -> None:
        """See `Ledger`."""
        self.work_table.update(objects)

    def load_transmissions(self, keys: Sequence[Key]) -> Mapping[Key, bytes]:
        """See `Ledger`."""
        return {key: self.work_table[key] for key in keys if key in self.work_table}


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns: list[list[Any]] = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))
