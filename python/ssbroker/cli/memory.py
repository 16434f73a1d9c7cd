"""The memory of the machine or container."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONTAINER_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int | None:
    """Returns the physical memory, or the limit of the container if it is smaller; None if the system does not report it."""
    found: list[int] = []
    with suppress(AttributeError, ValueError, OSError):  # Windows has no `sysconf`
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _CONTAINER_LIMITS:
        with suppress(ValueError, OSError):  # the file says "max" if there is no limit
            found.append(int(Path(file).read_text(encoding="ascii")))
    return min(found, default=None)
