"""A catalog from scripts contains the statement that created or changed each object."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ssbroker import Catalog, schemas
from ssbroker.ddl import ObjectKind

FIRST = """\
CREATE DATABASE Sales
GO
USE Sales
CREATE QUEUE Orders
CREATE ROUTE North WITH ADDRESS = 'TCP://north'

CREATE SERVICE [//Orders] ON QUEUE Orders
"""
SECOND = """\
USE master; CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER
GO
USE Sales
ALTER ROUTE North WITH
    ADDRESS = 'TCP://south'
ALTER DATABASE Sales MODIFY NAME = Shop
CREATE USER Stores WITHOUT LOGIN; CREATE REMOTE SERVICE BINDING ToStock TO SERVICE N'//Stock' WITH USER = Stores
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    (tmp_path / "1.sql").write_text(FIRST)
    (tmp_path / "2.sql").write_text(SECOND)
    return Catalog.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "database", "name", "file", "line"),
    [
        ("database", "Shop", "", "2.sql", 6),
        ("queue", "Shop", "dbo.orders", "1.sql", 4),
        ("queue", "Shop", "dbo.Orders", "1.sql", 4),
        ("binding", "Shop", "ToStock", "2.sql", 7),
        ("service", "Shop", "//Orders", "1.sql", 7),
        ("route", "Shop", "North", "2.sql", 4),
        ("endpoint", "", "Broker", "2.sql", 1),
    ],
)
def test_position_of_each_kind(
    tmp_path: Path, catalog: Catalog, kind: ObjectKind, database: str, name: str, file: str, line: int
) -> None:
    assert catalog.position(kind, database=database, name=name) == (str(tmp_path / file), line)


def test_other_objects_have_no_position(catalog: Catalog) -> None:
    assert catalog.position("route", database="Shop", name="AutoCreatedLocal") is None
    assert catalog.position("database", database="Sales") is None
    assert Catalog(schemas.ROUTES.empty_table()).position("database", database="msdb") is None


def test_positions_are_not_content(catalog: Catalog) -> None:
    copy = pickle.loads(pickle.dumps(catalog))
    assert copy == catalog
    assert copy.position("route", database="Shop", name="North") is None
