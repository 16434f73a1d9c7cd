"""Prints which tests prove which rule: `python -m tests.guards.rule_tests`.

A Python test names its rules and threats with markers: `@pytest.mark.rule("R11")`, `@pytest.mark.threat("T4")`. A Rust test names them in
its name (`r11_...`) or in the comment above it.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.guards.repository import ROOT
from tests.guards.rules import RULES
from tests.guards.threats import THREATS

KNOWN: Final = {each.number for each in (*RULES, *THREATS)}

_MARKERS: Final = ("rule", "threat")
_IN_RUST: Final = re.compile(r"(?<![a-z0-9])([rpit]\d{1,2})(?![a-z0-9])")
_RUST_TEST: Final = re.compile(
    r"((?:^[ \t]*///.*\n)*)^[ \t]*#\[test\]\n((?:[ \t]*(?:///|#).*\n)*)[ \t]*fn (\w+)", re.MULTILINE
)


def rules_to_tests() -> dict[str, list[str]]:
    """Returns, for each number, the tests that name it, as `file::test`, in the order of files and lines."""
    found: dict[str, list[str]] = defaultdict(list)
    for test, numbers in (*_python_tests(), *_rust_tests()):
        for number in numbers:
            found[number].append(test)
    return found


def marker_numbers(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """Returns the numbers in the markers of a test or of a class of tests."""
    return [
        str(ast.literal_eval(argument))
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        and ast.unparse(decorator.func) in {f"pytest.mark.{name}" for name in _MARKERS}
        for argument in decorator.args
    ]


def _python_tests() -> Iterator[tuple[str, list[str]]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            shared = marker_numbers(node) if isinstance(node, ast.ClassDef) else []
            for member in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(member, ast.FunctionDef) and member.name.startswith("test_"):
                    yield f"{file}::{member.name}", [*shared, *marker_numbers(member)]


def _rust_tests() -> Iterator[tuple[str, list[str]]]:
    for path in sorted((ROOT / "rust").rglob("*.rs")):
        if "target" in path.parts:
            continue
        for above, between, name in _RUST_TEST.findall(path.read_text(encoding="utf-8")):
            text = f"{name.replace('_', ' ')} {above} {between}".lower()
            numbers = [
                number for number in dict.fromkeys(found.upper() for found in _IN_RUST.findall(text)) if number in KNOWN
            ]
            yield f"{path.relative_to(ROOT).as_posix()}::{name}", numbers


def main() -> None:
    """Prints a line for each rule and threat, and below it the tests that prove it."""
    tests = rules_to_tests()
    for each in (*RULES, *THREATS):
        print(f"{each.number}  {each.summary}")
        for test in tests[each.number]:
            print(f"      {test}")


if __name__ == "__main__":
    main()
