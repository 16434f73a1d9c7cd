"""Failing disks: system calls of SQLite's own file system that fail at their nth call.

An error raised by a virtual file system in Python would reach the caller even where SQLite ignores it, as in checkpoints; errors of
system calls are error numbers, as on a real system.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import apsw

Kind = Literal["full", "write", "read", "truncate", "open", "short", "interrupted"]
"""Disk full; an I/O error of a write, read or truncation; a file that cannot be opened; a write of one byte only; an interrupted write."""

_SIZE: Final = ctypes.c_ssize_t
_OFFSET: Final = ctypes.c_int64
_WRITE: Final = ctypes.CFUNCTYPE(_SIZE, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, use_errno=True)
_WRITE_AT: Final = ctypes.CFUNCTYPE(_SIZE, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, _OFFSET, use_errno=True)
_TRUNCATE: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _OFFSET, use_errno=True)
_OPEN: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, use_errno=True)
_WRITES: Final[dict[str, Any]] = {"write": _WRITE, "pwrite64": _WRITE_AT}
_CALLS: Final[dict[Kind, tuple[dict[str, Any], int]]] = {
    "full": (_WRITES, errno.ENOSPC),
    "write": (_WRITES, errno.EIO),
    "read": ({"read": _WRITE, "pread64": _WRITE_AT}, errno.EIO),
    "truncate": ({"ftruncate": _TRUNCATE}, errno.EIO),
    "open": ({"open": _OPEN}, errno.EMFILE),
    "short": (_WRITES, 0),
    "interrupted": (_WRITES, errno.EINTR),
}
_LENGTH: Final = 2


class FailingCalls:
    """SQLite's file system, until it fails. For the whole process.

    Attributes:
        kind: What goes wrong.
        fails_at: The number of the call of this kind that fails first, counted from 1; 0 is never.
        lasts: Whether all later ones fail too.
        asked: How many there were.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.fails_at = 0
        self.lasts = True
        self.asked = 0
        self._calls, self._errno = _CALLS[kind]
        self._system = apsw.VFS("failing calls", "")
        self._addresses = {name: self._system.xGetSystemCall(name) or 0 for name in self._calls}
        self._replaced = [self._replace(name, signature) for name, signature in self._calls.items()]

    def restore(self) -> None:
        """Restores the system calls."""
        for name, address in self._addresses.items():
            self._system.xSetSystemCall(name, address)
        self._system.unregister()

    def _replace(self, name: str, signature: Any) -> object:
        original = signature(self._addresses[name])

        def call(*arguments: Any) -> int:
            if not self._is_time():
                result = original(*arguments)
            elif self.kind == "short":
                result = original(*arguments[:_LENGTH], 1, *arguments[_LENGTH + 1 :])
            else:
                ctypes.set_errno(self._errno)
                result = -1
            return int(result)

        replaced = signature(call)
        self._system.xSetSystemCall(name, ctypes.cast(replaced, ctypes.c_void_p).value or 0)
        return replaced

    def _is_time(self) -> bool:
        self.asked += 1
        return 0 < self.fails_at <= self.asked if self.lasts else self.asked == self.fails_at


@contextmanager
def failing_calls(kind: Kind) -> Iterator[FailingCalls]:
    """Returns a disk that can be made to fail."""
    found = FailingCalls(kind)
    try:
        yield found
    finally:
        found.restore()
