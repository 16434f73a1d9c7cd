"""The stub of the native module is complete; `make lint` compares its signatures with the binary."""

from __future__ import annotations

import ast

import ssbroker._core as core
from tests.guards.repository import ROOT

STUB = ast.parse((ROOT / "python" / "ssbroker" / "_core.pyi").read_text(encoding="utf-8"))


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def names_of(body: list[ast.stmt]) -> set[str]:
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef) and "Protocol" in {ast.unparse(base) for base in node.bases}:
            continue  # describes arguments; it does not exist in the binary
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
    return public(found)


def test_the_stub_has_exactly_the_names_of_the_binary() -> None:
    assert names_of(STUB.body) == public(dir(core))


def test_every_class_of_the_stub_has_the_members_of_the_binary() -> None:
    classes = [node for node in STUB.body if isinstance(node, ast.ClassDef) and hasattr(core, node.name)]
    assert classes
    for node in classes:
        assert names_of(node.body) == public(dir(getattr(core, node.name))), node.name


def test_everything_in_the_stub_is_documented() -> None:
    for node in ast.walk(STUB):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_every_line_of_the_allow_list_of_stubtest_has_a_reason() -> None:
    for line in (ROOT / ".mypy-stubtest-allowlist").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or "#" in line, line
