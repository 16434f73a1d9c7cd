"""Blocking calls in worker threads, awaited by tasks of asyncio or Trio."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType, TracebackType
from typing import Final, Generic, Protocol, TypeVar

from ssbroker.exceptions import MissingDependencyError
from ssbroker.store.write_lock import calling_for

Result = TypeVar("Result")


class Wait(Protocol):
    """A wait that another thread can end."""

    def wait(self) -> bool:
        """Waits for an event; returns whether it has happened."""

    def cancel(self) -> None:
        """Ends the wait."""


async def acquire(function: Callable[[], Result], *, undo: Callable[[Result], object]) -> Result:
    """Calls a function that acquires a resource. If the task is cancelled in the meantime, a thread calls `undo` with the result."""
    call = _Acquisition(function, undo)
    try:
        return await _in_thread(call.run, is_abandoned=True)
    except BaseException:
        call.abandon()
        raise


async def complete(function: Callable[[], Result]) -> Result:
    """Calls a function and waits until it returns. If the task is cancelled in the meantime, the cancellation takes effect afterwards."""
    anyio = _anyio()
    call = _Completion(function)
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not call.is_done:
            try:
                await _in_thread(call.run_or_wait)
            except anyio.get_cancelled_exc_class() as error:  # asyncio also cancels a shielded call
                cancelled = error
    try:
        return call.result()
    finally:
        if cancelled is not None:
            raise cancelled  # an error in the call becomes the context of the cancellation


async def leave(
    exit_block: Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leaves the block of a context manager."""
    if kind is GeneratorExit:  # the event loop is gone, so nothing can be awaited
        exit_block(kind, error, trace)
    else:
        await complete(partial(exit_block, kind, error, trace))


async def wait(waiting: Wait) -> bool:
    """Waits for the event of `waiting` in a worker thread; returns whether it has happened. If the task is cancelled, the thread stops waiting."""
    try:
        return await _in_thread(waiting.wait, is_abandoned=True)
    except BaseException:
        waiting.cancel()
        raise


async def sleep(seconds: float) -> None:
    """Waits for a number of seconds."""
    await _anyio().sleep(seconds)


async def _in_thread(function: Callable[[], Result], *, is_abandoned: bool = False) -> Result:
    anyio = _anyio()
    # There is no limit on threads: threads that wait for a lock must not keep its holder from committing.
    result: Result = await anyio.to_thread.run_sync(
        partial(_call_for, threading.get_ident(), current_task(), function),
        abandon_on_cancel=is_abandoned,
        limiter=anyio.CapacityLimiter(1),
    )
    return result


def current_task() -> int:
    """Returns the id of the running task."""
    task: int = _anyio().get_current_task().id
    return task


def _call_for(thread: int, task: int, function: Callable[[], Result]) -> Result:
    with calling_for(thread, task):
        return function()


def _anyio() -> ModuleType:
    try:
        import anyio.to_thread  # noqa: PLC0415  # an optional dependency
    except ImportError:
        raise MissingDependencyError(
            "asynchronous calls (`async with`, `await`) need anyio: pip install 'ssbroker[asyncio]'"
        ) from None
    return anyio


class _Acquisition(Generic[Result]):
    """A call whose result is undone if the calling task is cancelled before the task receives the result."""

    def __init__(self, function: Callable[[], Result], undo: Callable[[Result], object]) -> None:
        self._function: Final = function
        self._undo: Final = undo
        self._guard: Final = threading.Lock()
        self._is_abandoned = False
        self._results: Final[list[Result]] = []

    def run(self) -> Result:
        result = self._function()
        with self._guard:
            if not self._is_abandoned:
                self._results.append(result)
                return result
        self._undo(result)
        return result

    def abandon(self) -> None:
        """Undoes the call: in the thread that makes the call, or in a new thread if the call has ended."""
        with self._guard:
            self._is_abandoned = True
        for result in self._results:
            threading.Thread(target=self._undo, args=(result,), name="ssbroker undo").start()


class _Completion(Generic[Result]):
    """A call made by one thread and awaited by others."""

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function: Final = function
        self._guard: Final = threading.Lock()
        self._has_begun = False
        self._done: Final = threading.Event()
        self._results: Final[list[Result]] = []
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def run_or_wait(self) -> None:
        with self._guard:
            is_first, self._has_begun = not self._has_begun, True
        if not is_first:
            self._done.wait()
            return
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001  # the task raises it
            self._error = error
        finally:
            self._done.set()

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]
