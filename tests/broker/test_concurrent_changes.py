"""Concurrent changes of one instance by several threads never deadlock, and I7 holds."""

from __future__ import annotations

import random
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, BrokerWarning, DdlError, StorageError, UnknownDatabaseError
from tests.broker.test_database_lifecycle import agrees, copy_of, listed

THREADS = 6
CHANGES_EACH = 20
BATCHES = [
    "USE A; CREATE QUEUE {q}; USE B; CREATE QUEUE {q}; USE msdb; CREATE QUEUE {q}",
    "USE msdb; CREATE QUEUE {q}; USE B; CREATE QUEUE {q}; USE A; CREATE QUEUE {q}",
    "ALTER DATABASE A SET ENABLE_BROKER",
    "ALTER DATABASE Copy SET ENABLE_BROKER",
    "ALTER DATABASE A SET DISABLE_BROKER; ALTER DATABASE Copy SET ENABLE_BROKER",
    "ALTER DATABASE Copy SET DISABLE_BROKER; ALTER DATABASE A SET ENABLE_BROKER",
    "ALTER DATABASE msdb SET NEW_BROKER; ALTER DATABASE B SET NEW_BROKER",
    "CREATE DATABASE {q}; USE {q}; CREATE QUEUE Q; USE A; CREATE QUEUE {q}",
    "CREATE DATABASE {q}; USE A; CREATE QUEUE {q}; DROP DATABASE {q}",
    "CREATE DATABASE Extra",
    "DROP DATABASE IF EXISTS Extra",
    "DROP DATABASE IF EXISTS Extra; CREATE DATABASE Extra",
]


@pytest.mark.rule("I7")
def test_concurrent_changes_end_and_leave_the_instance_consistent(tmp_path: Path) -> None:
    folder = tmp_path / "instance"
    with Instance.create(folder, name="x", background=False, lock_timeout=30) as first:
        for name in ("A", "B"):
            first.create_database(name)
        first.attach_database("Copy", copy_of(first, "A"), option="DISABLE_BROKER")
        with Instance.open(folder, background=False, lock_timeout=30) as second:

            def change(number: int) -> int:
                rng = random.Random(number)
                instance = (first, second)[number % 2]
                done = 0
                for turn in range(CHANGES_EACH):
                    try:
                        instance.execute(rng.choice(BATCHES).format(q=f"Q{number}x{turn}"))
                        assert instance.catalog().databases.num_rows >= 4
                        assert instance.view("sys.databases").num_rows >= 4
                        assert instance.view("sys.routes").num_rows >= 4
                    except DdlError as error:
                        assert error.number in (9772, 1801, 911)  # noqa: PT017 - some are refused, others are not
                    else:
                        done += 1
                return done

            with ThreadPoolExecutor(THREADS) as pool:
                done = sum(pool.map(change, range(THREADS)))
            assert done > THREADS * CHANGES_EACH / 2
            assert listed(first) == listed(second)
            assert [(one.name, one.is_broker_enabled) for one in first.databases] == [
                (name, enabled) for name, (_, enabled) in listed(first).items()
            ]
            assert agrees(first)
            assert agrees(second)
            assert [one.name for one in first.databases] == [one.name for one in second.databases]
            queues = {key[1] for key in database_context(first.database("A")).objects().queues}
            assert queues == {key[1] for key in database_context(second.database("A")).objects().queues}


@pytest.mark.rule("I7")
def test_attaching_and_detaching_one_file_concurrently(tmp_path: Path) -> None:
    """A file is attached at most once at any time."""
    folder = tmp_path / "instance"
    with (
        Instance.create(folder, name="x", background=False) as first,
        Instance.open(folder, background=False) as second,
    ):
        path = first.create_database("A").path
        first.detach_database("A")

        def attach(number: int) -> str | None:
            instance = (first, second)[number % 2]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", BrokerWarning)
                try:
                    return instance.attach_database(f"N{number}", path).name
                except (BrokerError, StorageError, UnknownDatabaseError):
                    return None

        for turn in range(4):
            with ThreadPoolExecutor(4) as pool:
                attached = [name for name in pool.map(attach, range(4 * turn, 4 * turn + 4)) if name is not None]
            assert len(attached) == 1
            assert [one.name for one in second.databases] == ["msdb", attached[0]]
            assert agrees(first)
            second.detach_database(attached[0])
