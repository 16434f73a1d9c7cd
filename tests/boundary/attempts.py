"""Tries cases in a process of its own, where a crash ends nothing else, and tells what came of each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ssbroker import SsbrokerError

ROOT = Path(__file__).parents[2]
CLEAN = "any"
"""What is expected where a result is as good as an error, as long as it is a clean one."""


class Case(NamedTuple):
    """One thing to try."""

    name: str
    run: Callable[[], object]
    """What is tried."""
    expected: str
    """`ok`, the name of an error, or `any`."""


Families = Mapping[str, Callable[[], Iterator[Case]]]


def attempt(run: Callable[[], object]) -> str:
    """`ok`, or the name of the error's class; one that no user may see has a star before it."""
    try:
        run()
    except SsbrokerError as error:
        return type(error).__name__
    except (TypeError, ValueError) as error:
        return f"builtin {type(error).__name__}"
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception
        return f"* {type(error).__name__}: {error}"
    return "ok"


def try_family(families: Families) -> None:
    """Tries the family that the command line names; each case is named before it is tried, so that a crash has a name."""
    for case in families[sys.argv[1]]():
        print(json.dumps([case.name, case.expected]), flush=True)
        print(json.dumps(attempt(case.run)), flush=True)


def failures(module: str, family: str) -> list[str]:
    """Tries a family of a module in another process: what came of each case that went otherwise than expected."""
    process = subprocess.run(
        [sys.executable, "-m", module, family], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    cases, results = lines[::2], lines[1::2]
    if process.returncode != 0:
        last = cases[-1][0] if len(cases) > len(results) else "before the first case or after the last one"
        results += [f"* exit status {process.returncode}: {last}\n{process.stderr[:400]}"]
    assert cases
    return [
        f"{name}: expected {expected}, got {result}"
        for (name, expected), result in zip(cases, results, strict=False)
        if (result.startswith("*") if expected == CLEAN else result not in expected.split(" | "))
    ]
