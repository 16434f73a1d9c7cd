"""The files of the repository, for the guard tests."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


BUILD_OUTPUT: Final = {
    ".venv",
    "target",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".cache",
}


@cache
def committed_files() -> tuple[Path, ...]:
    """Returns all files that git tracks or would track; without git (an unpacked archive), all but build output."""
    if not (ROOT / ".git").exists():
        return tuple(path for path in sorted(ROOT.rglob("*")) if path.is_file() and BUILD_OUTPUT.isdisjoint(path.parts))
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    return tuple(path for name in sorted(filter(None, listing.split("\0"))) if (path := ROOT / name).is_file())


def python_files(folder: str) -> tuple[Path, ...]:
    """Returns the Python sources under a folder of the repository."""
    return tuple(path for path in committed_files() if path.suffix == ".py" and path.is_relative_to(ROOT / folder))


def rust_files(folder: str = "rust") -> tuple[Path, ...]:
    """Returns the Rust sources under a folder of the repository."""
    return tuple(path for path in committed_files() if path.suffix == ".rs" and path.is_relative_to(ROOT / folder))


def name_of(path: Path) -> str:
    """Returns a path relative to the repository."""
    return path.relative_to(ROOT).as_posix()
