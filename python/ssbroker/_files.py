"""What files need of the system: that they are on the disk, and a lock that goes with the process that has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def sync(path: Path) -> None:
    """Waits until a file or a folder is on the disk; of a folder, the names in it. Windows opens no folders, so there it waits for none.

    Args:
        path: The file or folder.

    Raises:
        OSError: It cannot be opened, or not be written.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "day.parquet")
        ...     _ = file.write_bytes(b"rows")
        ...     sync(file)
        ...     sync(file.parent)
    """
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Takes the lock of an open file, if nobody has it; it is given back when the file is closed, and when the process ends.

    Args:
        descriptor: The file, open for writing.

    Returns:
        Whether it was free.

    Raises:
        OSError: The file system knows no locks.

    Examples:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as one, open(one.name, "r+b") as other:
        ...     lock(one.fileno()), lock(other.fileno())
        (True, False)
    """
    return _take(descriptor, is_shared=False)


def is_locked(descriptor: int) -> bool:
    """Whether somebody has the lock of an open file. Who asks keeps others from taking it until the file is closed, but not from asking.

    Args:
        descriptor: The file, open for reading and writing.

    Returns:
        Whether somebody has it. On Windows, which shares no locks, somebody else who asks at the same moment is taken for one who has it.

    Raises:
        OSError: The file system knows no locks.

    Examples:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as one, open(one.name, "r+b") as other, open(one.name, "r+b") as third:
        ...     is_locked(one.fileno()), is_locked(other.fileno()), lock(third.fileno())
        (False, False, False)
    """
    return not _take(descriptor, is_shared=True)


def _take(descriptor: int, *, is_shared: bool) -> bool:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # there only

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True
    import fcntl  # noqa: PLC0415  # there only

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
