"""Which routing table is used, which of its routes are live, and how names and ids compare."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

import ssbroker
from tests.oracle.world import Conversation
from tests.rules.setting import (
    MSDB,
    OUTSIDE,
    SALES,
    STORES,
    decide,
    delayed,
    dropped,
    forward,
    here,
    local,
    remote,
    route,
)
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.universe import NOW, TICK

A = "TCP://a.example:4022"
B = "TCP://b.example:4022"
C = "TCP://c.example:4022"


@pytest.mark.rule("R1")
def test_every_database_has_its_own_table() -> None:
    """A database without routes has an empty table."""
    world = here(
        route(1, A, service="Orders"), route(1, B, service="Orders", table="Stores"), route(9, C, table="Stores")
    )
    assert decide(world, "Orders", started_in="Sales") == remote(2, 1, A)
    assert decide(world, "Orders", started_in="Stores") == remote(2, 1, B)
    assert decide(world, "Invoices", started_in="Sales") == delayed("no_route", 7)
    assert decide(world, "Invoices", started_in="Stores") == remote(5, 9, C)
    assert decide(world, "Orders", started_in="Ops") == delayed("no_route", 7)


@pytest.mark.rule("R1")
def test_messages_from_outside_use_the_table_of_msdb() -> None:
    world = here(route(1, A, service="Orders"), route(2, C, service="Orders", table=MSDB), forwarding=True)
    assert decide(world, "Orders", started_in=OUTSIDE) == forward(2, 2, C)


@pytest.mark.rule("R2")
def test_only_the_table_differs() -> None:
    """The steps are the same for local conversations and messages from outside."""
    tables = ("Sales", MSDB)
    world = here(
        *(route(1, A, service="Orders", broker=SALES, table=table) for table in tables),
        *(route(2, B, service="Orders", table=table) for table in tables),
        *(route(3, C, table=table) for table in tables),
        forwarding=True,
    )
    for name, broker, step, hop in (("Orders", SALES, 1, A), ("Orders", None, 2, B), ("Else", STORES, 5, C)):
        started_here = decide(world, name, broker=broker, started_in="Sales")
        arrived = decide(world, name, broker=broker, started_in=OUTSIDE)
        assert started_here == remote(step, started_here.route_id or 0, hop, broker=broker)
        assert arrived == replace(started_here, outcome="FORWARD")


@pytest.mark.rule("R2")
def test_a_conversation_that_starts_in_msdb_is_local() -> None:
    world = here(route(1, A, service="Orders", table=MSDB))
    assert decide(world, "Orders", started_in=MSDB) == remote(2, 1, A)
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("forwarding_disabled", 2, 1)


@pytest.mark.rule("R3")
@pytest.mark.parametrize(
    ("lifetime", "is_live"),
    [(None, True), (NOW + TICK, True), (NOW, False), (NOW - TICK, False), (datetime(1970, 1, 1, tzinfo=UTC), False)],
)
def test_a_route_expires_at_its_lifetime(lifetime: datetime | None, *, is_live: bool) -> None:
    """When `now >= lifetime`, to the microsecond."""
    world = here(route(1, A, service="Orders", lifetime=lifetime))
    assert decide(world, "Orders") == (remote(2, 1, A) if is_live else delayed("no_route", 7))


@pytest.mark.rule("R3")
def test_expired_routes_are_ignored_in_every_step() -> None:
    """The search continues after a step whose routes have all expired."""
    for expired in range(4):
        lifetimes = [NOW if number < expired else None for number in range(4)]
        world = here(
            route(1, A, service="Orders", broker=SALES, lifetime=lifetimes[0]),
            route(2, A, service="Orders", lifetime=lifetimes[1]),
            route(3, A, lifetime=lifetimes[2]),
            route(4, "LOCAL", lifetime=lifetimes[2]),
            services=(("Sales", "Orders"),),
        )
        steps = [1, 2, 5, 6]
        assert decide(world, "Orders", broker=SALES).match_step == steps[expired]


@pytest.mark.rule("R3")
def test_expiry_is_checked_for_each_batch_and_routes_are_not_deleted() -> None:
    """One router at three times; the expired route remains in the catalog."""
    catalog = catalog_of(here(route(1, A, service="Orders", lifetime=NOW), route(2, B)))
    router = ssbroker.Router(catalog, tie_break="first")
    batch = batch_of([Conversation(to_service_name="Orders", database="Sales")])
    answers = [decisions_of(router.route(batch, now=now))[0] for now in (NOW - TICK, NOW, NOW - TICK)]
    assert answers == [remote(2, 1, A), remote(5, 2, B), remote(2, 1, A)]
    assert router.catalog.routes.num_rows == 2


@pytest.mark.rule("R3")
def test_expiry_uses_the_current_time_by_default() -> None:
    past, future = datetime(2001, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    world = here(route(1, A, service="Orders", lifetime=past), route(2, B, service="Orders", lifetime=future))
    router = ssbroker.Router(catalog_of(world), tie_break="first")
    batch = batch_of([Conversation(to_service_name="Orders", database="Sales")])
    assert decisions_of(router.route(batch)) == [remote(2, 2, B)]


@pytest.mark.rule("R3")
def test_times_are_compared_in_utc() -> None:
    """A time in another zone is converted."""
    world = here(route(1, A, service="Orders", lifetime=NOW))
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    for now in (NOW, east):
        assert decide(world, "Orders", now=now) == delayed("no_route", 7)
        assert decide(world, "Orders", now=now - TICK) == remote(2, 1, A)


@pytest.mark.rule("R4")
def test_find_then_choose_then_locate() -> None:
    """Of the routes of step 2, LOCAL is chosen before the network address, and the service located."""
    world = here(
        route(1, C),
        route(2, A, service="Orders"),
        route(3, "LOCAL", service="Orders"),
        services=(("Stores", "Orders"),),
    )
    assert decide(world, "Orders") == local(2, 3, "Stores", broker=STORES)


@pytest.mark.rule("R5")
@pytest.mark.parametrize(
    "other",
    [
        "orders",
        "ORDERS",
        "Orders ",
        " Orders",
        "Orders\t",
        "Order",
        "Orderss",
        "Orders\x00",
        "\uff2frders",
        "",
        "Örders",
    ],
)
def test_names_compare_byte_by_byte(other: str) -> None:
    """Case, white space and Unicode form matter."""
    world = here(route(1, A, service="Orders"), services=(("Sales", "Orders"),))
    assert decide(world, "Orders") == remote(2, 1, A)
    assert decide(world, other) == delayed("no_route", 7)
    assert decide(here(route(1, A, service=other)), "Orders") == delayed("no_route", 7)
    assert decide(here(route(1, A, service=other)), other) == remote(2, 1, A)


@pytest.mark.rule("R5")
def test_composed_and_decomposed_letters_differ() -> None:
    """Though names look alike on a screen."""
    world = here(route(1, A, service="\u00d3rdenes"), route(2, B, service="O\u0301rdenes"))
    assert decide(world, "\u00d3rdenes") == remote(2, 1, A)
    assert decide(world, "O\u0301rdenes") == remote(2, 2, B)


@pytest.mark.rule("R5")
def test_long_names_are_compared_completely() -> None:
    """Names with equal first 64, 128 or 255 bytes."""
    for length in (7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 500):
        stem = "x" * length
        world = here(
            *(route(number, f"TCP://h{number}", service=stem + end) for number, end in enumerate(("", "a", "b")))
        )
        for number, end in enumerate(("", "a", "b")):
            assert decide(world, stem + end) == remote(2, number, f"TCP://h{number}:4022")
        assert decide(world, stem + "c") == delayed("no_route", 7)


@pytest.mark.rule("R5")
def test_service_names_compare_byte_by_byte() -> None:
    """Also when the target is located."""
    world = here(route(1, "LOCAL"), services=(("Stores", "orders"), ("Ops", "Orders ")))
    assert decide(world, "Orders") == delayed("service_not_found", 5)
    assert decide(world, "orders") == local(5, 1, "Stores", broker=STORES)


@pytest.mark.rule("R5")
def test_database_names_compare_byte_by_byte() -> None:
    """A conversation cannot start in a database with another spelling."""
    router = ssbroker.Router(catalog_of(here(route(1, A))), tie_break="first")
    for name in ("sales", "SALES", "Sales ", "MSDB"):
        batch = batch_of([Conversation(to_service_name="Orders", database=name)])
        with pytest.raises(ssbroker.UnknownDatabaseError, match=name.strip()):
            router.route(batch, now=NOW)


@pytest.mark.rule("R5")
def test_broker_ids_compare_as_guids() -> None:
    """In any case, with or without braces, as text or as bytes."""
    world = here(route(1, A, service="Orders", broker=SALES), route(2, B, service="Orders", broker=STORES))
    inputs = [Conversation(to_service_name="Orders", database="Sales", to_broker_instance=STORES)] * 4
    for catalog_text in (True, False):
        router = ssbroker.Router(catalog_of(world, text_guids=catalog_text), tie_break="first")
        for text in (True, False):
            answers = decisions_of(router.route(batch_of(inputs, text_guids=text), now=NOW))
            assert answers == [remote(1, 2, B, broker=STORES)] * 4


@pytest.mark.rule("R3")
def test_lifetimes_far_from_the_present() -> None:
    """They are compared like others."""
    far = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]
    world = here(*(route(n, f"TCP://h{n}", service="Orders", lifetime=lifetime) for n, lifetime in enumerate(far)))
    assert decide(world, "Orders", now=NOW + timedelta(days=365 * 1000)) == remote(2, 1, "TCP://h1:4022")
