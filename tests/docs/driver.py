"""Runs what a page shows, in a process of its own. Run: `python -P driver.py`.

Each line of its input is a JSON text `[kind, what]`: a `block` of source, in names that are kept from block to block; a `program` with its
arguments, as `python PROGRAM ...` would run it; or a new `page`, which finds nothing of the one before but what was imported, and the
Java that Spark started. It answers with what was printed, and what was raised.
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
    """Stop what a program of its own would stop as it ends. What it was configured with goes with it."""
    if "pyspark.sql" in sys.modules:
        session = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
        if session is not None:
            session.stop()


def answer(kind: str, what: Any) -> tuple[str, str | None]:
    """What was printed, and what was raised."""
    kinds: dict[str, Callable[[Any], None]] = {"block": block, "page": page, "program": program}
    printed, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            kinds[kind](what)
    except BaseException:  # noqa: BLE001 - whatever a page raises is told
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
