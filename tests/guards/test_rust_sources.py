"""What the Rust sources may use, and where: the import rule of ARCHITECTURE.md for the crates."""

from __future__ import annotations

import re
import tomllib
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
    "rust/store": {"rusqlite", "ssbroker-core"},
    "rust/python": {
        "ssbroker-core",
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
# Spark forks its workers: no thread and no state outside of objects survives that.
GLOBALS = r"\bstatic\s+mut\b|\blazy_static\b|\bthread_local!|\b(?:Lazy|Once)(?:Cell|Lock)\b|\bonce_cell\b|\brayon\b|\bthread::(?:spawn|scope|Builder)"
# The places of unsafe code, and why each has to be.
UNSAFE: dict[str, str] = {
    "rust/core/src/guid_text/avx2.rs": "loads and stores of whole vectors",
    "rust/core/src/guid_text/avx512.rs": "loads and stores of whole vectors",
    "rust/core/src/guid_text/mod.rs": "calls of what needs a processor that has it",
    "rust/core/src/prefetch.rs": "a hint to the processor about addresses that need not be valid",
    "rust/md5/src/append.rs": "room that is written before it is read",
    "rust/md5/src/lanes/avx2.rs": "loads and stores of whole vectors",
    "rust/md5/src/lanes/avx512.rs": "loads and stores of whole vectors",
    "rust/md5/src/lanes/copies.rs": "room as lines of the caches, before it is written",
    "rust/md5/src/lanes/mod.rs": "calls of what needs a processor that has it, and a hint to it",
    "rust/md5/src/lanes/neon.rs": "loads and stores of whole vectors",
    "rust/md5/src/lanes/sse2.rs": "loads and stores of whole vectors",
    "rust/python/src/capsule.rs": "pointers of the Arrow C data interface",
    "rust/python/src/frozen.rs": "bytes that the buffer protocol shows",
    "rust/python/src/memory.rs": "an option of the allocator, which is C",
    "rust/python/src/sqlite.rs": "a connection of another extension module, and the call by which its SQLite makes itself known",
    "rust/store/src/gathering/file.rs": "the C structures by which SQLite asks for its files",
    "rust/store/src/gathering/mod.rs": "the C structure by which SQLite asks for a file system",
    "rust/store/src/library.rs": "the SQLite of another extension module, which is C",
}

# The fuzz targets are tests, outside the workspace.
CODE = [path for path in rust_files() if path.parts[-2] != "tests" and "fuzz" not in path.parts]


def code_of(path: Path) -> str:
    """The source without comments, strings and the tests at its foot."""
    text = path.read_text(encoding="utf-8").split("#[cfg(test)]\nmod ", maxsplit=1)[0]
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    return re.sub(r"//.*", "", text)


def crate_of(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[:2])


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_depends_only_on_what_the_import_rule_allows(crate: str) -> None:
    manifest = tomllib.loads((ROOT / crate / "Cargo.toml").read_text(encoding="utf-8"))
    assert set(manifest.get("dependencies", {})) <= CRATES[crate]
    assert manifest["lints"] == {"workspace": True}


def test_every_crate_is_in_the_picture() -> None:
    members = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["members"]
    assert sorted(members) == sorted(CRATES)


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_a_source_uses_nothing_that_its_crate_must_not_know(path: Path) -> None:
    assert re.findall(FORBIDDEN[crate_of(path)], code_of(path)) == []


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_no_thread_is_started_and_no_global_is_kept(path: Path) -> None:
    assert re.findall(GLOBALS, code_of(path)) == []


@pytest.mark.threat("T24")
@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_unsafe_code_stands_only_in_its_places_and_says_why_it_is_sound(path: Path) -> None:
    """Seven small places."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"\bunsafe\s*(?:\{|fn|impl)", code_of(path))
    if name_of(path) not in UNSAFE:
        assert blocks == []
        return
    assert blocks, f"{name_of(path)} needs no exception any more"
    assert len(re.findall(r"// SAFETY:|# Safety", text)) >= len(blocks)


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_forbids_unsafe_code_outside_of_its_places(crate: str) -> None:
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
