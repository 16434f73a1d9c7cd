"""The import rule of ARCHITECTURE.md for the Python package: which room may use which, and which outside library enters where."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.repository import ROOT, name_of, python_files

PACKAGE = ROOT / "python" / "ssbroker"

# The modules and folders of each room. One noun, and what is told beside it.
MODULES: dict[str, set[str]] = {
    "ground": {
        "arrow_input",
        "bool8",
        "disk",
        "exceptions",
        "moment",
        "options",
        "plain_rows",
        "row_groups",
        "schemas",
        "versions",
        "views",
    },
    "native": {"_core"},
    "ids": {"guids"},
    "ddl": {"ddl"},
    "catalog": {
        "catalog",
        "cells",
        "further",
        "loading",
        "payload",
        "readable",
        "saving",
        "scripts",
        "sql_server",
        "table_files",
    },
    "doorway": {"instance_folder"},
    "explanation": {"advice", "explanation", "explanation_text", "hosting", "near_misses", "wording"},
    "routing": {"routing", "trials"},
    "reassembly": {"fragments", "reassembler", "reassembly", "session_keys"},
    "diagnose": {"diagnose"},
    "security": {"security"},
    "protocol": {"protocol"},
    "store": {"store"},
    "broker": {"broker"},
    "testing": {"testing"},
    "spark": {"spark"},
    "cli": {"__main__", "cli"},
}
# What a room may use beside itself.
MAY_USE: dict[str, set[str]] = {
    "ground": set(),
    "native": set(),
    "ids": {"ground", "native"},
    "ddl": {"ground", "native"},
    "catalog": {"ground", "native", "ddl", "doorway"},
    # A live instance gives a catalog, and knows what one is: the one place where the lower room reaches up, inside a function.
    "doorway": {"catalog", "broker"},
    "explanation": {"ground"},
    "routing": {"ground", "native", "ids", "catalog", "explanation"},
    "reassembly": {"ground", "native", "ids"},
    "diagnose": {"ground", "ids", "ddl", "catalog", "explanation", "routing"},
    "security": {"ground", "ids"},
    "protocol": {"ground", "native", "ids", "reassembly", "security"},
    "store": {"ground", "native", "ids"},
    "broker": {
        "ground",
        "ids",
        "ddl",
        "catalog",
        "explanation",
        "routing",
        "reassembly",
        "security",
        "protocol",
        "store",
    },
    "testing": {"ground", "ids", "reassembly", "security", "protocol"},
    "spark": {"ground", "native", "catalog", "routing", "reassembly", "diagnose"},
    "cli": {
        "ground",
        "ids",
        "catalog",
        "explanation",
        "routing",
        "reassembly",
        "diagnose",
        "security",
        "protocol",
        "broker",
        "spark",
    },
}
# A folder of a room that may use more: Spark's source is the one door from a DataFrame to a running instance.
FOLDER_MAY_USE: dict[str, set[str]] = {"spark/source": {"broker", "doorway", "protocol", "store"}}
# Outside libraries, and the rooms that they may enter; `None` is every room.
OUTSIDE: dict[str, set[str] | None] = {
    "pyarrow": None,
    "pyspark": {"spark"},
    "typer": {"cli"},
    "duckdb": {"cli"},
    "rich": {"cli"},
    "apsw": {"store"},
    "cryptography": {"security"},
}
# The core is deterministic: no room but the store, the running instance, the command line and Spark's adaptor meets the machine.
NEVER_OUTSIDE_OF: dict[str, set[str]] = {
    "random": {"broker", "testing"},
    "subprocess": set(),
    "multiprocessing": set(),
    "threading": {"broker", "cli", "spark", "store"},
    "concurrent": {"cli"},
    "time": {"broker", "cli", "spark", "store"},
}

# The folders of a running instance, each built on those before it; what stands beside them brings them together.
SHELVES = ("objects", "work", "dialogs", "asking", "delivery", "activation", "databases", "scripts", "views")
NETWORK_SHELVES = ("connections", "exchange", "carriage", "service")

# Other instances, and those who watch this one, are talked to in one folder.
ONLY_IN: dict[str, str] = dict.fromkeys(("asyncio", "http", "prometheus_client", "socket", "ssl"), "broker/network")


def room_of(module: str) -> str:
    """The room of a dotted name below the package."""
    head = module.split(".", maxsplit=1)[0]
    rooms = [room for room, modules in MODULES.items() if head in modules]
    assert len(rooms) == 1, f"{head} stands in no room of the picture: draw it in ARCHITECTURE.md first"
    return rooms[0]


def room_at(path: Path) -> str:
    return room_of(path.relative_to(PACKAGE).with_suffix("").parts[0])


def imports_of(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert "ssbroker" not in {alias.name for alias in node.names}, (
                f"{name_of(path)}:{node.lineno}: name the module"
            )
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: a relative import"
            if node.module == "ssbroker":
                yield from (EXPORTS.get(alias.name, f"ssbroker.{alias.name}") for alias in node.names)
            else:
                yield node.module or ""


def exports() -> dict[str, str]:
    """The module behind each public name."""
    body = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body
    found = {alias.name: node.module or "" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    return {"__version__": "ssbroker.schemas", **found}


EXPORTS = exports()


def inner(name: str) -> str | None:
    return name.removeprefix("ssbroker.") if name.startswith("ssbroker.") else None


FILES = [path for path in python_files("python/ssbroker") if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_uses_only_what_the_import_rule_allows(path: Path) -> None:
    room = room_at(path)
    used = {room_of(module) for name in imports_of(path) if (module := inner(name))}
    more = (rooms for folder, rooms in FOLDER_MAY_USE.items() if path.is_relative_to(PACKAGE / folder))
    assert used <= {*MAY_USE[room], room}.union(*more)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_an_outside_library_enters_only_its_room(path: Path) -> None:
    """T24: each library is there for a reason, in one place."""
    room = room_at(path)
    for name in imports_of(path):
        top = name.split(".", maxsplit=1)[0]
        if top in ONLY_IN:
            assert path.is_relative_to(PACKAGE / ONLY_IN[top]), f"{top} may be imported in {ONLY_IN[top]} only"
            continue
        if top == "ssbroker" or (top in sys.stdlib_module_names and top not in NEVER_OUTSIDE_OF):
            continue
        allowed = NEVER_OUTSIDE_OF.get(top, OUTSIDE.get(top, set()))
        assert allowed is None or room in allowed, f"{top} may not be imported in {room}"


@pytest.mark.parametrize(
    ("folder", "shelves"), [("broker", SHELVES), ("broker/network", NETWORK_SHELVES)], ids=["broker", "network"]
)
def test_a_folder_of_a_running_instance_builds_on_those_before_it(folder: str, shelves: tuple[str, ...]) -> None:
    prefix = f"ssbroker.{folder.replace('/', '.')}."
    there = {path.name for path in (PACKAGE / folder).iterdir() if (path / "__init__.py").is_file()} - {"network"}
    assert there == set(shelves)
    for place, shelf in enumerate(shelves):
        for path in (PACKAGE / folder / shelf).glob("*.py"):
            used = {name.removeprefix(prefix).split(".")[0] for name in imports_of(path) if name.startswith(prefix)}
            assert used.isdisjoint(shelves[place + 1 :]), f"{name_of(path)} reaches up"


def test_every_module_of_the_picture_is_there() -> None:
    there = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in FILES} | {"_core"}
    assert {module for modules in MODULES.values() for module in modules} - there == set()


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
