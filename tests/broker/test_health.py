"""The health of a served instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.metrics import Metrics
from ssbroker.broker.overview import health_problems, overview_of
from ssbroker.exceptions import StorageError
from ssbroker.security.certificates import Validity
from ssbroker.store import database_file
from ssbroker.store.database_file import WRITE_CHECK_INTERVAL, WRITE_RETRY_AFTER
from tests.broker.network.recording_endpoints import Authority
from tests.store.failing_calls import failing_calls


def test_a_served_instance_is_healthy(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as instance:
        with instance.serve(port=0, allow_unencrypted=True):
            assert health_problems(instance) == {}
        assert list(health_problems(instance)) == ["endpoint"]


def test_an_expired_certificate_is_a_problem_until_it_is_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other instances reject it and cannot report that to this instance."""
    authority = Authority(tmp_path)
    trust = authority.trust("shop", "bank")
    now = datetime.now(UTC)
    authority.certify("shop", validity=Validity(now - timedelta(days=2), now - timedelta(days=1)))
    with Instance.create(tmp_path / "shop", name="shop") as instance, instance.serve(port=0, trust=trust) as server:
        (problem,) = health_problems(instance).items()
        assert problem[0] == "certificate"
        assert "shop.pem: the certificate expired at " in problem[1]
        assert server.credentials is not None
        server.credentials.reload_if_changed()
        assert [record.getMessage() for record in caplog.records if "expired at" in record.getMessage()] == [problem[1]]
        authority.certify("shop", validity=Validity(now + timedelta(days=1), now + timedelta(days=2)))
        server.reload_certificates()
        assert "the certificate is not valid before " in health_problems(instance)["certificate"]
        authority.certify("shop")
        server.reload_certificates()
        assert health_problems(instance) == {}


def test_an_endpoint_whose_thread_has_ended_is_a_problem(tmp_path: Path) -> None:
    with (
        Instance.create(tmp_path / "shop", name="shop") as instance,
        instance.serve(port=0, allow_unencrypted=True) as server,
    ):
        server.endpoint.close(0)
        assert list(health_problems(instance)) == ["endpoint"]


def test_an_unusable_file_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with Instance.create(folder, name="shop", background=False) as instance:
        instance.create_database("Sales")
    (folder / "Sales.sqlite").write_bytes(b"no database")
    with Instance.open(folder) as instance, instance.serve(port=0, allow_unencrypted=True):
        assert list(health_problems(instance)) == ["database Sales"]


def test_a_failed_write_is_a_problem_until_one_succeeds_and_it_is_old(tmp_path: Path) -> None:
    """Neither reads nor empty commits count as successful writes; and while a large write fails, small ones may succeed in between."""
    with (
        failing_calls("full") as disk,
        Instance.create(tmp_path / "shop", name="shop") as instance,
        instance.serve(port=0, allow_unencrypted=True),
    ):
        sales = instance.create_database("Sales")
        instance.create_database("Stock")
        disk.asked, disk.fails_at = 0, 1
        with pytest.raises(StorageError, match="full"):
            sales.create_queue("Orders")
        with database_context(sales).file.write():
            pass
        # Writes of the network may fail as well, in any database.
        problem = f"could not be written: {sales.path}: database or disk is full"
        assert health_problems(instance)["database Sales"] == problem
        disk.fails_at = 0
        sales.create_queue("Orders")
        assert health_problems(instance)["database Sales"] == problem
        database_context(sales).file.failed_at -= WRITE_RETRY_AFTER
        assert "database Sales" not in health_problems(instance)


def test_a_registry_has_one_collector(tmp_path: Path) -> None:
    """Otherwise it would have each sample twice."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        registry = CollectorRegistry()
        first = Metrics(instance)
        registry.register(first)
        with pytest.raises(ValueError, match="Duplicated timeseries in CollectorRegistry"):
            registry.register(Metrics(instance))
        registry.unregister(first)
        registry.register(Metrics(instance))


def test_writes_that_fail_are_counted(tmp_path: Path) -> None:
    """Each once, whether a statement or the commit fails, in the broker's own tables or in those of the application."""

    def failures() -> dict[str, float]:
        (family,) = (each for each in metrics.collect() if each.name == "ssbroker_database_write_failures")
        return {sample.labels["database"]: sample.value for sample in family.samples}

    with (
        failing_calls("full") as disk,
        Instance.create(tmp_path / "shop", name="shop", background=False) as instance,
    ):
        sales = instance.create_database("Sales")
        sales.create_queue("Orders")
        metrics = Metrics(instance)
        assert failures() == {"msdb": 0, "Sales": 0}
        disk.asked, disk.fails_at = 0, 1
        with pytest.raises(StorageError, match="full"):
            sales.create_queue("Others")
        assert failures() == {"msdb": 0, "Sales": 1}
        with pytest.raises(StorageError, match="full"), sales.transaction() as t:
            t.connection.execute("CREATE TABLE rows (body)")
        assert failures()["Sales"] == 2
        with pytest.raises(StorageError, match="full"), sales.transaction() as t:
            t.connection.pragma("cache_size", 1)
            t.connection.execute("CREATE TABLE rows (body)")
            t.connection.executemany("INSERT INTO rows VALUES (randomblob(9000))", [()] * 99)
        assert failures()["Sales"] == 3
        disk.fails_at = 0
        sales.queue("Jobs").put(b"one")
        assert failures() == {"msdb": 0, "Sales": 3}


def test_an_idle_database_is_healthy_again_some_time_after_the_disk_recovers(tmp_path: Path) -> None:
    """A small test write may succeed while larger writes still fail, so it runs only after the last failure is old."""
    with (
        failing_calls("full") as disk,
        Instance.create(tmp_path / "shop", name="shop", background=False) as instance,
    ):
        sales = instance.create_database("Sales")
        assert list(health_problems(instance)) == ["endpoint"]
        disk.asked, disk.fails_at = 0, 1
        with pytest.raises(StorageError, match="full"):
            sales.create_queue("Orders")
        database_context(sales).file.failed_at -= WRITE_RETRY_AFTER
        assert list(health_problems(instance)) == ["endpoint", "database Sales"]
        disk.fails_at = 0
        assert list(health_problems(instance)) == ["endpoint", "database Sales"], "the test write has just failed"
        database_context(sales).file.failed_at -= WRITE_RETRY_AFTER
        assert list(health_problems(instance)) == ["endpoint"]
        disk.asked = 0
        assert list(health_problems(instance)) == ["endpoint"]
        assert disk.asked == 0, "the last test write was less than ten seconds ago"


def test_a_full_disk_is_a_problem_although_this_process_writes_nothing(tmp_path: Path) -> None:
    """The writes of other processes fail, of which this process does not know."""
    with (
        failing_calls("full") as disk,
        Instance.create(tmp_path / "shop", name="shop", background=False) as instance,
    ):
        sales = instance.create_database("Sales")
        metrics = Metrics(instance)
        assert list(health_problems(instance)) == ["endpoint"]
        disk.asked, disk.fails_at = 0, 1
        for database in instance.databases:
            database_context(database).file._checked_at -= WRITE_CHECK_INTERVAL
        problem = f"could not be written: {sales.path}: database or disk is full"
        lines = metrics.text().decode().splitlines()
        assert 'ssbroker_database_write_failures_total{database="Sales"} 1.0' in lines
        assert 'ssbroker_database_writable{database="Sales"} 0.0' in lines
        assert 'ssbroker_database_enabled{database="Sales"} 1.0' in lines
        assert health_problems(instance)["database Sales"] == problem
        row = next(row for row in overview_of(instance)["databases"] if row["name"] == "Sales")
        assert (row["state_desc"], row["problem"]) == ("ONLINE", problem)


def test_an_almost_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test write may still find room, for example in the write-ahead log, when messages do not."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        monkeypatch.setattr(database_file, "free_bytes", lambda _path: 12_345)
        assert health_problems(instance)["database msdb"] == "its disk is almost full: 12,345 bytes are free"
