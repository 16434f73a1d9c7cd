"""New files, durable writes and file locks."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk; skips folders on Windows, where they cannot be opened."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path, data: bytes, *, mode: int) -> None:
    """Creates a file completely and durably, or not at all; raises `FileExistsError` if it exists, even as a link.

    Other processes never see a partial file, unless the file system has no hard links.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     create_file(Path(folder, "shop.key"), b"secret", mode=0o600)
        ...     Path(folder, "shop.key").read_bytes()
        b'secret'
    """
    temporary = path.parent / f".{secrets.token_hex(8)}.tmp"
    _write_new(temporary, data, mode)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here, or another problem that the next call reports
        _write_new(path, data, mode)
    finally:
        temporary.unlink()
    sync_to_disk(path.parent)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
    except BaseException:
        path.unlink()
        raise


def try_lock(descriptor: int) -> bool:
    """Locks an open file unless another process or handle holds the lock; closing the file or ending the process unlocks it.

    Examples:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as one, open(one.name, "r+b") as other:
        ...     try_lock(one.fileno()), try_lock(other.fileno())
        (True, False)
    """
    return _try_lock(descriptor, is_shared=False)


def is_locked(descriptor: int) -> bool:
    """Returns whether an open file is locked. Until the file is closed, the check itself prevents `try_lock`, but no other check.

    On Windows, which has no shared locks, a concurrent check counts as a lock.
    """
    return not _try_lock(descriptor, is_shared=True)


def _try_lock(descriptor: int, *, is_shared: bool) -> bool:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # exists only on Windows

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl  # noqa: PLC0415  # does not exist on Windows

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
