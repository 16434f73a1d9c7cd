"""Files are small enough to read in one go."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.guards.repository import ROOT, name_of, python_files, rust_files

LINES_MAX = {".rs": 400, ".py": 300}
TEST_LINES_MAX = 400  # a file of tests is read case by case
FUNCTION_LINES_MAX = 70
# A file that is longer, and why it has to be.
LONGER: dict[str, str] = {}

FILES = [*rust_files(), *python_files(".")]


def lines_of(path: Path) -> int:
    """The lines of a file; of Rust, without the tests at its foot."""
    return len(path.read_text(encoding="utf-8").split("#[cfg(test)]\nmod ", maxsplit=1)[0].splitlines())


def lines_max(path: Path) -> int:
    return TEST_LINES_MAX if path.is_relative_to(ROOT / "tests") else LINES_MAX[path.suffix]


def test_every_exception_is_still_one() -> None:
    for name, reason in LONGER.items():
        path = ROOT / name
        assert reason
        assert lines_of(path) > lines_max(path), f"{name} needs no exception any more"


def test_a_file_is_short() -> None:
    lengths = {name_of(path): (lines_of(path), lines_max(path)) for path in FILES if name_of(path) not in LONGER}
    assert {name: (lines, most) for name, (lines, most) in lengths.items() if lines > most} == {}


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file with the lines that it takes to do what it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A docstring, or the options of a command, may need more lines than that.
            does = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            yield f"{name_of(path)}:{node.lineno} {node.name}", (node.end_lineno or 0) - does[0].lineno


def test_a_function_fits_a_screen() -> None:
    lengths = [each for path in FILES if path.suffix == ".py" for each in functions_of(path)]
    assert [each for each in lengths if each[1] >= FUNCTION_LINES_MAX] == []
