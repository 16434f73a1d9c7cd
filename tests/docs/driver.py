"""Runs the code of pages in a separate process: `python -P driver.py`.

Each line of standard input is a JSON array `[kind, value]`: a `block` of source, which keeps the names of the blocks before it; a `program` with its
arguments, as in `python PROGRAM ...`; or a new `page`, which keeps only imported modules and the Java process of Spark. The answer to each line is the
output and the exception.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

NAMES: Final[dict[str, Any]] = {}
PATH: Final = ["", *sys.path]  # as a prompt has it


def block(source: str) -> None:
    exec(compile(source, "<page>", "exec"), NAMES)


def program(arguments: list[str]) -> None:
    before = sys.argv
    sys.argv = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    finally:
        sys.argv = before
        stop_spark()


def page(_: str) -> None:
    stop_spark()
    NAMES.clear()
    NAMES["__name__"] = "__main__"
    sys.path[:] = PATH


def stop_spark() -> None:
    """Stops the Spark session, which a program of its own would stop at its end, and removes its configuration."""
    if "pyspark.sql" in sys.modules:
        session = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def answer(kind: str, what: Any) -> tuple[str, str | None]:
    """Returns the output and the exception."""
    kinds: dict[str, Callable[[Any], None]] = {"block": block, "page": page, "program": program}
    printed, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            kinds[kind](what)
    except BaseException:  # noqa: BLE001 - reported to the parent process
        error = traceback.format_exc()
    return printed.getvalue(), error


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    page("")
    for line in sys.stdin:
        answers.write(json.dumps(answer(*json.loads(line))) + "\n")
        answers.flush()
    answers.close()


if __name__ == "__main__":
    main()
