"""`ssbroker doctor`: the installation, and whether a folder can hold an instance."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import database_context
from ssbroker.cli.doctor import _LIBRARIES, _problem
from tests.cli.conftest import Run
from tests.unprivileged import nobody


def test_versions_and_java_are_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    (tmp_path / "jdk" / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    result = run("doctor", "--json")
    found = json.loads(result.out)
    assert result.status == 0
    assert found["ssbroker"] == version("ssbroker")
    assert found["libraries"]["pyarrow"] == {
        "version": version("pyarrow"),
        "needed_for": "the library",
        "install": "ssbroker",
    }
    assert {"prompt_toolkit", "starlette", "uvicorn", "opentelemetry-api"} <= found["libraries"].keys()
    assert found["java"] == f"21.0.2 ({java})"
    assert found["folder"] is None
    shown = run("doctor").out.splitlines()
    assert f"{'pyarrow':<20} {version('pyarrow')}" in shown


def test_what_is_missing_is_named_with_what_needs_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_LIBRARIES, "no-such-library", ("nothing", "ssbroker[all]"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    shown = run("doctor").out.splitlines()
    assert f"{'no-such-library':<20} not installed; needed for nothing: pip install 'ssbroker[all]'" in shown
    assert f"{'java':<20} not found" in shown


def test_no_folder_can_hold_an_instance_without_the_libraries_of_the_broker(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssbroker.cli.doctor._OF_INSTANCES", ("apsw", "no-such-library"))
    monkeypatch.setitem(_LIBRARIES, "no-such-library", ("an instance", "ssbroker[broker]"))
    result = run("doctor", tmp_path)
    assert result.status == 1
    assert result.out.splitlines()[-1] == (
        f"folder {tmp_path}: an instance needs no-such-library: pip install 'ssbroker[broker]'"
    )


def test_a_folder_that_can_hold_an_instance(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    result = run("doctor", folder)
    assert (result.status, result.out.splitlines()[-1]) == (0, f"folder {folder}: can hold an instance")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """An instance folder with a database of some pages."""
    folder = tmp_path / "shop"
    with Instance.create(folder, name="shop", background=False) as instance:
        queue = instance.create_database("Sales").queue("Jobs")
        for _ in range(100):
            queue.put(b"x" * 1000)
        database_context(instance.database("Sales")).file.checkpoint()
    return folder


def test_an_instance_is_checked(run: Run, shop: Path) -> None:
    result = run("doctor", shop)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[-1] == f"folder {shop}: holds an instance; no damage was found in msdb, Sales"
    assert json.loads(run("doctor", shop, "--json").out)["folder"] == {
        "path": str(shop),
        "problem": None,
        "databases": [{"name": "msdb", "problem": None}, {"name": "Sales", "problem": None}],
    }


@pytest.mark.parametrize("damage", ["missing", "middle", "header"])
def test_a_damaged_database_is_found(run: Run, shop: Path, damage: str) -> None:
    path = shop / "Sales.sqlite"
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        start = 0 if damage == "header" else len(content) // 2
        content[start : start + 20_000] = b"\xa5" * 20_000
        path.write_bytes(content)
    result = run("doctor", shop)
    assert (result.status, result.err) == (1, "")
    whole, found = result.out.splitlines()[-2:]
    assert whole == f"folder {shop}: holds an instance; damaged or unusable: 1 of 2 databases"
    assert found.startswith(f"database Sales: {path}: ")


def test_an_instance_that_cannot_be_opened_is_reported(run: Run, shop: Path) -> None:
    (shop / "msdb.sqlite").write_bytes(b"garbage!" * 1000)
    result = run("doctor", shop)
    assert result.status == 1
    assert result.out.splitlines()[-1].startswith(
        f"folder {shop}: holds an instance that cannot be opened: {shop / 'msdb.sqlite'}: "
    )


def test_a_folder_whose_msdb_is_lost_is_reported(run: Run, shop: Path) -> None:
    (shop / "msdb.sqlite").unlink()
    result = run("doctor", shop)
    assert result.status == 1
    assert result.out.splitlines()[-1] == (
        f"folder {shop}: contains databases of an instance (Sales.sqlite), but no msdb.sqlite; restore msdb.sqlite from a backup. "
        "To start a new instance with these databases, move their files away, create the instance, and attach copies of the files"
    )


def test_a_file_without_which_an_instance_works_may_be_read_only() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        Instance.create(folder / "shop", name="shop", background=False).close()
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777)
        (folder / "shop" / "msdb.sqlite-notify").touch()
        (folder / "shop" / "msdb.sqlite-notify").chmod(0o444)
        with nobody():
            assert _problem(folder / "shop") is None
    finally:
        shutil.rmtree(folder)


def test_a_folder_without_permission_cannot_hold_an_instance(run: Run) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        with nobody():
            result = run("doctor", folder)
    finally:
        folder.rmdir()
    assert result.status == 1
    assert result.out.splitlines()[-1] == f"folder {folder}: cannot write to {folder}: Permission denied"


def test_a_folder_that_may_not_be_entered_cannot_hold_an_instance(run: Run) -> None:
    outer = Path(tempfile.mkdtemp())
    run("doctor", outer)  # imports what a user without rights may not read
    try:
        outer.chmod(0)
        with nobody():
            result = run("doctor", outer / "shop")
    finally:
        outer.rmdir()
    assert result.status == 1
    assert result.out.splitlines()[-1] == f"folder {outer}/shop: cannot write to {outer}/shop: Permission denied"


def test_a_file_cannot_hold_an_instance(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("doctor", tmp_path / "file")
    assert (result.status, result.out.splitlines()[-1]) == (
        1,
        f"folder {tmp_path / 'file'}: {tmp_path / 'file'} is a file",
    )
