"""The write lock of a file within a process, and the description of its holder."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntFlag
from typing import Final, final

from ssbroker import _core

_CALLER: Final = threading.local()
_BY_GENERATOR: Final = 1 << 62
"""Added to the id of a thread if the holder is a generator that the thread executes, because other threads can resume the generator."""


@contextmanager
def calling_for(thread: int, task: int) -> Iterator[None]:
    """Marks the calls of this thread as made for a task of the event loop in another thread; the task waits for the calls."""
    _CALLER.thread, _CALLER.task = thread, task
    try:
        yield
    finally:
        del _CALLER.thread, _CALLER.task


def holder_of_caller() -> int:
    """Returns the holder of the lock for the caller of this package: this thread, or a generator that it executes.

    A suspended generator may be resumed in another thread, while this thread does something else that may wait for the lock: web frameworks
    do so with generators that open a transaction for a request.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("ssbroker", "contextlib"):
        frame = frame.f_back
    is_generator = frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR
    return threading.get_ident() | (_BY_GENERATOR if is_generator else 0)


def thread_of(holder: int) -> int:
    """Returns the thread that has created the transaction of a holder."""
    return holder & ~_BY_GENERATOR


@final
class WriteLock(_core.WriteLock):
    """The write lock of a file within this process: FIFO, with timeouts.

    While free, it can keep one open connection for the next holder. Every step is atomic, because a signal handler may interrupt it and
    acquire the lock.

    Attributes:
        holder_task: The id of the task whose transaction holds the lock; None if the transaction is not that of a coroutine.

    Examples:
        >>> lock = WriteLock()
        >>> lock.acquire(timeout=1.0), lock.acquire(timeout=0.0)
        (True, False)
        >>> lock.release()
    """

    __slots__ = ("holder_task",)

    def __init__(self) -> None:
        self.holder_task: int | None = None

    @property
    def is_held_by_this_task(self) -> bool:
        """Whether the task that this thread makes calls for holds the lock, so that acquiring it again would deadlock."""
        task = getattr(_CALLER, "task", None)
        return task is not None and task == self.holder_task

    @property
    def is_held_by_this_thread(self) -> bool:
        """Whether this thread holds the lock, so that acquiring it again would deadlock."""
        return self.holder == threading.get_ident()

    @property
    def is_held_for_this_thread(self) -> bool:
        """Whether this thread, or the thread for which it makes calls, holds the lock."""
        holder = self.holder
        return holder is not None and thread_of(holder) in (threading.get_ident(), getattr(_CALLER, "thread", None))

    @property
    def would_deadlock(self) -> bool:
        """Whether acquiring the lock would deadlock: this thread or its task holds it, or a signal handler interrupted the wait for it."""
        thread = threading.get_ident()
        return self.is_waiting(thread) or self.holder == thread or self.is_held_by_this_task

    def acquire(self, *, timeout: float, holder: int | None = None) -> bool:
        """Waits for the lock for up to `timeout` seconds; returns whether it was acquired. `holder` is by default this thread."""
        holder = threading.get_ident() if holder is None else holder
        signal = threading.Lock()
        signal.acquire()
        try:
            if self.acquire_or_enqueue(signal, holder):
                return True
            signal.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
            return self.stop_waiting(signal)
        except BaseException:  # Ctrl-C, at any point: an abandoned lock or place in the queue would block all others
            if self.stop_waiting(signal):
                self.release()
            raise


class LockCall(IntFlag):
    """The kinds of calls that the holder of a write lock has made, as other processes see them; `rust/python/src/session.rs` has the same bits."""

    SEND = 1
    RECEIVE = 2
    SQL = 4


def describe_lock_holder(holder: tuple[int, int, int] | None, own_holder: int | None) -> str:
    """Describes the holder of a write lock, and what to do.

    Args:
        holder: As in `SharedMemory.holder`.
        own_holder: The holder, as `holder_of_caller` returns it, if a transaction of this `Instance` holds the lock; otherwise None.
    """
    if holder is None or not _is_running(holder[0]):
        return "The holder is unknown: another program, such as the sqlite3 shell, may have an open write transaction"
    process_id, since, calls = holder
    who = f"Process {process_id}"
    advice = "Do slow work outside transactions: take messages with a lease, with Database.take"
    if process_id == os.getpid() and own_holder is None:
        who = "Another Instance of this process"
        advice = "Open each folder once in a process, and share the Instance between its threads"
    elif own_holder is not None and process_id == os.getpid():
        names = {each.ident: each.name for each in threading.enumerate()}
        who = f"Thread {names.get(thread_of(own_holder), 'unknown')!r} of this process"
        if own_holder & _BY_GENERATOR:
            who = f"A generator that began its transaction in thread {names.get(thread_of(own_holder), 'unknown')!r} of this process"
            advice = "Use that transaction, or end it first; in a web application, begin transactions in the function that handles the request"
    started = datetime.fromtimestamp(since / 1e6, UTC)
    done = [text for call, text in _LOCK_CALLS.items() if calls & call]
    what = f", in a transaction that has {' and '.join(done)}" if done else ""
    return (
        f"{who} has held the lock since {started:%H:%M:%S} UTC, for {max(0.0, time.time() - since / 1e6):.1f} s{what}. "
        f"{advice}"
    )


_LOCK_CALLS: Final = {
    LockCall.RECEIVE: "received messages",
    LockCall.SEND: "sent messages",
    LockCall.SQL: "executed SQL on its connection",
}


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
