"""The scripts of a folder: each starts in the default database, and the order of their names does not matter."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import Fleet
from ssbroker.exceptions import DdlError
from tests.ddl.scripts import GUID, NOW

LOGIN = "USE master\nGO\nCREATE LOGIN L WITH PASSWORD = 'x'"
QUEUE = "CREATE QUEUE Q"
SERVICE = "CREATE SERVICE S ON QUEUE Q"
GRANT = "CREATE USER U WITHOUT LOGIN\nGO\nGRANT SEND ON SERVICE::S TO U"
ROUTE = "CREATE ROUTE R WITH SERVICE_NAME = 'T', ADDRESS = 'TCP://h:4022'"


def load(folder: Path, texts: dict[str, str]) -> Catalog:
    """Loads a new folder of these scripts."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Catalog.load(folder, now=NOW)


def objects(catalog: Catalog) -> dict[str, Any]:
    """Returns what the scripts made, without order and numbers."""
    routes = catalog.routes.drop_columns(["route_id"]).to_pylist()
    services = catalog.services.to_pylist()
    return {
        "databases": sorted(map(str, catalog.databases.to_pylist())),
        "routes": sorted(map(str, routes)),
        "services": sorted(map(str, services)),
        "addresses": sorted(catalog.addresses),
        "pending": sorted(catalog.pending_requests),
        "notes": sorted((note.kind, note.subject, note.text) for note in catalog.notes),
        "details": str(sorted(catalog.details.services.items())) + str(sorted(catalog.details.queues.items())),
        "endpoint": str(catalog.details.endpoint),
        "bindings": sorted(map(str, catalog.details.bindings or ())),
    }


@pytest.mark.filterwarnings("ignore::ssbroker.DdlWarning")
@pytest.mark.parametrize("order", list(itertools.permutations("abcde")))
def test_use_in_one_file_does_not_affect_the_next(tmp_path: Path, order: tuple[str, ...]) -> None:
    texts = dict(zip((f"{name}.sql" for name in order), (LOGIN, QUEUE, SERVICE, GRANT, ROUTE), strict=True))
    catalog = load(tmp_path / "project", texts)
    assert catalog.services.to_pylist() == [{"database": "user", "name": "S"}]
    assert [row["database"] for row in catalog.routes.to_pylist() if row["name"] == "R"] == ["user"]
    assert [note.kind for note in catalog.notes] == ["security"]


@pytest.mark.parametrize("create", ["CREATE DATABASE X\nGO\nALTER DATABASE X SET ENABLE_BROKER", "create database [X]"])
@pytest.mark.parametrize("name", ["a.sql", "zmaster/Create DB.sql"])
def test_objects_belong_to_the_only_database_that_the_files_create(tmp_path: Path, create: str, name: str) -> None:
    catalog = load(tmp_path / "project", {name: create, "q.sql": QUEUE, "s.sql": SERVICE, "u.sql": GRANT})
    assert catalog.services.to_pylist() == [{"database": "X", "name": "S"}]
    assert catalog.databases["name"].to_pylist() == ["X", "msdb"]


def test_a_database_that_a_file_only_uses_is_not_the_default(tmp_path: Path) -> None:
    for name in ("a", "z"):
        catalog = load(tmp_path / name, {"q.sql": QUEUE, "s.sql": SERVICE, f"{name}.sql": "USE Other\nCREATE QUEUE O"})
        assert catalog.services.to_pylist() == [{"database": "user", "name": "S"}]
        assert ("Other", "dbo.O") in {(key[0], key[1]) for key in catalog.details.queues} or (
            "Other",
            "dbo.o",
        ) in catalog.details.queues


@pytest.mark.filterwarnings("ignore::ssbroker.DdlWarning")
@pytest.mark.parametrize(
    "text",
    [
        "-- CREATE DATABASE Y",
        "/* CREATE DATABASE Y */",
        "PRINT 'CREATE DATABASE Y'",
        "CREATE DATABASE AUDIT SPECIFICATION Y FOR SERVER AUDIT a",
        "CREATE DATABASE Y ON (NAME = x, FILENAME = 'x.ss') AS SNAPSHOT OF X",
        "CREATE PROCEDURE p AS CREATE DATABASE Y",
        ":connect other\nCREATE DATABASE Y\nGO\n:connect X",
    ],
)
def test_only_what_the_files_create_is_a_default(tmp_path: Path, text: str) -> None:
    texts = {"a.sql": f"{text}\nGO\n", "q.sql": QUEUE, "s.sql": SERVICE, "z.sql": "CREATE DATABASE X"}
    if ":connect" in text:
        texts |= {name: f":connect x\n{texts[name]}" for name in ("q.sql", "s.sql", "z.sql")}
    folder = tmp_path / "fleet" / "project"
    folder.parent.mkdir()
    folder.mkdir()
    for name, each in texts.items():
        (folder / name).write_text(each)
    fleet = Fleet.load(folder.parent)
    catalog = fleet["x" if "x" in fleet else "X" if "X" in fleet else "project"]
    assert catalog.services.to_pylist() == [{"database": "X", "name": "S"}]


@pytest.mark.filterwarnings("ignore::ssbroker.DdlWarning")
def test_several_databases_require_use_in_each_file(tmp_path: Path) -> None:
    for number, names in enumerate(itertools.permutations(["a.sql", "b.sql", "c.sql"])):
        texts = dict(zip(names, ("CREATE DATABASE A", "CREATE DATABASE B", QUEUE), strict=True))
        with pytest.raises(DdlError, match=r"select a database with USE first; the scripts create the databases A, B"):
            load(tmp_path / str(number), texts)


def test_noexec_and_transactions_end_with_their_file(tmp_path: Path) -> None:
    texts = {"a.sql": "SET NOEXEC ON", "b.sql": "BEGIN TRANSACTION", "c.sql": QUEUE, "d.sql": "ROLLBACK"}
    catalog = load(tmp_path / "project", texts)
    assert ("user", "dbo.q") in catalog.details.queues


PROJECT = {
    "database": f"CREATE DATABASE Sales -- ssbroker: service_broker_guid={GUID}\nGO\nALTER DATABASE Sales SET RECOVERY FULL",
    "logins": LOGIN,
    "key": "CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'Pass1!word'",
    "certificate": "CREATE CERTIFICATE C AUTHORIZATION U WITH SUBJECT = 'C'",
    "alter certificate": "ALTER CERTIFICATE C WITH ACTIVE FOR BEGIN_DIALOG = OFF",
    "backup": "BACKUP CERTIFICATE C TO FILE = 'c.cer'",
    "user": "CREATE USER U WITHOUT LOGIN",
    "type": "CREATE MESSAGE TYPE M",
    "alter type": "ALTER MESSAGE TYPE M VALIDATION = EMPTY",
    "contract": "CREATE CONTRACT K (M SENT BY ANY)",
    "queue": "CREATE QUEUE Q WITH STATUS = OFF",
    "alter queue": "ALTER QUEUE Q WITH STATUS = ON",
    "service": "USE Sales\nGO\nCREATE SERVICE S AUTHORIZATION U ON QUEUE Q (K)",
    "alter service": "ALTER SERVICE S (ADD CONTRACT [DEFAULT])",
    "grant": "GRANT SEND ON SERVICE::S TO U",
    "route": "CREATE ROUTE R WITH SERVICE_NAME = 'T', ADDRESS = 'TCP://h:4022' -- ssbroker: lifetime=2026-12-01T00:00:00Z",
    "alter route": "ALTER ROUTE R WITH ADDRESS = 'TCP://other:4022'",
    "binding": "CREATE REMOTE SERVICE BINDING B TO SERVICE 'T' WITH USER = U",
    "alter binding": "ALTER REMOTE SERVICE BINDING B WITH ANONYMOUS = ON",
    "priority": "CREATE BROKER PRIORITY P FOR CONVERSATION SET (CONTRACT_NAME = K, LOCAL_SERVICE_NAME = S)",
    "alter priority": "ALTER BROKER PRIORITY P FOR CONVERSATION SET (PRIORITY_LEVEL = 7)",
    "endpoint": "CREATE ENDPOINT E AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ()\n-- ssbroker: addresses=TCP://me:4022",
    "alter endpoint": "ALTER ENDPOINT E STATE = STARTED",
    "alter endpoint for": "ALTER ENDPOINT E FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)",
    "pending": "-- ssbroker: pending_requests=//Wanted",
    "msdb": "USE msdb\nCREATE ROUTE M WITH ADDRESS = 'LOCAL'",
    "including": ":setvar Name Included\n:r ./parts/route.txt\nGO\nUSE master",
    "other": "USE Other\nGO\nCREATE QUEUE Q\nCREATE SERVICE O ON QUEUE Q",
}


@pytest.mark.filterwarnings("ignore::ssbroker.DdlWarning")
def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    """In any order, and in any folder, the scripts of a project make the same objects."""
    results = []
    for seed in range(25):
        numbers = list(range(len(PROJECT)))
        random.Random(seed).shuffle(numbers)
        texts = {f"{number:02}.sql": text for number, text in zip(numbers, PROJECT.values(), strict=True)}
        texts["parts/route.txt"] = "CREATE ROUTE [$(Name)] WITH ADDRESS = 'TCP://i:4022'"
        results.append(objects(load(tmp_path / str(seed), texts)))
    assert all(result == results[0] for result in results)
    assert len(results[0]["services"]) == 2
    assert results[0]["addresses"][-1] == "TCP://me:4022"
    assert "state='STARTED'" in results[0]["endpoint"]
    assert any("Included" in route and "'Sales'" in route for route in results[0]["routes"])


@pytest.mark.parametrize("name", ["a.sql", "z.sql"])
def test_a_database_is_restored_before_it_is_used(tmp_path: Path, name: str) -> None:
    catalog = load(
        tmp_path / "project",
        {name: "RESTORE DATABASE D FROM DISK = 'd' WITH ENABLE_BROKER", "m.sql": f"USE D\nGO\n{QUEUE}\n{SERVICE}"},
    )
    assert catalog.services.to_pylist() == [{"database": "D", "name": "S"}]


@pytest.mark.parametrize("names", [("a.sql", "b.sql"), ("b.sql", "a.sql")])
def test_files_may_use_the_databases_of_each_other(tmp_path: Path, names: tuple[str, str]) -> None:
    first = f"USE B\nCREATE QUEUE Q\nGO\nCREATE DATABASE A -- ssbroker: service_broker_guid={GUID}"
    second = "USE A\nCREATE QUEUE Q\nGO\nIF DB_ID('B') IS NULL CREATE DATABASE B"
    catalog = load(tmp_path / "project", dict(zip(names, (first, second), strict=True)))
    found = {row["name"]: row["service_broker_guid"] for row in catalog.databases.to_pylist()}
    assert found.keys() == {"A", "B", "msdb"}
    assert found["A"] is not None
    assert {key[0] for key in catalog.details.queues} == {"A", "B"}


def test_several_endpoints_may_be_of_several_instances(tmp_path: Path) -> None:
    endpoint = "CREATE ENDPOINT E AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER"
    with pytest.raises(
        DdlError,
        match="only one is allowed: alter 'E', or drop it first; if the files are of several instances, read them with --fleet",
    ):
        load(tmp_path / "project", {"a.sql": endpoint, "b.sql": endpoint})
    with pytest.raises(DdlError, match=r"only one is allowed: alter 'E', or drop it first$"):
        load(tmp_path / "single", {"a.sql": f"{endpoint}\nGO\n{endpoint}"})
