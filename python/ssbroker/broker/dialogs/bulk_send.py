"""Sends the rows of a table into dialogs that are begun as needed; each batch takes effect once."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._arguments import guid_bytes
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import begin_end
from ssbroker.broker.dialogs.send import send_batch
from ssbroker.broker.unit_of_work import Work, instance_transaction
from ssbroker.exceptions import InvalidGuidError, NullError
from ssbroker.protocol.config import DEFAULT
from ssbroker.protocol.states import ConversationInput, ConversationState, next_state
from ssbroker.store import endpoints
from ssbroker.store.endpoints import ConversationEndpoint

_log: Final = logging.getLogger("ssbroker.broker")

BODY: Final = "message_body"
MESSAGE_TYPE: Final = "message_type"
DIALOG: Final = "dialog"
ADDRESS: Final = ("from_service", "to_service", "contract", "to_broker_instance")
"""The columns that say with whom a row's dialog is."""


@dataclass(frozen=True, slots=True)
class SendDefaults:
    """What holds for all rows that do not say otherwise in a column."""

    from_service: str | None = None
    """The service of this database that sends."""
    to_service: str | None = None
    """The service that is sent to."""
    contract: str = DEFAULT
    """The contract of the dialogs."""
    to_broker_instance: str | None = None
    """The broker id of the database that is meant."""
    message_type: str = DEFAULT
    """The type of the messages."""
    lifetime: int | None = None
    """The lifetime of the dialogs in seconds."""
    encryption: bool = True
    """Whether the dialogs are encrypted outside of the instance."""
    ends: bool = False
    """Whether the dialogs end once the rows are sent."""


class _DialogKey(NamedTuple):
    """What rows of one dialog have in common."""

    from_service: str
    to_service: str
    contract: str
    to_broker_instance: bytes | None
    dialog: object

    def digest(self) -> bytes:
        """The key as the database keeps it."""
        whole = sha256()
        for part in self:
            content = part if isinstance(part, bytes) else str(part).encode()
            whole.update(f"{'none' if part is None else type(part).__name__} {len(content)} ".encode() + content)
        return whole.digest()


class BulkSender:
    """Sends rows in one transaction, part by part.

    Args:
        work: The transaction.
        addressing: What holds for all rows.
        writer: Whose dialogs are gone on with, and kept for its next batch; None begins all of them anew.
    """

    def __init__(self, work: Work, addressing: SendDefaults, *, writer: str | None = None) -> None:
        self._work: Final = work
        self._addressing: Final = addressing
        self._writer: Final = None if addressing.ends else writer
        self._handles: Final[dict[_DialogKey, bytes]] = {}
        self._sent = 0

    def send(self, rows: pa.Table) -> None:
        """Sends some rows, those of one dialog in their order.

        Args:
            rows: A column `message_body`, and any of `message_type`, `dialog` and those of `ADDRESS`.

        Raises:
            BrokerError: A message or a dialog is refused; the transaction has to be undone.
            NullError: A row says nothing of what it has to.
            InvalidGuidError: A broker id is none.
        """
        keys = [self._key(self._sent + number, values) for number, values in enumerate(self._values(rows))]
        self._open({key: None for key in keys if key not in self._handles})
        columns: dict[str, Any] = {"conversation_handle": pa.array([self._handles[key] for key in keys], pa.binary())}
        columns[BODY] = rows[BODY]
        kinds = rows[MESSAGE_TYPE].to_pylist() if MESSAGE_TYPE in rows.column_names else [None] * len(keys)
        default = self._addressing.message_type
        columns["message_type_name"] = pa.array([default if kind is None else kind for kind in kinds], pa.string())
        send_batch(self._work, pa.table(columns))
        self._sent += len(keys)

    def finish(self) -> int:
        """Ends the dialogs, if that is asked for.

        Returns:
            How many rows were sent.
        """
        if self._addressing.ends:
            for endpoint in endpoints.by_handles(self._work.connection, self._handles.values()).values():
                begin_end.end(self._work, endpoint, None)
        return self._sent

    def _values(self, rows: pa.Table) -> Iterable[tuple[Any, ...]]:
        names = (*ADDRESS, DIALOG)
        count = rows.num_rows
        return zip(
            *(rows[name].to_pylist() if name in rows.column_names else repeat(None, count) for name in names),
            strict=True,
        )

    def _key(self, row: int, values: tuple[Any, ...]) -> _DialogKey:
        said = self._addressing
        from_service, to_service, contract, broker_instance, dialog = values
        if broker_instance is None:
            broker_instance = said.to_broker_instance
        return _DialogKey(
            _needed(from_service or said.from_service, "from_service", row),
            _needed(to_service or said.to_service, "to_service", row),
            contract or said.contract,
            None if broker_instance is None else _guid(broker_instance, row),
            dialog,
        )

    def _open(self, keys: Mapping[_DialogKey, None]) -> None:
        """Finds the dialogs of the writer that can go on, and begins the others."""
        work, writer = self._work, self._writer
        digests = {key.digest(): key for key in keys} if writer is not None else {}
        found = {} if writer is None else endpoints.find_dialogs(work.connection, writer, digests)
        now = work.now()
        for digest, endpoint in found.items():
            if _goes_on(endpoint, now):
                self._handles[digests[digest]] = endpoint.conversation_handle
            else:
                handle = uuid.UUID(bytes=endpoint.conversation_handle)
                _log.warning("writer %s: conversation %s takes no more messages; another is begun", writer, handle)
        begun = {key: self._begin(key) for key in keys if key not in self._handles}
        self._handles.update((key, endpoint.conversation_handle) for key, endpoint in begun.items())
        if writer is not None:
            kept = [(writer, key.digest(), endpoint.endpoint_id) for key, endpoint in begun.items()]
            endpoints.save_dialogs(work.connection, kept)

    def _begin(self, key: _DialogKey) -> ConversationEndpoint:
        return begin_end.begin(
            self._work,
            key.from_service,
            key.to_service,
            broker_instance=key.to_broker_instance,
            contract=key.contract,
            lifetime=self._addressing.lifetime,
            encryption=self._addressing.encryption,
            related_conversation=None,
            related_conversation_group=None,
        )


def _goes_on(endpoint: ConversationEndpoint, now: int) -> bool:
    return (
        not isinstance(next_state(ConversationState(endpoint.state), ConversationInput.SEND), int)
        and endpoint.lifetime > now
    )


def _needed(value: str | None, name: str, row: int) -> str:
    if value is None:
        expected = f"a service, in the column {name} or the option {name}"
        raise NullError(f"{name}: row {row} names none; expected {expected}", column=name, row=row, expected=expected)
    return value


def _guid(value: object, row: int) -> bytes:
    try:
        return guid_bytes(value, name="to_broker_instance")
    except InvalidGuidError as error:
        raise InvalidGuidError(
            f"{error}, in row {row}",
            column="to_broker_instance",
            row=row,
            value=error.value,
            expected=error.expected,
        ) from None


_LOCK_TIMEOUT: Final = 60.0


class NumberedBatch(NamedTuple):
    """One batch of a writer that numbers them upwards."""

    writer: str
    """Who sends it."""
    batch_id: int
    """Its number: whoever has sent it has sent all before it."""


def send_batch_once(
    database: DatabaseContext, rows: Iterable[pa.Table], addressing: SendDefaults, *, batch: NumberedBatch | None = None
) -> int | None:
    """Sends rows as messages, all of them in one transaction with the note that their batch is sent.

    Args:
        database: The database that sends.
        rows: The rows in parts; each is sent in its order before the next is asked for.
        addressing: What holds for all rows.
        batch: The batch; without one, the rows are sent whenever this is called.

    Returns:
        How many rows were sent; None where the batch had been sent before, and nothing is done.

    Raises:
        BrokerError: A message or a dialog is refused; nothing was sent.
        InputError: A value is not what was expected; nothing was sent.
        StorageError: The file cannot be written; nothing was sent.
    """
    with instance_transaction(database, lock_timeout=_LOCK_TIMEOUT) as work:
        if batch is not None:
            last = endpoints.last_batch(work.connection, batch.writer)
            if last is not None and batch.batch_id <= last:
                return None
            endpoints.record_batch(work.connection, *batch)
        sender = BulkSender(work, addressing, writer=None if batch is None else batch.writer)
        for part in rows:
            sender.send(part)
        return sender.finish()
