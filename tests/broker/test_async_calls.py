"""Receiving and sending in coroutines, on asyncio and Trio; what a cancelled task loses (nothing)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskStatus

from ssbroker import BrokerError, Instance, LeaseLostError, LockTimeoutError, StorageError, Transaction, WorkQueue
from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs import lease as leasing
from ssbroker.broker.dialogs.lease import Claim
from ssbroker.store.session import Session

Run = Callable[[Callable[[], Awaitable[object]]], None]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function on each of the event loops."""

    def run_on(main: Callable[[], Awaitable[object]]) -> None:
        anyio.run(main, backend=request.param)

    return run_on


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.open(tmp_path / "shop", create=True) as opened:
        yield opened


@pytest.fixture
def queue(instance: Instance) -> WorkQueue:
    return instance.queue("Jobs", retry_after=0)


def states(instance: Instance) -> list[str]:
    return instance.view("sys.dm_broker_leases")["state"].to_pylist()  # type: ignore[return-value]  # they are texts


def remaining(queue: WorkQueue) -> list[bytes]:
    """Takes all messages."""
    bodies: list[bytes] = []
    while True:
        with queue.take(timeout=0) as job:
            if not job:
                return bodies
            bodies.append(job.value)


def create_done(instance: Instance) -> None:
    with instance.database("Queues").transaction() as t:
        t.connection.execute("CREATE TABLE done (body)")


def done(instance: Instance) -> list[bytes]:
    with instance.database("Queues").transaction() as t:
        return [body for (body,) in t.connection.execute("SELECT body FROM done ORDER BY rowid")]


def test_a_job_is_put_taken_and_committed(instance: Instance, queue: WorkQueue, run: Run) -> None:
    create_done(instance)

    async def main() -> None:
        put = await queue.aput(b"one")
        await queue.aput({"two": 2}, codec="json")
        async with queue.take(lease=60) as job:
            assert (job.value, job.message.conversation_id) == (b"one", put)
            await job.aextend(120)
            async with job.transaction() as t:
                t.connection.execute("INSERT INTO done VALUES (?)", (job.value,))
        async with queue.take() as job:
            assert job.value == {"two": 2}
            await job.aretry()
        async with queue.take() as job:
            assert job.attempt == 2
        async with queue.take(timeout=0) as job:
            assert not job
        await queue.aput(b"three")
        async with queue.take() as job:
            await job.afail("no such planet")

    run(main)
    assert done(instance) == [b"one"]
    assert instance.view("sys.dm_broker_failures")["error"].to_pylist() == ["no such planet"]


def test_a_waiting_take_leaves_the_event_loop_free(queue: WorkQueue, run: Run) -> None:
    async def main() -> None:
        got: list[bytes] = []

        async def work() -> None:
            async with queue.take() as job:
                got.append(job.value)

        async with anyio.create_task_group() as group:
            for _ in range(50):  # more than an event loop gives threads to
                group.start_soon(work)
            for number in range(50):
                await anyio.lowlevel.checkpoint()
                await queue.aput(b"%d" % number)
        assert sorted(got, key=int) == [b"%d" % number for number in range(50)]

    run(main)


def test_a_dialog_is_held_in_coroutines(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with Instance.create(tmp_path / "dialog", name="shop") as instance:
            shop = instance.create_database("Shop")
            for queue, service in (("Orders", "//Stock"), ("Replies", "//Shop")):
                shop.create_queue(queue)
                shop.create_service(service, queue=queue)

            async def stock() -> None:
                assert await shop.await_message("Orders")
                async with shop.transaction() as t:
                    message = t.receive_one("Orders")
                    assert message is not None
                    t.send(message.conversation_handle, b"reserved")

            async with anyio.create_task_group() as group:
                group.start_soon(stock)
                async with shop.transaction() as t:
                    t.send(t.begin_dialog("//Shop", "//Stock"), b"two chairs")
                assert await shop.await_message("Replies", timeout=30)
            async with shop.transaction() as t:
                assert t.receive("Replies")["message_body"].to_pylist() == [b"reserved"]
            assert not await shop.await_message("Replies", timeout=0.01)
            with pytest.raises(BrokerError, match="15151"):
                await shop.await_message("Nowhere")

    run(main)


def test_an_exception_rolls_back_and_gives_back(instance: Instance, queue: WorkQueue, run: Run) -> None:
    async def main() -> None:
        await queue.aput(b"one")
        with pytest.raises(ZeroDivisionError):
            async with instance.database("Queues").transaction() as t:
                queue.put(b"two", transaction=t)
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with queue.take():
                raise ZeroDivisionError

    run(main)
    assert instance.view("sys.dm_broker_leases")["failures"].to_pylist() == [1]
    assert remaining(queue) == [b"one"]


def test_a_lost_lease_is_an_error(queue: WorkQueue, run: Run) -> None:
    async def main() -> None:
        await queue.aput(b"one")
        with pytest.raises(LeaseLostError):
            async with queue.take(lease=0.001) as job:
                async with queue.take() as other:
                    assert other.value == b"one"
                    async with other.transaction():
                        pass
                async with job.transaction():
                    pytest.fail("two jobs have committed")

    run(main)


def test_a_cancelled_wait_takes_nothing(instance: Instance, queue: WorkQueue, run: Run) -> None:
    async def main() -> None:
        context = database_context(instance.database("Queues"))
        queue_id = context.objects().queues["dbo", "Jobs"].queue_id
        for _ in range(3):
            with anyio.move_on_after(0.01):
                async with queue.take():
                    pytest.fail("there is no message")
        with anyio.move_on_after(0.01):
            await instance.database("Queues").await_message("Jobs")
        with anyio.fail_after(4):  # the threads do not wait until the next check, 5 s later
            while context.commit_signals.waiting(queue_id):  # noqa: ASYNC110  # threads have no events for tasks
                await anyio.sleep(0.01)
        await queue.aput(b"one")

    run(main)
    assert states(instance) == []
    assert remaining(queue) == [b"one"]


def test_a_task_that_asyncio_cancels_during_its_claim_gives_the_message_back(
    instance: Instance, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(b"one")
    has_claimed, may_return = threading.Event(), threading.Event()
    claim = leasing.claim

    def slow_claim(*args: Any, **options: Any) -> Claim | None:
        claimed = claim(*args, **options)
        has_claimed.set()
        may_return.wait(30.0)
        return claimed

    monkeypatch.setattr(leasing, "claim", slow_claim)

    async def take() -> None:
        async with queue.take():
            pytest.fail("it was cancelled before")

    async def main() -> None:
        task = asyncio.create_task(take())
        await asyncio.to_thread(has_claimed.wait, 30.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert states(instance) == ["LEASED"]
        may_return.set()
        while states(instance) != ["READY"]:  # noqa: ASYNC110  # threads have no events for tasks
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert instance.view("sys.dm_broker_leases")["failures"].to_pylist() == [0]
    assert remaining(queue) == [b"one"]


@pytest.mark.parametrize("seed", range(3))
def test_tasks_that_asyncio_cancels_at_random_lose_nothing(instance: Instance, queue: WorkQueue, seed: int) -> None:
    """Each message has its effect once; a cancelled task neither keeps nor loses one, and no cancellation counts as a failure."""
    source = random.Random(seed)
    create_done(instance)
    number = 60

    async def work() -> None:
        async with queue.take() as job:
            await asyncio.sleep(source.random() / 500)
            async with job.transaction() as t:
                t.connection.execute("INSERT INTO done VALUES (?)", (job.value,))
                await asyncio.sleep(source.random() / 500)

    async def worker() -> None:
        while len(done_now) < number:
            with suppress(TimeoutError):
                async with asyncio.timeout(source.random() / 30):
                    await work()
            done_now[:] = await asyncio.to_thread(done, instance)

    done_now: list[bytes] = []

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(worker())
            for each in range(number):
                await queue.aput(b"%d" % each)

    asyncio.run(main())
    assert sorted(done(instance), key=int) == [b"%d" % each for each in range(number)]
    assert remaining(queue) == []
    assert states(instance) == []


@pytest.fixture
def closing_threads(monkeypatch: pytest.MonkeyPatch) -> dict[Session, set[int]]:
    """The threads that close each session, which takes them a while."""
    calls: dict[Session, set[int]] = {}
    close = Session.close

    def slow_close(session: Session) -> None:
        calls.setdefault(session, set()).add(threading.get_ident())
        time.sleep(0.05)
        close(session)

    monkeypatch.setattr(Session, "close", slow_close)
    return calls


@pytest.mark.parametrize("cancelled", ["before the thread has the lock", "after the thread has the lock"])
def test_one_thread_ends_the_transaction_of_a_cancelled_job(
    instance: Instance, queue: WorkQueue, closing_threads: dict[Session, set[int]], cancelled: str
) -> None:
    """A connection that two threads close at once would keep its transaction, and with it the write lock of the file."""
    queue.put(b"one")
    write_lock = database_context(instance.database("Queues")).file.write_lock

    async def main() -> None:
        taken = asyncio.Event()

        async def work() -> None:
            async with queue.take() as job:
                taken.set()
                async with job.transaction():
                    pytest.fail("the task was cancelled before the block")

        task = asyncio.create_task(work())
        await taken.wait()
        with instance.database("Queues").transaction() as holder:
            assert holder.connection.in_transaction
            while not write_lock.waiting:  # noqa: ASYNC110  # threads have no events for tasks
                await asyncio.sleep(0.01)
            if cancelled.startswith("before"):
                task.cancel()
                await asyncio.sleep(0.1)
        if not task.cancelling():
            time.sleep(0.1)  # noqa: ASYNC251  # the thread acquires the lock, and the task does not learn of it
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert remaining(queue) == [b"one"]
    assert [len(threads) for threads in closing_threads.values()] == [1] * len(closing_threads)
    assert states(instance) == []


@pytest.mark.parametrize("cancelled", ["before the thread has the lock", "after the thread has the lock"])
def test_one_thread_ends_the_transaction_of_a_job_in_a_cancelled_scope(
    instance: Instance, queue: WorkQueue, closing_threads: dict[Session, set[int]], run: Run, cancelled: str
) -> None:
    """A cancel scope of anyio, which is the only cancellation in Trio, ends the wait in another way than a task of asyncio."""
    queue.put(b"one")
    write_lock = database_context(instance.database("Queues")).file.write_lock

    async def main() -> None:
        taken, is_locked = anyio.Event(), anyio.Event()

        async def work() -> None:
            async with queue.take() as job:
                taken.set()
                await is_locked.wait()
                async with job.transaction():
                    pytest.fail("the task was cancelled before the block")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await taken.wait()
            with instance.database("Queues").transaction() as holder:
                assert holder.connection.in_transaction
                is_locked.set()
                while not write_lock.waiting:  # noqa: ASYNC110  # threads have no events for tasks
                    await anyio.sleep(0.01)
                if cancelled.startswith("before"):
                    tasks.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(0.1)
            if not tasks.cancel_scope.cancel_called:
                time.sleep(0.1)  # noqa: ASYNC251  # the thread acquires the lock, and the task does not learn of it
                tasks.cancel_scope.cancel()

    run(main)
    assert remaining(queue) == [b"one"]
    assert [len(threads) for threads in closing_threads.values()] == [1] * len(closing_threads)
    assert states(instance) == []


def test_a_commit_completes_although_its_task_is_cancelled(
    instance: Instance, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_done(instance)
    database = instance.database("Queues")
    commits, may_commit = threading.Event(), threading.Event()

    async def write() -> None:
        async with database.transaction() as t:
            t.connection.execute("INSERT INTO done VALUES (?)", (b"one",))
            leave = t._commit

            def slow_commit() -> None:
                commits.set()
                may_commit.wait(30.0)
                leave()

            monkeypatch.setattr(type(t), "_commit", lambda _: slow_commit())

    async def main() -> None:
        task = asyncio.create_task(write())
        await asyncio.to_thread(commits.wait, 30.0)
        task.cancel()
        for _ in range(100):  # the task gets its cancellation
            await asyncio.sleep(0)
        assert not task.done()
        may_commit.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    monkeypatch.undo()
    assert done(instance) == [b"one"]
    assert remaining(queue) == []


def test_the_error_of_a_commit_whose_task_is_cancelled_is_not_lost(
    instance: Instance, queue: WorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = instance.database("Queues")
    commits, may_commit = threading.Event(), threading.Event()

    def failing_commit(_: Transaction) -> None:
        commits.set()
        may_commit.wait(30.0)
        raise StorageError("the disk is full")

    async def write() -> None:
        async with database.transaction() as t:
            queue.put(b"one", transaction=t)
            t.connection.execute("SELECT 1")

    async def main() -> None:
        task = asyncio.create_task(write())
        await asyncio.to_thread(commits.wait, 30.0)
        task.cancel()
        may_commit.set()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert isinstance(cancelled.value.__context__, StorageError)

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "_commit", failing_commit)
        asyncio.run(main())
    assert remaining(queue) == []


def test_many_transactions_wait_for_each_other(instance: Instance, queue: WorkQueue, run: Run) -> None:
    create_done(instance)
    database = instance.database("Queues")

    async def write(number: int) -> None:
        async with database.transaction() as t:
            t.connection.execute("INSERT INTO done VALUES (?)", (number,))
            await anyio.lowlevel.checkpoint()
            queue.put(b"%d" % number, transaction=t)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(write, number)

    run(main)
    assert len(remaining(queue)) == len(done(instance)) == 100


def test_a_plain_transaction_in_the_same_thread_is_refused_at_once(
    instance: Instance, queue: WorkQueue, run: Run
) -> None:
    """It would block the event loop, and so the transaction that it waits for."""
    database = instance.database("Queues")

    async def main() -> None:
        async with database.transaction():
            with pytest.raises(LockTimeoutError, match="async with"), database.transaction() as t:
                queue.put(b"one", transaction=t)
        with database.transaction() as t:
            queue.put(b"two", transaction=t)

    run(main)
    assert remaining(queue) == [b"two"]


def test_waiting_for_the_own_transaction_is_refused_at_once(instance: Instance, queue: WorkQueue, run: Run) -> None:
    """Other tasks wait until it ends."""
    database = instance.database("Queues")

    async def put_later(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await queue.aput(b"two")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            with anyio.fail_after(8):  # less than the timeout of the lock
                async with database.transaction() as t:
                    with pytest.raises(
                        LockTimeoutError, match=r"this task is in the block .* `put\(..., transaction=t\)`"
                    ):
                        await queue.aput(b"lost")
                    for block in (database.transaction(), queue.take()):
                        with pytest.raises(LockTimeoutError, match="task would wait for its own open transaction"):
                            async with block:
                                pass
                    await group.start(put_later)
                    await queue.aput(b"one", transaction=t)
        async with database.transaction() as t:
            pass
        await queue.aput(b"three")

    run(main)
    assert remaining(queue) == [b"one", b"two", b"three"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program has a write transaction."""
    program = (
        "import sqlite3, sys; other = sqlite3.connect(sys.argv[1], isolation_level=None); other.execute('BEGIN IMMEDIATE');"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.communicate()


def test_a_cancelled_wait_for_the_lock_leaves_it_free(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        with Instance.open(tmp_path / "shop", create=True) as instance:
            queue = instance.queue("Jobs")
            database = instance.database("Queues")
            with locked(database.path):
                with anyio.move_on_after(0.05) as scope:
                    async with database.transaction():
                        pytest.fail("another program has the lock")
                assert scope.cancelled_caught
            await queue.aput(b"one")
            async with queue.take(timeout=0) as job:
                assert job.value == b"one"

    run(main)


def test_a_lock_that_is_not_acquired_in_time_is_an_error(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        with Instance.open(tmp_path / "shop", create=True, lock_timeout=0.05) as instance:
            queue = instance.queue("Jobs")
            database = instance.database("Queues")
            with locked(database.path):
                for _ in range(2):
                    with pytest.raises(LockTimeoutError, match="holder"):
                        async with database.transaction():
                            pass
            await queue.aput(b"one")

    run(main)


def test_a_commit_does_not_wait_for_another_transaction_of_its_task(tmp_path: Path, run: Run) -> None:
    """What it sends to the other database is delivered after that."""

    async def main() -> None:
        async with Instance.create(tmp_path / "shop", name="shop") as instance:
            shop, stock = instance.create_database("Shop"), instance.create_database("Stock")
            for database, service in ((shop, "//Shop"), (stock, "//Stock")):
                database.create_queue("Q")
                database.create_service(service, queue="Q")
            with anyio.fail_after(8):  # less than the timeout of the lock
                async with stock.transaction() as outer:
                    outer.connection.execute("CREATE TABLE orders (id)")
                    async with shop.transaction() as t:
                        t.send(t.begin_dialog("//Shop", "//Stock"), b"two chairs")
                assert await stock.await_message("Q")

    run(main)


def test_an_instance_is_served_in_a_coroutine(tmp_path: Path, run: Run) -> None:
    async def main() -> None:
        async with Instance.create(tmp_path / "shop", name="shop") as instance:
            async with instance.serve(port=0, allow_unencrypted=True) as server:
                assert instance.server is server
            assert not server.is_alive

    run(main)


PROGRAM = """
import asyncio, sys
sys.modules["anyio"] = None
import ssbroker
with ssbroker.Instance.open(sys.argv[1], create=True) as instance:
    queue = instance.queue("Jobs")
    queue.put(b"one")
    with queue.take() as job:
        print(job.value)
    async def main():
        try:
            async with queue.take(timeout=0):
                pass
        except ssbroker.MissingDependencyError as error:
            print(error)
    asyncio.run(main())
"""


def test_only_asynchronous_calls_need_anyio(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "shop")], capture_output=True, text=True, check=True
    )
    assert ran.stdout == (
        "b'one'\nasynchronous calls (`async with`, `await`) need anyio: pip install 'ssbroker[asyncio]'\n"
    )
