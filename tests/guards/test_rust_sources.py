"""The import rule of ARCHITECTURE.md for the Rust crates."""

from __future__ import annotations

import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.guards.repository import ROOT, name_of, rust_files

# A crate, the crates that it may depend on, and names that its code may not use.
CRATES: dict[str, set[str]] = {
    "rust/core": {"aes", "hashbrown", "ssbroker-md5", "unicode-normalization"},
    "rust/md5": set(),
    "rust/columnar": {
        "ssbroker-core",
        "ssbroker-md5",
        "arrow-array",
        "arrow-buffer",
        "arrow-data",
        "arrow-ipc",
        "arrow-row",
        "arrow-schema",
        "arrow-select",
        "crc32c",
        "flatbuffers",
    },
    "rust/store": {"libc", "rusqlite", "rustix", "ssbroker-core"},
    "rust/python": {
        "ssbroker-core",
        "ssbroker-md5",
        "ssbroker-store",
        "ssbroker-columnar",
        "arrow-array",
        "arrow-buffer",
        "arrow-data",
        "arrow-schema",
        "mimalloc",
        "pyo3",
    },
}
MACHINE = r"std::(?:env|fs|net::(?!Ipv)|process|thread|time)\b|\bInstant::now|\bSystemTime\b"
FORBIDDEN: dict[str, str] = {
    "rust/core": rf"\barrow\w*::|\bpyo3\b|\bstd::io\b|{MACHINE}",
    "rust/md5": rf"\barrow\w*::|\bpyo3\b|\bstd::io\b|{MACHINE}",
    "rust/columnar": rf"\bpyo3\b|\bstd::io\b|{MACHINE}",
    "rust/store": r"\barrow\w*::|\bpyo3\b|std::(?:env|net|process|thread)\b",
    "rust/python": MACHINE,
}
# Spark forks its workers, and neither threads nor global state survive a fork.
GLOBALS = r"\bstatic\s+mut\b|\blazy_static\b|\bthread_local!|\b(?:Lazy|Once)(?:Cell|Lock)\b|\bonce_cell\b|\brayon\b|\bthread::(?:spawn|scope|Builder)"
# Where unsafe code is allowed, and why it is needed.
UNSAFE: dict[str, str] = {
    "rust/core/src/guid/avx2.rs": "vector loads and stores",
    "rust/core/src/guid/avx512.rs": "vector loads and stores",
    "rust/core/src/guid/mod.rs": "calls of functions that need certain processor features",
    "rust/core/src/prefetch.rs": "prefetch instructions, which take raw pointers",
    "rust/md5/src/lanes/avx2.rs": "vector loads and stores",
    "rust/md5/src/lanes/avx512.rs": "vector loads and stores",
    "rust/md5/src/lanes/mod.rs": "calls of functions that need certain processor features, prefetching, and uninitialized memory",
    "rust/md5/src/lanes/neon.rs": "vector loads and stores",
    "rust/md5/src/lanes/sse2.rs": "vector loads and stores",
    "rust/md5/src/parts.rs": "uninitialized memory that is written before it is read",
    "rust/python/src/arrow.rs": "pointers of the Arrow C data interface and of the buffer protocol",
    "rust/python/src/memory.rs": "options of the allocator, which is C",
    "rust/python/src/sqlite.rs": "apsw's SQLite connection, and the entry point that SQLite calls",
    "rust/store/src/connection.rs": "the SQLite of another extension module, which is C",
    "rust/store/src/file_locks.rs": "system calls of SQLite, which it calls instead of the system's",
    "rust/store/src/shared_memory.rs": "memory that is mapped from a file and shared with other processes",
    "rust/store/src/wal_vfs.rs": "the C structures of a SQLite virtual file system",
}

# The fuzz targets are tests, outside the workspace.
CODE = [path for path in rust_files() if path.parts[-2] != "tests" and "fuzz" not in path.parts]


def code_of(path: Path) -> str:
    """Returns the source without comments, strings and the tests at its end."""
    text = path.read_text(encoding="utf-8").split("#[cfg(test)]\nmod ", maxsplit=1)[0]
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return re.sub(r"//.*", "", text)


def crate_of(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[:2])


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_depends_only_on_what_the_import_rule_allows(crate: str) -> None:
    manifest = tomllib.loads((ROOT / crate / "Cargo.toml").read_text(encoding="utf-8"))
    parts = [manifest, *manifest.get("target", {}).values()]
    assert {name for part in parts for name in part.get("dependencies", {})} <= CRATES[crate]
    assert manifest["lints"] == {"workspace": True}


def test_every_crate_has_a_rule() -> None:
    members = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["members"]
    assert sorted(members) == sorted(CRATES)


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_a_source_uses_nothing_forbidden_in_its_crate(path: Path) -> None:
    assert re.findall(FORBIDDEN[crate_of(path)], code_of(path)) == []


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_no_thread_is_started_and_no_global_state_is_kept(path: Path) -> None:
    assert re.findall(GLOBALS, code_of(path)) == []


@pytest.mark.threat("T24")
@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_unsafe_code_is_in_listed_files_only_and_has_safety_comments(path: Path) -> None:
    """Few small files contain unsafe code."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"\bunsafe\s*(?:\{|fn|impl)", code_of(path))
    if name_of(path) not in UNSAFE:
        assert blocks == []
        return
    assert blocks, f"{name_of(path)} does not need the exception any more"
    assert len(re.findall(r"// SAFETY:|# Safety", text)) >= len(blocks)


def modules_of(crate: str) -> dict[str, Path]:
    """Returns the modules of a crate by path; the crate's root is ''."""
    source = ROOT / crate / "src"
    return {
        re.sub(r"(?:^|::)(?:lib|mod)$", "", "::".join(path.relative_to(source).with_suffix("").parts)): path
        for path in rust_files(f"{crate}/src")
    }


def imports_of(module: str, modules: dict[str, Path]) -> set[str]:
    """Returns the modules that a module imports at its top, other than its ancestors and descendants."""
    imported = set()
    for statement in re.findall(
        r"^(?:pub\S* )?use ((?:crate|super|self)::[^;]+);", code_of(modules[module]), re.MULTILINE
    ):
        head, _, group = "".join(statement.split()).partition("{")
        for item in group.rstrip("}").split(",") if group else [""]:
            first, *path = f"{head}{item}".split("::")
            parent = module.split("::")
            if first != "crate":
                path = [*(parent[:-1] if first == "super" else parent), *path]
            while "::".join(path) not in modules:
                path.pop()
            imported.add("::".join(path))
    return {
        other
        for other in imported
        if other and module and not f"{module}::".startswith(f"{other}::") and not other.startswith(f"{module}::")
    }


@pytest.mark.parametrize("crate", CRATES)
def test_the_modules_of_a_crate_have_no_import_cycle(crate: str) -> None:
    modules = modules_of(crate)
    TopologicalSorter({module: imports_of(module, modules) for module in modules}).prepare()


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_forbids_unsafe_code_in_other_files(crate: str) -> None:
    has_place = any(place.startswith(f"{crate}/") for place in UNSAFE)
    assert f"#![{'deny' if has_place else 'forbid'}(unsafe_code)]" in (ROOT / crate / "src" / "lib.rs").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("path", rust_files("rust/python"), ids=name_of)
def test_every_class_is_frozen_and_knows_its_module(path: Path) -> None:
    for attribute in re.findall(r"#\[pyclass\b[^\]]*\]", path.read_text(encoding="utf-8")):
        assert re.search(r"\bfrozen\b", attribute), attribute
        assert re.search(r'\bmodule\s*=\s*"ssbroker', attribute), attribute


def test_the_bindings_have_classes() -> None:
    assert any("#[pyclass" in path.read_text(encoding="utf-8") for path in rust_files("rust/python"))


@pytest.mark.parametrize("lock", ["Cargo.lock", "rust/fuzz/Cargo.lock"])
def test_the_lock_files_state_the_version_of_the_workspace(lock: str) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    packages = tomllib.loads((ROOT / lock).read_text(encoding="utf-8"))["package"]
    versions = {each["name"]: each["version"] for each in packages if each["name"].startswith("ssbroker-")}
    assert {"ssbroker-core", "ssbroker-md5", "ssbroker-columnar"} <= versions.keys()
    assert {name: found for name, found in versions.items() if found != version and name != "ssbroker-fuzz"} == {}
