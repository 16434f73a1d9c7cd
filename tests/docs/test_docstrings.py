"""The examples in docstrings work, in the installed package and in the stub of its native module."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import ssbroker
from tests.docs.conftest import SparkRoom
from tests.docs.docstrings import examples_of, run
from tests.guards.repository import ROOT

FOUND = [module.name for module in pkgutil.walk_packages(ssbroker.__path__, "ssbroker.")]
IN_SPARK = [name for name in FOUND if name.startswith("ssbroker.spark")]
MODULES = ["ssbroker", *(name for name in FOUND if name not in IN_SPARK and not name.endswith("__main__"))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(examples_of(name)) == 0


def test_the_examples_of_the_spark_package(spark_room: SparkRoom) -> None:
    """They start and stop sessions, so they run in the process for pages about Spark."""
    spark_room.interpreter.block(f"import sys; sys.path.append({str(ROOT)!r})")
    spark_room.interpreter.block("from tests.docs.docstrings import examples_of, run")
    for name in IN_SPARK:
        assert spark_room.interpreter.block(f"run(examples_of({name!r}))") == ""


def test_the_examples_of_the_stub() -> None:
    stub = ast.parse((ROOT / "python" / "ssbroker" / "_core.pyi").read_text(encoding="utf-8"))
    parser = doctest.DocTestParser()
    tests = [
        parser.get_doctest(text, {}, f"_core.{node.name}", "_core.pyi", node.lineno)
        for node in ast.walk(stub)
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)) and ">>>" in text
    ]
    assert run(tests) == 0


@pytest.mark.parametrize("name", ssbroker.__all__)
def test_everything_public_has_an_example(name: str) -> None:
    item = getattr(ssbroker, name)
    if callable(item) and not (isinstance(item, type) and issubclass(item, Exception)):
        assert any(test.examples for test in doctest.DocTestFinder().find(item, name)), name


@pytest.mark.parametrize(
    "name",
    [
        "comparison.compare",
        "message_pipeline.pipeline",
        "reassembly.reassemble",
        "routing.route",
        "routing.route_udf",
    ],
)
def test_every_function_of_the_spark_room_has_an_example(name: str) -> None:
    module = f"ssbroker.spark.{name.partition('.')[0]}"
    assert any(test.name == f"ssbroker.spark.{name}" for test in examples_of(module))


def _free_names(test: doctest.DocTest) -> set[str]:
    """Returns the names that an example uses and does not define."""
    used: set[str] = set()
    defined = set(dir(builtins))
    for example in test.examples:
        for node in ast.walk(ast.parse(example.source)):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
    return used - defined


@pytest.mark.parametrize("name", ["ssbroker", "ssbroker.diagnose", "ssbroker.testing", "ssbroker.spark"])
def test_examples_import_what_they_use(name: str) -> None:
    """An example can be copied; only the session `spark` is given."""
    module = importlib.import_module(name)
    for public in dir(module):
        item = getattr(module, public)
        if public.startswith("_") or not (inspect.isclass(item) or inspect.isfunction(item)):
            continue
        for test in doctest.DocTestFinder(exclude_empty=True).find(item, public):
            assert _free_names(test) <= {"spark"}, test.name
