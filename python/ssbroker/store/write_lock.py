"""The write lock of a file within a process, and the description of who holds it."""

from __future__ import annotations

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


@contextmanager
def calling_for(thread: int) -> Iterator[None]:
    """Marks the calls of this thread as made for the thread of an event loop, which waits for them."""
    _CALLER.thread = thread
    try:
        yield
    finally:
        del _CALLER.thread


@final
class WriteLock(_core.WriteLock):
    """The write lock of a file within this process: FIFO, with timeouts.

    While free, it can keep one open connection for the next holder. Every step is atomic, because a signal handler may interrupt it and
    acquire the lock.

    Examples:
        >>> lock = WriteLock()
        >>> lock.acquire(timeout=1.0), lock.acquire(timeout=0.0)
        (True, False)
        >>> lock.release()
    """

    __slots__ = ()

    @property
    def is_held_by_this_thread(self) -> bool:
        """Whether this thread holds the lock, so that acquiring it again would deadlock."""
        return self.holder == threading.get_ident()

    @property
    def is_held_for_this_thread(self) -> bool:
        """Whether this thread, or the one that it makes calls for, holds the lock."""
        holder = self.holder
        return holder is not None and holder in (threading.get_ident(), getattr(_CALLER, "thread", None))

    @property
    def would_deadlock(self) -> bool:
        """Whether this thread holds the lock or waits for it, so that acquiring it (in a signal handler) would deadlock."""
        thread = threading.get_ident()
        return self.is_waiting(thread) or self.holder == thread

    def acquire(self, *, timeout: float, holder: int | None = None) -> bool:
        """Waits for the lock for up to `timeout` seconds; returns whether it was acquired. `holder` is the thread id that will release it."""
        holder = threading.get_ident() if holder is None else holder
        if self.try_acquire(holder):
            return True
        signal = threading.Lock()
        signal.acquire()
        if self.acquire_or_enqueue(signal, holder):  # it was released just now
            return True
        try:
            signal.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))
            return self.stop_waiting(signal)
        except BaseException:  # Ctrl-C: an abandoned place in the queue would block all others
            if self.stop_waiting(signal):
                self.release()
            raise


class LockCall(IntFlag):
    """The kinds of calls that the holder of a write lock has made, as other processes see them; `rust/python/src/session.rs` has the same bits."""

    SEND = 1
    RECEIVE = 2
    SQL = 4


def describe_lock_holder(holder: tuple[int, int, int] | None, thread: int | None) -> str:
    """Describes the holder of a write lock, and what to do.

    Args:
        holder: As in `SharedMemory.holder`.
        thread: The thread that holds it if the holder is this `Instance`.
    """
    if holder is None or not _is_running(holder[0]):
        return "The holder is unknown: another program, such as the sqlite3 shell, may have an open write transaction"
    process_id, since, calls = holder
    who = f"Process {process_id}"
    advice = "Do slow work outside transactions: take messages with a lease, with Database.take"
    if process_id == os.getpid() and thread is None:
        who = "Another Instance of this process"
        advice = "Open each folder once in a process, and share the Instance between its threads"
    elif process_id == os.getpid():
        names = {each.ident: each.name for each in threading.enumerate()}
        who = f"Thread {names.get(thread, 'unknown')!r} of this process"
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
