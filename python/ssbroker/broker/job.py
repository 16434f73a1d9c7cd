"""Jobs: the messages of one conversation group, received with a lease."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self
from weakref import WeakMethod

from ssbroker._arguments import EPOCH, boolean, duration_seconds, integer_argument, is_utf8_text, timeout_seconds
from ssbroker._text import count_of
from ssbroker.broker import async_calls
from ssbroker.broker.context import DatabaseContext, JobOutcome, log_failure
from ssbroker.broker.dialogs import lease as leasing
from ssbroker.broker.dialogs import work_queue_conversations
from ssbroker.broker.dialogs.lease import Claim
from ssbroker.broker.job_retry_delays import RetryAfter, default_delay, delay_after
from ssbroker.broker.lease_heartbeat import LeaseHeartbeat
from ssbroker.broker.object_names import queue_key
from ssbroker.broker.receive_wait import ReceiveWait
from ssbroker.broker.received_message import Message, identities_of
from ssbroker.broker.transaction import COUNT_MAX, Transaction, work_of
from ssbroker.broker.unit_of_work import Work, database_transaction
from ssbroker.exceptions import BrokerError, InputError, LeaseLostError, OptionError, SsbrokerError
from ssbroker.protocol.settings import SECOND
from ssbroker.store.leases import Lease
from ssbroker.store.write_lock import holder_of_caller

JSON: Final = "application/json"
"""The message type of bodies that `Job.value` decodes."""

LEASE_MIN: Final = 0.001
"""The shortest lease, in seconds."""
_JOB_FAILED: Final = "the job failed"
_NO_MESSAGES: Final = "the job has no messages; check `if job:` first"


class Job:
    """The messages of one conversation group, received with a lease, for use in a `with` block: `with database.take("Orders") as job:`.

    While the block runs, no transaction is open, so that other processes can write. While the lease lasts, no other
    receiver gets messages of the conversation group. At the end of the block, the messages are acknowledged: they are
    removed from the queue. If the block raises an exception, or its process is killed and the lease ends, the messages
    return to the queue and are received again. Put work that must happen exactly once into `transaction`, which
    acknowledges the messages in the same commit.

    A job is false if no message arrived before the timeout. Before its block is entered, it has taken no messages, and
    `bool(job)` raises `BrokerError`.

    In a coroutine, use `async with`, including for `transaction`: nothing blocks the event loop. If the task is
    cancelled while it waits for messages, none are taken; if it is cancelled in the block, the messages return to the
    queue.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Orders")
        ...     sales.create_service("//Orders", queue="Orders")
        ...     with sales.transaction() as t:
        ...         _ = t.connection.execute("CREATE TABLE invoices (body)")
        ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
        ...     with sales.take("Orders", lease=60) as job:
        ...         invoice = job.value.upper()  # slow work, which blocks nobody
        ...         with job.transaction() as t:
        ...             _ = t.connection.execute("INSERT INTO invoices VALUES (?)", (invoice,))
        ...     instance.view("dbo.Orders").num_rows
        0
    """

    __slots__ = (
        "__weakref__",
        "_context",
        "_has_entered",
        "_has_heartbeat",
        "_heartbeat",
        "_is_over",
        "_is_work_queue",
        "_key",
        "_lease",
        "_messages",
        "_options",
        "_outcome",
        "_queue",
        "_retry_after",
        "_span",
        "_timeout",
        "_transaction",
    )

    def __init__(
        self,
        context: DatabaseContext,
        queue: str,
        *,
        lease: float,
        timeout: float | None,
        top: int | None,
        heartbeat: bool = False,
        is_work_queue: bool = False,
        retry_after: RetryAfter = 0.0,
    ) -> None:
        self._context: Final = context
        self._queue: Final = queue
        self._key: Final = queue_key(queue)
        self._options: Final = (
            None if top is None else integer_argument(top, name="top", minimum=1, maximum=COUNT_MAX),
            round(duration_seconds(lease, name="lease", minimum=LEASE_MIN) * SECOND),
        )
        self._timeout: Final = None if timeout is None else timeout_seconds(timeout, name="timeout")
        self._has_heartbeat: Final = boolean(heartbeat, name="heartbeat")
        self._heartbeat: LeaseHeartbeat | None = None
        self._is_work_queue: Final = is_work_queue
        self._retry_after: Final = retry_after
        self._lease: Lease | None = None
        self._has_entered = False
        self._is_over = True
        self._span: AbstractContextManager[JobOutcome] | None = None
        self._outcome: JobOutcome | None = None
        self._messages: tuple[Message, ...] = ()
        self._transaction: Transaction | None = None

    def __enter__(self) -> Self:
        deadline = self._begin()
        try:
            claimed = self._claim()
            while claimed is None and self._wait_until(deadline).wait():
                claimed = self._claim()
            self._start(claimed)
        except SsbrokerError:  # nothing was claimed
            raise
        except BaseException:  # an interrupt, or no system thread is available; __exit__ will not be called
            self._give_back()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._ended_span(error):
                self._end(error)
        except BaseException:
            if not self._is_over:  # an interrupt came before `_end`
                self._give_back()
            raise

    def _end(self, error: BaseException | None) -> None:
        if self._is_over:
            return
        if error is None:
            try:
                with self.transaction():
                    pass
            except BaseException as failure:  # not acknowledged, for example because of a lock timeout
                if not self._is_over:
                    self._give_back(failure)
                raise
            return
        self._give_back(error)

    @contextmanager
    def _ended_span(self, error: BaseException | None) -> Iterator[None]:
        """Ends the span of the job after the block, with the error of the job or of its acknowledgement."""
        span, self._span = self._span, None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if span is not None:
                with suppress(Exception):  # a failure of tracing does not change how the job ends
                    if error is None:
                        span.__exit__(None, None, None)
                    else:
                        span.__exit__(type(error), error, error.__traceback__)

    async def __aenter__(self) -> Self:
        deadline = self._begin()
        claimed = await async_calls.acquire(self._claim, undo=self._return_claim)
        while claimed is None and await async_calls.wait(self._wait_until(deadline)):
            claimed = await async_calls.acquire(self._claim, undo=self._return_claim)
        try:
            self._start(claimed)
        except BaseException:  # no system thread is available; __aexit__ will not be called
            self._give_back()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._ended_span(error):
            await async_calls.leave(lambda _exc_type, failure, _trace: self._end(failure), exc_type, error, trace)

    def __bool__(self) -> bool:
        return bool(self.messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages in reading order; empty if none arrived before the timeout."""
        self._check_entered()
        return self._messages

    @property
    def message(self) -> Message:
        """The first message.

        Raises:
            BrokerError: The job has no messages.
        """
        if not self.messages:
            raise BrokerError(_NO_MESSAGES)
        return self._messages[0]

    @property
    def value(self) -> Any:
        """The body of the first message: decoded if its message type is `application/json`, otherwise bytes, or None without a body.

        Raises:
            BrokerError: The job has no messages.
            InputError: The body cannot be decoded; `message.message_body` contains its bytes.
        """
        message = self.message
        body = message.message_body
        if body is None or message.message_type_name != JSON:
            return body
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"message_body: expected JSON, because the message type is {JSON}: {error}", column="message_body"
            ) from error

    @property
    def conversation_group_id(self) -> uuid.UUID:
        """The conversation group of the messages."""
        return uuid.UUID(bytes=self._held_lease().conversation_group_id)

    @property
    def attempt(self) -> int:
        """How many times messages of this conversation group have been taken since the last acknowledgement, including this time."""
        return self._held_lease().attempts

    @property
    def lease_ends_at(self) -> datetime:
        """When the lease ends; after that, another receiver may take the messages."""
        return EPOCH + timedelta(microseconds=self._held_lease().until)

    def transaction(self) -> Transaction:
        """Returns the transaction that acknowledges the messages and ends the job.

        The transaction holds the write lock of the database file, so do slow work before you enter its block. If it is
        rolled back, the job continues.

        Returns:
            A `Transaction`, to send and receive messages, end conversations, and write the application's tables.

        Raises:
            LeaseLostError: When the block is entered: the lease ended and another receiver took the messages, or their conversation was ended. Nothing is committed.
            BrokerError: The job has ended.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     with sales.transaction() as t:
            ...         t.send(t.begin_dialog("//Orders", "//Orders"), b"two chairs")
            ...     with sales.take("Orders") as job, job.transaction() as t:
            ...         t.end_conversation(job.message.conversation_handle)
            ...     instance.view("dbo.Orders")["message_type_name"].to_pylist()
            ['http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog']
        """
        return _JobTransaction(self._context, self)

    def extend(self, lease: float) -> None:
        """Extends the lease, in a separate transaction. Another thread may call this method, to keep the lease during one long step.

        Args:
            lease: Seconds from now after which the lease ends.

        Raises:
            LeaseLostError: The lease ended and another receiver took the messages.
            BrokerError: The job has ended.
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put(b"two chairs")
            ...     with queue.take(lease=60) as job:
            ...         job.extend(600)
        """
        self._check()
        microseconds = round(duration_seconds(lease, name="lease", minimum=LEASE_MIN) * SECOND)
        self._extend(microseconds)

    async def aextend(self, lease: float) -> None:
        """Extends the lease as `extend` does, without blocking the event loop.

        Args:
            lease: Seconds from now after which the lease ends.

        Raises:
            LeaseLostError: The lease ended and another receiver took the messages.
            BrokerError: The job has ended.
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import asyncio, tempfile
            >>> from ssbroker import Instance
            >>> async def main() -> None:
            ...     with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...         queue = instance.queue("Jobs")
            ...         await queue.aput(b"two chairs")
            ...         async with queue.take(lease=60) as job:
            ...             await job.aextend(600)
            >>> asyncio.run(main())
        """
        await async_calls.complete(partial(self.extend, lease))

    def retry(self, *, after: float = 0.0) -> None:
        """Returns the messages to their previous place in the queue, and ends the job. They can be received again after `after` seconds.

        A retry does not count as a failure for poison message handling; `attempt` is the number of times the messages
        have been taken.

        Args:
            after: Seconds until the messages can be received again, at most 366 days.

        Raises:
            LeaseLostError: The lease ended and another receiver took the messages.
            BrokerError: The job has ended.
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs")
            ...     _ = queue.put(b"two chairs")
            ...     with queue.take() as job:
            ...         job.retry(after=30)
            ...     with queue.take(timeout=0) as job:
            ...         bool(job)
            False
        """
        self._check()
        microseconds = round(duration_seconds(after, name="after", minimum=0) * SECOND)
        with database_transaction(self._context) as work:
            leasing.retry(work, self._held_lease(), microseconds=microseconds)
        self._ended_with("retry")

    async def aretry(self, *, after: float = 0.0) -> None:
        """Returns the messages to the queue and ends the job as `retry` does, without blocking the event loop.

        Args:
            after: Seconds until the messages can be received again, at most 366 days.

        Raises:
            LeaseLostError: The lease ended and another receiver took the messages.
            BrokerError: The job has ended.
            OptionError: An argument has an invalid type or value.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import asyncio, tempfile
            >>> from ssbroker import Instance
            >>> async def main() -> None:
            ...     with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...         queue = instance.queue("Jobs")
            ...         await queue.aput(b"two chairs")
            ...         async with queue.take() as job:
            ...             await job.aretry(after=30)
            >>> asyncio.run(main())
        """
        await async_calls.complete(partial(self.retry, after=after))

    def fail(self, reason: str = _JOB_FAILED) -> None:
        """Ends the job as if it had failed five times: its messages are moved to another queue, or the queue is disabled.

        The queue's option `on_poison` determines which of the two happens. Without poison message handling, the messages return to the queue.

        Args:
            reason: The error to record, which `sys.dm_broker_failures` and `ssbroker status` show; only its first 2,000 characters are
                stored. For an empty text, such as that of some exceptions, `the job failed` is recorded.

        Raises:
            LeaseLostError: The lease ended and another receiver took the messages.
            BrokerError: The job has ended.
            OptionError: `reason` is not a string.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...     queue = instance.queue("Jobs", on_poison="move")
            ...     _ = queue.put(b"a chair for Mars")
            ...     with queue.take() as job:
            ...         job.fail("no such planet")
            ...     queue.count(), instance.queue("Jobs_failed").count()
            (0, 1)
        """
        self._check()
        if not is_utf8_text(reason):
            raise OptionError(f"reason: expected a string that can be encoded as UTF-8, got {reason!r:.80}")
        reason = reason if reason.strip() else _JOB_FAILED
        retry_after = self._retry_microseconds()
        try:
            with database_transaction(self._context) as work:
                leasing.fail_for_good(work, self._held_lease(), reason, retry_after=retry_after)
                self._is_over = True  # before the commit: another thread could extend the lease afterwards
        except BaseException:
            self._is_over = False
            raise
        self._ended_with("fail", reason)

    async def afail(self, reason: str = _JOB_FAILED) -> None:
        """Ends the job as if it had failed five times, as `fail` does, without blocking the event loop.

        Args:
            reason: The error to record, which `sys.dm_broker_failures` and `ssbroker status` show; only its first 2,000 characters are
                stored. For an empty text, such as that of some exceptions, `the job failed` is recorded.

        Raises:
            LeaseLostError: The lease ended and another receiver took the messages.
            BrokerError: The job has ended.
            OptionError: `reason` is not a string.
            LockTimeoutError: Another transaction held the write lock for longer than `lock_timeout`.

        Examples:
            >>> import asyncio, tempfile
            >>> from ssbroker import Instance
            >>> async def main() -> None:
            ...     with tempfile.TemporaryDirectory() as folder, Instance.open(folder, create=True) as instance:
            ...         queue = instance.queue("Jobs", on_poison="move")
            ...         await queue.aput(b"a chair for Mars")
            ...         async with queue.take() as job:
            ...             await job.afail("no such planet")
            >>> asyncio.run(main())
        """
        await async_calls.complete(partial(self.fail, reason))

    def _extend(self, microseconds: int, *, is_heartbeat: bool = False) -> None:
        with database_transaction(self._context) as work:
            # The job may have ended while this thread waited for the lock.
            if is_heartbeat and self._is_over:
                return
            self._check()
            extended = leasing.extend(work, self._held_lease(), microseconds=microseconds)
        self._lease = extended

    def _extend_by_heartbeat(self) -> None:
        self._extend(self._options[1], is_heartbeat=True)

    def _begin(self) -> float | None:
        """Begins the block; returns the time until which to wait for messages, or None to wait without a limit."""
        if self._has_entered:
            raise BrokerError("a job can be entered only once; take another job")
        self._has_entered = True
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _claim(self) -> Claim | None:
        if self._context.instance.has_stopped_workers:
            return None
        top, lease = self._options
        return leasing.claim(
            self._context,
            self._queue,
            top=top,
            microseconds=lease,
            is_work_queue=self._is_work_queue,
            before_commit=self._set_lease,
        )

    def _set_lease(self, lease: Lease) -> None:
        self._lease = lease

    def _return_claim(self, claimed: Claim | None) -> None:
        """Returns the messages of a claim to the queue, because the task was cancelled before it got them."""
        if claimed is not None:
            self._give_back()

    def _wait_until(self, deadline: float | None) -> ReceiveWait:
        return _JobWait(self._context, self._key, deadline=deadline)

    def _start(self, claimed: Claim | None) -> None:
        if claimed is None:
            return
        self._is_over = False
        self._start_heartbeat()
        self._messages = tuple(map(Message, claimed.messages))
        self._start_span(attempt=claimed.lease.attempts)

    def _start_heartbeat(self) -> None:
        if self._has_heartbeat:
            _, lease = self._options
            self._heartbeat = LeaseHeartbeat(
                self._context, WeakMethod(self._extend_by_heartbeat), seconds=lease / SECOND
            )
            self._heartbeat.start()

    def _start_span(self, *, attempt: int) -> None:
        tracing = self._context.instance.tracing
        if tracing is None:
            return
        try:
            span = tracing.job(self._context.name, self._queue, identities_of(self._messages), attempt=attempt)
            self._outcome = span.__enter__()
            self._span = span
        except Exception as error:  # noqa: BLE001  # a failure of tracing does not change how the job runs
            log_failure(self._context, "the tracing span of a job could not be started; the job runs without it", error)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _acknowledge(self, work: Work) -> None:
        leasing.acknowledge(work, self._held_lease(), [message.queuing_order for message in self._messages])

    def _give_back(self, error: BaseException | None = None) -> None:
        """Ends the lease if this job still has it, and counts an error as a failure. If that fails, it is only logged: the caller raises its own error."""
        if self._lease is None:
            return
        try:
            self._release(error)
        except BaseException:  # an interrupt may have kept it from committing
            self._release(error)
            raise

    def _release(self, error: BaseException | None) -> None:
        """Ends an open transaction of the job, then the lease."""
        self._ended_with("give back")
        transaction, self._transaction = self._transaction, None
        if transaction is not None:  # an interrupt came before its end
            transaction._abandon()  # noqa: SLF001
        # An interrupt, or the end of the program, says nothing about the messages.
        failed_with = error if isinstance(error, Exception) else None
        retry_after = 0 if failed_with is None else self._retry_microseconds()
        try:
            with database_transaction(self._context) as work:
                leasing.release(work, self._held_lease(), exception=failed_with, retry_after=retry_after)
        except SsbrokerError as failure:
            log_failure(
                self._context,
                "the messages of a job could not be returned to the queue; they are received again when its lease ends",
                failure,
            )

    def _ended_with(self, outcome: str, failed_with: str | None = None) -> None:
        self._is_over = True
        self._stop_heartbeat()
        if self._outcome is not None:
            with suppress(Exception):  # a failure of tracing does not change how the job ends
                self._outcome(outcome, failed_with)

    def _retry_microseconds(self) -> int:
        """Returns how long the messages wait after a failure. An error in the application's `retry_after` function is logged, and the default is used."""
        failures = self._held_lease().failures + 1
        try:
            seconds = delay_after(self._retry_after, failures)
        except Exception as error:  # noqa: BLE001  # the caller raises the error of the job
            log_failure(
                self._context, "retry_after failed; the messages of a failed job wait for the default time", error
            )
            seconds = default_delay(failures)
        return round(seconds * SECOND)

    def _check_entered(self) -> None:
        if not self._has_entered:
            raise BrokerError("the job is not open: use it inside its `with` block")

    def _check(self) -> None:
        if self._is_over:
            if not self.messages:
                raise BrokerError(_NO_MESSAGES)
            raise BrokerError("the job has ended; take another job")

    def _held_lease(self) -> Lease:
        self._check_entered()
        if self._lease is None:
            raise BrokerError(_NO_MESSAGES)
        return self._lease

    def __reduce__(self) -> NoReturn:
        """Refuses to be pickled or copied: a job belongs to this process.

        Raises:
            TypeError: Always.
        """
        self._context.__reduce__()

    def __repr__(self) -> str:
        if not self._has_entered:
            return f"<Job of queue {self._queue!r}, not open>"
        state = "over" if self._is_over else f"leased until {self.lease_ends_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"<Job of queue {self._queue!r}, {count_of(len(self._messages), 'message')}, {state}>"


class _JobWait(ReceiveWait):
    """The wait of a job, which `Instance.stop_workers` ends."""

    def wait(self) -> bool:
        instance = self._database.instance
        try:
            instance.waiting_jobs.add(self)
            return not instance.has_stopped_workers and super().wait()
        finally:
            instance.waiting_jobs.discard(self)


class _JobTransaction(Transaction):
    """A transaction that acknowledges the messages of a job, and ends their conversations if `put` began them."""

    __slots__ = ("_job",)

    def __init__(self, context: DatabaseContext, job: Job) -> None:
        super().__init__(context, holder=holder_of_caller())
        self._job: Final = job

    def __enter__(self) -> Self:
        self._job._check()  # noqa: SLF001  # a part of the job
        super().__enter__()
        self._job._transaction = self  # noqa: SLF001
        try:
            self._prepare_block()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aenter__(self) -> Self:
        self._job._check()  # noqa: SLF001
        try:
            entered = await super().__aenter__()
        except LeaseLostError:
            await async_calls.complete(self._job._give_back)  # noqa: SLF001  # as in `_finish`
            raise
        self._job._transaction = self  # noqa: SLF001  # not earlier: until here, only the worker thread ends the transaction
        return entered

    def _prepare_block(self) -> None:
        with work_of(self) as work:
            self._job._acknowledge(work)  # noqa: SLF001

    def _finish(self, error: BaseException | None) -> None:
        if error is None:
            try:
                with work_of(self) as work:  # at the end, so that the block can use the conversations
                    work_queue_conversations.end_with_job(work, self._job.messages)
            except BaseException as failure:
                super()._finish(failure)
                raise
        super()._finish(error)
        self._job._transaction = None  # noqa: SLF001
        if error is None:
            self._job._ended_with("acknowledge")  # noqa: SLF001
        elif isinstance(error, LeaseLostError):
            self._job._give_back()  # noqa: SLF001  # the other messages of the group can then be received
