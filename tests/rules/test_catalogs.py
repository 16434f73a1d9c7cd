"""How a catalog interprets its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.oracle.world import Conversation, Database, World
from tests.rules.setting import MSDB, OUTSIDE, SALES, STORES, decide, here, local, remote, route
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.universe import NOW, TICK

A = "TCP://a.example:4022"


def routes_without_database(**columns: Any) -> pa.Table:
    return pa.table({"name": ["r"], "remote_service_name": ["Orders"], "address": [A], **columns})


def database_names(catalog: ssbroker.Catalog) -> list[Any]:
    return catalog.databases.column("name").to_pylist()


@pytest.mark.rule("R1")
def test_routes_without_database_belong_to_the_only_user_database() -> None:
    """It is called `user` if not named; conversations without the column start in it."""
    catalog = ssbroker.Catalog(routes_without_database())
    assert catalog.user_database == "user"
    assert sorted(database_names(catalog)) == ["msdb", "user"]
    inputs = pa.record_batch({"to_service_name": ["Orders"]})
    assert decisions_of(ssbroker.Router(catalog, tie_break="first").route(inputs, now=NOW)) == [remote(2, 65536, A)]


@pytest.mark.rule("R1")
def test_routes_without_database_belong_to_the_only_given_database() -> None:
    """msdb does not count as a user database."""
    databases = pa.table(
        {
            "name": ["msdb", "Sales"],
            "service_broker_guid": [str(STORES), str(SALES)],
            "is_broker_enabled": [True, True],
        }
    )
    catalog = ssbroker.Catalog(routes_without_database(), databases)
    assert catalog.user_database == "Sales"
    assert catalog.routes.column("database").to_pylist() == ["Sales"]


@pytest.mark.rule("R1", "R2")
def test_several_databases_require_the_database_column() -> None:
    """The database of routes and conversations cannot be guessed."""
    databases = catalog_of(here()).databases
    with pytest.raises((ssbroker.SchemaError, ssbroker.NullError), match="database"):
        ssbroker.Catalog(routes_without_database(), databases)
    router = ssbroker.Router(catalog_of(here(route(1, A))), tie_break="first")
    assert router.catalog.user_database is None
    with pytest.raises(ssbroker.SchemaError, match="database"):
        router.route(pa.record_batch({"to_service_name": ["Orders"]}), now=NOW)


@pytest.mark.parametrize(
    ("given", "assigned"),
    [
        ([None, None, None], [65536, 65537, 65538]),
        ([7, None, None], [7, 65536, 65537]),
        ([None, 70000, None], [70001, 70000, 70002]),
        ([None, 65536, None], [65537, 65536, 65538]),
    ],
)
def test_missing_route_ids_are_assigned(given: list[int | None], assigned: list[int]) -> None:
    """They follow the highest id of their database, from 65536, in row order."""
    count = len(given)
    routes = pa.table(
        {
            "database": ["Sales"] * count + ["Stores"],
            "name": [f"r{number}" for number in range(count + 1)],
            "route_id": pa.array([*given, 99999], pa.int32()),
            "address": [f"TCP://h{number}" for number in range(count + 1)],
        }
    )
    catalog = ssbroker.Catalog(routes)
    assert catalog.routes.column("route_id").to_pylist() == [*assigned, 99999]
    inputs = batch_of([Conversation(to_service_name="Orders", database="Sales")])
    first = decisions_of(ssbroker.Router(catalog, tie_break="first").route(inputs, now=NOW))[0]
    assert first.route_id == min(assigned)


@pytest.mark.rule("R1")
def test_route_ids_are_unique_within_their_database() -> None:
    """Route ids are unique within their database."""
    catalog_of(here(route(1, A), route(1, A, table="Stores")))
    with pytest.raises(ssbroker.DuplicateError):
        catalog_of(here(route(1, A), route(1, "LOCAL")))


@pytest.mark.rule("R1")
def test_a_database_that_only_routes_name_is_enabled() -> None:
    """Its broker id is unknown; msdb always exists."""
    catalog = catalog_of(World(routes=(route(1, A, table="Lone"),)))
    assert catalog.databases.to_pylist() == [
        {"name": "Lone", "service_broker_guid": None, "is_broker_enabled": True},
        {"name": "msdb", "service_broker_guid": None, "is_broker_enabled": True},
    ]
    assert decide(World(routes=(route(1, A, table="Lone"),)), "Orders", started_in="Lone") == remote(5, 1, A)


@pytest.mark.rule("R31", "I7")
def test_only_one_database_with_a_broker_id_may_be_enabled() -> None:
    """Two enabled ones are refused (I7)."""
    names = ("One", "Two", "Three")
    for enabled in ((True, False, False), (False, False, False)):
        world = World(
            databases=tuple(
                Database(name=name, service_broker_guid=SALES, is_broker_enabled=on)
                for name, on in zip(names, enabled, strict=True)
            )
        )
        assert database_names(catalog_of(world)) == [*names, "msdb"]
    two = World(databases=tuple(Database(name=name, service_broker_guid=SALES) for name in names[:2]))
    with pytest.raises(ssbroker.DuplicateError):
        catalog_of(two)


def lifetime_table(lifetime: pa.Array[Any]) -> ssbroker.Catalog:
    return ssbroker.Catalog(routes_without_database(lifetime=lifetime))


def is_live(catalog: ssbroker.Catalog, now: datetime) -> bool:
    inputs = pa.record_batch({"to_service_name": ["Orders"]})
    answer = decisions_of(ssbroker.Router(catalog, tie_break="first").route(inputs, now=now))[0]
    return answer.outcome == "REMOTE"


@pytest.mark.rule("R3")
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "+09:00", "America/New_York"])
def test_lifetimes_of_any_unit_and_zone(unit: Any, zone: str | None) -> None:
    """Without a zone it is UTC; with one it is converted."""
    value = NOW if zone else NOW.replace(tzinfo=None)
    catalog = lifetime_table(pa.array([value], pa.timestamp(unit, tz=zone)))
    assert not is_live(catalog, NOW)
    assert is_live(catalog, NOW - TICK)
    assert catalog.routes.column("lifetime").to_pylist() == [NOW]


@pytest.mark.rule("R3")
def test_nanoseconds_round_up() -> None:
    """So that a route never expires early."""
    nanoseconds = int(NOW.timestamp()) * 10**9
    for more, first_expired in (
        (0, NOW),
        (1, NOW + TICK),
        (999, NOW + TICK),
        (1000, NOW + TICK),
        (1001, NOW + 2 * TICK),
    ):
        catalog = lifetime_table(pa.array([nanoseconds + more], pa.timestamp("ns", tz="UTC")))
        assert not is_live(catalog, first_expired)
        assert is_live(catalog, first_expired - TICK)


@pytest.mark.rule("R3")
def test_nanoseconds_before_1970_round_up_too() -> None:
    """Towards the later time, not towards zero."""
    catalog = lifetime_table(pa.array([-1999], pa.timestamp("ns", tz="UTC")))
    assert catalog.routes.column("lifetime").to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC) - TICK]


@pytest.mark.rule("R1")
def test_a_catalog_from_rows_has_only_these_rows() -> None:
    """No `AutoCreatedLocal` is added."""
    catalog = catalog_of(here(services=(("Stores", "Orders"),)))
    assert catalog.routes.num_rows == 0
    assert decide(here(services=(("Stores", "Orders"),)), "Orders").reason == "no_route"


@pytest.mark.rule("R1")
def test_databases_in_scripts_have_auto_created_local(tmp_path: Path) -> None:
    """msdb too, so that local services are reached from inside and outside."""
    script = tmp_path / "instance.sql"
    script.write_text(
        "CREATE DATABASE Sales;\nGO\nUSE Sales;\nGO\nCREATE QUEUE Q;\nGO\nCREATE SERVICE Orders ON QUEUE Q;\nGO\n",
        encoding="utf-8",
    )
    catalog = ssbroker.Catalog.load(script)
    rows = {(row["database"], row["name"], row["address"]) for row in catalog.routes.to_pylist()}
    assert rows == {("Sales", "AutoCreatedLocal", "LOCAL"), (MSDB, "AutoCreatedLocal", "LOCAL")}
    router = ssbroker.Router(catalog, tie_break="first")
    inputs = [Conversation(to_service_name="Orders", database=database) for database in ("Sales", OUTSIDE)]
    answers = decisions_of(router.route(batch_of(inputs), now=NOW))
    assert [(answer.outcome, answer.target_database) for answer in answers] == [("LOCAL", "Sales")] * 2


@pytest.mark.rule("R8")
def test_the_broker_id_of_the_located_database_binds() -> None:
    """It is null only if the id is unknown."""
    world = here(
        route(1, "LOCAL"), route(1, "LOCAL", table="Lone"), services=(("Sales", "Orders"), ("Lone", "Returns"))
    )
    assert decide(world, "Orders") == local(5, 1, "Sales", broker=SALES)
    assert decide(world, "Returns") == local(5, 1, "Lone")


@pytest.mark.rule("R3")
def test_lifetimes_around_the_epoch() -> None:
    """Negative timestamps are valid."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    catalog = lifetime_table(pa.array([epoch - timedelta(hours=1)], pa.timestamp("us", tz="UTC")))
    assert is_live(catalog, epoch - timedelta(hours=1) - TICK)
    assert not is_live(catalog, epoch - timedelta(hours=1))
