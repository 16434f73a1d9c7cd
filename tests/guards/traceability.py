"""Writes `docs/traceability.md`: which tests name which rule. Run: `python -m tests.guards.traceability --write`.

A test names a rule in its name (`test_r11_...`) or in its docstring (`R11`, `R11 to R17`); a Rust test in its name or the comment above.
A longer range than the seven steps names nothing: a test of everything proves no rule by name.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Final

from tests.guards.repository import ROOT
from tests.guards.rules import IDENTITY, PROTOCOL, ROUTING, RULES, Rule
from tests.guards.threats import THREATS

PAGE: Final = ROOT / "docs" / "traceability.md"
HEAD: Final = """# Traceability: which tests prove which rule

Written by `make format` from the tests' names and docstrings; a guard test fails when this page is out of date, when a rule that is
built has no test that names it, or when a rule is missing here. What the rules leave open is settled in the
[routing decisions](dev/2026-11-20-routing-decisions.md), `K`, the [reassembly decisions](dev/2026-11-21-reassembly-decisions.md), `M`, the
[broker decisions](dev/2026-11-21-broker-decisions.md), `B`, and the [network decisions](dev/2026-11-21-network-decisions.md), `N`. Threats, `T`, stand at
the end.
"""

NOTES: Final = {
    "K": "2026-11-20-routing-decisions.md",
    "M": "2026-11-21-reassembly-decisions.md",
    "B": "2026-11-21-broker-decisions.md",
    "N": "2026-11-21-network-decisions.md",
}
DECISIONS: Final = {
    letter: re.findall(
        rf"^- \*\*({letter}\d+)\*\* ", (ROOT / "docs" / "dev" / note).read_text(encoding="utf-8"), re.MULTILINE
    )
    for letter, note in NOTES.items()
}

_NUMBERS: Final = {*chain(*DECISIONS.values()), *(each.number for each in (*RULES, *THREATS))}
_RANGE_MAX: Final = 7
_IN_NAME: Final = re.compile(r"(?<![a-z0-9])([rpikmbnt]\d{1,2})(?![a-z0-9])")
_IN_TEXT: Final = re.compile(r"\b([RPIKMBNT])(\d{1,2})(?:\s*(?:to|-)\s*\1?(\d{1,2}))?\b")
_RUST_TEST: Final = re.compile(
    r"((?:^[ \t]*///.*\n)*)^[ \t]*#\[test\]\n((?:[ \t]*(?:///|#).*\n)*)[ \t]*fn (\w+)", re.MULTILINE
)


def naming_tests() -> dict[str, list[tuple[str, str]]]:
    """For each rule number: (file, test) of every test that names it, in the order of files and lines."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file, test, text in (*_python_tests(), *_rust_tests()):
        for number in sorted(rules_named(test, text)):
            found[number].append((file, test))
    return found


def rules_named(name: str, text: str) -> set[str]:
    """The rules that a test with this name and docstring names."""
    named = {number.upper() for number in _IN_NAME.findall(name.lower().replace("_", " "))}
    for letter, first, last in _IN_TEXT.findall(text):
        numbers = range(int(first), int(last or first) + 1)
        if len(numbers) <= _RANGE_MAX:
            named.update(f"{letter}{number}" for number in numbers)
    return named & _NUMBERS


def page() -> str:
    """The text of the page as it should be."""
    tests = naming_tests()
    parts = [HEAD]
    for title, rules in (("Routing", ROUTING), ("Protocol", PROTOCOL), ("Identity", IDENTITY)):
        built = [rule for rule in rules if rule.comes_with is None]
        waiting = [rule for rule in rules if rule.comes_with is not None]
        if built:
            parts.append(
                f"## {title}\n\n| rule | in short | tests |\n|---|---|---|\n"
                + "".join(_row(rule, tests) for rule in built)
            )
        if waiting:
            parts.append(
                f"## {title}: not built yet\n\n| rule | in short | comes with | tests already there |\n|---|---|---|---|\n"
                + "".join(_row(rule, tests) for rule in waiting)
            )
    decisions = chain(*DECISIONS.values())
    rows = "".join(f"| **{number}** | {_cell(tests[number])} |\n" for number in decisions if number in tests)
    parts.append(f"## Decisions\n\n| decision | tests |\n|---|---|\n{rows}")
    rows = "".join(
        f"| **{each.number}** | {each.says} | {each.answer} | {_cell(tests.get(each.number, []))} |\n"
        for each in THREATS
    )
    parts.append(f"## Threats\n\n| threat | in short | what is done | tests |\n|---|---|---|---|\n{rows}")
    return "\n".join(parts)


def _row(rule: Rule, tests: dict[str, list[tuple[str, str]]]) -> str:
    cells = [
        f"**{rule.number}**",
        rule.says,
        *([rule.comes_with] if rule.comes_with else []),
        _cell(tests.get(rule.number, [])),
    ]
    return f"| {' | '.join(cells)} |\n"


def _cell(tests: list[tuple[str, str]]) -> str:
    by_file: dict[str, list[str]] = defaultdict(list)
    for file, test in tests:
        by_file[file].append(test)
    return "<br>".join(f"`{file}`: {', '.join(f'`{test}`' for test in names)}" for file, names in by_file.items())


def _python_tests() -> Iterator[tuple[str, str, str]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            context = _docstring(node) if isinstance(node, ast.ClassDef) else ""
            for member in members:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name.startswith("test_"):
                    yield file, member.name, f"{context} {_docstring(member)}"


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.get_docstring(node) or ""


def _rust_tests() -> Iterator[tuple[str, str, str]]:
    for path in sorted((ROOT / "rust").rglob("*.rs")):
        if "target" in path.parts:
            continue
        for above, between, name in _RUST_TEST.findall(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), name, above + between


def main(arguments: list[str]) -> int:
    """Write the page (`--write`), or say whether it is up to date."""
    if arguments == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
