"""Runs the command with `--spark` in one other process, so that Java starts only once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.docs.interpreter import Interpreter

PROGRAM = """
import contextlib, io, json
from ssbroker.cli import main

def call(arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of a call.

    Attributes:
        noise: The standard error of Java and others since the first call.
    """

    status: int
    out: str
    err: str
    noise: str


class SparkProcess:
    """A process that runs commands."""

    def __init__(self, folder: Path) -> None:
        self._noise = folder / "noise"
        with self._noise.open("w") as noise:
            self._interpreter = Interpreter(folder, noise)
        self._interpreter.block(PROGRAM)

    def __call__(self, *arguments: object) -> CallResult:
        status, out, err = json.loads(self._interpreter.block(f"call({[str(argument) for argument in arguments]!r})"))
        return CallResult(status=status, out=out, err=err, noise=self._noise.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._interpreter.close()
