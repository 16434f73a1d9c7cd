"""Saving and loading of catalogs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, schemas
from tests.catalog.catalogs import NOW, ROUTES, full, route, rows


@pytest.mark.parametrize("suffix", ["", ".sql"])
def test_a_round_trip_changes_nothing(tmp_path: Path, suffix: str) -> None:
    catalog = full()
    catalog.save(tmp_path / f"net{suffix}", now=NOW)
    loaded = Catalog.load(tmp_path / f"net{suffix}", now=NOW)
    assert loaded == catalog
    assert sorted(loaded.routes.to_pylist(), key=str) == sorted(catalog.routes.to_pylist(), key=str)


def test_a_folder_keeps_extra_columns(tmp_path: Path) -> None:
    routes = rows(ROUTES, schemas.ROUTES).append_column("principal_id", pa.array([1, 2, 3, 4]))
    catalog = full(routes=routes)
    catalog.save(str(tmp_path / "net"))
    assert Catalog.load(str(tmp_path / "net")).routes.equals(catalog.routes)


def test_a_catalog_that_ddl_cannot_express_leaves_the_old_script(tmp_path: Path) -> None:
    (tmp_path / "net.sql").write_text("USE Sales;")
    unsayable = Catalog(rows([route("Sales", "A", "TRANSPORT", remote_service_name="//Orders")], schemas.ROUTES))
    with pytest.raises(ssbroker.DdlError, match="9745"):
        unsayable.save(tmp_path / "net.sql")
    assert (tmp_path / "net.sql").read_text() == "USE Sales;"


def test_the_error_for_an_invalid_value_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").write_text(
        "database,name,remote_service_name,broker_instance,lifetime,address,mirror_address\nSales,A,,,,TCP://a,\nSales,B,,,,b,\n"
    )
    with pytest.raises(ssbroker.InvalidAddressError) as caught:
        Catalog.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'routes.csv'}: ")
    assert (caught.value.column, caught.value.row) == ("routes.address", 1)


def test_several_scripts_are_run_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "2_routes.sql").write_text("CREATE ROUTE Orders WITH ADDRESS = N'TCP://orders:4022'")
    (tmp_path / "1_databases.sql").write_text("CREATE DATABASE Sales;\nUSE Sales")
    routes = Catalog.load(tmp_path, now=NOW).routes
    assert [(row["database"], row["name"]) for row in routes.to_pylist() if row["name"] == "Orders"] == [
        ("Sales", "Orders")
    ]


def test_an_error_in_one_of_several_scripts_names_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("CREATE DATABASE Sales;\nUSE Sales;\n")
    (tmp_path / "2.sql").write_text("\n\nCREATE ROUTE Orders WITH ADDRESS = N'nowhere';\n")
    with pytest.raises(ssbroker.DdlError) as caught:
        Catalog.load(tmp_path)
    assert (caught.value.file, caught.value.line, caught.value.number) == (str(tmp_path / "2.sql"), 3, 9744)
    assert str(caught.value).startswith(f"{tmp_path / '2.sql'}:3: ")


def test_a_warning_in_one_of_several_scripts_names_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "1.sql").write_text("CREATE DATABASE Sales;\n")
    (tmp_path / "2.sql").write_text("\nIF @a = 1 DROP ROUTE R;\n")
    with pytest.warns(ssbroker.DdlWarning, match=r"2\.sql:2: "):
        Catalog.load(tmp_path)
