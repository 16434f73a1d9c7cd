"""The examples in docstrings are run, in the installed package and in the stub of its native module."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import ssbroker
from tests.guards.repository import ROOT

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = [
    "ssbroker",
    *(
        module.name
        for module in pkgutil.walk_packages(ssbroker.__path__, "ssbroker.")
        if not module.name.endswith("__main__")
    ),
]


def run(tests: list[doctest.DocTest]) -> doctest.TestResults:
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in tests:
        runner.run(test)
    return runner.summarize(verbose=False)


def examples_of(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(examples_of(importlib.import_module(name))).failed == 0


def test_the_examples_of_the_stub() -> None:
    stub = ast.parse((ROOT / "python" / "ssbroker" / "_core.pyi").read_text(encoding="utf-8"))
    parser = doctest.DocTestParser()
    tests = [
        parser.get_doctest(text, {}, f"_core.{node.name}", "_core.pyi", node.lineno)
        for node in ast.walk(stub)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)) and ">>>" in text
    ]
    assert run(tests).failed == 0


@pytest.mark.parametrize("name", ssbroker.__all__)
def test_every_public_function_has_an_example(name: str) -> None:
    item = getattr(ssbroker, name)
    if isinstance(item, type) and issubclass(item, Exception | tuple):
        return
    if callable(item):
        assert any(test.examples for test in doctest.DocTestFinder().find(item, name)), name
