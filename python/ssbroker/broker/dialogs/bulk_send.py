"""Sends the rows of a table on dialogs that are started as needed; each batch takes effect exactly once."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._well_known import DEFAULT
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import dialog_lifecycle
from ssbroker.broker.dialogs.send_batch import guid_in_row, send_batch
from ssbroker.broker.unit_of_work import Work, database_transaction
from ssbroker.exceptions import NullError
from ssbroker.protocol.conversation_states import ConversationInput, ConversationState, next_state
from ssbroker.store import bulk_senders, conversation_endpoints
from ssbroker.store.conversation_endpoints import ConversationEndpoint

_LOGGER: Final = logging.getLogger("ssbroker.broker")

BODY: Final = "message_body"
MESSAGE_TYPE: Final = "message_type"
DIALOG: Final = "dialog"
ADDRESS: Final = ("from_service", "to_service", "contract", "to_broker_instance")
"""The columns that identify the services of a row's dialog."""


@dataclass(frozen=True, slots=True)
class SendDefaults:
    """Defaults for rows without a value in the corresponding column."""

    from_service: str | None = None
    """The sending service of this database."""
    to_service: str | None = None
    """The target service."""
    contract: str = DEFAULT
    """The contract of the dialogs."""
    to_broker_instance: str | None = None
    """The broker id of the target database."""
    message_type: str = DEFAULT
    """The message type."""
    lifetime: int | None = None
    """The lifetime of new dialogs in seconds."""
    encryption: bool = True
    """Whether messages are encrypted when they leave the instance."""
    ends: bool = False
    """Whether the dialogs end after the rows are sent."""


class _DialogKey(NamedTuple):
    """The values that rows of one dialog share."""

    from_service: str
    to_service: str
    contract: str
    to_broker_instance: bytes | None
    dialog: object

    def digest(self) -> bytes:
        """Returns the key as stored in the database."""
        digest = sha256()
        for part in self:
            content = part if isinstance(part, bytes) else str(part).encode()
            digest.update(f"{'none' if part is None else type(part).__name__} {len(content)} ".encode() + content)
        return digest.digest()


class BulkSender:
    """Sends rows in chunks, within one transaction."""

    def __init__(self, work: Work, defaults: SendDefaults, *, writer: str | None = None) -> None:
        self._work: Final = work
        self._defaults: Final = defaults
        self._writer: Final = None if defaults.ends else writer
        self._handles: Final[dict[_DialogKey, bytes]] = {}
        self._sent = 0

    def send(self, rows: pa.Table) -> None:
        """Sends a chunk of rows. Rows of one dialog keep their order."""
        keys = [self._key(self._sent + number, values) for number, values in enumerate(self._values(rows))]
        self._open({key: None for key in keys if key not in self._handles})
        columns: dict[str, Any] = {"conversation_handle": pa.array([self._handles[key] for key in keys], pa.binary())}
        columns[BODY] = rows[BODY]
        message_types = rows[MESSAGE_TYPE].to_pylist() if MESSAGE_TYPE in rows.column_names else [None] * len(keys)
        default = self._defaults.message_type
        columns["message_type_name"] = pa.array(
            [default if message_type is None else message_type for message_type in message_types], pa.string()
        )
        send_batch(self._work, pa.table(columns))
        self._sent += len(keys)

    def finish(self) -> int:
        """Ends the dialogs if requested; returns the number of messages sent."""
        if self._defaults.ends:
            for endpoint in conversation_endpoints.by_handles(self._work.connection, self._handles.values()).values():
                dialog_lifecycle.end(self._work, endpoint, None)
        return self._sent

    def _values(self, rows: pa.Table) -> Iterable[tuple[Any, ...]]:
        names = (*ADDRESS, DIALOG)
        count = rows.num_rows
        return zip(
            *(rows[name].to_pylist() if name in rows.column_names else repeat(None, count) for name in names),
            strict=True,
        )

    def _key(self, row: int, values: tuple[Any, ...]) -> _DialogKey:
        defaults = self._defaults
        from_service, to_service, contract, broker_instance, dialog = values
        if broker_instance is None:
            broker_instance = defaults.to_broker_instance
        return _DialogKey(
            _required(from_service or defaults.from_service, "from_service", row),
            _required(to_service or defaults.to_service, "to_service", row),
            contract or defaults.contract,
            None if broker_instance is None else guid_in_row(broker_instance, "to_broker_instance", row),
            dialog,
        )

    def _open(self, keys: Mapping[_DialogKey, None]) -> None:
        """Finds dialogs of the writer that are still open, and begins the missing ones."""
        work, writer = self._work, self._writer
        digests = {key.digest(): key for key in keys} if writer is not None else {}
        found = {} if writer is None else bulk_senders.find_dialogs(work.connection, writer, digests)
        now = work.now()
        for digest, endpoint in found.items():
            if _can_send(endpoint, now):
                self._handles[digests[digest]] = endpoint.conversation_handle
            else:
                handle = uuid.UUID(bytes=endpoint.conversation_handle)
                _LOGGER.warning(
                    "writer %s: conversation %s no longer accepts messages; starting another conversation",
                    writer,
                    handle,
                )
        begun = {key: self._begin(key) for key in keys if key not in self._handles}
        self._handles.update((key, endpoint.conversation_handle) for key, endpoint in begun.items())
        if writer is not None:
            kept = [(writer, key.digest(), endpoint.endpoint_id) for key, endpoint in begun.items()]
            bulk_senders.save_dialogs(work.connection, kept)

    def _begin(self, key: _DialogKey) -> ConversationEndpoint:
        return dialog_lifecycle.begin(
            self._work,
            key.from_service,
            key.to_service,
            broker_instance=key.to_broker_instance,
            contract=key.contract,
            lifetime=self._defaults.lifetime,
            encryption=self._defaults.encryption,
            related_conversation=None,
            related_conversation_group=None,
        )


def _can_send(endpoint: ConversationEndpoint, now: int) -> bool:
    return (
        not isinstance(next_state(ConversationState(endpoint.state), ConversationInput.SEND), int)
        and endpoint.lifetime > now
    )


def _required(value: str | None, name: str, row: int) -> str:
    if value is None:
        expected = f"a service, in the column {name} or the option {name}"
        raise NullError(f"{name}: row {row} has no value; expected {expected}", column=name, row=row, expected=expected)
    return value


_LOCK_TIMEOUT: Final = 60.0


class NumberedBatch(NamedTuple):
    """A numbered batch of a writer."""

    writer: str
    """The id of the writer."""
    batch_id: int
    """The batch number, which increases with each batch of the writer."""


def send_batch_once(
    database: DatabaseContext, rows: Iterable[pa.Table], defaults: SendDefaults, *, batch: NumberedBatch | None = None
) -> int | None:
    """Sends rows as messages in one transaction that also records the batch; returns their number, or None if the batch was already sent."""
    with database_transaction(database, lock_timeout=_LOCK_TIMEOUT) as work:
        if batch is not None:
            last = bulk_senders.last_batch(work.connection, batch.writer)
            if last is not None and batch.batch_id <= last:
                return None
            bulk_senders.record_batch(work.connection, *batch)
        sender = BulkSender(work, defaults, writer=None if batch is None else batch.writer)
        for part in rows:
            sender.send(part)
        return sender.finish()
