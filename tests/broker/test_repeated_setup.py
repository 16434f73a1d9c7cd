"""Set-ups that run twice, also at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ssbroker import BrokerError, Instance, OptionError, StorageError

SETUP = """
import sys
from ssbroker import Instance

print("ready", flush=True)
sys.stdin.readline()
with Instance.open(sys.argv[1], create=True, background=False) as instance:
    sales = instance.create_database("Sales", exist_ok=True)
    sales.create_message_type("//order", validation="WELL_FORMED_XML", exist_ok=True)
    sales.create_contract("//ordering", {"//order": "INITIATOR"}, exist_ok=True)
    sales.create_queue("Orders", retention=True, exist_ok=True)
    sales.create_service("//Orders", queue="Orders", contracts=["//ordering"], exist_ok=True)
    sales.create_route("Stock", service_name="//Stock", address="TCP://stock:4022", exist_ok=True)
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE IF NOT EXISTS opened (by)")
        t.connection.execute("INSERT INTO opened VALUES (1)")
"""
PROCESSES = 4


def test_processes_that_set_up_the_same_instance_at_the_same_time_share_it(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SETUP, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with Instance.open(folder, background=False) as instance:
        assert instance.name == "shop"
        assert [database.name for database in instance.databases] == ["msdb", "Sales"]
        assert instance.view("sys.service_queues")["is_retention_enabled"].to_pylist() == [True]
        assert instance.view("sys.services")["name"].to_pylist() == ["//Orders"]
        with instance.database("Sales").transaction() as t:
            assert t.connection.execute("SELECT count(*) FROM opened").get == PROCESSES


def test_an_existing_instance_is_opened_unchanged(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "shop", create=True, name="first", background=False) as instance:
        guid = instance.create_database("Sales").service_broker_guid
    with Instance.open(tmp_path / "shop", create=True, name="second", background=False) as instance:
        assert instance.name == "first"
        assert instance.create_database("Sales", exist_ok=True).service_broker_guid == guid


def test_an_existing_object_keeps_its_settings(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "shop", create=True, background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue("Orders", retention=True)
        sales.create_queue("Orders", retention=False, exist_ok=True)
        assert instance.view("sys.service_queues")["is_retention_enabled"].to_pylist() == [True]
        with pytest.raises(BrokerError, match="2714"):
            sales.create_queue("Orders")


def test_without_create_a_missing_instance_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"create one with Instance\.open\(folder, create=True\)"):
        Instance.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(OptionError, match="add create=True"):
        Instance.open(tmp_path / "nothing", name="shop")


def test_an_existing_instance_or_database_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        with pytest.raises(BrokerError, match=r"use Instance\.open, or Instance\.open\(folder, create=True\)"):
            Instance.create(tmp_path / "shop", name="shop")
        instance.create_database("Sales")
        with pytest.raises(BrokerError, match=r"1801.*instance\.database\('Sales'\).*exist_ok=True") as refused:
            instance.create_database("Sales")
        assert refused.value.number == 1801


def test_a_damaged_instance_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "msdb.sqlite").write_bytes(b"something else" * 1000)
    with pytest.raises(StorageError):
        Instance.open(tmp_path, create=True)
    assert (tmp_path / "msdb.sqlite").read_bytes().startswith(b"something else")


def test_a_file_that_a_crash_left_empty_is_used(tmp_path: Path) -> None:
    (tmp_path / "msdb.sqlite").touch()
    with Instance.open(tmp_path, create=True, background=False) as instance:
        assert instance.name == tmp_path.name
