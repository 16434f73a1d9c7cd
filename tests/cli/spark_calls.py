"""The command with `--spark`, called again and again in one process that is not the tests': only one Java is started."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PROGRAM = """
import contextlib, io, json, os, sys
from ssbroker.cli import main
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(json.loads(line))
    answers.write(json.dumps([status, out.getvalue(), err.getvalue()]) + "\\n")
    answers.flush()
"""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a call told.

    Attributes:
        noise: What Java and others have written on standard error since the first call.
    """

    status: int
    out: str
    err: str
    noise: str


class SparkCalls:
    """A process that takes calls."""

    def __init__(self, noise: Path) -> None:
        self._noise = noise
        with noise.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    def __call__(self, *arguments: object) -> Told:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self._process.stdin.flush()
        status, out, err = json.loads(self._process.stdout.readline())
        return Told(status=status, out=out, err=err, noise=self._noise.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
