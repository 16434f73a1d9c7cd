"""The schema of a new instance is the recorded one: any change needs a migration and a new version."""

from __future__ import annotations

from pathlib import Path

import apsw

from ssbroker import Instance
from ssbroker.store.schema import DATABASE

RECORDED = Path(__file__).with_name("schema.sql")


def schema_of(path: Path) -> str:
    """Returns the statements that create the tables, indexes and triggers of a file."""
    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name").fetchall()
    connection.close()
    return "".join(f"{sql};\n" for (sql,) in rows)


def test_the_schema_is_the_recorded_one(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        sales = instance.create_database("Sales").path
        files = {"msdb": instance.msdb.path, "Sales": sales}
    found = "".join(f"-- {name}, version {len(DATABASE)}\n{schema_of(path)}" for name, path in files.items())
    assert found == RECORDED.read_text(encoding="utf-8"), (
        "add a migration and record files of the version before in tests/store/version_N, then update schema.sql"
    )
