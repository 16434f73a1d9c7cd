"""A fleet from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker import Catalog, DuplicateError, InputError, SchemaError
from ssbroker.diagnose import Fleet
from tests.diagnose.cases import north, south
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


def test_each_folder_and_each_script_is_an_instance(tmp_path: Path) -> None:
    catalog_of(north()).save(tmp_path / "NORTH", now=NOW)
    catalog_of(south()).save(tmp_path / "SOUTH.sql", now=NOW)
    (tmp_path / "notes.txt").write_text("not an instance")
    (tmp_path / ".git").mkdir()
    loaded = Fleet.load(tmp_path, now=NOW)
    assert list(loaded) == ["NORTH", "SOUTH"]
    assert loaded["NORTH"] == catalog_of(north())
    assert loaded.at("TCP://south:4022") == "SOUTH"
    assert loaded.addresses == {"TCP://north:4022": "NORTH", "TCP://south:4022": "SOUTH"}
    assert repr(loaded) == "Fleet(instances=2, addresses=2)"


def test_what_is_no_fleet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        Fleet.load(tmp_path / "none")
    with pytest.raises(InputError, match="holds no instance"):
        Fleet.load(tmp_path)
    (tmp_path / "NORTH").mkdir()
    (tmp_path / "NORTH.sql").write_text("")
    with pytest.raises(DuplicateError, match=r"NORTH and NORTH\.sql are both the instance 'NORTH'"):
        Fleet.load(tmp_path)


def test_an_address_has_one_instance() -> None:
    with pytest.raises(DuplicateError, match="both 'A' and 'B' have the address TCP://north:4022"):
        Fleet({"A": catalog_of(north()), "B": catalog_of(north())})
    with pytest.raises(SchemaError, match="expected names and catalogs"):
        Fleet({"A": "catalog"})  # type: ignore[dict-item]
    one = catalog_of(north())
    assert isinstance(Fleet.of(one)["instance"], Catalog)
    assert Fleet.of(Fleet({"A": one}))["A"] is one
