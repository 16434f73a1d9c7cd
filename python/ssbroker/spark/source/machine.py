"""Which machine this is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> str:
    """A text that processes of one machine have in common, and those of two do not."""
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
    return f"{os.uname().nodename} {boot}".strip()
