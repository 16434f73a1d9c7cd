"""I7 holds after a crash during any change, and with concurrent changes."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError
from tests.broker.test_database_lifecycle import agrees, copy_of
from tests.system import crashing_process

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Creates a closed instance with Sales, enabled, and Stock, disabled; and the unattached database `free.sqlite`."""
    with Instance.create(tmp_path / "instance", name="shop", background=False) as made:
        made.create_database("Sales").create_queue("Orders")
        made.create_database("Stock").set_broker("DISABLE_BROKER")
        made.create_database("Free").create_queue("Kept")
        path = made.database("Free").path
        made.detach_database("Free")
        path.rename(tmp_path / "free.sqlite")
    return tmp_path / "instance"


def fork_change(folder: Path, name: str, *, die_at: int, is_after: bool) -> int | None:
    """Returns the exit code of a process that makes a change and crashes during it."""
    file = folder.parent / "free.sqlite"
    process = multiprocessing.get_context("fork").Process(
        target=crashing_process.change, args=(folder, name, file), kwargs={"die_at": die_at, "is_after": is_after}
    )
    process.start()
    process.join()
    return process.exitcode


def restore(kept: Path, folder: Path) -> None:
    """Restores the files in place, because an instance with a new msdb file owns no attached files elsewhere."""
    for path in folder.iterdir():
        if not (kept / path.name).exists():
            path.unlink()
    shutil.copytree(kept, folder, dirs_exist_ok=True)


@pytest.mark.rule("I7")
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", [name for name in crashing_process.CHANGES if name != "enable Sales"])
def test_a_crash_between_list_and_file_is_repaired(folder: Path, name: str, *, is_after: bool) -> None:
    """The instance opens, list and files agree, and an unfinished change can be repeated."""
    kept = folder.parent / "kept"
    shutil.copytree(folder.parent, kept)
    for die_at in range(1, 10):
        restore(kept / "instance", folder)
        shutil.copy(kept / "free.sqlite", folder.parent / "free.sqlite")
        died = fork_change(folder, name, die_at=die_at, is_after=is_after)
        with Instance.open(folder, background=False) as instance:
            assert agrees(instance), die_at
            names = {database.name for database in instance.databases}
            assert {"msdb", "Stock"} <= names <= {"msdb", "Sales", "Stock", "New", "Attached"}
            if "Attached" in names:
                assert ("dbo", "Kept") in database_context(instance.database("Attached")).objects().queues
            if "Sales" in names:
                assert ("dbo", "Orders") in database_context(instance.database("Sales")).objects().queues
            if name == "create" and "New" not in names:
                assert instance.create_database("New").is_broker_enabled
            if name.startswith("attach") and "Attached" not in names:
                assert instance.attach_database("Attached", folder.parent / "free.sqlite").is_broker_enabled
            if name in ("disable", "enable", "renew", "end") and not died:
                assert instance.database("Stock").is_broker_enabled == (name == "enable")
            assert agrees(instance), die_at
        if died == 0:
            assert die_at > 2  # both a commit to the list and one to the file were interrupted
            return
        assert died == crashing_process.DIED
    pytest.fail("the change never completed")


@pytest.mark.rule("I7")
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("change", ["enable Sales", "disable"])
def test_after_a_crash_of_another_process_both_are_never_enabled(
    tmp_path: Path, change: str, *, is_after: bool
) -> None:
    """Enabling is committed to the list first, disabling to the file first, so the list never omits an enabled database."""
    folder = tmp_path / "instance"
    with Instance.create(folder, name="shop", background=False) as made:
        made.create_database("Sales")
        made.attach_database("Copy", copy_of(made, "Sales"), option="DISABLE_BROKER")
    for die_at in (1, 2):
        with Instance.open(folder, background=False) as instance:
            sales, copy = instance.database("Sales"), instance.database("Copy")
            copy.set_broker("DISABLE_BROKER")
            sales.set_broker("DISABLE_BROKER" if change == "enable Sales" else "ENABLE_BROKER")
            process = SPAWN.Process(
                target=crashing_process.change,
                args=(folder, change, tmp_path),
                kwargs={"die_at": die_at, "is_after": is_after},
            )
            process.start()
            process.join()
            assert process.exitcode == crashing_process.DIED
            with suppress(BrokerError):
                copy.set_broker("ENABLE_BROKER")
            assert not (sales.is_broker_enabled and copy.is_broker_enabled)


@pytest.mark.rule("I7")
def test_two_processes_enable_two_copies_concurrently(tmp_path: Path) -> None:
    """Exactly one succeeds, the other gets 9772."""
    folder = tmp_path / "instance"
    with Instance.create(folder, name="shop", background=False) as made:
        made.create_database("Sales")
        copy = copy_of(made, "Sales")
        made.attach_database("Copy", copy, option="DISABLE_BROKER")
    for turn in range(3):
        with Instance.open(folder, background=False) as instance:
            for name in ("Sales", "Copy"):
                instance.database(name).set_broker("DISABLE_BROKER")
        results = [tmp_path / f"{turn}" / name for name in ("Sales", "Copy")]
        results[0].parent.mkdir()
        processes = [
            SPAWN.Process(target=crashing_process.enable, args=(folder, result.name, result)) for result in results
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + 60
        while not all(result.with_suffix(".ready").exists() for result in results):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (results[0].parent / "go").touch()
        for process in processes:
            process.join(60)
        assert sorted(result.read_text() for result in results) == ["9772", "enabled"]
        with Instance.open(folder, background=False) as instance:
            assert agrees(instance)


@pytest.mark.parametrize("change", ["detach", "drop"])
def test_a_surviving_process_keeps_a_database_that_another_could_not_remove(folder: Path, change: str) -> None:
    with Instance.open(folder, background=False) as instance:
        sales = instance.database("Sales")
        assert sales.is_broker_enabled
        process = SPAWN.Process(
            target=crashing_process.change, args=(folder, change, folder), kwargs={"die_at": 1, "is_after": True}
        )
        process.start()
        process.join()
        assert process.exitcode == crashing_process.DIED
        assert instance.catalog().databases["name"].to_pylist() == ["msdb", "Sales", "Stock"]
        sales.create_queue("Further")
        assert set(database_context(sales).objects().queues) == {("dbo", "Orders"), ("dbo", "Further")}
        assert agrees(instance)
        instance.drop_database("Sales")
        assert not (folder / "Sales.sqlite").exists()
