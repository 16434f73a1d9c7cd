"""Catalogs that change while they are loaded: the result is consistent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog, InputError, schemas
from ssbroker.catalog import load, table_files
from tests.catalog.catalogs import route, rows

Meanwhile = Callable[[Callable[[], None]], None]


@pytest.fixture
def during_loading(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Runs a function each time after the first file has been read."""

    def do(change: Callable[[], None]) -> None:
        read = table_files.read_bytes

        def read_and_change(path: Path) -> bytes:
            data = read(path)
            if path.name.startswith(("routes", "1")):
                change()
            return data

        monkeypatch.setattr(load, "read_bytes", read_and_change)
        monkeypatch.setattr(table_files, "read_bytes", read_and_change)

    return do


def version(number: int) -> Catalog:
    services = pa.table({"database": ["Sales"], "name": [f"//Orders/{number}"]})
    routes = [route("Sales", f"R{number}", remote_service_name=f"//Orders/{number}")]
    return Catalog(rows(routes, schemas.ROUTES), services=services)


def write_csv(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "routes.csv").write_text(f"database,name,remote_service_name,address\nSales,R,//Orders/{number},LOCAL\n")
    (folder / "services.csv").write_text(f"database,name\nSales,//Orders/{number}\n")


def services_of(catalog: Catalog) -> tuple[Any, Any]:
    return catalog.routes["remote_service_name"].to_pylist(), catalog.services["name"].to_pylist()


def once(change: Callable[[], None]) -> Callable[[], None]:
    left = [change]
    return lambda: left.pop()() if left else None


def test_a_folder_that_is_saved_during_loading_is_consistent(tmp_path: Path, during_loading: Meanwhile) -> None:
    folder = tmp_path / "net"
    version(1).save(folder)
    during_loading(once(lambda: version(2).save(folder)))
    assert Catalog.load(folder) == version(2)


def test_files_that_are_rewritten_during_loading_are_consistent(tmp_path: Path, during_loading: Meanwhile) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    during_loading(once(lambda: write_csv(folder, 22)))
    assert services_of(Catalog.load(folder)) == (["//Orders/22"], ["//Orders/22"])


def test_a_release_link_that_is_switched_during_loading_is_consistent(
    tmp_path: Path, during_loading: Meanwhile
) -> None:
    """Switching the link changes the files behind the same names."""
    for number in (1, 2):
        write_csv(tmp_path / f"release-{number}", number)
    current = tmp_path / "current"
    current.symlink_to("release-1")

    def release() -> None:
        (tmp_path / "next").symlink_to("release-2")
        (tmp_path / "next").replace(current)

    during_loading(once(release))
    assert services_of(Catalog.load(current)) == (["//Orders/2"], ["//Orders/2"])


def test_scripts_that_are_replaced_during_loading_are_consistent(tmp_path: Path, during_loading: Meanwhile) -> None:
    def write(number: int) -> None:
        (tmp_path / "1.sql").write_text(f"USE msdb; CREATE ROUTE A{number} WITH ADDRESS = N'LOCAL'")
        (tmp_path / "2.sql").write_text(f"USE msdb; CREATE ROUTE B{number} WITH ADDRESS = N'LOCAL'")

    write(1)
    during_loading(once(lambda: write(22)))
    assert Catalog.load(tmp_path).routes["name"].to_pylist()[1:] == ["A22", "B22"]


def test_an_error_of_a_half_written_file_is_retried(tmp_path: Path, during_loading: Meanwhile) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    (folder / "services.csv").write_text('database,name\nSales,"//Ord')
    during_loading(once(lambda: write_csv(folder, 2)))
    assert services_of(Catalog.load(folder)) == (["//Orders/2"], ["//Orders/2"])


def test_a_catalog_that_changes_continuously_is_reported(tmp_path: Path, during_loading: Meanwhile) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    sizes = [1]

    def grow() -> None:
        sizes.append(1)
        write_csv(folder, 10 ** len(sizes))

    during_loading(grow)
    with pytest.raises(InputError, match=r"net: changed during each of 6 attempts to read it; stop writing to it"):
        Catalog.load(folder)


@pytest.mark.parametrize("name", ["ssbroker.log", "traffic.csv", "routes.csv.log", "services"])
def test_other_files_of_the_folder_may_change(tmp_path: Path, during_loading: Meanwhile, name: str) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    tries = []

    def write() -> None:
        tries.append(1)
        (folder / name).write_text("more and more\n" * len(tries))
        (folder / f"{name}.{len(tries)}").touch()  # changes the modification time of the folder

    during_loading(write)
    assert services_of(Catalog.load(folder)) == (["//Orders/1"], ["//Orders/1"])
    assert len(tries) == 1


def test_settings_are_not_read_with_scripts(tmp_path: Path, during_loading: Meanwhile) -> None:
    (tmp_path / "1.sql").write_text("USE msdb; CREATE ROUTE A WITH ADDRESS = N'LOCAL'")
    sizes = iter(range(100))

    def write() -> None:
        (tmp_path / "instance.json").write_text(" " * next(sizes))

    during_loading(write)
    assert Catalog.load(tmp_path).routes["name"].to_pylist()[1:] == ["A"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with a path")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "net.sql"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=["USE msdb; CREATE ROUTE A WITH ADDRESS = N'LOCAL'"])
    writer.start()
    assert Catalog.load(pipe).routes["name"].to_pylist()[1:] == ["A"]
    writer.join()
