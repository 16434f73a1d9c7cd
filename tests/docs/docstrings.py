"""Runs the examples in the docstrings of modules."""

from __future__ import annotations

import doctest
import importlib
from typing import Final

FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run(tests: list[doctest.DocTest]) -> int:
    """Returns how many examples failed, and prints their differences."""
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in tests:
        runner.run(test)
    return runner.summarize(verbose=False).failed


def examples_of(name: str) -> list[doctest.DocTest]:
    """Returns the docstrings of a module that contain examples."""
    module = importlib.import_module(name)
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]
