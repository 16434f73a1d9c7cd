"""Saving of catalogs as folders and scripts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker.catalog import save
from ssbroker.exceptions import OutputError
from tests.compat.pyarrow_versions import needs_pyarrow

TABLES = {"routes": pa.table({"name": ["Orders"]}), "services": pa.table({"name": pa.array([], pa.string())})}
OTHER_TABLES = {"routes": pa.table({"name": ["Other"]}), "services": pa.table({"name": ["//Other"]})}
INSTANCE: dict[str, Any] = {"addresses": ["TCP://größe:4022"], "message_forwarding": False}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_folder_is_written_and_replaced(tmp_path: Path) -> None:
    save.save_folder(tmp_path / "net", TABLES, INSTANCE)
    save.save_folder(tmp_path / "net", OTHER_TABLES, INSTANCE)
    assert sorted(contents(tmp_path)) == ["net/instance.json", "net/routes.parquet", "net/services.parquet"]
    assert pq.read_table(tmp_path / "net" / "routes.parquet").to_pylist() == [{"name": "Other"}]
    assert "größe" in (tmp_path / "net" / "instance.json").read_text(encoding="utf-8")


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    save.save_folder(tmp_path / "net", TABLES, INSTANCE)
    assert (tmp_path / "net" / "routes.parquet").exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "routes.csv", "more/routes.parquet"])
def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path, foreign: str) -> None:
    file = tmp_path / "net" / foreign
    file.parent.mkdir(parents=True)
    file.write_text("dear to somebody")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match="would be deleted"):
        save.save_folder(tmp_path / "net", TABLES, INSTANCE)
    assert contents(tmp_path) == before


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "net").write_text("a file")
    with pytest.raises(OutputError, match="is a file; expected a folder"):
        save.save_folder(tmp_path / "net", TABLES, INSTANCE)
    assert (tmp_path / "net").read_text() == "a file"


def test_a_table_that_parquet_cannot_store_changes_nothing(tmp_path: Path) -> None:
    save.save_folder(tmp_path / "net", TABLES, INSTANCE)
    before = contents(tmp_path)
    unfit = {"routes": pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])})}
    with pytest.raises(OutputError, match="existing files are unchanged") as caught:
        save.save_folder(tmp_path / "net", OTHER_TABLES | unfit, INSTANCE)
    assert isinstance(caught.value.__cause__, pa.ArrowException)
    assert contents(tmp_path) == before


@needs_pyarrow("16", "has no dictionaries of views")
def test_polars_categories_are_saved(tmp_path: Path) -> None:
    """They are dictionaries of views, which Parquet cannot store."""
    frame = pl.DataFrame({"name": ["Orders", "Stock"], "owner": ["me", None]}).with_columns(
        pl.col("owner").cast(pl.Categorical)
    )
    save.save_folder(tmp_path / "net", {"routes": pa.table(frame)}, INSTANCE)
    assert pq.read_table(tmp_path / "net" / "routes.parquet").to_pylist() == frame.to_dicts()


def test_a_failed_swap_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save.save_folder(tmp_path / "net", TABLES, INSTANCE)
    before = contents(tmp_path)
    rename, calls = Path.rename, []

    def fail_at_the_second(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_at_the_second)
    with pytest.raises(OutputError, match="No space left on device"):
        save.save_folder(tmp_path / "net", OTHER_TABLES, INSTANCE)
    assert len(calls) == 3
    assert contents(tmp_path) == before


def test_a_script_is_written_and_replaced(tmp_path: Path) -> None:
    save.save_text(tmp_path / "catalog.sql", "old")
    (tmp_path / "catalog.sql").chmod(0o640)
    save.save_text(tmp_path / "catalog.sql", "USE [Größe];\n")
    assert contents(tmp_path) == {"catalog.sql": "USE [Größe];\n".encode()}
    assert (tmp_path / "catalog.sql").stat().st_mode & 0o777 == 0o640


def test_a_script_that_cannot_be_synced_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save.save_text(tmp_path / "catalog.sql", "old")

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="Input/output error"):
        save.save_text(tmp_path / "catalog.sql", "new")
    assert contents(tmp_path) == {"catalog.sql": b"old"}


def test_a_script_with_a_lone_surrogate_changes_nothing(tmp_path: Path) -> None:
    save.save_text(tmp_path / "catalog.sql", "old")
    with pytest.raises(OutputError, match="surrogates not allowed"):
        save.save_text(tmp_path / "catalog.sql", "\ud800")
    assert contents(tmp_path) == {"catalog.sql": b"old"}


def test_a_script_does_not_replace_a_folder(tmp_path: Path) -> None:
    (tmp_path / "catalog.sql").mkdir()
    with pytest.raises(OutputError, match=r"catalog\.sql: cannot be written"):
        save.save_text(tmp_path / "catalog.sql", "new")
    assert list(tmp_path.iterdir()) == [tmp_path / "catalog.sql"]


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    save.save_text(tmp_path / "catalog.sql", "old")
    (tmp_path / "link.sql").symlink_to("catalog.sql")
    save.save_text(tmp_path / "link.sql", "new")
    assert (tmp_path / "link.sql").is_symlink()
    assert (tmp_path / "catalog.sql").read_text() == "new"


@pytest.mark.parametrize("parent", ["absent", "file"])
def test_the_error_names_the_unwritable_path(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError, match="cannot be written"):
        save.save_text(tmp_path / parent / "catalog.sql", "new")
    assert contents(tmp_path) == {"file": b"no folder"}


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b", "loop"])
def test_an_invalid_path_is_an_output_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OutputError, match="cannot be written"):
        save.save_folder(tmp_path / name, TABLES, INSTANCE)
    if name != "loop":
        with pytest.raises(OutputError, match="cannot be written"):
            save.save_text(tmp_path / name, "-- nothing")
    assert [entry.name for entry in tmp_path.iterdir()] == ["loop"]
