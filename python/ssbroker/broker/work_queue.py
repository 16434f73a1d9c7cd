"""Work queues, with `put` and `take`. Each message has its own dialog, which the program does not see."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from threading import get_ident
from typing import Any, Final, Literal, NoReturn

from ssbroker._arguments import EPOCH, boolean, epoch_microseconds, guid_bytes, utc_datetime
from ssbroker._well_known import DEFAULT, WORK_QUEUE_CONTRACT
from ssbroker.broker import async_calls, object_ddl, worker_loop
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs import dialog_lifecycle, lease, poison_message_handling, work_queue_conversations
from ssbroker.broker.dialogs import send as sending
from ssbroker.broker.dialogs.work_queue_conversations import DialogPlan, FirstMessage
from ssbroker.broker.job import JSON, Job
from ssbroker.broker.job_retry_delays import RetryAfter, check_retry_after
from ssbroker.broker.object_ddl import OnPoison, check_on_poison
from ssbroker.broker.object_names import bracketed_queue_name, existing, plain_queue_name, queue_key, similar_queue
from ssbroker.broker.transaction import Transaction, transaction_database_context, work_of
from ssbroker.broker.unit_of_work import Work
from ssbroker.ddl import refusal_texts
from ssbroker.ddl.statements import QueueName, QueueSettings
from ssbroker.exceptions import BrokerError, LockTimeoutError, OptionError, SchemaError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.protocol.events import print_logging_errors
from ssbroker.store import conversation_endpoints, queues
from ssbroker.store.objects import DEFAULT_SCHEMA, Objects, Queue, Service
from ssbroker.store.sqlite import Connection

Codec = Literal["json"]
_LOGGER: Final = logging.getLogger("ssbroker.broker")
CLEARED_MAX: Final = 10_000
"""The maximum number of messages that `WorkQueue.clear` removes in one transaction."""


class WorkQueue:
    """A work queue: `put` adds a message, and `take` gives it to one worker. `Instance.queue` and `Database.queue` return it.

    A work queue is a queue of the database, with a service of the same name. Each message has its own conversation, so
    workers in many threads and processes can take messages at the same time; the conversation ends with the job.
    Messages are taken in the order in which they were put, and the instance's views show them. `Transaction.receive`
    can take these messages too, but their conversations stay open until you call `Transaction.end_conversation`.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
        ...     queue = instance.queue("Jobs")
        ...     _ = queue.put({"resize": "cat.png"}, codec="json")
        ...     with queue.take() as job:
        ...         print(job.value["resize"])
        cat.png
    """

    __slots__ = (
        "_context",
        "_default_poison_queue",
        "_key",
        "_name",
        "_plan",
        "_planned_for",
        "_retry_after",
        "_service",
    )

    def __init__(
        self,
        context: DatabaseContext,
        name: str,
        *,
        on_poison: OnPoison | None = None,
        poison_queue: str | None = None,
        retry_after: RetryAfter | None = None,
        create: bool = True,
    ) -> None:
        self._context: Final = context
        self._name: Final = name
        boolean(create, name="create")
        self._retry_after: Final = check_retry_after(retry_after)
        check_on_poison(on_poison, poison_queue)
        schema, unqualified = self._key = queue_key(name)
        self._service: Final = unqualified if schema == DEFAULT_SCHEMA else f"{schema}.{unqualified}"
        self._planned_for: Objects | None = None
        self._plan: DialogPlan | None = None
        self._default_poison_queue: Final = bracketed_queue_name(schema, f"{unqualified}_failed")
        is_default = on_poison == "move" and poison_queue is None
        if is_default:
            poison_queue = self._default_poison_queue
        objects = context.objects()
        if not create and not self._is_complete(objects):
            self._check_unused(self._queue(objects), objects)
            raise BrokerError(
                f"the queue {name!r} is not a work queue, because it has no service {self._service!r}; to make it a work queue, pass create=True"
            )
        if not (self._is_complete(objects) and self._handles_poison(objects, on_poison, poison_queue)):
            if is_default:
                self._check_default_poison_queue(objects)
            context.change(self._create, on_poison=on_poison, poison_queue=poison_queue)

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._name

    def put(
        self,
        body: Any,
        *,
        codec: Codec | None = None,
        at: datetime | timedelta | None = None,
        transaction: Transaction | None = None,
    ) -> uuid.UUID:
        """Adds a message. When the call returns, the message is on disk, unless it belongs to a transaction.

        Args:
            body: The message: bytes, or any object that the codec can encode.
            codec: `json` encodes the object as JSON; `Job.value` decodes it. With None, `body` must be bytes.
            at: The earliest time at which a worker gets the message, or a delay from now; None means now. A datetime must have a time zone.
            transaction: An open transaction of the same database, such as `Job.transaction` of another job: the message
                is added when that transaction commits. None adds it immediately, in a separate transaction.

        Returns:
            The conversation id of the message, for `cancel`. In the job, it is `job.message.conversation_id`.

        Raises:
            SchemaError: Without a codec, `body` is not bytes; or `transaction` is not a `Transaction`.
            OptionError: `body` cannot be encoded, `codec` or `at` is not valid, or `transaction` belongs to another database.
            LockTimeoutError: `transaction` is None, and other writers held the database file for longer than
                `lock_timeout`, or this thread is in the block of a transaction of the same database; pass that
                transaction.
            BrokerError: The message cannot be sent, or cannot be scheduled, because the queue or message delivery is disabled; see its `number`.

        Examples:
            >>> import tempfile
            >>> from datetime import timedelta
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put(b"tomorrow", at=timedelta(days=1))
            ...     _ = queue.put(b"now")
            ...     with queue.take() as job:
            ...         print(job.value)
            b'now'
        """
        message_type, content = _encoded(body, codec)
        due = None if at is None else _due(at, now=self._context.instance.microseconds())
        if transaction is None:
            self._reject_open_block("put the message in it, with `put(..., transaction=t)`, or after the block")
            with Transaction(self._context) as t:
                return self._send(t, message_type, content, due)
        if transaction_database_context(transaction) is not self._context:
            other = transaction_database_context(transaction)
            got = repr(other.name)
            if other.file.path == self._context.file.path:
                got = "the same database, opened by another Instance object; use the queue of that object"
            raise OptionError(
                f"transaction: expected a transaction of the database {self._context.name!r}, which has the queue; got a transaction of {got}"
            )
        return self._send(transaction, message_type, content, due)

    async def aput(
        self,
        body: Any,
        *,
        codec: Codec | None = None,
        at: datetime | timedelta | None = None,
        transaction: Transaction | None = None,
    ) -> uuid.UUID:
        """Adds a message as `put` does, without blocking the event loop. If the task is cancelled, the message is still added.

        Args:
            body: The message: bytes, or any object that the codec can encode.
            codec: `json` encodes the object as JSON; `Job.value` decodes it. With None, `body` must be bytes.
            at: The earliest time at which a worker gets the message, or a delay from now; None means now. A datetime must have a time zone.
            transaction: An open transaction of the same database, to which the message is added as `put` does; None adds it
                immediately, in a separate transaction.

        Returns:
            The conversation id of the message, as `put` does.

        Raises:
            SchemaError: Without a codec, `body` is not bytes; or `transaction` is not a `Transaction`.
            OptionError: `body` cannot be encoded, `codec` or `at` is not valid, or `transaction` belongs to another database.
            LockTimeoutError: As for `put`.
            BrokerError: The message cannot be sent, or cannot be scheduled, because the queue or message delivery is disabled; see its `number`.

        Examples:
            >>> import asyncio, tempfile
            >>> from ssbroker import Instance
            >>> async def main() -> None:
            ...     with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...         queue = instance.queue("Jobs")
            ...         await queue.aput({"resize": "cat.png"}, codec="json")
            ...         async with queue.take() as job:
            ...             print(job.value["resize"])
            >>> asyncio.run(main())
            cat.png
        """
        if transaction is not None:
            # Not in another thread: the calls of a transaction are short.
            return self.put(body, codec=codec, at=at, transaction=transaction)
        return await async_calls.complete(partial(self.put, body, codec=codec, at=at))

    def take(self, *, lease: float = 60.0, timeout: float | None = None, heartbeat: bool = False) -> Job:
        """Returns a job with the next message, as `Database.take` does. At the end of the job, the conversation that `put` began ends.

        A conversation that another sender began stays open until that sender ends it, because more messages may follow.
        A worker that expects no more messages ends the conversation in the transaction of the job:
        `t.end_conversation(job.message.conversation_handle)`.

        After an exception in the block, the message waits for the time that `retry_after` of `Instance.queue` or
        `Database.queue` sets; in the meantime, workers get other messages.

        A job gets no system messages: after an EndDialog or Error message, `take` ends the receiving side of the
        conversation, and it removes DialogTimer messages.

        Args:
            lease: Seconds after which other workers may take the message, unless the job has ended or extended its lease.
            timeout: Seconds to wait for a message; None waits until one arrives, `Instance.stop_workers` is called or the instance is closed.
            heartbeat: Whether a thread extends the lease while the block runs, so that the lease ends early only if the process ends.

        Returns:
            The job, for one `with` block; `bool(job)` is false if no message arrived.

        Raises:
            BrokerError: When the block is entered: the queue is disabled (9617).
            OptionError: An option has an invalid value.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     with queue.take(timeout=0) as job:
            ...         bool(job)
            False
        """
        return Job(
            self._context,
            self._name,
            lease=lease,
            timeout=timeout,
            top=None,
            heartbeat=heartbeat,
            is_work_queue=True,
            retry_after=self._retry_after,
        )

    def run_worker(
        self,
        function: Callable[[Job], object],
        *,
        lease: float = 60.0,
        timeout: float | None = None,
        heartbeat: bool = False,
    ) -> None:
        """Calls a function with each job, one after the other, until `Instance.stop_workers` is called.

        When the function returns, the job is acknowledged. An exception is logged, the message waits for the time of `retry_after`, and the
        worker takes the next job. If jobs cannot be taken, because the queue is disabled or the database cannot be used, the worker logs this
        and tries again after 1, 2 and 4 seconds, and then every 5 seconds. The method also returns if the instance is closed.

        To process several jobs at the same time, call the method in several threads or processes.

        Args:
            function: A function that takes the job, as in the block of `take`.
            lease: As in `take`.
            timeout: Seconds to wait for a message, after which the worker returns; None waits without limit. If jobs could not be
                taken for this time, the worker raises the last error.
            heartbeat: As in `take`.

        Raises:
            BrokerError: The queue has been dropped (15151), or has been disabled for `timeout` seconds (9617).
            StorageError: The database could not be used for `timeout` seconds; raised at once if its file was moved, deleted
                or replaced, or if the instance was opened before this process was forked.
            OptionError: An option has an invalid value, or `function` is a coroutine or generator function.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put({"resize": "cat.png"}, codec="json")
            ...     queue.run_worker(lambda job: print("resizing", job.value["resize"]), timeout=0)
            resizing cat.png
        """
        take = partial(self.take, lease=lease, timeout=timeout, heartbeat=heartbeat)
        worker_loop.run(self._context, take, function, timeout=timeout)

    async def arun_worker(
        self,
        function: Callable[[Job], Awaitable[object]],
        *,
        lease: float = 60.0,
        timeout: float | None = None,  # noqa: ASYNC109  # as `run_worker`, and without an exception
        heartbeat: bool = False,
    ) -> None:
        """Awaits a coroutine function with each job, one after the other, as `run_worker` does, without blocking the event loop.

        To process several jobs at the same time, start several tasks. The messages of a task that is cancelled return to the queue.

        Args:
            function: A coroutine function that takes the job, as in the block of `take`.
            lease: As in `take`.
            timeout: Seconds to wait for a message, after which the worker returns; None waits without limit. If jobs could not be
                taken for this time, the worker raises the last error.
            heartbeat: As in `take`.

        Raises:
            BrokerError: The queue has been dropped (15151), or has been disabled for `timeout` seconds (9617).
            StorageError: The database could not be used for `timeout` seconds; raised at once if its file was moved, deleted
                or replaced, or if the instance was opened before this process was forked.
            OptionError: An option has an invalid value, or `function` is not a coroutine function.

        Examples:
            >>> import asyncio, tempfile
            >>> from ssbroker import Instance, Job
            >>> async def resize(job: Job) -> None:
            ...     print("resizing", job.value["resize"])
            >>> async def main() -> None:
            ...     with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...         queue = instance.queue("Jobs")
            ...         await queue.aput({"resize": "cat.png"}, codec="json")
            ...         await queue.arun_worker(resize, timeout=0)
            >>> asyncio.run(main())
            resizing cat.png
        """
        take = partial(self.take, lease=lease, timeout=timeout, heartbeat=heartbeat)
        await worker_loop.arun(self._context, take, function, timeout=timeout)

    def requeue(self, *, conversation_handle: uuid.UUID | str | bytes | None = None) -> int:
        """Moves failed messages back from the poison queue to this queue, as `Database.requeue` does.

        Args:
            conversation_handle: The conversation whose message is moved back; None means all conversations.

        Returns:
            The number of messages that can be taken again.

        Raises:
            BrokerError: The conversation has not been moved, or its message is leased.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs", on_poison="move", retry_after=0)
            ...     _ = queue.put(b"resize cat.png")
            ...     for _ in range(5):
            ...         try:
            ...             with queue.take() as job:
            ...                 raise OSError("the disk is full")
            ...         except OSError:
            ...             pass
            ...     with instance.queue("Jobs_failed").take() as job:
            ...         print(job.value)
            ...     queue.requeue()
            b'resize cat.png'
            0
        """
        return poison_message_handling.requeue(self._context, self._name, conversation_handle)

    def cancel(self, conversation_id: uuid.UUID | str | bytes) -> bool:
        """Removes a message that `put` has added, unless a worker has taken it.

        Args:
            conversation_id: The conversation id that `put` or `aput` returned.

        Returns:
            Whether the message was removed. False if a job currently holds the message, or if it was taken or removed before.

        Raises:
            InvalidGuidError: `conversation_id` is not a GUID.
            LockTimeoutError: Other writers held the database file for longer than `lock_timeout`, or this thread is in the block of a
                transaction of the same database.

        Examples:
            >>> import tempfile
            >>> from datetime import timedelta
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     reminder = queue.put(b"remind them", at=timedelta(days=1))
            ...     queue.cancel(reminder), queue.cancel(reminder)
            (True, False)
        """
        wanted = guid_bytes(conversation_id, name="conversation_id")
        self._reject_open_block("cancel the message before or after the block")
        with Transaction(self._context) as transaction, work_of(transaction) as work:
            initiator = conversation_endpoints.by_conversation(work.connection, wanted, is_initiator=True)
            service = work.objects.services.get(self._service)
            if initiator is None or service is None or initiator.service_id != service.service_id:
                return False
            return work_queue_conversations.cancel_job(work, initiator)

    def count(self) -> int:
        """Returns the number of messages, including those that are leased or scheduled for later.

        Messages that were moved after failures are not counted. Nor are messages that have not been delivered yet
        because the queue or the broker is disabled; `sys.transmission_queue` shows those. If another sender ends its
        conversation, the EndDialog message is counted until the next `take`.

        Raises:
            BrokerError: The queue has been dropped (15151).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put(b"resize cat.png")
            ...     queue.count()
            1
        """
        queue_id = self._queue(self._context.objects()).queue_id
        return self._context.file.query(lambda connection: queues.count_messages(connection, queue_id))

    def clear(self) -> int:
        """Removes all messages that `put` has added, including those that are leased or scheduled for later.

        A running job that holds such a message ends with LeaseLostError. A large queue is cleared in several
        transactions, so that other transactions can write in between.

        Returns:
            The number of messages that were removed. Messages from other senders stay, as do messages that have not been delivered yet
            because the queue or the broker is disabled.

        Raises:
            BrokerError: The queue has been dropped (15151).
            LockTimeoutError: Other writers held the database file for longer than `lock_timeout`, and earlier transactions may have removed
                messages; or this thread is in the block of a transaction of the same database.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put(b"resize cat.png")
            ...     queue.clear(), queue.count()
            (1, 0)
        """
        self._reject_open_block("clear the queue before or after the block")
        removed = last = 0
        end: int | None = None  # the number of the last message that is in the queue when the method is called
        while True:
            with Transaction(self._context) as transaction, work_of(transaction) as work:
                queue_id = self._queue(work.objects).queue_id
                end = queues.last_queuing_order(work.connection) if end is None else end
                found = queues.next_messages(work.connection, queue_id, after=last, until=end, limit=CLEARED_MAX)
                if not found:
                    return removed
                last, _ = found[-1]
                for endpoint_id in dict.fromkeys(endpoint_id for _, endpoint_id in found):
                    removed += work_queue_conversations.remove_job(
                        work, conversation_endpoints.by_id(work.connection, endpoint_id)
                    )

    def drop(self) -> None:
        """Removes the queue and its service, with all messages that `put` has added, including those that were moved after failures.

        If failed messages are moved to the queue `NAME_failed`, it is removed too, unless something else uses it.

        Raises:
            BrokerError: Other conversations use the service, another queue moves failed messages to this queue, or this
                queue has already been dropped. Nothing was removed.
            LockTimeoutError: Other writers held the database file for longer than `lock_timeout`, or this thread is in the block of a
                transaction of the same database. Nothing was removed.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     instance.queue("Jobs").drop()
            ...     instance.view("sys.service_queues").num_rows
            0
        """
        self._reject_open_block("drop the queue before or after the block")
        with Transaction(self._context) as transaction, work_of(transaction) as work:
            service = existing(work.objects.services, self._service, kind="service", database=self._context.name)
            failed = work.objects.queues_by_id.get(self._queue(work.objects).poison_queue_id or 0)
            for endpoint in conversation_endpoints.of_service(work.connection, service.service_id):
                if work.objects.is_of_work_queue(endpoint):
                    work_queue_conversations.clean_up(work, endpoint)
            object_ddl.drop_service(work.connection, work.objects, name=self._service)
            object_ddl.drop_queue(work.connection, self._context.objects(work.connection), name=self._name)
            default = self._default_poison_queue
            if failed is not None and (failed.schema_name, failed.name) == queue_key(default):
                with suppress(BrokerError):  # a service or another queue uses it
                    object_ddl.drop_queue(work.connection, self._context.objects(work.connection), name=default)
        self._context.instance.listener.changed(self._context)

    def _reject_open_block(self, remedy: str) -> None:
        """Raises an error if this thread or task is in a transaction block: rolling the block back would not undo what another transaction commits."""
        file = self._context.file
        file.check_fork()
        is_task = file.write_lock.is_held_by_this_task
        if is_task or get_ident() in list(self._context.holders_in_transactions.values()):
            raise LockTimeoutError(
                f"{file.path}: this {'task' if is_task else 'thread'} is in the block of a transaction `t` of the database; {remedy}",
                file=str(file.path),
            )

    def _set_poison_handling(
        self,
        connection: Connection,
        objects: Objects,
        on_poison: OnPoison | None,
        poison_queue: str | None,
        *,
        is_new: bool,
    ) -> None:
        """Creates the queue for failed messages if it is missing, and alters this queue if its settings differ.

        A change is logged as a warning, because two programs with different options would change the queue back and forth.
        """
        if on_poison == "move" and poison_queue is not None and queue_key(poison_queue) not in objects.queues:
            _check_case(objects, poison_queue)
            object_ddl.create_queue(
                connection,
                objects,
                name=poison_queue,
                settings=QueueSettings(status=True, poison_message_handling=True),
            )
            objects = self._context.objects(connection)
        if not self._handles_poison(objects, on_poison, poison_queue):
            before = _poison_handling(objects, self._queue(objects))
            object_ddl.alter_queue(
                connection,
                objects,
                name=self._name,
                settings=QueueSettings(),
                on_poison=on_poison,
                poison_queue=poison_queue,
            )
            objects = self._context.objects(connection)
            if not is_new:
                with print_logging_errors():
                    _LOGGER.warning(
                        "%s: on_poison of the work queue %r changes from %s to %s, for all programs",
                        self._context.name,
                        self._name,
                        before,
                        _poison_handling(objects, self._queue(objects)),
                    )

    def _handles_poison(self, objects: Objects, on_poison: str | None, poison_queue: str | None) -> bool:
        """Returns whether the poison message handling of the queue already matches the options; None matches any setting."""
        if on_poison is None and poison_queue is None:
            return True
        if poison_queue is not None and queue_key(poison_queue) not in objects.queues:
            return False
        values = object_ddl.poison_values(objects, self._name, on_poison, poison_queue)
        return objects.queues[self._key].poison_queue_id == values["poison_queue_id"]

    def _queue(self, objects: Objects) -> Queue:
        return existing(objects.queues, self._key, kind="queue", database=self._context.name)

    def _is_complete(self, objects: Objects) -> bool:
        return (
            self._key in objects.queues
            and (service := objects.services.get(self._service)) is not None
            and objects.queues_by_id[service.queue_id] is objects.queues[self._key]
            and WORK_QUEUE_CONTRACT in objects.contracts
        )

    def _check_unused(self, queue: Queue, objects: Objects) -> None:
        """Raises an error if another service uses the queue: messages sent to that service would be taken as jobs, and its receivers would get jobs."""
        users = objects.services_of(queue)
        if users and all(service.name != self._service for service in users):
            raise BrokerError(
                f"the queue {self._name!r} is not a work queue: it has {_named(users)}, so workers would also take "
                "messages that are not jobs. Choose another name for the work queue"
            )

    def _check_default_poison_queue(self, objects: Objects) -> None:
        """Raises an error if the default poison queue of this queue has a service, and thus receives messages of its own."""
        queue = objects.queues.get(queue_key(self._default_poison_queue))
        users = () if queue is None else objects.services_of(queue)
        if users:
            raise BrokerError(
                f'on_poison="move" would move failed messages of {self._name!r} to the queue {self._default_poison_queue}, which has '
                f"{_named(users)}: programs that receive from this queue would process the failed messages as their own. Specify another queue with poison_queue=..."
            )

    def _create(
        self, connection: Connection, objects: Objects, *, on_poison: OnPoison | None, poison_queue: str | None
    ) -> None:
        """Creates the queue, its service, the contract and the message types where missing, and sets the poison message handling."""
        if JSON not in objects.message_types:
            object_ddl.create_message_type(connection, objects, name=JSON, validation="NONE")
            objects = self._context.objects(connection)
        if WORK_QUEUE_CONTRACT not in objects.contracts:
            messages = {DEFAULT: "INITIATOR", JSON: "INITIATOR"}
            object_ddl.create_contract(connection, objects, name=WORK_QUEUE_CONTRACT, messages=messages)
            objects = self._context.objects(connection)
        is_new = self._key not in objects.queues
        if is_new:
            _check_case(objects, self._name)
            settings = QueueSettings(status=True, poison_message_handling=True)
            object_ddl.create_queue(connection, objects, name=self._name, settings=settings)
            objects = self._context.objects(connection)
        service = objects.services.get(self._service)
        if service is None:
            self._check_unused(self._queue(objects), objects)
            object_ddl.create_service(
                connection, objects, name=self._service, queue=self._name, contracts=[WORK_QUEUE_CONTRACT]
            )
        elif (other := objects.queues_by_id[service.queue_id]) is not objects.queues[self._key]:
            raise BrokerError(
                f"the service {self._service!r} exists on the queue {bracketed_queue_name(other.schema_name, other.name)}; "
                "choose another name for the work queue"
            )
        self._set_poison_handling(connection, self._context.objects(connection), on_poison, poison_queue, is_new=is_new)

    def _send(self, transaction: Transaction, message_type: str, content: bytes | None, due: int | None) -> uuid.UUID:
        with work_of(transaction) as work:
            if due is not None and due <= work.now():
                due = None
            if due is not None:
                self._check_schedulable(work)
            plan = self._dialog_plan(work.objects)
            sent = None if plan is None else work_queue_conversations.send_first(work, plan, message_type, content)
            if sent is None:
                sent = self._send_in_steps(work, message_type, content)
            if due is not None:
                if sent.group is None:
                    raise BrokerError(
                        f"the message cannot be scheduled, because a route of the database {work.database!r} leads from its "
                        f"service {self._service!r} to another instance"
                    )
                lease.schedule(work, sent.group, work.objects.queues[self._key].queue_id, until=due)
        return uuid.UUID(bytes=sent.conversation_id)

    def _check_schedulable(self, work: Work) -> None:
        """Raises an error if a message would wait in the transmission queue, which has no times."""
        if not work.objects.broker.is_delivering:
            raise BrokerError(
                f"the message cannot be scheduled, because message delivery is disabled in the database {work.database!r}; "
                'enable it with Database.set_broker("ENABLE_BROKER"), or ALTER DATABASE ... SET ENABLE_BROKER'
            )
        queue = self._queue(work.objects)
        if not queue.is_enqueue_enabled:
            error = poison_message_handling.disabled_error(work.connection, queue)
            raise BrokerError(f"the message cannot be scheduled: {error}", number=error.number)

    def _dialog_plan(self, objects: Objects) -> DialogPlan | None:
        if self._planned_for is not objects:
            self._plan = work_queue_conversations.plan(objects, self._service, WORK_QUEUE_CONTRACT)
            self._planned_for = objects
        return self._plan

    def _send_in_steps(self, work: Work, message_type: str, content: bytes | None) -> FirstMessage:
        """Begins a dialog and sends a message, without the fast path."""
        endpoint = dialog_lifecycle.begin(
            work,
            self._service,
            self._service,
            broker_instance=dialog_lifecycle.CURRENT_DATABASE,
            contract=WORK_QUEUE_CONTRACT,
            lifetime=None,
            encryption=False,
            related_conversation=None,
            related_conversation_group=None,
        )
        sending.send_one(work, endpoint, message_type, content)
        target = conversation_endpoints.by_conversation(work.connection, endpoint.conversation_id, is_initiator=False)
        return FirstMessage(endpoint.conversation_id, None if target is None else target.conversation_group_id)

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied: a queue belongs to an open instance of this process.

        Raises:
            TypeError: Always.
        """
        self._context.__reduce__()

    def __repr__(self) -> str:
        return f"WorkQueue({self._name!r}, database={self._context.name!r})"


def _named(services: Sequence[Service]) -> str:
    return refusal_texts.named("service", [service.name for service in services])


def _poison_handling(objects: Objects, queue: Queue) -> str:
    """Returns what happens to messages that fail five times, for the log."""
    if queue.poison_queue_id is None:
        return "'disable'"
    return f"'move' to {plain_queue_name(objects.queues_by_id[queue.poison_queue_id])}"


def _check_case(objects: Objects, name: str) -> None:
    """Raises an error if the name of a new queue differs from an existing one only in case: after a typo, producers and workers would use different queues."""
    schema, unqualified = queue_key(name)
    similar = similar_queue(objects, QueueName(None, schema, unqualified))
    if similar in objects.queues:
        taken = refusal_texts.already_exists("queue", ".".join(similar))
        raise refusal(f"{taken}, and {name!r} differs from it only in case; use the existing name", 2714)


def _due(at: object, *, now: int) -> int:
    """Returns the time at which a worker may get a message, in microseconds since 1970; `at` is a time, or a delay from now."""
    if isinstance(at, timedelta):
        try:
            at = EPOCH + timedelta(microseconds=now) + at
        except OverflowError as error:
            raise OptionError(f"at: expected a delay that ends before the year 10000, got {at!r}") from error
    if not isinstance(at, datetime):
        raise OptionError(f"at: expected a datetime, a timedelta or None, got {at!r:.80} ({type(at).__name__})")
    return epoch_microseconds(utc_datetime(at, name="at"))


def _encoded(body: object, codec: object) -> tuple[str, bytes | None]:
    """Returns the message type and the stored body."""
    if codec is None:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise SchemaError(
                f'body: expected bytes, got {type(body).__name__}; encode it, or use put(..., codec="json")',
                column="body",
            )
        return DEFAULT, sending.body_bytes(body)
    if codec != "json":
        raise OptionError(f"codec: expected 'json' or None; got {codec!r:.80}")
    try:
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # surrogates, too
        raise OptionError(f"body: cannot be encoded as JSON: {error}") from error
    return JSON, sending.body_bytes(content)
