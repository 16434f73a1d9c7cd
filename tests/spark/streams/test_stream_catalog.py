"""A catalog given as a path: reloaded when it changes, and kept for a while when it becomes unreadable."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ssbroker
from ssbroker.exceptions import InputError, SsbrokerError
from ssbroker.spark.streams import options
from ssbroker.spark.streams.stream_catalog import CatalogPath, WatchedCatalog, file_signature, load_catalog
from tests.spark.streams.steps import SECOND, START

PATIENCE_US = 300 * SECOND


class CountingCompiler:
    """Creates routers and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, catalog: ssbroker.Catalog) -> ssbroker.Router:
        self.count += 1
        return ssbroker.Router(catalog)


def script(service: str) -> str:
    return (
        f"CREATE DATABASE Sales; USE Sales; CREATE ROUTE A WITH SERVICE_NAME = '{service}', ADDRESS = 'TCP://far:4022';"
    )


def replace_file(path: Path, text: str) -> None:
    """Writes the file next to the path and renames it, so that readers never find an incomplete file."""
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.replace(path)


def services(router: ssbroker.Router) -> list[str]:
    return [name for name in router.catalog.routes["remote_service_name"].to_pylist() if name]


def watched(path: Path) -> tuple[WatchedCatalog, CountingCompiler]:
    compiled = CountingCompiler()
    return WatchedCatalog(path, compiled), compiled


def test_only_changed_catalogs_are_compiled(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sql"
    path.write_text(script("//A"))
    found, compiled = watched(path)
    first = found.router(START, patience_us=PATIENCE_US)
    assert found.router(START, patience_us=PATIENCE_US) is first
    replace_file(path, script("//B"))
    second = found.router(START, patience_us=PATIENCE_US)
    assert (services(first), services(second)) == (["//A"], ["//B"])
    assert compiled.count == 2


def test_a_rewritten_equal_file_is_not_compiled(tmp_path: Path) -> None:
    """Its time and inode differ, but its fingerprint is the same."""
    path = tmp_path / "catalog.sql"
    path.write_text(script("//A"))
    found, compiled = watched(path)
    first = found.router(START, patience_us=PATIENCE_US)
    replace_file(path, script("//A"))
    assert found.router(START, patience_us=PATIENCE_US) is first
    assert compiled.count == 1


def test_changes_in_a_folder_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "1.sql").write_text(script("//A"))
    found, _ = watched(folder)
    assert services(found.router(START, patience_us=PATIENCE_US)) == ["//A"]
    (folder / "2.sql").write_text("USE Sales; CREATE ROUTE B WITH SERVICE_NAME = '//B', ADDRESS = 'TCP://far:4022';")
    assert services(found.router(START, patience_us=PATIENCE_US)) == ["//A", "//B"]


def test_databases_outside_the_instance_folder_are_watched(tmp_path: Path) -> None:
    """A change of its routes used to be noticed only when msdb changed too."""
    shop, elsewhere = tmp_path / "shop", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with ssbroker.Instance.create(tmp_path / "first", name="first", background=False) as instance:
        instance.create_database("Sales")
        instance.detach_database("Sales")
    (tmp_path / "first" / "Sales.sqlite").rename(elsewhere / "Sales.sqlite")
    with ssbroker.Instance.create(shop, name="shop", background=False) as instance:
        instance.attach_database("Sales", elsewhere / "Sales.sqlite")
    found, compiled = watched(shop)
    assert services(found.router(START, patience_us=PATIENCE_US)) == []
    for number, name in enumerate(("//A", "//B"), start=1):
        with ssbroker.Instance.open(shop, background=False) as instance:
            route = f"CREATE ROUTE R{number} WITH SERVICE_NAME = '{name}', ADDRESS = 'TCP://far:4022'"
            instance.execute(f"USE Sales; {route}")
        assert services(found.router(START, patience_us=PATIENCE_US))[-1] == name
    assert compiled.count == 3


def test_an_unreadable_file_keeps_the_last_router_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "catalog.sql"
    path.write_text(script("//A"))
    found, _ = watched(path)
    first = found.router(START, patience_us=PATIENCE_US)
    replace_file(path, "CREATE ROUTE nonsense")
    with caplog.at_level(logging.WARNING, logger="ssbroker.spark"):
        assert found.router(START + SECOND, patience_us=PATIENCE_US) is first
        assert found.router(START + PATIENCE_US, patience_us=PATIENCE_US) is first
    assert [record.message[:23] for record in caplog.records] == ["cannot read the catalog"]
    with pytest.raises(SsbrokerError, match="nonsense"):
        found.router(START + SECOND + PATIENCE_US, patience_us=PATIENCE_US)
    replace_file(path, script("//B"))
    assert services(found.router(START + SECOND + PATIENCE_US, patience_us=PATIENCE_US)) == ["//B"]


def test_patience_restarts_after_a_successful_read(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sql"
    path.write_text(script("//A"))
    found, _ = watched(path)
    found.router(START, patience_us=PATIENCE_US)
    for turn in range(3):
        now_us = START + turn * (PATIENCE_US - SECOND)
        text = path.read_text()
        path.unlink()
        assert services(found.router(now_us, patience_us=PATIENCE_US)) == ["//A"]
        path.write_text(text)
        found.router(now_us, patience_us=PATIENCE_US)


def test_an_unreadable_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    found, _ = watched(tmp_path / "missing.sql")
    with pytest.raises((InputError, OSError), match="missing"):
        found.router(START, patience_us=PATIENCE_US)


def test_lifetime_counts_from_the_modification_time(tmp_path: Path) -> None:
    """Otherwise every worker that reloads the script would extend its routes."""
    path = tmp_path / "catalog.sql"
    path.write_text("USE msdb; CREATE ROUTE A WITH SERVICE_NAME = '//A', LIFETIME = 60, ADDRESS = 'TCP://far:4022';")
    written = datetime(2026, 11, 20, 21, tzinfo=UTC)
    os.utime(path, (written.timestamp(), written.timestamp()))
    routes = load_catalog(path).routes
    assert datetime(2026, 11, 20, 21, 1, tzinfo=UTC) in routes["lifetime"].to_pylist()


def test_other_files_in_the_folder_do_not_extend_lifetimes(tmp_path: Path) -> None:
    """Only the scripts' own times count: with a log beside them, a route would never expire."""
    path = tmp_path / "1.sql"
    path.write_text("USE msdb; CREATE ROUTE A WITH SERVICE_NAME = '//A', LIFETIME = 60, ADDRESS = 'TCP://far:4022';")
    written = datetime(2026, 11, 20, 21, tzinfo=UTC)
    os.utime(path, (written.timestamp(), written.timestamp()))
    before = file_signature(tmp_path)
    (tmp_path / "ssbroker.log").write_text("busy")
    assert file_signature(tmp_path) == before
    assert datetime(2026, 11, 20, 21, 1, tzinfo=UTC) in load_catalog(tmp_path).routes["lifetime"].to_pylist()


def test_workers_find_the_catalog_by_its_path(tmp_path: Path) -> None:
    """The fingerprint identifies the catalog in the state."""
    path = tmp_path / "catalog.sql"
    path.write_text(script("//A"))
    source = CatalogPath(str(path), PATIENCE_US)
    router, fingerprint = source.router("hash", "continue", now_us=START)
    assert (source.may_change, fingerprint) == (True, router.catalog.fingerprint)
    assert source.router("hash", "continue", now_us=START)[0] is router


def test_a_uri_is_not_a_path() -> None:
    with pytest.raises(
        InputError, match=r"^catalog: 's3://bucket/routes.sql' is a URI; expected a path on a file system"
    ):
        options.parse_catalog("s3://bucket/routes.sql")
