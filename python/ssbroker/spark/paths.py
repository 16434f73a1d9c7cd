"""Paths as the driver and its workers mean them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ssbroker.exceptions import InputError

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(given: str | os.PathLike[str], *, name: str) -> Path:
    """A path, absolute: the folder in which the driver works is not that of its workers.

    Args:
        given: What was given.
        name: What it is, for messages.

    Returns:
        The path. A link stays one: it may be how what it stands for is replaced.

    Raises:
        InputError: It is a URI.

    Examples:
        >>> local_path("/data/./day.parquet", name="source").as_posix()
        '/data/day.parquet'
        >>> local_path("s3://bucket/day.parquet", name="source")
        Traceback (most recent call last):
        ssbroker.exceptions.InputError: source: 's3://bucket/day.parquet' is a URI, and files are read and written here without Hadoop; expected a path that driver and workers have in common
    """
    text = os.fspath(given)
    if _URI.match(text):
        raise InputError(
            f"{name}: {text!r:.200} is a URI, and files are read and written here without Hadoop; expected a path that "
            "driver and workers have in common",
            value=text,
            expected="a path",
        )
    return Path(os.path.abspath(text))  # noqa: PTH100 - see above
