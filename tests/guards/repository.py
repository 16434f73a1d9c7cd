"""What the guards look at: the repository's own files."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


MADE: Final = {".venv", "target", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".cache"}


@cache
def committed_files() -> tuple[Path, ...]:
    """Every file that git tracks or would track; without git (an unpacked archive), every file that is not made."""
    if not (ROOT / ".git").exists():
        return tuple(path for path in sorted(ROOT.rglob("*")) if path.is_file() and MADE.isdisjoint(path.parts))
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    return tuple(path for name in sorted(filter(None, listing.split("\0"))) if (path := ROOT / name).is_file())


def python_files(folder: str) -> tuple[Path, ...]:
    """The Python sources under a folder of the repository."""
    return tuple(path for path in committed_files() if path.suffix == ".py" and path.is_relative_to(ROOT / folder))


def rust_files(folder: str = "rust") -> tuple[Path, ...]:
    """The Rust sources under a folder of the repository."""
    return tuple(path for path in committed_files() if path.suffix == ".rs" and path.is_relative_to(ROOT / folder))


def name_of(path: Path) -> str:
    """The path as the repository calls it."""
    return path.relative_to(ROOT).as_posix()
