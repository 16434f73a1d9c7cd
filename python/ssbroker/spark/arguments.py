"""Arguments that several functions for Spark take: paths and limits of memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ssbroker.exceptions import InputError

MESSAGE_BYTES_MAX: Final = 1 << 30
"""The maximum message size: larger values exhaust Spark's memory and its limit of 2 GiB for a value."""

_PENDING_BYTES_MIN: Final = 1 << 30
_PENDING_MESSAGES: Final = 4


def default_pending_bytes(max_message_bytes: int) -> int:
    """Returns the default limit for pending bytes: 1 GiB, or four of the largest messages if that is more.

    Examples:
        >>> default_pending_bytes(1 << 20) >> 30, default_pending_bytes(1 << 30) >> 30
        (1, 4)
    """
    return max(_PENDING_BYTES_MIN, _PENDING_MESSAGES * max_message_bytes)


_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str], *, name: str) -> Path:
    """Returns an absolute path, since workers run in another directory than the driver; raises `InputError` for a URI.

    Symbolic links are not resolved: a link may be how the target is replaced.

    Examples:
        >>> local_path("/data/./day.parquet", name="source").as_posix()
        '/data/day.parquet'
        >>> local_path("s3://bucket/day.parquet", name="source")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: source: 's3://bucket/day.parquet' is a URI; expected a path on a file system that driver and workers share
    """
    text = os.fspath(path)
    if _URI.match(text):
        raise InputError(
            f"{name}: {text!r:.200} is a URI; expected a path on a file system that driver and workers share",
            value=text,
            expected="a path",
        )
    return Path(os.path.abspath(text))  # noqa: PTH100 - resolve() would follow links
