"""The import rule of ARCHITECTURE.md for the Python package: which room may use which, and which outside library enters where."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.repository import ROOT, name_of, python_files

PACKAGE = ROOT / "python" / "ssbroker"

# A room is a module or a folder of the package. It may use itself and what stands here.
ROOMS: dict[str, set[str]] = {
    "exceptions": set(),
    "schemas": set(),
    "catalog": {"_core", "exceptions", "schemas"},
    "routing": {"_core", "exceptions", "schemas", "catalog"},
    "spark": {"exceptions", "schemas", "catalog", "routing"},
    "cli": {"exceptions", "schemas", "catalog", "routing", "spark"},
}
# Modules that belong to a room without being named after it.
PARTS: dict[str, str] = {}
# Outside libraries, and the rooms that they may enter; `None` is every room.
OUTSIDE: dict[str, set[str] | None] = {
    "pyarrow": None,
    "sqlglot": {"catalog"},
    "pyspark": {"spark"},
    "typer": {"cli"},
    "rich": {"cli"},
}
# The core is deterministic: no room but the command line and Spark's adaptor meets the machine.
NEVER_OUTSIDE_OF: dict[str, set[str]] = {
    "asyncio": set(),
    "random": set(),
    "socket": set(),
    "subprocess": set(),
    "multiprocessing": set(),
    "threading": {"cli", "spark"},
    "concurrent": {"cli"},
    "time": {"cli"},
}


def room_of(module: str) -> str:
    head = module.split(".", maxsplit=1)[0]
    return PARTS.get(head, head)


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: a relative import"
            if node.module == "ssbroker":
                yield from (f"ssbroker.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def inner(name: str) -> str | None:
    return name.removeprefix("ssbroker.") if name.startswith("ssbroker.") else None


FILES = [path for path in python_files("python/ssbroker") if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_uses_only_what_the_import_rule_allows(path: Path) -> None:
    room = room_of(path.relative_to(PACKAGE).with_suffix("").parts[0])
    assert room in ROOMS, f"{room} is a room that the picture does not have: draw it in ARCHITECTURE.md first"
    used = {room_of(module) for name in imports_of(path) if (module := inner(name))}
    assert used <= ROOMS[room] | {room}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_an_outside_library_enters_only_its_room(path: Path) -> None:
    room = room_of(path.relative_to(PACKAGE).with_suffix("").parts[0])
    for name in imports_of(path):
        top = name.split(".", maxsplit=1)[0]
        if top == "ssbroker" or (top in sys.stdlib_module_names and top not in NEVER_OUTSIDE_OF):
            continue
        allowed = NEVER_OUTSIDE_OF.get(top, OUTSIDE.get(top, set()))
        assert allowed is None or room in allowed, f"{top} may not be imported in {room}"


def test_the_package_re_exports_and_computes_nothing() -> None:
    body = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    assert [ast.unparse(node) for node in body[1:] if not isinstance(node, allowed)] == []
    assert {room_of(module) for name in imports_of(PACKAGE / "__init__.py") if (module := inner(name))}.isdisjoint(
        {"cli", "spark"}
    )


def test_pyspark_is_imported_only_when_it_is_used() -> None:
    """The package imports where pyspark is not installed, its Spark room included: only function bodies and typing may import it."""
    for path in python_files("python/ssbroker"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            text = ast.unparse(node)
            assert not (isinstance(node, ast.Import | ast.ImportFrom) and "pyspark" in text), f"{name_of(path)}: {text}"
