"""The import rule of ARCHITECTURE.md: which package may import which, which library is used where, and no cycles."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards.import_graph import import_cycles, import_graph, imported_modules
from tests.guards.repository import ROOT, name_of, python_files

PACKAGE = ROOT / "python" / "ssbroker"

TABLE = re.compile(r"^\| ((?:`[_a-z]+` ?)+)\| [^|]+\| ([^|;]+)", re.MULTILINE)


def _may_import() -> dict[str, set[str]]:
    """Reads the table of ARCHITECTURE.md: what each package or module may import; members of one row may import each other."""
    rows = [
        (re.findall(r"`(\w+)`", names), allowed.strip().split(", "))
        for names, allowed in TABLE.findall((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    ]
    base = {*rows[0][0], "_core"}
    everything = {name for names, _ in rows for name in names}
    table = {"_core": base, "__main__": {"cli"}}
    for names, allowed in rows:
        packages = everything if allowed == ["everything"] else {*names, *allowed}
        table |= dict.fromkeys(names, packages - {"base", "pyarrow"} | base)
    return table


MAY_IMPORT = _may_import()
# Only the data source of Spark opens instances.
MAY_IMPORT_IN_SOURCE = MAY_IMPORT["spark"] | {"broker", "protocol", "store"}
# Libraries, and the packages or modules that may import them; `None` is all.
LIBRARIES: dict[str, set[str] | None] = {
    "pyarrow": None,
    "pyspark": {"spark", "cli/on_spark"},
    "pandas": {"spark"},
    "typer": {"cli"},
    "duckdb": {"cli"},
    "rich": {"cli"},
    "prompt_toolkit": {"cli"},
    "pygments": {"cli"},
    "anyio": {"broker/async_calls"},
    "opentelemetry": {"broker/opentelemetry_spans"},
    "apsw": {"store"},
    "cryptography": {"security"},
    "starlette": {"web"},
    "uvicorn": {"web"},
}
# Modules of the standard library that break determinism or start work, and the packages that may import them.
RESTRICTED: dict[str, set[str]] = {
    "random": {"broker", "testing"},
    "subprocess": set(),
    "multiprocessing": set(),
    "threading": {"broker", "cli", "spark", "store", "web"},
    "concurrent": {"cli"},
    "time": {"broker", "cli", "spark", "store", "web"},
}
# The network is used in two folders, TLS in one; Prometheus in one module.
ONLY_IN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("asyncio", "socket"), ("broker/network", "web")),
    **dict.fromkeys(("http", "ssl"), ("broker/network",)),
    "prometheus_client": ("broker/metrics.py",),
}

FILES = [path for path in python_files("python/ssbroker") if path != PACKAGE / "__init__.py"]


def package_of(path: Path) -> str:
    """Returns the package, or the module beside the packages, that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_packages(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "ssbroker":
            for alias in node.names:
                assert (
                    (PACKAGE / alias.name).is_dir() or (PACKAGE / f"{alias.name}.py").is_file() or alias.name == "_core"
                ), f"{name_of(path)}:{node.lineno}: import {alias.name} from the module that defines it"
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ssbroker."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            assert "ssbroker" not in {alias.name for alias in node.names}, f"{name_of(path)}:{node.lineno}"
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ssbroker."))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_package_imports_only_what_the_rule_allows(path: Path) -> None:
    package = package_of(path)
    assert package in MAY_IMPORT, f"{package} is not in the table of ARCHITECTURE.md"
    is_source = path.is_relative_to(PACKAGE / "spark" / "source")
    assert set(imported_packages(path)) <= (MAY_IMPORT_IN_SOURCE if is_source else MAY_IMPORT[package])


@pytest.mark.threat("T24")
@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_library_is_imported_only_where_it_belongs(path: Path) -> None:
    """Each library has a reason and a place."""
    package = package_of(path)
    for name in imported_modules(path):
        top = name.split(".", maxsplit=1)[0]
        if top in ONLY_IN:
            assert any(path.is_relative_to(PACKAGE / folder) for folder in ONLY_IN[top]), (
                f"{top} may be imported in {' and '.join(ONLY_IN[top])} only"
            )
            continue
        if top == "ssbroker" or (top in sys.stdlib_module_names and top not in RESTRICTED):
            continue
        allowed = RESTRICTED.get(top, LIBRARIES.get(top, set()))
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        assert allowed is None or {package, module} & allowed, f"{top} may not be imported in {module}"


def test_there_is_no_import_cycle() -> None:
    """Imports inside functions and for typing count."""
    assert import_cycles(import_graph(PACKAGE)) == []


def test_a_planted_cycle_is_found(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "__init__.py").write_text("from ssbroker.store.database_file import File\n")
    (tmp_path / "store" / "database_file.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ssbroker.store.queues import Queue\nclass File: ...\n"
    )
    (tmp_path / "store" / "queues.py").write_text(
        "class Queue:\n    def open(self):\n        from ssbroker import clock\n        from ssbroker.store import gate\n"
    )
    (tmp_path / "store" / "gate.py").write_text("from ssbroker.store import File\n")
    (tmp_path / "clock.py").write_text("import time\n")
    assert import_cycles(import_graph(tmp_path)) == [
        ["ssbroker.store.database_file", "ssbroker.store.gate", "ssbroker.store.queues"]
    ]


def test_the_table_names_only_existing_packages() -> None:
    there = {package_of(path) for path in FILES} | {"_core", "pyspark_ssbroker"}
    assert MAY_IMPORT.keys() == there


def test_folders_are_at_most_two_deep() -> None:
    assert [name_of(path) for path in FILES if len(path.relative_to(PACKAGE).parts) > 3] == []


def test_pyspark_is_imported_only_when_it_is_used() -> None:
    """The package, including `ssbroker.spark`, imports without PySpark: only functions and typing import it."""
    for path in python_files("python/ssbroker"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            text = ast.unparse(node)
            assert not (isinstance(node, ast.Import | ast.ImportFrom) and "pyspark" in text), f"{name_of(path)}: {text}"
