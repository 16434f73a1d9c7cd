"""The import graph of the Python package, with every import: at module level, inside functions, and for typing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "ssbroker"


def import_graph(folder: Path) -> dict[str, set[str]]:
    """Maps each module of a package folder to the modules of the package that it imports.

    An import of a name that a package's `__init__` re-exports counts as an import of the module that defines it.
    """
    files = {_module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    packages = {name for name, path in files.items() if path.name == "__init__.py"}
    exports = {name: dict(_imported_names(files[name])) for name in packages}
    graph: dict[str, set[str]] = {}
    for name in files.keys() - packages:
        graph[name] = set()
        for imported, module in _imported_names(files[name], by_position=True):
            symbol = imported.partition("#")[0]
            target = f"{module}.{symbol}"
            if target in packages:
                continue
            if target not in files:
                target = module if module not in packages else exports[module].get(symbol, module)
            if target in files and target not in packages and target != name:
                graph[name].add(target)
    return graph


def import_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one module (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            place = stack.index(module)
            component = sorted(stack[place:])
            del stack[place:]
            if len(component) > 1:
                found.append(component)

    for module in sorted(graph):
        if module not in order:
            visit(module)
    return found


def imported_modules(path: Path) -> Iterator[str]:
    """Yields the dotted names of the modules that a file imports, or imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield node.module or ""


def _module_name(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def _imported_names(path: Path, *, by_position: bool = False) -> Iterator[tuple[str, str]]:
    """Yields each name that a file imports from the package, with its module; `by_position` makes names distinct."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for alias in node.names:
                yield (f"{alias.name}#{node.lineno}" if by_position else alias.name), node.module or ""
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(f"{PACKAGE}."):
                    module, _, name = alias.name.rpartition(".")
                    yield (f"{name}#{node.lineno}" if by_position else name), module
