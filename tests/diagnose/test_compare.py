"""Changes between catalogs, their causes, and the number of conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from uuid import UUID

import pyarrow as pa
import pytest

import ssbroker
from ssbroker.diagnose import CAUSES, CHANGES, LOAD, compare, expiries, html_report, lint, loops
from tests.diagnose.finding_cases import fleet, north, south
from tests.oracle.world import Conversation, World
from tests.rules.setting import BCN, ELSEWHERE, MSDB, NOWHERE, SALES, here, route
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import SeededChooser, seeded_world
from tests.worlds.universe import NOW

COMPARED_COLUMNS = ("outcome", "reason", "match_step", "next_hop_address", "mirror_address", "target_database")
ORDERS = (("Sales", "Orders"),)
BEGUN = (("Stock", "REMOTE TCP://one:4022"), (None, "DELAYED (no_route)"))
NOTHING = "NONE (no such database)"
TO_STOCK = route(1, "TCP://one", service="Stock")


def altered(world: World, random: Random) -> World:
    """Returns the world with one change."""
    chooser = SeededChooser(random)
    kind = chooser.one_of(("drop", "address", "expire", "rename", "forwarding", "service", "database"))
    routes, services, databases = list(world.routes), list(world.services), list(world.databases)
    if kind == "forwarding" or not routes:
        return replace(world, message_forwarding=not world.message_forwarding)
    at = chooser.count(0, len(routes) - 1)
    if kind == "drop":
        del routes[at]
    elif kind == "address":
        routes[at] = replace(routes[at], address=chooser.one_of(("LOCAL", "TCP://new.example:4022", "TRANSPORT")))
    elif kind == "expire":
        routes[at] = replace(routes[at], lifetime=NOW - timedelta(days=1))
    elif kind == "rename":
        routes[at] = replace(
            routes[at], remote_service_name=chooser.one_of(("Orders", None, "LOCAL")), broker_instance=None
        )
    elif kind == "service" and services:
        services.pop()
    elif databases:
        index = chooser.count(0, len(databases) - 1)
        databases[index] = replace(databases[index], is_broker_enabled=False)
    return replace(world, routes=tuple(routes), services=tuple(services), databases=tuple(databases))


def pair_of_worlds(seed: int) -> tuple[ssbroker.Catalog, ssbroker.Catalog, list[Conversation]]:
    """Returns two catalogs that differ in one change, with explicit route ids, and conversations for both."""
    first, conversations = seeded_world(seed, conversations=400)
    ids = catalog_of(first).routes["route_id"].to_pylist()
    world = replace(
        first,
        routes=tuple(
            replace(each, route_id=number, name=f"{each.name} of {number}")
            for each, number in zip(first.routes, ids, strict=True)
        ),
    )
    other = altered(world, Random(seed))
    known = {each.name for each in world.instance_databases} & {each.name for each in other.instance_databases}
    return catalog_of(world), catalog_of(other), [each for each in conversations if each.database in {*known, None}]


def row_by_row(
    before: ssbroker.Catalog, after: ssbroker.Catalog, conversations: list[Conversation]
) -> Counter[tuple[str | None, str]]:
    """Counts changed conversations by database and service, comparing each one."""
    batch = batch_of(conversations)
    names = [
        {(row["database"], row["route_id"]): row["name"] for row in catalog.routes.to_pylist()}
        for catalog in (before, after)
    ]
    decided = [ssbroker.Router(catalog).route(batch, now=NOW).to_pylist() for catalog in (before, after)]
    changed: Counter[tuple[str | None, str]] = Counter()
    for conversation, old, new in zip(conversations, *decided, strict=True):
        table = conversation.database or MSDB
        routes = [
            row["route_id"] and (by_id.get((table, row["route_id"])) or by_id.get((MSDB, row["route_id"])))
            for by_id, row in zip(names, (old, new), strict=True)
        ]
        if any(old[name] != new[name] for name in COMPARED_COLUMNS) or routes[0] != routes[1]:
            changed[conversation.database, conversation.to_service_name] += 1
    return changed


@pytest.mark.parametrize("seed", range(80))
def test_changes_equal_the_different_decisions_of_the_router(seed: int) -> None:
    """Checked row by row over traffic; the complete comparison covers every change."""
    before, after, conversations = pair_of_worlds(seed)
    expected = row_by_row(before, after, conversations)
    compared = compare(before, after, batch_of(conversations), at=NOW)
    changed: Counter[tuple[str | None, str]] = Counter()
    for change in compared.changes:
        changed[change.database, str(change.service)] += change.conversations or 0
        assert change.cause != "other"
    assert changed == expected
    assert compared.conversations == len(conversations)
    assert compared.changed_conversations == expected.total()
    assert pa.compute.sum(compared.causes["conversations"]).as_py() in (expected.total(), None)
    complete = compare(before, after, at=NOW)
    classes = {(change.database, change.service) for change in complete.changes}
    addressed = {
        database for database, service in classes if service is not None and service.startswith("TCP://any.invalid")
    }
    for database, service in expected:
        assert (database, service) in classes or (database, None) in classes or database in addressed
    assert all(change.conversations is None for change in complete.changes)


def test_seeds_include_changes_and_no_changes() -> None:
    """Otherwise the test above might check nothing."""
    counts = [len(compare(*pair_of_worlds(seed)[:2], at=NOW).changes) for seed in range(40)]
    assert 5 < sum(count > 0 for count in counts) < 40


def test_equal_catalogs_have_no_changes() -> None:
    for seed in range(20):
        world, conversations = seeded_world(seed, conversations=50)
        assert not compare(catalog_of(world), catalog_of(world), at=NOW)
        assert not compare(catalog_of(world), catalog_of(world), batch_of(conversations), at=NOW)


@pytest.mark.parametrize(
    ("before", "after", "cause", "kind"),
    [
        (here(), here(TO_STOCK), ("route appeared", 'Sales/route "route 1"'), "outcome"),
        (here(TO_STOCK), here(), ("route vanished", 'Sales/route "route 1"'), "outcome"),
        (here(TO_STOCK), here(replace(TO_STOCK, lifetime=NOW)), ("route expired", 'Sales/route "route 1"'), "outcome"),
        (
            here(replace(TO_STOCK, lifetime=NOW)),
            here(TO_STOCK),
            ("route prolonged", 'Sales/route "route 1"'),
            "outcome",
        ),
        (
            here(TO_STOCK),
            here(replace(TO_STOCK, address="TCP://two")),
            ("route changed", 'Sales/route "route 1"'),
            "next_hop",
        ),
        (
            here(TO_STOCK),
            here(replace(TO_STOCK, mirror_address="TCP://two")),
            ("route changed", 'Sales/route "route 1"'),
            "next_hop",
        ),
        (
            here(TO_STOCK),
            here(replace(TO_STOCK, name="Stock")),
            ("route vanished", 'Sales/route "route 1"'),
            "explanation",
        ),
        (
            here(route(1, "LOCAL"), services=ORDERS),
            here(route(1, "LOCAL"), services=(("Stores", "Orders"),)),
            ("service dropped", 'Sales/service "Orders"'),
            "database",
        ),
        (
            here(route(1, "LOCAL")),
            here(route(1, "LOCAL"), services=ORDERS),
            ("service created", 'Sales/service "Orders"'),
            "outcome",
        ),
        (
            here(route(1, "LOCAL"), services=(("Stores", "Orders"),)),
            here(route(1, "LOCAL"), services=(("Stores", "Orders"),), disabled=("Stores",)),
            ("delivery turned off", "Stores"),
            "outcome",
        ),
        (
            here(replace(TO_STOCK, database=MSDB)),
            here(replace(TO_STOCK, database=MSDB), forwarding=True),
            ("forwarding turned on", ""),
            "outcome",
        ),
        (
            here(replace(TO_STOCK, database=MSDB), forwarding=True),
            here(replace(TO_STOCK, database=MSDB), forwarding=True, own=("TCP://one",)),
            ("own addresses changed", "TCP://one:4022"),
            "outcome",
        ),
        (
            here(route(1, "LOCAL", service=BCN), route(2, "TCP://hub")),
            here(route(1, "LOCAL", service=BCN), route(2, "TCP://hub"), pending=("Stock",)),
            ("pending requests changed", "Stock"),
            "outcome",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_cause_of_a_change(before: World, after: World, cause: tuple[str, str], kind: str) -> None:
    compared = compare(catalog_of(before), catalog_of(after), at=NOW)
    assert cause in {(change.cause, change.object) for change in compared.changes}
    assert kind in {change.kind for change in compared.changes if (change.cause, change.object) == cause}
    assert {change.cause for change in compared.changes} == {cause[0]}


@pytest.mark.rule("R1")
def test_missing_database_changes_all_its_conversations() -> None:
    """Its routing table is missing too, so the catalogs are not equal."""
    stores = route(1, "TCP://one", service="Stock", table="Stores")
    both = catalog_of(here(stores))
    without = ssbroker.Catalog(both.routes.slice(0, 0), both.databases.filter(pa.compute.field("name") != "Stores"))

    for cause, sides in (("database dropped", (both, without)), ("database created", (without, both))):
        changes = [change for change in compare(*sides, at=NOW).changes if change.database == "Stores"]
        assert {(each.cause, each.object, each.kind) for each in changes} == {(cause, "Stores", "outcome")}
        reported = {(each.service, each.before, each.after) for each in changes}
        assert reported == {
            (service, *((decided, NOTHING) if sides[0] is both else (NOTHING, decided))) for service, decided in BEGUN
        }


@pytest.mark.rule("R41")
def test_route_of_a_reentered_conversation_belongs_to_msdb() -> None:
    """Route ids repeat across tables, so a route of msdb must not be mistaken for one of another table."""
    sales = (route(1, "TCP://me", service="Orders"), route(2, "LOCAL"))
    before, after = (
        here(
            *sales,
            replace(route(number, "LOCAL", service="Orders", table=MSDB), name="In"),
            services=ORDERS,
            own=("TCP://me",),
        )
        for number in (2, 7)
    )
    assert not compare(catalog_of(before), catalog_of(after), at=NOW)
    traffic = [
        Conversation(to_service_name="Orders", database="Sales", conversation_id=UUID(int=number))
        for number in range(3)
    ]
    assert not compare(catalog_of(before), catalog_of(after), batch_of(traffic), at=NOW)


@pytest.mark.rule("I5")
def test_new_broker_id_is_a_cause() -> None:
    """Conversations with the old id are no longer delivered."""
    old = here(route(1, "LOCAL"), services=ORDERS)
    new = replace(
        old,
        databases=tuple(
            replace(each, service_broker_guid=NOWHERE) if each.name == "Sales" else each for each in old.databases
        ),
    )
    traffic = [
        Conversation(
            to_service_name="Orders", database="Sales", to_broker_instance=SALES, conversation_id=UUID(int=number)
        )
        for number in range(3)
    ]
    compared = compare(catalog_of(old), catalog_of(new), batch_of(traffic), at=NOW)
    assert [(change.cause, change.before, change.after, change.conversations) for change in compared.changes] == [
        ("broker id changed", "LOCAL Sales", "DELAYED (service_not_found)", 3)
    ]


@pytest.mark.rule("R24")
def test_load_and_skew_of_each_copy() -> None:
    """One of three copies is removed."""
    copies = [route(number, f"TCP://copy{number}", service="Stock") for number in (1, 2, 3)]
    source = Random(1)
    traffic = batch_of(
        [
            Conversation(to_service_name="Stock", database="Sales", conversation_id=UUID(int=source.getrandbits(128)))
            for _ in range(600)
        ]
    )
    compared = compare(catalog_of(here(*copies)), catalog_of(here(*copies[:2])), traffic, at=NOW)
    rows = compared.load.to_pylist()
    assert [row["copy"] for row in rows] == [f"REMOTE TCP://copy{number}:4022" for number in (1, 2, 3)]
    assert sum(row["before"] for row in rows) == sum(row["after"] for row in rows) == 600
    assert rows[2]["after"] == 0
    assert all(150 < row["before"] < 250 for row in rows)
    most = max(row["after"] for row in rows)
    assert {row["skew_after"] for row in rows} == {most * 2 / 600}
    assert {change.cause for change in compared.changes} == {"route vanished"}


def test_tables_of_an_empty_comparison() -> None:
    compared = compare(catalog_of(here()), catalog_of(here()), at=NOW)
    assert (compared.table.schema, compared.causes.schema, compared.load.schema) == (CHANGES, CAUSES, LOAD)
    assert (compared.table.num_rows, compared.causes.num_rows, compared.load.num_rows) == (0, 0, 0)
    assert compared.to_dict() == {
        "conversations": None,
        "changed_conversations": None,
        "causes": [],
        "changes": [],
        "load": [],
        "not_compared": [],
        "earlier_expiries": [],
    }
    assert repr(compared) == "Comparison(changes=0)"


def test_fleets_are_compared_by_instance() -> None:
    before, after = fleet(NORTH=north(), SOUTH=south("LOCAL")), fleet(NORTH=north(), SOUTH=south("TCP://north"))
    compared = compare(before, after, at=NOW)
    assert {change.instance for change in compared.changes} == {"SOUTH"}
    traffic = pa.table(
        {
            "instance": ["SOUTH", "NORTH", "SOUTH"],
            "database": ["Stores", "Sales", "Stores"],
            "conversation_id": pa.array([bytes([number] * 16) for number in range(3)], pa.binary(16)),
            "to_service_name": ["Orders", "Orders", "Stock"],
            "to_broker_instance": pa.nulls(3, pa.binary(16)),
        }
    )
    count_pairs = compare(before, after, traffic, at=NOW)
    assert repr(count_pairs) == "Comparison(changes=2, conversations=2 of 3)"
    assert {change.after for change in count_pairs.changes} == {"REMOTE TCP://north:4022"}
    with pytest.raises(
        ssbroker.SchemaError,
        match=r"the column is missing; several instances are compared, so add a column instance .*: NORTH, SOUTH",
    ):
        compare(before, after, traffic.drop_columns(["instance"]))
    with pytest.raises(ssbroker.SchemaError, match="unknown instance 'EAST'"):
        compare(before, after, traffic.set_column(0, "instance", pa.array(["EAST"] * 3)))


@pytest.mark.rule("R3")
def test_expiries_that_change_a_decision() -> None:
    """An expiry that changes nothing is skipped."""
    day = timedelta(days=1)
    world = here(
        route(1, "TCP://one", service="Stock", lifetime=NOW + day),
        route(2, "TCP://one", service="Stock", lifetime=NOW + 2 * day),
        route(3, "TCP://other", service="Other", broker=ELSEWHERE, lifetime=NOW - day),
        route(4, "TCP://five", broker=ELSEWHERE, lifetime=NOW + 3 * day),
        route(5, "TCP://five", service="Five", lifetime=NOW + 4 * day),
    )
    found = expiries(catalog_of(world), at=NOW)
    assert [expiry.moment - NOW for expiry in found] == [day, 2 * day, 4 * day]
    assert [expiry.routes for expiry in found][1:] == [
        ('instance/Sales/route 2 "route 2"',),
        ('instance/Sales/route 5 "route 5"',),
    ]
    assert [change.kind for change in found[0].comparison.changes] == ["explanation"]
    assert {change.cause for change in found[2].comparison.changes} == {"route expired"}
    assert len(expiries(catalog_of(world), at=NOW, limit=1)) == 1
    assert expiries(catalog_of(world), at=NOW + 5 * day) == ()


def test_an_invalid_limit_of_expiries_is_an_error() -> None:
    for limit in (-1, 1.5, None):
        with pytest.raises(ssbroker.OptionError, match=r"limit: expected an integer from 0 to 2147483647, got "):
            expiries(catalog_of(here()), at=NOW, limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "argument"),
    [(compare, "at"), (compare, "before_at"), (expiries, "at"), (lint, "at"), (loops, "at"), (html_report, "at")],
)
def test_an_invalid_time_is_reported_with_the_name_of_the_argument(
    function: Callable[..., object], argument: str
) -> None:
    catalogs = [catalog_of(here())] * (2 if function is compare else 1)
    with pytest.raises(ssbroker.OptionError, match=rf"^{argument}: expected a datetime or None, got 5 \(int\)"):
        function(*catalogs, **{argument: 5})


@pytest.mark.rule("R11", "R12")
def test_the_route_that_was_taken_is_the_cause_and_not_its_neighbour() -> None:
    """Two routes of one service change; each conversation changes by its own."""
    routes = route(1, "TCP://one", service="Stock", broker=ELSEWHERE), route(2, "TCP://two", service="Stock")
    moved = [replace(each, address=f"{each.address}-new") for each in routes]
    traffic = [
        Conversation(
            to_service_name="Stock", database="Sales", to_broker_instance=broker, conversation_id=UUID(int=number)
        )
        for number, broker in enumerate((ELSEWHERE, None, None))
    ]
    compared = compare(catalog_of(here(*routes)), catalog_of(here(*moved)), batch_of(traffic), at=NOW)
    assert {(change.object, change.after, change.conversations) for change in compared.changes} == {
        ('Sales/route "route 1"', "REMOTE TCP://one-new:4022", 1),
        ('Sales/route "route 2"', "REMOTE TCP://two-new:4022", 2),
    }
    assert compared.causes["conversations"].to_pylist() == [2, 1]


def test_traffic_without_a_database_begins_in_the_one_there_is() -> None:
    """So its routes are those of that database's table."""
    alone = World(routes=(TO_STOCK,))
    moved = World(routes=(replace(TO_STOCK, address="TCP://two"),))
    traffic = pa.table({"conversation_id": pa.array([bytes(16)], pa.binary(16)), "to_service_name": ["Stock"]})
    (change,) = compare(catalog_of(alone), catalog_of(moved), traffic, at=NOW).changes
    assert (change.database, change.object, change.route_before) == (
        "Sales",
        'Sales/route "route 1"',
        'Sales/route "route 1"',
    )


def test_broker_ids_are_named_unless_all_conversations_change_alike() -> None:
    """Otherwise one class that changes reads as if all conversations for the service did."""
    before = south("LOCAL")
    databases = tuple(replace(each, service_broker_guid=None) for each in before.databases)
    lost = compare(catalog_of(before), catalog_of(replace(before, databases=databases)), at=NOW)
    named = {(change.service, change.broker_ids is None) for change in lost.changes}
    assert named == {("Stock", False), (None, False)}
    assert {change.after for change in lost.changes if change.service == "Stock"} == {
        "DROPPED (service_not_found)",
        "DELAYED (service_not_found)",
    }
    moved = compare(catalog_of(north(sender="TCP://one")), catalog_of(north(sender="TCP://two")), at=NOW)
    assert {change.broker_ids for change in moved.changes} == {None}
