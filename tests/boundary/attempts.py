"""Runs cases in another process, so that a crash does not end the tests, and reports the result of each."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ssbroker import SsbrokerError

ROOT = Path(__file__).parents[2]
CLEAN = "any"
"""The expected result where both a result and a clean error are acceptable."""


class Case(NamedTuple):
    """A case to try."""

    name: str
    run: Callable[[], object]
    """Description of the case."""
    expected: str
    """`ok`, the name of an error, or `any`."""


Families = Mapping[str, Callable[[], Iterator[Case]]]


def attempt(run: Callable[[], object]) -> str:
    """Returns `ok`, or the name of the error's class; a star marks errors that users must never see."""
    try:
        run()
    except SsbrokerError as error:
        return type(error).__name__
    except (TypeError, ValueError) as error:
        return f"builtin {type(error).__name__}"
    except BaseException as error:  # noqa: BLE001 - a panic is no Exception
        return f"* {type(error).__name__}: {error}"
    return "ok"


def try_families(families: Families) -> None:
    """Tries the families named on the command line; each case is printed before it runs, so that a crash can be attributed."""
    for family in sys.argv[1:]:
        for case in families[family]():
            print(json.dumps([family, case.name, case.expected]), flush=True)
            print(json.dumps(attempt(case.run)), flush=True)


def failures(module: str, family: str) -> list[str]:
    """Returns the cases of a family with unexpected results, tried in another process."""
    return _failures(module)[family]


@cache
def _failures(module: str) -> dict[str, list[str]]:
    """Tries all families of a module in one process, to import everything once; after a crash, the rest run in another process."""
    waiting = list(importlib.import_module(module).FAMILIES)
    found: dict[str, list[str]] = {}
    while waiting:
        command = [sys.executable, "-m", module, *waiting]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
        lines = [json.loads(line) for line in process.stdout.splitlines()]
        cases, results = lines[::2], lines[1::2]
        crashed = process.returncode != 0
        ended = waiting[: waiting.index(cases[-1][0]) + 1 if cases else 1] if crashed else waiting
        assert crashed or {case[0] for case in cases} == set(ended)
        found |= {family: [] for family in ended}
        for (family, name, expected), result in zip(cases, results, strict=False):
            if result.startswith("*") if expected == CLEAN else result not in expected.split(" | "):
                found[family].append(f"{name}: expected {expected}, got {result}")
        if crashed:
            last = cases[-1][1] if len(cases) > len(results) else "before the first case or after the last one"
            found[ended[-1]].append(f"{last}: exit status {process.returncode}\n{process.stderr[:400]}")
        waiting = waiting[len(ended) :]
    return found
