"""The block of a transaction: what is plain is done in it at once, and all else by its `Lifecycle`."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn, Self

import pyarrow as pa

from ssbroker import options, schemas
from ssbroker.broker.dialogs import receiving, sending
from ssbroker.broker.lifecycle import Lifecycle
from ssbroker.broker.objects.queue_names import queue_key
from ssbroker.broker.waiting import Patience
from ssbroker.broker.work.effects import Effects
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.events import Conversation
from ssbroker.store.plain import Done, Row

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


class Turn:
    """One transaction of a database, from its `with` to its end.

    It begins as a plain session, which is the native module's. What that leaves to others, and all after it, is done by a `Lifecycle`.

    Args:
        database: The database.
    """

    __slots__ = ("__weakref__", "_database", "_life", "_plain")

    def __init__(self, database: Database) -> None:
        self._database: Final = database
        self._plain: Final = database.plain_session()
        self._life: Lifecycle | None = None

    def __reduce__(self) -> NoReturn:
        """A transaction is of this process.

        Raises:
            TypeError: Always; it says what another process can do.
        """
        self._database.instance.__reduce__()

    def __enter__(self) -> Self:
        if not self._plain.open():
            raise BrokerError("a transaction is entered once; begin another with database.transaction()")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._life is None:
            try:
                is_committed, told = self._plain.commit()
            except BaseException as failure:
                self._lifecycle().not_committed(failure)
                raise
            if is_committed:
                if told is not None:
                    self._tell(*told)
                return
        self._lifecycle().end(error)

    def _lifecycle(self) -> Lifecycle:
        """What does more than what is plain."""
        if self._life is None:
            self._life = Lifecycle(self._database, self._plain)
        return self._life

    def _is_sent(self, dialog: object, body: object, message_type: object) -> bool:
        """Sends a message, if that is plain; whether it was."""
        instance = self._database.instance
        message = sending.as_plain(dialog, body, message_type)
        if message is None or self._life is not None or instance.events.wants(Conversation):
            return False
        now = None if instance.has_system_clock else instance.microseconds()
        try:
            return self._plain.send(*message, now)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a part may have been written
            self._lifecycle().failed(error)

    def _received_batch(self, queue: object, top: int | None, groups: int | None) -> pa.RecordBatch | None:
        """Receives messages, if that is plain and there are any."""
        if self._life is not None or type(queue) is not str:
            return None
        try:
            return self._plain.receive(schemas.RECEIVED, queue, top, groups, receiving.BYTES_MAX)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a part may have been taken
            self._lifecycle().failed(error)

    def _received_row(self, queue: object) -> Row | None:
        """Receives a message, if that is plain and there is one."""
        if self._life is not None or type(queue) is not str:
            return None
        try:
            return self._plain.receive_one(queue)
        except BaseException as error:  # noqa: BLE001  # whatever it is, a part may have been taken
            self._lifecycle().failed(error)

    def _received(self, queue: str, asked: receiving.Asked, patience: Patience | None) -> pa.Table:
        """Receives messages, and waits for them."""
        while True:
            with self._lifecycle() as work:
                table = receiving.receive(work, queue, asked)
            if table.num_rows or not self._wait(patience):
                return table

    def _wait(self, patience: Patience | None) -> bool:
        """Waits, without the lock, until there may be a message; whether to look again."""
        if patience is not None:
            self._lifecycle().leave()
        return patience is not None and patience.wait()

    def _patience(self, queue: str, timeout: float) -> Patience | None:
        """How long to wait for a message; None where a wait is useless, because the lock is held."""
        if timeout == 0.0 and timeout is not False:
            return None
        wait = options.seconds(timeout, name="timeout")
        if not wait or self._plain.is_begun or (self._life is not None and self._life.has_lock):
            return None
        return Patience(self._database, queue_key(queue), until=time.monotonic() + wait)

    def _tell(self, has_changed: bool, done: Done) -> None:  # noqa: FBT001  # as the native module gives it
        """Tells whom it concerns what was committed."""
        database = self._database
        if has_changed and database.file.failure is not None:
            database.file.ended(None)
        effects = Effects(log=database.instance.events)
        effects.are_done(done)
        database.instance.worker.committed(database, effects)
