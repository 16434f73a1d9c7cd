"""A catalog that is replaced or written while it is read: all of it is of one moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog, InputError, schemas
from ssbroker.catalog import load
from tests.unit.catalogs import route, rows

Meanwhile = Callable[[Callable[[], None]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """Has something done each time behind the first file that is read."""

    def do(change: Callable[[], None]) -> None:
        read = load.read_bytes

        def read_and_change(path: Path) -> bytes:
            data = read(path)
            if path.name.startswith(("routes", "1")):
                change()
            return data

        monkeypatch.setattr(load, "read_bytes", read_and_change)
        monkeypatch.setattr("ssbroker.catalog.load.read_bytes", read_and_change)

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


def test_a_folder_that_is_saved_anew_while_it_is_read_is_not_half_the_old_one(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    folder = tmp_path / "net"
    version(1).save(folder)
    meanwhile(once(lambda: version(2).save(folder)))
    assert Catalog.load(folder) == version(2)


def test_files_that_are_written_anew_while_they_are_read_are_of_one_moment(
    tmp_path: Path, meanwhile: Meanwhile
) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    meanwhile(once(lambda: write_csv(folder, 22)))
    assert services_of(Catalog.load(folder)) == (["//Orders/22"], ["//Orders/22"])


def test_what_a_release_leads_to_is_not_half_the_one_before(tmp_path: Path, meanwhile: Meanwhile) -> None:
    """A link that is turned to the next release has other files behind the same names."""
    for number in (1, 2):
        write_csv(tmp_path / f"release-{number}", number)
    current = tmp_path / "current"
    current.symlink_to("release-1")

    def release() -> None:
        (tmp_path / "next").symlink_to("release-2")
        (tmp_path / "next").replace(current)

    meanwhile(once(release))
    assert services_of(Catalog.load(current)) == (["//Orders/2"], ["//Orders/2"])


def test_scripts_that_are_replaced_while_they_are_read_are_of_one_moment(tmp_path: Path, meanwhile: Meanwhile) -> None:
    def write(number: int) -> None:
        (tmp_path / "1.sql").write_text(f"USE msdb; CREATE ROUTE A{number} WITH ADDRESS = N'LOCAL'")
        (tmp_path / "2.sql").write_text(f"USE msdb; CREATE ROUTE B{number} WITH ADDRESS = N'LOCAL'")

    write(1)
    meanwhile(once(lambda: write(22)))
    assert Catalog.load(tmp_path).routes["name"].to_pylist()[1:] == ["A22", "B22"]


def test_an_error_of_a_file_that_was_on_its_way_is_none(tmp_path: Path, meanwhile: Meanwhile) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    (folder / "services.csv").write_text('database,name\nSales,"//Ord')
    meanwhile(once(lambda: write_csv(folder, 2)))
    assert services_of(Catalog.load(folder)) == (["//Orders/2"], ["//Orders/2"])


def test_a_catalog_that_never_rests_is_told(tmp_path: Path, meanwhile: Meanwhile) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    sizes = [1]

    def grow() -> None:
        sizes.append(1)
        write_csv(folder, 10 ** len(sizes))

    meanwhile(grow)
    with pytest.raises(InputError, match=r"net: changed during each of 6 attempts to read it; stop writing to it"):
        Catalog.load(folder)


@pytest.mark.parametrize("name", ["ssbroker.log", "traffic.csv", "routes.csv.log", "services"])
def test_a_busy_file_beside_a_catalog_is_none_of_its_business(tmp_path: Path, meanwhile: Meanwhile, name: str) -> None:
    folder = tmp_path / "net"
    write_csv(folder, 1)
    tries = []

    def write() -> None:
        tries.append(1)
        (folder / name).write_text("more and more\n" * len(tries))
        (folder / f"{name}.{len(tries)}").touch()  # so that the folder's own time changes too

    meanwhile(write)
    assert services_of(Catalog.load(folder)) == (["//Orders/1"], ["//Orders/1"])
    assert len(tries) == 1


def test_settings_beside_scripts_are_not_read(tmp_path: Path, meanwhile: Meanwhile) -> None:
    (tmp_path / "1.sql").write_text("USE msdb; CREATE ROUTE A WITH ADDRESS = N'LOCAL'")
    sizes = iter(range(100))

    def write() -> None:
        (tmp_path / "instance.json").write_text(" " * next(sizes))

    meanwhile(write)
    assert Catalog.load(tmp_path).routes["name"].to_pylist()[1:] == ["A"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with a path")
def test_what_a_pipe_says_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "net.sql"
    os.mkfifo(pipe)
    says = threading.Thread(target=pipe.write_text, args=["USE msdb; CREATE ROUTE A WITH ADDRESS = N'LOCAL'"])
    says.start()
    assert Catalog.load(pipe).routes["name"].to_pylist()[1:] == ["A"]
    says.join()
