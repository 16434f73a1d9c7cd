"""The help of all commands at two widths: `python -m tests.cli.help_snapshot --write` records it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from ssbroker.cli.app import _COMMANDS, app

WIDTHS = (80, 140)


def snapshot(width: int) -> Path:
    """Returns the file with the help at a width."""
    return Path(__file__).with_name(f"help_{width}.txt")


def help_texts(width: int) -> Iterator[tuple[str, str]]:
    """Yields the help of `ssbroker` and of each command."""
    for arguments in ([], *([command] for command in _COMMANDS)):
        with patch.dict(os.environ, COLUMNS=str(width)):
            done = CliRunner().invoke(app, [*arguments, "--help"], prog_name="ssbroker")
        assert done.exit_code == 0, done.output
        yield " ".join(["ssbroker", *arguments]), done.output


def text(width: int) -> str:
    """All of it."""
    return "\n".join(shown for _, shown in help_texts(width))


if __name__ == "__main__":
    for columns in WIDTHS:
        if "--write" in sys.argv:
            snapshot(columns).write_text(text(columns), encoding="utf-8")
        else:
            print(text(columns))
